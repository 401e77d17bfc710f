//! hotrow: an embedding parameter server.
//!
//! Recommendation models train embedding tables that are far larger than any GPU. hotrow keeps their rows in host
//! memory at low precision (int8, int4, ...) and the few rows that carry most of the traffic at full precision in a
//! hot-row cache. A row that leaves the cache is rounded *stochastically* back to low precision, so that small updates
//! are not lost: the accuracy of f32 at a third of the memory.
//!
//! The engine (tables, the cache, optimizers, the order of changes) works by itself, as below; [`server`] and [`client`]
//! put it on a network, and [`durability`] keeps its changes on disk.
//!
//! ```
//! use hotrow::{Engine, EngineConfig, Optimizer, Precision, Pull, Push, TableSpec};
//!
//! let engine = Engine::new(EngineConfig::default())?;
//! let spec = TableSpec::dense("item", 1_000_000, 64)
//!     .precision(Precision::Int8)
//!     .optimizer(Optimizer::rowwise_adagrad(), 0.02);
//! println!("{:.1} bytes per row", spec.footprint()?.bytes_per_row);
//! engine.create(&spec)?;
//!
//! // A trainer's step: pull the rows of a batch, compute, push their gradients.
//! let keys = [3, 1_415, 926_535];
//! let mut rows = vec![0.0; keys.len() * 64];
//! engine.pull(&[Pull { table: "item", keys: &keys }], &mut rows)?;
//! let gradients = vec![0.1; rows.len()];
//! engine.push(&[Push { table: "item", keys: &keys, gradients: &gradients, ..Push::default() }])?;
//!
//! // The pushed rows are hot now.
//! engine.pull(&[Pull { table: "item", keys: &keys }], &mut rows)?;
//! assert_eq!(engine.stats("item")?.pull_hits, 3);
//! # Ok::<(), hotrow::Error>(())
//! ```
//!
//! The one idea: **a partition is a deterministic state machine driven by an ordered log of changes.** A pull is a
//! pure read. The same changes in the same order give the same bits, whatever the number of shards and threads.
//! `docs/NUMERICS.md` is the bit-level contract, `docs/ARCHITECTURE.md` a walk through the rooms:
//!
//! - [`numeric`]: precisions, quantizers, random numbers, optimizer steps, vector kernels.
//! - `cache`: which rows are hot, and where they are held.
//! - `table`: what a table is, its rows and its index.
//! - `engine`: partitions, the order of changes, batching, budgets, statistics.

#[cfg(target_endian = "big")]
compile_error!("rows are stored little-endian and stepped in place: big-endian machines are not supported");

mod awake;
mod budget;
mod cache;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod durability;
mod engine;
mod error;
mod exchange;
mod framing;
mod memory;
pub mod numeric;
pub mod proto;
pub mod server;
mod table;
mod tcp;
mod wire;

pub use cache::cuda::{CudaConfig, Device, DeviceInfo, DeviceStats};
pub use cache::{DirectoryImage, HitCurve, HitPoint, Policy, Ranks, RoundingError, StatePrecision};
pub use engine::{
    Alteration, Assign, Change, ClientId, Engine, EngineConfig, LogHook, Lsn, Origin, Piece, PoolConfig, PooledPull,
    Pooling, Pull, Push, Pushed, Remove, Restore, RestorePartition, Row, RowFormat, SavedTable, ScanCursor, Snapshot,
    TableStats, Touch, Unsettled,
};
pub use error::{Error, Result};
pub use numeric::{Precision, Quantizer, Rounding};
pub use table::{CacheBudget, Footprint, Initializer, KeySpace, MAX_DIM, Optimizer, PartCounts, RowsPiece, TableSpec};
