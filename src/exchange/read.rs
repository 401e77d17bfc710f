//! Reading a file of rows.

use std::fs::File;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::{FileKind, KeysReader, Region, npy, safetensors};
use crate::numeric::WeightFormat;
use crate::numeric::format::decode_rows;

/// A file of rows.
pub struct RowsReader {
    /// What errors call it.
    pub name: String,
    /// The form of its rows.
    pub format: WeightFormat,
    /// How many numbers they may have: packed codes leave that open.
    pub dims: RangeInclusive<usize>,
    /// How many there are.
    pub rows: u64,
    /// Their keys, where they are in the same file.
    pub keys: Option<KeysReader>,
    pub(super) file: File,
    pub(super) regions: Vec<Region>,
    pub(super) row_bytes: usize,
}

impl RowsReader {
    /// Opens a file of either kind and checks that it is whole.
    pub fn open(path: &Path) -> Result<RowsReader> {
        match FileKind::of(path)? {
            FileKind::Npy => npy::open_rows(path),
            FileKind::Safetensors => safetensors::open_rows(path),
        }
    }

    /// `count` rows from `first` on, as f32. `dim` is one of [`RowsReader::dims`].
    pub fn read(&self, first: u64, count: usize, dim: usize) -> Result<Vec<f32>> {
        let mut rows = vec![0; count * self.row_bytes];
        let mut column = Vec::new();
        for region in &self.regions {
            let at = region.at + first * region.bytes as u64;
            let whole = region.bytes == self.row_bytes;
            column.resize(if whole { 0 } else { count * region.bytes }, 0);
            let bytes = if whole { &mut rows } else { &mut column };
            self.file.read_exact_at(bytes, at).with_context(|| format!("cannot read {}", self.name))?;
            for (row, column) in rows.chunks_exact_mut(self.row_bytes).zip(column.chunks_exact(region.bytes)) {
                row[region.from..][..region.bytes].copy_from_slice(column);
            }
        }
        let mut out = vec![0.0; count * dim];
        decode_rows(self.format, dim, &rows, &mut out);
        Ok(out)
    }
}

/// Checks that a file has the length that its header asks for.
pub(super) fn check_length(name: &str, file: &File, expected: Option<u64>) -> Result<()> {
    let actual = file.metadata().with_context(|| format!("cannot read {name}"))?.len();
    match expected {
        Some(expected) if expected == actual => Ok(()),
        Some(expected) if expected < actual => {
            bail!("{name} has {actual} bytes, but its header speaks of {expected}: is it damaged?")
        }
        Some(expected) => bail!("{name} is truncated: it has {actual} bytes of {expected}"),
        None => bail!("{name}: its header speaks of more bytes than there can be"),
    }
}
