//! Files of rows that other programs read and write: NumPy's `.npy` and safetensors (docs/OPERATIONS.md, "Import and
//! export").
//!
//! A row in a file is its bytes as a table stores them (docs/NUMERICS.md, section 3), cut into columns: scale, zero
//! point, codes; or just weights. In `.npy` the columns of a row lie side by side, in safetensors each column is a tensor
//! of its own. Files are read and written at places, a batch of rows at a time, so they may be larger than memory.

mod columns;
mod keys;
mod npy;
mod read;
mod safetensors;
mod target;
mod write;

use std::path::Path;

use anyhow::{Result, bail};

pub use self::keys::{KeysReader, KeysWriter};
pub use self::read::RowsReader;
pub use self::safetensors::Layout;
pub use self::target::Target;
pub use self::write::RowsWriter;

/// Which kind a file is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// NumPy's format for one array.
    Npy,
    /// Named tensors, one after the other.
    Safetensors,
}

impl FileKind {
    /// The kind that a file's name asks for.
    pub fn of(path: &Path) -> Result<FileKind> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npy") => Ok(FileKind::Npy),
            Some("safetensors") => Ok(FileKind::Safetensors),
            _ => bail!("{}: the name must end in .npy or .safetensors", path.display()),
        }
    }
}

/// Where a column is in a file: row `i` has its bytes at `at + i * bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    /// The first byte in the file.
    at: u64,
    /// The first byte in a row.
    from: usize,
    /// Bytes of each row.
    bytes: usize,
}
