//! Sums whose order does not depend on the vector width (docs/NUMERICS.md, section 5).

const LANES: usize = 32;

/// `sum32` of the squares of `x`: 32 lanes, then a tree.
#[inline(always)]
pub fn of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += chunk[lane] * chunk[lane];
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *lane += x * x;
    }
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_lanes_then_tree() {
        // 1e8 and its negative would cancel differently in another order; squares only test the layout.
        let x: Vec<f32> = (0..70).map(|i| 1.0 + i as f32 * 0.37).collect();
        let mut lanes = [0.0f32; 32];
        for (i, x) in x.iter().enumerate() {
            lanes[i % 32] += x * x;
        }
        for half in [16, 8, 4, 2, 1] {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
        }
        assert_eq!(of_squares(&x).to_bits(), lanes[0].to_bits());
        assert_eq!(of_squares(&[]), 0.0);
    }
}
