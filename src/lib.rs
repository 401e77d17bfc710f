//! hotrow: an embedding parameter server.
mod budget;
pub mod cache;
pub mod engine;
mod error;
mod memory;
pub mod numeric;
pub mod table;

pub use cache::{Policy, StatePrecision};
pub use engine::{
    Assign, Change, Engine, EngineConfig, Lsn, PooledPull, Pooling, Pull, Push, Remove, Row, TableStats, Touch,
};
pub use error::{Error, Result};
pub use numeric::{Precision, Quantizer, Rounding};
pub use table::{CacheBudget, Footprint, Initializer, KeySpace, Optimizer, TableSpec};
