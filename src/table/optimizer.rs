//! Optimizers as a user names them; [`Optimizer::rule`] turns one into the arithmetic of a push.

use crate::numeric::{Rule, Step};

/// How gradients change weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent.
    Sgd,
    /// Adagrad, with an accumulator for every weight.
    Adagrad {
        /// Added to the root of the accumulator.
        eps: f32,
    },
    /// Adagrad with one accumulator for the whole row: the usual choice for embeddings.
    RowwiseAdagrad {
        /// Added to the root of the accumulator.
        eps: f32,
    },
    /// Adam on the rows of the push (PyTorch's SparseAdam). A push says which step it is.
    Adam {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        eps: f32,
    },
    /// Adam with decoupled weight decay, on the rows of the push. A push says which step it is.
    AdamW {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        eps: f32,
    },
}

impl Optimizer {
    /// Adagrad with PyTorch's defaults.
    pub fn adagrad() -> Optimizer {
        Optimizer::Adagrad { eps: 1e-10 }
    }

    /// Row-wise Adagrad with FBGEMM's defaults.
    pub fn rowwise_adagrad() -> Optimizer {
        Optimizer::RowwiseAdagrad { eps: 1e-8 }
    }

    /// Adam with PyTorch's defaults.
    pub fn adam() -> Optimizer {
        Optimizer::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 }
    }

    /// AdamW with PyTorch's defaults.
    pub fn adamw() -> Optimizer {
        Optimizer::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8 }
    }

    /// State tensors per row, and the numbers in each.
    pub fn state(&self, dim: usize) -> (usize, usize) {
        match self {
            Optimizer::Sgd => (0, 0),
            Optimizer::Adagrad { .. } => (1, dim),
            Optimizer::RowwiseAdagrad { .. } => (1, 1),
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } => (2, dim),
        }
    }

    /// Whether a push must say which step it is.
    pub fn needs_step(&self) -> bool {
        matches!(self, Optimizer::Adam { .. } | Optimizer::AdamW { .. })
    }

    /// What is wrong with it, if anything.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let fine = match *self {
            Optimizer::Sgd => true,
            Optimizer::Adagrad { eps } | Optimizer::RowwiseAdagrad { eps } => eps.is_finite() && eps >= 0.0,
            Optimizer::Adam { beta1, beta2, eps } | Optimizer::AdamW { beta1, beta2, eps } => {
                eps.is_finite() && eps >= 0.0 && (0.0..1.0).contains(&beta1) && (0.0..1.0).contains(&beta2)
            }
        };
        (!fine).then_some("the optimizer needs eps >= 0 and betas from 0 up to, not including, 1")
    }

    /// The step of one push (docs/NUMERICS.md, section 5). `step` counts from 1 and matters to Adam only.
    pub fn rule(&self, lr: f32, weight_decay: f32, clip_norm: Option<f32>, step: u64) -> Rule {
        let (step, weight_decay) = match *self {
            Optimizer::Sgd => (Step::Sgd { lr }, weight_decay),
            Optimizer::Adagrad { eps } => (Step::Adagrad { lr, eps }, weight_decay),
            Optimizer::RowwiseAdagrad { eps } => (Step::RowwiseAdagrad { lr, eps }, weight_decay),
            Optimizer::Adam { beta1, beta2, eps } => (adam_step(lr, beta1, beta2, step, |_| eps, 1.0), weight_decay),
            Optimizer::AdamW { beta1, beta2, eps } => {
                let decay = (1.0 - f64::from(lr) * f64::from(weight_decay)) as f32;
                let eps = |root2: f64| (f64::from(eps) * root2) as f32;
                (adam_step(lr, beta1, beta2, step, eps, decay), 0.0)
            }
        };
        Rule { step, clip_norm, weight_decay }
    }
}

fn adam_step(lr: f32, beta1: f32, beta2: f32, step: u64, eps: impl Fn(f64) -> f32, decay: f32) -> Step {
    let (beta1, beta2) = (f64::from(beta1), f64::from(beta2));
    let correction1 = 1.0 - power(beta1, step);
    let root2 = (1.0 - power(beta2, step)).sqrt();
    Step::Adam {
        scale: (f64::from(lr) * root2 / correction1) as f32,
        eps: eps(root2),
        rate1: (1.0 - beta1) as f32,
        rate2: (1.0 - beta2) as f32,
        decay,
    }
}

/// By squaring, in an order that is written down: `powi` leaves it to the platform.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}
