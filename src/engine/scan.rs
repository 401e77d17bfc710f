//! Which rows there are.

use super::Engine;
use crate::error::{Error, Result};

/// Where a scan goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanCursor {
    /// The partition.
    pub partition: u32,
    /// The first row of it that was not looked at.
    pub row: u32,
}

impl Engine {
    /// The keys of rows that were ever trained or set, at most `limit` of them, and where to go on. A row that comes or
    /// goes while a scan is under way may or may not be seen.
    pub fn scan(&self, table: &str, from: ScanCursor, limit: usize) -> Result<(Vec<u64>, Option<ScanCursor>)> {
        let table = self.table(table)?;
        let mut keys = Vec::new();
        for partition in &self.partitions {
            let partition = partition.read();
            if partition.id < from.partition {
                continue;
            }
            let part = partition.part(table.id).ok_or_else(|| Error::UnknownTable(table.name().into()))?;
            let first = if partition.id == from.partition { from.row } else { 0 };
            for (key, row) in part.trained(first) {
                if keys.len() >= limit {
                    return Ok((keys, Some(ScanCursor { partition: partition.id, row })));
                }
                keys.push(key);
            }
        }
        Ok((keys, None))
    }
}
