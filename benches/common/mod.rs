//! What the benchmarks share: keys as trainers send them, what the machine can do at best on the same work, and servers in
//! processes of their own.
#![allow(dead_code, unsafe_code)]

pub mod bare;
pub mod limits;
pub mod load;
pub mod process;
pub mod remote;
pub mod workload;

/// Something that rows are pulled from and gradients are pushed to.
pub trait Store: Send {
    /// What has to be done before the clock starts.
    fn prepare(&mut self, _keys: &[u64]) {}

    /// Reads rows, as f32.
    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> anyhow::Result<()>;

    /// Applies gradients; returns when they are applied.
    fn push(&mut self, keys: &[u64], gradients: &[f32]) -> anyhow::Result<()>;
}
