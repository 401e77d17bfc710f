//! The engine: partitions, the order of changes, batching, budgets, statistics.
//!
//! *A partition is a deterministic state machine driven by an ordered log of changes.* A pull is a pure read under
//! shared locks. A change is checked whole, then put in order (and handed to the log), then applied by every
//! partition in that order. This room knows tables; it knows nothing of networks or files.

mod apply;
mod bags;
mod change;
mod check;
mod clients;
mod compute;
mod create;
pub(crate) mod distinct;
mod exact;
mod gpu_change;
mod gpu_read;
mod held;
mod inspect;
mod observe;
mod order;
mod partition;
mod pull;
mod read;
mod request;
mod restore;
pub(crate) mod route;
mod save;
mod scan;
mod stats;
mod table;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use dashmap::DashMap;
use parking_lot::RwLock;

use self::compute::Compute;
use self::order::Order;
use self::partition::Partition;
use self::route::Route;
use self::table::Table;
use crate::budget::Budget;
use crate::cache::cuda::{CudaConfig, Device};
use crate::error::{Error, Result};
use crate::table::{SMALL_TABLE_BYTES, TableSpec};

pub use self::change::Pushed;
pub(crate) use self::check::check_bags;
pub use self::clients::{ClientId, Origin};
pub use self::inspect::Row;
pub use self::order::LogHook;
pub use self::request::{Alteration, Assign, Change, Lsn, PooledPull, Pooling, Pull, Push, Remove, RowFormat, Touch};
pub use self::restore::{Restore, RestorePartition};
pub use self::save::{Piece, SavedTable, Snapshot, Unsettled};
pub use self::scan::ScanCursor;
pub use self::stats::TableStats;

/// How an engine is set up. Everything but `owned`, `threads`, `memory_budget` and `pool` must be the same on all engines of
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
    /// How many clients may be open at once.
    pub max_clients: usize,
    /// Where cached rows are.
    pub pool: PoolConfig,
}

/// Where cached rows are.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PoolConfig {
    /// In host memory.
    #[default]
    Host,
    /// On a GPU; without one there is no engine.
    Cuda(CudaConfig),
    /// On a GPU if there is one that can be used, in host memory otherwise.
    Auto(CudaConfig),
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
            max_clients: 65_536,
            pool: PoolConfig::Host,
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
    /// Whether a checkpoint is being taken.
    saving: AtomicBool,
    order: Order,
    budget: Budget,
    compute: Compute,
    /// The GPU that holds cached rows; without one, why there is none.
    device: std::result::Result<Arc<Device>, Option<String>>,
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
        let owned: Vec<u32> = owned.into_iter().collect();
        let device = match &config.pool {
            PoolConfig::Host => Err(None),
            PoolConfig::Cuda(cuda) => Ok(Device::open(cuda).map_err(Error::NoDevice)?),
            PoolConfig::Auto(cuda) => Device::open(cuda).map_err(Some),
        };
        Ok(Engine {
            partitions: owned.iter().map(|&id| RwLock::new(Partition::new(id))).collect(),
            route: Route::new(config.partitions, owned),
            tables: DashMap::new(),
            next_table: AtomicUsize::new(0),
            saving: AtomicBool::new(false),
            order: Order::new(),
            budget: Budget::new(config.memory_budget),
            compute: Compute::new(config.threads)?,
            device,
            config,
        })
    }

    /// How it was set up.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The GPU that holds cached rows.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_deref().ok()
    }

    /// Why cached rows are in host memory although a GPU would have been taken.
    pub fn without_device(&self) -> Option<&str> {
        self.device.as_ref().err()?.as_deref()
    }

    /// Hands every change from now on to `log`, in order, before it is applied.
    pub fn set_log(&self, log: LogHook) {
        self.order.set_log(log);
    }

    /// The place of the last change.
    pub fn last_lsn(&self) -> Lsn {
        self.order.last()
    }

    /// How many clients are open.
    pub fn open_clients(&self) -> usize {
        self.order.open_clients()
    }

    /// The open clients.
    pub fn clients(&self) -> Vec<ClientId> {
        self.order.turn().clients().ids()
    }

    /// Another memory budget. Tables that are over it stay as they are.
    pub fn limit_memory(&self, budget: Option<u64>) {
        self.budget.set_limit(budget);
    }

    /// Bytes that tables have taken from the memory budget.
    pub fn memory_used(&self) -> u64 {
        self.budget.used()
    }

    /// The partition of a key of a table.
    pub fn partition_of(&self, table: &str, key: u64) -> Result<u32> {
        Ok(self.route.partition(self.table(table)?.keys(), key))
    }

    /// The numbers in a row of a table.
    pub fn dim(&self, table: &str) -> Result<usize> {
        Ok(self.table(table)?.dim())
    }

    /// The names of all tables, sorted.
    pub fn table_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.tables.iter().map(|entry| entry.key().clone()).collect();
        names.sort_unstable();
        names
    }

    /// A table as it is now.
    pub fn spec(&self, table: &str) -> Result<TableSpec> {
        Ok(self.table(table)?.current_spec())
    }

    fn table(&self, name: &str) -> Result<Arc<Table>> {
        match self.tables.get(name) {
            Some(table) => Ok(Arc::clone(&table)),
            None => Err(Error::UnknownTable(name.into())),
        }
    }
}
