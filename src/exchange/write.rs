//! Writing a file of rows.

use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result};

use super::safetensors::Layout;
use super::{Region, Target, npy};
use crate::numeric::WeightFormat;

/// A file of rows on its way. Rows may come in any order.
pub struct RowsWriter {
    target: Target,
    regions: Vec<Region>,
    row_bytes: usize,
    column: Vec<u8>,
}

impl RowsWriter {
    /// A `.npy` file of so many rows.
    pub fn npy(target: Target, format: WeightFormat, dim: usize, rows: u64) -> Result<RowsWriter> {
        let header = npy::header(format, dim, rows)?;
        let row_bytes = format.bytes(dim);
        let regions = vec![Region { at: header.len() as u64, from: 0, bytes: row_bytes }];
        RowsWriter::new(target, &header, regions, row_bytes, rows)
    }

    /// A safetensors file of so many rows, which are those of its keys where it has any.
    pub fn safetensors(target: Target, layout: &Layout<'_>, rows: u64) -> Result<RowsWriter> {
        let (header, regions) = layout.header(rows)?;
        RowsWriter::new(target, &header, regions, layout.format.bytes(layout.dim), rows)
    }

    fn new(target: Target, header: &[u8], regions: Vec<Region>, row_bytes: usize, rows: u64) -> Result<RowsWriter> {
        let end = regions.iter().map(|region| region.at + rows * region.bytes as u64).max().unwrap_or(0);
        // All of it at once, so that columns can be written at their places.
        target.file().set_len(end).context("cannot make the file as large as its rows")?;
        target.file().write_all_at(header, 0).context("cannot write the header")?;
        Ok(RowsWriter { target, regions, row_bytes, column: Vec::new() })
    }

    /// Writes rows, in their stored form, from row `first` on.
    pub fn write(&mut self, first: u64, rows: &[u8]) -> Result<()> {
        for region in &self.regions {
            let at = region.at + first * region.bytes as u64;
            let bytes = match region.bytes == self.row_bytes {
                true => rows,
                false => {
                    self.column.clear();
                    for row in rows.chunks_exact(self.row_bytes) {
                        self.column.extend_from_slice(&row[region.from..][..region.bytes]);
                    }
                    &self.column
                }
            };
            self.target.file().write_all_at(bytes, at).context("cannot write rows")?;
        }
        Ok(())
    }

    /// Puts the file on disk under its name. Returns its length.
    pub fn finish(self) -> Result<u64> {
        self.target.finish()
    }
}
