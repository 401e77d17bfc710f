//! The server: one shard's tables over gRPC, its metrics over HTTP.
//!
//! A request passes the gate (`gate.rs`: drain, token, limit, deadline), is turned into the engine's types at the edge
//! (`data.rs`, `tables.rs`, `admin.rs`), and its answer goes out as it is (`framing.rs`). This room knows the engine
//! and the cluster; nothing below knows it.

mod admin;
#[cfg(target_os = "linux")]
mod aside;
mod auth;
mod buffers;
mod checkpoints;
pub mod config;
mod console;
mod data;
mod gate;
mod http;
mod listen;
mod metrics;
mod recovery;
mod reload;
mod shard;
mod status;
mod tables;
mod threads;
mod tls;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tonic::service::Routes;

use self::admin::AdminService;
use self::auth::Tokens;
use self::checkpoints::{Checkpoints, CheckpointsService};
use self::config::Config;
use self::data::DataService;
use self::gate::GateLayer;
use self::listen::Listeners;
use self::reload::Reloaded;
use self::shard::Shard;
use self::tables::TablesService;
use self::threads::{Connections, Threads};
use crate::cache::cuda::DeviceInfo;
use crate::client::Credentials;
use crate::engine::Engine;
use crate::proto;
use crate::proto::admin_server::AdminServer;
use crate::proto::checkpoints_server::CheckpointsServer;
use crate::proto::tables_server::TablesServer;
use crate::table::parse_bytes;

/// The largest HTTP/2 frame that is taken: large ones cost less per byte.
const FRAME: u32 = 1 << 20;
/// What may be under way on a connection before the sender waits.
const WINDOW: u32 = 16 << 20;
/// Streams on one connection.
const STREAMS: u32 = 1024;
/// When no request is under way any more: how long answers may take to leave. Whoever watches the server's health keeps
/// a connection open, and is not waited for.
const LAST_ANSWERS: Duration = Duration::from_secs(3);
/// How often idle clients are looked for, at most.
const EXPIRY_EVERY: Duration = Duration::from_secs(60);

/// A server that runs.
pub struct Server {
    shard: Arc<Shard>,
    address: SocketAddr,
    http: Option<(SocketAddr, JoinHandle<()>)>,
    serving: JoinHandle<Result<()>>,
    drain_time: Duration,
    unix: PathBuf,
}

impl Server {
    /// Starts a server, inside a tokio runtime.
    pub async fn start(config: &Config) -> Result<Server> {
        config.check().map_err(|e| anyhow!(e))?;
        let listener = TcpListener::bind(config.server.listen)
            .await
            .with_context(|| format!("cannot listen on {} (--listen)", config.server.listen))?;
        let address = listener.local_addr()?;
        let mut config = config.clone();
        config.server.listen = address;
        let host = std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/etc/hostname").ok());
        let (topology, number) = config.topology(host.unwrap_or_default().trim()).map_err(|e| anyhow!(e))?;
        let mut engine = config.engine_config(&topology, number).map_err(|e| anyhow!(e))?;
        // What was applied once is applied again, whatever the budget is now; it is set after that.
        let memory_budget = engine.memory_budget.take();
        let engine = Arc::new(Engine::new(engine)?);
        let bytes = |text: &str| parse_bytes(text).map_err(|e| anyhow!(e));
        let shard = Arc::new(Shard {
            engine,
            number,
            topology,
            max_request: bytes(&config.server.max_request)? as usize,
            max_response: bytes(&config.server.max_response)? as usize,
            max_in_flight: config.server.max_in_flight,
            in_flight: Arc::new(Semaphore::new(config.server.max_in_flight)),
            streams: Arc::new(Semaphore::new(config.server.max_in_flight)),
            client_idle: Duration::from_secs(config.server.client_idle_seconds),
            metrics: metrics::Metrics::new()?,
            buffers: Arc::default(),
            credentials: peer_credentials(&config)?,
            heard_of: DashMap::new(),
            memory_budget,
            log: OnceLock::new(),
            data_folder: OnceLock::new(),
            history: OnceLock::new(),
            checkpoints: Checkpoints::open(&config)?,
            recovering: Mutex::new(None),
            cut_bytes: AtomicU64::new(0),
            started: Instant::now(),
            draining: watch::Sender::new(false),
            runtime: Handle::current(),
        });
        shard.metrics.watch(&shard);
        let http = match config.server.http.is_empty() {
            true => None,
            false => Some(serve_http(&config.server.http, &shard).await?),
        };
        recovery::recover(&shard, &config).await?;
        shard.engine.limit_memory(memory_budget);
        for table in &config.tables {
            let spec = table.spec().map_err(|e| anyhow!(e))?;
            if shard.engine.spec(&spec.name).is_err() {
                let footprint = spec.footprint()?;
                tracing::info!(table = spec.name, bytes_per_row = footprint.bytes_per_row, "making a table");
            }
            let made = shard.change(move |shard| shard.engine.create(&spec)).await;
            made.map_err(|e| anyhow!(e.message().to_string()))?;
        }

        let tls = match tls::files(&config.tls) {
            files if files.is_empty() => None,
            files => {
                let section = config.tls.clone();
                let made = Reloaded::new("certificates", files, move || tls::server_config(&section));
                Some(made.map_err(|e| anyhow!(e))?)
            }
        };
        let tokens = match config.auth.tokens.as_os_str().is_empty() {
            true => None,
            false => {
                let path = config.auth.tokens.clone();
                let made = Reloaded::new("tokens", vec![path.clone()], move || Tokens::read(&path));
                Some(made.map_err(|e| anyhow!(e))?)
            }
        };
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let services = services(&shard, tokens).await?;
        let awake_for = Duration::from_micros(config.server.stay_awake_us);
        let (threads, dealer) =
            Threads::start(count, awake_for, move |connections| serve(services.clone(), connections))?;
        let listeners = Listeners::new(dealer, config.server.max_connections);
        listeners.tcp(listener, tls);
        if !config.server.unix.as_os_str().is_empty() {
            listeners.unix(&config.server.unix).await.map_err(|e| anyhow!("--unix: {e}"))?;
        }
        let serving = tokio::spawn(threads.done());
        tokio::spawn(expire(Arc::clone(&shard)));
        tokio::spawn(checkpoints::save_regularly(Arc::clone(&shard)));
        let drain_time = Duration::from_secs(config.server.drain_seconds);
        Ok(Server { shard, address, http, serving, drain_time, unix: config.server.unix })
    }

    /// Where gRPC is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where hot rows are, in words.
    pub fn pool(&self) -> String {
        match (self.shard.engine.device(), self.shard.engine.without_device()) {
            (Some(device), _) => {
                let DeviceInfo { device: number, name, capability: (major, minor), driver } = device.info();
                let budget = device.stats().memory_budget as f64 / f64::from(1 << 30);
                let (cuda, point) = (driver / 1000, driver % 1000 / 10);
                format!(
                    "hot rows are on GPU {number} ({name}, sm_{major}{minor}, CUDA {cuda}.{point}), up to {budget:.1} GiB"
                )
            }
            (None, Some(reason)) => format!("hot rows are in host memory: {reason}"),
            (None, None) => "hot rows are in host memory".into(),
        }
    }

    /// Where HTTP is.
    pub fn http(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|(address, _)| *address)
    }

    /// Which shard this is, and of how many.
    pub fn shard(&self) -> (u32, usize) {
        (self.shard.number, self.shard.topology.shards.len())
    }

    /// The partitions that it owns.
    pub fn partitions(&self) -> usize {
        self.shard.topology.owned_by(self.shard.number).len()
    }

    /// Resolves when somebody has asked the shard to drain.
    pub async fn asked_to_drain(&self) {
        // Fails only if the sender is gone, and this holds it.
        let _ = self.shard.draining.subscribe().wait_for(|draining| *draining).await;
    }

    /// Resolves, with the reason, when the shard cannot go on: its log cannot be written.
    pub async fn failed(&self) -> String {
        match self.shard.log.get() {
            Some(log) => log.failed().await,
            None => std::future::pending().await,
        }
    }

    /// Finishes what is under way, refuses what is new, and ends.
    pub async fn drain(mut self) -> Result<()> {
        self.shard.drain();
        let shard = Arc::clone(&self.shard);
        let only_watchers_left = async move {
            // Streams end by themselves; what they still do takes room as other requests do.
            shard.wait_for_requests().await;
            tokio::time::sleep(LAST_ANSWERS).await;
        };
        let ended = tokio::select! {
            ended = &mut self.serving => ended?,
            () = only_watchers_left => Ok(()),
            () = tokio::time::sleep(self.drain_time) => {
                let seconds = self.drain_time.as_secs();
                Err(anyhow!("requests were still under way after {seconds} s (server.drain_seconds)"))
            }
        };
        let saved = checkpoints::save_at_end(&self.shard, self.drain_time).await;
        let shard = Arc::clone(&self.shard);
        tokio::task::spawn_blocking(move || shard.log.get().inspect(|log| log.close()).is_some()).await?;
        let ended = ended.and(saved);
        if let (Ok(Some(lsn)), Some(log)) = (&ended, self.shard.log.get()) {
            // If the checkpoint has everything the next start has nothing to replay, whatever version it is of.
            log.forget(*lsn)?;
        }
        // The process may go on, and start another server: its port and folder are free.
        self.serving.abort();
        if let Some((_, http)) = &self.http {
            http.abort();
        }
        if let Some(folder) = self.shard.data_folder.get() {
            folder.unlock();
        }
        // The process may end before the listener's own task runs again. No path is no file.
        let _ = std::fs::remove_file(&self.unix);
        ended.map(drop)
    }
}

/// What a shard shows the others.
fn peer_credentials(config: &Config) -> Result<Credentials> {
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let set = |path: &Path| !path.as_os_str().is_empty();
    let mut credentials = Credentials::default();
    if set(&config.cluster.token_file) {
        let token = String::from_utf8(read(&config.cluster.token_file)?).context("the token is not text")?;
        credentials = credentials.token(token.trim())?;
    }
    if set(&config.cluster.ca) {
        credentials = credentials.ca(read(&config.cluster.ca)?);
        if set(&config.tls.client_ca) {
            credentials = credentials.identity(read(&config.tls.cert)?, read(&config.tls.key)?);
        }
    }
    Ok(credentials)
}

async fn serve_http(address: &str, shard: &Arc<Shard>) -> Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} (--http)"))?;
    let address = listener.local_addr()?;
    let routes = http::routes(Arc::clone(shard));
    let serving = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!("the HTTP port has failed: {error}");
        }
    });
    Ok((address, serving))
}

/// All services, behind the gate.
async fn services(shard: &Arc<Shard>, tokens: Option<Arc<Reloaded<Tokens>>>) -> Result<Services> {
    let (mut health, health_service) = tonic_health::server::health_reporter();
    let names = ["", "hotrow.v1.Data", "hotrow.v1.Tables", "hotrow.v1.Admin", "hotrow.v1.Checkpoints"];
    for name in names {
        health.set_service_status(name, tonic_health::ServingStatus::Serving).await;
    }
    let mut draining = shard.draining.subscribe();
    tokio::spawn(async move {
        // Fails only if the sender is gone, and then there is nothing left to serve.
        let _ = draining.wait_for(|draining| *draining).await;
        for name in names {
            health.set_service_status(name, tonic_health::ServingStatus::NotServing).await;
            // Ends the streams of those who watch, which would be waited for.
            health.clear_service_status(name).await;
        }
    });
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let limit = shard.max_request;
    let mut routes = Routes::builder();
    routes
        .add_service(DataService::new(Arc::clone(shard)))
        .add_service(TablesServer::new(TablesService { shard: Arc::clone(shard) }).max_decoding_message_size(limit))
        .add_service(AdminServer::new(AdminService { shard: Arc::clone(shard) }).max_decoding_message_size(limit))
        .add_service(CheckpointsServer::new(CheckpointsService { shard: Arc::clone(shard) }))
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    Ok(Services { routes: routes.routes(), gate: GateLayer { shard: Arc::clone(shard), tokens } })
}

/// What a connection may ask for.
#[derive(Clone)]
struct Services {
    routes: Routes,
    gate: GateLayer,
}

/// Serves the connections of one thread until the shard is told to end and all are closed.
async fn serve(services: Services, connections: Connections) -> Result<()> {
    let mut draining = services.gate.shard.draining.subscribe();
    let ending = async move {
        // Fails only if the sender is gone, and then there is nothing left to serve.
        let _ = draining.wait_for(|draining| *draining).await;
    };
    tonic::transport::Server::builder()
        .max_frame_size(FRAME)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(4 * WINDOW)
        .max_concurrent_streams(STREAMS)
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .layer(services.gate)
        .add_routes(services.routes)
        .serve_with_incoming_shutdown(connections, ending)
        .await?;
    Ok(())
}

/// Looks for idle clients until the shard ends.
async fn expire(shard: Arc<Shard>) {
    let every = EXPIRY_EVERY.min(shard.client_idle / 2).max(Duration::from_millis(100));
    let mut draining = shard.draining.subscribe();
    loop {
        tokio::select! {
            () = tokio::time::sleep(every) => shard.expire_clients(),
            _ = draining.wait_for(|draining| *draining) => return,
        }
    }
}
