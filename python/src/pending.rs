//! What was begun and is waited for later.

use std::time::Duration;

use numpy::PyArray1;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use tokio::sync::Mutex;
use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::task::AbortHandle;

use crate::arrays::Rows;
use crate::errors;
use crate::runtime::wait;

/// What a task will have made of it.
type Outcome<T> = hotrow::client::Result<T>;

/// An outcome that is on its way or there. It can be looked at any number of times and taken once.
struct Pending<T> {
    arriving: Receiver<Outcome<T>>,
    arrived: Option<Outcome<T>>,
}

impl<T: Send> Pending<T> {
    fn new(arriving: Receiver<Outcome<T>>) -> Mutex<Pending<T>> {
        Mutex::new(Pending { arriving, arrived: None })
    }

    /// Whether it is there.
    fn done(pending: &Mutex<Pending<T>>) -> bool {
        // Whoever holds it waits for it.
        let Ok(mut pending) = pending.try_lock() else { return false };
        if pending.arrived.is_none() {
            match pending.arriving.try_recv() {
                Ok(outcome) => pending.arrived = Some(outcome),
                Err(TryRecvError::Empty) => return false,
                // It was taken before, or never will be there.
                Err(TryRecvError::Closed) => {}
            }
        }
        true
    }

    /// Waits for it.
    fn take(py: Python<'_>, pending: &Mutex<Pending<T>>, timeout: Option<f64>) -> PyResult<T> {
        let timeout = match timeout.map(Duration::try_from_secs_f64) {
            None => Duration::MAX,
            Some(Ok(timeout)) => timeout,
            Some(Err(_)) => return Err(errors::plain(py, "a timeout is a number of seconds, not below zero")),
        };
        let taken = wait(py, || async move {
            let mut pending = pending.lock().await;
            if let Some(outcome) = pending.arrived.take() {
                return Some(Ok(outcome));
            }
            tokio::time::timeout(timeout, &mut pending.arriving).await.ok()
        })?;
        match taken {
            None => Err(PyTimeoutError::new_err(format!("it was not done within {} s", timeout.as_secs_f64()))),
            Some(Err(_)) => Err(errors::plain(py, "its result was taken before")),
            Some(Ok(outcome)) => outcome.map_err(|error| errors::exception(py, &error)),
        }
    }
}

/// Rows that were asked for.
#[pyclass(frozen)]
pub struct PendingPull {
    rows: Mutex<Pending<(Vec<f32>, Vec<usize>)>>,
    task: AbortHandle,
}

impl PendingPull {
    pub fn new(rows: Receiver<Outcome<(Vec<f32>, Vec<usize>)>>, task: AbortHandle) -> PendingPull {
        PendingPull { rows: Pending::new(rows), task }
    }
}

#[pymethods]
impl PendingPull {
    /// Whether they are there.
    fn done(&self) -> bool {
        Pending::done(&self.rows)
    }

    /// Waits for them; once.
    fn result<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Rows<'py>> {
        let (rows, dims) = Pending::take(py, &self.rows, timeout)?;
        Ok((PyArray1::from_vec(py, rows), dims))
    }
}

impl Drop for PendingPull {
    /// Nobody wants the rows any more.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A push that was begun. It goes on if this is dropped.
#[pyclass(frozen)]
pub struct PendingPush {
    applied: Mutex<Pending<()>>,
}

impl PendingPush {
    pub fn new(applied: Receiver<Outcome<()>>) -> PendingPush {
        PendingPush { applied: Pending::new(applied) }
    }
}

#[pymethods]
impl PendingPush {
    /// Whether it is applied, or has failed.
    fn done(&self) -> bool {
        Pending::done(&self.applied)
    }

    /// Waits until it is applied; once.
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        Pending::take(py, &self.applied, timeout)
    }
}
