//! Checkpoints: the whole state of a cluster, or of a shard, at one place in the order of changes (docs/CHECKPOINT.md).

mod background;
mod frame;
mod load;
mod manifest;
mod offline;
mod prune;
mod save;
mod start;
mod store;

pub use self::load::{From, Plan, load, plan, verify};
pub use self::manifest::{ClusterIdentity, FileEntry, Manifest, Section, TableEntry};
pub use self::offline::{Share, restore_folder, save_folders};
pub use self::prune::prune;
pub use self::save::{PartOf, save_part};
pub use self::start::base;
pub use self::store::CheckpointStore;
