//! Arithmetic: precisions, quantizers, random numbers, optimizer steps, vector kernels.
//!
//! Everything here is a pure function of its arguments, bit for bit the same on every machine;
//! `docs/NUMERICS.md` is the contract. This room knows nothing of tables, caches or requests.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod codes_avx2;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod codes_avx512;
pub mod float;
pub mod format;
pub mod hash;
pub mod integer;
pub mod philox;
pub mod rule;
pub mod simd;
pub mod sum;

pub use format::{Precision, Quantizer, Rounding, WeightFormat};
pub use integer::RowToRound;
pub use philox::Noise;
pub use rule::{Rule, Step};

/// The version of the contract in `docs/NUMERICS.md`. A log or checkpoint of another version cannot be replayed.
pub const NUMERICS_VERSION: u32 = 2;
