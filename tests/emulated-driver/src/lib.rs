//! A CUDA driver without a GPU, for tests.
//!
//! Built as a shared library it takes the place of `libcuda.so.1`: kernels run on the host, compiled from the same
//! source that NVRTC compiles, and work is put off and mixed as a device may do it. It is there to find mistakes. Each
//! access of a kernel or copy must lie in a live allocation, and two accesses to the same memory, one of them a write,
//! must be ordered by a stream, an event or a wait of the host. Whatever is not right ends the process with a report.
//!
//! As a Rust library it only says where that shared library is: [`preload`] for the process itself, [`as_driver`] for
//! others. README.md has the variables of the environment.

mod api;
mod clock;
mod codes;
mod config;
mod driver;
mod kernels;
mod mapping;
mod memory;
mod module;
mod place;
mod random;
mod report;
mod schedule;
mod shadow;
mod work;

pub use place::{as_driver, library, preload};
