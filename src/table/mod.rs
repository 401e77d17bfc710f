//! Tables: what the user asks for ([`TableSpec`]), and a table's part in one partition ([`TablePart`]).
//!
//! A part is its low-precision rows (`rows.rs`), the index from key to row (`index.rs`) and the directory of its
//! hot cache. This room knows the cache and arithmetic; it knows nothing of requests, locks or order.

mod config;
mod index;
mod initializer;
mod optimizer;
mod part;
mod rows;
mod saving;
mod spec;
mod text;

pub use config::TableConfig;
pub use initializer::{Initial, Initializer};
pub use optimizer::Optimizer;
pub use part::{PartCounts, PartView, TablePart};
pub use rows::ChunkSource;
pub use saving::{PIECE_BYTES, RowsPiece};
pub use spec::{CacheBudget, Footprint, KeySpace, MAX_DIM, SMALL_TABLE_BYTES, Shape, TableSpec};
pub use text::{parse_bytes, show_bytes};
