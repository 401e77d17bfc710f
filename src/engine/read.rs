//! The engine's reading methods: locks, jobs, and what they are handed.
//!
//! `unsafe` lives here because pools trust their caller to hold the partitions' locks: these methods take them.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};
use xxhash_rust::xxh3::Xxh3Default;

use super::bags::{self, Bags};
use super::gpu_read;
use super::held::Held;
use super::partition::Partition;
use super::table::Table;
use super::{Engine, PooledPull, Pooling, Pull, Row, RowFormat, check};
use super::{inspect, pull};
use crate::error::{Error, Result};
use crate::numeric::WeightFormat;
use crate::numeric::format::encode_nearest;

/// Keys of one table that are read together.
pub struct JobRows<'a> {
    /// The table's parts.
    pub held: &'a Held<'a>,
    /// The keys.
    pub keys: &'a [u64],
    /// Whether hits and misses are counted.
    pub counted: bool,
}

/// Rows of one piece of work for the compute threads.
const JOB_ROWS: usize = 1024;

thread_local! {
    static ROWS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Encodes rows that lie one after the other: so many of each width.
fn encode_all(format: RowFormat, dims: &[(usize, usize)], mut rows: &[f32], mut out: &mut [u8]) {
    for &(dim, count) in dims {
        let (these, others) = rows.split_at(count * dim);
        let (mine, rest) = out.split_at_mut(count * format.row_bytes(dim));
        (rows, out) = (others, rest);
        for (row, out) in these.chunks_exact(dim).zip(mine.chunks_exact_mut(format.row_bytes(dim))) {
            encode_nearest(format.weights(), row, out);
        }
    }
}

/// Lets `read` fill `count` rows at f32, and encodes them into `out`.
fn encoded(format: RowFormat, dim: usize, count: usize, out: &mut [u8], read: impl FnOnce(&mut [f32])) {
    ROWS.with_borrow_mut(|rows| {
        rows.resize(count * dim, 0.0);
        read(rows);
        encode_all(format, &[(dim, count)], rows, out);
    });
}

impl Engine {
    /// Reads rows: those of the first table, in the order of its keys, then those of the next. `out` has `dim` numbers
    /// for every key. Changes nothing but the counters of hits and misses.
    pub fn pull(&self, pulls: &[Pull<'_>], out: &mut [f32]) -> Result<()> {
        self.pull_as(RowFormat::F32, pulls, bytemuck::cast_slice_mut(out))
    }

    /// Reads bags of rows as one row each, table after table. `out` has `dim` numbers for every bag.
    pub fn pull_pooled(&self, pulls: &[PooledPull<'_>], out: &mut [f32]) -> Result<()> {
        self.pull_pooled_as(RowFormat::F32, pulls, bytemuck::cast_slice_mut(out))
    }

    /// [`Engine::pull`] in another format. For f32, `out` must be aligned to four bytes.
    pub fn pull_as(&self, format: RowFormat, pulls: &[Pull<'_>], out: &mut [u8]) -> Result<()> {
        let tables = pulls.iter().map(|pull| self.table(pull.table)).collect::<Result<Vec<_>>>()?;
        for (table, pull) in tables.iter().zip(pulls) {
            self.check_keys(table, pull.keys)?;
        }
        self.check_out(format, &tables, pulls.iter().map(|pull| pull.keys.len()), out)?;
        self.read_rows(format, &tables, pulls, true, out)
    }

    /// Reads rows that were checked.
    fn read_rows(
        &self,
        format: RowFormat,
        tables: &[Arc<Table>],
        pulls: &[Pull<'_>],
        counted: bool,
        out: &mut [u8],
    ) -> Result<()> {
        let guards = self.read_guards(tables.iter().zip(pulls).map(|(table, pull)| (&**table, pull.keys)));
        let held = self.hold(tables, &guards)?;
        let rows = pulls.iter().map(|pull| pull.keys.len()).sum();
        // To begin with a piece takes time: what is not shared is not cut up.
        let some = if self.compute.helps(rows) { JOB_ROWS } else { usize::MAX };
        let jobs = held
            .iter()
            .zip(pulls)
            .flat_map(|(held, pull)| pull.keys.chunks(some).map(move |keys| JobRows { held, keys, counted }));
        if let Some(slots) = tables.iter().find_map(|table| table.cuda()) {
            let jobs: Vec<JobRows<'_>> = jobs.collect();
            let coming = gpu_read::rows(slots.device(), &self.compute, format.weights(), &jobs, out);
            drop(jobs);
            drop(held);
            drop(guards);
            coming.arrive(out);
            return Ok(());
        }
        let mut rest = out;
        let jobs = jobs.map(|job| {
            let bytes = job.keys.len() * format.row_bytes(job.held.table.dim());
            let (mine, others) = std::mem::take(&mut rest).split_at_mut(bytes);
            rest = others;
            (job, mine)
        });
        self.compute.each(rows, jobs.collect(), |(JobRows { held, keys, counted }, out)| {
            let hits = pull::rows(format.weights(), held, keys, out);
            if counted {
                held.table.count_pull(hits, keys.len() as u64 - hits);
            }
        });
        Ok(())
    }

    /// [`Engine::pull_pooled`] in another format. For f32, `out` must be aligned to four bytes.
    pub fn pull_pooled_as(&self, format: RowFormat, pulls: &[PooledPull<'_>], out: &mut [u8]) -> Result<()> {
        let tables = pulls.iter().map(|pull| self.table(pull.table)).collect::<Result<Vec<_>>>()?;
        for (table, pull) in tables.iter().zip(pulls) {
            self.check_pooled(table, pull)?;
        }
        self.check_out(format, &tables, pulls.iter().map(|pull| pull.offsets.len()), out)?;
        let guards = self.read_guards(tables.iter().zip(pulls).map(|(table, pull)| (&**table, pull.keys)));
        let held = self.hold(&tables, &guards)?;

        let mut jobs = Vec::new();
        for (held, pull) in held.iter().zip(pulls) {
            let &PooledPull { keys, weights, offsets, .. } = pull;
            // Offsets were checked to begin with 0.
            let bags = Bags { keys, weights, offsets, base: 0, mean: pull.pooling == Pooling::Mean };
            jobs.extend(bags.runs(JOB_ROWS).map(|bags| (held, bags)));
        }
        if let Some(slots) = tables.iter().find_map(|table| table.cuda()) {
            let dims = jobs.iter().map(|(held, bags)| (held.table.dim(), bags.offsets.len())).collect::<Vec<_>>();
            let mut rows = vec![0.0; dims.iter().map(|(dim, bags)| dim * bags).sum()];
            let coming = gpu_read::bags(slots.device(), &self.compute, &jobs, &mut rows);
            drop(jobs);
            drop(held);
            drop(guards);
            coming.arrive(&self.compute, &mut rows);
            encode_all(format, &dims, &rows, out);
            return Ok(());
        }
        let mut rest = out;
        let jobs = jobs.into_iter().map(|(held, bags)| {
            let bytes = bags.offsets.len() * format.row_bytes(held.table.dim());
            let (mine, others) = std::mem::take(&mut rest).split_at_mut(bytes);
            rest = others;
            (held, bags, mine)
        });
        let rows = pulls.iter().map(|pull| pull.keys.len()).sum();
        self.compute.each(rows, jobs.collect(), |(held, bags, out)| {
            let mut hits = 0;
            match format {
                RowFormat::F32 => hits = bags::pooled(held, &bags, bytemuck::cast_slice_mut(out)),
                _ => encoded(format, held.table.dim(), bags.offsets.len(), out, |rows| {
                    hits = bags::pooled(held, &bags, rows);
                }),
            }
            held.table.count_pull(hits, bags.keys.len() as u64 - hits);
        });
        Ok(())
    }

    /// [`Engine::pull`] of one table that counts nothing.
    pub fn read(&self, pull: Pull<'_>, out: &mut [f32]) -> Result<()> {
        let tables = [self.table(pull.table)?];
        self.check_keys(&tables[0], pull.keys)?;
        let dim = tables[0].dim();
        check::expect_len(pull.table, "out", pull.keys.len() * dim, out.len())?;
        self.read_rows(RowFormat::F32, &tables, &[pull], false, bytemuck::cast_slice_mut(out))
    }

    /// How a table stores its weights. It may be f32 where its spec says otherwise, because it is small.
    pub fn stored_format(&self, table: &str) -> Result<WeightFormat> {
        Ok(self.table(table)?.layout().weights)
    }

    /// Reads the weights of rows as the table stores them, in [`Engine::stored_format`]. A row that was changed in the
    /// cache since it was last stored, or was never stored, is rounded to the nearest. Counts nothing.
    pub fn read_stored(&self, pull: Pull<'_>, out: &mut [u8]) -> Result<()> {
        let table = self.table(pull.table)?;
        self.check_keys(&table, pull.keys)?;
        let row_bytes = table.layout().weights.bytes(table.dim());
        check::expect_len(pull.table, "bytes of out", pull.keys.len() * row_bytes, out.len())?;
        let guards = self.read_guards([(&*table, pull.keys)].into_iter());
        let part = |key| {
            let guard = guards[self.route.place(table.keys(), key)].as_ref();
            guard.and_then(|partition| partition.part(table.id))
        };
        // A drop may have come between the lookup of the name and the locks.
        if pull.keys.iter().any(|&key| part(key).is_none()) {
            return Err(Error::UnknownTable(table.name().into()));
        }
        let mut dirty: Vec<Vec<(u32, usize)>> = pull.keys.chunks(JOB_ROWS).map(|_| Vec::new()).collect();
        let jobs = pull.keys.chunks(JOB_ROWS).zip(out.chunks_mut(JOB_ROWS * row_bytes)).zip(&mut dirty).collect();
        self.compute.each(pull.keys.len(), jobs, |((keys, out), dirty): ((&[u64], &mut [u8]), _)| {
            *dirty = inspect::stored(&table, keys, part, out);
        });
        // Not on the compute threads: they must not wait for a GPU, which those who wait for them may keep busy.
        for (dirty, out) in dirty.iter().zip(out.chunks_mut(JOB_ROWS * row_bytes)) {
            // SAFETY: `guards` hold the partitions, and the slots were found in their parts.
            unsafe { inspect::stored_anew(&table, dirty, out) };
        }
        Ok(())
    }

    /// Reads everything about one row. Counts nothing.
    pub fn inspect(&self, table: &str, key: u64) -> Result<Row> {
        let table = self.table(table)?;
        self.check_keys(&table, &[key])?;
        let partition = self.partitions[self.route.place(table.keys(), key)].read();
        inspect::inspect(&partition, &table, key).ok_or_else(|| Error::UnknownTable(table.name().into()))
    }

    /// A fingerprint of the whole state of each owned partition: rows, optimizer state, cache, recency, rounding
    /// counters. Engines that were given the same changes have the same digests, whatever their threads, pulls or
    /// split of partitions (unless a row has diverged to NaN, whose bits are not defined).
    pub fn digests(&self) -> Vec<(u32, u64)> {
        let mut tables: Vec<Arc<Table>> = self.tables.iter().map(|entry| Arc::clone(entry.value())).collect();
        tables.sort_by(|a, b| a.name().cmp(b.name()));
        // Taken before the partitions, as changes do.
        let mut turn = self.order.turn();
        let digest = |(place, partition): (usize, &RwLock<Partition>)| {
            let partition = partition.read();
            let mut hasher = Xxh3Default::new();
            inspect::digest(&partition, &tables, |bytes| hasher.update(bytes));
            turn.clients().digest(place, |bytes| hasher.update(bytes));
            (partition.id, hasher.digest())
        };
        self.partitions.iter().enumerate().map(digest).collect()
    }

    /// The next write-back number of a partition that is owned here.
    pub fn write_backs(&self, partition: u32) -> Option<u64> {
        let place = self.route.owned().binary_search(&partition).ok()?;
        Some(self.partitions[place].read().write_backs)
    }

    fn check_out(
        &self,
        format: RowFormat,
        tables: &[Arc<Table>],
        rows: impl Iterator<Item = usize>,
        out: &[u8],
    ) -> Result<()> {
        let expected = tables.iter().zip(rows).map(|(table, rows)| rows * format.row_bytes(table.dim())).sum();
        let aligned = format != RowFormat::F32 || out.as_ptr().cast::<f32>().is_aligned();
        if expected == out.len() && aligned {
            return Ok(());
        }
        let named = tables.iter().map(|table| table.name()).collect::<Vec<_>>().join(", ");
        if !aligned {
            let reason = "out must be aligned to four bytes".into();
            return Err(Error::InvalidRequest { table: named, reason });
        }
        match format {
            RowFormat::F32 => check::expect_len(&named, "out", expected / 4, out.len() / 4),
            _ => check::expect_len(&named, "bytes of out", expected, out.len()),
        }
    }

    /// Shared locks of the partitions that hold these keys, from the first to the last.
    fn read_guards<'a>(
        &self,
        wanted: impl Iterator<Item = (&'a Table, &'a [u64])>,
    ) -> Vec<Option<RwLockReadGuard<'_, Partition>>> {
        let mut needed = vec![false; self.partitions.len()];
        for (table, keys) in wanted {
            if keys.len() >= 2 * needed.len() {
                needed.fill(true);
                break;
            }
            for &key in keys {
                needed[self.route.place(table.keys(), key)] = true;
            }
        }
        self.partitions.iter().zip(needed).map(|(partition, needed)| needed.then(|| partition.read())).collect()
    }

    /// What these guards hold of each table.
    fn hold<'a>(
        &'a self,
        tables: &'a [Arc<Table>],
        guards: &'a [Option<RwLockReadGuard<'_, Partition>>],
    ) -> Result<Vec<Held<'a>>> {
        let partitions = guards.iter().filter_map(Option::as_deref);
        tables.iter().map(|table| Held::new(table, &self.route, partitions.clone())).collect()
    }
}
