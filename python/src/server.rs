//! A server in this process.

use std::sync::Mutex;

use hotrow::cli::{server_config, start_logging};
use pyo3::prelude::*;

use crate::errors;
use crate::runtime::wait;

/// A server in this process, on the threads of the clients.
#[pyclass(frozen)]
pub struct Server {
    server: Mutex<Option<hotrow::server::Server>>,
    /// Where gRPC is.
    #[pyo3(get)]
    address: String,
    /// Where HTTP is.
    #[pyo3(get)]
    http: Option<String>,
}

#[pymethods]
impl Server {
    /// Starts a server, with flags of `hotrow serve`.
    #[new]
    fn start(py: Python<'_>, flags: Vec<String>, log: bool) -> PyResult<Server> {
        let fail = |error: anyhow::Error| errors::plain(py, &format!("{error:#}"));
        let config = server_config(flags).map_err(fail)?;
        if log {
            start_logging(&config).map_err(fail)?;
        }
        let server = wait(py, || hotrow::server::Server::start(&config))?.map_err(fail)?;
        let http = server.http().map(|http| http.to_string());
        Ok(Server { address: server.address().to_string(), http, server: Mutex::new(Some(server)) })
    }

    /// Finishes what is under way and ends.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let server = self.server.lock().expect("nothing panics with it").take();
        let Some(server) = server else { return Ok(()) };
        wait(py, || server.drain())?.map_err(|error| errors::plain(py, &format!("{error:#}")))
    }
}
