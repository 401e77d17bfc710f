//! `hotrow bench`: a load generator.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand_distr::{Distribution as _, Zipf};

use super::Output;
use super::connect::Connect;
use crate::client::Client;
use crate::engine::{Pull, Push, RowFormat};
use crate::server::Server;
use crate::server::config::{Config, TableConfig};

/// Measure a server.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Without --endpoint a server of its own is started on loopback.\n\nExamples:\n  \
    hotrow bench pull --seconds 5\n  hotrow bench train --clients 4 --precision int4 --cache 1% --wire f16\n  \
    hotrow bench pull --endpoint host-a:7700 --rows 100000000 --output json")]
pub struct Args {
    /// What to measure: pull reads rows, push applies gradients, train does both in turn.
    #[arg(value_enum)]
    what: What,
    /// Rows of the table.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Numbers in a row.
    #[arg(long, default_value_t = 64)]
    dim: usize,
    /// How rows are stored.
    #[arg(long, default_value = "int8")]
    precision: String,
    /// What the cache may hold: 5%, 100000rows or 2GiB.
    #[arg(long, default_value = "5%")]
    cache: String,
    /// lru or lfu.
    #[arg(long, default_value = "lru")]
    policy: String,
    /// The optimizer.
    #[arg(long, default_value = "rowwise_adagrad")]
    optimizer: String,
    /// The exponent of the keys' Zipf distribution; 0 is uniform.
    #[arg(long, default_value_t = 1.05)]
    zipf: f64,
    /// Keys of a request.
    #[arg(long, default_value_t = 8192)]
    batch: usize,
    /// Draw until the keys of a request are distinct, so that all rows cross the wire.
    #[arg(long)]
    unique: bool,
    /// Clients at a time, each with connections of its own.
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// Connections of each client to each shard.
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Seconds to measure.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds to run before, without measuring.
    #[arg(long, default_value_t = 2.0)]
    warm_up: f64,
    /// How rows travel: f32, f16, bf16 or int8.
    #[arg(long, default_value_t = RowFormat::F32)]
    wire: RowFormat,
    /// How gradients travel: f32, f16 or bf16.
    #[arg(long, default_value_t = RowFormat::F32)]
    gradient_wire: RowFormat,
    /// The table to use; it is made if it does not exist, and stays.
    #[arg(long, default_value = "hotrow-bench")]
    table: String,
    /// The seed of the keys.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    connect: Connect,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    Pull,
    Push,
    Train,
}

/// Runs a measurement.
pub fn run(args: Args) -> Result<()> {
    if args.batch == 0 || args.clients == 0 {
        bail!("--batch and --clients must be above zero");
    }
    if args.unique && (args.batch as u64).saturating_mul(4) > args.rows {
        bail!("--unique needs at least four times as many --rows as --batch");
    }
    if !(args.seconds > 0.0 && args.seconds.is_finite() && args.warm_up >= 0.0 && args.warm_up.is_finite()) {
        bail!("--seconds must be above zero and --warm-up not below it");
    }
    super::block_on(measure(args))
}

/// What one client saw.
struct Seen {
    latency: Histogram<u64>,
    requests: u64,
    rows: u64,
    bytes: u64,
}

async fn measure(mut args: Args) -> Result<()> {
    let spec = TableConfig {
        name: args.table.clone(),
        dim: args.dim,
        rows: Some(args.rows),
        precision: Some(args.precision.clone()),
        cache: Some(args.cache.clone()),
        policy: Some(args.policy.clone()),
        optimizer: Some(args.optimizer.clone()),
        ..TableConfig::default()
    };
    let spec = spec.spec().map_err(|e| anyhow!(e))?;
    let own = match args.connect.endpoint.is_empty() {
        false => None,
        true => {
            let mut config = Config::default();
            config.server.listen = "127.0.0.1:0".parse().expect("an address");
            config.server.http = String::new();
            let server = Server::start(&config).await?;
            args.connect.endpoint = vec![server.address().to_string()];
            Some(server)
        }
    };
    let observer = args.connect.client().await?;
    observer.create_table(&spec).await?;
    let phase = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for number in 0..args.clients {
        let mut options = args.connect.options()?;
        options.rows = args.wire;
        options.gradients = args.gradient_wire;
        options.connections = args.connections;
        let client = args.connect.client_with(options).await?;
        clients.push(tokio::spawn(drive(client, args.clone(), number as u64, Arc::clone(&phase), Arc::clone(&stop))));
    }
    let bar = ProgressBar::new(((args.warm_up + args.seconds) * 10.0) as u64);
    bar.set_style(
        ProgressStyle::with_template("{msg:10} {wide_bar} {elapsed} of {len}").unwrap_or(ProgressStyle::default_bar()),
    );
    let progress = |message: &'static str, seconds: f64| {
        let bar = bar.clone();
        async move {
            bar.set_message(message);
            let end = Instant::now() + Duration::from_secs_f64(seconds);
            while Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(100).min(end - Instant::now())).await;
                bar.inc(1);
            }
        }
    };
    progress("warming up", args.warm_up).await;
    let before = hits(&observer, &args.table).await?;
    let begun = Instant::now();
    phase.store(1, Ordering::Relaxed);
    progress("measuring", args.seconds).await;
    stop.store(true, Ordering::Relaxed);
    let seconds = begun.elapsed().as_secs_f64();
    let after = hits(&observer, &args.table).await?;
    bar.finish_and_clear();
    let mut all = Seen { latency: histogram()?, requests: 0, rows: 0, bytes: 0 };
    for client in clients {
        let seen = client.await??;
        all.latency.add(&seen.latency).context("latencies of all clients")?;
        all.requests += seen.requests;
        all.rows += seen.rows;
        all.bytes += seen.bytes;
    }
    report(&args, &all, seconds, [after[0] - before[0], after[1] - before[1]]);
    observer.close().await;
    if let Some(server) = own {
        server.drain().await?;
    }
    Ok(())
}

/// Hits and lookups of pulls and pushes so far, over all shards.
async fn hits(client: &Client, table: &str) -> Result<[u64; 2]> {
    let stats = client.stats().await?;
    let tables = stats.iter().flat_map(|shard| &shard.tables).filter(|stats| stats.table == table);
    Ok(tables.fold([0, 0], |[hits, all], t| {
        let found = t.pull_hits + t.push_hits;
        [hits + found, all + found + t.pull_misses + t.push_misses]
    }))
}

/// Microseconds up to a minute, to three digits.
fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000, 3)?)
}

/// Sends one request after the other.
async fn drive(client: Client, args: Args, number: u64, phase: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> Result<Seen> {
    let mut keys = Keys::new(&args, number)?;
    let mut seen = Seen { latency: histogram()?, requests: 0, rows: 0, bytes: 0 };
    let mut rows = vec![0.0f32; args.batch * args.dim];
    let gradients: Vec<f32> = (0..rows.len()).map(|i| ((i * 37 % 101) as f32 - 50.0) * 1e-4).collect();
    // Drawn before, so that drawing is not measured.
    let batches: Vec<Vec<u64>> = (0..64).map(|_| keys.batch(args.batch, args.unique)).collect();
    let mut step = 0;
    while !stop.load(Ordering::Relaxed) {
        let keys = &batches[step as usize % batches.len()];
        step += 1;
        let begun = Instant::now();
        let mut bytes = 0;
        if args.what != What::Push {
            client.pull_into(&[Pull { table: &args.table, keys }], &mut rows).await?;
            bytes += keys.len() * args.wire.row_bytes(args.dim);
        }
        if args.what != What::Pull {
            let push = Push { table: &args.table, keys, gradients: &gradients, step: Some(step), ..Push::default() };
            client.push(&[push]).await?;
            bytes += keys.len() * args.gradient_wire.row_bytes(args.dim);
        }
        if phase.load(Ordering::Relaxed) == 1 {
            seen.latency.saturating_record(begun.elapsed().as_micros() as u64);
            seen.requests += 1;
            seen.rows += keys.len() as u64;
            seen.bytes += bytes as u64;
        }
    }
    client.close().await;
    Ok(seen)
}

/// Draws keys.
struct Keys {
    random: StdRng,
    zipf: Zipf<f64>,
    rows: u64,
    /// Spreads the ranks over the keys, so that the popular ones are not neighbours.
    stride: u64,
}

impl Keys {
    fn new(args: &Args, client: u64) -> Result<Keys> {
        let zipf = Zipf::new(args.rows as f64, args.zipf).map_err(|e| anyhow!("--zipf: {e}"))?;
        let mut stride = (args.rows as f64 * 0.618) as u64 | 1;
        while gcd(stride, args.rows) != 1 {
            stride += 2;
        }
        let random = StdRng::seed_from_u64(args.seed.wrapping_mul(1_000_003).wrapping_add(client));
        Ok(Keys { random, zipf, rows: args.rows, stride })
    }

    fn batch(&mut self, count: usize, unique: bool) -> Vec<u64> {
        let mut seen = std::collections::HashSet::new();
        let mut keys = Vec::with_capacity(count);
        while keys.len() < count {
            let rank = self.zipf.sample(&mut self.random) as u64 - 1;
            let key = (u128::from(rank) * u128::from(self.stride) % u128::from(self.rows)) as u64;
            if !unique || seen.insert(key) {
                keys.push(key);
            }
        }
        keys
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn report(args: &Args, seen: &Seen, seconds: f64, [hits, lookups]: [u64; 2]) {
    let rate = |count: u64| count as f64 / seconds;
    let millis = |quantile: f64| seen.latency.value_at_quantile(quantile) as f64 / 1000.0;
    let hit_rate = (lookups > 0).then(|| hits as f64 / lookups as f64);
    match args.output {
        Output::Json => {
            let report = serde_json::json!({
                "what": format!("{:?}", args.what).to_lowercase(), "rows": args.rows, "dim": args.dim,
                "precision": args.precision, "cache": args.cache, "policy": args.policy, "optimizer": args.optimizer,
                "zipf": args.zipf, "batch": args.batch, "unique": args.unique, "clients": args.clients,
                "connections": args.connections, "wire": args.wire.to_string(),
                "gradient_wire": args.gradient_wire.to_string(), "seconds": seconds, "requests": seen.requests,
                "requests_per_s": rate(seen.requests), "rows_per_s": rate(seen.rows), "mb_per_s": rate(seen.bytes) / 1e6,
                "latency_ms": {
                    "p50": millis(0.5), "p90": millis(0.9), "p99": millis(0.99), "p99.9": millis(0.999),
                    "max": seen.latency.max() as f64 / 1000.0,
                },
                "hit_rate": hit_rate,
            });
            println!("{report}");
        }
        Output::Text => {
            println!("{:>12.3} M rows/s", rate(seen.rows) / 1e6);
            println!("{:>12.1} MB/s (of rows and gradients as they travel)", rate(seen.bytes) / 1e6);
            println!("{:>12.1} requests/s", rate(seen.requests));
            let quantiles = [0.5, 0.9, 0.99, 0.999].map(|q| format!("{:.2}", millis(q)));
            println!("{:>12} ms: p50, p90, p99, p99.9", quantiles.join(" / "));
            if let Some(rate) = hit_rate {
                println!("{:>10.1} % of looked-up keys were in the cache", 100.0 * rate);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_range_and_distinct_where_asked() {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Wrapper {
            #[command(flatten)]
            args: Args,
        }
        let args = Wrapper::parse_from(["bench", "pull", "--rows", "1000", "--zipf", "1.2"]).args;
        let mut keys = Keys::new(&args, 0).unwrap();
        let drawn = keys.batch(5000, false);
        assert!(drawn.iter().all(|&key| key < 1000));
        let mut distinct = keys.batch(200, true);
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 200);
        // The most popular key of a Zipf distribution stands out.
        let most = (0..1000).map(|key| drawn.iter().filter(|&&k| k == key).count()).max().unwrap();
        assert!(most > 500, "{most}");
    }
}
