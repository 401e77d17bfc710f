//! Pushes: duplicates summed, split, sent in order, each applied exactly once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use dashmap::DashMap;
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::pusher::{IN_FLIGHT, Job, Pusher, Started};
use super::split::{Share, Split};
use super::{Client, Cluster, Error, Result, TableInfo, connect_shard};
use crate::engine::{Push, RowFormat};
use crate::numeric::float::all_finite;
use crate::{proto, wire};

/// What a client remembers of its pushes.
pub struct Pushes {
    client_id: Bytes,
    /// The last sequence. Held while a push is handed to its shards, so that all get pushes in the same order.
    last: tokio::sync::Mutex<u64>,
    room: Arc<Semaphore>,
    unfinished: Arc<Unfinished>,
    /// One for each shard, by address.
    pushers: DashMap<String, Started>,
    /// Whether shards were told to forget the client: a push that is tried again could then be applied twice.
    closed: AtomicBool,
}

/// Pushes that are begun and not yet applied.
#[derive(Default)]
struct Unfinished {
    sequences: Mutex<BTreeSet<u64>>,
    changed: Notify,
}

impl Pushes {
    pub(super) fn new() -> Result<Pushes> {
        let mut id = [0u8; 16];
        getrandom::fill(&mut id).map_err(|e| Error::Setup(format!("the system has no random numbers: {e}")))?;
        Ok(Pushes {
            client_id: Bytes::copy_from_slice(&id),
            last: tokio::sync::Mutex::new(0),
            room: Arc::new(Semaphore::new(IN_FLIGHT)),
            unfinished: Arc::default(),
            pushers: DashMap::new(),
            closed: AtomicBool::new(false),
        })
    }

    /// Finishes what is under way, and tells the shards that this client is gone.
    pub(super) async fn close(&self) {
        // Nobody is in the middle of handing a push to its shards.
        let handing_out = self.last.lock().await;
        self.closed.store(true, Ordering::Relaxed);
        drop(handing_out);
        let addresses: Vec<String> = self.pushers.iter().map(|pusher| pusher.key().clone()).collect();
        // All of them end side by side: a pusher ends when there is nobody left to send it jobs.
        let ends: Vec<_> = addresses.iter().filter_map(|address| Some(self.pushers.remove(address)?.1.task)).collect();
        for end in ends {
            // A pusher that has failed has nothing left to finish.
            let _ = end.await;
        }
    }

    /// Waits until all pushes begun so far but the last `lookahead` are finished.
    pub(super) async fn wait(&self, lookahead: usize) {
        let before = *self.last.lock().await;
        let needed = before.saturating_sub(lookahead as u64);
        loop {
            let changed = self.unfinished.changed.notified();
            if self.unfinished.sequences.lock().first().is_none_or(|&first| first > needed) {
                return;
            }
            changed.await;
        }
    }
}

/// A push that is under way. It goes on if this is dropped.
pub struct PendingPush {
    sequence: u64,
    outcomes: Vec<oneshot::Receiver<Result<bool>>>,
}

/// Notes that a push is finished, when the last of its shards has answered or given up.
pub struct Finish {
    sequence: u64,
    unfinished: Arc<Unfinished>,
    _room: OwnedSemaphorePermit,
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.unfinished.sequences.lock().remove(&self.sequence);
        self.unfinished.changed.notify_waiters();
    }
}

impl PendingPush {
    /// Which push of the client this is.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Waits until it is applied on all its shards.
    pub async fn done(self) -> Result<()> {
        let PendingPush { sequence, outcomes } = self;
        let mut first = None;
        for outcome in outcomes {
            let outcome = outcome.await.unwrap_or_else(|_| Err(Error::Setup("the client is gone".into())));
            if let Err(error) = outcome
                && (first.is_none() || matches!(error, Error::StaleTopology))
            {
                first = Some(error);
            }
        }
        match first {
            None => Ok(()),
            Some(Error::StaleTopology) => Err(Error::StaleTopology),
            Some(cause) => Err(Error::Push { sequence, cause: Box::new(cause) }),
        }
    }
}

impl Client {
    /// Applies gradients, exactly once, and returns when they are applied.
    pub async fn push(&self, pushes: &[Push<'_>]) -> Result<()> {
        self.send_until_routed(None, pushes).await
    }

    /// Tries a push again whose outcome is not known: with the same gradients, and the sequence of the error. Shards that
    /// have applied it do nothing.
    pub async fn push_again(&self, sequence: u64, pushes: &[Push<'_>]) -> Result<()> {
        self.send_until_routed(Some(sequence), pushes).await
    }

    /// Begins a push and returns; at most 32 are under way at a time. Unlike [`Client::push`], it does not route
    /// again when the topology has changed meanwhile: the error says so, and [`Client::push_again`] does.
    pub async fn push_later(&self, pushes: &[Push<'_>]) -> Result<PendingPush> {
        let infos = self.check_pushes(pushes).await?;
        let cluster = self.cluster.load_full();
        self.send(&cluster, None, &infos, pushes).await
    }

    async fn send_until_routed(&self, sequence: Option<u64>, pushes: &[Push<'_>]) -> Result<()> {
        let infos = self.check_pushes(pushes).await?;
        let begun = Instant::now();
        let mut sequence = sequence;
        loop {
            let cluster = self.cluster.load_full();
            let pending = self.send(&cluster, sequence, &infos, pushes).await?;
            sequence = Some(pending.sequence());
            match self.caller.wait(pending.done()).await {
                Err(Error::StaleTopology) if begun.elapsed() < self.options.timeout => self.refresh().await?,
                done => return done,
            }
        }
    }

    /// What can be found wrong is found before anything is sent to anybody: here, and numbers that are not finite when they are copied.
    async fn check_pushes(&self, pushes: &[Push<'_>]) -> Result<Vec<TableInfo>> {
        let mut infos = Vec::with_capacity(pushes.len());
        for push in pushes {
            let info = self.table(push.table).await?;
            let expected = push.keys.len() * info.dim;
            let (table, what, actual) = (push.table.into(), "gradients", push.gradients.len());
            if actual != expected {
                return Err(Error::Invalid(crate::error::Error::WrongLength { table, what, expected, actual }));
            }
            if let crate::table::KeySpace::Dense { rows } = info.keys
                && let Some(&key) = push.keys.iter().find(|&&key| key >= rows)
            {
                return Err(Error::Invalid(crate::error::Error::KeyOutOfRange { table, key, rows }));
            }
            infos.push(info);
        }
        Ok(infos)
    }

    /// Hands a push to the pushers of its shards.
    async fn send(
        &self,
        cluster: &Cluster,
        sequence: Option<u64>,
        infos: &[TableInfo],
        pushes: &[Push<'_>],
    ) -> Result<PendingPush> {
        let tables = self.split_pushes(cluster, infos, pushes)?;
        let room = Arc::clone(&self.pushes.room).acquire_owned().await.expect("the semaphore is never closed");
        let mut last = self.pushes.last.lock().await;
        if self.pushes.closed.load(Ordering::Relaxed) {
            return Err(Error::Setup("the client is closed".into()));
        }
        let sequence = sequence.unwrap_or_else(|| {
            *last += 1;
            *last
        });
        self.pushes.unfinished.sequences.lock().insert(sequence);
        let finish = Arc::new(Finish { sequence, unfinished: Arc::clone(&self.pushes.unfinished), _room: room });
        let begun = Instant::now();
        let mut outcomes = Vec::new();
        for (shard, tables) in tables.into_iter().enumerate() {
            if tables.is_empty() {
                continue;
            }
            let request = proto::PushRequest {
                tables,
                format: wire::wire_format(self.options.gradients).into(),
                topology_version: cluster.topology.version,
                client_id: self.pushes.client_id.clone(),
                sequence,
            };
            let (done, outcome) = oneshot::channel();
            let job =
                Job { request, deadline: begun + self.options.timeout, begun, done, _finish: Arc::clone(&finish) };
            // Room for 32 was taken above, so this does not wait.
            if self.pusher(cluster, shard)?.send(job).await.is_err() {
                return Err(Error::Setup("the runtime that ran this client has ended".into()));
            }
            outcomes.push(outcome);
        }
        drop(last);
        Ok(PendingPush { sequence, outcomes })
    }

    fn pusher(&self, cluster: &Cluster, shard: usize) -> Result<mpsc::Sender<Job>> {
        let address = &cluster.shards[shard].address;
        if let Some(pusher) = self.pushes.pushers.get(address) {
            return Ok(pusher.jobs.clone());
        }
        let credentials = self.options.credentials.clone();
        let channel = connect_shard(address, &credentials)?;
        let client_id = self.pushes.client_id.clone();
        let started = Pusher { shard: shard as u32, address: address.clone(), channel, credentials, client_id }.start();
        let jobs = started.jobs.clone();
        self.pushes.pushers.insert(address.clone(), started);
        Ok(jobs)
    }

    /// Each shard's share. Gradients of the same key are summed in order of appearance, as a shard would.
    fn split_pushes(
        &self,
        cluster: &Cluster,
        infos: &[TableInfo],
        pushes: &[Push<'_>],
    ) -> Result<Vec<Vec<proto::TablePush>>> {
        let shards = cluster.shards.len();
        let mut split_tables = vec![Vec::new(); shards];
        for (info, push) in infos.iter().zip(pushes) {
            let owners = &cluster.topology.partition_shards;
            let split = Split::new(&cluster.route, owners, shards, info.keys, push.keys);
            let message = |keys: &[u64], gradients: Bytes| proto::TablePush {
                table: push.table.into(),
                keys: wire::packed(keys),
                gradients,
                learning_rate: push.learning_rate,
                step: push.step,
                ..Default::default()
            };
            let not_finite = || crate::error::Error::NotFinite { table: push.table.into(), what: "gradients" };
            if split.is_plain() {
                if !push.keys.is_empty() {
                    split_tables[0].push(message(push.keys, self.encode(push.gradients).ok_or_else(not_finite)?));
                }
                continue;
            }
            let dim = info.dim;
            let gradient = |position: u32| &push.gradients[position as usize * dim..][..dim];
            let firsts = |share: &Share| share.first.iter().flat_map(|&first| gradient(first)).copied().collect();
            let mut sums: Vec<Vec<f32>> = split.shards.iter().map(firsts).collect();
            for repeat in &split.repeats {
                let sum = &mut sums[repeat.shard as usize][repeat.place as usize * dim..][..dim];
                sum.iter_mut().zip(gradient(repeat.position)).for_each(|(sum, g)| *sum += g);
            }
            for (shard, (share, sums)) in split.shards.iter().zip(sums).enumerate() {
                if !share.keys.is_empty() {
                    split_tables[shard].push(message(&share.keys, self.encode(&sums).ok_or_else(not_finite)?));
                }
            }
        }
        Ok(split_tables)
    }

    /// Gradients as they travel, or `None` if one is not finite. A sum with one that is not finite is not finite either.
    fn encode(&self, gradients: &[f32]) -> Option<Bytes> {
        const SOME: usize = 4096;
        let mut bytes = Vec::with_capacity(self.options.gradients.row_bytes(gradients.len()));
        // Some are checked while they are near, on their way to the copy.
        for some in gradients.chunks(SOME) {
            if !all_finite(some) {
                return None;
            }
            match self.options.gradients {
                RowFormat::F16 => {
                    let mut halves = [f16::ZERO; SOME];
                    halves[..some.len()].convert_from_f32_slice(some);
                    bytes.extend_from_slice(bytemuck::cast_slice(&halves[..some.len()]));
                }
                RowFormat::Bf16 => {
                    let mut halves = [bf16::ZERO; SOME];
                    halves[..some.len()].convert_from_f32_slice(some);
                    bytes.extend_from_slice(bytemuck::cast_slice(&halves[..some.len()]));
                }
                _ => bytes.extend_from_slice(bytemuck::cast_slice(some)),
            }
        }
        Some(bytes.into())
    }
}
