//! Applying a change's part to one partition (docs/NUMERICS.md, section 6).
//!
//! Hot path: nothing is allocated per row, and buffers are kept by the thread. A push first decides (*plan*: which
//! rows hit, come in, leave), and then does the work in batches: write-backs, fills, updates. A row that leaves in a
//! push is never one that the push needs, so the batches do not depend on the order of rows. The host does them at once;
//! what a GPU has to do is collected (`gpu_change.rs`) until all partitions have been visited.
//!
//! `unsafe` lives here because pools trust their caller to hold the partition's lock: a `&mut TablePart` comes
//! from the write guard of its partition, and a part only names slots of its own directory.
#![allow(unsafe_code)]

use std::cell::RefCell;

use super::distinct::Distinct;
use super::exact;
use super::gpu_change::{Collected, Gradient};
use super::observe::Seen;
use super::request::Assign;
use super::table::Table;
use crate::cache::cuda::CudaSlots;
use crate::cache::{Admission, Gradients, HostPool, Pool, RoundingError, RowLayout, Slots, Use, WriteBack};
use crate::numeric::simd::dispatch;
use crate::numeric::{Noise, Rule, hash};
use crate::table::TablePart;

/// Conflicts that are stepped and then rounded together: few enough that they stay in the first-level cache, however large a push is.
const TOGETHER: usize = 64;
/// A row that is not in the cache.
const NO_SLOT: u32 = u32::MAX;

/// What a push or touch does to one part.
pub struct Visit<'a> {
    /// The table.
    pub table: &'a Table,
    /// The change's keys.
    pub keys: &'a [u64],
    /// Which of them are in this partition.
    pub positions: &'a [u32],
    /// The change's gradients and what to do with them; `None` for a touch.
    pub update: Option<(&'a [f32], Rule)>,
    /// Who watches how keys are used, if anybody does.
    pub seen: Option<&'a Seen>,
}

/// The partition that is being changed, beside its parts.
pub struct Numbering<'a> {
    /// The cluster's seed.
    pub seed: u32,
    /// The partition.
    pub partition: u32,
    /// Its next write-back number.
    pub next: &'a mut u64,
}

impl Numbering<'_> {
    #[inline(always)]
    fn take(&mut self) -> u64 {
        let number = *self.next;
        *self.next += 1;
        number
    }

    #[inline(always)]
    fn noise(&self, write_back: u64) -> Noise {
        Noise { seed: self.seed, partition: self.partition, write_back }
    }
}

/// The buffers of one thread.
#[derive(Default)]
pub(super) struct Work {
    pub(super) distinct: Distinct,
    /// Distinct keys that are watched.
    watched: Vec<Use>,
    /// The row of each distinct key.
    pub(super) rows: Vec<u32>,
    /// The directory's slot of each distinct key, or `NO_SLOT`.
    slots: Vec<u32>,
    /// Distinct keys that were not in the cache.
    missing: Vec<u32>,
    /// Dirty rows that leave, and where they go.
    leaving: Vec<WriteBack>,
    leaving_rows: Vec<u32>,
    /// Rows as they are rounded, before they are stored.
    rounded: Vec<u8>,
    /// Stored rows that come in.
    fill_slots: Vec<u32>,
    fill_bytes: Vec<u8>,
    /// Untrained rows that come in.
    load_slots: Vec<u32>,
    load_rows: Vec<f32>,
    /// Rows that are stepped in place, with their write-back numbers.
    conflicts: Vec<(u32, u64)>,
    /// Rows that are stepped in the cache.
    update_slots: Vec<u32>,
    pub(super) picked: Vec<u32>,
    pub(super) ends: Vec<u32>,
    /// One slot, and two rows of gradients.
    pub(super) scratch: Vec<f32>,
}

thread_local! {
    pub(super) static WORK: RefCell<Work> = RefCell::default();
}

/// Applies a push or a touch to one part.
pub fn push<'a>(part: &mut TablePart, visit: &Visit<'a>, numbering: Numbering<'_>, gpu: &mut Collected<'a>) {
    WORK.with_borrow_mut(|work| {
        let layout = visit.table.layout();
        work.scratch.resize(layout.slot_len() + 2 * layout.dim, 0.0);
        if layout.is_exact() {
            exact::push(part, visit, work);
        } else {
            cached(part, visit, numbering, work, gpu);
        }
    });
}

/// A table with low-precision rows and a cache (of zero rows, perhaps).
fn cached<'a>(
    part: &mut TablePart,
    visit: &Visit<'a>,
    mut numbering: Numbering<'_>,
    work: &mut Work,
    gpu: &mut Collected<'a>,
) {
    plan(part, visit, &mut numbering, work);
    if let Some((values, rule)) = visit.update {
        if !work.conflicts.is_empty() {
            conflicts(part, visit, values, &rule, &numbering, work);
        }
        part.counts.updated_rows += work.distinct.len() as u64;
    }
    match &visit.table.slots {
        // SAFETY: `part` comes from the write guard of its partition; `plan` took the slots from the part's own
        // directory, each once per list.
        Some(Slots::Host(pool)) => unsafe { work_on_host(pool, part, visit, work) },
        Some(Slots::Cuda(slots)) => collect(slots, part, visit, work, gpu),
        None => {}
    }
    part.directory.end(work.slots.iter().copied().filter(|&slot| slot != NO_SLOT));
}

/// Does what was planned.
///
/// # Safety
/// The caller holds the part's partition exclusively.
unsafe fn work_on_host(pool: &HostPool, part: &mut TablePart, visit: &Visit<'_>, work: &mut Work) {
    // SAFETY: the caller's lock.
    unsafe {
        put_aside(pool, part, work.slots.iter().copied().filter(|&slot| slot != NO_SLOT));
    }
    exchange(pool, part, visit.table, work);
    if let Some((values, rule)) = visit.update {
        group_cached(part, visit, work);
        let Work { update_slots, picked, ends, .. } = work;
        // SAFETY: the caller's lock; distinct keys have distinct slots.
        unsafe { pool.update(update_slots, &Gradients { values, picked, ends }, &rule) };
    }
}

/// Has a GPU do what was planned, when all partitions have been visited.
fn collect<'a>(slots: &CudaSlots, part: &mut TablePart, visit: &Visit<'a>, work: &mut Work, gpu: &mut Collected<'a>) {
    gpu.put_aside(slots, part, work.slots.iter().copied().filter(|&slot| slot != NO_SLOT));
    for (leaving, &row) in work.leaving.iter().zip(&work.leaving_rows) {
        gpu.leave(slots.address(leaving.slot), *leaving, row);
    }
    coming(part, visit.table, work);
    gpu.fill(work.fill_slots.iter().map(|&slot| slots.address(slot)), &work.fill_bytes);
    gpu.load(work.load_slots.iter().map(|&slot| slots.address(slot)), &work.load_rows);
    if let Some((values, _)) = visit.update {
        group_cached(part, visit, work);
        let Work { update_slots, picked, ends, scratch, .. } = work;
        let dim = visit.table.dim();
        let gradients = Gradients { values, picked, ends };
        for (i, &slot) in update_slots.iter().enumerate() {
            let gradient = match gradients.picked_of(i) {
                [only] => Gradient::Sent(&values[*only as usize * dim..][..dim]),
                _ => gpu.sum(gradients.of(i, &mut scratch[..dim])),
            };
            gpu.update(slots.address(slot), gradient);
        }
    }
}

/// Which slots are stepped, and by which gradients.
fn group_cached(part: &mut TablePart, visit: &Visit<'_>, work: &mut Work) {
    let Work { distinct, slots, update_slots, picked, ends, .. } = work;
    distinct.group(visit.positions, |i| slots[i] != NO_SLOT, picked, ends);
    update_slots.clear();
    for &slot in slots.iter().filter(|&&slot| slot != NO_SLOT) {
        part.directory.set_dirty(slot);
        update_slots.push(part.first_slot + slot);
    }
}

dispatch! {
    /// Decides what happens to every row, and gives out write-back numbers.
    fn plan(part: &mut TablePart, visit: &Visit<'_>, numbering: &mut Numbering<'_>, work: &mut Work) {
        let Work { distinct, watched, rows, slots, missing, leaving, leaving_rows, conflicts, .. } = work;
        distinct.fill(visit.keys, visit.positions);
        watched.clear();
        if let Some(seen) = visit.seen {
            seen.pick(&distinct.mixed, &distinct.times, watched);
        }
        rows.clear();
        slots.clear();
        missing.clear();
        leaving.clear();
        leaving_rows.clear();
        conflicts.clear();
        part.directory.approach(&distinct.mixed);
        let pool = match &visit.table.slots {
            Some(Slots::Host(pool)) => Some(pool),
            _ => None,
        };
        for i in 0..distinct.len() {
            rows.push(part.find_or_add(distinct.keys[i], distinct.mixed[i]));
        }

        part.directory.begin();
        let mut hits = 0;
        for (i, &row) in rows.iter().enumerate() {
            match part.directory.find(row, distinct.mixed[i]) {
                Some(slot) => {
                    part.directory.hit(slot);
                    slots.push(slot);
                    if let Some(pool) = pool {
                        pool.approach(part.first_slot + slot);
                    }
                    hits += u64::from(distinct.times[i]);
                }
                None => {
                    part.prefetch_row_early(row);
                    slots.push(NO_SLOT);
                    missing.push(i as u32);
                }
            }
        }
        if let Some(seen) = visit.seen {
            seen.keep(watched, hits);
        }
        let misses = visit.positions.len() as u64 - hits;
        let is_push = visit.update.is_some();
        if is_push {
            part.counts.push_hits += hits;
            part.counts.push_misses += misses;
        } else {
            part.counts.touch_hits += hits;
            part.counts.touch_misses += misses;
        }

        for &i in missing.iter() {
            let i = i as usize;
            match part.admit(rows[i], distinct.mixed[i]) {
                Admission::Free { slot } => slots[i] = slot,
                Admission::Evicted { slot, row, dirty } => {
                    slots[i] = slot;
                    if dirty {
                        let (slot, number) = (part.first_slot + slot, numbering.take());
                        leaving.push(WriteBack { slot, partition: numbering.partition, number });
                        leaving_rows.push(row);
                        part.prefetch_row_early(row);
                        if let Some(pool) = pool {
                            pool.approach(slot);
                        }
                    } else {
                        part.counts.clean_evictions += 1;
                    }
                }
                Admission::Conflict if is_push => conflicts.push((i as u32, numbering.take())),
                Admission::Conflict => {}
            }
        }
        part.counts.write_backs += leaving.len() as u64 + conflicts.len() as u64;
        part.counts.conflicts += conflicts.len() as u64;
    }
}

/// Puts slots aside that are about to change, if the part is being saved.
///
/// # Safety
/// The caller holds the part's partition exclusively.
unsafe fn put_aside(pool: &HostPool, part: &mut TablePart, slots: impl Iterator<Item = u32>) {
    let first_slot = part.first_slot;
    let Some(saving) = part.saving_mut() else { return };
    let unsaved = saving.unsaved_slots(slots);
    if unsaved.is_empty() {
        return;
    }
    let named: Vec<u32> = unsaved.iter().map(|slot| first_slot + slot).collect();
    // SAFETY: the caller's lock.
    unsafe { pool.read(&named, saving.keep_slots(&unsaved, pool.slot_len())) };
}

dispatch! {
    /// Writes back the rows that leave, then fills their slots, and the empty ones, with the rows that come in.
    ///
    /// Only called from `work_on_host`, whose caller has promised to hold the part's partition exclusively.
    fn exchange(pool: &HostPool, part: &mut TablePart, table: &Table, work: &mut Work) {
        let dim = table.dim();
        let Work { leaving, leaving_rows, rounded, scratch, .. } = work;
        rounded.resize(leaving.len() * table.layout().row_bytes(), 0);
        // SAFETY: the caller's lock; every slot was evicted once.
        part.counts.rounding_error.add(unsafe { pool.write_back(leaving, rounded, &mut scratch[..dim]) });
        put(part, leaving_rows.iter().copied(), rounded);
        match dim {
            16 => fill::<16>(pool, part, table, work),
            32 => fill::<32>(pool, part, table, work),
            64 => fill::<64>(pool, part, table, work),
            128 => fill::<128>(pool, part, table, work),
            _ => fill::<0>(pool, part, table, work),
        }
    }
}

/// Fills slots with the rows that come in: part of [`exchange`]. `DIM` is as in [`RowLayout::known`].
#[inline(always)]
fn fill<const DIM: usize>(pool: &HostPool, part: &TablePart, table: &Table, work: &mut Work) {
    for (i, slot) in admitted(&work.missing, &work.slots) {
        let slot = part.first_slot + slot;
        match part.stored(work.rows[i]) {
            // SAFETY: the caller's lock; every slot was given to one row.
            Some(bytes) => unsafe { pool.fill_one::<DIM>(slot, bytes) },
            None => {
                let row = &mut work.scratch[..table.layout().slot_len()];
                table.initial.row(work.distinct.keys[i], table.dim(), row);
                // SAFETY: as above.
                unsafe { pool.load(&[slot], row) };
            }
        }
    }
}

/// Stores rows that lie one after the other.
#[inline(always)]
fn put(part: &mut TablePart, rows: impl ExactSizeIterator<Item = u32>, stored: &[u8]) {
    let bytes = stored.len() / rows.len().max(1);
    for (row, stored) in rows.zip(stored.chunks_exact(bytes.max(1))) {
        part.store(row).copy_from_slice(stored);
    }
}

/// The distinct keys that were not in the cache and now are, with the directory's slot of each.
#[inline(always)]
fn admitted(missing: &[u32], slots: &[u32]) -> impl Iterator<Item = (usize, u32)> {
    missing.iter().map(|&i| (i as usize, slots[i as usize])).filter(|&(_, slot)| slot != NO_SLOT)
}

/// The rows that come in, as they are stored or, untrained, as they begin.
fn coming(part: &TablePart, table: &Table, work: &mut Work) {
    work.fill_slots.clear();
    work.fill_bytes.clear();
    work.load_slots.clear();
    work.load_rows.clear();
    for (i, slot) in admitted(&work.missing, &work.slots) {
        let slot = part.first_slot + slot;
        match part.stored(work.rows[i]) {
            Some(bytes) => {
                work.fill_slots.push(slot);
                work.fill_bytes.extend_from_slice(bytes);
            }
            None => {
                work.load_slots.push(slot);
                let start = work.load_rows.len();
                work.load_rows.resize(start + table.layout().slot_len(), 0.0);
                initial_row(table, work.distinct.keys[i], &mut work.load_rows[start..]);
            }
        }
    }
}

dispatch! {
    fn initial_row(table: &Table, key: u64, slot: &mut [f32]) {
        table.initial.row(key, table.dim(), slot);
    }
}

dispatch! {
    /// Steps rows for which the cache had no way: read, stepped, and rounded back.
    fn conflicts(part: &mut TablePart, visit: &Visit<'_>, values: &[f32], rule: &Rule, numbering: &Numbering<'_>, work: &mut Work) {
        match visit.table.dim() {
            16 => conflicts_of::<16>(part, visit, values, rule, numbering, work),
            32 => conflicts_of::<32>(part, visit, values, rule, numbering, work),
            64 => conflicts_of::<64>(part, visit, values, rule, numbering, work),
            128 => conflicts_of::<128>(part, visit, values, rule, numbering, work),
            _ => conflicts_of::<0>(part, visit, values, rule, numbering, work),
        }
    }
}

/// `DIM` is as in [`RowLayout::known`].
#[inline(always)]
fn conflicts_of<const DIM: usize>(
    part: &mut TablePart,
    visit: &Visit<'_>,
    values: &[f32],
    rule: &Rule,
    numbering: &Numbering<'_>,
    work: &mut Work,
) {
    let Work { distinct, rows, slots, conflicts, picked, ends, scratch, load_rows: full, rounded, .. } = work;
    let layout = visit.table.layout().known::<DIM>();
    let (dim, slot_len) = (layout.dim, layout.slot_len());
    let (sum, changed) = scratch[..2 * dim].split_at_mut(dim);
    distinct.group(visit.positions, |i| slots[i] == NO_SLOT, picked, ends);
    let gradients = Gradients { values, picked, ends };
    for (first, conflicts) in (0..).step_by(TOGETHER).zip(conflicts.chunks(TOGETHER)) {
        full.resize(conflicts.len() * slot_len, 0.0);
        for (c, (&(i, _), full)) in conflicts.iter().zip(full.chunks_exact_mut(slot_len)).enumerate() {
            let (weights, state) = full.split_at_mut(dim);
            match part.stored(rows[i as usize]) {
                Some(bytes) => layout.decode(bytes, weights, state),
                None => {
                    visit.table.initial.weights(distinct.keys[i as usize], weights);
                    state.fill(0.0);
                }
            }
            rule.apply(weights, state, gradients.of(first + c, sum), changed);
        }
        rounded.resize(conflicts.len() * layout.row_bytes(), 0);
        let stepped = conflicts.iter().zip(full.chunks_exact(slot_len)).map(|(&(_, number), full)| {
            let (weights, state) = full.split_at(dim);
            (weights, state, numbering.noise(number))
        });
        layout.encode_many(stepped, rounded);
        put(part, conflicts.iter().map(|&(i, _)| rows[i as usize]), rounded);
        let stored = rounded.chunks_exact(layout.row_bytes()).zip(full.chunks_exact(slot_len));
        for (&(_, number), (stored, full)) in conflicts.iter().zip(stored) {
            if RoundingError::samples(number) {
                layout.decode_weights(stored, changed);
                part.counts.rounding_error.add(RoundingError::between(&full[..dim], changed));
            }
        }
    }
}

/// Sets rows; `positions` are the keys in this partition.
pub fn assign(
    part: &mut TablePart,
    table: &Table,
    assign: &Assign<'_>,
    positions: &[u32],
    mut numbering: Numbering<'_>,
    gpu: &mut Collected<'_>,
) {
    let &Assign { keys, weights, state, .. } = assign;
    WORK.with_borrow_mut(|work| {
        let layout = table.layout();
        let (dim, state_len) = (layout.dim, layout.state.numbers());
        let Work { distinct, scratch, .. } = work;
        distinct.fill(keys, positions);
        scratch.resize(layout.slot_len(), 0.0);
        for position in distinct.last_positions(positions) {
            let position = position as usize;
            let key = keys[position];
            let mixed = hash::mix64(key);
            let row = part.find_or_add(key, mixed);
            scratch[..dim].copy_from_slice(&weights[position * dim..][..dim]);
            match state {
                Some(state) => scratch[dim..].copy_from_slice(&state[position * state_len..][..state_len]),
                None => scratch[dim..].fill(0.0),
            }
            match (part.directory.find(row, mixed), &table.slots) {
                (Some(slot), Some(Slots::Cuda(slots))) => {
                    part.directory.set_dirty(slot);
                    gpu.put_aside(slots, part, std::iter::once(slot));
                    gpu.load(std::iter::once(slots.address(part.first_slot + slot)), scratch);
                }
                (Some(slot), Some(Slots::Host(pool))) => {
                    part.directory.set_dirty(slot);
                    // SAFETY: `part` comes from the write guard of its partition, and the slot is its own.
                    unsafe {
                        put_aside(pool, part, std::iter::once(slot));
                        pool.load(&[part.first_slot + slot], scratch);
                    }
                }
                _ => {
                    let number = if layout.is_exact() { 0 } else { numbering.take() };
                    let (weights, state) = scratch.split_at(dim);
                    encode(layout, weights, state, numbering.noise(number), part.store(row));
                }
            }
        }
    });
}

dispatch! {
    fn encode(layout: &RowLayout, weights: &[f32], state: &[f32], noise: Noise, row: &mut [u8]) {
        layout.encode(weights, state, &noise, row);
    }
}

/// Forgets rows.
pub fn remove(part: &mut TablePart, keys: &[u64], positions: &[u32]) {
    for &position in positions {
        let key = keys[position as usize];
        part.remove(key, hash::mix64(key));
    }
}
