//! The engine: partitions, the order of changes, batching, budgets, statistics.
//!
//! *A partition is a deterministic state machine driven by an ordered log of changes.* A pull is a pure read under
//! shared locks. A change is checked whole, then put in order (and handed to the log), then applied by every
//! partition in that order. This room knows tables; it knows nothing of networks or files.

mod apply;
mod check;
mod distinct;
mod order;
mod partition;
mod pull;
mod request;
mod route;
mod stats;
mod table;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;
use parking_lot::{RwLock, RwLockReadGuard};
use rayon::prelude::*;
use xxhash_rust::xxh3::Xxh3Default;

use self::apply::{Numbering, Visit};
use self::order::Order;
use self::partition::Partition;
use self::pull::{Bags, Held};
use self::route::{Groups, Route};
use self::table::Table;
use crate::budget::Budget;
use crate::cache::{Directory, HostPool, Pool};
use crate::error::{Error, Result};
use crate::memory::{Mapping, Region};
use crate::numeric::hash;
use crate::table::{ChunkSource, Initial, KeySpace, SMALL_TABLE_BYTES, Shape, TablePart, TableSpec};

pub use self::order::LogHook;
pub use self::pull::Row;
pub use self::request::{Assign, Change, Lsn, PooledPull, Pooling, Pull, Push, Remove, Touch};
pub use self::stats::TableStats;

/// Requests of fewer rows run on the thread that brings them.
const PARALLEL_ROWS: usize = 1024;
/// Rows of one piece of work for the compute threads.
const JOB_ROWS: usize = 1024;

/// How an engine is set up. Everything but `owned`, `threads` and `memory_budget` must be the same on all engines of
/// a cluster, for its whole life.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Partitions of the cluster: a power of two, at most 65,536.
    pub partitions: u32,
    /// Partitions that this engine owns; `None` is all of them.
    pub owned: Option<Vec<u32>>,
    /// The seed of all randomness.
    pub seed: u32,
    /// Threads for large requests; 0 is one per core.
    pub threads: usize,
    /// Bytes that all tables may take together; `None` is no limit.
    pub memory_budget: Option<u64>,
    /// Dense tables that take fewer bytes at f32 stay f32.
    pub small_table_bytes: u64,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            partitions: 128,
            owned: None,
            seed: 0,
            threads: 0,
            memory_budget: None,
            small_table_bytes: SMALL_TABLE_BYTES,
        }
    }
}

/// Tables, their caches, and the order of changes to them. All methods take `&self`; share it by `Arc`.
pub struct Engine {
    config: EngineConfig,
    route: Route,
    partitions: Vec<RwLock<Partition>>,
    tables: DashMap<String, Arc<Table>>,
    next_table: AtomicUsize,
    order: Order,
    budget: Budget,
    /// `None` where one thread does everything.
    compute: Option<rayon::ThreadPool>,
}

impl Engine {
    /// An engine without tables.
    pub fn new(config: EngineConfig) -> Result<Engine> {
        let invalid = |reason: String| Err(Error::InvalidConfig(reason));
        if !config.partitions.is_power_of_two() || config.partitions > 1 << 16 {
            return invalid(format!("partitions is {}, it must be a power of two up to 65536", config.partitions));
        }
        let owned: BTreeSet<u32> = match &config.owned {
            None => (0..config.partitions).collect(),
            Some(owned) => owned.iter().copied().collect(),
        };
        if owned.is_empty() || owned.last().is_some_and(|&last| last >= config.partitions) {
            return invalid(format!("owned must name partitions from 0 to {}", config.partitions - 1));
        }
        let threads = match config.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let compute = (threads > 1)
            .then(|| {
                rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .thread_name(|i| format!("hotrow-compute-{i}"))
                    .build()
            })
            .transpose()
            .map_err(|e| Error::System(e.to_string()))?;
        let owned: Vec<u32> = owned.into_iter().collect();
        Ok(Engine {
            partitions: owned.iter().map(|&id| RwLock::new(Partition::new(id))).collect(),
            route: Route::new(config.partitions, owned),
            tables: DashMap::new(),
            next_table: AtomicUsize::new(0),
            order: Order::new(),
            budget: Budget::new(config.memory_budget),
            compute,
            config,
        })
    }

    /// How it was set up.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Hands every change from now on to `log`, in order, before it is applied.
    pub fn set_log(&self, log: LogHook) {
        self.order.set_log(log);
    }

    /// The place of the last change.
    pub fn last_lsn(&self) -> Lsn {
        self.order.last()
    }

    /// Bytes that tables have taken from the memory budget.
    pub fn memory_used(&self) -> u64 {
        self.budget.used()
    }

    /// The partition of a key of a table.
    pub fn partition_of(&self, table: &str, key: u64) -> Result<u32> {
        Ok(self.route.partition(self.table(table)?.keys(), key))
    }

    /// The names of all tables, sorted.
    pub fn table_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.tables.iter().map(|entry| entry.key().clone()).collect();
        names.sort_unstable();
        names
    }

    /// The spec that a table was created with.
    pub fn spec(&self, table: &str) -> Result<TableSpec> {
        Ok(self.table(table)?.spec.clone())
    }

    fn table(&self, name: &str) -> Result<Arc<Table>> {
        match self.tables.get(name) {
            Some(table) => Ok(Arc::clone(&table)),
            None => Err(Error::UnknownTable(name.into())),
        }
    }

    // ---- reading ----

    /// Reads rows: those of the first table, in the order of its keys, then those of the next. `out` has `dim` numbers
    /// for every key. Changes nothing but the counters of hits and misses.
    pub fn pull(&self, pulls: &[Pull<'_>], out: &mut [f32]) -> Result<()> {
        let tables = pulls.iter().map(|pull| self.table(pull.table)).collect::<Result<Vec<_>>>()?;
        for (table, pull) in tables.iter().zip(pulls) {
            self.check_keys(table, pull.keys)?;
        }
        self.check_out(&tables, pulls.iter().map(|pull| pull.keys.len()), out)?;
        let guards = self.read_guards(tables.iter().zip(pulls).map(|(table, pull)| (&**table, pull.keys)));
        let held = self.hold(&tables, &guards)?;

        let mut jobs = Vec::new();
        let mut rest = out;
        for (held, pull) in held.iter().zip(pulls) {
            let dim = held.table.dim();
            let (mine, others) = rest.split_at_mut(pull.keys.len() * dim);
            rest = others;
            for (keys, out) in pull.keys.chunks(JOB_ROWS).zip(mine.chunks_mut(JOB_ROWS * dim)) {
                jobs.push((held, keys, out));
            }
        }
        let rows = pulls.iter().map(|pull| pull.keys.len()).sum();
        self.each_job(rows, jobs, |(held, keys, out)| {
            let hits = pull::rows(held, keys, out);
            held.table.count_pull(hits, keys.len() as u64 - hits);
        });
        Ok(())
    }

    /// Reads bags of rows as one row each, table after table. `out` has `dim` numbers for every bag.
    pub fn pull_pooled(&self, pulls: &[PooledPull<'_>], out: &mut [f32]) -> Result<()> {
        let tables = pulls.iter().map(|pull| self.table(pull.table)).collect::<Result<Vec<_>>>()?;
        for (table, pull) in tables.iter().zip(pulls) {
            self.check_pooled(table, pull)?;
        }
        self.check_out(&tables, pulls.iter().map(|pull| pull.offsets.len()), out)?;
        let guards = self.read_guards(tables.iter().zip(pulls).map(|(table, pull)| (&**table, pull.keys)));
        let held = self.hold(&tables, &guards)?;

        let mut jobs = Vec::new();
        let mut rest = out;
        for (held, pull) in held.iter().zip(pulls) {
            let dim = held.table.dim();
            let (mine, others) = rest.split_at_mut(pull.offsets.len() * dim);
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
                let (mine, others) = out.split_at_mut(bags * dim);
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
        self.each_job(rows, jobs, |(held, bags, out)| {
            let hits = pull::pooled(held, &bags, out);
            held.table.count_pull(hits, bags.keys.len() as u64 - hits);
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
    /// split of partitions.
    pub fn digests(&self) -> Vec<(u32, u64)> {
        let mut tables: Vec<Arc<Table>> = self.tables.iter().map(|entry| Arc::clone(entry.value())).collect();
        tables.sort_by(|a, b| a.name().cmp(b.name()));
        let digest = |partition: &RwLock<Partition>| {
            let partition = partition.read();
            let mut hasher = Xxh3Default::new();
            pull::digest(&partition, &tables, |bytes| hasher.update(bytes));
            (partition.id, hasher.digest())
        };
        self.partitions.iter().map(digest).collect()
    }

    /// The next write-back number of a partition that is owned here.
    pub fn write_backs(&self, partition: u32) -> Option<u64> {
        let place = self.route.owned().binary_search(&partition).ok()?;
        Some(self.partitions[place].read().write_backs)
    }

    fn check_out(&self, tables: &[Arc<Table>], rows: impl Iterator<Item = usize>, out: &[f32]) -> Result<()> {
        let expected = tables.iter().zip(rows).map(|(table, rows)| rows * table.dim()).sum();
        match tables.first() {
            Some(table) => check::expect_len(table, "out", expected, out.len()),
            None => Ok(()),
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

    /// Runs jobs here, or on the compute threads where there are enough rows.
    fn each_job<J: Send>(&self, rows: usize, jobs: Vec<J>, run: impl Fn(J) + Sync + Send) {
        match &self.compute {
            Some(compute) if rows >= PARALLEL_ROWS => compute.install(|| jobs.into_par_iter().for_each(&run)),
            _ => jobs.into_iter().for_each(run),
        }
    }

    // ---- changing ----

    /// Checks a change, puts it in order, and applies it. An error means that nothing was changed.
    pub fn apply(&self, change: &Change<'_>) -> Result<Lsn> {
        match *change {
            Change::Create(spec) => self.apply_create(change, spec),
            Change::Drop(name) => self.apply_drop(change, name),
            Change::Push(pushes) => {
                let tables = self.resolve(pushes.iter().map(|push| push.table))?;
                let mut parts = Vec::with_capacity(pushes.len());
                for (table, push) in tables.iter().zip(pushes) {
                    let rule = self.check_push(table, push)?;
                    parts.push(Part::new(self, table, push.keys, Action::Push(push.gradients, rule)));
                }
                self.apply_parts(change, parts)
            }
            Change::Touch(touches) => {
                let tables = self.resolve(touches.iter().map(|touch| touch.table))?;
                let mut parts = Vec::with_capacity(touches.len());
                for (table, touch) in tables.iter().zip(touches) {
                    self.check_keys(table, touch.keys)?;
                    parts.push(Part::new(self, table, touch.keys, Action::Touch));
                }
                self.apply_parts(change, parts)
            }
            Change::Assign(assigns) => {
                let tables = self.resolve(assigns.iter().map(|assign| assign.table))?;
                let mut parts = Vec::with_capacity(assigns.len());
                for (table, assign) in tables.iter().zip(assigns) {
                    self.check_assign(table, assign)?;
                    parts.push(Part::new(self, table, assign.keys, Action::Assign(assign.weights, assign.state)));
                }
                self.apply_parts(change, parts)
            }
            Change::Remove(removes) => {
                let tables = self.resolve(removes.iter().map(|remove| remove.table))?;
                let mut parts = Vec::with_capacity(removes.len());
                for (table, remove) in tables.iter().zip(removes) {
                    self.check_keys(table, remove.keys)?;
                    parts.push(Part::new(self, table, remove.keys, Action::Remove));
                }
                self.apply_parts(change, parts)
            }
        }
    }

    /// Makes a table. Making the same one again is fine and changes nothing.
    pub fn create(&self, spec: &TableSpec) -> Result<Lsn> {
        self.apply(&Change::Create(spec))
    }

    /// Forgets a table with all its rows.
    pub fn drop_table(&self, name: &str) -> Result<Lsn> {
        self.apply(&Change::Drop(name))
    }

    /// Applies gradients: each distinct key is stepped once.
    pub fn push(&self, pushes: &[Push<'_>]) -> Result<Lsn> {
        self.apply(&Change::Push(pushes))
    }

    /// Brings rows into the cache, ahead of a push.
    pub fn touch(&self, touches: &[Touch<'_>]) -> Result<Lsn> {
        self.apply(&Change::Touch(touches))
    }

    /// Sets rows.
    pub fn assign(&self, assigns: &[Assign<'_>]) -> Result<Lsn> {
        self.apply(&Change::Assign(assigns))
    }

    /// Forgets rows: they read as their initial values again.
    pub fn remove(&self, removes: &[Remove<'_>]) -> Result<Lsn> {
        self.apply(&Change::Remove(removes))
    }

    fn apply_create(&self, change: &Change<'_>, spec: &TableSpec) -> Result<Lsn> {
        let shape = spec.shape(self.config.small_table_bytes)?;
        let partitions = self.config.partitions;
        if shape.rows_in(0, partitions) >= u64::from(u32::MAX) {
            let reason = format!("too many rows for {partitions} partitions: each holds at most 2^32 - 2");
            return Err(Error::InvalidSpec { table: spec.name.clone(), reason });
        }
        let mut turn = self.order.turn();
        if let Ok(existing) = self.table(&spec.name) {
            return if existing.spec == *spec { Ok(turn.last()) } else { Err(Error::TableExists(spec.name.clone())) };
        }
        let cache_rows: u64 = self.route.owned().iter().map(|&p| shape.cache_rows_in(p, partitions)).sum();
        if cache_rows > u64::from(u32::MAX) {
            let reason =
                format!("a cache of {cache_rows} rows is too large: one engine holds at most 2^32 - 1 of a table");
            return Err(Error::InvalidSpec { table: spec.name.clone(), reason });
        }
        let slots_in = |&p: &u32| Directory::slots_for(shape.cache_rows_in(p, partitions) as u32);
        let slots: Vec<u32> = self.route.owned().iter().map(slots_in).collect();
        let all_slots: u32 = slots.iter().sum();
        let rows: u64 = self.route.owned().iter().map(|&p| shape.rows_in(p, partitions)).sum();
        let slot_bytes = shape.layout.slot_bytes() as u64 + Directory::BYTES_PER_SLOT;
        let row_bytes = rows.saturating_mul(shape.stride() as u64).saturating_add(rows.div_ceil(8));
        let charged = row_bytes.saturating_add(u64::from(all_slots) * slot_bytes);
        self.budget.take(charged)?;
        let created = self
            .allocate(&shape, all_slots)
            .and_then(|memory| Ok((memory, turn.place(change)?)))
            .inspect_err(|_| self.budget.give_back(charged));
        let ((memory, pool), lsn) = created?;

        let table = Arc::new(Table {
            id: self.next_table.fetch_add(1, Ordering::Relaxed),
            spec: spec.clone(),
            shape,
            initial: Initial::new(spec.initializer, spec.rows(), self.config.seed, hash::table_tag(&spec.name)),
            pool,
            chunks: ChunkSource::new(),
            charged,
            dropped: AtomicBool::new(false),
            pull_hits: AtomicU64::new(0),
            pull_misses: AtomicU64::new(0),
        });
        self.tables.insert(spec.name.clone(), Arc::clone(&table));
        let mut memory = memory.into_iter();
        let mut first_slot = 0;
        let partitions = turn.take_all(&self.partitions);
        drop(turn);
        for (mut partition, slots) in partitions.into_iter().zip(slots) {
            let id = partition.id;
            let part = TablePart::new(&shape, spec.policy, id, self.route.bits(), memory.next(), first_slot);
            partition.insert(table.id, part);
            first_slot += slots;
        }
        Ok(lsn)
    }

    /// The memory of a new table.
    fn allocate(&self, shape: &Shape, slots: u32) -> Result<TableMemory> {
        let system = |e: std::io::Error| Error::System(e.to_string());
        let mut regions = Vec::new();
        if let KeySpace::Dense { .. } = shape.keys {
            let lens: Vec<usize> = self
                .route
                .owned()
                .iter()
                .map(|&p| shape.rows_in(p, self.config.partitions) as usize * shape.stride())
                .collect();
            let mut mapping = Mapping::new(lens.iter().map(|&len| Mapping::len_for(1, len)).sum()).map_err(system)?;
            regions.extend(lens.iter().map(|&len| mapping.take(len).expect("the mapping was made for these")));
        }
        let pool: Option<Box<dyn Pool>> = match slots {
            0 => None,
            _ => Some(Box::new(HostPool::new(shape.layout, self.config.seed, slots).map_err(system)?)),
        };
        Ok((regions, pool))
    }

    fn apply_drop(&self, change: &Change<'_>, name: &str) -> Result<Lsn> {
        let mut turn = self.order.turn();
        let table = self.table(name)?;
        let lsn = turn.place(change)?;
        table.dropped.store(true, Ordering::Relaxed);
        self.tables.remove(name);
        let mut bytes = table.charged;
        let partitions = turn.take_all(&self.partitions);
        drop(turn);
        for mut partition in partitions {
            if let Some(part) = partition.parts[table.id].take() {
                bytes += part.grown_bytes();
            }
        }
        self.budget.give_back(bytes);
        Ok(lsn)
    }

    /// Orders and applies a change of rows that was checked.
    fn apply_parts(&self, change: &Change<'_>, mut parts: Vec<Part<'_>>) -> Result<Lsn> {
        match self.reserve(&mut parts) {
            Ok(()) => {}
            Err(Error::OutOfMemory { .. }) => {
                self.release(&mut parts);
                return self.apply_at_limit(change, parts);
            }
            Err(error) => {
                self.release(&mut parts);
                return Err(error);
            }
        }
        let mut turn = self.order.turn();
        let lsn = match still_there(&parts).and_then(|()| turn.place(change)) {
            Ok(lsn) => lsn,
            Err(error) => {
                drop(turn);
                self.release(&mut parts);
                return Err(error);
            }
        };
        let seed = self.config.seed;
        let rows: usize = parts.iter().map(|part| part.keys.len()).sum();
        match &self.compute {
            Some(compute) if rows >= PARALLEL_ROWS => {
                let mut held = turn.take_all(&self.partitions);
                drop(turn);
                // The guards stay on this thread; the compute threads borrow what they guard.
                let mut partitions: Vec<&mut Partition> = held.iter_mut().map(|guard| &mut **guard).collect();
                compute.install(|| {
                    partitions.par_iter_mut().enumerate().for_each(|(place, partition)| {
                        parts.iter().for_each(|part| part.apply(place, partition, seed));
                    });
                });
            }
            _ => turn.walk(&self.partitions, |place, partition| {
                parts.iter().for_each(|part| part.apply(place, partition, seed));
            }),
        }
        Ok(lsn)
    }

    /// Makes room for the keys of hashed tables as if all were new, so that applying cannot fail.
    fn reserve(&self, parts: &mut [Part<'_>]) -> Result<()> {
        for part in parts.iter_mut().filter(|part| part.may_add_keys()) {
            part.reserved = vec![0; self.partitions.len()];
            for (place, partition) in self.partitions.iter().enumerate() {
                let keys = part.groups.of(place).len() as u32;
                if keys > 0 {
                    part.reserve(place, &mut partition.write(), keys, &self.budget)?;
                }
            }
        }
        Ok(())
    }

    /// Gives back what [`Engine::reserve`] took for a change that will not come.
    fn release(&self, parts: &mut [Part<'_>]) {
        for part in parts {
            for (place, partition) in self.partitions.iter().enumerate() {
                part.release(place, &mut partition.write());
            }
            part.reserved.clear();
        }
    }

    /// Orders and applies a change for which there is room only if some of its keys are known. Which are is only
    /// certain when no other change can come between: everything waits until this one is applied.
    fn apply_at_limit(&self, change: &Change<'_>, mut parts: Vec<Part<'_>>) -> Result<Lsn> {
        let mut turn = self.order.turn();
        still_there(&parts)?;
        let mut held = turn.take_all(&self.partitions);
        let mut room = Ok(());
        for part in parts.iter_mut().filter(|part| part.may_add_keys()) {
            part.reserved = vec![0; held.len()];
            for (place, partition) in held.iter_mut().enumerate() {
                if room.is_ok() && !part.groups.of(place).is_empty() {
                    let new = part.count_new(place, partition);
                    room = part.reserve(place, partition, new, &self.budget);
                }
            }
        }
        let placed = room.and_then(|()| turn.place(change));
        for (place, partition) in held.iter_mut().enumerate() {
            for part in &parts {
                match placed {
                    Ok(_) => part.apply(place, partition, self.config.seed),
                    Err(_) => part.release(place, partition),
                }
            }
        }
        placed
    }
}

/// A drop may have come between the check of a change and its turn.
fn still_there(parts: &[Part<'_>]) -> Result<()> {
    match parts.iter().find(|part| part.table.dropped.load(Ordering::Relaxed)) {
        Some(part) => Err(Error::UnknownTable(part.table.name().into())),
        None => Ok(()),
    }
}

/// A region per owned partition for the rows of a dense table, and a pool where there is a cache.
type TableMemory = (Vec<Region>, Option<Box<dyn Pool>>);

/// One table's part of a change, ready to be applied partition by partition.
struct Part<'a> {
    table: &'a Table,
    keys: &'a [u64],
    groups: Groups,
    action: Action<'a>,
    /// By place: the room set aside for new keys of a hashed table.
    reserved: Vec<u32>,
}

enum Action<'a> {
    Push(&'a [f32], crate::numeric::Rule),
    Touch,
    Assign(&'a [f32], Option<&'a [f32]>),
    Remove,
}

impl<'a> Part<'a> {
    fn new(engine: &Engine, table: &'a Table, keys: &'a [u64], action: Action<'a>) -> Part<'a> {
        let mut groups = Groups::default();
        groups.fill(&engine.route, table.keys(), keys);
        Part { table, keys, groups, action, reserved: Vec::new() }
    }

    fn may_add_keys(&self) -> bool {
        self.table.keys() == KeySpace::Hashed && !matches!(self.action, Action::Remove)
    }

    /// Sets room aside for new keys in one partition.
    fn reserve(&mut self, place: usize, partition: &mut Partition, new: u32, budget: &Budget) -> Result<()> {
        let Some(part) = partition.part_mut(self.table.id) else {
            return Err(Error::UnknownTable(self.table.name().into()));
        };
        part.reserve(new, &self.table.chunks, budget)?;
        self.reserved[place] = new;
        Ok(())
    }

    /// Gives back the room set aside in one partition.
    fn release(&self, place: usize, partition: &mut Partition) {
        if let (Some(&reserved), Some(part)) = (self.reserved.get(place), partition.part_mut(self.table.id)) {
            part.release(reserved);
        }
    }

    /// How many of the change's keys a partition does not have.
    fn count_new(&self, place: usize, partition: &Partition) -> u32 {
        let keys = self.groups.of(place).iter().map(|&position| self.keys[position as usize]);
        partition.part(self.table.id).map_or(0, |part| part.count_new(keys))
    }

    fn apply(&self, place: usize, partition: &mut Partition, seed: u32) {
        let positions = self.groups.of(place);
        if positions.is_empty() {
            return;
        }
        let Partition { id, write_backs, parts } = partition;
        let part = parts[self.table.id].as_mut().expect("a drop is ordered after every change of its table");
        let numbering = Numbering { seed, partition: *id, next: write_backs };
        let visit = |update| Visit { table: self.table, keys: self.keys, positions, update };
        match self.action {
            Action::Push(gradients, rule) => apply::push(part, &visit(Some((gradients, rule))), numbering),
            Action::Touch => apply::push(part, &visit(None), numbering),
            Action::Assign(weights, state) => {
                apply::assign(part, self.table, self.keys, weights, state, positions, numbering);
            }
            Action::Remove => apply::remove(part, self.keys, positions),
        }
        if let Some(&reserved) = self.reserved.get(place) {
            part.release(reserved);
        }
    }
}
