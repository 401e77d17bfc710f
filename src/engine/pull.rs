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
/// How many groups ahead the directory's sets are asked for.
const SETS_AHEAD: usize = 3;
/// How many groups ahead their rows are asked for.
const ROWS_AHEAD: usize = 2;
/// Room for what is known of groups ahead, and of the one that is read.
const RING: usize = 4;
const _: () = assert!(ROWS_AHEAD < SETS_AHEAD && SETS_AHEAD < RING);

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

/// Where a row is: in the pool's slot `at`, or it is row `at` of its part.
#[derive(Clone, Copy, Default)]
struct Spot {
    at: u32,
    partition: u32,
}

/// Where the rows of keys are. What is needed to find one is asked for `SETS_AHEAD` groups before it is read, and the row itself
/// `ROWS_AHEAD` groups before.
///
/// Nobody can predict whether a row is cached. So nothing here branches on it; and rows are read a group at a time, the cached ones
/// first, so that who reads them is wrong once in a group and not every other row.
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
    places: [[Place<'a>; GROUP]; RING],
    found: [Found; RING],
}

/// A group whose rows were found.
#[derive(Clone, Copy, Default)]
struct Found {
    spots: [Spot; GROUP],
    /// The keys in the order in which they are read: those that are cached, and then the others from the last to the first.
    order: [u8; GROUP],
    hits: usize,
}

impl<'a, 'k, const DIM: usize, const HASHED: bool, const CACHED: bool> Finder<'a, 'k, DIM, HASHED, CACHED> {
    const KIND: Kind = Kind { hashed: HASHED, cached: CACHED };

    #[inline(always)]
    fn new(held: &'k Held<'a>, pool: Option<&'a HostPool>, keys: &'k [u64]) -> (Self, Ahead<'a>) {
        let finder = Finder { held, pool, level: simd::level(), keys };
        let mut ahead = Ahead { places: [[Place::default(); GROUP]; RING], found: [Found::default(); RING] };
        for group in 0..SETS_AHEAD {
            for member in 0..finder.len(group) {
                finder.approach(group, member, &mut ahead);
            }
        }
        for group in 0..ROWS_AHEAD {
            for member in 0..finder.len(group) {
                finder.find(group, member, &mut ahead);
            }
        }
        (finder, ahead)
    }

    /// How many keys a group has.
    #[inline(always)]
    fn len(&self, group: usize) -> usize {
        self.keys.len().saturating_sub(group * GROUP).min(GROUP)
    }

    /// Asks for what is needed to find a key, if there is one.
    #[inline(always)]
    fn approach(&self, group: usize, member: usize, ahead: &mut Ahead<'a>) {
        if let Some(&key) = self.keys.get(group * GROUP + member) {
            ahead.places[group % RING][member] = self.held.approach(Self::KIND, key);
        }
    }

    /// Finds the row of a key, if there is one, and asks for its memory in the second-level cache: lines on their way to the first keep
    /// the next waiting, and reading from the second costs less than that. To be called for one member after the other.
    #[inline(always)]
    fn find(&self, group: usize, member: usize, ahead: &mut Ahead<'a>) {
        let Some(&key) = self.keys.get(group * GROUP + member) else { return };
        let (place, found) = (&ahead.places[group % RING][member], &mut ahead.found[group % RING]);
        let held = self.held;
        let (row, way) = held.find(Self::KIND, self.level, key, place);
        let (stored, bit) = held.addresses(HASHED, place.partition, row);
        // Where there is nothing to ask for, any memory will do that is near.
        let near = held.views.as_ptr().cast::<u8>();
        let cached = way != 0;
        if let Some(bit) = bit {
            simd::prefetch(select_unpredictable(cached, near, bit));
        }
        let Some(pool) = self.pool.filter(|_| CACHED) else {
            simd::prefetch_lines::<true>(stored, 0, held.row_lines);
            found.spots[member] = Spot { at: row, partition: place.partition };
            return;
        };
        let slot = place.slot.wrapping_add(way.trailing_zeros());
        let hot = pool.address(slot);
        let lines = if DIM > 0 { DIM.div_ceil(16) } else { held.slot_lines };
        simd::prefetch_lines::<true>(select_unpredictable(cached, hot, stored), 0, held.row_lines);
        simd::prefetch_lines::<true>(select_unpredictable(cached, hot, near), held.row_lines, lines);
        found.spots[member] = Spot { at: select_unpredictable(cached, slot, row), partition: place.partition };
        // Into both lists; the one that it is not in is written over by the next, or by the last of the other.
        let hits = if member == 0 { 0 } else { found.hits };
        found.order[hits % GROUP] = member as u8;
        found.order[(self.len(group) - 1 + hits - member) % GROUP] = member as u8;
        found.hits = hits + usize::from(cached);
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
    for (row, &member) in rows.iter_mut().zip(&found.order[..found.hits.min(GROUP)]) {
        let member = member as usize % GROUP;
        row.x = &weights(found.spots[member].at)[..DIM];
        row.to = std::mem::take(&mut to[member]);
    }
    WeightFormat::Int8Symmetric.encode_many(DIM, Rounding::Nearest, &mut rows[..found.hits.min(GROUP)]);
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
            let hits = if CACHED { ahead.found[group % RING].hits } else { 0 };
            all_hits += hits as u64;
            let members = out.len() / bytes;
            if CODES && CACHED && let Some(pool) = pool {
                // SAFETY: as below.
                round_hits::<DIM>(&ahead.found[group % RING], |slot| unsafe { pool.weights(slot) }, out);
            }
            for turn in 0..members {
                finder.approach(group + SETS_AHEAD, turn, &mut ahead);
                finder.find(group + ROWS_AHEAD, turn, &mut ahead);
                if CODES && CACHED && turn < hits {
                    continue;
                }
                let found = &ahead.found[group % RING];
                let member = if CACHED { found.order[turn] as usize % GROUP } else { turn };
                let Spot { at, partition } = found.spots[member];
                let out = &mut out[member * bytes..][..bytes];
                match pool.filter(|_| CACHED && turn < hits) {
                    Some(pool) => {
                        // SAFETY: `held` borrows from read guards of these partitions, and the slot is of their parts.
                        let weights = unsafe { pool.weights(at) };
                        match DIM {
                            0 => (reader.hot)(reader.format, weights, out),
                            _ => out.copy_from_slice(bytemuck::cast_slice(&weights[..DIM])),
                        }
                    }
                    None => match (held.stored(partition, at), reader.stored) {
                        (Some(row), _) if DIM > 0 && CODES => out.copy_from_slice(&row[..2 + DIM]),
                        (Some(row), WeightFormat::Int8Symmetric) if DIM > 0 => {
                            WeightFormat::Int8Symmetric.decode(&row[..2 + DIM], bytemuck::cast_slice_mut(out));
                        }
                        (Some(row), WeightFormat::F32) if DIM > 0 => out.copy_from_slice(&row[..4 * DIM]),
                        (row, _) => reader.read_cold(held, keys[group * GROUP + member], row, out),
                    },
                }
            }
        }
        all_hits
    }
}
