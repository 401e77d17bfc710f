//! `make bench-durability`: pushes with a log beside pushes without, and beside what the disk takes of the same bytes;
//! checkpoints beside plain writing; pulls during a save beside pulls without. In one run, as `ratio NAME VALUE` lines.
//!
//! Every round does each of them once, one right after the other; a ratio is the median over the rounds.

mod common;

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::workload::{Zipf, gradients, median};
use hotrow::client::Client;
use hotrow::durability::checkpoint::{self, CheckpointStore};
use hotrow::server::Server;
use hotrow::server::config::Config;
use hotrow::{CacheBudget, Optimizer, Precision, Pull, Push, TableSpec};

const ROWS: usize = 1_000_000;
const DIM: usize = 64;
const BATCH: usize = 8192;
/// Pushes of a round.
const PUSHES: usize = 24;
const ROUNDS: usize = 9;
const INTERVAL_MS: u64 = 100;

fn main() {
    // `cargo test --benches` asks for tests; there are none here.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(run());
}

/// Rows of the table that is saved.
const SAVED_ROWS: u64 = 4_000_000;
const SAVES: usize = 7;
const PULLED: usize = 1024;
/// Pulls of a round.
const PULLS: usize = 1000;

async fn start(sync: Option<(&str, &std::path::Path)>) -> (Server, Client) {
    let mut config = Config::default();
    config.server.listen = "127.0.0.1:0".parse().unwrap();
    config.server.http = String::new();
    if let Some((sync, dir)) = sync {
        config.durability.mode = "log".into();
        config.durability.sync = sync.into();
        config.durability.sync_interval_ms = INTERVAL_MS;
        config.durability.data_dir = dir.into();
    }
    let server = Server::start(&config).await.unwrap();
    let client = Client::connect(&server.address().to_string()).await.unwrap();
    let spec = TableSpec::dense("t", ROWS as u64, DIM).precision(Precision::Int8).cache(CacheBudget::Percent(5.0));
    client.create_table(&spec.optimizer(Optimizer::Sgd, 0.01)).await.unwrap();
    (server, client)
}

/// Seconds that these pushes take, eight of them under way at a time.
async fn push_all(client: &Client, batches: &[Vec<u64>], values: &[f32]) -> f64 {
    let begun = Instant::now();
    let mut pending = std::collections::VecDeque::new();
    for keys in batches {
        let push = Push { table: "t", keys, gradients: values, ..Push::default() };
        pending.push_back(client.push_later(&[push]).await.unwrap());
        if pending.len() == 8 {
            pending.pop_front().unwrap().done().await.unwrap();
        }
    }
    for pending in pending {
        pending.done().await.unwrap();
    }
    begun.elapsed().as_secs_f64()
}

/// Seconds that the disk takes for as many bytes, synced as often.
fn write_all(file: &mut File, bytes: &[u8]) -> f64 {
    let begun = Instant::now();
    let mut synced = begun;
    for _ in 0..PUSHES {
        file.write_all(bytes).unwrap();
        if synced.elapsed() >= Duration::from_millis(INTERVAL_MS) {
            file.sync_data().unwrap();
            synced = Instant::now();
        }
    }
    begun.elapsed().as_secs_f64()
}

async fn run() {
    pushes().await;
    checkpoints().await;
}

async fn pushes() {
    println!(
        "# durability, loopback, {ROWS} rows, dim {DIM}, int8, {BATCH} unique keys of a Zipf 1.05 draw a push, 1 client, 8 under way"
    );
    // On the disk that builds are on, not in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (none, plain) = start(None).await;
    let (interval, logged) = start(Some(("interval", &dir.path().join("interval")))).await;
    let (always, synced) = start(Some(("always", &dir.path().join("always")))).await;
    let mut zipf = Zipf::new(ROWS, 1.05, 7);
    let values = gradients(BATCH * DIM, 3);
    let bytes = vec![7u8; BATCH * (8 + 4 * DIM)];
    let mut file = File::create(dir.path().join("plain")).unwrap();
    let mut times: [Vec<f64>; 4] = Default::default();
    for round in 0..=ROUNDS {
        let batches: Vec<Vec<u64>> = (0..PUSHES).map(|_| zipf.unique_batch(BATCH)).collect();
        let seconds = [
            push_all(&plain, &batches, &values).await,
            push_all(&logged, &batches, &values).await,
            push_all(&synced, &batches, &values).await,
            write_all(&mut file, &bytes),
        ];
        if round > 0 {
            times.iter_mut().zip(seconds).for_each(|(times, seconds)| times.push(seconds));
        }
    }
    let rows = (PUSHES * BATCH) as f64;
    let rate = |times: &[f64]| rows / median(times.to_vec()) / 1e6;
    let [none_times, interval_times, always_times, disk_times] = &times;
    println!(
        "# Mrows/s: none {:.2}, log with interval {:.2}, log with always {:.2}; the disk alone would take {:.2} ({:.0} MB/s)",
        rate(none_times),
        rate(interval_times),
        rate(always_times),
        rate(disk_times),
        (bytes.len() * PUSHES) as f64 / median(disk_times.clone()) / 1e6,
    );
    let over_limit = |ours: &[f64]| {
        let limit = none_times.iter().zip(disk_times).map(|(none, disk)| none.max(*disk));
        median(limit.zip(ours).map(|(limit, ours)| limit / ours).collect())
    };
    println!("ratio durability.push.log_over_limit {:.3}", over_limit(interval_times));
    println!("ratio durability.push.always_over_limit {:.3}", over_limit(always_times));
    for client in [plain, logged, synced] {
        client.close().await;
    }
    for server in [none, interval, always] {
        server.drain().await.unwrap();
    }
}

/// Seconds that plain writing of as many bytes takes: one file, in order, a megabyte at a time, synced at the end.
fn write_plainly(path: &std::path::Path, bytes: u64) -> f64 {
    let block = vec![7u8; 1 << 20];
    let begun = Instant::now();
    let mut file = File::create(path).unwrap();
    let mut left = bytes;
    while left > 0 {
        let now = left.min(block.len() as u64);
        file.write_all(&block[..now as usize]).unwrap();
        left -= now;
    }
    file.sync_all().unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    std::fs::remove_file(path).unwrap();
    seconds
}

/// The 99th percentile of pulls, in microseconds, one after the other until `done`; and how many there were.
async fn pull_p99(client: &Client, batches: &[Vec<u64>], done: impl Fn(usize) -> bool) -> (f64, usize) {
    let mut times = Vec::new();
    while !done(times.len()) {
        let begun = Instant::now();
        client.pull(&[Pull { table: "t", keys: &batches[times.len() % batches.len()] }]).await.unwrap();
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() * 99 / 100], times.len())
}

async fn checkpoints() {
    println!(
        "# checkpoints: {SAVED_ROWS} rows, dim {DIM}, int8, all trained, 5 % cache, to a folder; pulls of {PULLED} keys by one client"
    );
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut config = Config::default();
    config.server.listen = "127.0.0.1:0".parse().unwrap();
    config.server.http = String::new();
    config.checkpoint.url = dir.path().join("saved").to_str().unwrap().into();
    // Removing is not saving, and is not timed: neither here nor of the plain file.
    config.checkpoint.keep = 0;
    config.checkpoint.on_drain = false;
    let server = Server::start(&config).await.unwrap();
    let client = Client::connect(&server.address().to_string()).await.unwrap();
    let spec = TableSpec::dense("t", SAVED_ROWS, DIM).precision(Precision::Int8).cache(CacheBudget::Percent(5.0));
    client.create_table(&spec.optimizer(Optimizer::Sgd, 0.01)).await.unwrap();
    let all: Vec<u64> = (0..SAVED_ROWS).collect();
    let values = gradients(BATCH * DIM, 3);
    for keys in all.chunks(BATCH) {
        let push = Push { table: "t", keys, gradients: &values[..keys.len() * DIM], ..Push::default() };
        client.push(&[push]).await.unwrap();
    }

    let store = CheckpointStore::open(&config.checkpoint.url).unwrap();
    let mut ratios = Vec::new();
    let mut bytes = 0;
    for round in 0..=SAVES {
        let begun = Instant::now();
        bytes = client.save_checkpoint("", false, |_, _| {}).await.unwrap().bytes;
        let ours = begun.elapsed().as_secs_f64();
        checkpoint::prune(&store, 1, false).await.unwrap();
        let plain = write_plainly(&dir.path().join("plain"), bytes);
        if round > 0 {
            println!("# save {:.0} MB/s, plain {:.0} MB/s", bytes as f64 / ours / 1e6, bytes as f64 / plain / 1e6);
            ratios.push(plain / ours);
        }
    }
    println!("# {:.0} MB each", bytes as f64 / 1e6);
    println!("ratio durability.checkpoint.over_plain_write {:.3}", median(ratios));

    let mut zipf = Zipf::new(SAVED_ROWS as usize, 1.05, 9);
    let batches: Vec<Vec<u64>> = (0..64).map(|_| zipf.unique_batch(PULLED)).collect();
    let mut ratios = Vec::new();
    for round in 0..=SAVES {
        checkpoint::prune(&store, 1, false).await.unwrap();
        let (without, _) = pull_p99(&client, &batches, |count| count == PULLS).await;
        let saved = Arc::new(AtomicBool::new(false));
        let saver = {
            let (address, saved) = (server.address().to_string(), Arc::clone(&saved));
            tokio::spawn(async move {
                let client = Client::connect(&address).await.unwrap();
                client.save_checkpoint("", false, |_, _| {}).await.unwrap();
                saved.store(true, Ordering::Relaxed);
            })
        };
        let (during, pulls) = pull_p99(&client, &batches, |count| count > 0 && saved.load(Ordering::Relaxed)).await;
        saver.await.unwrap();
        if round > 0 {
            println!("# pull p99 {without:.0} us, during a save {during:.0} us ({pulls} pulls)");
            ratios.push(during / without);
        }
    }
    println!("ratio durability.pull_p99.during_over_without {:.3}", median(ratios));
    client.close().await;
    server.drain().await.unwrap();
}
