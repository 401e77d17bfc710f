//! Reading rows: a pure read under shared locks (docs/NUMERICS.md, sections 4 and 6).
//!
//! Hot path: nothing is allocated per row, there is no lock per row, and each row is copied once. What a key needs is asked for some
//! keys before it is needed.
//!
//! `unsafe` lives here because pools trust their caller to hold the partitions' locks: the [`Held`] parts are
//! borrowed from read guards, and parts only name slots of their own directories.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::hint::select_unpredictable;

use super::held::{Held, Kind, Place};
use super::table::Table;
use crate::cache::HostPool;
use crate::numeric::format::{WeightFormat, decode_rows, encode_nearest};
use crate::numeric::simd::{self, Level, dispatch};
use crate::numeric::{Rounding, RowToRound};

/// Keys that are read together: first those that are cached, then the others.
const GROUP: usize = 16;
/// How many groups ahead the bits are asked for that say which keys of a dense table are cached.
const BITS_AHEAD: usize = 3;
/// How many groups ahead the directory's sets are asked for, and the rows for which it is not needed.
const SETS_AHEAD: usize = 2;
/// How many groups ahead the other rows are asked for.
const ROWS_AHEAD: usize = 1;
/// Room for what is known of groups ahead, and of the one that is read.
const RING: usize = 4;
const _: () = assert!(ROWS_AHEAD < SETS_AHEAD && SETS_AHEAD < RING && SETS_AHEAD < BITS_AHEAD);

thread_local! {
    static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Reads the rows of `keys` into `out`. Where the table stores them in this format, rows that are not in the cache are handed out
/// as they are stored; all others are rounded to the nearest. Returns how many were in the cache. For f32 `out` is aligned.
pub fn rows(format: WeightFormat, held: &Held<'_>, keys: &[u64], out: &mut [u8]) -> u64 {
    let codes = format == WeightFormat::Int8Symmetric && held.table.layout().weights == format;
    match (codes, format, held.table.dim()) {
        (true, _, 16) => rows_of::<16, true>(format, held, keys, out),
        (true, _, 32) => rows_of::<32, true>(format, held, keys, out),
        (true, _, 64) => rows_of::<64, true>(format, held, keys, out),
        (true, _, 128) => rows_of::<128, true>(format, held, keys, out),
        (_, WeightFormat::F32, 16) => rows_of::<16, false>(format, held, keys, out),
        (_, WeightFormat::F32, 32) => rows_of::<32, false>(format, held, keys, out),
        (_, WeightFormat::F32, 64) => rows_of::<64, false>(format, held, keys, out),
        (_, WeightFormat::F32, 128) => rows_of::<128, false>(format, held, keys, out),
        _ => rows_of::<0, false>(format, held, keys, out),
    }
}

/// `DIM` is the number of weights of rows that are asked for in f32, or as int8 codes where they are stored so (`CODES`); or 0 where it is
/// not one of the usual ones, or they are asked for in another format.
fn rows_of<const DIM: usize, const CODES: bool>(
    format: WeightFormat,
    held: &Held<'_>,
    keys: &[u64],
    out: &mut [u8],
) -> u64 {
    let reader = Reader::new(format, held.table);
    let pool = held.pool();
    match (held.kind().hashed, pool.is_some()) {
        (false, false) => read_rows::<DIM, CODES, false, false>(held, pool, &reader, keys, out),
        (false, true) => read_rows::<DIM, CODES, false, true>(held, pool, &reader, keys, out),
        (true, false) => read_rows::<DIM, CODES, true, false>(held, pool, &reader, keys, out),
        (true, true) => read_rows::<DIM, CODES, true, true>(held, pool, &reader, keys, out),
    }
}

/// Where the rows of keys are. What is needed to find one is asked for some groups before it is read.
///
/// Nobody can predict whether a row is cached. So rows are asked for and read a group at a time, the cached ones first: who branches on it is
/// wrong once in a group and not every other row. Of a dense table a bit says it beforehand, and the directory is only asked about rows
/// that it has; of a hashed one it is known when the directory was asked, and nothing branches on it before.
///
/// There are no closures and no calls in here: only what is inlined is compiled for the processor's instructions, and what a call
/// returns is written in pieces and read as a whole, for which the processor waits. What is known of the keys ahead is kept apart
/// from all else, which then stays in registers.
struct Finder<'a, 'k, const DIM: usize, const HASHED: bool, const CACHED: bool> {
    held: &'k Held<'a>,
    pool: Option<&'a HostPool>,
    level: Level,
    keys: &'k [u64],
}

/// What is known of the keys ahead.
struct Ahead<'a> {
    /// Where each key of a group is looked for; or of a dense table those that are cached, in the order in which they are read.
    places: [[Place<'a>; GROUP]; RING],
    found: [Found; RING],
}

/// A group whose rows were found.
#[derive(Clone, Copy, Default)]
struct Found {
    /// The keys in the order in which they are read: those that are cached, and then the others from the last to the first.
    order: [u8; GROUP],
    hits: usize,
    /// The slots of those that are cached, in that order.
    slots: [u32; GROUP],
    /// The rows of the keys of a hashed table.
    rows: [u32; GROUP],
}

impl Found {
    /// Puts a member of a group of so many to the cached ones or to the others, `hits` being the cached ones before it. To be called for one
    /// member after the other.
    #[inline(always)]
    fn sort(&mut self, member: usize, len: usize, hits: usize) {
        // Into both lists; the one that it is not in is written over by the next, or by the last of the other.
        self.order[hits % GROUP] = member as u8;
        self.order[(len - 1 + hits - member) % GROUP] = member as u8;
    }
}

impl<'a, 'k, const DIM: usize, const HASHED: bool, const CACHED: bool> Finder<'a, 'k, DIM, HASHED, CACHED> {
    const KIND: Kind = Kind { hashed: HASHED, cached: CACHED };

    #[inline(always)]
    fn new(held: &'k Held<'a>, pool: Option<&'a HostPool>, keys: &'k [u64]) -> (Self, Ahead<'a>) {
        let finder = Finder { held, pool, level: simd::level(), keys };
        let mut ahead = Ahead { places: [[Place::default(); GROUP]; RING], found: [Found::default(); RING] };
        for group in 0..BITS_AHEAD {
            finder.ask(group);
        }
        for group in 0..SETS_AHEAD {
            finder.approach(group, &mut ahead);
        }
        for group in 0..ROWS_AHEAD {
            finder.find(group, &mut ahead);
        }
        (finder, ahead)
    }

    /// The keys of a group; of those that are not there, none.
    #[inline(always)]
    fn group(&self, group: usize) -> &'k [u64] {
        let rest = self.keys.get(group * GROUP..).unwrap_or_default();
        &rest[..rest.len().min(GROUP)]
    }

    /// Asks for what says whether the keys of a group are cached.
    #[inline(always)]
    fn ask(&self, group: usize) {
        if !HASHED && CACHED {
            for &key in self.group(group) {
                self.held.ask(key);
            }
        }
    }

    /// Asks for what is needed to find the rows of a group, or for the rows that need none of it.
    #[inline(always)]
    fn approach(&self, group: usize, ahead: &mut Ahead<'a>) {
        let (held, keys) = (self.held, self.group(group));
        let (places, found) = (&mut ahead.places[group % RING], &mut ahead.found[group % RING]);
        if HASHED {
            for (place, &key) in places.iter_mut().zip(keys) {
                *place = held.approach(Self::KIND, key);
            }
            return;
        }
        if !CACHED {
            for &key in keys {
                self.ask_for_row(key);
            }
            return;
        }
        let mut hits = 0;
        for (member, &key) in keys.iter().enumerate() {
            found.sort(member, keys.len(), hits);
            hits += usize::from(held.is_cached(key));
        }
        found.hits = hits;
        for turn in 0..hits.min(GROUP) {
            places[turn] = held.approach(Self::KIND, keys[found.order[turn] as usize]);
        }
        for turn in hits..keys.len() {
            self.ask_for_row(keys[found.order[turn % GROUP] as usize]);
        }
    }

    /// Asks for the row of a key of a dense table, and for what says whether it has one.
    #[inline(always)]
    fn ask_for_row(&self, key: u64) {
        let (partition, row) = self.held.dense(key);
        let (stored, bit) = self.held.addresses(false, partition, row);
        if let Some(bit) = bit {
            simd::prefetch(bit);
        }
        simd::prefetch_lines::<false>(stored, 0, self.held.row_lines);
    }

    /// Finds the rows of a group that were not asked for, and asks for them.
    #[inline(always)]
    fn find(&self, group: usize, ahead: &mut Ahead<'a>) {
        let (held, keys) = (self.held, self.group(group));
        let lines = if DIM > 0 { DIM.div_ceil(16) } else { held.slot_lines };
        let (places, found) = (&ahead.places[group % RING], &mut ahead.found[group % RING]);
        if !HASHED {
            let Some(pool) = self.pool.filter(|_| CACHED && !keys.is_empty()) else { return };
            for turn in 0..found.hits.min(GROUP) {
                let place = &places[turn];
                let way = held.find(Self::KIND, self.level, keys[found.order[turn] as usize], place).1;
                let slot = place.slot.wrapping_add(way.trailing_zeros());
                simd::prefetch_lines::<false>(pool.address(slot), 0, lines);
                found.slots[turn] = slot;
            }
            return;
        }
        // Where there is nothing to ask for, any memory will do that is near.
        let near = held.views.as_ptr().cast::<u8>();
        let mut hits = 0;
        for (member, (&key, place)) in keys.iter().zip(places).enumerate() {
            let (row, way) = held.find(Self::KIND, self.level, key, place);
            found.rows[member] = row;
            let (stored, _) = held.addresses(true, place.partition, row);
            let Some(pool) = self.pool.filter(|_| CACHED) else {
                simd::prefetch_lines::<false>(stored, 0, held.row_lines);
                continue;
            };
            let cached = way != 0;
            let slot = place.slot.wrapping_add(way.trailing_zeros());
            let hot = pool.address(slot);
            simd::prefetch_lines::<false>(select_unpredictable(cached, hot, stored), 0, held.row_lines);
            simd::prefetch_lines::<false>(select_unpredictable(cached, hot, near), held.row_lines, lines);
            found.sort(member, keys.len(), hits);
            // Written over by the next unless counted.
            found.slots[hits % GROUP] = slot;
            hits += usize::from(cached);
        }
        found.hits = hits;
    }

    /// The partition of a key, and its row there.
    #[inline(always)]
    fn row(&self, group: usize, member: usize, key: u64, ahead: &Ahead<'a>) -> (u32, u32) {
        match HASHED {
            true => (ahead.places[group % RING][member].partition, ahead.found[group % RING].rows[member]),
            false => self.held.dense(key),
        }
    }
}

/// How rows are turned into what is asked for. Functions are chosen once for many rows: to compile the loop for each of them would
/// make a hundred of it.
pub(super) struct Reader {
    /// What is asked for, and what it takes.
    format: WeightFormat,
    bytes: usize,
    /// How weights are stored, and what that takes.
    stored: WeightFormat,
    stored_bytes: usize,
    /// From full precision.
    hot: fn(WeightFormat, &[f32], &mut [u8]),
    /// From what is stored.
    cold: fn(&Table, WeightFormat, &[u8], &mut [u8]),
}

impl Reader {
    pub(super) fn new(format: WeightFormat, table: &Table) -> Reader {
        // Loops of a known length are unrolled, and rows of a known size are copied without calling `memcpy`.
        match table.dim() {
            16 => Reader::of::<16>(format, table),
            32 => Reader::of::<32>(format, table),
            64 => Reader::of::<64>(format, table),
            128 => Reader::of::<128>(format, table),
            _ => Reader::of::<0>(format, table),
        }
    }

    fn of<const DIM: usize>(format: WeightFormat, table: &Table) -> Reader {
        let (dim, stored) = (table.dim(), table.layout().weights);
        let cold = match format {
            WeightFormat::F32 => decode::<DIM>,
            _ if format == stored => copy::<DIM>,
            _ => recode,
        };
        Reader { format, bytes: format.bytes(dim), stored, stored_bytes: stored.bytes(dim), hot: encode::<DIM>, cold }
    }

    /// Reads a row that is not in the cache.
    #[inline(always)]
    pub(super) fn read_cold(&self, held: &Held<'_>, key: u64, row: Option<&[u8]>, out: &mut [u8]) {
        match row {
            Some(row) => (self.cold)(held.table, self.format, &row[..self.stored_bytes], out),
            None => untrained(self.format, held.table, key, out),
        }
    }
}

/// `given`, or `DIM` where that is not 0.
#[inline(always)]
fn known<const DIM: usize>(given: usize) -> usize {
    if DIM > 0 { DIM } else { given }
}

dispatch! {
    fn encode<const DIM: usize>(format: WeightFormat, row: &[f32], out: &mut [u8]) {
        let dim = known::<DIM>(row.len());
        format.encode_nearest(&row[..dim], &mut out[..format.bytes(dim)]);
    }
}

dispatch! {
    fn decode<const DIM: usize>(table: &Table, _format: WeightFormat, row: &[u8], out: &mut [u8]) {
        let stored = table.layout().weights;
        let out: &mut [f32] = bytemuck::cast_slice_mut(out);
        let dim = known::<DIM>(out.len());
        stored.decode(&row[..stored.bytes(dim)], &mut out[..dim]);
    }
}

dispatch! {
    fn copy<const DIM: usize>(_table: &Table, format: WeightFormat, row: &[u8], out: &mut [u8]) {
        // The length of the one branch is known when this is compiled, and rows are moved without calling `memcpy`.
        match DIM > 0 && format == WeightFormat::Int8Symmetric {
            true => out[..2 + DIM].copy_from_slice(&row[..2 + DIM]),
            false => out.copy_from_slice(row),
        }
    }
}

/// Reads a stored row in another format, by way of full precision.
fn recode(table: &Table, format: WeightFormat, row: &[u8], out: &mut [u8]) {
    ROW.with_borrow_mut(|weights| {
        weights.resize(table.dim(), 0.0);
        decode_rows(table.layout().weights, table.dim(), row, weights);
        encode_nearest(format, weights, out);
    });
}

/// Reads a row that was never stored.
fn untrained(format: WeightFormat, table: &Table, key: u64, out: &mut [u8]) {
    if format == WeightFormat::F32 {
        return initial_weights(table, key, bytemuck::cast_slice_mut(out));
    }
    ROW.with_borrow_mut(|weights| {
        weights.resize(table.dim(), 0.0);
        initial_weights(table, key, weights);
        encode_nearest(format, weights, out);
    });
}

dispatch! {
    fn initial_weights(table: &Table, key: u64, weights: &mut [f32]) {
        table.initial.weights(key, weights);
    }
}

/// Rounds the cached rows of a group to int8 codes, all of them together: by AVX-512 that takes a third of the time that they take one by one.
#[inline(always)]
fn round_hits<'a, const DIM: usize>(found: &Found, weights: impl Fn(u32) -> &'a [f32], out: &mut [u8]) {
    let mut to: [&mut [u8]; GROUP] = Default::default();
    to.iter_mut().zip(out.chunks_exact_mut(2 + DIM)).for_each(|(to, out)| *to = out);
    let mut rows: [RowToRound<'_>; GROUP] = Default::default();
    let hits = found.hits.min(GROUP);
    for ((row, &slot), &member) in rows.iter_mut().zip(&found.slots[..hits]).zip(&found.order) {
        row.x = &weights(slot)[..DIM];
        row.to = std::mem::take(&mut to[member as usize % GROUP]);
    }
    WeightFormat::Int8Symmetric.encode_many(DIM, Rounding::Nearest, &mut rows[..hits]);
}

dispatch! {
    /// `DIM` and `CODES` are as in [`rows_of`]: rows of a known length in the usual formats are read without calls.
    fn read_rows<const DIM: usize, const CODES: bool, const HASHED: bool, const CACHED: bool>(
        held: &Held<'_>,
        pool: Option<&HostPool>,
        reader: &Reader,
        keys: &[u64],
        out: &mut [u8],
    ) -> u64 {
        let (finder, mut ahead) = Finder::<DIM, HASHED, CACHED>::new(held, pool, keys);
        let bytes = match DIM {
            0 => reader.bytes,
            _ if CODES => 2 + DIM,
            _ => 4 * DIM,
        };
        let mut all_hits = 0;
        for (group, out) in out.chunks_mut(GROUP * bytes).enumerate() {
            finder.ask(group + BITS_AHEAD);
            finder.approach(group + SETS_AHEAD, &mut ahead);
            finder.find(group + ROWS_AHEAD, &mut ahead);
            let found = &ahead.found[group % RING];
            let keys = finder.group(group);
            let hits = if CACHED { found.hits.min(keys.len()) } else { 0 };
            all_hits += hits as u64;
            if CACHED && let Some(pool) = pool {
                // SAFETY: `held` borrows from read guards of these partitions, and the slot is of their parts.
                let weights = |slot| unsafe { pool.weights(slot) };
                if CODES {
                    round_hits::<DIM>(found, weights, out);
                } else {
                    for turn in 0..hits {
                        let weights = weights(found.slots[turn % GROUP]);
                        let out = &mut out[found.order[turn % GROUP] as usize * bytes..][..bytes];
                        match DIM {
                            0 => (reader.hot)(reader.format, weights, out),
                            _ => out.copy_from_slice(bytemuck::cast_slice(&weights[..DIM])),
                        }
                    }
                }
            }
            for turn in hits..keys.len() {
                let member = if CACHED { found.order[turn % GROUP] as usize % GROUP } else { turn };
                let key = keys[member];
                let (partition, row) = finder.row(group, member, key, &ahead);
                let out = &mut out[member * bytes..][..bytes];
                match (held.stored(partition, row), reader.stored) {
                    (Some(row), _) if DIM > 0 && CODES => out.copy_from_slice(&row[..2 + DIM]),
                    (Some(row), WeightFormat::Int8Symmetric) if DIM > 0 => {
                        WeightFormat::Int8Symmetric.decode(&row[..2 + DIM], bytemuck::cast_slice_mut(out));
                    }
                    (Some(row), WeightFormat::F32) if DIM > 0 => out.copy_from_slice(&row[..4 * DIM]),
                    (row, _) => reader.read_cold(held, key, row, out),
                }
            }
        }
        all_hits
    }
}
