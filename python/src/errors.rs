//! Errors of the client as Python's exceptions.

use hotrow::client::Error;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The exception for an error. Classes are those of `hotrow.errors`.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    make(py, error).unwrap_or_else(|problem| problem)
}

/// An error that has no class of its own.
pub fn plain(py: Python<'_>, message: &str) -> PyErr {
    raise(py, "Error", message, PyDict::new(py)).unwrap_or_else(|problem| problem)
}

/// A request that makes no sense.
pub fn invalid(py: Python<'_>, message: &str) -> PyErr {
    raise(py, "InvalidRequest", message, PyDict::new(py)).unwrap_or_else(|problem| problem)
}

fn make(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let more = PyDict::new(py);
    let class = match error {
        Error::Setup(_) | Error::StaleTopology => "Error",
        Error::Invalid(_) => "InvalidRequest",
        Error::Refused { shard, address, code, .. } => {
            more.set_item("code", code_name(*code))?;
            more.set_item("shard", shard)?;
            more.set_item("address", address)?;
            "Refused"
        }
        Error::TimedOut { shard, address, .. } => {
            more.set_item("shard", shard)?;
            more.set_item("address", address)?;
            "TimedOut"
        }
        Error::Push { sequence, cause } => {
            more.set_item("sequence", sequence)?;
            more.set_item("cause", make(py, cause)?.into_value(py))?;
            "PushFailed"
        }
    };
    // A push that failed does not say how to try again from Rust.
    let message = match error {
        Error::Push { cause, .. } => cause.to_string(),
        other => other.to_string(),
    };
    raise(py, class, &message, more)
}

fn raise(py: Python<'_>, class: &str, message: &str, attributes: Bound<'_, PyDict>) -> PyResult<PyErr> {
    let exception = py.import("hotrow.errors")?.getattr(class)?.call1((message,))?;
    for (name, value) in attributes {
        exception.setattr(name.extract::<String>()?.as_str(), value)?;
    }
    Ok(PyErr::from_value(exception))
}

/// `NotFound` as gRPC writes it: `NOT_FOUND`.
fn code_name(code: tonic::Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}
