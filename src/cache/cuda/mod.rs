//! Cached rows on a GPU (docs/GPU.md).
//!
//! [`Device`] is a GPU with its streams, kernels and budget. [`CudaSlots`] are the slots of one table in its memory. What
//! is done with slots goes up in *trays* and comes down in them, through a [`Pipeline`] per request. The kernels are CUDA
//! C, compiled by NVRTC when a device is opened; the driver is loaded when it is asked for, so that the same program runs
//! where there is none.

mod check;
mod compile;
mod device;
mod launch;
mod memory;
mod nvrtc;
mod slots;
mod tray;

pub use device::{CudaConfig, Device, DeviceInfo, DeviceStats};
pub use slots::{Address, Bags, CudaSlots, Rounded, fill, gather, gather_pooled, load, update, write_back};
pub use tray::Pipeline;
