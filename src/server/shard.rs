//! What all services of one server share.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tonic::Status;

use super::buffers::Buffers;
use super::checkpoints::Checkpoints;
use super::metrics::Metrics;
use super::status;
use crate::client::Credentials;
use crate::cluster::Topology;
use crate::durability::{DataFolder, Log};
use crate::engine::{ClientId, Engine, Lsn};
use crate::error::Error;

/// How far a start is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recovering {
    /// Whether the log is read, and not yet the checkpoint.
    pub log: bool,
    /// Bytes read, of `total_bytes`.
    pub bytes: u64,
    /// Bytes to read.
    pub total_bytes: u64,
    /// Changes of the log applied.
    pub changes: u64,
}

/// One shard of a cluster.
pub struct Shard {
    /// Its tables.
    pub engine: Arc<Engine>,
    /// Who owns which partition.
    pub topology: Topology,
    /// Which shard this is.
    pub number: u32,
    /// The largest request in bytes.
    pub max_request: usize,
    /// The largest answer in bytes.
    pub max_response: usize,
    /// Requests that may be under way.
    pub max_in_flight: usize,
    /// Room for requests.
    pub in_flight: Arc<Semaphore>,
    /// Room for streams.
    pub streams: Arc<Semaphore>,
    /// After how long without a push a client is forgotten.
    pub client_idle: Duration,
    /// What is counted.
    pub metrics: Metrics,
    /// Memory for answers.
    pub buffers: Arc<Buffers>,
    /// How to reach the other shards.
    pub credentials: Credentials,
    /// When each open client was last heard of. Time stays out of the engine, which must not depend on it.
    pub heard_of: DashMap<ClientId, Instant>,
    /// What all tables may take together.
    pub memory_budget: Option<u64>,
    /// Where changes are logged, once that is replayed; never set where there is no log.
    pub log: OnceLock<Log>,
    /// Where the log is; nobody else may use it meanwhile.
    pub data_folder: OnceLock<DataFolder>,
    /// The history that its changes belong to, once it has started.
    pub history: OnceLock<u64>,
    /// Where its state is saved; `None` where it is not.
    pub checkpoints: Option<Checkpoints>,
    /// How far the replay is, while there is one.
    pub recovering: Mutex<Option<Recovering>>,
    /// Bytes cut off the log's end at the start, because they were never a whole group.
    pub cut_bytes: AtomicU64,
    /// When it was made.
    pub started: Instant,
    /// True when this shard is ending.
    pub draining: watch::Sender<bool>,
    /// Runs what outlives the request that asked for it. A thread that serves connections ends with them.
    pub runtime: Handle,
}

impl Shard {
    /// Refuses a request that was routed by another topology.
    pub fn check_topology(&self, version: u64) -> Result<(), Status> {
        match version {
            0 => Ok(()),
            version if version == self.topology.version => Ok(()),
            version => Err(status::stale_topology(version, self.topology.version)),
        }
    }

    /// The status of an engine's error; one about ownership carries the topology's version.
    pub fn status(&self, error: Error) -> Status {
        // The shard is ending; the client tries again, with the same sequence, when it is back.
        if let (Error::NotOrdered(reason), Some(true)) = (&error, self.log.get().map(Log::is_over)) {
            return Status::unavailable(reason.clone());
        }
        let not_owned = matches!(error, Error::NotOwned { .. });
        let status = Status::from(error);
        if not_owned { status::with_topology(status, self.topology.version) } else { status }
    }

    /// Runs what may take long, or wait for locks, where it keeps nobody else waiting.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Shard) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Status> {
        let shard = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&shard).map_err(|e| shard.status(e))).await;
        done.map_err(|e| Status::internal(e.to_string()))?
    }

    /// [`Shard::run`] for a change: returns when it is safe too.
    pub async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Shard) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Status> {
        let done = self.run(work).await?;
        // Its own place, or a later one.
        self.safe(self.engine.last_lsn()).await?;
        Ok(done)
    }

    /// Waits while the log has too much to write.
    pub async fn room_in_log(&self) {
        if let Some(log) = self.log.get() {
            log.room().await;
        }
    }

    /// Waits until a change may be acknowledged.
    pub async fn safe(&self, lsn: Lsn) -> Result<(), Status> {
        match self.log.get() {
            // A client tries again, with the same sequence, when the shard is back.
            Some(log) => log.safe(lsn).await.map_err(Status::unavailable),
            None => Ok(()),
        }
    }

    /// Whether it takes requests: `ready`, `recovering` or `draining`, and the same in more words.
    pub fn readiness(&self) -> (&'static str, String) {
        let recovering = *self.recovering.lock();
        match (recovering, *self.draining.borrow()) {
            (Some(Recovering { log: false, bytes, total_bytes, .. }), _) => {
                ("recovering", format!("recovering: {bytes} of {total_bytes} bytes of the checkpoint read"))
            }
            (Some(Recovering { log: true, bytes, total_bytes, changes }), _) => {
                let text =
                    format!("recovering: {changes} changes applied, {bytes} of {total_bytes} bytes of the log read");
                ("recovering", text)
            }
            (None, false) => ("ready", "ready".into()),
            (None, true) => ("draining", "draining".into()),
        }
    }

    /// Starts to end: what is under way is finished, what is new is refused.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Waits until no stream and then no request is under way.
    pub async fn wait_for_requests(&self) {
        for room in [&self.streams, &self.in_flight] {
            // Fails only if the semaphore is closed, and it never is.
            let _ = room.acquire_many(self.max_in_flight as u32).await;
        }
    }

    /// Forgets clients that were not heard of for too long.
    pub fn expire_clients(&self) {
        let now = Instant::now();
        let idle: Vec<ClientId> = self
            .heard_of
            .iter()
            .filter(|entry| now.duration_since(*entry.value()) > self.client_idle)
            .map(|entry| *entry.key())
            .collect();
        for client in idle {
            // Unless it was heard of meanwhile.
            let still = |_: &ClientId, heard: &Instant| now.saturating_duration_since(*heard) > self.client_idle;
            if self.heard_of.remove_if(&client, still).is_none() {
                continue;
            }
            match self.engine.close_client(client) {
                Ok(_) => tracing::info!(%client, "client was idle for too long and is forgotten"),
                Err(error) => {
                    self.heard_of.insert(client, now);
                    tracing::warn!(%client, "an idle client could not be forgotten: {error}");
                }
            }
        }
    }
}
