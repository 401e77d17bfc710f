//! What can go wrong, in words that say what to do about it.

use crate::engine::ClientId;

/// Why a request was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The table spec makes no sense.
    #[error("table '{table}': {reason}")]
    InvalidSpec {
        /// The table's name as given.
        table: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The engine's own configuration makes no sense.
    #[error("engine configuration: {0}")]
    InvalidConfig(String),
    /// The GPU that should hold cached rows cannot be used.
    #[error("the cache cannot be on a GPU: {0}")]
    NoDevice(String),
    /// There is no such table.
    #[error("unknown table '{0}': create it first")]
    UnknownTable(String),
    /// There is a table of this name with another spec.
    #[error("table '{0}' exists with a different spec: drop it first, or give the spec it was created with")]
    TableExists(String),
    /// A request names a table twice.
    #[error("table '{0}' is named twice in one request: merge its keys into one entry")]
    TableTwice(String),
    /// A slice does not have the length that the others ask for.
    #[error("table '{table}': {what} has {actual} elements, expected {expected}")]
    WrongLength {
        /// The table.
        table: String,
        /// Which slice.
        what: &'static str,
        /// How long it should be.
        expected: usize,
        /// How long it is.
        actual: usize,
    },
    /// A key of a dense table is not below its number of rows.
    #[error("table '{table}': key {key} is out of range, the table has keys 0 to {}", .rows - 1)]
    KeyOutOfRange {
        /// The table.
        table: String,
        /// The key.
        key: u64,
        /// How many rows the table has.
        rows: u64,
    },
    /// A key belongs to a partition that this engine does not own.
    #[error("key {key} belongs to partition {partition}, which is not owned here: refresh the topology")]
    NotOwned {
        /// The key.
        key: u64,
        /// Its partition.
        partition: u32,
    },
    /// A number is NaN or infinite.
    #[error("table '{table}': {what} holds a NaN or an infinity: check the loss, or lower the learning rate")]
    NotFinite {
        /// The table.
        table: String,
        /// Which numbers.
        what: &'static str,
    },
    /// A request's options do not fit the table.
    #[error("table '{table}': {reason}")]
    InvalidRequest {
        /// The table.
        table: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A push names a client that is not open.
    #[error(
        "client {0} is not open here: it was closed, was idle for too long, or the shard has lost its state since; open a new client"
    )]
    UnknownClient(ClientId),
    /// A push is so old that nobody knows whether it was applied.
    #[error("push {sequence} is too old: only pushes from {oldest} on are remembered; it was not applied again")]
    SequenceForgotten {
        /// The push's sequence.
        sequence: u64,
        /// The oldest that is remembered.
        oldest: u64,
    },
    /// There are as many open clients as there may be.
    #[error("{0} clients are open, as many as there may be: close some, or wait until idle ones expire")]
    TooManyClients(usize),
    /// The memory budget has no room for what the request needs.
    #[error(
        "out of memory budget: {needed} more bytes needed, {free} of {limit} free: raise the budget, drop a table, or use a lower precision"
    )]
    OutOfMemory {
        /// Bytes asked for.
        needed: u64,
        /// Bytes left.
        free: u64,
        /// The budget.
        limit: u64,
    },
    /// The GPU has no room for the cache of a table.
    #[error(
        "out of memory on GPU {device}: {needed} more bytes needed, {free} free of the {limit} for cached rows: ask for a smaller cache, drop a table, raise --device-memory, or run with --pool host"
    )]
    OutOfDeviceMemory {
        /// Which GPU.
        device: usize,
        /// Bytes asked for.
        needed: u64,
        /// Bytes left.
        free: u64,
        /// The budget.
        limit: u64,
    },
    /// The operating system gave no memory.
    #[error("the system refused memory: {0}")]
    System(String),
    /// A checkpoint is being taken already.
    #[error("a checkpoint is being saved already: wait until it is done")]
    SaveUnderWay,
    /// What was saved cannot be taken over.
    #[error("the checkpoint cannot be restored: {0}")]
    NotRestored(String),
    /// The change could not be put in order (appended to the log).
    #[error("the change was refused before it was applied: {0}")]
    NotOrdered(String),
}

/// The result of a request.
pub type Result<T> = std::result::Result<T, Error>;
