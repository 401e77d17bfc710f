//! How a server is set up. `deploy/hotrow.toml`, compiled in, has every key with its default.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cache::cuda::CudaConfig;
use crate::cluster::{Topology, ordinal_of};
use crate::durability::{LogOptions, SyncPolicy};
use crate::engine::{EngineConfig, PoolConfig};
use crate::table::parse_bytes;

pub use crate::table::TableConfig;

/// The reference configuration: every key, its default, and what it is for.
pub const REFERENCE: &str = include_str!("../../deploy/hotrow.toml");

/// How a server is set up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where and how to listen.
    pub server: ServerSection,
    /// Partitions, randomness, threads, memory.
    pub engine: EngineSection,
    /// Where hot rows are.
    pub cache: CacheSection,
    /// The shards.
    pub cluster: ClusterSection,
    /// The log of changes.
    pub durability: DurabilitySection,
    /// Saved states.
    pub checkpoint: CheckpointSection,
    /// Certificates.
    pub tls: TlsSection,
    /// Tokens.
    pub auth: AuthSection,
    /// Logging.
    pub log: LogSection,
    /// Tables that are made at start.
    #[serde(default, rename = "table", skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableConfig>,
}

/// Where and how to listen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSection {
    /// The address of gRPC.
    pub listen: SocketAddr,
    /// A Unix socket for trainers on the same host; empty is none.
    pub unix: PathBuf,
    /// The address of HTTP; empty is none.
    pub http: String,
    /// Whether plain text is served on an address that others can reach.
    pub allow_plaintext: bool,
    /// The largest request.
    pub max_request: String,
    /// The largest answer.
    pub max_response: String,
    /// Requests at a time; more are refused.
    pub max_in_flight: usize,
    /// Connections at a time; more wait to be accepted.
    pub max_connections: usize,
    /// How long a thread waits for more requests before it goes to sleep, in microseconds; 0 is not at all.
    pub stay_awake_us: u64,
    /// How long to wait for requests to finish when ending.
    pub drain_seconds: u64,
    /// After how long without a push a client is forgotten.
    pub client_idle_seconds: u64,
}

/// Partitions, randomness, threads, memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineSection {
    /// Partitions of the cluster.
    pub partitions: u32,
    /// The seed of all randomness.
    pub seed: u32,
    /// Threads for large requests; 0 is one per core.
    pub threads: usize,
    /// What all tables may take together; empty is no limit.
    pub memory: String,
}

/// Where hot rows are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSection {
    /// `auto`, `host` or `cuda`.
    pub pool: String,
    /// Which GPU.
    pub device: usize,
    /// What hot rows may take on it; empty is nine tenths of what is free.
    pub device_memory: String,
    /// The NVRTC library; empty looks where libraries are.
    pub nvrtc: PathBuf,
    /// Where compiled kernels are kept; empty is the user's cache folder.
    pub kernel_cache: PathBuf,
}

impl CacheSection {
    /// The engine's form of it.
    pub fn pool(&self) -> Result<PoolConfig, String> {
        let named = |path: &PathBuf| (!path.as_os_str().is_empty()).then(|| path.clone());
        let memory = match self.device_memory.as_str() {
            "" => None,
            text => Some(parse_bytes(text).map_err(|e| format!("cache.device_memory (--device-memory): {e}"))?),
        };
        let cuda = CudaConfig {
            device: self.device,
            memory,
            nvrtc: named(&self.nvrtc),
            kernels: named(&self.kernel_cache),
            ..CudaConfig::default()
        };
        match self.pool.as_str() {
            "host" => Ok(PoolConfig::Host),
            "cuda" => Ok(PoolConfig::Cuda(cuda)),
            "auto" => Ok(PoolConfig::Auto(cuda)),
            pool => Err(format!("cache.pool (--pool) is '{pool}': use auto, host or cuda")),
        }
    }
}

/// The shards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSection {
    /// The cluster's name.
    pub name: String,
    /// Where shards are reached; empty is one shard.
    pub shards: Vec<String>,
    /// Which of them this is: a number, or `auto` for the number at the end of the host's name.
    pub shard: String,
    /// A file with the token that shards show each other.
    pub token_file: PathBuf,
    /// The authority that signed the shards' certificates.
    pub ca: PathBuf,
}

/// The log of changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DurabilitySection {
    /// `none`, or `log`: every change is logged before it is applied, and applied again at the next start.
    pub mode: String,
    /// The shard's data folder.
    pub data_dir: PathBuf,
    /// When a change is acknowledged: `always`, `interval` or `never`.
    pub sync: String,
    /// With `interval`: what a loss of power may take.
    pub sync_interval_ms: u64,
    /// Length of a file of the log.
    pub segment: String,
}

impl DurabilitySection {
    /// How the log is kept; `None` where there is none.
    pub fn log_options(&self) -> Result<Option<LogOptions>, String> {
        match self.mode.as_str() {
            "none" => return Ok(None),
            "log" => {}
            mode => return Err(format!("durability.mode (--durability) is '{mode}': use none or log")),
        }
        if self.data_dir.as_os_str().is_empty() {
            return Err("durability.mode is log, and that needs a folder: give --data-dir".into());
        }
        let sync = match self.sync.as_str() {
            "always" => SyncPolicy::Always,
            "interval" if self.sync_interval_ms == 0 => {
                return Err("durability.sync_interval_ms is 0: use 1 or more, or sync = \"always\"".into());
            }
            "interval" => SyncPolicy::Interval(Duration::from_millis(self.sync_interval_ms)),
            "never" => SyncPolicy::Never,
            sync => return Err(format!("durability.sync (--sync) is '{sync}': use always, interval or never")),
        };
        let segment_bytes = parse_bytes(&self.segment).map_err(|e| format!("durability.segment: {e}"))?;
        if !(1 << 16..=1 << 34).contains(&segment_bytes) {
            return Err(format!("durability.segment is {}: use 64KiB to 16GiB", self.segment));
        }
        Ok(Some(LogOptions { sync, segment_bytes }))
    }
}

/// Saved states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointSection {
    /// A folder or a URL that all shards can reach; empty is none.
    pub url: String,
    /// How often the whole cluster is saved; 0 is only when somebody asks.
    pub interval_seconds: u64,
    /// How many complete ones are kept; 0 removes none.
    pub keep: usize,
    /// How many that hold only what changed may follow one that holds all.
    pub chain: u32,
    /// Whether a shard that is told to end saves its part first.
    pub on_drain: bool,
}

/// Certificates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSection {
    /// The certificate chain, PEM; empty is plain text.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The authority that must have signed clients' certificates; empty asks for none.
    pub client_ca: PathBuf,
}

/// Tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthSection {
    /// Lines of a role (read, write or admin) and a token; empty lets everybody do everything.
    pub tokens: PathBuf,
}

/// Logging.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// What to log: error, warn, info, debug or trace, or a filter of tracing's.
    pub level: String,
    /// `text` or `json`.
    pub format: String,
}

impl Default for Config {
    fn default() -> Config {
        toml::from_str(REFERENCE).expect("the reference configuration is tested to parse")
    }
}

impl Config {
    /// Reads a file's text over the defaults. Keys that do not exist are refused.
    pub fn parse(text: &str) -> Result<Config, String> {
        let mut merged: toml::Table =
            toml::from_str(REFERENCE).expect("the reference configuration is tested to parse");
        let file: toml::Table = toml::from_str(text).map_err(|e| e.to_string())?;
        for (section, value) in file {
            match (merged.get_mut(&section), value) {
                (Some(toml::Value::Table(known)), toml::Value::Table(given)) => known.extend(given),
                (_, value) => {
                    merged.insert(section, value);
                }
            }
        }
        merged.try_into().map_err(|e: toml::de::Error| e.to_string())
    }

    /// The topology, and which of its shards this is. `host` is the name of this host.
    pub fn topology(&self, host: &str) -> Result<(Topology, u32), String> {
        let mut shards = Vec::new();
        for pattern in &self.cluster.shards {
            shards.extend(Topology::expand(pattern)?);
        }
        if shards.is_empty() {
            shards.push(self.server.listen.to_string());
        }
        let shard = match self.cluster.shard.as_str() {
            "auto" => ordinal_of(host)
                .ok_or_else(|| format!("cluster.shard is auto, but the host's name '{host}' does not end in -N"))?,
            number => number.parse().map_err(|_| format!("cluster.shard is '{number}': use a number or auto"))?,
        };
        if shard as usize >= shards.len() {
            return Err(format!("cluster.shard is {shard}, but cluster.shards has {} (from 0)", shards.len()));
        }
        Ok((Topology::even(&self.cluster.name, shards, self.engine.partitions)?, shard))
    }

    /// The engine of one shard.
    pub fn engine_config(&self, topology: &Topology, shard: u32) -> Result<EngineConfig, String> {
        let memory = self.engine.memory.as_str();
        Ok(EngineConfig {
            partitions: self.engine.partitions,
            owned: Some(topology.owned_by(shard)),
            seed: self.engine.seed,
            threads: self.engine.threads,
            memory_budget: (!memory.is_empty())
                .then(|| parse_bytes(memory))
                .transpose()
                .map_err(|e| format!("engine.memory (--memory): {e}"))?,
            pool: self.cache.pool()?,
            ..EngineConfig::default()
        })
    }

    /// What is wrong with it, if anything.
    pub fn check(&self) -> Result<(), String> {
        let tls = !self.tls.cert.as_os_str().is_empty();
        if tls == self.tls.key.as_os_str().is_empty() {
            return Err("tls.cert and tls.key go together (--tls-cert, --tls-key)".into());
        }
        if !tls && !self.tls.client_ca.as_os_str().is_empty() {
            return Err("tls.client_ca needs tls.cert and tls.key: clients show certificates over TLS only".into());
        }
        if !tls && !self.server.listen.ip().is_loopback() && !self.server.allow_plaintext {
            return Err(format!(
                "{} can be reached from outside and TLS is not set up: give --tls-cert and --tls-key, listen on 127.0.0.1, \
                 or accept plain text with --allow-plaintext",
                self.server.listen
            ));
        }
        for (key, value) in [("max_request", &self.server.max_request), ("max_response", &self.server.max_response)] {
            let bytes = parse_bytes(value).map_err(|e| format!("server.{key}: {e}"))?;
            if !(1024..=1 << 31).contains(&bytes) {
                return Err(format!("server.{key} is {value}: use 1KiB to 2GiB"));
            }
        }
        if self.server.max_in_flight == 0 || self.server.max_connections == 0 {
            return Err("server.max_in_flight and server.max_connections must be above zero".into());
        }
        if self.server.stay_awake_us > 1_000_000 {
            return Err(format!(
                "server.stay_awake_us (--stay-awake-us) is {}: use at most 1000000, a second",
                self.server.stay_awake_us
            ));
        }
        if !self.server.http.is_empty() && self.server.http.parse::<SocketAddr>().is_err() {
            return Err(format!(
                "server.http is '{}': use an address like 127.0.0.1:7780, or nothing",
                self.server.http
            ));
        }
        if !["text", "json"].contains(&self.log.format.as_str()) {
            return Err(format!("log.format is '{}': use text or json", self.log.format));
        }
        self.cache.pool()?;
        self.durability.log_options()?;
        self.tables.iter().try_for_each(|table| table.spec().map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TableSpec;

    #[test]
    fn the_reference_parses_and_is_sound() {
        let config = Config::default();
        assert_eq!(config.check(), Ok(()));
        assert_eq!(Config::parse("").unwrap(), config);
        assert_eq!(toml::from_str::<Config>(&toml::to_string(&config).unwrap()).unwrap(), config);
    }

    #[test]
    fn a_file_overrides_single_keys_and_unknown_ones_are_refused() {
        let config = Config::parse("[server]\nmax_in_flight = 3\n[[table]]\nname = 'x'\ndim = 4\nrows = 9").unwrap();
        assert_eq!(config.server.max_in_flight, 3);
        assert_eq!(config.server.listen, Config::default().server.listen);
        assert_eq!(config.tables[0].spec().unwrap(), TableSpec::dense("x", 9, 4));
        let error = Config::parse("[server]\nmax_inflight = 3").unwrap_err();
        assert!(error.contains("max_inflight"), "{error}");
    }

    #[test]
    fn plain_text_beyond_loopback_must_be_accepted_by_name() {
        let mut config = Config::default();
        config.server.listen = "0.0.0.0:7700".parse().unwrap();
        assert!(config.check().unwrap_err().contains("--allow-plaintext"));
        config.server.allow_plaintext = true;
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn a_shard_knows_its_number_from_its_host() {
        let mut config = Config::default();
        config.cluster.shards = vec!["hotrow-{0..3}.hotrow:7700".into()];
        config.cluster.shard = "auto".into();
        let (topology, shard) = config.topology("hotrow-2").unwrap();
        assert_eq!((topology.shards.len(), shard), (4, 2));
        assert!(config.topology("laptop").unwrap_err().contains("auto"));
        assert!(config.topology("hotrow-4").unwrap_err().contains("from 0"));
    }
}
