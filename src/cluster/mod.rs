//! Which shard owns which partition. Knows nothing of networks.

mod topology;

pub use topology::{Topology, even_share, ordinal_of};
