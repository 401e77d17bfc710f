//! The hot-row cache: which rows are held at full precision, and where.
//!
//! Ids reach a parameter server through its network card, so *deciding* (the [`Directory`]: tags, recency,
//! dirty bits) happens on the host, in one implementation. *Holding and computing* (the [`Pool`]: gather,
//! update, fill, write-back) is data-parallel work on slots that a GPU can do as well as the host. This room
//! knows arithmetic ([`crate::numeric`]) and nothing of tables, keys or requests.

pub mod cuda;
mod curve;
mod directory;
mod host;
mod image;
mod layout;
mod pool;
mod reuse;
mod sampler;

pub use curve::{CachePlace, HitCurve, HitPoint};
pub use directory::{Admission, Directory, Policy, Tags, ways_with};
pub use host::HostPool;
pub use image::{DirectoryImage, Ranks};
pub use layout::{RowLayout, StateLayout, StatePrecision};
pub use pool::{Gradients, Pool, RoundingError, Slots, WriteBack};
pub use reuse::{Use, sample_hash};
pub use sampler::Sampler;
