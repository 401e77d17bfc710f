//! The sharded client: connect to any shard, and pull and push as if there were one.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hotrow::client::Client;
//! use hotrow::{Pull, Push, TableSpec};
//!
//! let client = Client::connect("127.0.0.1:7700").await?;
//! client.create_table(&TableSpec::dense("item", 1_000_000, 64)).await?;
//! let keys = [3, 1_415, 926_535];
//! let rows = client.pull(&[Pull { table: "item", keys: &keys }]).await?;
//! let gradients = vec![0.1; rows.len()];
//! client.push(&[Push { table: "item", keys: &keys, gradients: &gradients, ..Push::default() }]).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The client removes duplicates, routes keys by the topology that it learns from the shards, asks shards side by side,
//! and tries again with backoff. Pushes are applied exactly once, in the order of the calls, per client object: each
//! shard recognises a push that it has applied. A pull waits for the pushes begun before it ([`Options::lookahead`]).

mod backoff;
mod channel;
mod checkpoint;
mod credentials;
mod error;
mod pull;
mod push;
mod pusher;
mod rows;
mod split;
mod stats;
mod tables;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use futures_util::future::try_join_all;
use tonic::Status;
use tonic::transport::Channel;

use self::backoff::Backoff;
use self::channel::Connections;
use self::error::{is_stale, is_transient};
use self::push::Pushes;
use crate::awake;
use crate::cluster::Topology;
use crate::engine::RowFormat;
use crate::engine::route::Route;
use crate::proto;
use crate::proto::admin_client::AdminClient;
use crate::table::KeySpace;

pub use self::channel::connect_shard;
pub use self::credentials::Credentials;
pub use self::error::{Error, Result};
pub use self::push::PendingPush;
pub use self::rows::KeyCursor;
pub use self::split::distinct;
pub use self::stats::total_stats;

/// How a client works.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is shown to servers.
    pub credentials: Credentials,
    /// How long a call may take, with all its attempts.
    pub timeout: Duration,
    /// Connections to each shard for pulls; pushes have one of their own.
    pub connections: usize,
    /// How rows travel.
    pub rows: RowFormat,
    /// How gradients travel: f32, f16 or bf16.
    pub gradients: RowFormat,
    /// How many of the last pushes a pull may miss. 0: a pull waits until every push begun before it is applied.
    pub lookahead: usize,
    /// How long to wait for an answer without going to sleep, where the client is on a runtime of one thread and the answer before came in
    /// that time. Zero is never.
    pub stay_awake: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            credentials: Credentials::default(),
            timeout: Duration::from_secs(30),
            connections: 4,
            rows: RowFormat::F32,
            gradients: RowFormat::F32,
            lookahead: 0,
            stay_awake: Duration::from_millis(1),
        }
    }
}

/// A client of a cluster. Share it by reference or `Arc`; all methods take `&self`.
pub struct Client {
    options: Options,
    /// Where to ask for the topology, beside the shards that are known.
    seeds: Vec<String>,
    cluster: ArcSwap<Cluster>,
    tables: DashMap<String, TableInfo>,
    pushes: Pushes,
    caller: awake::Caller,
}

/// The shards as they are known now.
struct Cluster {
    topology: Topology,
    route: Route,
    shards: Vec<Arc<Connections>>,
}

/// What routing and decoding need to know of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TableInfo {
    dim: usize,
    keys: KeySpace,
}

impl Client {
    /// Connects to a cluster through any of its shards: `host:port` or `unix:path`.
    pub async fn connect(address: &str) -> Result<Client> {
        Client::connect_with(&[address], Options::default()).await
    }

    /// Connects through any of several addresses, and with options.
    pub async fn connect_with<A: AsRef<str>>(addresses: &[A], options: Options) -> Result<Client> {
        let seeds: Vec<String> = addresses.iter().map(|address| address.as_ref().to_string()).collect();
        if seeds.is_empty() {
            return Err(Error::Setup("no address given".into()));
        }
        if options.gradients == RowFormat::Int8 {
            return Err(Error::Setup("gradients travel as f32, f16 or bf16".into()));
        }
        let cluster = find_cluster(&seeds, &options, None).await?;
        let pushes = Pushes::new()?;
        let caller = awake::Caller::new(options.stay_awake);
        Ok(Client { options, seeds, cluster: ArcSwap::from_pointee(cluster), tables: DashMap::new(), pushes, caller })
    }

    /// Who owns what, as known now.
    pub fn topology(&self) -> Topology {
        self.cluster.load().topology.clone()
    }

    /// Asks for the topology again.
    pub async fn refresh(&self) -> Result<()> {
        let known = self.cluster.load_full();
        let mut seeds = known.topology.shards.clone();
        seeds.extend(self.seeds.iter().cloned());
        let cluster = find_cluster(&seeds, &self.options, Some(&known)).await?;
        self.cluster.store(Arc::new(cluster));
        Ok(())
    }

    /// Numbers in a row of a table; asked for once.
    pub async fn dim(&self, table: &str) -> Result<usize> {
        Ok(self.table(table).await?.dim)
    }

    /// What is known of a table; asked for once.
    async fn table(&self, name: &str) -> Result<TableInfo> {
        if let Some(info) = self.tables.get(name) {
            return Ok(*info);
        }
        let spec = self.describe_table(name).await?.0;
        let info = TableInfo { dim: spec.dim, keys: spec.keys };
        self.tables.insert(name.into(), info);
        Ok(info)
    }

    /// Calls a shard until it answers, refuses, or time is up.
    async fn call<T, F>(
        &self,
        shard: u32,
        cluster: &Cluster,
        attempt: impl Fn(Arc<Connections>, Duration) -> F,
    ) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Status>>,
    {
        self.call_in_turn(shard..shard + 1, cluster, attempt).await
    }

    /// Calls one shard after the other, for what all of them know, until one answers or refuses, or time is up.
    async fn call_any<T, F>(&self, cluster: &Cluster, attempt: impl Fn(Arc<Connections>, Duration) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Status>>,
    {
        self.call_in_turn(0..cluster.shards.len() as u32, cluster, attempt).await
    }

    async fn call_in_turn<T, F>(
        &self,
        shards: Range<u32>,
        cluster: &Cluster,
        attempt: impl Fn(Arc<Connections>, Duration) -> F,
    ) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Status>>,
    {
        let begun = Instant::now();
        let mut backoff = Backoff::default();
        let mut turns = shards.cycle();
        loop {
            let shard = turns.next().unwrap_or_default();
            let connections = &cluster.shards[shard as usize];
            let left = self.options.timeout.saturating_sub(begun.elapsed());
            // A connection that hangs must not use up all the time.
            let now = left.min((self.options.timeout / 3).max(Duration::from_millis(100)));
            let status = match tokio::time::timeout(now, attempt(Arc::clone(connections), now)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer came"),
            };
            if is_stale(&status) {
                return Err(Error::StaleTopology);
            }
            if !is_transient(&status) {
                return Err(Error::Refused {
                    shard,
                    address: connections.address.clone(),
                    code: status.code(),
                    message: status.message().into(),
                });
            }
            if begun.elapsed() >= self.options.timeout {
                return Err(Error::TimedOut {
                    shard,
                    address: connections.address.clone(),
                    seconds: begun.elapsed().as_secs_f64(),
                    last: pusher::describe(&status),
                });
            }
            let left = self.options.timeout.saturating_sub(begun.elapsed());
            let _ = tokio::time::timeout(left, backoff.wait()).await;
        }
    }

    /// Runs an operation, and once more with a new topology if the shards have another.
    async fn routed<T, F>(&self, operation: impl Fn(Arc<Cluster>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let begun = Instant::now();
        let mut backoff = Backoff::default();
        loop {
            match operation(self.cluster.load_full()).await {
                Err(Error::StaleTopology) if begun.elapsed() < self.options.timeout => {
                    self.refresh().await?;
                    backoff.wait().await;
                }
                done => return done,
            }
        }
    }

    /// Calls every shard side by side.
    async fn call_all<T, F>(&self, attempt: impl Fn(Channel) -> F) -> Result<Vec<T>>
    where
        F: Future<Output = std::result::Result<T, Status>>,
    {
        let cluster = self.cluster.load_full();
        let (cluster, attempt) = (&*cluster, &attempt);
        let calls = (0..cluster.shards.len() as u32)
            .map(|shard| self.call(shard, cluster, move |connections, _| attempt(connections.channel())));
        try_join_all(calls).await
    }

    /// Waits until every change that any shard has accepted is applied.
    pub async fn flush(&self) -> Result<()> {
        self.pushes.wait(0).await;
        let credentials = &self.options.credentials;
        self.call_all(async |channel| {
            AdminClient::new(channel).flush(credentials.request(proto::FlushRequest {})).await
        })
        .await
        .map(drop)
    }

    /// Finishes the pushes under way and tells the shards that this client is gone; it cannot push any more. A client that
    /// is just dropped is forgotten by the shards after a while.
    pub async fn close(&self) {
        self.pushes.close().await;
    }
}

/// Asks one address after the other for the topology.
async fn find_cluster(seeds: &[String], options: &Options, known: Option<&Cluster>) -> Result<Cluster> {
    let begun = Instant::now();
    let mut backoff = Backoff::default();
    loop {
        let mut last = Error::Setup("no address given".into());
        for seed in seeds {
            let channel = connect_shard(seed, &options.credentials)?;
            let request = options.credentials.request(proto::TopologyRequest {});
            let mut admin = AdminClient::new(channel);
            let status = match tokio::time::timeout(
                options.timeout.min(Duration::from_secs(5)),
                admin.topology(request),
            )
            .await
            {
                Ok(Ok(answer)) => return cluster(&answer.into_inner(), seed, options, known),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer came"),
            };
            let (address, message) = (seed.clone(), pusher::describe(&status));
            if !is_transient(&status) {
                return Err(Error::Refused { shard: 0, address, code: status.code(), message });
            }
            last = Error::TimedOut { shard: 0, address, seconds: begun.elapsed().as_secs_f64(), last: message };
        }
        if begun.elapsed() >= options.timeout {
            return Err(last);
        }
        backoff.wait().await;
    }
}

/// A cluster from a shard's word. Connections to shards that stay where they are stay open.
fn cluster(
    answer: &proto::TopologyResponse,
    seed: &str,
    options: &Options,
    known: Option<&Cluster>,
) -> Result<Cluster> {
    let owners: Vec<u32> = bytemuck::pod_collect_to_vec(&answer.partition_shards);
    let partitions = owners.len() as u32;
    if !partitions.is_power_of_two() || owners.iter().any(|&owner| owner as usize >= answer.shards.len()) {
        return Err(Error::Setup(format!("{seed} gave a topology that makes no sense")));
    }
    let mut topology = Topology::new(&answer.cluster, answer.shards.clone(), owners);
    topology.version = answer.version;
    // The only shard is reached by the address that was given: it may know itself by another one.
    let addresses = if topology.shards.len() == 1 { vec![seed.to_string()] } else { topology.shards.clone() };
    let shards = addresses
        .iter()
        .map(|address| {
            let same = known.and_then(|known| known.shards.iter().find(|shard| shard.address == *address));
            match same {
                Some(shard) => Ok(Arc::clone(shard)),
                None => Connections::new(address, &options.credentials, options.connections).map(Arc::new),
            }
        })
        .collect::<Result<_>>()?;
    Ok(Cluster { route: Route::new(partitions, (0..partitions).collect()), topology, shards })
}
