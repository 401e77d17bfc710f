//! A partition: its part of every table, and the counter behind its roundings.

use crate::table::TablePart;

/// A deterministic state machine: the same changes in the same order give the same bits.
pub struct Partition {
    /// Which of the cluster's partitions this is.
    pub id: u32,
    /// The next write-back number.
    pub write_backs: u64,
    /// Its part of each table, by table id.
    pub parts: Vec<Option<Box<TablePart>>>,
}

impl Partition {
    /// An empty partition.
    pub fn new(id: u32) -> Partition {
        Partition { id, write_backs: 0, parts: Vec::new() }
    }

    /// Its part of a table; `None` if that was dropped.
    #[inline(always)]
    pub fn part(&self, table: usize) -> Option<&TablePart> {
        self.parts.get(table)?.as_deref()
    }

    /// Its part of a table, to change; `None` if that was dropped.
    pub fn part_mut(&mut self, table: usize) -> Option<&mut TablePart> {
        self.parts.get_mut(table)?.as_deref_mut()
    }

    /// Adds a part at a table's id.
    pub fn insert(&mut self, table: usize, part: TablePart) {
        if self.parts.len() <= table {
            self.parts.resize_with(table + 1, || None);
        }
        self.parts[table] = Some(Box::new(part));
    }
}
