//! A table's part in one partition: rows, index and directory, under the partition's lock.

use super::index::{Growth, Index, KEY_BYTES};
use super::rows::{ChunkSource, Rows};
use super::saving::{RowsPiece, Saving};
use super::{Initial, KeySpace, Shape};
use std::collections::BTreeSet;

use crate::budget::Budget;
use crate::cache::{Directory, DirectoryImage, Policy, RoundingError, Tags};
use crate::error::{Error, Result};
use crate::memory::Mapping;
use crate::numeric::{hash, simd};

/// A table's part in one partition.
pub struct TablePart {
    pub(super) rows: Rows,
    keys: Keys,
    /// Bytes at the front of a stored row that are not its payload.
    pub(super) key_bytes: usize,
    /// Set while the part is being saved.
    pub(super) saving: Option<Box<Saving>>,
    /// Which rows are in the cache.
    pub directory: Directory,
    /// The pool's slot of the directory's slot 0.
    pub first_slot: u32,
    /// What changes have done here.
    pub counts: PartCounts,
}

/// What a pull reads of a part, on one cache line: a pull visits all parts of its table again and again.
#[repr(align(64))]
#[derive(Clone, Copy, Default)]
pub struct PartView<'a> {
    /// Which rows are in the cache.
    pub tags: Tags<'a>,
    /// The pool's slot of the directory's slot 0.
    pub first_slot: u32,
    /// The rows of a dense part.
    rows: &'a [u8],
    /// Which of them were ever stored; empty where all were.
    stored: &'a [u64],
}

impl<'a> PartView<'a> {
    /// Where a row of a dense part is, and what says whether it was ever stored, unless all were: only to ask for the memory.
    #[inline(always)]
    pub fn addresses(&self, row: u32, stride: usize) -> (*const u8, Option<*const u8>) {
        let stored = self.stored.as_ptr().wrapping_add((row / 64) as usize).cast();
        (self.rows.as_ptr().wrapping_add(row as usize * stride), (!self.stored.is_empty()).then_some(stored))
    }

    /// All rows of a dense part, if all were stored.
    pub fn all_stored(&self) -> Option<&'a [u8]> {
        self.stored.is_empty().then_some(self.rows)
    }

    /// The stored form of a row of a dense part, or `None` where it was never stored.
    #[inline(always)]
    pub fn stored(&self, row: u32, stride: usize) -> Option<&'a [u8]> {
        let stored = self.stored.is_empty() || self.stored[(row / 64) as usize] >> (row % 64) & 1 != 0;
        stored.then(|| &self.rows[row as usize * stride..][..stride])
    }
}

/// What changes have done to a part. Counted under the partition's lock; never steers behaviour.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PartCounts {
    /// Keys of pushes, as sent, that were in the cache.
    pub push_hits: u64,
    /// Keys of pushes, as sent, that were not.
    pub push_misses: u64,
    /// Keys of touches, as sent, that were in the cache.
    pub touch_hits: u64,
    /// Keys of touches, as sent, that were not.
    pub touch_misses: u64,
    /// Rows that pushes stepped.
    pub updated_rows: u64,
    /// Rows that pushes stepped in place because the cache had no way for them.
    pub conflicts: u64,
    /// Clean rows that were dropped from the cache.
    pub clean_evictions: u64,
    /// Rows that pushes and touches rounded into the row store, conflicts included.
    pub write_backs: u64,
    /// What rounding did, on a sample.
    pub rounding_error: RoundingError,
}

impl PartCounts {
    /// Adds the counts of another part.
    pub fn add(&mut self, other: &PartCounts) {
        self.push_hits += other.push_hits;
        self.push_misses += other.push_misses;
        self.touch_hits += other.touch_hits;
        self.touch_misses += other.touch_misses;
        self.updated_rows += other.updated_rows;
        self.conflicts += other.conflicts;
        self.clean_evictions += other.clean_evictions;
        self.write_backs += other.write_backs;
        self.rounding_error.add(other.rounding_error);
    }
}

enum Keys {
    /// Row `r` of partition `p` is key `r << bits | p`.
    Dense {
        bits: u32,
        partition: u32,
        rows: u64,
    },
    Hashed(Index),
}

impl Keys {
    #[inline(always)]
    fn key_of(&self, rows: &Rows, row: u32) -> u64 {
        match self {
            Keys::Dense { bits, partition, .. } => u64::from(row) << bits | u64::from(*partition),
            Keys::Hashed(index) => index.key_of(rows, row),
        }
    }
}

impl TablePart {
    /// An untrained part. It takes [`TablePart::mapped`] bytes of `memory`.
    pub fn new(
        shape: &Shape,
        policy: Policy,
        partition: u32,
        bits: u32,
        memory: &mut Mapping,
        first_slot: u32,
    ) -> TablePart {
        let partitions = 1 << bits;
        let stride = shape.stride();
        let (rows, keys, key_bytes) = match shape.keys {
            KeySpace::Dense { .. } => {
                let rows = shape.rows_in(partition, partitions);
                let memory = memory.take(rows as usize * stride).expect("memory was mapped for the rows");
                (Rows::fixed(memory, stride, rows), Keys::Dense { bits, partition, rows }, 0)
            }
            KeySpace::Hashed => (Rows::growing(stride), Keys::Hashed(Index::new()), KEY_BYTES),
        };
        let (cache_rows, looked_up) = TablePart::cache(shape, partition, partitions);
        let directory = Directory::new(policy, cache_rows, looked_up, memory);
        TablePart { rows, keys, key_bytes, saving: None, directory, first_slot, counts: PartCounts::default() }
    }

    /// Bytes of the memory that [`TablePart::new`] takes: the rows of a dense part, and what pulls read of the directory.
    pub fn mapped(shape: &Shape, partition: u32, partitions: u32) -> usize {
        let (cache_rows, looked_up) = TablePart::cache(shape, partition, partitions);
        let rows = shape.rows_in(partition, partitions) as usize;
        Mapping::len_for(1, rows * shape.stride()) + Directory::mapped(cache_rows, looked_up)
    }

    /// How many rows the cache of a part holds at most, and of how many it is known by a bit whether it holds them.
    fn cache(shape: &Shape, partition: u32, partitions: u32) -> (u32, u64) {
        let rows = if shape.cache_rows > 0 { shape.rows_in(partition, partitions) } else { 0 };
        (shape.cache_rows_in(partition, partitions) as u32, rows)
    }

    /// The row of a key, if it has one.
    #[inline(always)]
    pub fn find(&self, key: u64) -> Option<u32> {
        match &self.keys {
            Keys::Dense { bits, .. } => Some((key >> bits) as u32),
            Keys::Hashed(index) => index.find(&self.rows, key, hash::mix64(key)),
        }
    }

    /// The row of a key of a dense part.
    #[inline(always)]
    pub fn dense_row(&self, key: u64) -> u32 {
        match &self.keys {
            Keys::Dense { bits, .. } => (key >> bits) as u32,
            Keys::Hashed(_) => unreachable!("only asked of dense parts"),
        }
    }

    /// The row of a key; a new key of a hashed table gets one, out of the room promised to it.
    #[inline(always)]
    pub fn find_or_add(&mut self, key: u64, mixed: u64) -> u32 {
        match &mut self.keys {
            Keys::Dense { bits, .. } => (key >> *bits) as u32,
            Keys::Hashed(index) => index.find_or_add(&mut self.rows, key, mixed),
        }
    }

    /// The key of a row.
    #[inline(always)]
    pub fn key_of(&self, row: u32) -> u64 {
        self.keys.key_of(&self.rows, row)
    }

    /// Takes a row out of cache and store.
    pub fn remove(&mut self, key: u64, mixed: u64) {
        let Some(row) = self.find(key) else { return };
        self.keep_row(row);
        if let Some(slot) = self.directory.find(row, mixed) {
            self.directory.clear(slot);
        }
        match &mut self.keys {
            Keys::Dense { .. } => self.rows.clear_stored(row),
            Keys::Hashed(index) => {
                index.remove(&mut self.rows, key, mixed);
            }
        }
    }

    /// Looks for a way for a row that is not in the cache.
    #[inline(always)]
    pub fn admit(&mut self, row: u32, mixed: u64) -> crate::cache::Admission {
        let TablePart { rows, keys, directory, .. } = self;
        let (rows, keys) = (&*rows, &*keys);
        directory.admit(row, mixed, |row| hash::mix64(keys.key_of(rows, row)))
    }

    /// The stored form of a row, or `None` where it was never stored.
    #[inline(always)]
    pub fn stored(&self, row: u32) -> Option<&[u8]> {
        self.rows.is_stored(row).then(|| &self.rows.row(row)[self.key_bytes..])
    }

    /// The place of a row's stored form, which is taken as valid from here on.
    #[inline(always)]
    pub fn store(&mut self, row: u32) -> &mut [u8] {
        self.keep_row(row);
        self.rows.set_stored(row);
        &mut self.rows.row_mut(row)[self.key_bytes..]
    }

    /// What a pull reads.
    pub fn view(&self) -> PartView<'_> {
        let (rows, mut stored) = self.rows.range().unwrap_or((&[], &[]));
        if self.stored_count() == self.row_count() {
            stored = &[];
        }
        PartView { tags: self.directory.tags(), first_slot: self.first_slot, rows, stored }
    }

    /// Where a row is, only to ask for the memory.
    #[inline(always)]
    pub fn address(&self, row: u32) -> *const u8 {
        self.rows.row(row).as_ptr()
    }

    /// Asks for the memory of a row's stored form.
    #[inline(always)]
    pub fn prefetch_row(&self, row: u32) {
        simd::prefetch_slice(self.rows.row(row));
    }

    /// Asks early for the memory of a row's stored form.
    #[inline(always)]
    pub fn prefetch_row_early(&self, row: u32) {
        simd::prefetch_slice_early(self.rows.row(row));
    }

    /// The full-precision row of a table that stores nothing else, made valid if it was not.
    #[inline(always)]
    pub fn exact_row(&mut self, row: u32, key: u64, initial: &Initial, dim: usize) -> &mut [f32] {
        self.keep_row(row);
        let fresh = !self.rows.is_stored(row);
        self.rows.set_stored(row);
        // Rows of f32 start at a multiple of four bytes: regions are aligned, strides and keys are multiples.
        let numbers = bytemuck::cast_slice_mut(&mut self.rows.row_mut(row)[self.key_bytes..]);
        if fresh {
            initial.row(key, dim, numbers);
        }
        numbers
    }

    /// The rows of a dense table that stores nothing else than full-precision rows, side by side. Those of `keys`, which are going to change,
    /// were made valid.
    pub fn exact_rows(&mut self, keys: impl Iterator<Item = u64>, initial: &Initial, dim: usize) -> &mut [f32] {
        // While the part is being saved changes are noted.
        if !self.rows.notes_nothing(self.row_count()) {
            for key in keys {
                self.exact_row(self.dense_row(key), key, initial, dim);
            }
        }
        bytemuck::cast_slice_mut(self.rows.range_mut())
    }

    /// Promises room for `more` new keys, whatever else happens before they come, if there is room already.
    pub fn promise(&mut self, more: u32) -> bool {
        match &mut self.keys {
            Keys::Dense { .. } => true,
            Keys::Hashed(index) => index.promise(&self.rows, more),
        }
    }

    /// What must be grown for `new` keys out of `sent`; `frugal` is as little as will do.
    pub fn growth(&self, new: u32, sent: usize, frugal: bool) -> Result<Growth> {
        match &self.keys {
            Keys::Dense { .. } => Ok(Growth::default()),
            Keys::Hashed(index) => index.growth(&self.rows, new, sent, frugal),
        }
    }

    /// Grows by what [`TablePart::growth`] said and the budget was charged for.
    pub fn grow(&mut self, source: &ChunkSource, budget: &Budget, growth: &Growth) -> Result<()> {
        match &mut self.keys {
            Keys::Dense { .. } => Ok(()),
            Keys::Hashed(index) => index.grow(&mut self.rows, source, budget, growth),
        }
    }

    /// How many of these keys a hashed part does not have.
    pub fn count_new(&self, keys: impl Iterator<Item = u64>) -> u32 {
        let mut new: Vec<u64> = keys.filter(|&key| self.find(key).is_none()).collect();
        new.sort_unstable();
        new.dedup();
        new.len() as u32
    }

    /// Ends a promise of [`TablePart::promise`].
    pub fn release(&mut self, more: u32) {
        if let Keys::Hashed(index) = &mut self.keys {
            index.release(more);
        }
    }

    /// How many rows there are: all of a dense part, the keys present in a hashed one.
    pub fn row_count(&self) -> u64 {
        match &self.keys {
            Keys::Dense { rows, .. } => *rows,
            Keys::Hashed(index) => u64::from(index.len()),
        }
    }

    /// How many rows were ever stored.
    pub fn stored_count(&self) -> u64 {
        self.rows.stored_count()
    }

    /// Bytes that growth has taken from the budget.
    pub fn grown_bytes(&self) -> u64 {
        match &self.keys {
            Keys::Dense { .. } => 0,
            Keys::Hashed(index) => {
                let (rows, bytes) = self.rows.chunk();
                (self.rows.capacity() / rows) as u64 * bytes + index.charged()
            }
        }
    }

    /// Rows from `first` on that were ever trained or set, with their keys: those that are stored or cached.
    pub fn trained(&self, first: u32) -> Box<dyn Iterator<Item = (u64, u32)> + '_> {
        match &self.keys {
            Keys::Dense { rows, .. } => {
                let cached: BTreeSet<u32> =
                    (0..self.directory.slots()).filter_map(|slot| self.directory.row_at(slot)).collect();
                let trained = move |&row: &u32| self.rows.is_stored(row) || cached.contains(&row);
                Box::new((first..*rows as u32).filter(trained).map(|row| (self.key_of(row), row)))
            }
            Keys::Hashed(index) => {
                Box::new(index.entries(&self.rows).into_iter().filter(move |&(_, row)| row >= first))
            }
        }
    }

    /// How many rows there are or were, and which of them are to be reused.
    pub(super) fn handed_out(&self) -> (u32, &[u32]) {
        match &self.keys {
            Keys::Dense { rows, .. } => (*rows as u32, &[]),
            Keys::Hashed(index) => (index.end(), index.free()),
        }
    }

    /// Takes over saved rows. Those of a hashed part have no keys before [`TablePart::restore_index`].
    pub fn restore_rows(&mut self, piece: &RowsPiece, source: &ChunkSource, budget: &Budget) -> Result<()> {
        let wrong = |reason: &str| Error::NotRestored(format!("rows {} and on: {reason}", piece.first));
        let words = (piece.count as usize).div_ceil(64);
        if piece.stored.len() != words || piece.listed.as_ref().is_some_and(|listed| listed.len() != words) {
            return Err(wrong("the bits do not fit the number of rows"));
        }
        let end = piece.first.checked_add(piece.count).ok_or_else(|| wrong("there are too many"))?;
        match &self.keys {
            Keys::Dense { rows, .. } if u64::from(end) > *rows => return Err(wrong("the table has fewer")),
            Keys::Dense { .. } => {}
            Keys::Hashed(_) => {
                while self.rows.capacity() < end as usize {
                    budget.take(self.rows.chunk().1)?;
                    self.rows.grow(source)?;
                }
            }
        }
        let (mut keys, mut bytes) = (piece.keys.iter(), &piece.bytes[..]);
        let key_bytes = self.key_bytes;
        for i in (0..piece.count).filter(|&i| piece.is_listed(i)) {
            let row = piece.first + i;
            if key_bytes > 0 {
                let key = keys.next().ok_or_else(|| wrong("keys are missing"))?;
                self.rows.row_mut(row)[..key_bytes].copy_from_slice(&key.to_le_bytes());
            }
            if piece.is_stored(i) {
                self.rows.set_stored(row);
                let row = &mut self.rows.row_mut(row)[key_bytes..];
                let (now, rest) = bytes.split_at_checked(row.len()).ok_or_else(|| wrong("bytes are missing"))?;
                row.copy_from_slice(now);
                bytes = rest;
            } else {
                self.rows.clear_stored(row);
            }
        }
        match bytes.is_empty() && keys.next().is_none() {
            true => Ok(()),
            false => Err(wrong("there is more than the rows take")),
        }
    }

    /// Finds the keys of all rows below `end` that are not free.
    pub fn restore_index(&mut self, end: u32, free: Vec<u32>, budget: &Budget) -> Result<()> {
        match &mut self.keys {
            Keys::Dense { rows, .. } if u64::from(end) == *rows && free.is_empty() => Ok(()),
            Keys::Dense { rows, .. } => {
                Err(Error::NotRestored(format!("{end} rows, {} of them free, for a table of {rows}", free.len())))
            }
            Keys::Hashed(_) if self.rows.capacity() < end as usize => {
                Err(Error::NotRestored(format!("rows below {end} are missing")))
            }
            Keys::Hashed(index) => index.restore(&self.rows, budget, end, free),
        }
    }

    /// Takes over a directory, into one without rows. Returns where each of its slots went.
    pub fn restore_directory(&mut self, image: DirectoryImage) -> Result<Vec<Option<u32>>> {
        let (rows, _) = self.handed_out();
        if !image.is_consistent() || image.tags.iter().any(|&tag| tag > rows) {
            return Err(Error::NotRestored("the directory names rows that are not there".into()));
        }
        let TablePart { rows, keys, directory, .. } = self;
        let (rows, keys) = (&*rows, &*keys);
        Ok(directory.restore(image, |row| hash::mix64(keys.key_of(rows, row))))
    }

    /// Feeds everything that decides future behaviour, but the pool's slots, to `write`.
    pub fn digest(&self, mut write: impl FnMut(&[u8])) {
        let row = |write: &mut dyn FnMut(&[u8]), key: u64, row: u32| {
            write(&key.to_le_bytes());
            write(&row.to_le_bytes());
            write(self.stored(row).unwrap_or(&[]));
        };
        match &self.keys {
            Keys::Dense { rows, .. } => {
                for r in 0..*rows as u32 {
                    if self.rows.is_stored(r) {
                        row(&mut write, self.key_of(r), r);
                    }
                }
            }
            Keys::Hashed(index) => {
                for (key, r) in index.entries(&self.rows) {
                    row(&mut write, key, r);
                }
                write(bytemuck::cast_slice(index.free()));
            }
        }
        self.directory.digest(write);
    }
}
