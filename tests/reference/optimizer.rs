//! Section 5: optimizers.

use super::{Optimizer, Table};

/// A row in f32, as in the hot cache.
#[derive(Clone, Debug)]
pub struct Row {
    pub weights: Vec<f32>,
    /// State tensor after state tensor.
    pub state: Vec<Vec<f32>>,
}

/// The lengths of the state tensors of a row.
pub fn state_tensors(optimizer: &Optimizer, dim: usize) -> Vec<usize> {
    match optimizer {
        Optimizer::Sgd => vec![],
        Optimizer::Adagrad { .. } => vec![dim],
        Optimizer::RowwiseAdagrad { .. } => vec![1],
        Optimizer::Adam { .. } | Optimizer::AdamW { .. } => vec![dim, dim],
    }
}

pub fn sum32(x: &[f32]) -> f32 {
    let mut lanes = [0f32; 32];
    for (i, v) in x.iter().enumerate() {
        lanes[i % 32] += v;
    }
    for h in [16, 8, 4, 2, 1] {
        for l in 0..h {
            lanes[l] += lanes[l + h];
        }
    }
    lanes[0]
}

fn squares(x: &[f32]) -> Vec<f32> {
    x.iter().map(|v| v * v).collect()
}

/// `b^t` by squaring.
fn power(b: f64, t: u64) -> f64 {
    let mut r = 1.0;
    let mut b = b;
    let mut t = t;
    while t > 0 {
        if t % 2 == 1 {
            r *= b;
        }
        b *= b;
        t >>= 1;
    }
    r
}

/// Steps 2 to 4; `gradient` is the sum of the gradients of the row. `lr` is resolved by the caller.
pub fn step(table: &Table, lr: f32, t: Option<u64>, gradient: &[f32], row: &mut Row) {
    let dim = table.dim;
    let mut g = gradient.to_vec();
    if let Some(c) = table.clip_norm {
        let n = sum32(&squares(&g)).sqrt();
        if n > c {
            let factor = c / n;
            for v in &mut g {
                *v *= factor;
            }
        }
    }
    let decoupled = matches!(table.optimizer, Optimizer::AdamW { .. });
    if table.weight_decay != 0.0 && !decoupled {
        for (v, w) in g.iter_mut().zip(&row.weights) {
            *v += table.weight_decay * w;
        }
    }
    let w = &mut row.weights;
    match table.optimizer {
        Optimizer::Sgd => {
            for i in 0..dim {
                w[i] -= lr * g[i];
            }
        }
        Optimizer::Adagrad { eps } => {
            let a = &mut row.state[0];
            for i in 0..dim {
                a[i] += g[i] * g[i];
                w[i] -= lr * (g[i] / (a[i].sqrt() + eps));
            }
        }
        Optimizer::RowwiseAdagrad { eps } => {
            let a = &mut row.state[0];
            a[0] += sum32(&squares(&g)) / dim as f32;
            let r = lr / (a[0].sqrt() + eps);
            for i in 0..dim {
                w[i] -= r * g[i];
            }
        }
        Optimizer::Adam { b1, b2, eps } | Optimizer::AdamW { b1, b2, eps } => {
            let t = t.expect("adam and adamw need the step number");
            assert!(t >= 1);
            let c1 = 1.0 - power(f64::from(b1), t);
            let c2 = 1.0 - power(f64::from(b2), t);
            let big_a = (f64::from(lr) * c2.sqrt() / c1) as f32;
            let big_d = (1.0 - f64::from(lr) * f64::from(table.weight_decay)) as f32;
            let big_e = if decoupled { (f64::from(eps) * c2.sqrt()) as f32 } else { eps };
            let one_minus_b1 = (1.0 - f64::from(b1)) as f32;
            let one_minus_b2 = (1.0 - f64::from(b2)) as f32;
            for i in 0..dim {
                if decoupled {
                    w[i] *= big_d;
                }
                let m = row.state[0][i];
                let v = row.state[1][i];
                let m = m + (g[i] - m) * one_minus_b1;
                let v = v + (g[i] * g[i] - v) * one_minus_b2;
                w[i] -= big_a * (m / (v.sqrt() + big_e));
                row.state[0][i] = m;
                row.state[1][i] = v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Initializer, KeySpace, Policy, Precision, Quantizer, Rounding, StatePrecision};
    use super::*;

    fn table(optimizer: Optimizer) -> Table {
        Table {
            name: "t".into(),
            dim: 2,
            keys: KeySpace::Hashed,
            precision: Precision::F32,
            quantizer: Quantizer::Symmetric,
            rounding: Rounding::Stochastic,
            state_precision: StatePrecision::F32,
            policy: Policy::Lru,
            cache_rows: 0,
            initializer: Initializer::Zeros,
            optimizer,
            learning_rate: 0.5,
            weight_decay: 0.0,
            clip_norm: None,
        }
    }

    fn row(optimizer: &Optimizer) -> Row {
        Row { weights: vec![1.0, 2.0], state: state_tensors(optimizer, 2).iter().map(|&n| vec![0.0; n]).collect() }
    }

    #[test]
    fn lanes() {
        let x: Vec<f32> = (0..70).map(|v| v as f32).collect();
        assert_eq!(sum32(&x), 2415.0);
        // Lane 0 sees 1e8 and then 1, which is lost; lane 1 sees -1e8.
        let mut x = vec![0.0; 33];
        x[0] = 1e8;
        x[1] = -1e8;
        x[32] = 1.0;
        assert_eq!(sum32(&x), 0.0);
    }

    #[test]
    fn plain_steps() {
        let mut t = table(Optimizer::Sgd);
        let mut r = row(&t.optimizer);
        step(&t, 0.5, None, &[3.0, 4.0], &mut r);
        assert_eq!(r.weights, [-0.5, 0.0]);
        t.clip_norm = Some(2.5);
        t.weight_decay = 0.5;
        let mut r = row(&t.optimizer);
        step(&t, 0.5, None, &[3.0, 4.0], &mut r);
        assert_eq!(r.weights, [1.0 - 0.5 * 2.0, 2.0 - 0.5 * 3.0]);

        let t = table(Optimizer::Adagrad { eps: 1.0 });
        let mut r = row(&t.optimizer);
        step(&t, 0.5, None, &[3.0, 1.0], &mut r);
        assert_eq!(r.state, [[9.0, 1.0]]);
        assert_eq!(r.weights, [0.625, 1.75]);

        let t = table(Optimizer::RowwiseAdagrad { eps: 0.0 });
        let mut r = row(&t.optimizer);
        step(&t, 0.5, None, &[1.0, 7.0], &mut r);
        assert_eq!(r.state, [[25.0]]);
        let rate = 0.5f32 / 5.0;
        assert_eq!(r.weights, [1.0 - rate, 2.0 - rate * 7.0]);
    }

    #[test]
    fn adam_steps() {
        assert_eq!(power(0.5, 10), 2f64.powi(-10));
        assert_eq!(power(3.0, 5), 243.0);
        // With t = 1 and eps = 0 the first step is lr * sign(G), but for rounding.
        let t = table(Optimizer::Adam { b1: 0.5, b2: 0.75, eps: 0.0 });
        let mut r = row(&t.optimizer);
        step(&t, 0.5, Some(1), &[3.0, -4.0], &mut r);
        assert_eq!(r.state, [[1.5, -2.0], [2.25, 4.0]]);
        assert_eq!(r.weights, [0.5, 2.5]);
        let mut t = table(Optimizer::AdamW { b1: 0.5, b2: 0.75, eps: 0.0 });
        t.weight_decay = 0.5;
        let mut r = row(&t.optimizer);
        step(&t, 0.5, Some(1), &[3.0, -4.0], &mut r);
        assert_eq!(r.weights, [0.75 - 0.5, 1.5 + 0.5]);
    }
}
