//! Checkpoints of a running cluster. The shard that is asked asks the others for their parts, and writes the manifest when
//! it has them all; then each shard lets go of the log that the checkpoint covers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, anyhow, ensure};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use super::config::Config;
use super::shard::Shard;
use crate::client;
use crate::durability::Base;
use crate::durability::checkpoint::{self, CheckpointStore, ClusterIdentity, FileEntry, Manifest, PartOf, Plan};
use crate::engine::{Lsn, Unsettled};
use crate::error::Error;
use crate::proto;
use crate::proto::checkpoints_client::CheckpointsClient;
use crate::proto::checkpoints_server::Checkpoints as Service;

/// How often a save says how far it is.
const SAY_EVERY: Duration = Duration::from_millis(100);
/// How often a number is tried that another save has taken meanwhile.
const TRIES: u64 = 100;
/// A file's entry names each of its partitions.
const LARGEST_ENTRY: usize = 64 << 20;

/// What a shard knows of its checkpoints.
pub struct Checkpoints {
    /// Where they are.
    pub store: CheckpointStore,
    /// What is counted.
    pub counts: Counts,
    keep: usize,
    chain: u32,
    interval: Option<Duration>,
    on_drain: bool,
    /// Held while this shard saves the cluster.
    coordinating: tokio::sync::Mutex<()>,
    /// Held while a part is written.
    state: tokio::sync::Mutex<State>,
}

/// What is counted, for metrics.
#[derive(Default)]
pub struct Counts {
    /// The last checkpoint that this shard is in.
    pub sequence: AtomicU64,
    /// When that was, in seconds since 1970.
    pub made: AtomicU64,
    /// Bytes of this shard's part of it.
    pub bytes: AtomicU64,
    /// How long that took, in milliseconds.
    pub millis: AtomicU64,
    /// Checkpoints that this shard has begun and that came to nothing.
    pub failures: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The checkpoint that the next may differ from, and the links of its chain.
    since: Option<(u64, u32)>,
    /// The last change in the last checkpoint.
    lsn: Option<u64>,
    /// A part that was written, until it is known whether there is a checkpoint.
    unsettled: Option<(FileEntry, u64, Unsettled)>,
}

impl Checkpoints {
    /// Where the configuration says; `None` where it says nothing.
    pub fn open(config: &Config) -> Result<Option<Checkpoints>> {
        let section = &config.checkpoint;
        if section.url.is_empty() {
            ensure!(
                section.interval_seconds == 0,
                "checkpoint.interval_seconds is set: say where to save with --checkpoints"
            );
            return Ok(None);
        }
        Ok(Some(Checkpoints {
            store: CheckpointStore::open(&section.url)?,
            counts: Counts::default(),
            keep: section.keep,
            chain: section.chain,
            interval: (section.interval_seconds > 0).then(|| Duration::from_secs(section.interval_seconds)),
            on_drain: section.on_drain,
            coordinating: tokio::sync::Mutex::default(),
            state: tokio::sync::Mutex::default(),
        }))
    }

    /// How often the cluster is saved; `None` where only when somebody asks.
    pub fn interval(&self) -> Option<Duration> {
        self.interval
    }

    /// The shard has started from these.
    pub async fn start_from(&self, plan: &Plan) {
        let mut state = self.state.lock().await;
        (state.since, state.lsn) = (plan.since, Some(plan.lsn.0));
        if let Some(newest) = plan.checkpoints().last() {
            self.counts.sequence.store(*newest, Ordering::Relaxed);
        }
    }
}

impl Shard {
    fn checkpoints(&self) -> Result<&Checkpoints> {
        self.checkpoints.as_ref().context("there is no place for checkpoints: start the server with --checkpoints")
    }

    /// Writes this shard's part of a checkpoint. `watch` gets the last change in it, and the bytes written so far.
    async fn save_part(
        self: &Arc<Self>,
        sequence: u64,
        incremental: bool,
        watch: impl Fn(u64, u64),
    ) -> Result<FileEntry> {
        let checkpoints = self.checkpoints()?;
        let state = checkpoints.state.try_lock().map_err(|_| Error::SaveUnderWay)?;
        self.save_part_with(checkpoints, state, sequence, incremental, watch).await
    }

    async fn save_part_with(
        self: &Arc<Self>,
        checkpoints: &Checkpoints,
        mut state: tokio::sync::MutexGuard<'_, State>,
        sequence: u64,
        incremental: bool,
        watch: impl Fn(u64, u64),
    ) -> Result<FileEntry> {
        if let Some((file, sequence, _)) = &state.unsettled {
            // Whoever asked for it was not heard of again: is it in a checkpoint? It stays unsettled while nobody can tell.
            let (path, sequence) = (file.path.clone(), *sequence);
            let found = checkpoints.store.find(sequence).await?;
            let complete = found.is_some_and(|found| found.files.iter().any(|other| other.path == path));
            if let Some((file, _, unsettled)) = state.unsettled.take() {
                self.settle(&mut state, file, sequence, unsettled, complete).await?;
            }
        }
        let mut base = state.since.filter(|&(_, links)| incremental && links < checkpoints.chain);
        if let Some((sequence, _)) = base
            && checkpoints.store.find(sequence).await?.is_none()
        {
            base = None;
        }
        let begun = Instant::now();
        let shards = self.topology.shards.len() as u32;
        let history = self.history.get().copied().unwrap_or_default();
        let part = PartOf { sequence, shard: self.number, shards, history, base };
        let (tell, mut told) = tokio::sync::watch::channel((0, 0));
        let tell_cut = tell.clone();
        let mut saving = std::pin::pin!(checkpoint::save_part(
            &checkpoints.store,
            &self.engine,
            part,
            move |lsn| _ = tell_cut.send_replace((lsn, 0)),
            move |bytes| tell.send_modify(|told| told.1 = bytes),
        ));
        let saved = loop {
            tokio::select! {
                saved = &mut saving => break saved,
                Ok(()) = told.changed() => {
                    let (lsn, bytes) = *told.borrow_and_update();
                    watch(lsn, bytes);
                }
            }
        };
        let (file, unsettled) =
            saved.inspect_err(|_| _ = checkpoints.counts.failures.fetch_add(1, Ordering::Relaxed))?;
        let millis = begun.elapsed().as_millis() as u64;
        checkpoints.counts.millis.store(millis, Ordering::Relaxed);
        checkpoints.counts.bytes.store(file.bytes, Ordering::Relaxed);
        tracing::info!(sequence, bytes = file.bytes, lsn = file.lsn, millis, whole = base.is_none(), "part saved");
        if let Some(log) = self.log.get() {
            // The checkpoint must not have changes that a loss of power takes from the log: others would get their places.
            if let Err(reason) = log.sync_up_to(Lsn(file.lsn)).await {
                self.engine.settle(unsettled, false);
                return Err(anyhow!(reason));
            }
        }
        state.unsettled = Some((file.clone(), sequence, unsettled));
        Ok(file)
    }

    /// Says what became of a part. Where there is a checkpoint, the log that it covers goes.
    async fn settle(
        self: &Arc<Self>,
        state: &mut State,
        file: FileEntry,
        sequence: u64,
        unsettled: Unsettled,
        complete: bool,
    ) -> Result<()> {
        self.engine.settle(unsettled, complete);
        let checkpoints = self.checkpoints()?;
        if !complete {
            checkpoints.counts.failures.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        // From here on what changes has changed since this one, whatever becomes of the folder.
        (state.since, state.lsn) = (Some((sequence, file.links)), None);
        let lsn = file.lsn;
        checkpoints.counts.sequence.store(sequence, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        checkpoints.counts.made.store(now, Ordering::Relaxed);
        let shard = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            if let (Some(folder), Some(log)) = (shard.data_folder.get(), shard.log.get()) {
                // What the log goes on from is written down before anything of it goes.
                folder.set_base(&Base { history: file.history, ..Base::of(vec![sequence], file.lsn) })?;
                log.forget(Lsn(file.lsn)).context("what the checkpoint covers cannot be removed from the log")?;
            }
            anyhow::Ok(())
        })
        .await??;
        state.lsn = Some(lsn);
        Ok(())
    }

    /// Saves the whole cluster. `watch` is told how far it is.
    async fn save_cluster(
        self: &Arc<Self>,
        label: &str,
        incremental: bool,
        watch: impl Fn(proto::SaveProgress) + Send + Sync,
    ) -> Result<Manifest> {
        let checkpoints = self.checkpoints()?;
        let _one_at_a_time = checkpoints.coordinating.try_lock().map_err(|_| Error::SaveUnderWay)?;
        let begun = async {
            checkpoints.store.check_cluster(&self.cluster_identity()).await?;
            checkpoints.store.next_sequence().await
        };
        // Nobody has a part yet that would be counted.
        let sequence = begun.await.inspect_err(|_| _ = checkpoints.counts.failures.fetch_add(1, Ordering::Relaxed))?;
        let progress = Mutex::new(BTreeMap::<u32, proto::SaveShardProgress>::new());
        let tell = |shard: u32, message: proto::SaveShardProgress| {
            let mut progress = progress.lock();
            progress.insert(shard, message);
            watch(proto::SaveProgress {
                sequence,
                bytes: progress.values().map(|shard| shard.bytes).sum(),
                expected_bytes: progress.values().map(|shard| shard.expected_bytes).sum(),
                shards_done: progress.values().filter(|shard| !shard.file.is_empty()).count() as u32,
                complete: false,
            });
        };
        let shards = 0..self.topology.shards.len() as u32;
        let tell = &tell;
        let parts = shards.map(|shard| self.part_of(shard, sequence, incremental, move |message| tell(shard, message)));
        let files = join_all(parts).await;
        let written: Vec<FileEntry> = files.iter().filter_map(|file| file.as_ref().ok().cloned()).collect();
        let finished = async {
            let files = files.into_iter().collect::<Result<Vec<_>>>()?;
            let covered: usize = files.iter().map(|file| file.sections.len()).sum();
            ensure!(covered == self.topology.partitions() as usize, "the shards do not have all partitions together");
            self.write_manifest(sequence, label, files).await
        };
        match finished.await {
            Ok(manifest) => {
                let settled = self.settle_all(&written, manifest.sequence, true).await;
                if let Err(error) = &settled {
                    tracing::warn!(
                        "checkpoint {} is complete; not all shards know it yet: {error:#}",
                        manifest.sequence
                    );
                } else if checkpoints.keep > 0 {
                    // If that fails the next save tries again.
                    match checkpoint::prune(&checkpoints.store, checkpoints.keep, false).await {
                        Ok(gone) if gone.is_empty() => {}
                        Ok(gone) => tracing::info!("removed old checkpoints {gone:?}"),
                        Err(error) => tracing::warn!("old checkpoints could not be removed: {error:#}"),
                    }
                }
                Ok(manifest)
            }
            Err(error) => {
                // A shard that does not hear of it looks for the manifest before its next part.
                let _ = self.settle_all(&written, sequence, false).await;
                Err(error)
            }
        }
    }

    fn cluster_identity(&self) -> ClusterIdentity {
        ClusterIdentity {
            name: self.topology.cluster.clone(),
            partitions: self.topology.partitions(),
            seed: self.engine.config().seed,
        }
    }

    /// Makes a checkpoint of files, under the next number that is free.
    async fn write_manifest(&self, first: u64, label: &str, files: Vec<FileEntry>) -> Result<Manifest> {
        let checkpoints = self.checkpoints()?;
        let mut manifest = Manifest::new(first, label, self.cluster_identity(), files);
        manifest.check_tables()?;
        for sequence in first..first + TRIES {
            manifest.sequence = sequence;
            if !checkpoints.store.put(&manifest).await? {
                let there = checkpoints.store.get(sequence).await?;
                // An answer that was lost and asked for again says that it is there already, and it is.
                if there.files != manifest.files {
                    there.check_not_newer(&manifest)?;
                    continue;
                }
            }
            if let Err(error) = checkpoints.store.check_chain(&manifest).await {
                checkpoints.store.remove(&manifest.path()).await?;
                return Err(error);
            }
            tracing::info!(sequence, label, bytes = manifest.bytes(), "checkpoint is complete");
            return Ok(manifest);
        }
        Err(anyhow!("other checkpoints have taken the numbers {first} to {}", first + TRIES - 1))
    }

    /// One shard's part: written here, or by the shard that is asked.
    async fn part_of(
        self: &Arc<Self>,
        shard: u32,
        sequence: u64,
        incremental: bool,
        tell: impl Fn(proto::SaveShardProgress),
    ) -> Result<FileEntry> {
        let expected_bytes = self.engine.memory_used();
        if shard == self.number {
            let watch = |lsn, bytes| {
                tell(proto::SaveShardProgress { lsn, bytes, expected_bytes, file: String::new() });
            };
            let file = self.save_part(sequence, incremental, watch).await?;
            let (lsn, bytes) = (file.lsn, file.bytes);
            tell(proto::SaveShardProgress { lsn, bytes, expected_bytes: bytes, file: file.path.clone() });
            return Ok(file);
        }
        let mut other = self.other(shard)?;
        let url = self.checkpoints()?.store.url().to_string();
        let request = proto::SaveShardRequest { sequence, incremental, url };
        let address = &self.topology.shards[shard as usize];
        let refused = |status: Status| match status.code() {
            Code::Aborted => Error::SaveUnderWay.into(),
            _ => anyhow!("shard {shard} ({address}): {}", status.message()),
        };
        let mut stream = other.save_shard(self.credentials.request(request)).await.map_err(refused)?.into_inner();
        while let Some(message) = stream.message().await.map_err(refused)? {
            let file = message.file.clone();
            tell(message);
            if !file.is_empty() {
                return serde_json::from_str(&file).with_context(|| format!("shard {shard} sent no file's entry"));
            }
        }
        Err(anyhow!("shard {shard} ended before its part was written"))
    }

    async fn settle_all(self: &Arc<Self>, files: &[FileEntry], sequence: u64, complete: bool) -> Result<()> {
        let settled = join_all(files.iter().map(async |file| {
            if file.shard == self.number {
                return self.settle_path(&file.path, sequence, complete).await;
            }
            let request = proto::SettleShardRequest { path: file.path.clone(), sequence, complete };
            let request = self.credentials.request(request);
            let answer = self.other(file.shard)?.settle_shard(request).await;
            let address = &self.topology.shards[file.shard as usize];
            answer.map(drop).map_err(|status| anyhow!("shard {} ({address}): {}", file.shard, status.message()))
        }));
        settled.await.into_iter().collect()
    }

    async fn settle_path(self: &Arc<Self>, path: &str, sequence: u64, complete: bool) -> Result<()> {
        let mut state = self.checkpoints()?.state.lock().await;
        match state.unsettled.take_if(|(file, ..)| file.path == path) {
            Some((file, _, unsettled)) => self.settle(&mut state, file, sequence, unsettled, complete).await,
            None if complete && state.since.is_none_or(|(settled, _)| settled != sequence) => Err(anyhow!(
                "shard {} has begun another checkpoint meanwhile, and starts from an earlier one",
                self.number
            )),
            None => Ok(()),
        }
    }

    fn other(&self, shard: u32) -> Result<CheckpointsClient<tonic::transport::Channel>> {
        let address = &self.topology.shards[shard as usize];
        let channel = client::connect_shard(address, &self.credentials);
        let client = CheckpointsClient::new(channel.with_context(|| format!("shard {shard} ({address})"))?);
        Ok(client.max_decoding_message_size(LARGEST_ENTRY))
    }
}

/// Saves the cluster again and again, where the configuration asks for it. Shard 0 does.
pub async fn save_regularly(shard: Arc<Shard>) {
    let interval = shard.checkpoints.as_ref().and_then(|checkpoints| checkpoints.interval);
    let Some(interval) = interval.filter(|_| shard.number == 0) else { return };
    let mut draining = shard.draining.subscribe();
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            _ = draining.wait_for(|draining| *draining) => return,
        }
        if let Err(error) = shard.save_cluster("", true, |_| {}).await {
            tracing::error!("the checkpoint came to nothing: {error:#}");
        }
    }
}

/// Saves this shard alone, because it ends. Returns the last change that is in a checkpoint now. It may take as
/// long as it likes, but not go on for `patience` without a byte: a store that does not answer is not waited for.
pub async fn save_at_end(shard: &Arc<Shard>, patience: Duration) -> Result<Option<Lsn>> {
    let Some(checkpoints) = shard.checkpoints.as_ref().filter(|checkpoints| checkpoints.on_drain) else {
        return Ok(None);
    };
    let moved = Mutex::new(Instant::now());
    let stuck = async {
        while moved.lock().elapsed() < patience {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let saved = tokio::select! {
        saved = save_alone(shard, checkpoints, || *moved.lock() = Instant::now()) => saved,
        () = stuck => Err(anyhow!("{} does not answer", checkpoints.store.url())),
    };
    match saved {
        Ok(saved) => Ok(saved),
        // Nothing is lost: the log is there.
        Err(error) if shard.log.get().is_some() => {
            tracing::warn!("the last checkpoint came to nothing, the next start replays the log: {error:#}");
            Ok(None)
        }
        Err(error) => Err(error.context("the state could not be saved before the end")),
    }
}

async fn save_alone(shard: &Arc<Shard>, checkpoints: &Checkpoints, moved: impl Fn()) -> Result<Option<Lsn>> {
    // One that is under way is finished first.
    let state = checkpoints.state.lock().await;
    let last = shard.engine.last_lsn();
    if last == Lsn(0) || state.lsn == Some(last.0) {
        return Ok(Some(last));
    }
    tracing::info!("saving before the end");
    checkpoints.store.check_cluster(&shard.cluster_identity()).await?;
    let sequence = checkpoints.store.next_sequence().await?;
    let file = shard.save_part_with(checkpoints, state, sequence, true, |_, _| moved()).await?;
    let (lsn, path) = (file.lsn, file.path.clone());
    let manifest = shard.write_manifest(sequence, "", vec![file]).await;
    let number = manifest.as_ref().map_or(sequence, |manifest| manifest.sequence);
    shard.settle_path(&path, number, manifest.is_ok()).await?;
    manifest?;
    Ok(Some(Lsn(lsn)))
}

/// The checkpoint service of a shard.
pub struct CheckpointsService {
    /// The shard.
    pub shard: Arc<Shard>,
}

type Messages<T> = ReceiverStream<Result<T, Status>>;

/// Sends messages to whoever waits, but not more often than anybody can read.
struct Sender<T> {
    messages: mpsc::Sender<Result<T, Status>>,
    said: Mutex<Option<Instant>>,
}

impl<T> Sender<T> {
    fn new() -> (Sender<T>, Messages<T>) {
        let (messages, receiver) = mpsc::channel(16);
        (Sender { messages, said: Mutex::new(None) }, ReceiverStream::new(receiver))
    }

    fn say(&self, message: T) {
        let mut said = self.said.lock();
        if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
            *said = Some(Instant::now());
            // Whoever is slow or gone misses it.
            let _ = self.messages.try_send(Ok(message));
        }
    }

    async fn end(&self, message: Result<T>) {
        let message = message.map_err(|error| match error.downcast::<Error>() {
            Ok(error) => error.into(),
            Err(error) => Status::failed_precondition(format!("{error:#}")),
        });
        // Whoever is gone misses it.
        let _ = self.messages.send(message).await;
    }
}

#[tonic::async_trait]
impl Service for CheckpointsService {
    type SaveStream = Messages<proto::SaveProgress>;
    type SaveShardStream = Messages<proto::SaveShardProgress>;

    async fn save(&self, request: Request<proto::SaveRequest>) -> Result<Response<Self::SaveStream>, Status> {
        let proto::SaveRequest { label, incremental } = request.into_inner();
        let shard = Arc::clone(&self.shard);
        let (sender, messages) = Sender::new();
        // It goes on if the caller leaves: half a checkpoint is of no use.
        self.shard.runtime.spawn(async move {
            let saved = shard.save_cluster(&label, incremental, |message| sender.say(message)).await;
            let complete = saved.map(|manifest| proto::SaveProgress {
                sequence: manifest.sequence,
                bytes: manifest.bytes(),
                expected_bytes: manifest.bytes(),
                shards_done: manifest.files.len() as u32,
                complete: true,
            });
            sender.end(complete).await;
        });
        Ok(Response::new(messages))
    }

    async fn save_shard(
        &self,
        request: Request<proto::SaveShardRequest>,
    ) -> Result<Response<Self::SaveShardStream>, Status> {
        let proto::SaveShardRequest { sequence, incremental, url } = request.into_inner();
        let ours = self.shard.checkpoints().map_err(|e| Status::failed_precondition(e.to_string()))?.store.url();
        if ours != url {
            let text =
                format!("this shard saves to {ours}, the one that asks to {url}: give all the same --checkpoints");
            return Err(Status::failed_precondition(text));
        }
        let shard = Arc::clone(&self.shard);
        let (sender, messages) = Sender::new();
        self.shard.runtime.spawn(async move {
            let expected_bytes = shard.engine.memory_used();
            let say = |lsn, bytes| {
                sender.say(proto::SaveShardProgress { lsn, bytes, expected_bytes, file: String::new() });
            };
            let saved = shard.save_part(sequence, incremental, say).await.and_then(|file| {
                let (lsn, bytes) = (file.lsn, file.bytes);
                let file = serde_json::to_string(&file)?;
                Ok(proto::SaveShardProgress { lsn, bytes, expected_bytes: bytes, file })
            });
            sender.end(saved).await;
        });
        Ok(Response::new(messages))
    }

    async fn settle_shard(
        &self,
        request: Request<proto::SettleShardRequest>,
    ) -> Result<Response<proto::SettleShardResponse>, Status> {
        let proto::SettleShardRequest { path, sequence, complete } = request.into_inner();
        match self.shard.settle_path(&path, sequence, complete).await {
            Ok(()) => Ok(Response::new(proto::SettleShardResponse {})),
            Err(error) => Err(Status::internal(format!("{error:#}"))),
        }
    }
}
