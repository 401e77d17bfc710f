//! Optimizer steps on one row at full precision (docs/NUMERICS.md, section 5).
//!
//! A [`Rule`] is an optimizer with all of a push's numbers filled in: nothing is left but arithmetic.
//! Hot path: no allocation per row.

use super::sum;

/// An optimizer's step, with the push's learning rate and step number worked in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// The step itself.
    pub step: Step,
    /// The largest L2 norm that a row's gradient may have.
    pub clip_norm: Option<f32>,
    /// L2 weight decay, added to the gradient. Zero where the step decays by itself.
    pub weight_decay: f32,
}

/// The step of each optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Stochastic gradient descent; no state.
    Sgd {
        /// Learning rate.
        lr: f32,
    },
    /// Adagrad; one accumulator per weight.
    Adagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the root.
        eps: f32,
    },
    /// Adagrad with one accumulator per row.
    RowwiseAdagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the root.
        eps: f32,
    },
    /// Adam and AdamW; two moments per weight.
    Adam {
        /// The learning rate with both bias corrections.
        scale: f32,
        /// Added to the root, corrected where the variant asks for it.
        eps: f32,
        /// 1 - beta1.
        rate1: f32,
        /// 1 - beta2.
        rate2: f32,
        /// Factor on the weights before the step; 1 for Adam.
        decay: f32,
    },
}

impl Rule {
    /// Steps one row: its weights and its state tensors. `gradient` and `scratch` are as long as `weights`.
    #[inline(always)]
    pub fn apply(&self, weights: &mut [f32], state: &mut [f32], gradient: &[f32], scratch: &mut [f32]) {
        if self.clip_norm.is_none() && self.weight_decay == 0.0 {
            return self.step.apply(weights, state, gradient);
        }
        scratch.copy_from_slice(gradient);
        if let Some(limit) = self.clip_norm {
            let norm = sum::of_squares(gradient).sqrt();
            if norm > limit {
                let factor = limit / norm;
                scratch.iter_mut().for_each(|g| *g *= factor);
            }
        }
        if self.weight_decay != 0.0 {
            for (g, w) in scratch.iter_mut().zip(&*weights) {
                *g += self.weight_decay * w;
            }
        }
        self.step.apply(weights, state, scratch);
    }
}

impl Step {
    #[inline(always)]
    fn apply(&self, weights: &mut [f32], state: &mut [f32], gradient: &[f32]) {
        match *self {
            Step::Sgd { lr } => {
                for (w, g) in weights.iter_mut().zip(gradient) {
                    *w -= lr * g;
                }
            }
            Step::Adagrad { lr, eps } => {
                for ((w, a), g) in weights.iter_mut().zip(state).zip(gradient) {
                    *a += g * g;
                    *w -= lr * (g / (a.sqrt() + eps));
                }
            }
            Step::RowwiseAdagrad { lr, eps } => {
                let accumulator = &mut state[0];
                *accumulator += sum::of_squares(gradient) / gradient.len() as f32;
                let rate = lr / (accumulator.sqrt() + eps);
                for (w, g) in weights.iter_mut().zip(gradient) {
                    *w -= rate * g;
                }
            }
            Step::Adam { scale, eps, rate1, rate2, decay } => {
                if decay != 1.0 {
                    weights.iter_mut().for_each(|w| *w *= decay);
                }
                let (first, second) = state.split_at_mut(gradient.len());
                for (((w, m), v), g) in weights.iter_mut().zip(first).zip(second).zip(gradient) {
                    *m += (g - *m) * rate1;
                    *v += (g * g - *v) * rate2;
                    *w -= scale * (*m / (v.sqrt() + eps));
                }
            }
        }
    }
}
