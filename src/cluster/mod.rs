//! Which shard owns which partition. Knows nothing of networks.

mod topology;

pub use topology::{Topology, ordinal_of};
