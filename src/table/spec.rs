//! What a table is: the spec a user writes, and what follows from it.

use crate::cache::{Directory, Policy, RowLayout, StateLayout, StatePrecision};
use crate::error::{Error, Result};
use crate::numeric::{Precision, Quantizer, Rounding, WeightFormat};
use crate::table::{Initializer, Optimizer};

/// A dense table that takes less than this at f32 stays f32: rounding it would save nothing.
pub const SMALL_TABLE_BYTES: u64 = 1 << 20;
/// The largest number of weights in a row.
pub const MAX_DIM: usize = 4096;
/// The largest number of bytes in a table's name.
const MAX_NAME: usize = 255;

/// Which keys a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySpace {
    /// Keys 0 to `rows` - 1. No index, and no memory but the rows themselves.
    Dense {
        /// How many.
        rows: u64,
    },
    /// Any 64-bit key. Rows appear when they are first pushed, touched or assigned.
    Hashed,
}

/// How much the full-precision cache of a table may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheBudget {
    /// This many rows.
    Rows(u64),
    /// As many rows as fit in this many bytes, directory included.
    Bytes(u64),
    /// This percentage of the rows of a dense table.
    Percent(f64),
}

/// A table, as its user describes it.
///
/// ```
/// use hotrow::{CacheBudget, Optimizer, Precision, TableSpec};
/// let spec = TableSpec::dense("user", 1_000_000, 64)
///     .precision(Precision::Int8)
///     .cache(CacheBudget::Percent(5.0))
///     .optimizer(Optimizer::rowwise_adagrad(), 0.02);
/// assert_eq!(spec.footprint().unwrap().bytes_per_row.round(), 84.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TableSpec {
    /// Its name: letters, digits, `_`, `-`, `.` and `/`.
    pub name: String,
    /// Weights in a row.
    pub dim: usize,
    /// Which keys it has.
    pub keys: KeySpace,
    /// How rows are stored. A dense table that takes under 1 MiB at f32 stays f32.
    pub precision: Precision,
    /// How integer codes map to values.
    pub quantizer: Quantizer,
    /// How rows are rounded when they leave the cache.
    pub rounding: Rounding,
    /// How gradients change weights.
    pub optimizer: Optimizer,
    /// The learning rate, where a push does not bring its own.
    pub learning_rate: f32,
    /// L2 weight decay on the rows of a push (decoupled for AdamW).
    pub weight_decay: f32,
    /// The largest L2 norm of a row's gradient; longer ones are scaled down to it.
    pub clip_norm: Option<f32>,
    /// How optimizer state is stored.
    pub state_precision: StatePrecision,
    /// What untrained rows read as.
    pub initializer: Initializer,
    /// How much the full-precision cache may hold.
    pub cache: CacheBudget,
    /// Which row gives way to a new one.
    pub policy: Policy,
}

impl TableSpec {
    /// A table of keys 0 to `rows` - 1, with the defaults: int8, a cache of 5 % of the rows, row-wise Adagrad.
    pub fn dense(name: impl Into<String>, rows: u64, dim: usize) -> TableSpec {
        TableSpec::new(name.into(), KeySpace::Dense { rows }, dim, Initializer::Dlrm, CacheBudget::Percent(5.0))
    }

    /// A table of any 64-bit keys, with the same defaults but a cache of 65,536 rows.
    pub fn hashed(name: impl Into<String>, dim: usize) -> TableSpec {
        let initializer = Initializer::Uniform { low: -0.01, high: 0.01 };
        TableSpec::new(name.into(), KeySpace::Hashed, dim, initializer, CacheBudget::Rows(65_536))
    }

    fn new(name: String, keys: KeySpace, dim: usize, initializer: Initializer, cache: CacheBudget) -> TableSpec {
        TableSpec {
            name,
            dim,
            keys,
            precision: Precision::Int8,
            quantizer: Quantizer::Symmetric,
            rounding: Rounding::Stochastic,
            optimizer: Optimizer::rowwise_adagrad(),
            learning_rate: 0.01,
            weight_decay: 0.0,
            clip_norm: None,
            state_precision: StatePrecision::F32,
            initializer,
            cache,
            policy: Policy::Lru,
        }
    }

    /// Sets how rows are stored, and the quantizer and the policy that are the defaults for it: affine and lfu for int4 and
    /// int2, symmetric and lru for the others (`docs/NUMERICS.md`, section 7, says why).
    pub fn precision(mut self, precision: Precision) -> TableSpec {
        self.precision = precision;
        (self.quantizer, self.policy) = match precision {
            Precision::Int4 | Precision::Int2 => (Quantizer::Affine, Policy::Lfu),
            _ => (Quantizer::Symmetric, Policy::Lru),
        };
        self
    }

    /// Sets how integer codes map to values; call it after [`TableSpec::precision`].
    pub fn quantizer(mut self, quantizer: Quantizer) -> TableSpec {
        self.quantizer = quantizer;
        self
    }

    /// Sets how rows are rounded.
    pub fn rounding(mut self, rounding: Rounding) -> TableSpec {
        self.rounding = rounding;
        self
    }

    /// Sets the optimizer and its learning rate.
    pub fn optimizer(mut self, optimizer: Optimizer, learning_rate: f32) -> TableSpec {
        self.optimizer = optimizer;
        self.learning_rate = learning_rate;
        self
    }

    /// Sets the weight decay.
    pub fn weight_decay(mut self, weight_decay: f32) -> TableSpec {
        self.weight_decay = weight_decay;
        self
    }

    /// Sets the largest norm of a row's gradient.
    pub fn clip_norm(mut self, norm: f32) -> TableSpec {
        self.clip_norm = Some(norm);
        self
    }

    /// Sets how optimizer state is stored.
    pub fn state_precision(mut self, precision: StatePrecision) -> TableSpec {
        self.state_precision = precision;
        self
    }

    /// Sets what untrained rows read as.
    pub fn initializer(mut self, initializer: Initializer) -> TableSpec {
        self.initializer = initializer;
        self
    }

    /// Sets how much the cache may hold.
    pub fn cache(mut self, budget: CacheBudget) -> TableSpec {
        self.cache = budget;
        self
    }

    /// Sets which row gives way to a new one; call it after [`TableSpec::precision`].
    pub fn policy(mut self, policy: Policy) -> TableSpec {
        self.policy = policy;
        self
    }

    /// The number of rows, where it is fixed.
    pub fn rows(&self) -> Option<u64> {
        match self.keys {
            KeySpace::Dense { rows } => Some(rows),
            KeySpace::Hashed => None,
        }
    }

    /// Checks the spec and works out what follows from it. Dense tables that take fewer than
    /// `small_table_bytes` at f32 become f32.
    pub(crate) fn shape(&self, small_table_bytes: u64) -> Result<Shape> {
        if let Some(reason) = self.problem() {
            return Err(Error::InvalidSpec { table: self.name.clone(), reason });
        }
        let small = self.rows().is_some_and(|rows| rows.saturating_mul(4 * self.dim as u64) < small_table_bytes);
        let (tensors, len) = self.optimizer.state(self.dim);
        let weights = WeightFormat::new(self.precision, self.quantizer).expect("checked with the rest of the spec");
        let layout = RowLayout {
            dim: self.dim,
            weights: if small { WeightFormat::F32 } else { weights },
            rounding: self.rounding,
            state: StateLayout {
                tensors,
                len,
                precision: if small { StatePrecision::F32 } else { self.state_precision },
            },
        };
        let wanted = match (self.cache, self.rows()) {
            (CacheBudget::Rows(rows), _) => rows,
            (CacheBudget::Bytes(bytes), _) => bytes / (layout.slot_bytes() as u64 + Directory::BYTES_PER_SLOT),
            (CacheBudget::Percent(percent), rows) => (rows.unwrap_or(0) as f64 * percent / 100.0) as u64,
        };
        let cache_rows = if layout.is_exact() { 0 } else { wanted.min(self.rows().unwrap_or(u64::MAX)) };
        Ok(Shape { layout, keys: self.keys, cache_rows })
    }

    /// What the table will cost in memory. It is printed before anything starts.
    pub fn footprint(&self) -> Result<Footprint> {
        Ok(self.shape(SMALL_TABLE_BYTES)?.footprint())
    }

    fn problem(&self) -> Option<String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        if self.name.is_empty() || self.name.len() > MAX_NAME || !self.name.chars().all(allowed) {
            return Some(format!("a name has 1 to {MAX_NAME} letters, digits or any of _ - . /"));
        }
        if !(1..=MAX_DIM).contains(&self.dim) {
            return Some(format!("dim is {}, it must be from 1 to {MAX_DIM}", self.dim));
        }
        if self.rows() == Some(0) {
            return Some("a dense table needs at least one row".into());
        }
        if self.rows().is_some_and(|rows| rows > 1 << 40) {
            return Some("a dense table has at most 2^40 rows: use a hashed one for sparse keys".into());
        }
        if WeightFormat::new(self.precision, self.quantizer).is_none() {
            return Some("int2 needs the affine quantizer".into());
        }
        if self.initializer == Initializer::Dlrm && self.rows().is_none() {
            return Some("the dlrm initializer needs the number of rows: use uniform for a hashed table".into());
        }
        match self.cache {
            CacheBudget::Percent(p) if !(0.0..=100.0).contains(&p) => {
                return Some(format!("a cache of {p} % makes no sense: use 0 to 100"));
            }
            CacheBudget::Percent(_) if self.rows().is_none() => {
                return Some("a hashed table has no number of rows to take a percentage of: give rows or bytes".into());
            }
            _ => {}
        }
        if !(self.learning_rate.is_finite() && self.learning_rate >= 0.0) {
            return Some("the learning rate must be finite and not negative".into());
        }
        if !(self.weight_decay.is_finite() && self.weight_decay >= 0.0) {
            return Some("the weight decay must be finite and not negative".into());
        }
        if self.clip_norm.is_some_and(|c| !(c.is_finite() && c > 0.0)) {
            return Some("the clipping norm must be finite and above zero".into());
        }
        self.optimizer.problem().or(self.initializer.problem()).map(String::from)
    }
}

/// What follows from a spec.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// How rows are laid out.
    pub layout: RowLayout,
    /// Which keys there are.
    pub keys: KeySpace,
    /// Rows that the cache may hold, over all partitions.
    pub cache_rows: u64,
}

impl Shape {
    /// Bytes that one stored row takes, the key of a hashed table included.
    pub fn stride(&self) -> usize {
        let key = match self.keys {
            KeySpace::Dense { .. } => 0,
            KeySpace::Hashed => 8,
        };
        key + self.layout.row_bytes()
    }

    /// Rows of a dense table in partition `p` of `partitions`; 0 for a hashed table.
    pub fn rows_in(&self, p: u32, partitions: u32) -> u64 {
        match self.keys {
            KeySpace::Dense { rows } => (rows + u64::from(partitions) - 1 - u64::from(p)) / u64::from(partitions),
            KeySpace::Hashed => 0,
        }
    }

    /// Cache rows in partition `p` of `partitions`. An engine refuses a table with 2^32 or more of them.
    pub fn cache_rows_in(&self, p: u32, partitions: u32) -> u64 {
        let rest = u64::from(u64::from(p) < self.cache_rows % u64::from(partitions));
        self.cache_rows / u64::from(partitions) + rest
    }

    /// Bits beside each row: whether it was ever stored, and in a dense table with a cache, whether it is cached.
    pub fn bits_per_row(&self) -> u64 {
        1 + u64::from(self.cache_rows > 0 && self.keys != KeySpace::Hashed)
    }

    /// What the table costs in memory.
    pub fn footprint(&self) -> Footprint {
        let row = self.stride() as f64 + self.bits_per_row() as f64 / 8.0;
        let index = match self.keys {
            KeySpace::Dense { .. } => 0.0,
            KeySpace::Hashed => HASHED_INDEX_BYTES,
        };
        let slot = self.layout.slot_bytes() as f64 + Directory::BYTES_PER_SLOT as f64;
        let cache_bytes = self.cache_rows as f64 * slot;
        let (bytes_per_row, total_bytes) = match self.keys {
            KeySpace::Dense { rows } => (row + cache_bytes / rows as f64, Some(row * rows as f64 + cache_bytes)),
            KeySpace::Hashed => (row + index, None),
        };
        Footprint { row_bytes: row + index, cache_slot_bytes: slot, cache_bytes, bytes_per_row, total_bytes }
    }
}

/// At most this many bytes of index per row: five per bucket, and right after growth 7 buckets in 16 are used. (Where
/// keys are removed and others added, it may be twice that.)
const HASHED_INDEX_BYTES: f64 = 5.0 * 16.0 / 7.0;

/// What a table costs in memory, everything counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Footprint {
    /// Bytes of one stored row: weights, scale, optimizer state, the bit that says it was stored, for dense tables with a
    /// cache the one that says it is cached, and for hashed tables the key and its index entry.
    pub row_bytes: f64,
    /// Bytes of one cached row: weights and state at f32, and its place in the directory.
    pub cache_slot_bytes: f64,
    /// Bytes of the whole cache.
    pub cache_bytes: f64,
    /// Bytes per row, the cache shared out over the rows of a dense table (not for a hashed one).
    pub bytes_per_row: f64,
    /// Bytes of the whole table, where its number of rows is fixed.
    pub total_bytes: Option<f64>,
}
