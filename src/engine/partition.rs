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
    /// Parts of tables that were dropped while they were being saved.
    pub leaving: Vec<(usize, Box<TablePart>)>,
}

impl Partition {
    /// An empty partition.
    pub fn new(id: u32) -> Partition {
        Partition { id, write_backs: 0, parts: Vec::new(), leaving: Vec::new() }
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

    /// Its part of a table, also of one that was dropped while it was being saved.
    pub fn part_to_save(&self, table: usize) -> Option<&TablePart> {
        let leaving = || self.leaving.iter().find(|(id, _)| *id == table).map(|(_, part)| &**part);
        self.part(table).or_else(leaving)
    }

    /// [`Partition::part_to_save`], to change.
    pub fn part_to_save_mut(&mut self, table: usize) -> Option<&mut TablePart> {
        let Partition { parts, leaving, .. } = self;
        let leaving = leaving.iter_mut().find(|(id, _)| *id == table).map(|(_, part)| &mut **part);
        parts.get_mut(table).and_then(|part| part.as_deref_mut()).or(leaving)
    }

    /// Takes out the part of a table that is dropped. One that is being saved stays until that is done.
    pub fn drop_part(&mut self, table: usize) -> Option<Box<TablePart>> {
        let part = self.parts.get_mut(table)?.take()?;
        if part.saving().is_none() {
            return Some(part);
        }
        self.leaving.push((table, part));
        None
    }

    /// Adds a part at a table's id.
    pub fn insert(&mut self, table: usize, part: TablePart) {
        if self.parts.len() <= table {
            self.parts.resize_with(table + 1, || None);
        }
        self.parts[table] = Some(Box::new(part));
    }
}
