//! The engine's reading methods: locks, jobs, and what they are handed.

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};
use xxhash_rust::xxh3::Xxh3Default;

use super::partition::Partition;
use super::pull::{self, Bags, Held};
use super::table::Table;
use super::{Engine, PooledPull, Pooling, Pull, Row, RowFormat, check};
use crate::error::{Error, Result};
use crate::numeric::WeightFormat;
use crate::numeric::format::encode_nearest;

/// Rows of one piece of work for the compute threads.
const JOB_ROWS: usize = 1024;

thread_local! {
    static ROWS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Lets `read` fill `count` rows at f32, and encodes them into `out`.
fn encoded(format: RowFormat, dim: usize, count: usize, out: &mut [u8], read: impl FnOnce(&mut [f32])) {
    ROWS.with_borrow_mut(|rows| {
        rows.resize(count * dim, 0.0);
        read(rows);
        for (row, out) in rows.chunks_exact(dim).zip(out.chunks_exact_mut(format.row_bytes(dim))) {
            encode_nearest(format.weights(), row, out);
        }
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
        let guards = self.read_guards(tables.iter().zip(pulls).map(|(table, pull)| (&**table, pull.keys)));
        let held = self.hold(&tables, &guards)?;

        let mut jobs = Vec::new();
        let mut rest = out;
        for (held, pull) in held.iter().zip(pulls) {
            let row_bytes = format.row_bytes(held.table.dim());
            let (mine, others) = rest.split_at_mut(pull.keys.len() * row_bytes);
            rest = others;
            for (keys, out) in pull.keys.chunks(JOB_ROWS).zip(mine.chunks_mut(JOB_ROWS * row_bytes)) {
                jobs.push((held, keys, out));
            }
        }
        let rows = pulls.iter().map(|pull| pull.keys.len()).sum();
        self.compute.each(rows, jobs, |(held, keys, out)| {
            let hits = match format {
                RowFormat::F32 => pull::rows(held, keys, bytemuck::cast_slice_mut(out)),
                _ => pull::rows_as(format.weights(), held, keys, out),
            };
            held.table.count_pull(hits, keys.len() as u64 - hits);
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
        let mut rest = out;
        for (held, pull) in held.iter().zip(pulls) {
            let row_bytes = format.row_bytes(held.table.dim());
            let (mine, others) = rest.split_at_mut(pull.offsets.len() * row_bytes);
            rest = others;
            let mut out = mine;
            let mut first = 0;
            while first < pull.offsets.len() {
                // As many bags as make a job, and at least one.
                let base = pull.offsets[first];
                let full = |&&offset: &&u64| offset - base < JOB_ROWS as u64;
                let bags = pull.offsets[first..].iter().take_while(full).take(JOB_ROWS).count().max(1);
                let end = pull.offsets.get(first + bags).map_or(pull.keys.len(), |&end| end as usize);
                let range = base as usize..end;
                let (mine, others) = out.split_at_mut(bags * row_bytes);
                out = others;
                let bags_here = Bags {
                    keys: &pull.keys[range.clone()],
                    weights: pull.weights.map(|weights| &weights[range]),
                    offsets: &pull.offsets[first..first + bags],
                    base,
                    mean: pull.pooling == Pooling::Mean,
                };
                jobs.push((held, bags_here, mine));
                first += bags;
            }
        }
        let rows = pulls.iter().map(|pull| pull.keys.len()).sum();
        self.compute.each(rows, jobs, |(held, bags, out)| {
            let mut hits = 0;
            match format {
                RowFormat::F32 => hits = pull::pooled(held, &bags, bytemuck::cast_slice_mut(out)),
                _ => encoded(format, held.table.dim(), bags.offsets.len(), out, |rows| {
                    hits = pull::pooled(held, &bags, rows);
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
        let guards = self.read_guards([(&*tables[0], pull.keys)].into_iter());
        let held = self.hold(&tables, &guards)?;
        let jobs = pull.keys.chunks(JOB_ROWS).zip(out.chunks_mut(JOB_ROWS * dim)).collect();
        self.compute.each(pull.keys.len(), jobs, |(keys, out)| {
            pull::rows(&held[0], keys, out);
        });
        Ok(())
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
        let jobs = pull.keys.chunks(JOB_ROWS).zip(out.chunks_mut(JOB_ROWS * row_bytes)).collect();
        self.compute.each(pull.keys.len(), jobs, |(keys, out): (&[u64], &mut [u8])| {
            ROWS.with_borrow_mut(|weights| {
                weights.resize(table.dim(), 0.0);
                for (&key, out) in keys.iter().zip(out.chunks_exact_mut(row_bytes)) {
                    if let Some(part) = part(key) {
                        pull::stored(part, &table, key, weights, out);
                    }
                }
            });
        });
        Ok(())
    }

    /// Reads everything about one row. Counts nothing.
    pub fn inspect(&self, table: &str, key: u64) -> Result<Row> {
        let table = self.table(table)?;
        self.check_keys(&table, &[key])?;
        let partition = self.partitions[self.route.place(table.keys(), key)].read();
        pull::inspect(&partition, &table, key).ok_or_else(|| Error::UnknownTable(table.name().into()))
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
            pull::digest(&partition, &tables, |bytes| hasher.update(bytes));
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
