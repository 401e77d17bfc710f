//! The native half of the Python package: the Rust client, a server in the process, and the command line.
//!
//! `hotrow/client.py` is what users call. It brings arrays into the one form that is taken here (contiguous u64 keys and
//! f32 numbers), so that nothing is copied on this side of it.

mod arrays;
mod client;
mod errors;
mod pending;
mod runtime;
mod server;

use pyo3::prelude::*;

/// The native half of the package `hotrow`.
#[pymodule]
mod _native {
    use std::ffi::OsString;

    use pyo3::prelude::*;

    #[pymodule_export]
    use super::arrays::distinct;
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::pending::{PendingPull, PendingPush};
    #[pymodule_export]
    use super::server::Server;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Runs a command of the command line, the program's name first; false if it failed.
    #[pyfunction]
    fn run(py: Python<'_>, args: Vec<OsString>) -> bool {
        py.detach(|| hotrow::cli::run(args))
    }
}
