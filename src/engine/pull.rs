//! Reading rows: a pure read under shared locks (docs/NUMERICS.md, sections 4 and 6).
//!
//! Hot path: nothing is allocated per row, there is no lock per row, and each row is copied once. Keys are worked on
//! in blocks, so that the memory of a whole block is asked for before any of it is needed; and because nobody can
//! predict whether a row is cached, lookups count with the answer instead of branching on it.
//!
//! `unsafe` lives here because pools trust their caller to hold the partitions' locks: the [`Held`] parts are
//! borrowed from read guards, and parts only name slots of their own directories.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::hint::select_unpredictable;

use super::partition::Partition;
use super::route::Route;
use super::table::Table;
use crate::cache::{Slots, ways_with};
use crate::error::{Error, Result};
use crate::numeric::format::{WeightFormat, encode_nearest};
use crate::numeric::hash;
use crate::numeric::simd::{self, Level, dispatch};
use crate::table::{KeySpace, PartView, TablePart};

/// Keys that are looked up together: their rows, which are asked for meanwhile, fit the second-level cache.
const BLOCK: usize = 128;
/// How many keys ahead the directory's sets are asked for.
const SETS_AHEAD: usize = 16;
/// How many rows ahead they are asked for, when they are read.
const ROWS_AHEAD: usize = 8;

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

/// Where a key is looked for.
#[derive(Clone, Copy, Default)]
struct Place<'a> {
    /// The tags of its set.
    tags: &'a [u32],
    /// The pool's slot of the first of them.
    slot: u32,
    partition: u32,
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

    /// Where to look for a key; the memory there is asked for.
    #[inline(always)]
    fn approach<const HASHED: bool, const CACHED: bool>(&self, key: u64) -> Place<'a> {
        if !HASHED && !CACHED {
            return Place { tags: &[], slot: 0, partition: self.route.dense(key) };
        }
        let mixed = hash::mix64(key);
        let partition = if HASHED { self.route.hashed(mixed) } else { self.route.dense(key) };
        // There is a view for every partition, and their number is a power of two.
        let view = &self.views[partition as usize & (self.views.len() - 1)];
        let set = view.tags.set(mixed);
        Place { tags: view.tags.approach(set), slot: view.first_slot + set, partition }
    }

    /// A key's row in its part, and a bit for the way that holds it, if it is cached.
    #[inline(always)]
    fn find<const HASHED: bool, const CACHED: bool>(&self, level: Level, key: u64, place: &Place<'a>) -> (u32, u32) {
        let row = match if HASHED { self.parts[place.partition as usize] } else { None } {
            None => (key >> self.route.bits()) as u32,
            Some(part) => match part.find(key) {
                Some(row) => row,
                None => return (ABSENT, 0),
            },
        };
        (row, if CACHED { ways_with(level, place.tags, row) } else { 0 })
    }

    /// Where the stored form of a row is, and what says whether there is one, if that is not known: only to ask for the memory.
    #[inline(always)]
    fn addresses<const HASHED: bool>(&self, partition: u32, row: u32) -> (*const u8, Option<*const u8>) {
        match if HASHED { self.parts[partition as usize] } else { None } {
            None => self.views[partition as usize & (self.views.len() - 1)].addresses(row, self.stride),
            // Any memory will do that is there already.
            Some(_) if row == ABSENT => (self.views.as_ptr().cast(), None),
            Some(part) => (part.address(row), None),
        }
    }

    /// Asks for the stored form of a row that is read soon.
    #[inline(always)]
    fn prefetch(&self, partition: u32, row: u32) {
        let (row, _) = match self.parts.is_empty() {
            true => self.addresses::<false>(partition, row),
            false => self.addresses::<true>(partition, row),
        };
        for line in 0..=self.stride / 64 {
            simd::prefetch(row.wrapping_add(64 * line));
        }
    }

    /// The stored form of a row, if it has one.
    #[inline(always)]
    fn stored(&self, partition: u32, row: u32) -> Option<&'a [u8]> {
        match self.parts.get(partition as usize) {
            None => self.views[partition as usize].stored(row, self.stride),
            Some(_) if row == ABSENT => None,
            Some(part) => part.and_then(|part| part.stored(row)),
        }
    }

    /// The weights of a row that are stored at full precision.
    #[inline(always)]
    fn exact(&self, partition: u32, row: u32) -> Option<&'a [f32]> {
        let layout = self.table.layout();
        if !layout.is_exact() {
            return None;
        }
        // Rows of f32 start at a multiple of four bytes: regions are aligned, strides and keys are multiples.
        self.stored(partition, row).map(|bytes| bytemuck::cast_slice(&bytes[..4 * layout.dim]))
    }

    /// Reads a row that is not in the cache.
    #[inline(always)]
    fn read(&self, key: u64, partition: u32, row: u32, out: &mut [f32]) {
        match self.stored(partition, row) {
            Some(bytes) => self.table.layout().decode_weights(bytes, out),
            None => self.table.initial.weights(key, out),
        }
    }
}

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

    /// The next to be read of the keys that are not cached. The row of one further on is asked for.
    #[inline(always)]
    fn next_other(&self, held: &Held<'_>, number: usize) -> Other {
        let ask = |Other { partition, row, .. }| held.prefetch(partition, row);
        if number == 0 {
            (1..self.others.min(ROWS_AHEAD)).for_each(|number| ask(self.other(number)));
        }
        if number + ROWS_AHEAD < self.others {
            ask(self.other(number + ROWS_AHEAD));
        }
        self.other(number)
    }
}

/// Reads the rows of `keys` into `out`. Returns how many were in the cache.
///
/// Each step over a block is a function of its own: together they would not fit the registers.
pub fn rows(held: &Held<'_>, keys: &[u64], out: &mut [f32]) -> u64 {
    let mut block = Block::new();
    let mut hits = 0;
    for (keys, out) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK * held.table.dim())) {
        find_block(held, keys, &mut block);
        if let Some(Slots::Host(pool)) = &held.table.slots {
            let (slots, to) = block.cached();
            // SAFETY: `held` borrows from read guards of these partitions, and the slots are of their parts.
            unsafe { pool.gather(slots, to, out) };
        }
        read_others(held, keys, &block, out);
        hits += block.cached as u64;
    }
    hits
}

/// Reads the rows of `keys` into `out` in another format. Where that is the table's own, rows that are not in the cache
/// are handed out as they are stored; all others are rounded to the nearest. Returns how many were in the cache.
pub fn rows_as(format: WeightFormat, held: &Held<'_>, keys: &[u64], out: &mut [u8]) -> u64 {
    let mut block = Block::new();
    let mut hits = 0;
    for (keys, out) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK * format.bytes(held.table.dim()))) {
        find_block(held, keys, &mut block);
        if let Some(Slots::Host(pool)) = &held.table.slots {
            let (slots, to) = block.cached();
            // SAFETY: as in `rows`.
            unsafe { pool.encode(format, slots, to, out) };
        }
        WORK.with_borrow_mut(|work| encode_others(format, held, keys, &block, &mut work.row, out));
        hits += block.cached as u64;
    }
    hits
}

dispatch! {
    #[inline(never)]
    fn find_block<'a>(held: &Held<'a>, keys: &[u64], block: &mut Block<'a>) {
        match (held.parts.is_empty(), held.table.slots.is_some()) {
            (true, true) => find_keys::<false, true>(held, keys, block),
            (true, false) => find_keys::<false, false>(held, keys, block),
            (false, true) => find_keys::<true, true>(held, keys, block),
            (false, false) => find_keys::<true, false>(held, keys, block),
        }
    }
}

/// `HASHED` is whether the table is, `CACHED` whether it has a cache.
#[inline(always)]
fn find_keys<'a, const HASHED: bool, const CACHED: bool>(held: &Held<'a>, keys: &[u64], block: &mut Block<'a>) {
    let level = simd::level();
    // Cached rows are asked for when they are gathered: there is nothing to ask for here, so any memory will do that is near.
    let near = held.views.as_ptr().cast::<u8>();
    // The line more that some rows lie on costs less than asking for it every time.
    let lines = held.stride.div_ceil(64);
    for (place, &key) in block.places.iter_mut().zip(keys).take(SETS_AHEAD) {
        *place = held.approach::<HASHED, CACHED>(key);
    }
    // Both counts stay below `BLOCK` where they are used, and the remainders tell the compiler so.
    let (mut cached, mut others) = (0, 0);
    for (i, &key) in keys.iter().enumerate() {
        if let Some(&ahead) = keys.get(i + SETS_AHEAD) {
            block.places[(i + SETS_AHEAD) % BLOCK] = held.approach::<HASHED, CACHED>(ahead);
        }
        let place = block.places[i % BLOCK];
        let (row, way) = held.find::<HASHED, CACHED>(level, key, &place);
        let slot = place.slot.wrapping_add(way.trailing_zeros());
        // Written in either case, and overwritten by the next key unless counted.
        block.slots[cached % BLOCK] = slot;
        block.slots_to[cached % BLOCK] = i as u32;
        block.rows[others % BLOCK] = row;
        block.rows_to[others % BLOCK] = i as u32;
        cached += usize::from(way != 0);
        others += usize::from(way == 0);
        let (row, stored) = held.addresses::<HASHED>(place.partition, row);
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

dispatch! {
    #[inline(never)]
    fn read_others(held: &Held<'_>, keys: &[u64], block: &Block<'_>, out: &mut [f32]) {
        match held.table.dim() {
            16 => read_rows::<16>(held, keys, block, out),
            32 => read_rows::<32>(held, keys, block, out),
            64 => read_rows::<64>(held, keys, block, out),
            128 => read_rows::<128>(held, keys, block, out),
            _ => read_rows::<0>(held, keys, block, out),
        }
    }
}

/// `DIM` is the number of weights, or 0 where it is not one of the usual ones: loops of a known length are unrolled.
#[inline(always)]
fn read_rows<const DIM: usize>(held: &Held<'_>, keys: &[u64], block: &Block<'_>, out: &mut [f32]) {
    let dim = if DIM > 0 { DIM } else { held.table.dim() };
    for number in 0..block.others {
        let other = block.next_other(held, number);
        let i = other.key as usize;
        held.read(keys[i], other.partition, other.row, &mut out[i * dim..][..dim]);
    }
}

dispatch! {
    #[inline(never)]
    fn encode_others(
        format: WeightFormat,
        held: &Held<'_>,
        keys: &[u64],
        block: &Block<'_>,
        scratch: &mut Vec<f32>,
        out: &mut [u8]
    ) {
        use WeightFormat::Int8Symmetric as Int8;
        match (format, held.table.dim()) {
            (Int8, 16) => encode_rows::<16>(Int8, held, keys, block, scratch, out),
            (Int8, 32) => encode_rows::<32>(Int8, held, keys, block, scratch, out),
            (Int8, 64) => encode_rows::<64>(Int8, held, keys, block, scratch, out),
            (Int8, 128) => encode_rows::<128>(Int8, held, keys, block, scratch, out),
            _ => encode_rows::<0>(format, held, keys, block, scratch, out),
        }
    }
}

/// `DIM` is as in [`read_rows`]: rows of a known size are copied without calling `memcpy`, which costs as much as the copy.
#[inline(always)]
fn encode_rows<const DIM: usize>(
    format: WeightFormat,
    held: &Held<'_>,
    keys: &[u64],
    block: &Block<'_>,
    scratch: &mut Vec<f32>,
    out: &mut [u8],
) {
    let dim = if DIM > 0 { DIM } else { held.table.dim() };
    let bytes = format.bytes(dim);
    scratch.resize(dim, 0.0);
    for number in 0..block.others {
        let other = block.next_other(held, number);
        read_as(format, held, other, keys, scratch, &mut out[other.key as usize * bytes..][..bytes]);
    }
}

/// Reads a row that is not in the cache in another format. `scratch` has room for a row.
#[inline(always)]
fn read_as(format: WeightFormat, held: &Held<'_>, other: Other, keys: &[u64], scratch: &mut [f32], out: &mut [u8]) {
    match held.stored(other.partition, other.row) {
        Some(stored) if format == held.table.layout().weights => out.copy_from_slice(&stored[..out.len()]),
        // Answers in f32 are aligned: it was checked.
        _ if format == WeightFormat::F32 => {
            held.read(keys[other.key as usize], other.partition, other.row, bytemuck::cast_slice_mut(out));
        }
        _ => {
            held.read(keys[other.key as usize], other.partition, other.row, scratch);
            format.encode_nearest(scratch, out);
        }
    }
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
        let (dim, bytes) = (held.table.dim(), format.bytes(held.table.dim()));
        WORK.with_borrow_mut(|work| {
            work.row.resize(dim, 0.0);
            for &other in &found.others {
                read_as(format, held, other, keys, &mut work.row, &mut out[other.key as usize * bytes..][..bytes]);
            }
        });
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
        if let (Some(Slots::Host(pool)), true) = (&held.table.slots, !found.slots.is_empty()) {
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
            let row = match held.exact(other.partition, other.row) {
                Some(row) => &row[..dim],
                None => {
                    held.read(bags.keys[other.key as usize], other.partition, other.row, &mut scratch[..dim]);
                    &scratch[..dim]
                }
            };
            match row.as_array::<DIM>() {
                Some(row) if DIM > 0 => add_other(bags, other, row, &mut known),
                _ => add_other(bags, other, row, out),
            }
        }
        out[..DIM].copy_from_slice(&known);
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
    match (at, table.pool(), stored) {
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

/// Reads the weights of rows in the form in which their table stores them, all but those of cached rows that have left it
/// behind: their slots are returned, with the places of their keys. A row that was never stored is rounded to the nearest.
/// Counts nothing.
pub fn stored<'a>(
    table: &Table,
    keys: &[u64],
    part: impl Fn(u64) -> Option<&'a TablePart>,
    out: &mut [u8],
) -> Vec<(u32, usize)> {
    let layout = table.layout();
    let bytes = layout.weights.bytes(layout.dim);
    let mut weights = vec![0.0; layout.dim];
    let mut dirty = Vec::new();
    for ((i, &key), out) in keys.iter().enumerate().zip(out.chunks_exact_mut(bytes)) {
        let Some(part) = part(key) else { continue };
        let row = part.find(key);
        let cached = row.and_then(|row| part.directory.find(row, hash::mix64(key)));
        match (cached.filter(|&at| part.directory.is_dirty(at)), row.and_then(|row| part.stored(row))) {
            (Some(at), _) => dirty.push((part.first_slot + at, i)),
            (None, Some(stored)) => out.copy_from_slice(&stored[..bytes]),
            (None, None) => {
                table.initial.weights(key, &mut weights);
                encode_nearest(layout.weights, &weights, out);
            }
        }
    }
    dirty
}

/// Reads the weights of cached rows that differ from their stored form, rounded to the nearest.
///
/// # Safety
/// The caller holds the partitions of these slots, and they are the table's.
pub unsafe fn stored_anew(table: &Table, dirty: &[(u32, usize)], out: &mut [u8]) {
    let Some(pool) = table.pool() else { return };
    let layout = table.layout();
    let (len, bytes) = (layout.slot_len(), layout.weights.bytes(layout.dim));
    let slots: Vec<u32> = dirty.iter().map(|&(slot, _)| slot).collect();
    let mut rows = vec![0.0; slots.len() * len];
    // SAFETY: the caller's promise.
    unsafe { pool.read(&slots, &mut rows) };
    for (&(_, i), row) in dirty.iter().zip(rows.chunks_exact(len)) {
        encode_nearest(layout.weights, &row[..layout.dim], &mut out[i * bytes..][..bytes]);
    }
}

/// Feeds the state of a partition, the cached rows of these tables included, to `write`.
pub fn digest(partition: &Partition, tables: &[std::sync::Arc<Table>], mut write: impl FnMut(&[u8])) {
    write(&partition.write_backs.to_le_bytes());
    for table in tables {
        let Some(part) = partition.part(table.id) else { continue };
        write(table.name().as_bytes());
        part.digest(&mut write);
        let Some(pool) = table.pool() else { continue };
        let taken = |&at: &u32| part.directory.row_at(at).is_some();
        let slots: Vec<u32> = (0..part.directory.slots()).filter(taken).map(|at| part.first_slot + at).collect();
        let mut rows = vec![0.0; slots.len() * pool.slot_len()];
        // SAFETY: `partition` is borrowed from its read guard, and the slots are of its part.
        unsafe { pool.read(&slots, &mut rows) };
        write(bytemuck::cast_slice(&rows));
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
