//! `hotrow serve`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use clap::FromArgMatches as _;
use clap::builder::BoolishValueParser;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::server::Server;
use crate::server::config::Config;

/// Run a server: one shard of a cluster, or all of it.
///
/// Settings come from the file, then from the environment, then from flags; the later ones win. Without
/// --data-dir rows live in memory only and are lost when the server ends; with it every change is logged and survives.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  On this host only, for trying out:
    hotrow serve
  For others too, with TLS and tokens, and at most 200 GiB of tables:
    hotrow serve --listen 0.0.0.0:7700 --tls-cert server.pem --tls-key server.key --tokens tokens.txt --memory 200GiB
  On this host only, and nothing is lost when it ends or is killed; saved every ten minutes, so that a start is quick:
    hotrow serve --data-dir /var/lib/hotrow --checkpoints /var/lib/hotrow-saved --checkpoint-interval-seconds 600
  The first of two shards, and what a StatefulSet of four would run (in quotes, or the shell expands the braces):
    hotrow serve --listen 10.0.0.1:7700 --shards host-a:7700,host-b:7700 --shard 0 --allow-plaintext
    hotrow serve --listen 0.0.0.0:7700 --shards 'hotrow-{0..3}.hotrow:7700' --shard auto --allow-plaintext
docs/OPERATIONS.md explains every setting.")]
pub struct Args {
    /// A configuration file, TOML. `hotrow serve --print-config` prints one with all keys and their defaults.
    #[arg(long, short, env = "HOTROW_CONFIG")]
    config: Option<PathBuf>,
    /// Print the configuration that file, environment and flags make together, and end.
    #[arg(long)]
    print_config: bool,
    /// Where to serve gRPC [default: 127.0.0.1:7700].
    #[arg(long, env = "HOTROW_LISTEN")]
    listen: Option<SocketAddr>,
    /// A Unix socket for trainers on the same host.
    #[arg(long, env = "HOTROW_UNIX")]
    unix: Option<PathBuf>,
    /// Where to serve HTTP: the console, metrics and probes [default: 127.0.0.1:7780]. Empty: nowhere.
    #[arg(long, env = "HOTROW_HTTP")]
    http: Option<String>,
    /// Serve plain text on an address that others can reach; without it, such an address needs TLS.
    #[arg(long, env = "HOTROW_ALLOW_PLAINTEXT", value_name = "BOOL", value_parser = BoolishValueParser::new())]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_plaintext: Option<bool>,
    /// The largest request in bytes; larger ones are refused [default: 64MiB].
    #[arg(long, env = "HOTROW_MAX_REQUEST")]
    max_request: Option<String>,
    /// The largest answer in bytes; pulls of more are refused [default: 256MiB].
    #[arg(long, env = "HOTROW_MAX_RESPONSE")]
    max_response: Option<String>,
    /// Requests at a time; more are refused [default: 256].
    #[arg(long, env = "HOTROW_MAX_IN_FLIGHT")]
    max_in_flight: Option<usize>,
    /// Connections at a time; more wait [default: 4096].
    #[arg(long, env = "HOTROW_MAX_CONNECTIONS")]
    max_connections: Option<usize>,
    /// Microseconds that a thread which has served a request waits for the next before it goes to sleep: who is awake answers sooner, and
    /// takes that much more of a processor. 0: none [default: 100].
    #[arg(long, env = "HOTROW_STAY_AWAKE_US")]
    stay_awake_us: Option<u64>,
    /// Seconds to wait for requests to finish when told to end [default: 30].
    #[arg(long, env = "HOTROW_DRAIN_SECONDS")]
    drain_seconds: Option<u64>,
    /// Seconds without a push after which a client is forgotten and its later pushes are refused [default: 86400].
    #[arg(long, env = "HOTROW_CLIENT_IDLE_SECONDS")]
    client_idle_seconds: Option<u64>,
    /// Parts that every table is cut into, to be shared out to shards: a power of two, the same on all shards for the
    /// cluster's whole life [default: 128].
    #[arg(long, env = "HOTROW_PARTITIONS")]
    partitions: Option<u32>,
    /// The seed of initial values and rounding, the same on all shards for the cluster's whole life [default: 0].
    #[arg(long, env = "HOTROW_SEED")]
    seed: Option<u32>,
    /// Threads for large requests [default: one per core].
    #[arg(long, env = "HOTROW_THREADS")]
    threads: Option<usize>,
    /// What all tables of this shard may take together, such as 200GiB [default: no limit].
    #[arg(long, env = "HOTROW_MEMORY")]
    memory: Option<String>,
    /// Where hot rows are: on a GPU (cuda), in host memory (host), or on a GPU if there is one (auto) [default: auto].
    #[arg(long, env = "HOTROW_POOL", value_name = "auto|host|cuda")]
    pool: Option<String>,
    /// Which GPU, as the driver counts them [default: 0].
    #[arg(long, env = "HOTROW_DEVICE")]
    device: Option<usize>,
    /// What hot rows may take on the GPU, such as 20GiB [default: nine tenths of what is free].
    #[arg(long, env = "HOTROW_DEVICE_MEMORY")]
    device_memory: Option<String>,
    /// The NVRTC library that compiles the GPU's kernels [default: where libraries are].
    #[arg(long, env = "HOTROW_NVRTC", value_name = "FILE")]
    nvrtc: Option<PathBuf>,
    /// Where compiled kernels are kept [default: hotrow in the user's cache folder].
    #[arg(long, env = "HOTROW_KERNEL_CACHE", value_name = "DIR")]
    kernel_cache: Option<PathBuf>,
    /// The cluster's name [default: hotrow].
    #[arg(long, env = "HOTROW_CLUSTER")]
    cluster: Option<String>,
    /// Where all shards are reached, the same list on all of them: a:7700,b:7700 or 'hotrow-{0..3}.hotrow:7700' [default:
    /// this shard is all there is].
    #[arg(long, env = "HOTROW_SHARDS", value_delimiter = ',')]
    shards: Option<Vec<String>>,
    /// Which of them this is, from 0; auto takes the number at the end of the host's name [default: 0].
    #[arg(long, env = "HOTROW_SHARD")]
    shard: Option<String>,
    /// A file with the admin token that this shard shows the others.
    #[arg(long, env = "HOTROW_CLUSTER_TOKEN_FILE")]
    cluster_token_file: Option<PathBuf>,
    /// The authority that signed the shards' certificates, PEM: shards speak TLS to each other.
    #[arg(long, env = "HOTROW_CLUSTER_CA")]
    cluster_ca: Option<PathBuf>,
    /// none: rows live in memory only; log: changes are logged and applied again at the next start [default: none].
    #[arg(long, env = "HOTROW_DURABILITY", value_name = "none|log")]
    durability: Option<String>,
    /// This shard's own folder, for the log; asks for --durability log where that is not given.
    #[arg(long, env = "HOTROW_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// When a push is acknowledged: always (synced to disk), interval (written, synced soon), never (at once) [default:
    /// always].
    #[arg(long, env = "HOTROW_SYNC", value_name = "always|interval|never")]
    sync: Option<String>,
    /// With --sync interval: milliseconds of changes that a loss of power may take [default: 100].
    #[arg(long, env = "HOTROW_SYNC_INTERVAL_MS")]
    sync_interval_ms: Option<u64>,
    /// Length of a file of the log [default: 256MiB].
    #[arg(long, env = "HOTROW_SEGMENT")]
    segment: Option<String>,
    /// Where the state is saved: a folder that all shards can reach, or a URL such as s3://bucket/hotrow. A shard starts from
    /// the newest checkpoint there.
    #[arg(long, env = "HOTROW_CHECKPOINTS", value_name = "URL")]
    checkpoints: Option<String>,
    /// Seconds between checkpoints of the whole cluster; 0 is only when somebody asks [default: 0].
    #[arg(long, env = "HOTROW_CHECKPOINT_INTERVAL_SECONDS")]
    checkpoint_interval_seconds: Option<u64>,
    /// How many complete checkpoints are kept; 0 removes none [default: 3].
    #[arg(long, env = "HOTROW_CHECKPOINT_KEEP")]
    checkpoint_keep: Option<usize>,
    /// How many checkpoints of only what changed may follow one of everything [default: 10].
    #[arg(long, env = "HOTROW_CHECKPOINT_CHAIN")]
    checkpoint_chain: Option<u32>,
    /// Save this shard's part when told to end [default: true].
    #[arg(long, env = "HOTROW_CHECKPOINT_ON_DRAIN", value_name = "BOOL", value_parser = BoolishValueParser::new())]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    checkpoint_on_drain: Option<bool>,
    /// The certificate chain, PEM: serve TLS.
    #[arg(long, env = "HOTROW_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, env = "HOTROW_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// The authority that must have signed clients' certificates, PEM: clients have to show one.
    #[arg(long, env = "HOTROW_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,
    /// A file of lines "role token"; roles are read, write and admin [default: everybody may do everything].
    #[arg(long, env = "HOTROW_TOKENS")]
    tokens: Option<PathBuf>,
    /// What to log: error, warn, info, debug or trace, or a filter such as info,hotrow=debug [default: info].
    #[arg(long, env = "HOTROW_LOG")]
    log: Option<String>,
    /// How to log: text or json [default: text].
    #[arg(long, env = "HOTROW_LOG_FORMAT")]
    log_format: Option<String>,
}

impl Args {
    fn into_config(self) -> Result<Config> {
        let mut config = read_config(self.config.as_deref())?;
        fn set<T>(key: &mut T, flag: Option<T>) {
            if let Some(value) = flag {
                *key = value;
            }
        }
        set(&mut config.server.listen, self.listen);
        set(&mut config.server.unix, self.unix);
        set(&mut config.server.http, self.http);
        set(&mut config.server.allow_plaintext, self.allow_plaintext);
        set(&mut config.server.max_request, self.max_request);
        set(&mut config.server.max_response, self.max_response);
        set(&mut config.server.max_in_flight, self.max_in_flight);
        set(&mut config.server.max_connections, self.max_connections);
        set(&mut config.server.stay_awake_us, self.stay_awake_us);
        set(&mut config.server.drain_seconds, self.drain_seconds);
        set(&mut config.server.client_idle_seconds, self.client_idle_seconds);
        set(&mut config.engine.partitions, self.partitions);
        set(&mut config.engine.seed, self.seed);
        set(&mut config.engine.threads, self.threads);
        set(&mut config.engine.memory, self.memory);
        set(&mut config.cache.pool, self.pool);
        set(&mut config.cache.device, self.device);
        set(&mut config.cache.device_memory, self.device_memory);
        set(&mut config.cache.nvrtc, self.nvrtc);
        set(&mut config.cache.kernel_cache, self.kernel_cache);
        set(&mut config.cluster.name, self.cluster);
        set(&mut config.cluster.shards, self.shards);
        set(&mut config.cluster.shard, self.shard);
        set(&mut config.cluster.token_file, self.cluster_token_file);
        set(&mut config.cluster.ca, self.cluster_ca);
        // A folder that is named on the command line is meant to be used.
        let wanted = self.data_dir.is_some().then(|| "log".to_string());
        set(&mut config.durability.mode, self.durability.or(wanted));
        set(&mut config.durability.data_dir, self.data_dir);
        set(&mut config.durability.sync, self.sync);
        set(&mut config.durability.sync_interval_ms, self.sync_interval_ms);
        set(&mut config.durability.segment, self.segment);
        set(&mut config.checkpoint.url, self.checkpoints);
        set(&mut config.checkpoint.interval_seconds, self.checkpoint_interval_seconds);
        set(&mut config.checkpoint.keep, self.checkpoint_keep);
        set(&mut config.checkpoint.chain, self.checkpoint_chain);
        set(&mut config.checkpoint.on_drain, self.checkpoint_on_drain);
        set(&mut config.tls.cert, self.tls_cert);
        set(&mut config.tls.key, self.tls_key);
        set(&mut config.tls.client_ca, self.tls_client_ca);
        set(&mut config.auth.tokens, self.tokens);
        set(&mut config.log.level, self.log);
        set(&mut config.log.format, self.log_format);
        Ok(config)
    }
}

/// What a file says over the defaults; the defaults without one.
pub fn read_config(path: Option<&Path>) -> Result<Config> {
    let Some(path) = path else { return Ok(Config::default()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Config::parse(&text).map_err(|e| anyhow!("{}: {e}", path.display()))
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
    start_logging(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("hotrow").build()?;
    runtime.block_on(serve(&config))
}

/// The configuration that flags of `hotrow serve` ask for; for servers inside other programs.
pub fn server_config(flags: impl IntoIterator<Item = String>) -> Result<Config> {
    let command = <Args as clap::Args>::augment_args(clap::Command::new("hotrow serve").no_binary_name(true));
    let config = Args::from_arg_matches(&command.try_get_matches_from(flags)?)?.into_config()?;
    config.check().map_err(|e| anyhow!(e))?;
    Ok(config)
}

/// Begins to log to standard error, for the life of the process.
pub fn start_logging(config: &Config) -> Result<()> {
    let filter = EnvFilter::try_new(&config.log.level).context("--log")?;
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt()
        .with_ansi(colours)
        .with_env_filter(filter)
        .with_target(false)
        .with_writer(std::io::stderr);
    match config.log.format.as_str() {
        "json" => log.json().try_init(),
        _ => log.try_init(),
    }
    .map_err(|e| anyhow!("something else logs already: {e}"))
}

async fn serve(config: &Config) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let server = tokio::select! {
        server = Server::start(config) => server?,
        // A long log is being replayed. Nothing is lost by ending here, and the thread that reads would be waited for.
        _ = terminate.recv() => std::process::exit(0),
        _ = tokio::signal::ctrl_c() => std::process::exit(0),
    };
    let (shard, shards) = server.shard();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        simd = crate::numeric::simd::name(),
        partitions = server.partitions(),
        "hotrow serves shard {shard} of {shards} on {}",
        server.address(),
    );
    tracing::info!("{}", server.pool());
    if let Some(http) = server.http() {
        tracing::info!("metrics on http://{http}/metrics");
        tracing::info!("console on http://{http}/");
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
        reason = server.failed() => anyhow::bail!(reason),
    }
    server.drain().await?;
    tracing::info!("drained");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::config::{REFERENCE, TableConfig};
    use crate::table::TableSpec;

    const PAGE: &str = include_str!("../../docs/OPERATIONS.md");

    /// The line of the page's tables that has `` `name` ``.
    fn line(name: &str) -> &'static str {
        let cell = format!("| `{name}` |");
        PAGE.lines().find(|line| line.contains(&cell)).unwrap_or_else(|| panic!("{name} is missing from OPERATIONS.md"))
    }

    #[test]
    fn the_page_has_every_key_with_its_default() {
        let sections: toml::Table = toml::from_str(REFERENCE).unwrap();
        for (section, keys) in sections {
            for (key, default) in keys.as_table().unwrap() {
                let line = line(&format!("{section}.{key}"));
                let default = match default {
                    toml::Value::String(text) if text.is_empty() => "| empty".into(),
                    toml::Value::Array(list) if list.is_empty() => "| empty".into(),
                    toml::Value::String(text) => format!("| `{text}` |"),
                    other => format!("| `{other}` |"),
                };
                assert!(line.contains(&default), "{line} does not have {default}");
            }
        }
    }

    #[test]
    fn the_page_has_every_key_of_a_table() {
        let mut spec = TableSpec::dense("t", 1, 1);
        spec.clip_norm = Some(1.0);
        let keys = toml::Table::try_from(TableConfig::of(&spec)).unwrap();
        for key in keys.keys() {
            assert!(PAGE.contains(&format!("`{key}`")), "{key} is missing from OPERATIONS.md");
            assert!(REFERENCE.contains(&format!("\n# {key} = ")), "{key} is missing from the reference configuration");
        }
    }

    #[test]
    fn flags_override_the_file_either_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hotrow.toml");
        std::fs::write(&path, "[server]\nallow_plaintext = true\nmax_in_flight = 3\n[engine]\nseed = 7").unwrap();
        let read = |flags: &[&str]| {
            let command = <Args as clap::Args>::augment_args(clap::Command::new("serve"));
            let line = ["serve", "--config", path.to_str().unwrap()].into_iter().chain(flags.iter().copied());
            Args::from_arg_matches(&command.get_matches_from(line)).unwrap().into_config().unwrap()
        };
        let config = read(&["--seed", "8"]);
        assert!(config.server.allow_plaintext);
        assert_eq!((config.server.max_in_flight, config.engine.seed), (3, 8));
        assert!(!read(&["--allow-plaintext=false"]).server.allow_plaintext);
        assert!(read(&["--allow-plaintext"]).server.allow_plaintext);
    }

    #[test]
    fn the_page_has_every_flag_with_its_variable() {
        let command = <Args as clap::Args>::augment_args(clap::Command::new("serve"));
        for arg in command.get_arguments() {
            let line = line(&format!("--{}", arg.get_long().expect("every argument is a flag")));
            if let Some(variable) = arg.get_env() {
                assert!(line.contains(&format!("| `{}` |", variable.display())), "{line} does not have {variable:?}");
            }
        }
    }
}
