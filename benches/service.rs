//! `make bench-service`: the service beside a bare TCP server that does the same gather and update with no protocol at
//! all, in one run, as `ratio NAME VALUE` lines. Both are processes of their own.
//!
//! Every round runs the bare server and hotrow on the same keys, one right after the other; a ratio is the median over
//! the rounds. Rows that cross the wire are counted, and the client's decoding is inside the timing.

mod common;

use std::time::Duration;

use common::Store;
use common::bare::Bare;
use common::load::{What, closed_loop};
use common::process::{self, Child};
use common::remote::Remote;
use common::workload::{Zipf, gradients, median, ratio, warm_seconds};
use hotrow::{CacheBudget, Optimizer, Precision, RowFormat, TableSpec};

const ROWS: usize = 1_000_000;
const DIM: usize = 64;
const BATCH: usize = 8192;
const ROUNDS: usize = 101;
const WARM_UP: usize = 10;

/// A rival's published figure: gRPC, 512-byte rows, 500 keys a request, 8 clients, on a far larger machine.
const RIVAL_KEYS_PER_S: f64 = 1.17e6;

fn main() {
    process::serve_if_child();
    // `cargo test --benches` asks for tests; there are none here.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    beside_bare();
    rival();
}

fn beside_bare() {
    println!(
        "# service, loopback, {ROWS} rows, dim {DIM}, {BATCH} unique keys of a Zipf 1.05 draw a request, 1 client"
    );
    let (server, bare_server) = (Child::hotrow(|_| ()), Child::bare(ROWS, DIM, None));
    let connect = |rows, table| Remote::connect(&server.address, rows, table);
    let mut bare = Bare::connect(&bare_server.address);
    let mut exact = connect(RowFormat::F32, "f32");
    let mut low = connect(RowFormat::F32, "int8");
    let mut low_wire = connect(RowFormat::Int8, "int8");
    let table = |name: &str| TableSpec::dense(name, ROWS as u64, DIM).optimizer(Optimizer::Sgd, 0.01);
    exact.create(&table("f32").precision(Precision::F32));
    low.create(&table("int8").precision(Precision::Int8).cache(CacheBudget::Percent(5.0)));

    let mut zipf = Zipf::new(ROWS, 1.05, 7);
    let mut values = gradients(BATCH * DIM, 3);
    let mut out = vec![0.0f32; BATCH * DIM];
    let mut times: [Vec<f64>; 7] = Default::default();
    // Drawn beforehand: nobody falls asleep between rounds.
    let drawn: Vec<Vec<u64>> = (0..ROUNDS + WARM_UP).map(|_| zipf.unique_batch(BATCH)).collect();
    for (round, keys) in drawn.iter().enumerate() {
        let mut pull = |store: &mut dyn Store| warm_seconds(keys, &mut out, |out| What::Pull.run(store, keys, out));
        let mut push = |store: &mut dyn Store| warm_seconds(keys, &mut values, |all| What::Push.run(store, keys, all));
        let seconds = [
            pull(&mut bare),
            pull(&mut exact),
            pull(&mut low_wire),
            push(&mut bare),
            push(&mut exact),
            push(&mut low),
            pull(&mut low),
        ];
        if round >= WARM_UP {
            times.iter_mut().zip(seconds).for_each(|(times, seconds)| times.push(seconds));
        }
    }
    let rate = |times: &[f64]| BATCH as f64 / median(times.to_vec()) / 1e6;
    println!("# bare TCP: pull {:.2}, push {:.2} Mrows/s (medians of {ROUNDS})", rate(&times[0]), rate(&times[3]));
    for (name, limit, ours) in [
        ("service.pull.f32", 0, 1),
        ("service.push.f32", 3, 4),
        ("service.pull.int8_over_bare_f32", 0, 2),
        ("service.pull.int8_table.f32_wire", 0, 6),
        ("service.push.int8_table", 3, 5),
    ] {
        println!("# {name}: {:.2} Mrows/s", rate(&times[ours]));
        println!("ratio {name} {:.3}", ratio(&times[limit], &times[ours]));
    }
}

/// 512-byte rows, 500 keys a request, 200,000 rows, 8 clients.
fn rival() {
    const ROWS: usize = 200_000;
    const DIM: usize = 128;
    const KEYS: usize = 500;
    const CLIENTS: usize = 8;
    const WINDOWS: usize = 5;
    let server = Child::hotrow(|_| ());
    let mut clients: Vec<Remote> =
        (0..CLIENTS).map(|_| Remote::connect(&server.address, RowFormat::F32, "rival")).collect();
    let spec = TableSpec::dense("rival", ROWS as u64, DIM).precision(Precision::F32).optimizer(Optimizer::Sgd, 0.01);
    clients[0].create(&spec);
    let mut zipf = Zipf::new(ROWS, 1.05, 7);
    let batches: Vec<Vec<u64>> = (0..256).map(|_| zipf.unique_batch(KEYS)).collect();
    let numbers = vec![0.0; KEYS * DIM];
    let mut window = || closed_loop(&mut clients, What::Pull, &batches, &numbers, Duration::from_secs(1));
    window();
    let rate = median((0..WINDOWS).map(|_| window()).collect());
    println!(
        "# 512-byte rows, {KEYS} keys a request, {ROWS} rows, {CLIENTS} clients: {:.2} M keys/s (the rival: {:.2}; median of {WINDOWS})",
        rate / 1e6,
        RIVAL_KEYS_PER_S / 1e6
    );
    println!("ratio service.keys_per_s.rival {:.3}", rate / RIVAL_KEYS_PER_S);
}
