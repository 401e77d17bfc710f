//! Sums whose order does not depend on the vector width (docs/NUMERICS.md, section 5).
//!
//! `unsafe` lives here because the compiler makes single numbers of the lanes where a row's length is known, so the sum is written
//! out for AVX2; it is only called after the CPU was asked for it.
#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::simd;

const LANES: usize = 32;

/// `sum32` of the squares of `x`: 32 lanes, then a tree.
#[inline(always)]
pub fn of_squares(x: &[f32]) -> f32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if simd::level().has_avx2() {
        // SAFETY: the CPU has AVX2.
        return unsafe { of_squares_avx2(x) };
    }
    of_squares_portable(x)
}

/// The chunks of `x`, and what is left with zeros behind it, whose squares change no lane.
#[inline(always)]
fn chunks(x: &[f32]) -> (&[[f32; LANES]], Option<[f32; LANES]>) {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let padded = |tail: &[f32]| std::array::from_fn(|lane| tail.get(lane).copied().unwrap_or(0.0));
    (chunks, (!tail.is_empty()).then(|| padded(tail)))
}

#[inline(always)]
fn of_squares_portable(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, tail) = chunks(x);
    for chunk in chunks.iter().chain(&tail) {
        for lane in 0..LANES {
            lanes[lane] += chunk[lane] * chunk[lane];
        }
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

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
#[inline]
fn of_squares_avx2(x: &[f32]) -> f32 {
    use std::arch::x86_64::*;
    let mut lanes = [_mm256_setzero_ps(); 4];
    let (chunks, tail) = chunks(x);
    for chunk in chunks.iter().chain(&tail) {
        for (eight, lanes) in lanes.iter_mut().enumerate() {
            // SAFETY: numbers 8 * eight to 8 * eight + 7 of the chunk are readable, and the load asks for no alignment.
            let x = unsafe { _mm256_loadu_ps(chunk.as_ptr().add(8 * eight)) };
            *lanes = _mm256_add_ps(*lanes, _mm256_mul_ps(x, x));
        }
    }
    let eight = _mm256_add_ps(_mm256_add_ps(lanes[0], lanes[2]), _mm256_add_ps(lanes[1], lanes[3]));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
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
        for len in 0..=x.len() {
            assert_eq!(of_squares(&x[..len]).to_bits(), of_squares_portable(&x[..len]).to_bits(), "{len} numbers");
        }
    }
}
