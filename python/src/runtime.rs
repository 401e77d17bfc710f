//! Waiting for the client's work: without the GIL, and so that Ctrl-C works.

use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use pyo3::prelude::*;
use tokio::runtime::Runtime;

use crate::errors;

/// How often Python is asked whether somebody pressed Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(50);

static RUNTIME: OnceLock<(u32, Runtime)> = OnceLock::new();

/// The threads that all clients and servers of this process share.
pub fn runtime(py: Python<'_>) -> PyResult<&'static Runtime> {
    let process = std::process::id();
    let (maker, runtime) = RUNTIME.get_or_init(|| {
        let made = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("hotrow").build();
        (process, made.expect("the system gives no threads"))
    });
    // Threads do not survive a fork: without this, a call in the child would wait for ever.
    if *maker != process {
        return Err(errors::plain(
            py,
            "this process was forked from one that uses hotrow, whose threads are not here: \
             start workers with 'spawn' (multiprocessing_context=\"spawn\" of a DataLoader), and connect in them",
        ));
    }
    Ok(runtime)
}

/// Waits for work, for whose time the GIL is given back. Ctrl-C abandons it.
pub fn wait<T, F>(py: Python<'_>, work: impl FnOnce() -> F + Send) -> PyResult<T>
where
    T: Send,
    F: Future<Output = T>,
{
    let runtime = runtime(py)?;
    py.detach(|| {
        runtime.block_on(async {
            let mut work = pin!(work());
            loop {
                tokio::select! {
                    biased;
                    done = &mut work => return Ok(done),
                    () = tokio::time::sleep(SIGNALS) => Python::attach(|py| py.check_signals())?,
                }
            }
        })
    })
}

/// The same for work of the client, whose errors become exceptions.
pub fn call<T, F>(py: Python<'_>, work: impl FnOnce() -> F + Send) -> PyResult<T>
where
    T: Send,
    F: Future<Output = hotrow::client::Result<T>>,
{
    wait(py, work)?.map_err(|error| errors::exception(py, &error))
}
