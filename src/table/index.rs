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
/// hashbrown starts with no fewer.
const FEWEST_BUCKETS: usize = 16;

/// Key to row, and which rows are free.
pub struct Index {
    table: HashTable<u32>,
    free: Vec<u32>,
    /// Rows below this were handed out at some time.
    next: u32,
    /// Rows promised to changes that are not applied yet.
    reserved: u32,
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
        Index { table: HashTable::new(), free: Vec::new(), next: 0, reserved: 0, charged: 0 }
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

    /// The row of a key, which is given one if it has none. The room was reserved before.
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

    /// Makes sure that `more` keys can be added later without asking for memory.
    pub fn reserve(&mut self, rows: &mut Rows, source: &ChunkSource, budget: &Budget, more: u32) -> Result<()> {
        let wanted = self.len() as usize + self.reserved as usize + more as usize;
        if wanted >= u32::MAX as usize {
            return Err(Error::System("a partition of a table holds at most 2^32 rows: use more partitions".into()));
        }
        while (rows.capacity() as usize) < wanted {
            let (_, bytes) = rows.chunk();
            budget.take(bytes)?;
            rows.grow(source).inspect_err(|_| budget.give_back(bytes))?;
        }
        if self.table.capacity() < wanted {
            // Removed keys leave marks that take room until the table is built anew. That is enough where it would
            // not soon be full again; at the memory limit it must be.
            let whole = self.table.num_buckets() / 8 * 7;
            let grown =
                if wanted > whole / 4 * 3 { self.grow(rows, budget, wanted) } else { self.rebuild(rows, whole) };
            match grown {
                Err(Error::OutOfMemory { .. }) if wanted <= whole => self.rebuild(rows, whole)?,
                other => other?,
            }
        }
        self.reserved += more;
        Ok(())
    }

    /// Twice as many buckets, or as many as are needed.
    fn grow(&mut self, rows: &Rows, budget: &Budget, wanted: usize) -> Result<()> {
        let buckets = (wanted * 8 / 7 + 1).next_power_of_two().max(FEWEST_BUCKETS);
        let bytes = (BUCKET_BYTES * buckets as u64).saturating_sub(self.charged);
        budget.take(bytes)?;
        self.rebuild(rows, buckets / 8 * 7).inspect_err(|_| budget.give_back(bytes))?;
        self.charged += bytes;
        Ok(())
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

    /// Ends a promise of [`Index::reserve`].
    pub fn release(&mut self, more: u32) {
        self.reserved -= more;
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

    /// Rows to be reused, the last first.
    pub fn free(&self) -> &[u32] {
        &self.free
    }
}
