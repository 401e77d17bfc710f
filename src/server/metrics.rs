//! What Prometheus scrapes.
//!
//! Requests are counted as they happen. What the engine counts by itself is read when somebody asks. The names are
//! listed in `docs/OPERATIONS.md`, and a test compares the two.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry, TextEncoder};
use tonic::Code;

use super::checkpoints::{Checkpoints, Counts};
use super::shard::Shard;
use crate::cache::cuda::{Device, DeviceStats};
use crate::durability::{Log, LogStats};
use crate::engine::TableStats;
use crate::proto;

/// What is counted.
pub struct Metrics {
    registry: Registry,
    duration: HistogramVec,
    requests: IntCounterVec,
    /// Requests refused because too many were under way.
    pub shed: IntCounter,
    shard: Arc<OnceLock<Weak<Shard>>>,
}

/// From 50 microseconds to 10 seconds.
pub const SECONDS: [f64; 17] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

impl Metrics {
    /// Nothing counted yet.
    pub fn new() -> prometheus::Result<Metrics> {
        let registry = Registry::new();
        let duration = HistogramVec::new(
            HistogramOpts::new(
                "hotrow_rpc_duration_seconds",
                "Time from a request's arrival to its answer, by method.",
            )
            .buckets(SECONDS.to_vec()),
            &["method"],
        )?;
        let requests = IntCounterVec::new(
            Opts::new("hotrow_rpc_requests_total", "Requests answered, by method and gRPC code."),
            &["method", "code"],
        )?;
        let shed = IntCounter::new("hotrow_rpc_shed_total", "Requests refused because too many were under way.")?;
        let shard = Arc::new(OnceLock::new());
        registry.register(Box::new(duration.clone()))?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(shed.clone()))?;
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        registry.register(Box::new(EngineCollector { shard: Arc::clone(&shard), descs: descs()? }))?;
        Ok(Metrics { registry, duration, requests, shed, shard })
    }

    /// Reads the counts of this shard's engine from now on.
    pub fn watch(&self, shard: &Arc<Shard>) {
        // Set once, by the server that made both.
        let _ = self.shard.set(Arc::downgrade(shard));
    }

    /// Counts a request.
    pub fn finished(&self, method: &str, code: Code, time: Duration) {
        self.duration.with_label_values(&[method]).observe(time.as_secs_f64());
        self.requests.with_label_values(&[method, code_name(code)]).inc();
    }

    /// What was counted of requests, by method.
    pub fn methods(&self) -> Vec<proto::MethodStats> {
        let label = |metric: &Metric, name: &str| {
            let pair = metric.get_label().iter().find(|pair| pair.name() == name);
            pair.map_or_else(String::new, |pair| pair.value().to_string())
        };
        let mut failed = BTreeMap::<String, u64>::new();
        for metric in self.requests.collect().iter().flat_map(MetricFamily::get_metric) {
            if label(metric, "code") != code_name(Code::Ok) {
                *failed.entry(label(metric, "method")).or_default() += metric.get_counter().get_value() as u64;
            }
        }
        let mut methods: Vec<_> = (self.duration.collect().iter().flat_map(MetricFamily::get_metric))
            .map(|metric| {
                let (method, histogram) = (label(metric, "method"), metric.get_histogram());
                proto::MethodStats {
                    requests: histogram.get_sample_count(),
                    failed: failed.get(&method).copied().unwrap_or(0),
                    buckets: histogram.get_bucket().iter().map(|bucket| bucket.cumulative_count()).collect(),
                    method,
                }
            })
            .collect();
        methods.sort_by(|a, b| a.method.cmp(&b.method));
        methods
    }

    /// Everything, as text.
    pub fn text(&self) -> Result<String, String> {
        TextEncoder::new().encode_to_string(&self.registry.gather()).map_err(|e| e.to_string())
    }
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// A metric per table: its name, its help, its type, the labels beside `table`, and its values.
type TableMetric = (&'static str, &'static str, MetricType, &'static [&'static str], fn(&TableStats) -> Vec<Value>);
/// The values of the labels, and the number.
type Value = (&'static [&'static str], f64);

const TABLE_METRICS: [TableMetric; 11] = [
    (
        "hotrow_cache_lookups_total",
        "Keys looked up in the cache, as sent, by operation and result.",
        MetricType::COUNTER,
        &["op", "result"],
        |stats| {
            vec![
                (&["pull", "hit"], stats.pull_hits as f64),
                (&["pull", "miss"], stats.pull_misses as f64),
                (&["push", "hit"], stats.changes.push_hits as f64),
                (&["push", "miss"], stats.changes.push_misses as f64),
                (&["touch", "hit"], stats.changes.touch_hits as f64),
                (&["touch", "miss"], stats.changes.touch_misses as f64),
            ]
        },
    ),
    (
        "hotrow_cache_evictions_total",
        "Rows that left the cache: clean ones were dropped, dirty ones written back.",
        MetricType::COUNTER,
        &["kind"],
        |stats| {
            vec![
                (&["clean"], stats.changes.clean_evictions as f64),
                (&["dirty"], stats.changes.write_backs.saturating_sub(stats.changes.conflicts) as f64),
            ]
        },
    ),
    (
        "hotrow_cache_conflicts_total",
        "Rows stepped in place because the cache had no way for them.",
        MetricType::COUNTER,
        &[],
        |stats| vec![(&[], stats.changes.conflicts as f64)],
    ),
    ("hotrow_updated_rows_total", "Rows that pushes stepped.", MetricType::COUNTER, &[], |stats| {
        vec![(&[], stats.changes.updated_rows as f64)]
    }),
    (
        "hotrow_write_backs_total",
        "Rows that pushes and touches rounded into the row store, conflicts included.",
        MetricType::COUNTER,
        &[],
        |stats| vec![(&[], stats.changes.write_backs as f64)],
    ),
    (
        "hotrow_rounding_error_rms",
        "Root of the mean squared rounding error of a weight, over a sample of write-backs.",
        MetricType::GAUGE,
        &[],
        |stats| stats.rounding_rms().map(|rms| (&[] as &[_], rms)).into_iter().collect(),
    ),
    (
        "hotrow_rows",
        "Rows, by state: all, stored (at the table's precision), cached (at full precision).",
        MetricType::GAUGE,
        &["state"],
        |stats| {
            vec![
                (&["all"], stats.rows as f64),
                (&["stored"], stats.stored_rows as f64),
                (&["cached"], stats.cached_rows as f64),
            ]
        },
    ),
    ("hotrow_cache_slots", "Rows that fit in the cache.", MetricType::GAUGE, &[], |stats| {
        vec![(&[], stats.cache_slots as f64)]
    }),
    (
        "hotrow_cache_predicted_hit_ratio",
        "Hit rate of recent pushes with an lru cache of another size, as a multiple of today's; from a sample of the keys.",
        MetricType::GAUGE,
        &["size"],
        |stats| {
            let sizes: [(&'static [&'static str], f64); 5] =
                [(&["0.25"], 0.25), (&["0.5"], 0.5), (&["1"], 1.0), (&["2"], 2.0), (&["4"], 4.0)];
            let at = |size| stats.curve.as_ref()?.hit_rate_at(size);
            sizes.iter().filter_map(|&(label, size)| Some((label, at(size)?))).collect()
        },
    ),
    ("hotrow_cache_sampled_keys", "Keys that are followed to predict hit rates.", MetricType::GAUGE, &[], |stats| {
        stats.curve.as_ref().map(|curve| (&[] as &[_], curve.sampled_keys() as f64)).into_iter().collect()
    }),
    (
        "hotrow_table_bytes",
        "Bytes set aside, by tier: rows (index included), cache, directory.",
        MetricType::GAUGE,
        &["tier"],
        |stats| {
            vec![
                (&["rows"], stats.row_bytes as f64),
                (&["cache"], stats.cache_bytes as f64),
                (&["directory"], stats.directory_bytes as f64),
            ]
        },
    ),
];

/// A metric per shard: its name, its help, its type and its value.
type ShardMetric = (&'static str, &'static str, MetricType, fn(&Shard) -> f64);

const SHARD_METRICS: [ShardMetric; 23] = [
    ("hotrow_memory_used_bytes", "Bytes that tables have taken.", MetricType::GAUGE, |s| s.engine.memory_used() as f64),
    ("hotrow_memory_budget_bytes", "Bytes that tables may take; 0 is no limit.", MetricType::GAUGE, |s| {
        s.memory_budget.unwrap_or(0) as f64
    }),
    ("hotrow_changes_total", "Changes applied: the last LSN.", MetricType::COUNTER, |s| s.engine.last_lsn().0 as f64),
    ("hotrow_open_clients", "Clients whose pushes are remembered.", MetricType::GAUGE, |s| {
        s.engine.open_clients() as f64
    }),
    ("hotrow_rpc_in_flight", "Requests under way.", MetricType::GAUGE, |s| {
        (s.max_in_flight - s.in_flight.available_permits()) as f64
    }),
    ("hotrow_rpc_in_flight_limit", "Requests that may be under way.", MetricType::GAUGE, |s| s.max_in_flight as f64),
    ("hotrow_owned_partitions", "Partitions that this shard owns.", MetricType::GAUGE, |s| {
        s.topology.owned_by(s.number).len() as f64
    }),
    ("hotrow_shards", "Shards that there are as this one is configured.", MetricType::GAUGE, |s| {
        s.topology.shards.len() as f64
    }),
    ("hotrow_ready", "1 while requests are taken; 0 while the shard recovers or drains.", MetricType::GAUGE, |s| {
        f64::from(u8::from(s.readiness().0 == "ready"))
    }),
    ("hotrow_log_appended_bytes_total", "Bytes appended to the log.", MetricType::COUNTER, |s| {
        log(s).appended_bytes as f64
    }),
    ("hotrow_log_groups_total", "Groups of changes appended to the log.", MetricType::COUNTER, |s| {
        log(s).groups as f64
    }),
    ("hotrow_log_syncs_total", "Syncs of the log to disk.", MetricType::COUNTER, |s| log(s).syncs as f64),
    ("hotrow_log_bytes", "Bytes of the log on disk.", MetricType::GAUGE, |s| log(s).disk_bytes as f64),
    ("hotrow_log_waiting_bytes", "Bytes that wait to be written to the log.", MetricType::GAUGE, |s| {
        log(s).waiting_bytes as f64
    }),
    ("hotrow_log_unsynced_changes", "Changes that a loss of power would take.", MetricType::GAUGE, |s| {
        log(s).unsynced_changes as f64
    }),
    ("hotrow_log_full", "1 while the log's disk is full and changes are refused.", MetricType::GAUGE, |s| {
        f64::from(u8::from(log(s).full))
    }),
    (
        "hotrow_log_cut_bytes",
        "Bytes cut off the log's end at the start: never a whole group.",
        MetricType::GAUGE,
        |s| s.cut_bytes.load(Ordering::Relaxed) as f64,
    ),
    ("hotrow_checkpoint_last", "The number of the last checkpoint that has this shard.", MetricType::GAUGE, |s| {
        checkpoints(s, |counts| &counts.sequence)
    }),
    (
        "hotrow_checkpoint_last_timestamp_seconds",
        "When that was made, since 1970; 0 before the first since the start.",
        MetricType::GAUGE,
        |s| checkpoints(s, |counts| &counts.made),
    ),
    ("hotrow_checkpoint_last_bytes", "Bytes of this shard's part of it.", MetricType::GAUGE, |s| {
        checkpoints(s, |counts| &counts.bytes)
    }),
    ("hotrow_checkpoint_last_seconds", "How long this shard's part took.", MetricType::GAUGE, |s| {
        checkpoints(s, |counts| &counts.millis) / 1000.0
    }),
    (
        "hotrow_checkpoint_failures_total",
        "Checkpoints, or parts of them, that came to nothing.",
        MetricType::COUNTER,
        |s| checkpoints(s, |counts| &counts.failures),
    ),
    (
        "hotrow_checkpoint_interval_seconds",
        "How often the cluster is saved; 0: only when somebody asks.",
        MetricType::GAUGE,
        |s| s.checkpoints.as_ref().and_then(Checkpoints::interval).map_or(0.0, |interval| interval.as_secs_f64()),
    ),
];

/// Zero where nothing is saved.
fn checkpoints(shard: &Shard, count: impl Fn(&Counts) -> &AtomicU64) -> f64 {
    shard.checkpoints.as_ref().map_or(0.0, |checkpoints| count(&checkpoints.counts).load(Ordering::Relaxed) as f64)
}

/// A metric of a shard's GPU: its name, its help, its type, its label, and its values.
type DeviceMetric =
    (&'static str, &'static str, MetricType, Option<&'static str>, fn(&DeviceStats) -> Vec<DeviceValue>);
/// The value of the label, and the number.
type DeviceValue = (&'static str, f64);

const DEVICE_METRICS: [DeviceMetric; 5] = [
    ("hotrow_device_memory_used_bytes", "Bytes that hot rows take on the GPU.", MetricType::GAUGE, None, |device| {
        vec![("", device.memory_used as f64)]
    }),
    (
        "hotrow_device_memory_budget_bytes",
        "Bytes that hot rows may take on the GPU.",
        MetricType::GAUGE,
        None,
        |device| vec![("", device.memory_budget as f64)],
    ),
    (
        "hotrow_device_transferred_bytes_total",
        "Bytes copied to the GPU (up) and from it (down).",
        MetricType::COUNTER,
        Some("direction"),
        |device| vec![("up", device.bytes_up as f64), ("down", device.bytes_down as f64)],
    ),
    (
        "hotrow_device_kernels_total",
        "Kernels that the GPU was given, by operation.",
        MetricType::COUNTER,
        Some("operation"),
        |device| device.operations.iter().map(|&(name, count, _)| (name, count as f64)).collect(),
    ),
    (
        "hotrow_device_kernel_seconds_total",
        "Seconds that the GPU worked on them, by operation.",
        MetricType::COUNTER,
        Some("operation"),
        |device| device.operations.iter().map(|&(name, _, seconds)| (name, seconds)).collect(),
    ),
];

const POOL_INFO: (&str, &str) =
    ("hotrow_pool_info", "Always 1; where hot rows are is in the labels: pool (host or cuda), device, name.");

/// All zero where there is no log.
fn log(shard: &Shard) -> LogStats {
    shard.log.get().map(Log::stats).unwrap_or_default()
}

const LOG_INFO: (&str, &str) =
    ("hotrow_log_info", "Always 1, and only where changes are logged; when they are acknowledged is in the label.");

const BUILD_INFO: (&str, &str) = ("hotrow_build_info", "Always 1; what runs is in the labels.");

fn descs() -> prometheus::Result<Vec<Desc>> {
    let tables = TABLE_METRICS.iter().map(|&(name, help, _, labels, _)| {
        let labels = std::iter::once("table").chain(labels.iter().copied()).map(String::from).collect();
        Desc::new(name.into(), help.into(), labels, Default::default())
    });
    let shards = SHARD_METRICS
        .iter()
        .map(|&(name, help, ..)| Desc::new(name.into(), help.into(), Vec::new(), Default::default()));
    let labels = ["version", "simd", "shard", "cluster", "topology", "seed"].map(String::from).to_vec();
    let build = Desc::new(BUILD_INFO.0.into(), BUILD_INFO.1.into(), labels, Default::default());
    let devices = DEVICE_METRICS.iter().map(|&(name, help, _, label, _)| {
        Desc::new(name.into(), help.into(), label.into_iter().map(String::from).collect(), Default::default())
    });
    let labels = ["pool", "device", "name"].map(String::from).to_vec();
    let pool = Desc::new(POOL_INFO.0.into(), POOL_INFO.1.into(), labels, Default::default());
    let log = Desc::new(LOG_INFO.0.into(), LOG_INFO.1.into(), vec!["sync".into()], Default::default());
    tables.chain(shards).chain(devices).chain([build, pool, log]).collect()
}

/// Reads the engine when somebody asks.
struct EngineCollector {
    shard: Arc<OnceLock<Weak<Shard>>>,
    descs: Vec<Desc>,
}

impl Collector for EngineCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(shard) = self.shard.get().and_then(Weak::upgrade) else { return Vec::new() };
        // A table that is dropped meanwhile is left out.
        let names = shard.engine.table_names();
        let stats: Vec<TableStats> = names.iter().filter_map(|name| shard.engine.stats(name).ok()).collect();
        let mut families = Vec::new();
        for (name, help, kind, labels, values) in TABLE_METRICS {
            let of_table = |stats: &TableStats| {
                let table = stats.table.clone();
                values(stats).into_iter().map(move |(given, value)| {
                    let pairs = std::iter::once(pair("table", &table))
                        .chain(labels.iter().zip(given).map(|(label, value)| pair(label, value)));
                    metric(kind, pairs.collect(), value)
                })
            };
            families.push(family(name, help, kind, stats.iter().flat_map(of_table).collect()));
        }
        for (name, help, kind, value) in SHARD_METRICS {
            families.push(family(name, help, kind, vec![metric(kind, Vec::new(), value(&shard))]));
        }
        let labels = vec![
            pair("version", env!("CARGO_PKG_VERSION")),
            pair("simd", crate::numeric::simd::name()),
            pair("shard", &shard.number.to_string()),
            pair("cluster", &shard.topology.cluster),
            pair("topology", &format!("{:016x}", shard.topology.version)),
            pair("seed", &shard.engine.config().seed.to_string()),
        ];
        let build = metric(MetricType::GAUGE, labels, 1.0);
        families.push(family(BUILD_INFO.0, BUILD_INFO.1, MetricType::GAUGE, vec![build]));
        let log = shard.log.get().map(|log| metric(MetricType::GAUGE, vec![pair("sync", log.sync().name())], 1.0));
        families.push(family(LOG_INFO.0, LOG_INFO.1, MetricType::GAUGE, log.into_iter().collect()));
        families.extend(pool_families(&shard));
        families.retain(|family| !family.get_metric().is_empty());
        families
    }
}

/// Where hot rows are, and what the GPU has done, if there is one.
fn pool_families(shard: &Shard) -> Vec<MetricFamily> {
    let device = shard.engine.device();
    let (pool, number, name) = match device.map(Device::info) {
        Some(info) => ("cuda", info.device.to_string(), info.name.as_str()),
        None => ("host", String::new(), ""),
    };
    let labels = vec![pair("pool", pool), pair("device", &number), pair("name", name)];
    let info = metric(MetricType::GAUGE, labels, 1.0);
    let mut families = vec![family(POOL_INFO.0, POOL_INFO.1, MetricType::GAUGE, vec![info])];
    if let Some(stats) = device.map(Device::stats) {
        families.extend(DEVICE_METRICS.iter().map(|&(name, help, kind, label, values)| {
            let labels = |value| label.map(|label| pair(label, value)).into_iter().collect();
            let metrics = values(&stats).into_iter().map(|(value, number)| metric(kind, labels(value), number));
            family(name, help, kind, metrics.collect())
        }));
    }
    families
}

fn pair(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.into());
    pair.set_value(value.into());
    pair
}

fn metric(kind: MetricType, labels: Vec<LabelPair>, value: f64) -> Metric {
    let mut metric = Metric::from_label(labels);
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.into());
    family.set_help(help.into());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_documented_with_its_help() {
        let page = include_str!("../../docs/OPERATIONS.md");
        let metrics = Metrics::new().unwrap();
        let names = descs().unwrap().into_iter().map(|desc| (desc.fq_name, desc.help));
        metrics.duration.with_label_values(&["m"]).observe(1.0);
        metrics.requests.with_label_values(&["m", "OK"]).inc();
        let counted = metrics.registry.gather();
        let counted = counted.iter().map(|family| (family.name().to_string(), family.help().to_string()));
        for (name, help) in names.chain(counted) {
            assert!(!help.is_empty(), "{name} has no help");
            assert!(page.contains(&format!("`{name}`")), "{name} is missing from docs/OPERATIONS.md");
        }
    }
}
