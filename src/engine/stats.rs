//! What can be watched: counts and sizes per table.

use std::sync::atomic::Ordering;

use super::Engine;
use crate::cache::{CachePlace, Directory, HitCurve, Policy};
use crate::error::{Error, Result};
use crate::table::PartCounts;

/// Counts and sizes of one table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableStats {
    /// Its name.
    pub table: String,
    /// Rows: all of a dense table, the keys present in a hashed one.
    pub rows: u64,
    /// Rows of which a stored form exists.
    pub stored_rows: u64,
    /// Rows in the cache.
    pub cached_rows: u64,
    /// Rows that fit in the cache.
    pub cache_slots: u64,
    /// Bytes set aside for rows, index included.
    pub row_bytes: u64,
    /// Bytes set aside for cached rows.
    pub cache_bytes: u64,
    /// Bytes of the cache's directory.
    pub directory_bytes: u64,
    /// Keys of pulls, as sent, that were in the cache.
    pub pull_hits: u64,
    /// Keys of pulls, as sent, that were not.
    pub pull_misses: u64,
    /// What changes have done.
    pub changes: PartCounts,
    /// Which row gives way to a new one.
    pub policy: Policy,
    /// The hit rates that an lru cache of another size would have; `None` for an f32 table, which has no cache.
    pub curve: Option<HitCurve>,
}

impl TableStats {
    /// The share of pulled keys that were in the cache.
    pub fn pull_hit_rate(&self) -> Option<f64> {
        ratio(self.pull_hits, self.pull_hits + self.pull_misses)
    }

    /// The share of pushed keys that were in the cache.
    pub fn push_hit_rate(&self) -> Option<f64> {
        ratio(self.changes.push_hits, self.changes.push_hits + self.changes.push_misses)
    }

    /// The share of keys of recent pushes and touches that a cache of so many rows would have hit, here in this engine.
    pub fn predicted_hit_rate(&self, cache_rows: u64) -> Option<f64> {
        self.curve.as_ref()?.hit_rate(cache_rows)
    }

    /// Roundings per stepped row: what predicts the noise that rounding adds to training.
    pub fn write_backs_per_update(&self) -> Option<f64> {
        ratio(self.changes.write_backs, self.changes.updated_rows)
    }

    /// The root of the mean squared rounding error of a weight, over the sampled write-backs.
    pub fn rounding_rms(&self) -> Option<f64> {
        let error = self.changes.rounding_error;
        (error.weights > 0).then(|| (error.squares / error.weights as f64).sqrt())
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Engine {
    /// Watches how a table's keys are used, as it always does, or does not: to measure what that costs.
    #[doc(hidden)]
    pub fn watch(&self, table: &str, on: bool) -> Result<()> {
        if let Some(observer) = &self.table(table)?.observer {
            observer.switch(on);
        }
        Ok(())
    }

    /// Counts and sizes of a table.
    pub fn stats(&self, table: &str) -> Result<TableStats> {
        let table = self.table(table)?;
        let partitions = self.partitions.len() as u32;
        let share = f64::from(partitions) / f64::from(self.config.partitions);
        let place = CachePlace { partitions, rows: table.shape.cache_rows as f64 * share };
        let mut stats = TableStats {
            table: table.name().into(),
            rows: 0,
            stored_rows: 0,
            cached_rows: 0,
            cache_slots: 0,
            row_bytes: 0,
            cache_bytes: 0,
            directory_bytes: 0,
            pull_hits: table.pull_hits.load(Ordering::Relaxed),
            pull_misses: table.pull_misses.load(Ordering::Relaxed),
            changes: PartCounts::default(),
            policy: table.spec.policy,
            curve: table.observer.as_ref().map(|observer| observer.curve(place, table.spec.policy == Policy::Lru)),
        };
        for partition in &self.partitions {
            let partition = partition.read();
            let part = partition.part(table.id).ok_or_else(|| Error::UnknownTable(table.name().into()))?;
            stats.rows += part.row_count();
            stats.stored_rows += part.stored_count();
            stats.cached_rows += u64::from(part.directory.occupied());
            stats.cache_slots += u64::from(part.directory.slots());
            stats.row_bytes += part.grown_bytes();
            stats.changes.add(&part.counts);
        }
        stats.directory_bytes = stats.cache_slots * Directory::BYTES_PER_SLOT;
        stats.row_bytes += table.charged - stats.directory_bytes;
        match table.cuda() {
            Some(slots) => stats.cache_bytes = slots.bytes(),
            None => {
                stats.cache_bytes = stats.cache_slots * table.layout().slot_bytes() as u64;
                stats.row_bytes -= stats.cache_bytes;
            }
        }
        Ok(stats)
    }
}
