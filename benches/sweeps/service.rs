//! Real servers in processes of their own, and one client with one connection: a million rows of dim 64, f32 with SGD, an
//! f32 wire, loopback TCP, batches of 8192 unique keys of a Zipf 1.05 draw, but for what is swept.
//!
//! The limit is a server without a protocol, whose rows travel as f32.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::time::Instant;

use hotrow::{CacheBudget, Optimizer, Precision, Push, RowFormat, TableSpec};
use serde_json::{Value, json};

use crate::common::Store;
use crate::common::bare::Bare;
use crate::common::load::What;
use crate::common::process::Child;
use crate::common::remote::Remote;
use crate::common::workload::{Zipf, gradients, warm_seconds};
use crate::point::{Point, Times};

pub const ROWS: usize = 1_000_000;
pub const DIM: usize = 64;
pub const BATCH: usize = 8192;
/// Rows of a measurement, at least: small batches are measured several at a time.
const MEASURED: usize = 8192;
const WARM_UP: usize = 5;
/// Pushes of a round with a log, and how many of them are under way at a time.
const PUSHES: usize = 24;
const UNDER_WAY: usize = 8;

pub fn spec(precision: Precision) -> TableSpec {
    TableSpec::dense("t", ROWS as u64, DIM)
        .precision(precision)
        .cache(CacheBudget::Percent(5.0))
        .optimizer(Optimizer::Sgd, 0.01)
}

fn settings(changed: Value) -> Value {
    let mut settings = json!({
        "rows": ROWS, "dim": DIM, "batch": BATCH, "zipf": 1.05, "clients": 1, "precision": "f32", "wire": "f32",
        "optimizer": "SGD", "shards": 1, "transport": "tcp", "limit": "bare TCP",
    });
    let changed = changed.as_object().cloned().unwrap_or_default();
    settings.as_object_mut().unwrap().extend(changed);
    settings
}

/// Measures a point: every round does the same with the limit and with ours.
fn measure(
    (sweep, x): (&'static str, Value),
    (ours, limit): (&mut dyn Store, &mut dyn Store),
    batch: usize,
    settings: &Value,
    quick: bool,
) {
    let rounds = if quick { 5 } else { 101 };
    let mut zipf = Zipf::new(ROWS, 1.05, 7);
    let mut numbers = gradients(batch * DIM, 3);
    let count = MEASURED.div_ceil(batch);
    // Drawn beforehand: nobody falls asleep between rounds. The first rounds warm up.
    let drawn: Vec<Vec<u64>> = (0..(rounds + WARM_UP) * count).map(|_| zipf.unique_batch(batch)).collect();
    // Pulls overwrite the numbers, so pushes come first.
    for what in [What::Push, What::Pull] {
        let mut times = Times::default();
        for (round, batches) in drawn.chunks(count).enumerate() {
            let mut each = |store: &mut dyn Store| -> f64 {
                let time = |keys: &Vec<u64>| warm_seconds(keys, &mut numbers, |numbers| what.run(store, keys, numbers));
                batches.iter().map(time).sum()
            };
            let (limit, ours) = (each(limit), each(ours));
            if round >= WARM_UP {
                times.limit.push(limit);
                times.ours.push(ours);
            }
        }
        let (rows_per_s, limit_rows_per_s) = times.rates(batch * count);
        let mut settings = settings.clone();
        settings["repetitions"] = json!(rounds);
        let (layer, what, x) = ("service", what.name(), x.clone());
        Point { sweep, layer, what, x, rows_per_s, limit_rows_per_s, settings }.print();
    }
}

pub fn batch(quick: bool) {
    let batches: &[usize] = if quick { &[128, 8192] } else { &[128, 512, 2048, 8192, 32_768, 65_536] };
    let (server, bare) = (Child::hotrow(|_| ()), Child::bare(ROWS, DIM, None));
    let mut ours = Remote::connect(&server.address, RowFormat::F32, "t");
    ours.create(&spec(Precision::F32));
    let mut limit = Bare::connect(&bare.address);
    for &batch in batches {
        let settings = settings(json!({"batch": batch}));
        measure(("batch", json!(batch)), (&mut ours, &mut limit), batch, &settings, quick);
    }
}

pub fn wire(quick: bool) {
    let (server, bare) = (Child::hotrow(|_| ()), Child::bare(ROWS, DIM, None));
    Remote::connect(&server.address, RowFormat::F32, "t").create(&spec(Precision::Int8));
    let mut limit = Bare::connect(&bare.address);
    for format in [RowFormat::F32, RowFormat::F16, RowFormat::Bf16, RowFormat::Int8] {
        let mut ours = Remote::connect(&server.address, format, "t");
        let gradients = if format == RowFormat::Int8 { RowFormat::F32 } else { format };
        let settings = settings(json!({
            "precision": "int8", "cache_percent": 5, "wire": format.to_string(), "wire_of_gradients": gradients.to_string(),
        }));
        measure(("wire", json!(format.to_string())), (&mut ours, &mut limit), BATCH, &settings, quick);
    }
}

pub fn shards(quick: bool) {
    let counts: &[usize] = if quick { &[1, 2] } else { &[1, 2, 4, 8] };
    let bare = Child::bare(ROWS, DIM, None);
    let mut limit = Bare::connect(&bare.address);
    for &count in counts {
        let shards = cluster(count);
        let mut ours = Remote::connect(&shards[0].address, RowFormat::F32, "t");
        ours.create(&spec(Precision::F32));
        let settings = settings(json!({"shards": count}));
        measure(("shards", json!(count)), (&mut ours, &mut limit), BATCH, &settings, quick);
    }
}

/// So many shards of one cluster.
fn cluster(count: usize) -> Vec<Child> {
    // All at once, so that no port is given out twice.
    let listeners: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    drop(listeners);
    let shards: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let start = |(number, &address)| {
        Child::hotrow(|config| {
            config.server.listen = address;
            config.cluster.shards = shards.clone();
            config.cluster.shard = format!("{number}");
        })
    };
    addresses.iter().enumerate().map(start).collect()
}

pub fn transport(quick: bool) {
    let folder = tempfile::tempdir().unwrap();
    let (socket, bare_socket) = (folder.path().join("socket"), folder.path().join("bare"));
    let server = Child::hotrow(|config| config.server.unix = socket.clone());
    let on_unix = format!("unix:{}", socket.display());
    Remote::connect(&server.address, RowFormat::F32, "t").create(&spec(Precision::F32));
    for (name, address, bare) in [
        ("tcp", &server.address, Child::bare(ROWS, DIM, None)),
        ("unix", &on_unix, Child::bare(ROWS, DIM, Some(bare_socket))),
    ] {
        let mut ours = Remote::connect(address, RowFormat::F32, "t");
        let mut limit = Bare::connect(&bare.address);
        let settings = settings(json!({"transport": name, "limit": format!("bare {name}")}));
        measure(("transport", json!(name)), (&mut ours, &mut limit), BATCH, &settings, quick);
    }
}

/// Pushes, several under way, to a server without a log and to servers with one, in turn.
pub fn log(quick: bool) {
    let rounds = if quick { 5 } else { 15 };
    // On the disk that builds are on, not in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut servers = Vec::new();
    for sync in ["off", "never", "interval", "always"] {
        let server = Child::hotrow(|config| {
            if sync != "off" {
                config.durability.mode = "log".into();
                config.durability.sync = sync.into();
                config.durability.data_dir = folder.path().join(sync);
            }
        });
        let remote = Remote::connect(&server.address, RowFormat::F32, "t");
        remote.create(&spec(Precision::Int8));
        servers.push((sync, server, remote, Times::default()));
    }
    let mut zipf = Zipf::new(ROWS, 1.05, 7);
    let values = gradients(BATCH * DIM, 3);
    for round in 0..=rounds {
        let batches: Vec<Vec<u64>> = (0..PUSHES).map(|_| zipf.unique_batch(BATCH)).collect();
        for (_, _, remote, times) in &mut servers {
            let seconds = remote.runtime.block_on(push_all(remote, &batches, &values));
            if round > 0 {
                times.ours.push(seconds);
            }
        }
    }
    for (sync, _, _, times) in servers {
        let (rows_per_s, limit_rows_per_s) = times.rates(PUSHES * BATCH);
        let mut settings = settings(json!({
            "precision": "int8", "cache_percent": 5, "log": sync, "pushes_under_way": UNDER_WAY, "repetitions": rounds,
        }));
        settings.as_object_mut().unwrap().remove("limit");
        let (sweep, layer, what, x) = ("log", "service", "push", json!(sync));
        Point { sweep, layer, what, x, rows_per_s, limit_rows_per_s, settings }.print();
    }
}

/// Seconds that these pushes take.
async fn push_all(remote: &Remote, batches: &[Vec<u64>], values: &[f32]) -> f64 {
    let begun = Instant::now();
    let mut pending = VecDeque::new();
    for keys in batches {
        let push = Push { table: "t", keys, gradients: values, ..Push::default() };
        pending.push_back(remote.client.push_later(&[push]).await.unwrap());
        if pending.len() == UNDER_WAY {
            pending.pop_front().unwrap().done().await.unwrap();
        }
    }
    for pending in pending {
        pending.done().await.unwrap();
    }
    begun.elapsed().as_secs_f64()
}
