//! The index of a hashed table in one partition: key to row.
//!
//! The key is kept at the front of its row, so the index itself is one 4-byte row number per bucket, and the
//! lookup's second memory access is the one that brings the row.

use hashbrown::HashTable;

use super::rows::{ChunkSource, Rows};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::numeric::hash;

/// Bytes at the front of a stored row that hold its key.
pub const KEY_BYTES: usize = 8;

/// A row number and a control byte.
const BUCKET_BYTES: u64 = 5;
/// So that small partitions do not grow one key at a time.
const FEWEST_BUCKETS: usize = 16;

/// What a part must grow by to hold more keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    chunks: usize,
    /// Of the index; 0 where it stays as it is.
    buckets: usize,
    index_bytes: u64,
    /// What it takes from the budget.
    pub bytes: u64,
}

/// Key to row, and which rows are free.
pub struct Index {
    table: HashTable<u32>,
    free: Vec<u32>,
    /// Rows below this were handed out at some time.
    next: u32,
    /// Rows promised to changes that are not applied yet.
    promised: u32,
    /// Bytes of index that the budget was charged.
    charged: u64,
}

#[inline(always)]
fn key_at(rows: &Rows, row: u32) -> u64 {
    let bytes = rows.row(row).first_chunk::<KEY_BYTES>().expect("a hashed row starts with its key");
    u64::from_le_bytes(*bytes)
}

impl Index {
    /// An empty index.
    pub fn new() -> Index {
        Index { table: HashTable::new(), free: Vec::new(), next: 0, promised: 0, charged: 0 }
    }

    /// How many keys there are.
    pub fn len(&self) -> u32 {
        self.table.len() as u32
    }

    /// The key of a row.
    #[inline(always)]
    pub fn key_of(&self, rows: &Rows, row: u32) -> u64 {
        key_at(rows, row)
    }

    /// The row of a key.
    #[inline(always)]
    pub fn find(&self, rows: &Rows, key: u64, mixed: u64) -> Option<u32> {
        self.table.find(hash::second(mixed), |&row| key_at(rows, row) == key).copied()
    }

    /// The row of a key, which is given one if it has none. The room was promised before.
    #[inline(always)]
    pub fn find_or_add(&mut self, rows: &mut Rows, key: u64, mixed: u64) -> u32 {
        if let Some(row) = self.find(rows, key, mixed) {
            return row;
        }
        let row = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        rows.row_mut(row)[..KEY_BYTES].copy_from_slice(&key.to_le_bytes());
        rows.clear_stored(row);
        self.table.insert_unique(hash::second(mixed), row, |&row| hash::second(hash::mix64(key_at(rows, row))));
        row
    }

    /// Takes a key out; its row will be reused.
    pub fn remove(&mut self, rows: &mut Rows, key: u64, mixed: u64) -> Option<u32> {
        let entry = self.table.find_entry(hash::second(mixed), |&row| key_at(rows, row) == key).ok()?;
        let row = entry.remove().0;
        rows.clear_stored(row);
        self.free.push(row);
        Some(row)
    }

    /// Promises room for `more` keys that come later, if there is room already.
    pub fn promise(&mut self, rows: &Rows, more: u32) -> bool {
        let wanted = self.len() as usize + self.promised as usize + more as usize;
        let fits = wanted <= rows.capacity() && wanted <= self.table.capacity();
        if fits {
            self.promised += more;
        }
        fits
    }

    /// What must be grown for `new` keys out of `sent`. `frugal` is as little as will do. Otherwise there is room to spare:
    /// rows, so that the next request of this size finds room for its keys without counting which are new; and buckets,
    /// because removed keys leave marks that take room until the table is built anew.
    pub fn growth(&self, rows: &Rows, new: u32, sent: usize, frugal: bool) -> Result<Growth> {
        let (chunk_rows, chunk_bytes) = rows.chunk();
        let spare = if frugal { 0 } else { sent.min(chunk_rows) };
        let wanted = self.len() as usize + self.promised as usize + new as usize + spare;
        if wanted >= u32::MAX as usize {
            return Err(Error::System(
                "a partition of a table holds at most 2^32 - 2 rows: use more partitions".into(),
            ));
        }
        let chunks = wanted.saturating_sub(rows.capacity()).div_ceil(chunk_rows);
        let mut buckets = 0;
        if wanted > self.table.capacity() {
            buckets = (wanted * 8 / 7 + 1).next_power_of_two().max(FEWEST_BUCKETS);
            let whole = self.table.num_buckets() / 8 * 7;
            if !frugal && wanted > whole / 4 * 3 {
                buckets = buckets.max(2 * self.table.num_buckets());
            }
            buckets = buckets.max(self.table.num_buckets());
        }
        let index_bytes = (BUCKET_BYTES * buckets as u64).saturating_sub(self.charged);
        Ok(Growth { chunks, buckets, index_bytes, bytes: chunks as u64 * chunk_bytes + index_bytes })
    }

    /// Grows by what [`Index::growth`] said. The budget was charged for it; what an error leaves undone is given back.
    pub fn grow(&mut self, rows: &mut Rows, source: &ChunkSource, budget: &Budget, growth: &Growth) -> Result<()> {
        let mut left = growth.bytes;
        let mut grow = || {
            for _ in 0..growth.chunks {
                rows.grow(source)?;
                left -= rows.chunk().1;
            }
            if growth.buckets > 0 {
                self.rebuild(rows, growth.buckets / 8 * 7)?;
                self.charged += growth.index_bytes;
                left -= growth.index_bytes;
            }
            Ok(())
        };
        grow().inspect_err(|_| budget.give_back(left))
    }

    /// The same keys in a table for `capacity` of them, without marks.
    fn rebuild(&mut self, rows: &Rows, capacity: usize) -> Result<()> {
        let rehash = |&row: &u32| hash::second(hash::mix64(key_at(rows, row)));
        let mut fresh = HashTable::new();
        fresh.try_reserve(capacity, rehash).map_err(|e| Error::System(format!("{e:?}")))?;
        for row in &self.table {
            fresh.insert_unique(rehash(row), *row, rehash);
        }
        self.table = fresh;
        Ok(())
    }

    /// Ends a promise of [`Index::promise`].
    pub fn release(&mut self, more: u32) {
        self.promised -= more;
    }

    /// Bytes of index that the budget was charged.
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// Every key with its row, in the order of rows.
    pub fn entries(&self, rows: &Rows) -> Vec<(u64, u32)> {
        let mut used: Vec<u32> = self.table.iter().copied().collect();
        used.sort_unstable();
        used.into_iter().map(|row| (key_at(rows, row), row)).collect()
    }

    /// Rows below this were handed out at some time.
    pub fn end(&self) -> u32 {
        self.next
    }

    /// Becomes the index of the rows below `end` that are not in `free`. The rows are there, keys and all.
    pub fn restore(&mut self, rows: &Rows, budget: &Budget, end: u32, free: Vec<u32>) -> Result<()> {
        let mut used = vec![true; end as usize];
        for &row in &free {
            match used.get_mut(row as usize) {
                Some(used) if *used => *used = false,
                _ => return Err(Error::NotRestored(format!("row {row} is free twice, or is not one of {end}"))),
            }
        }
        let keys = end as usize - free.len();
        let buckets = (keys * 8 / 7 + 1).next_power_of_two().max(FEWEST_BUCKETS);
        let bytes = (BUCKET_BYTES * buckets as u64).saturating_sub(self.charged);
        budget.take(bytes)?;
        self.charged += bytes;
        self.rebuild(rows, buckets / 8 * 7)?;
        for row in (0..end).filter(|&row| used[row as usize]) {
            let key = key_at(rows, row);
            let mixed = hash::mix64(key);
            if let Some(other) = self.find(rows, key, mixed) {
                return Err(Error::NotRestored(format!("rows {other} and {row} both have key {key}")));
            }
            self.table.insert_unique(hash::second(mixed), row, |&row| hash::second(hash::mix64(key_at(rows, row))));
        }
        (self.next, self.free) = (end, free);
        Ok(())
    }

    /// Rows to be reused, the last first.
    pub fn free(&self) -> &[u32] {
        &self.free
    }
}
