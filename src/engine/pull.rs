//! Reading rows: a pure read under shared locks (docs/NUMERICS.md, sections 4 and 6).
//!
//! Hot path: nothing is allocated per row, there is no lock per row, and each row is copied once. Keys are worked on
//! in blocks, so that the memory of a whole block is asked for before any of it is needed.
//!
//! `unsafe` lives here because pools trust their caller to hold the partitions' locks: the [`Held`] parts are
//! borrowed from read guards, and parts only name slots of their own directories.
#![allow(unsafe_code)]

use std::cell::RefCell;

use super::partition::Partition;
use super::route::Route;
use super::table::Table;
use crate::error::{Error, Result};
use crate::numeric::hash;
use crate::numeric::simd::dispatch;
use crate::table::TablePart;

/// Keys whose memory is asked for together.
const BLOCK: usize = 32;

/// The parts of one table that a pull holds, by partition; those it does not need are `None`.
pub struct Held<'a> {
    /// The table.
    pub table: &'a Table,
    route: &'a Route,
    parts: Vec<Option<&'a TablePart>>,
}

impl<'a> Held<'a> {
    /// The parts of `table` in these partitions.
    pub fn new(table: &'a Table, route: &'a Route, partitions: impl Iterator<Item = &'a Partition>) -> Held<'a> {
        let mut parts = vec![None; 1 << route.bits()];
        for partition in partitions {
            parts[partition.id as usize] = partition.part(table.id);
        }
        Held { table, route, parts }
    }

    #[inline(always)]
    fn part(&self, key: u64) -> Option<&'a TablePart> {
        self.parts[self.route.partition(self.table.keys(), key) as usize]
    }
}

/// A key's place: where to read it from.
#[derive(Clone, Copy)]
enum Source<'a> {
    Stored(&'a [u8]),
    Initial(u64),
}

/// Reads the rows of `keys` into `out`. Returns how many were in the cache.
pub fn rows(held: &Held<'_>, keys: &[u64], out: &mut [f32]) -> Result<u64> {
    read_rows(held, keys, out).ok_or_else(|| Error::UnknownTable(held.table.name().into()))
}

dispatch! {
    /// `None` if the table was dropped meanwhile.
    fn read_rows(held: &Held<'_>, keys: &[u64], out: &mut [f32]) -> Option<u64> {
        let table = held.table;
        let layout = table.layout();
        let dim = layout.dim;
        let mut hits = 0;
        let mut parts: [Option<&TablePart>; BLOCK] = [None; BLOCK];
        let mut sets = [0u32; BLOCK];
        let mut slots = [0u32; BLOCK];
        let mut slots_to = [0u32; BLOCK];
        let mut others = [(Source::Initial(0), 0u32); BLOCK];
        for (keys, out) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK * dim)) {
            let count = keys.len().min(BLOCK);
            for i in 0..count {
                let part = held.part(keys[i])?;
                parts[i] = Some(part);
                sets[i] = part.prefetch(keys[i], hash::mix64(keys[i]));
            }
            let (mut cached, mut other) = (0, 0);
            for i in 0..count {
                match find(parts[i]?, keys[i], sets[i]) {
                    Found::Slot(slot) => {
                        slots[cached] = slot;
                        slots_to[cached] = i as u32;
                        cached += 1;
                    }
                    Found::Row(source) => {
                        others[other] = (source, i as u32);
                        other += 1;
                    }
                }
            }
            if let (Some(pool), true) = (table.pool.as_deref(), cached > 0) {
                // SAFETY: `held` borrows from read guards of these partitions, and the slots are of their parts.
                unsafe { pool.gather(&slots[..cached], &slots_to[..cached], out) };
            }
            hits += cached as u64;
            for &(source, to) in &others[..other] {
                let out = &mut out[to as usize * dim..][..dim];
                match source {
                    Source::Stored(bytes) => layout.decode_weights(bytes, out),
                    Source::Initial(key) => table.initial.weights(key, out),
                }
            }
        }
        Some(hits)
    }
}

enum Found<'a> {
    /// In this slot of the pool.
    Slot(u32),
    Row(Source<'a>),
}

/// Where a row is; its stored form is asked for if it is needed.
#[inline(always)]
fn find(part: &TablePart, key: u64, set: u32) -> Found<'_> {
    let Some(row) = part.find(key) else { return Found::Row(Source::Initial(key)) };
    if let Some(slot) = part.directory.find_in(set, row) {
        return Found::Slot(part.first_slot + slot);
    }
    match part.stored(row) {
        Some(bytes) => {
            part.prefetch_row(row);
            Found::Row(Source::Stored(bytes))
        }
        None => Found::Row(Source::Initial(key)),
    }
}

/// Bags of keys, cut out of a [`super::PooledPull`].
#[derive(Clone, Copy)]
pub struct Bags<'a> {
    /// The keys of these bags.
    pub keys: &'a [u64],
    /// A factor for each key.
    pub weights: Option<&'a [f32]>,
    /// Where each bag starts, counted as `base` counts.
    pub offsets: &'a [u64],
    /// The offset of the first key.
    pub base: u64,
    /// Whether to divide by the number of keys.
    pub mean: bool,
}

/// The buffers of one thread.
#[derive(Default)]
struct Work {
    slots: Vec<u32>,
    slot_bags: Vec<u32>,
    slot_scales: Vec<f32>,
    /// Key index and bag of rows that are not in the cache.
    others: Vec<(u32, u32)>,
    row: Vec<f32>,
}

thread_local! {
    static WORK: RefCell<Work> = RefCell::default();
}

/// Reads bags as one row each: cached rows first, in order, then the others, in order.
pub fn pooled(held: &Held<'_>, bags: &Bags<'_>, out: &mut [f32]) -> Result<u64> {
    WORK.with_borrow_mut(|work| {
        work.row.resize(held.table.dim(), 0.0);
        read_pooled(held, bags, out, work).ok_or_else(|| Error::UnknownTable(held.table.name().into()))
    })
}

dispatch! {
    fn read_pooled(held: &Held<'_>, bags: &Bags<'_>, out: &mut [f32], work: &mut Work) -> Option<u64> {
        let table = held.table;
        let layout = table.layout();
        let dim = layout.dim;
        out.fill(0.0);
        work.slots.clear();
        work.slot_bags.clear();
        work.slot_scales.clear();
        work.others.clear();
        let end_of = |bag: usize| bags.offsets.get(bag + 1).map_or(bags.keys.len(), |&end| (end - bags.base) as usize);

        let mut start = 0;
        for bag in 0..bags.offsets.len() {
            let end = end_of(bag);
            for (i, &key) in bags.keys[start..end].iter().enumerate() {
                let part = held.part(key)?;
                match find(part, key, part.directory.set(hash::mix64(key))) {
                    Found::Slot(slot) => {
                        work.slots.push(slot);
                        work.slot_bags.push(bag as u32);
                        if let Some(weights) = bags.weights {
                            work.slot_scales.push(weights[start + i]);
                        }
                    }
                    Found::Row(_) => work.others.push(((start + i) as u32, bag as u32)),
                }
            }
            start = end;
        }
        let hits = work.slots.len() as u64;
        if let (Some(pool), true) = (table.pool.as_deref(), hits > 0) {
            let scales = bags.weights.map(|_| work.slot_scales.as_slice());
            // SAFETY: `held` borrows from read guards of these partitions, and the slots are of their parts.
            unsafe { pool.gather_pooled(&work.slots, &work.slot_bags, scales, out) };
        }
        for &(i, bag) in &work.others {
            let key = bags.keys[i as usize];
            let part = held.part(key)?;
            match part.find(key).and_then(|row| part.stored(row)) {
                Some(bytes) => layout.decode_weights(bytes, &mut work.row),
                None => table.initial.weights(key, &mut work.row),
            }
            let out = &mut out[bag as usize * dim..][..dim];
            match bags.weights {
                Some(weights) => out.iter_mut().zip(&work.row).for_each(|(out, w)| *out += weights[i as usize] * w),
                None => out.iter_mut().zip(&work.row).for_each(|(out, w)| *out += w),
            }
        }
        if bags.mean {
            let mut start = 0;
            for (bag, out) in out.chunks_exact_mut(dim).enumerate() {
                let end = end_of(bag);
                if end > start {
                    out.iter_mut().for_each(|out| *out /= (end - start) as f32);
                }
                start = end;
            }
        }
        Some(hits)
    }
}

/// A whole row, and where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its weights.
    pub weights: Vec<f32>,
    /// Its optimizer state, tensor after tensor.
    pub state: Vec<f32>,
    /// Whether it is in the cache.
    pub cached: bool,
    /// Whether the cached row differs from the row store.
    pub dirty: bool,
    /// Whether a low-precision form of it was ever stored.
    pub stored: bool,
}

/// Reads everything about one row. Counts nothing.
pub fn inspect(partition: &Partition, table: &Table, key: u64) -> Option<Row> {
    let part = partition.part(table.id)?;
    let layout = table.layout();
    let mixed = hash::mix64(key);
    let mut slot = vec![0.0; layout.slot_len()];
    let row = part.find(key);
    let at = row.and_then(|row| part.directory.find(row, mixed));
    let stored = row.and_then(|row| part.stored(row));
    match (at, table.pool.as_deref(), stored) {
        // SAFETY: `partition` is borrowed from its read guard, and the slot is of its part.
        (Some(at), Some(pool), _) => unsafe { pool.read(&[part.first_slot + at], &mut slot) },
        (_, _, Some(bytes)) => {
            let (weights, state) = slot.split_at_mut(layout.dim);
            layout.decode(bytes, weights, state);
        }
        _ => table.initial.row(key, layout.dim, &mut slot),
    }
    let state = slot.split_off(layout.dim);
    Some(Row {
        weights: slot,
        state,
        cached: at.is_some(),
        dirty: at.is_some_and(|at| part.directory.is_dirty(at)),
        stored: stored.is_some(),
    })
}

/// Feeds the state of a partition, the cached rows of these tables included, to `write`.
pub fn digest(partition: &Partition, tables: &[std::sync::Arc<Table>], mut write: impl FnMut(&[u8])) {
    write(&partition.write_backs.to_le_bytes());
    for table in tables {
        let Some(part) = partition.part(table.id) else { continue };
        write(table.name().as_bytes());
        part.digest(&mut write);
        let mut slot = vec![0.0; table.layout().slot_len()];
        for at in 0..part.directory.slots() {
            if let (Some(_), Some(pool)) = (part.directory.row_at(at), table.pool.as_deref()) {
                // SAFETY: `partition` is borrowed from its read guard, and the slot is of its part.
                unsafe { pool.read(&[part.first_slot + at], &mut slot) };
                write(bytemuck::cast_slice(&slot));
            }
        }
    }
}
