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
use crate::table::{KeySpace, PartView, TablePart};

/// Keys whose memory is asked for together.
const BLOCK: usize = 64;

/// The parts of one table that a pull holds, by partition.
pub struct Held<'a> {
    /// The table.
    pub table: &'a Table,
    route: &'a Route,
    stride: usize,
    views: Vec<PartView<'a>>,
    /// For hashed tables, whose rows are found through their index.
    parts: Vec<Option<&'a TablePart>>,
}

/// Where a row is.
enum Found {
    /// In this slot of the pool.
    Slot(u32),
    /// In this row of its part, if it was ever stored.
    Row(u32),
}

/// The row of a key that a hashed table does not have.
const ABSENT: u32 = u32::MAX;

impl<'a> Held<'a> {
    /// The parts of `table` in these partitions, which must hold all keys that are asked for.
    pub fn new(
        table: &'a Table,
        route: &'a Route,
        partitions: impl Iterator<Item = &'a Partition>,
    ) -> Result<Held<'a>> {
        let hashed = table.keys() == KeySpace::Hashed;
        let mut views = vec![PartView::default(); 1 << route.bits()];
        let mut parts = vec![None; if hashed { views.len() } else { 0 }];
        for partition in partitions {
            // A drop may have come between the lookup of the name and the locks.
            let part = partition.part(table.id).ok_or_else(|| Error::UnknownTable(table.name().into()))?;
            views[partition.id as usize] = part.view();
            if hashed {
                parts[partition.id as usize] = Some(part);
            }
        }
        Ok(Held { table, route, stride: table.shape.stride(), views, parts })
    }

    /// A key's partition and its set in the directory there, whose memory is asked for.
    #[inline(always)]
    fn approach<const HASHED: bool>(&self, key: u64) -> (u32, u32) {
        let mixed = hash::mix64(key);
        let partition = if HASHED { self.route.hashed(mixed) } else { self.route.dense(key) };
        let view = &self.views[partition as usize];
        let set = view.tags.set(mixed);
        view.tags.prefetch(set);
        (partition, set)
    }

    /// Where a row is; its stored form is asked for if it will be needed. `HASHED` is whether the table is.
    #[inline(always)]
    fn find<const HASHED: bool>(&self, key: u64, (partition, set): (u32, u32)) -> Found {
        let view = &self.views[partition as usize];
        let part = if HASHED { self.parts[partition as usize] } else { None };
        let row = match part {
            None => (key >> self.route.bits()) as u32,
            Some(part) => match part.find(key) {
                Some(row) => row,
                None => return Found::Row(ABSENT),
            },
        };
        if let Some(slot) = view.tags.find(set, row) {
            return Found::Slot(view.first_slot + slot);
        }
        match part {
            None => view.prefetch_row(row, self.stride),
            Some(part) => part.prefetch_row(row),
        }
        Found::Row(row)
    }

    /// Reads a row that is not in the cache.
    #[inline(always)]
    fn read<const HASHED: bool>(&self, key: u64, partition: u32, row: u32, out: &mut [f32]) {
        let stored = match if HASHED { self.parts[partition as usize] } else { None } {
            _ if HASHED && row == ABSENT => None,
            None => self.views[partition as usize].stored(row, self.stride),
            Some(part) => part.stored(row),
        };
        match stored {
            Some(bytes) => self.table.layout().decode_weights(bytes, out),
            None => self.table.initial.weights(key, out),
        }
    }
}

dispatch! {
    /// Reads the rows of `keys` into `out`. Returns how many were in the cache.
    pub fn rows(held: &Held<'_>, keys: &[u64], out: &mut [f32]) -> u64 {
        if held.parts.is_empty() { read_rows::<false>(held, keys, out) } else { read_rows::<true>(held, keys, out) }
    }
}

#[inline(always)]
fn read_rows<const HASHED: bool>(held: &Held<'_>, keys: &[u64], out: &mut [f32]) -> u64 {
    let table = held.table;
    let dim = table.dim();
    let mut hits = 0;
    let mut places = [(0u32, 0u32); BLOCK];
    let mut slots = [0u32; BLOCK];
    let mut slots_to = [0u32; BLOCK];
    let mut others = [(0u32, 0u32); BLOCK];
    for (keys, out) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK * dim)) {
        for (place, &key) in places.iter_mut().zip(keys) {
            *place = held.approach::<HASHED>(key);
        }
        // Both counts stay below `BLOCK`, and the masks tell the compiler so.
        let (mut cached, mut other) = (0, 0);
        for (i, (&key, &place)) in keys.iter().zip(&places).enumerate() {
            match held.find::<HASHED>(key, place) {
                Found::Slot(slot) => {
                    slots[cached % BLOCK] = slot;
                    slots_to[cached % BLOCK] = i as u32;
                    cached += 1;
                }
                Found::Row(row) => {
                    others[other % BLOCK] = (row, i as u32);
                    other += 1;
                }
            }
        }
        if let (Some(pool), true) = (table.pool.as_deref(), cached > 0) {
            // SAFETY: `held` borrows from read guards of these partitions, and the slots are of their parts.
            unsafe { pool.gather(&slots[..cached], &slots_to[..cached], out) };
        }
        hits += cached as u64;
        for &(row, to) in &others[..other] {
            let i = to as usize;
            held.read::<HASHED>(keys[i], places[i].0, row, &mut out[i * dim..][..dim]);
        }
    }
    hits
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
    /// Partition and set of each key.
    places: Vec<(u32, u32)>,
    slots: Vec<u32>,
    slot_bags: Vec<u32>,
    slot_scales: Vec<f32>,
    others: Vec<Other>,
    row: Vec<f32>,
}

/// A key of a bag whose row is not in the cache.
#[derive(Clone, Copy)]
struct Other {
    key: u32,
    bag: u32,
    partition: u32,
    row: u32,
}

thread_local! {
    static WORK: RefCell<Work> = RefCell::default();
}

/// Reads bags as one row each: cached rows first, in order, then the others, in order. Returns how many were cached.
pub fn pooled(held: &Held<'_>, bags: &Bags<'_>, out: &mut [f32]) -> u64 {
    WORK.with_borrow_mut(|work| {
        work.row.resize(held.table.dim(), 0.0);
        read_pooled(held, bags, out, work)
    })
}

dispatch! {
    fn read_pooled(held: &Held<'_>, bags: &Bags<'_>, out: &mut [f32], work: &mut Work) -> u64 {
        match held.parts.is_empty() {
            true => pool_rows::<false>(held, bags, out, work),
            false => pool_rows::<true>(held, bags, out, work),
        }
    }
}

#[inline(always)]
fn pool_rows<const HASHED: bool>(held: &Held<'_>, bags: &Bags<'_>, out: &mut [f32], work: &mut Work) -> u64 {
    let table = held.table;
    let dim = table.dim();
    out.fill(0.0);
    work.slots.clear();
    work.slot_bags.clear();
    work.slot_scales.clear();
    work.others.clear();
    let end_of = |bag: usize| bags.offsets.get(bag + 1).map_or(bags.keys.len(), |&end| (end - bags.base) as usize);

    work.places.clear();
    for &key in bags.keys {
        work.places.push(held.approach::<HASHED>(key));
    }
    let mut start = 0;
    for bag in 0..bags.offsets.len() {
        let end = end_of(bag);
        for i in start..end {
            let place = work.places[i];
            match held.find::<HASHED>(bags.keys[i], place) {
                Found::Slot(slot) => {
                    work.slots.push(slot);
                    work.slot_bags.push(bag as u32);
                    if let Some(weights) = bags.weights {
                        work.slot_scales.push(weights[i]);
                    }
                }
                Found::Row(row) => work.others.push(Other { key: i as u32, bag: bag as u32, partition: place.0, row }),
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
    for &Other { key, bag, partition, row } in &work.others {
        held.read::<HASHED>(bags.keys[key as usize], partition, row, &mut work.row);
        let out = &mut out[bag as usize * dim..][..dim];
        match bags.weights {
            Some(weights) => out.iter_mut().zip(&work.row).for_each(|(out, w)| *out += weights[key as usize] * w),
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
    hits
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
