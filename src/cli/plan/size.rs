//! How large tables are, and how many hosts hold them.

use anyhow::Result;

use crate::numeric::{Precision, WeightFormat};
use crate::table::{CacheBudget, SMALL_TABLE_BYTES, TableSpec};

/// The most partitions that a cluster can have.
pub const MAX_PARTITIONS: u32 = 1 << 16;

/// A table, and how many rows it has or will have.
pub struct Planned {
    pub spec: TableSpec,
    pub rows: Option<u64>,
}

/// Where the bytes of a row go. The cache is shared out over all rows.
pub struct Parts {
    pub weights: f64,
    pub state: f64,
    pub index: f64,
    pub cache: f64,
    pub directory: f64,
}

impl Parts {
    pub fn sum(&self) -> f64 {
        self.weights + self.state + self.index + self.cache + self.directory
    }
}

impl Planned {
    /// Bytes of the whole table; `None` where the number of rows is not known.
    pub fn bytes(&self) -> Result<Option<f64>> {
        let footprint = self.spec.footprint()?;
        let grown = self.rows.map(|rows| footprint.row_bytes * rows as f64 + footprint.cache_bytes);
        Ok(footprint.total_bytes.or(grown))
    }

    pub fn cache_rows(&self) -> Result<u64> {
        Ok(self.spec.shape(SMALL_TABLE_BYTES)?.cache_rows)
    }

    pub fn parts(&self) -> Result<Parts> {
        let layout = self.spec.shape(SMALL_TABLE_BYTES)?.layout;
        let footprint = self.spec.footprint()?;
        let weights = layout.weights.bytes(layout.dim) as f64;
        let stored = layout.row_bytes() as f64;
        let cached = self.rows.filter(|&rows| rows > 0).map_or(0.0, |rows| self.cache_rows_per(rows));
        let slot = layout.slot_bytes() as f64;
        Ok(Parts {
            weights,
            state: stored - weights,
            index: footprint.row_bytes - stored,
            cache: cached * slot,
            directory: cached * (footprint.cache_slot_bytes - slot),
        })
    }

    pub fn cache_rows_per(&self, rows: u64) -> f64 {
        self.cache_rows().map_or(0.0, |cached| cached as f64 / rows as f64)
    }

    /// Whether it stays f32 because it is small.
    pub fn is_small(&self) -> Result<bool> {
        let weights = self.spec.shape(SMALL_TABLE_BYTES)?.layout.weights;
        Ok(weights == WeightFormat::F32 && self.spec.precision != Precision::F32)
    }

    /// The same table at another precision, with a cache of `percent` of its rows. A precision that is not its own comes
    /// with its default quantizer.
    pub fn at(&self, precision: Precision, percent: f64) -> Planned {
        let mut spec = self.spec.clone();
        if spec.precision != precision {
            spec = spec.precision(precision);
        }
        spec.cache = match self.spec.rows() {
            Some(_) => CacheBudget::Percent(percent),
            None => CacheBudget::Rows((self.rows.unwrap_or(0) as f64 * percent / 100.0) as u64),
        };
        Planned { spec, rows: self.rows }
    }

    /// Bytes of a row, its share of a cache of `percent` of the rows included, where their number is not known.
    pub fn bytes_per_row_at(&self, precision: Precision, percent: f64) -> Result<f64> {
        let mut one = self.at(precision, 0.0);
        one.spec.cache = match self.spec.rows() {
            Some(_) => CacheBudget::Percent(percent),
            None => CacheBudget::Rows(1),
        };
        let footprint = one.spec.footprint()?;
        Ok(match self.spec.rows() {
            Some(_) => footprint.bytes_per_row,
            None => footprint.row_bytes + footprint.cache_bytes * percent / 100.0,
        })
    }
}

/// How many shards, or why there is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shards {
    Needed(u32),
    /// A partition is too large for a host; so many partitions would do.
    MorePartitions(u32),
    /// Not even the largest number of partitions would do.
    TooLarge,
}

/// What hosts offer.
#[derive(Clone, Copy)]
pub struct Hosts {
    pub memory: u64,
    pub headroom: f64,
    pub partitions: u32,
}

impl Hosts {
    /// Bytes for tables on one host.
    pub fn usable(self) -> f64 {
        self.memory as f64 * (1.0 - self.headroom / 100.0)
    }

    /// The shards that tables need. A shard owns whole partitions, so it is the one with the most of them that must fit.
    pub fn shards(self, tables: &[Planned]) -> Result<Shards> {
        let mut partitions = self.partitions;
        loop {
            let owned = self.partitions_on_a_host(tables, partitions)?;
            match owned {
                0 if partitions >= MAX_PARTITIONS => return Ok(Shards::TooLarge),
                0 => partitions *= 2,
                _ if partitions == self.partitions => return Ok(Shards::Needed(partitions.div_ceil(owned))),
                _ => return Ok(Shards::MorePartitions(partitions)),
            }
        }
    }

    /// The fewest shards that smaller partitions could do with, and how many partitions that takes.
    pub fn fewer_with_more_partitions(self, tables: &[Planned], needed: u32) -> Result<Option<(u32, u32)>> {
        let mut best = None;
        let mut fewest = needed;
        let mut partitions = self.partitions;
        while partitions < MAX_PARTITIONS {
            partitions *= 2;
            if let Shards::Needed(shards) = (Hosts { partitions, ..self }).shards(tables)?
                && shards < fewest
            {
                fewest = shards;
                best = Some((shards, partitions));
            }
        }
        Ok(best)
    }

    /// How many of so many partitions fit on one host.
    pub fn partitions_on_a_host(self, tables: &[Planned], partitions: u32) -> Result<u32> {
        let mut bytes = 0.0;
        let mut owned = partitions;
        for table in tables {
            let footprint = table.spec.footprint()?;
            let rows = table.rows.unwrap_or(0).div_ceil(u64::from(partitions));
            let cached = table.cache_rows()?.div_ceil(u64::from(partitions));
            bytes += footprint.row_bytes * rows as f64 + footprint.cache_slot_bytes * cached as f64;
            // What an engine can number: rows in a partition, cached rows on a shard.
            if rows >= u64::from(u32::MAX) {
                return Ok(0);
            }
            owned = owned.min((u64::from(u32::MAX) / cached.max(1)) as u32);
        }
        let fit = if bytes > 0.0 { self.usable() / bytes } else { f64::INFINITY };
        Ok(owned.min(fit as u32))
    }
}

/// Bytes of all tables whose rows are known.
pub fn total(tables: &[Planned]) -> Result<f64> {
    tables.iter().try_fold(0.0, |sum, table| Ok(sum + table.bytes()?.unwrap_or(0.0)))
}
