//! Reference model of docs/NUMERICS.md, written from that page alone: slow, obvious, one element at
//! a time. It shares no code with the crate; tests compare the two bit for bit.
#![allow(dead_code)]

mod cache;
mod codec;
mod initial;
mod keys;
mod model;
mod optimizer;
mod philox;

#[allow(unused_imports)]
pub use codec::{decode_weights, encode_weights};
#[allow(unused_imports)]
pub use initial::initial_row;
#[allow(unused_imports)]
pub use model::Model;
#[allow(unused_imports)]
pub use philox::philox;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Precision {
    F32,
    F16,
    Bf16,
    Int8,
    Int4,
    Int2,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantizer {
    Symmetric,
    Affine,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rounding {
    Nearest,
    Stochastic,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StatePrecision {
    F32,
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    Lru,
    Lfu,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeySpace {
    Dense { rows: u64 },
    Hashed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    Zeros,
    Constant(f32),
    Uniform(f32, f32),
    Dlrm,
    Normal(f32, f32),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    Sgd,
    Adagrad { eps: f32 },
    RowwiseAdagrad { eps: f32 },
    Adam { b1: f32, b2: f32, eps: f32 },
    AdamW { b1: f32, b2: f32, eps: f32 },
}

#[derive(Clone, Debug)]
pub struct Table {
    pub name: String,
    pub dim: usize,
    pub keys: KeySpace,
    pub precision: Precision,
    pub quantizer: Quantizer,
    pub rounding: Rounding,
    pub state_precision: StatePrecision,
    pub policy: Policy,
    pub cache_rows: u64,
    pub initializer: Initializer,
    pub optimizer: Optimizer,
    pub learning_rate: f32,
    pub weight_decay: f32,
    pub clip_norm: Option<f32>,
}

#[derive(Clone, Debug)]
pub struct Push {
    pub table: String,
    /// Keys in order of appearance; a key may appear more than once.
    pub keys: Vec<u64>,
    /// `dim` numbers for each of `keys`.
    pub gradients: Vec<f32>,
    pub learning_rate: Option<f32>,
    /// The step number, needed by adam and adamw.
    pub step: Option<u64>,
}
