//! Saving the engine's state as it was at one moment, while changes go on.
//!
//! A cut holds everything for a moment and copies only what is small; the rest is read afterwards, piece by piece, under
//! the shared lock of one partition at a time (`table/saving.rs` says how it stays as it was).
//!
//! `unsafe` lives here because pools trust their caller to hold the partition's lock.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::clients::Window;
use super::partition::Partition;
use super::table::Table;
use super::{ClientId, Engine, Lsn};
use crate::cache::DirectoryImage;
use crate::error::{Error, Result};
use crate::table::{PIECE_BYTES, RowsPiece, TablePart, TableSpec};

/// A table at the moment of a cut.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedTable {
    /// As it was made.
    pub spec: TableSpec,
    /// As it was then: hyper-parameters may have been altered.
    pub current: TableSpec,
    /// The change that made it: tells it from another of the same name.
    pub born: Lsn,
}

/// A piece of a saved state. The pieces of a partition come between its `Partition` and its `End`; of each table
/// `Part`, then `Rows`, `Index`, `Directory`, `Slots`.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// A partition begins.
    Partition {
        /// Which.
        id: u32,
        /// Its next write-back number.
        write_backs: u64,
        /// Whose pushes it remembers: the client, the highest sequence, and which of the 64 below it.
        clients: Vec<(ClientId, u64, u64)>,
    },
    /// Its part of a table begins.
    Part {
        /// The table, by its place in [`Snapshot::tables`].
        table: u32,
    },
    /// Rows.
    Rows(RowsPiece),
    /// Which rows there are.
    Index {
        /// Rows below this are, or were, there.
        rows: u32,
        /// Those that are to be reused, the last first.
        free: Vec<u32>,
    },
    /// The cache's directory.
    Directory(DirectoryImage),
    /// Cached rows that differ from the row store.
    Slots {
        /// Where they are.
        slots: Vec<u32>,
        /// Their weights and state, one after the other.
        values: Vec<f32>,
    },
    /// The partition ends.
    End,
}

/// What changed before a cut, for as long as nobody knows whether that checkpoint came to something.
pub struct Unsettled {
    /// By place and table id.
    since: Vec<(usize, usize, Option<Vec<u64>>)>,
}

/// The engine's state at a cut. Dropping it early gives up the save.
pub struct Snapshot<'a> {
    engine: &'a Engine,
    lsn: Lsn,
    tables: Vec<Arc<Table>>,
    saved: Vec<SavedTable>,
    /// By place: the next write-back number, and clients.
    heads: Vec<(u64, Vec<(ClientId, Window)>)>,
    place: usize,
    step: Step,
    since: Vec<(usize, usize, Option<Vec<u64>>)>,
    /// Whether it was not given up.
    done: bool,
}

/// What comes next of a partition; a table is a place in [`Snapshot::tables`].
#[derive(Clone, Copy)]
enum Step {
    Partition,
    Part(usize),
    Rows(usize, u32),
    Index(usize),
    Directory(usize),
    Slots(usize, u32),
}

impl Engine {
    /// Fixes the state as it is now, to be read piece by piece while changes go on. `whole` reads all rows; otherwise those
    /// of each table that changed since the last checkpoint, where there was one.
    pub fn cut(&self, whole: bool) -> Result<Snapshot<'_>> {
        if self.saving.swap(true, Ordering::AcqRel) {
            return Err(Error::SaveUnderWay);
        }
        let mut turn = self.order.turn();
        let mut held = turn.take_all(&self.partitions);
        let mut tables: Vec<Arc<Table>> = self.tables.iter().map(|entry| Arc::clone(entry.value())).collect();
        tables.sort_by(|a, b| a.name().cmp(b.name()));
        let saved = tables
            .iter()
            .map(|table| SavedTable {
                spec: table.spec.clone(),
                current: table.current_spec(),
                born: Lsn(table.born.load(Ordering::Relaxed)),
            })
            .collect();
        let windows = turn.clients().windows(held.len());
        let mut heads = Vec::with_capacity(held.len());
        for (partition, windows) in held.iter_mut().zip(windows) {
            heads.push((partition.write_backs, windows));
            for table in &tables {
                if let Some(part) = partition.part_mut(table.id) {
                    part.cut(whole);
                }
            }
        }
        let lsn = turn.last();
        Ok(Snapshot {
            engine: self,
            lsn,
            tables,
            saved,
            heads,
            place: 0,
            step: Step::Partition,
            since: Vec::new(),
            done: false,
        })
    }

    /// Says whether the checkpoint of a snapshot came to something. If it did not, what had changed before it still has.
    pub fn settle(&self, unsettled: Unsettled, complete: bool) {
        if complete {
            return;
        }
        for (place, table, since) in unsettled.since {
            if let Some(part) = self.partitions[place].write().part_mut(table) {
                part.put_changes_back(since);
            }
        }
    }
}

impl Snapshot<'_> {
    /// The last change in it.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// The tables in it.
    pub fn tables(&self) -> &[SavedTable] {
        &self.saved
    }

    /// The next piece; `None` is the end.
    pub fn next_piece(&mut self) -> Option<Piece> {
        loop {
            if self.place == self.engine.partitions.len() {
                return None;
            }
            if let Some(piece) = self.advance() {
                return Some(piece);
            }
        }
    }

    /// One step further, with the piece that it gave.
    fn advance(&mut self) -> Option<Piece> {
        let place = &self.engine.partitions[self.place];
        let gone = "a part stays until it is saved";
        match self.step {
            Step::Partition => {
                self.step = Step::Part(0);
                let (write_backs, clients) = &mut self.heads[self.place];
                let clients = std::mem::take(clients).into_iter().map(|(id, w)| (id, w.highest, w.below)).collect();
                Some(Piece::Partition { id: place.read().id, write_backs: *write_backs, clients })
            }
            Step::Part(t) if t == self.tables.len() => {
                (self.place, self.step) = (self.place + 1, Step::Partition);
                Some(Piece::End)
            }
            Step::Part(t) => {
                self.step = Step::Rows(t, 0);
                place.write().part_to_save_mut(self.tables[t].id).expect(gone).before_change();
                Some(Piece::Part { table: t as u32 })
            }
            Step::Rows(t, from) => {
                let partition = place.read();
                match partition.part_to_save(self.tables[t].id).expect(gone).save_rows(from) {
                    Some(piece) => {
                        self.step = Step::Rows(t, piece.first + piece.count);
                        Some(Piece::Rows(piece))
                    }
                    None => {
                        self.step = Step::Index(t);
                        None
                    }
                }
            }
            Step::Index(t) => {
                self.step = Step::Directory(t);
                let partition = place.read();
                let frame = partition.part_to_save(self.tables[t].id).and_then(TablePart::saving).expect(gone).frame();
                Some(Piece::Index { rows: frame.rows, free: frame.free.clone() })
            }
            Step::Directory(t) => {
                self.step = Step::Slots(t, 0);
                let partition = place.read();
                let frame = partition.part_to_save(self.tables[t].id).and_then(TablePart::saving).expect(gone).frame();
                Some(Piece::Directory(frame.directory.clone()))
            }
            Step::Slots(t, from) => {
                let table = &self.tables[t];
                let partition = place.read();
                let part = partition.part_to_save(table.id).expect(gone);
                if let Some((slots, values)) = save_slots(part, table, from) {
                    self.step = Step::Slots(t, slots.last().map_or(from, |last| last + 1));
                    return Some(Piece::Slots { slots, values });
                }
                drop(partition);
                self.step = Step::Part(t + 1);
                let since = end_part(&mut place.write(), table.id);
                self.since.push((self.place, table.id, since));
                None
            }
        }
    }

    /// Ends a save that was read to its end.
    pub fn done(mut self) -> Unsettled {
        self.done = true;
        Unsettled { since: std::mem::take(&mut self.since) }
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        if !self.done {
            let mut unsettled = Unsettled { since: std::mem::take(&mut self.since) };
            for (place, partition) in self.engine.partitions.iter().enumerate().skip(self.place) {
                let mut partition = partition.write();
                let saving =
                    |table: &&Arc<Table>| partition.part_to_save(table.id).is_some_and(|part| part.saving().is_some());
                let ids: Vec<usize> = self.tables.iter().filter(saving).map(|table| table.id).collect();
                for id in ids {
                    unsettled.since.push((place, id, end_part(&mut partition, id)));
                }
            }
            self.engine.settle(unsettled, false);
        }
        self.engine.saving.store(false, Ordering::Release);
    }
}

/// The part is saved: it keeps nothing any more, and is gone if its table is.
fn end_part(partition: &mut Partition, table: usize) -> Option<Vec<u64>> {
    let since = partition.part_to_save_mut(table).and_then(TablePart::end_saving);
    partition.leaving.retain(|(id, _)| *id != table);
    since
}

/// The next dirty slots from `from` on, as they were at the cut.
fn save_slots(part: &TablePart, table: &Table, from: u32) -> Option<(Vec<u32>, Vec<f32>)> {
    let (pool, saving) = (table.pool()?, part.saving()?);
    let len = table.layout().slot_len();
    let slots = saving.dirty_slots(from, (PIECE_BYTES / (4 * len)).max(1));
    let end = slots.last()? + 1;
    let mut values = vec![0.0; slots.len() * len];
    let named: Vec<u32> = slots.iter().map(|slot| part.first_slot + slot).collect();
    // SAFETY: `part` is borrowed from the read guard of its partition, and the slots are its own.
    unsafe { pool.read(&named, &mut values) };
    for (&slot, values) in slots.iter().zip(values.chunks_exact_mut(len)) {
        if let Some(kept) = saving.kept_slot(slot, len) {
            values.copy_from_slice(kept);
        }
    }
    saving.slots_saved(end);
    Some((slots, values))
}
