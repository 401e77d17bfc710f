//! Filling an engine with a saved state.
//!
//! `unsafe` lives here because pools trust their caller to hold the partition's lock.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::clients::Window;
use super::partition::Partition;
use super::table::Table;
use super::{Alteration, Engine, Lsn, Piece, SavedTable};
use crate::cache::DirectoryImage;
use crate::error::{Error, Result};
use crate::numeric::Noise;
use crate::table::TablePart;

/// An engine that is being filled.
pub struct Restore<'a> {
    engine: &'a Engine,
    tables: Vec<Arc<Table>>,
}

/// One partition that is being filled.
pub struct RestorePartition<'a, 'b> {
    restore: &'b Restore<'a>,
    place: usize,
    /// By the tables of the file that is read: which table that is here.
    tables: Vec<Option<Arc<Table>>>,
    table: Option<Arc<Table>>,
    /// Where the slots of the part's directory went, and the rows in them.
    went: Vec<Option<u32>>,
    rows: Vec<Option<u32>>,
}

impl Engine {
    /// Fills an engine that has no tables. Where it goes wrong the engine is of no more use.
    pub fn restore(&self, tables: &[SavedTable]) -> Result<Restore<'_>> {
        if !self.tables.is_empty() {
            return Err(Error::NotRestored("the engine has tables already".into()));
        }
        let mut made = Vec::with_capacity(tables.len());
        for saved in tables {
            self.create(&saved.spec)?;
            let current = &saved.current;
            self.alter(
                &current.name,
                Alteration {
                    learning_rate: Some(current.learning_rate),
                    weight_decay: Some(current.weight_decay),
                    clip_norm: Some(current.clip_norm),
                },
            )?;
            let table = self.table(&current.name)?;
            table.born.store(saved.born.0, Ordering::Relaxed);
            made.push(table);
        }
        Ok(Restore { engine: self, tables: made })
    }
}

impl<'a> Restore<'a> {
    /// Fills one partition. `tables` are the names behind the numbers in its pieces; `None` for one whose pieces are
    /// passed over.
    pub fn partition<'b>(&'b self, id: u32, tables: &[Option<&str>]) -> Result<RestorePartition<'a, 'b>> {
        let place = self.engine.route.owned().binary_search(&id);
        let place = place.map_err(|_| Error::NotRestored(format!("partition {id} is not owned here")))?;
        let named = |name: &str| self.tables.iter().find(|table| table.name() == name).cloned();
        let tables = tables.iter().map(|name| name.and_then(named)).collect();
        Ok(RestorePartition { restore: self, place, tables, table: None, went: Vec::new(), rows: Vec::new() })
    }

    /// All partitions are filled; changes go on after `lsn`. `tracked` says that later checkpoints may differ from the one that
    /// was read.
    pub fn finish(self, lsn: Lsn, tracked: bool) {
        self.engine.order.turn().go_on_after(lsn);
        for partition in &self.engine.partitions {
            let mut partition = partition.write();
            for table in &self.tables {
                if let Some(part) = partition.part_mut(table.id).filter(|_| !tracked) {
                    part.forget_changes();
                }
            }
        }
    }
}

impl RestorePartition<'_, '_> {
    /// Takes over a piece. Of a chain of checkpoints only rows count, but in the last.
    pub fn piece(&mut self, piece: Piece, last: bool) -> Result<()> {
        let engine = self.restore.engine;
        let mut partition = engine.partitions[self.place].write();
        match piece {
            Piece::Partition { id, .. } if id != partition.id => {
                return Err(Error::NotRestored(format!("partition {id} where {} should be", partition.id)));
            }
            Piece::Partition { write_backs, clients, .. } if last => {
                partition.write_backs = write_backs;
                drop(partition);
                let window = |&(id, highest, below): &(_, _, _)| (id, Window { highest, below });
                let windows: Vec<_> = clients.iter().map(window).collect();
                engine.order.turn().clients().restore(self.place, engine.partitions.len(), &windows);
                return Ok(());
            }
            Piece::Part { table } => {
                let known = self.tables.get(table as usize);
                self.table = known.ok_or_else(|| Error::NotRestored(format!("there is no table {table}")))?.clone();
            }
            Piece::Partition { .. } | Piece::End => self.table = None,
            _ => {}
        }
        let Some(table) = self.table.clone() else { return Ok(()) };
        let Partition { id, write_backs, parts, .. } = &mut *partition;
        let part = parts[table.id].as_deref_mut().expect("made when the restore began");
        match piece {
            Piece::Rows(rows) => part.restore_rows(&rows, &table.chunks, &engine.budget),
            Piece::Index { rows, free } if last => {
                // The rows are there. What a smaller cache rounds into them from here on has changed since.
                part.note_changes();
                part.restore_index(rows, free, &engine.budget)
            }
            Piece::Directory(image) if last => self.directory(part, &table, image),
            Piece::Slots { slots, values } if last => {
                let noise = Noise { seed: engine.config.seed, partition: *id, write_back: 0 };
                self.slots(part, &table, &slots, &values, noise, write_backs)
            }
            _ => Ok(()),
        }
    }

    /// Takes over a directory, and fills the slots of clean rows from the row store.
    fn directory(&mut self, part: &mut TablePart, table: &Table, image: DirectoryImage) -> Result<()> {
        let slots = 0..image.tags.len() as u32;
        let dirty: Vec<bool> = slots.clone().map(|slot| image.is_dirty(slot)).collect();
        self.rows = slots.map(|slot| image.row_at(slot)).collect();
        self.went = part.restore_directory(image)?;
        let Some(pool) = table.pool() else { return Ok(()) };
        let (mut filled, mut bytes) = (Vec::new(), Vec::new());
        let (mut loaded, mut values) = (Vec::new(), Vec::new());
        for (slot, went) in self.went.iter().enumerate() {
            let (Some(went), Some(row), false) = (went, self.rows[slot], dirty[slot]) else { continue };
            match part.stored(row) {
                Some(stored) => {
                    filled.push(part.first_slot + went);
                    bytes.extend_from_slice(stored);
                }
                None => {
                    loaded.push(part.first_slot + went);
                    let start = values.len();
                    values.resize(start + pool.slot_len(), 0.0);
                    table.initial.row(part.key_of(row), table.dim(), &mut values[start..]);
                }
            }
        }
        // SAFETY: `part` comes from the write guard of its partition, and the slots are its own, each of one row.
        unsafe {
            pool.fill(&filled, &bytes);
            pool.load(&loaded, &values);
        }
        Ok(())
    }

    /// Takes over dirty cached rows; those that have no way here are written back, in the order of the directory.
    fn slots(
        &self,
        part: &mut TablePart,
        table: &Table,
        slots: &[u32],
        values: &[f32],
        noise: Noise,
        write_backs: &mut u64,
    ) -> Result<()> {
        let layout = table.layout();
        let len = layout.slot_len();
        if values.len() != slots.len() * len {
            return Err(Error::NotRestored("cached rows are of another length".into()));
        }
        let (mut loaded, mut kept) = (Vec::new(), Vec::new());
        for (&slot, values) in slots.iter().zip(values.chunks_exact(len)) {
            let row = self.rows.get(slot as usize).copied().flatten();
            let row = row.ok_or_else(|| Error::NotRestored(format!("slot {slot} has a value and no row")))?;
            match self.went[slot as usize] {
                Some(went) => {
                    loaded.push(part.first_slot + went);
                    kept.extend_from_slice(values);
                }
                None => {
                    let noise = Noise { write_back: *write_backs, ..noise };
                    *write_backs += 1;
                    let (weights, state) = values.split_at(layout.dim);
                    layout.encode(weights, state, &noise, part.store(row));
                }
            }
        }
        if let Some(pool) = table.pool() {
            // SAFETY: `part` comes from the write guard of its partition, and the slots are its own, each of one row.
            unsafe { pool.load(&loaded, &kept) };
        }
        Ok(())
    }
}
