//! NumPy's arrays as slices, and back.

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

/// Keys, as Python hands them over.
pub type Keys<'py> = PyReadonlyArray1<'py, u64>;
/// Numbers, as Python hands them over.
pub type Numbers<'py> = PyReadonlyArray1<'py, f32>;

/// An array for Python.
pub type Array<'py, T> = Bound<'py, PyArray1<T>>;
/// Rows of several tables, one after the other, and the numbers in a row of each.
pub type Rows<'py> = (Array<'py, f32>, Vec<usize>);

/// The distinct keys in order of first appearance, and which of them each key is.
#[pyfunction]
pub fn distinct<'py>(py: Python<'py>, keys: Keys<'py>) -> PyResult<(Array<'py, u64>, Array<'py, i64>)> {
    let keys = keys.as_slice()?;
    let (distinct, which) = py.detach(|| {
        let (distinct, which) = hotrow::client::distinct(keys);
        (distinct, which.into_iter().map(i64::from).collect::<Vec<_>>())
    });
    Ok((PyArray1::from_vec(py, distinct), PyArray1::from_vec(py, which)))
}
