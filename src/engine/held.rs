//! What a pull holds of a table: its parts, by partition, under shared locks; and where in them the row of a key is.

use super::partition::Partition;
use super::route::Route;
use super::table::Table;
use crate::cache::{HostPool, Slots, ways_with};
use crate::error::{Error, Result};
use crate::numeric::hash;
use crate::numeric::simd::{self, Level};
use crate::table::{KeySpace, PartView, TablePart};

/// Cache lines of a row that are asked for. Of longer rows the processor fetches the others by itself.
const MOST_LINES: usize = 16;

/// The parts of one table that a pull holds, by partition.
pub struct Held<'a> {
    /// The table.
    pub table: &'a Table,
    route: &'a Route,
    stride: usize,
    /// The cache lines of a stored row that are asked for, and of a cached one.
    pub(super) row_lines: usize,
    /// See `row_lines`.
    pub(super) slot_lines: usize,
    pub(super) views: Vec<PartView<'a>>,
    /// For dense tables with a cache: a bit for each row of a partition, whether it is cached.
    cached: Vec<&'a [u64]>,
    /// For hashed tables, whose rows are found through their index.
    parts: Vec<Option<&'a TablePart>>,
}

/// Where a key is looked for.
#[derive(Clone, Copy, Default)]
pub(super) struct Place<'a> {
    /// The tags of its set.
    tags: &'a [u32],
    /// The pool's slot of the first of them.
    pub slot: u32,
    /// Its partition.
    pub partition: u32,
}

/// What there is to look at for a key of a table: loops are compiled for each kind.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Whether the table is hashed.
    pub hashed: bool,
    /// Whether it has a cache.
    pub cached: bool,
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
        let has_bits = !hashed && table.slots.is_some();
        let mut cached: Vec<&[u64]> = vec![&[]; if has_bits { views.len() } else { 0 }];
        for partition in partitions {
            // A drop may have come between the lookup of the name and the locks.
            let part = partition.part(table.id).ok_or_else(|| Error::UnknownTable(table.name().into()))?;
            views[partition.id as usize] = part.view();
            if hashed {
                parts[partition.id as usize] = Some(part);
            }
            if has_bits {
                cached[partition.id as usize] = part.directory.cached();
            }
        }
        let stride = table.shape.stride();
        // A hashed row begins with its key.
        let bytes = stride - table.layout().row_bytes() + table.layout().weights.bytes(table.dim());
        let row_lines = if stride.is_multiple_of(64) { bytes.div_ceil(64) } else { bytes / 64 + 1 };
        let slot_lines = if table.slots.is_some() { table.dim().div_ceil(16) } else { 0 };
        let (row_lines, slot_lines) = (row_lines.min(MOST_LINES), slot_lines.min(MOST_LINES));
        Ok(Held { table, route, stride, row_lines, slot_lines, views, cached, parts })
    }

    /// Whether the table is hashed, and has a cache that is looked into.
    #[inline(always)]
    pub(super) fn kind(&self) -> Kind {
        Kind { hashed: !self.parts.is_empty(), cached: self.table.slots.is_some() }
    }

    /// The pool of a table whose hot rows are in host memory, if it has any.
    pub(super) fn pool(&self) -> Option<&'a HostPool> {
        match &self.table.slots {
            Some(Slots::Host(pool)) => Some(pool),
            _ => None,
        }
    }

    /// Where to look for a key; the memory there is asked for.
    #[inline(always)]
    pub(super) fn approach(&self, kind: Kind, key: u64) -> Place<'a> {
        if !kind.hashed && !kind.cached {
            return Place { tags: &[], slot: 0, partition: self.route.dense(key) };
        }
        let mixed = hash::mix64(key);
        let partition = if kind.hashed { self.route.hashed(mixed) } else { self.route.dense(key) };
        // There is a view for every partition, and their number is a power of two.
        let view = &self.views[partition as usize & (self.views.len() - 1)];
        let set = view.tags.set(mixed);
        Place { tags: view.tags.approach(set), slot: view.first_slot + set, partition }
    }

    /// Asks for what says whether a key of a dense table is cached.
    #[inline(always)]
    pub(super) fn ask(&self, key: u64) {
        let (partition, row) = self.dense(key);
        let bits = self.cached[partition as usize & (self.cached.len() - 1)];
        simd::prefetch(bits.as_ptr().wrapping_add(row as usize / 64));
    }

    /// Whether a key of a dense table with a cache is cached.
    #[inline(always)]
    pub(super) fn is_cached(&self, key: u64) -> bool {
        let (partition, row) = self.dense(key);
        let bits = self.cached[partition as usize & (self.cached.len() - 1)];
        bits[row as usize / 64] >> (row % 64) & 1 != 0
    }

    /// A key's partition, and its row there, in a dense table.
    #[inline(always)]
    pub(super) fn dense(&self, key: u64) -> (u32, u32) {
        (self.route.dense(key), (key >> self.route.bits()) as u32)
    }

    /// A key's row in its part, and a bit for the way that holds it, if it is cached.
    #[inline(always)]
    pub(super) fn find(&self, kind: Kind, level: Level, key: u64, place: &Place<'a>) -> (u32, u32) {
        let row = match if kind.hashed { self.parts[place.partition as usize] } else { None } {
            None => (key >> self.route.bits()) as u32,
            Some(part) => match part.find(key) {
                Some(row) => row,
                None => return (ABSENT, 0),
            },
        };
        (row, if kind.cached { ways_with(level, place.tags, row) } else { 0 })
    }

    /// Where the stored form of a row is, and what says whether there is one, if that is not known: only to ask for the memory.
    #[inline(always)]
    pub(super) fn addresses(&self, hashed: bool, partition: u32, row: u32) -> (*const u8, Option<*const u8>) {
        match if hashed { self.parts[partition as usize] } else { None } {
            None => self.views[partition as usize & (self.views.len() - 1)].addresses(row, self.stride),
            // Any memory will do that is there already.
            Some(_) if row == ABSENT => (self.views.as_ptr().cast(), None),
            Some(part) => (part.address(row), None),
        }
    }

    /// Asks for the stored form of a row that is read soon.
    #[inline(always)]
    pub(super) fn prefetch(&self, partition: u32, row: u32) {
        let (row, _) = self.addresses(!self.parts.is_empty(), partition, row);
        simd::prefetch_lines::<false>(row, 0, self.row_lines);
    }

    /// The stored form of a row, if it has one.
    #[inline(always)]
    pub(super) fn stored(&self, partition: u32, row: u32) -> Option<&'a [u8]> {
        match self.parts.get(partition as usize) {
            None => self.views[partition as usize].stored(row, self.stride),
            Some(_) if row == ABSENT => None,
            Some(part) => part.and_then(|part| part.stored(row)),
        }
    }

    /// The weights of a row that are stored at full precision.
    #[inline(always)]
    pub(super) fn exact(&self, partition: u32, row: u32) -> Option<&'a [f32]> {
        let layout = self.table.layout();
        if !layout.is_exact() {
            return None;
        }
        // Rows of f32 start at a multiple of four bytes: regions are aligned, strides and keys are multiples.
        self.stored(partition, row).map(|bytes| bytemuck::cast_slice(&bytes[..4 * layout.dim]))
    }

    /// The rows of each partition of a dense table that stores full-precision rows, if all of them were stored: rows of
    /// [`Held::exact_stride`] numbers, weights first.
    pub(super) fn all_exact(&self) -> Option<Vec<&'a [f32]>> {
        let exact = self.parts.is_empty() && self.table.layout().is_exact();
        if !exact {
            return None;
        }
        // As in `exact`. Of a partition that the request does not need there is nothing, and that may be anywhere.
        let numbers = |rows: &'a [u8]| if rows.is_empty() { &[] } else { bytemuck::cast_slice(rows) };
        self.views.iter().map(|view| view.all_stored().map(numbers)).collect()
    }

    /// Numbers of a stored row of a dense table that stores full-precision rows.
    pub(super) fn exact_stride(&self) -> usize {
        self.stride / size_of::<f32>()
    }

    /// Reads a row that is not in the cache.
    #[inline(always)]
    pub(super) fn read(&self, key: u64, partition: u32, row: u32, out: &mut [f32]) {
        match self.stored(partition, row) {
            Some(bytes) => self.table.layout().decode_weights(bytes, out),
            None => self.table.initial.weights(key, out),
        }
    }
}
