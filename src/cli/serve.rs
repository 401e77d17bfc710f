//! `hotrow serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::server::Server;
use crate::server::config::Config;

/// Run a server.
///
/// Settings come from the file, then from the environment, then from flags; the later ones win.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A configuration file (TOML). `--print-config` shows every key.
    #[arg(long, short, env = "HOTROW_CONFIG")]
    config: Option<PathBuf>,
    /// Print the configuration that would be used, and end.
    #[arg(long)]
    print_config: bool,
    /// Where to serve gRPC [default: 127.0.0.1:7700].
    #[arg(long, env = "HOTROW_LISTEN")]
    listen: Option<SocketAddr>,
    /// A Unix socket for trainers on the same host.
    #[arg(long, env = "HOTROW_UNIX")]
    unix: Option<PathBuf>,
    /// Where to serve HTTP: metrics and probes [default: 127.0.0.1:7780]. Empty: nowhere.
    #[arg(long, env = "HOTROW_HTTP")]
    http: Option<String>,
    /// Serve plain text on an address that others can reach.
    #[arg(long, env = "HOTROW_ALLOW_PLAINTEXT", value_parser = clap::builder::BoolishValueParser::new())]
    allow_plaintext: bool,
    /// The largest request [default: 64MiB].
    #[arg(long, env = "HOTROW_MAX_REQUEST")]
    max_request: Option<String>,
    /// The largest answer [default: 256MiB].
    #[arg(long, env = "HOTROW_MAX_RESPONSE")]
    max_response: Option<String>,
    /// Requests at a time; more are refused [default: 256].
    #[arg(long, env = "HOTROW_MAX_IN_FLIGHT")]
    max_in_flight: Option<usize>,
    /// Connections at a time; more wait [default: 4096].
    #[arg(long, env = "HOTROW_MAX_CONNECTIONS")]
    max_connections: Option<usize>,
    /// How long to wait for requests to finish when ending [default: 30].
    #[arg(long, env = "HOTROW_DRAIN_SECONDS")]
    drain_seconds: Option<u64>,
    /// After how long without a push a client is forgotten [default: 86400].
    #[arg(long, env = "HOTROW_CLIENT_IDLE_SECONDS")]
    client_idle_seconds: Option<u64>,
    /// Partitions of the cluster, the same on all shards for its whole life [default: 128].
    #[arg(long, env = "HOTROW_PARTITIONS")]
    partitions: Option<u32>,
    /// The seed of all randomness, the same on all shards [default: 0].
    #[arg(long, env = "HOTROW_SEED")]
    seed: Option<u32>,
    /// Threads for large requests [default: one per core].
    #[arg(long, env = "HOTROW_THREADS")]
    threads: Option<usize>,
    /// What all tables of this shard may take together, such as 200GiB [default: no limit].
    #[arg(long, env = "HOTROW_MEMORY")]
    memory: Option<String>,
    /// The cluster's name [default: hotrow].
    #[arg(long, env = "HOTROW_CLUSTER")]
    cluster: Option<String>,
    /// Where all shards are reached, the same list on all of them: a:7700,b:7700 or hotrow-{0..3}.hotrow:7700.
    #[arg(long, env = "HOTROW_SHARDS", value_delimiter = ',')]
    shards: Option<Vec<String>>,
    /// Which of them this is, from 0; auto takes the number at the end of the host's name.
    #[arg(long, env = "HOTROW_SHARD")]
    shard: Option<String>,
    /// A file with the admin token that this shard shows the others.
    #[arg(long, env = "HOTROW_CLUSTER_TOKEN_FILE")]
    cluster_token_file: Option<PathBuf>,
    /// The authority that signed the shards' certificates.
    #[arg(long, env = "HOTROW_CLUSTER_CA")]
    cluster_ca: Option<PathBuf>,
    /// The certificate chain, PEM: serve TLS.
    #[arg(long, env = "HOTROW_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, env = "HOTROW_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// The authority that must have signed clients' certificates.
    #[arg(long, env = "HOTROW_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,
    /// A file of lines "role token"; roles are read, write and admin.
    #[arg(long, env = "HOTROW_TOKENS")]
    tokens: Option<PathBuf>,
    /// What to log: error, warn, info, debug, trace [default: info].
    #[arg(long, env = "HOTROW_LOG")]
    log: Option<String>,
    /// How to log: text or json [default: text].
    #[arg(long, env = "HOTROW_LOG_FORMAT")]
    log_format: Option<String>,
}

impl Args {
    fn into_config(self) -> Result<Config> {
        let mut config = match &self.config {
            None => Config::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                Config::parse(&text).map_err(|e| anyhow!("{}: {e}", path.display()))?
            }
        };
        fn set<T>(key: &mut T, flag: Option<T>) {
            if let Some(value) = flag {
                *key = value;
            }
        }
        set(&mut config.server.listen, self.listen);
        set(&mut config.server.unix, self.unix);
        set(&mut config.server.http, self.http);
        config.server.allow_plaintext |= self.allow_plaintext;
        set(&mut config.server.max_request, self.max_request);
        set(&mut config.server.max_response, self.max_response);
        set(&mut config.server.max_in_flight, self.max_in_flight);
        set(&mut config.server.max_connections, self.max_connections);
        set(&mut config.server.drain_seconds, self.drain_seconds);
        set(&mut config.server.client_idle_seconds, self.client_idle_seconds);
        set(&mut config.engine.partitions, self.partitions);
        set(&mut config.engine.seed, self.seed);
        set(&mut config.engine.threads, self.threads);
        set(&mut config.engine.memory, self.memory);
        set(&mut config.cluster.name, self.cluster);
        set(&mut config.cluster.shards, self.shards);
        set(&mut config.cluster.shard, self.shard);
        set(&mut config.cluster.token_file, self.cluster_token_file);
        set(&mut config.cluster.ca, self.cluster_ca);
        set(&mut config.tls.cert, self.tls_cert);
        set(&mut config.tls.key, self.tls_key);
        set(&mut config.tls.client_ca, self.tls_client_ca);
        set(&mut config.auth.tokens, self.tokens);
        set(&mut config.log.level, self.log);
        set(&mut config.log.format, self.log_format);
        Ok(config)
    }
}

/// Runs a server until it is told to end.
pub fn run(args: Args) -> Result<()> {
    let print = args.print_config;
    let config = args.into_config()?;
    if print {
        print!("{}", toml::to_string(&config)?);
        return Ok(());
    }
    config.check().map_err(|e| anyhow!(e))?;
    let filter = EnvFilter::try_new(&config.log.level).context("--log")?;
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt()
        .with_ansi(colours)
        .with_env_filter(filter)
        .with_target(false)
        .with_writer(std::io::stderr);
    match config.log.format.as_str() {
        "json" => log.json().init(),
        _ => log.init(),
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("hotrow").build()?;
    runtime.block_on(serve(&config))
}

async fn serve(config: &Config) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let server = Server::start(config).await?;
    let (shard, shards) = server.shard();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        simd = crate::numeric::simd::name(),
        partitions = server.partitions(),
        "hotrow serves shard {shard} of {shards} on {}",
        server.address(),
    );
    if let Some(http) = server.http() {
        tracing::info!("metrics on http://{http}/metrics");
    }
    if !config.server.unix.as_os_str().is_empty() {
        tracing::info!("and on unix:{}", config.server.unix.display());
    }
    let tls = !config.tls.cert.as_os_str().is_empty();
    if !tls && !config.server.listen.ip().is_loopback() {
        tracing::warn!("plain text is served beyond this host (--allow-plaintext)");
    }
    if config.tables.is_empty() && shards == 1 && !tls && config.auth.tokens.as_os_str().is_empty() {
        let address = server.address();
        tracing::info!("try: hotrow table create item --dim 64 --rows 1000000 --endpoint {address}");
        tracing::info!("     hotrow pull item 3 1415 --endpoint {address}");
    }
    tokio::select! {
        _ = terminate.recv() => tracing::info!("told to end: draining"),
        _ = tokio::signal::ctrl_c() => tracing::info!("interrupted: draining"),
        () = server.asked_to_drain() => {}
    }
    server.drain().await?;
    tracing::info!("drained");
    Ok(())
}
