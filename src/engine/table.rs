//! A live table: what all its parts share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cache::{Pool, RowLayout};
use crate::table::{ChunkSource, Initial, KeySpace, Shape, TableSpec};

/// A live table. Its parts are in the partitions, under their locks, at index `id`.
pub struct Table {
    /// Where its parts are in every partition. Never reused.
    pub id: usize,
    /// As its user described it.
    pub spec: TableSpec,
    /// What follows from the spec.
    pub shape: Shape,
    /// What untrained rows read as.
    pub initial: Initial,
    /// Where cached rows are; `None` for a table without a cache.
    pub pool: Option<Box<dyn Pool>>,
    /// Where hashed parts get memory from.
    pub chunks: ChunkSource,
    /// Bytes that its creation took from the budget.
    pub charged: u64,
    /// Set when a drop is put in order; no change of the table comes after that.
    pub dropped: AtomicBool,
    /// Keys that pulls found in the cache.
    pub pull_hits: AtomicU64,
    /// Keys that pulls did not find there.
    pub pull_misses: AtomicU64,
}

impl Table {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Weights in a row.
    pub fn dim(&self) -> usize {
        self.spec.dim
    }

    /// How rows are laid out.
    pub fn layout(&self) -> &RowLayout {
        &self.shape.layout
    }

    /// Which keys it has.
    pub fn keys(&self) -> KeySpace {
        self.shape.keys
    }

    /// Counts the keys of a pull.
    pub fn count_pull(&self, hits: u64, misses: u64) {
        self.pull_hits.fetch_add(hits, Ordering::Relaxed);
        self.pull_misses.fetch_add(misses, Ordering::Relaxed);
    }
}
