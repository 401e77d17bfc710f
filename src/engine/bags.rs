//! Reading bags of rows as one row each; and looking keys up for a GPU, which reads the cached ones itself.
//!
//! Bags add cached rows first and the others after them, so keys are looked up in blocks, sorted into the two: the memory of a whole
//! block is asked for before any of it is needed. Nobody can predict whether a row is cached, so lookups count with the answer
//! instead of branching on it.
//!
//! `unsafe` lives here for the same reason as in `pull.rs`.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::hint::select_unpredictable;

use super::held::{Held, Kind, Place};
use super::pull::Reader;
use crate::numeric::WeightFormat;
use crate::numeric::simd::{self, dispatch};

/// Keys that are looked up together: their rows, which are asked for meanwhile, fit the second-level cache.
const BLOCK: usize = 128;
/// How many keys ahead the directory's sets are asked for.
const SETS_AHEAD: usize = 16;
/// How many rows ahead they are asked for, when they are read.
const ROWS_AHEAD: usize = 8;
/// How many keys ahead rows are asked for whose place is known at once.
const KEYS_AHEAD: usize = 32;

/// What is known of a block of keys.
struct Block<'a> {
    places: [Place<'a>; BLOCK],
    /// The slots of the keys that are cached, and which keys these are.
    slots: [u32; BLOCK],
    slots_to: [u32; BLOCK],
    cached: usize,
    /// The rows of those that are not, and which keys these are.
    rows: [u32; BLOCK],
    rows_to: [u32; BLOCK],
    others: usize,
}

impl Block<'_> {
    fn new() -> Self {
        Block {
            places: [Place::default(); BLOCK],
            slots: [0; BLOCK],
            slots_to: [0; BLOCK],
            cached: 0,
            rows: [0; BLOCK],
            rows_to: [0; BLOCK],
            others: 0,
        }
    }

    /// The slots of the keys that are cached, and which keys these are.
    fn cached(&self) -> (&[u32], &[u32]) {
        (&self.slots[..self.cached], &self.slots_to[..self.cached])
    }

    /// One of the keys that are not cached.
    #[inline(always)]
    fn other(&self, number: usize) -> Other {
        let to = self.rows_to[number % BLOCK];
        Other { key: to, bag: 0, partition: self.places[to as usize % BLOCK].partition, row: self.rows[number % BLOCK] }
    }
}

dispatch! {
    #[inline(never)]
    fn find_block<'a>(held: &Held<'a>, keys: &[u64], block: &mut Block<'a>) {
        // A constant each: the loop is compiled for every kind.
        match (held.kind().hashed, held.kind().cached) {
            (false, true) => find_keys(held, Kind { hashed: false, cached: true }, keys, block),
            (false, false) => find_keys(held, Kind { hashed: false, cached: false }, keys, block),
            (true, true) => find_keys(held, Kind { hashed: true, cached: true }, keys, block),
            (true, false) => find_keys(held, Kind { hashed: true, cached: false }, keys, block),
        }
    }
}

#[inline(always)]
fn find_keys<'a>(held: &Held<'a>, kind: Kind, keys: &[u64], block: &mut Block<'a>) {
    let level = simd::level();
    // Cached rows are asked for when they are gathered: there is nothing to ask for here, so any memory will do that is near.
    let near = held.views.as_ptr().cast::<u8>();
    let lines = held.row_lines;
    for (place, &key) in block.places.iter_mut().zip(keys).take(SETS_AHEAD) {
        *place = held.approach(kind, key);
    }
    // Both counts stay below `BLOCK` where they are used, and the remainders tell the compiler so.
    let (mut cached, mut others) = (0, 0);
    for (i, &key) in keys.iter().enumerate() {
        if let Some(&ahead) = keys.get(i + SETS_AHEAD) {
            block.places[(i + SETS_AHEAD) % BLOCK] = held.approach(kind, ahead);
        }
        let place = block.places[i % BLOCK];
        let (row, way) = held.find(kind, level, key, &place);
        let slot = place.slot.wrapping_add(way.trailing_zeros());
        // Written in either case, and overwritten by the next key unless counted.
        block.slots[cached % BLOCK] = slot;
        block.slots_to[cached % BLOCK] = i as u32;
        block.rows[others % BLOCK] = row;
        block.rows_to[others % BLOCK] = i as u32;
        cached += usize::from(way != 0);
        others += usize::from(way == 0);
        let (row, stored) = held.addresses(kind.hashed, place.partition, row);
        if let Some(stored) = stored {
            simd::prefetch_early(select_unpredictable(way != 0, near, stored));
        }
        let row = select_unpredictable(way != 0, near, row);
        for line in 0..lines {
            simd::prefetch_early(row.wrapping_add(64 * line));
        }
    }
    (block.cached, block.others) = (cached, others);
}

/// What is known of the keys of a job.
#[derive(Default)]
pub struct Found {
    /// The slots of the keys that are cached, and which keys these are.
    pub cached: Vec<(u32, u32)>,
    /// The rows of those that are not.
    others: Vec<Other>,
}

/// Looks keys up.
pub fn find(held: &Held<'_>, keys: &[u64]) -> Found {
    let mut block = Block::new();
    let mut found = Found::default();
    for (first, keys) in (0..).step_by(BLOCK).zip(keys.chunks(BLOCK)) {
        find_block(held, keys, &mut block);
        let (slots, to) = block.cached();
        found.cached.extend(slots.iter().zip(to).map(|(&slot, &to)| (slot, first + to)));
        let others = (0..block.others).map(|number| block.other(number));
        found.others.extend(others.map(|other| Other { key: first + other.key, ..other }));
    }
    found
}

dispatch! {
    /// Reads the rows of `keys` that are not in the cache.
    pub fn read_found(format: WeightFormat, held: &Held<'_>, keys: &[u64], found: &Found, out: &mut [u8]) {
        let bytes = format.bytes(held.table.dim());
        let reader = Reader::new(format, held.table);
        for &Other { key, partition, row, .. } in &found.others {
            let out = &mut out[key as usize * bytes..][..bytes];
            reader.read_cold(held, keys[key as usize], held.stored(partition, row), out);
        }
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

impl<'a> Bags<'a> {
    /// These bags in runs of whole ones, of up to so many keys and bags each, but at least one bag.
    pub fn runs(self, most: usize) -> impl Iterator<Item = Bags<'a>> {
        let mut first = 0;
        std::iter::from_fn(move || {
            let rest = &self.offsets[first..];
            let base = *rest.first()?;
            let full = |&&offset: &&u64| offset - base < most as u64;
            let count = rest.iter().take_while(full).take(most).count().max(1);
            // The last that begins within the limit may end beyond it.
            let fits = self.end_of(first + count - 1) - (base - self.base) as usize <= most;
            let count = if fits { count } else { (count - 1).max(1) };
            let keys = (base - self.base) as usize..self.end_of(first + count - 1);
            let run = Bags {
                keys: &self.keys[keys.clone()],
                weights: self.weights.map(|weights| &weights[keys]),
                offsets: &rest[..count],
                base,
                mean: self.mean,
            };
            first += count;
            Some(run)
        })
    }

    /// Where a bag ends among the keys.
    #[inline(always)]
    fn end_of(&self, bag: usize) -> usize {
        self.offsets.get(bag + 1).map_or(self.keys.len(), |&end| (end - self.base) as usize)
    }
}

/// What is known of the keys of some bags.
#[derive(Default)]
pub struct FoundBags {
    /// The slots of the keys that are cached, the bags these are in, and their factors, if they have any.
    pub slots: Vec<u32>,
    /// See `slots`.
    pub slot_bags: Vec<u32>,
    /// See `slots`.
    pub slot_factors: Vec<f32>,
    others: Vec<Other>,
}

/// The buffers of one thread.
#[derive(Default)]
struct Work {
    found: FoundBags,
    row: Vec<f32>,
}

/// A key whose row is not in the cache.
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
pub fn pooled(held: &Held<'_>, bags: &Bags<'_>, mut out: &mut [f32]) -> u64 {
    let dim = held.table.dim();
    if !held.kind().hashed && !held.kind().cached && held.table.layout().is_exact() {
        WORK.with_borrow_mut(|work| {
            work.row.resize(dim, 0.0);
            sum_in_order(held, bags, &mut work.row, out);
        });
        return 0;
    }
    let run_into = |run: Bags<'_>| {
        let (mine, rest) = std::mem::take(&mut out).split_at_mut(run.offsets.len() * dim);
        out = rest;
        WORK.with_borrow_mut(|work| {
            work.row.resize(dim, 0.0);
            read_pooled(held, &run, mine, work)
        })
    };
    // So few that their rows are still near when all of them have been asked for.
    bags.runs(BLOCK).map(run_into).sum()
}

dispatch! {
    fn read_pooled(held: &Held<'_>, bags: &Bags<'_>, out: &mut [f32], work: &mut Work) -> u64 {
        let Work { found, row, .. } = work;
        out.fill(0.0);
        find_bags(held, bags, found);
        if let (Some(pool), true) = (held.pool(), !found.slots.is_empty()) {
            let factors = bags.weights.map(|_| found.slot_factors.as_slice());
            // SAFETY: `held` borrows from read guards of these partitions, and the slots are of their parts.
            unsafe { pool.gather_pooled(&found.slots, &found.slot_bags, factors, out) };
        }
        match held.table.dim() {
            16 => add_others::<16>(held, bags, &found.others, row, out),
            32 => add_others::<32>(held, bags, &found.others, row, out),
            64 => add_others::<64>(held, bags, &found.others, row, out),
            _ => add_others::<0>(held, bags, &found.others, row, out),
        }
        divide(bags, held.table.dim(), out);
        found.slots.len() as u64
    }
}

dispatch! {
    /// Bags of a dense table that stores full-precision rows: where they are is known at once, and all come in order.
    fn sum_in_order(held: &Held<'_>, bags: &Bags<'_>, scratch: &mut [f32], out: &mut [f32]) {
        match (held.all_exact(), held.table.dim()) {
            (Some(rows), 16) => sum_known::<16, 16>(held, &rows, bags, out),
            (Some(rows), 32) => sum_known::<32, 32>(held, &rows, bags, out),
            (Some(rows), 64) => sum_known::<64, 32>(held, &rows, bags, out),
            (Some(rows), 128) => sum_known::<128, 32>(held, &rows, bags, out),
            _ => sum_rows(held, bags, scratch, out),
        }
        divide(bags, held.table.dim(), out);
    }
}

/// Bags of rows of `DIM` weights, all of which are there: `rows` are those of each partition. Of a bag so many columns (`WIDE`) are added up
/// at a time that their sums stay in registers.
#[inline(always)]
fn sum_known<const DIM: usize, const WIDE: usize>(held: &Held<'_>, rows: &[&[f32]], bags: &Bags<'_>, out: &mut [f32]) {
    let stride = held.exact_stride();
    // There are rows for every partition, and their number is a power of two.
    let last = rows.len() - 1;
    let at = |key: u64, column: usize| {
        let (partition, row) = held.dense(key);
        (rows[partition as usize & last], row as usize * stride + column)
    };
    let mut start = 0;
    for (bag, out) in out.chunks_exact_mut(DIM).enumerate() {
        let end = bags.end_of(bag);
        for (block, out) in out.as_chunks_mut::<WIDE>().0.iter_mut().enumerate() {
            let mut sum = [0.0; WIDE];
            for key in start..end {
                if block == 0
                    && let Some(&ahead) = bags.keys.get(key + KEYS_AHEAD)
                {
                    let (rows, at) = at(ahead, 0);
                    simd::prefetch_lines::<true>(rows.as_ptr().wrapping_add(at).cast(), 0, held.row_lines);
                }
                let (rows, at) = at(bags.keys[key], block * WIDE);
                let row: &[f32; WIDE] = rows[at..].first_chunk().expect("a row has all its columns");
                match bags.weights {
                    Some(weights) => sum.iter_mut().zip(row).for_each(|(sum, w)| *sum += weights[key] * w),
                    None => sum.iter_mut().zip(row).for_each(|(sum, w)| *sum += w),
                }
            }
            *out = sum;
        }
        start = end;
    }
}

/// Bags of rows of any length, some of which may never have been stored. `scratch` has room for a row.
#[inline(always)]
fn sum_rows(held: &Held<'_>, bags: &Bags<'_>, scratch: &mut [f32], out: &mut [f32]) {
    let dim = held.table.dim();
    out.fill(0.0);
    let mut start = 0;
    for (bag, out) in out.chunks_exact_mut(dim).enumerate() {
        let end = bags.end_of(bag);
        for key in start..end {
            if let Some(&ahead) = bags.keys.get(key + KEYS_AHEAD) {
                let (partition, row) = held.dense(ahead);
                simd::prefetch_lines::<true>(held.addresses(false, partition, row).0, 0, held.row_lines);
            }
            let (partition, row) = held.dense(bags.keys[key]);
            let other = Other { key: key as u32, bag: bag as u32, partition, row };
            add_other(bags, other, exact_row(held, bags, other, scratch), out);
        }
        start = end;
    }
}

/// Looks up the keys of bags.
pub fn find_bags(held: &Held<'_>, bags: &Bags<'_>, found: &mut FoundBags) {
    found.slots.clear();
    found.slot_bags.clear();
    found.slot_factors.clear();
    found.others.clear();
    let mut block = Block::new();
    let mut bag_of = [0u32; BLOCK];
    let (mut bag, mut end) = (0, bags.end_of(0));
    for (first, keys) in (0..).step_by(BLOCK).zip(bags.keys.chunks(BLOCK)) {
        find_block(held, keys, &mut block);
        for (i, bag_of) in (first..).zip(&mut bag_of[..keys.len()]) {
            while i >= end {
                bag += 1;
                end = bags.end_of(bag);
            }
            *bag_of = bag as u32;
        }
        let (slots, to) = block.cached();
        found.slots.extend_from_slice(slots);
        found.slot_bags.extend(to.iter().map(|&to| bag_of[to as usize]));
        if let Some(weights) = bags.weights {
            found.slot_factors.extend(to.iter().map(|&to| weights[first + to as usize]));
        }
        let others = (0..block.others).map(|number| block.other(number));
        found.others.extend(others.map(|other| Other {
            key: first as u32 + other.key,
            bag: bag_of[other.key as usize],
            ..other
        }));
    }
}

dispatch! {
    /// Reads the rows of bags that are not in the cache, one after the other.
    pub fn read_found_in_bags(held: &Held<'_>, bags: &Bags<'_>, found: &FoundBags, rows: &mut Vec<f32>) {
        let dim = held.table.dim();
        rows.resize(found.others.len() * dim, 0.0);
        for (other, row) in found.others.iter().zip(rows.chunks_exact_mut(dim)) {
            held.read(bags.keys[other.key as usize], other.partition, other.row, row);
        }
    }
}

dispatch! {
    /// Adds those rows to what the bags have of cached rows.
    pub fn finish_bags(bags: &Bags<'_>, found: &FoundBags, rows: &[f32], dim: usize, out: &mut [f32]) {
        for (&other, row) in found.others.iter().zip(rows.chunks_exact(dim)) {
            add_other(bags, other, row, &mut out[other.bag as usize * dim..][..dim]);
        }
        divide(bags, dim, out);
    }
}

/// Adds rows that are not in the cache to their bags. `DIM` is the number of weights where that is a usual one, or 0: the sum
/// of a bag whose length is known stays in registers. `scratch` has room for a row.
#[inline(always)]
fn add_others<const DIM: usize>(
    held: &Held<'_>,
    bags: &Bags<'_>,
    others: &[Other],
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let dim = if DIM > 0 { DIM } else { held.table.dim() };
    let mut number = 0;
    for of_bag in others.chunk_by(|a, b| a.bag == b.bag) {
        let out = &mut out[of_bag[0].bag as usize * dim..][..dim];
        let mut known = [0.0; DIM];
        known.copy_from_slice(&out[..DIM]);
        for &other in of_bag {
            if let Some(ahead) = others.get(number + ROWS_AHEAD) {
                held.prefetch(ahead.partition, ahead.row);
            }
            number += 1;
            let row = exact_row(held, bags, other, &mut scratch[..dim]);
            match row.as_array::<DIM>() {
                Some(row) if DIM > 0 => add_other(bags, other, row, &mut known),
                _ => add_other(bags, other, row, out),
            }
        }
        out[..DIM].copy_from_slice(&known);
    }
}

/// A row at full precision: as it is stored, or worked out in `scratch`.
#[inline(always)]
fn exact_row<'r>(held: &Held<'r>, bags: &Bags<'_>, other: Other, scratch: &'r mut [f32]) -> &'r [f32] {
    match held.exact(other.partition, other.row) {
        Some(row) => &row[..scratch.len()],
        None => {
            held.read(bags.keys[other.key as usize], other.partition, other.row, scratch);
            scratch
        }
    }
}

/// Adds a row, times its factor if it has one.
#[inline(always)]
fn add_other(bags: &Bags<'_>, other: Other, row: &[f32], sum: &mut [f32]) {
    match bags.weights {
        Some(weights) => sum.iter_mut().zip(row).for_each(|(sum, w)| *sum += weights[other.key as usize] * w),
        None => sum.iter_mut().zip(row).for_each(|(sum, w)| *sum += w),
    }
}

/// Makes means of sums, where they are asked for.
#[inline(always)]
fn divide(bags: &Bags<'_>, dim: usize, out: &mut [f32]) {
    if !bags.mean {
        return;
    }
    let mut start = 0;
    for (bag, out) in out.chunks_exact_mut(dim).enumerate() {
        let end = bags.end_of(bag);
        if end > start {
            out.iter_mut().for_each(|out| *out /= (end - start) as f32);
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_all_bags_whole_and_in_order(
            sizes in prop::collection::vec(prop_oneof![Just(0usize), 1usize..9, 20usize..40], 0..40),
            most in 1usize..30,
        ) {
            let offsets: Vec<u64> =
                sizes.iter().scan(0, |end, &size| Some(std::mem::replace(end, *end + size as u64))).collect();
            let keys: Vec<u64> = (0..sizes.iter().sum::<usize>() as u64).collect();
            let weights: Vec<f32> = keys.iter().map(|&key| key as f32).collect();
            let bags = Bags { keys: &keys, weights: Some(&weights), offsets: &offsets, base: 0, mean: false };
            let (mut seen_keys, mut seen_sizes) = (Vec::new(), Vec::new());
            for run in bags.runs(most) {
                prop_assert!(run.keys.len() <= most || run.offsets.len() == 1);
                prop_assert!(run.weights.is_some_and(|weights| weights.iter().zip(run.keys).all(|(&w, &k)| w == k as f32)));
                let mut start = 0;
                for bag in 0..run.offsets.len() {
                    seen_sizes.push(run.end_of(bag) - start);
                    start = run.end_of(bag);
                }
                seen_keys.extend_from_slice(run.keys);
            }
            prop_assert_eq!(seen_keys, keys);
            prop_assert_eq!(seen_sizes, sizes);
        }
    }
}
