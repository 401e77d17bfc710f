//! Nothing lost: the log of changes, and what starts from it.
//!
//! Every change is appended to the log before it is applied, in the one order of the shard; a shard that starts again
//! applies them again and is bit for bit what it was. This room knows the engine; `disk.rs` is all it knows of the
//! outside, so that tests can stand in for a disk that loses power.

pub mod checkpoint;
mod disk;
mod folder;
mod group;
mod log;
mod mend;
mod record;
mod replay;

pub use self::disk::{Disk, DiskFile, LocalFolder};
pub use self::folder::{Base, DataFolder, Identity, new_history};
pub use self::log::{Log, LogOptions, LogStats, SyncPolicy};
pub use self::mend::cut;
pub use self::replay::{Cut, LogError, Progress, Recovered, Verified, recover, verify};
