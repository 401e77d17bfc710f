//! `make bench-service`: the service beside a bare TCP server that does the same gather and update with no protocol at
//! all, in one run, as `ratio NAME VALUE` lines.
//!
//! Every round runs the bare server and hotrow on the same keys, one right after the other; a ratio is the median over
//! the rounds. Rows that cross the wire are counted, and the client's decoding is inside the timing.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::limits::{self, Array};
use common::workload::{Zipf, gradients, median};
use hotrow::client::{Client, Options};
use hotrow::server::Server;
use hotrow::server::config::Config;
use hotrow::{CacheBudget, Initializer, Optimizer, Precision, Pull, Push, RowFormat, TableSpec};

const ROWS: usize = 1_000_000;
const DIM: usize = 64;
const BATCH: usize = 8192;
const ROUNDS: usize = 101;

/// A rival's published figure: gRPC, 512-byte rows, 500 keys a request, 8 clients, on a far larger machine.
const RIVAL_KEYS_PER_S: f64 = 1.17e6;

fn main() {
    // `cargo test --benches` asks for tests; there are none here.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(run());
}

async fn start() -> Server {
    let mut config = Config::default();
    config.server.listen = "127.0.0.1:0".parse().unwrap();
    config.server.http = String::new();
    Server::start(&config).await.unwrap()
}

async fn connect(server: &Server, rows: RowFormat) -> Client {
    let options = Options { rows, connections: 1, ..Options::default() };
    Client::connect_with(&[server.address().to_string()], options).await.unwrap()
}

async fn run() {
    println!(
        "# service, loopback, {ROWS} rows, dim {DIM}, {BATCH} unique keys of a Zipf 1.05 draw a request, 1 client"
    );
    let server = start().await;
    let client = connect(&server, RowFormat::F32).await;
    let int8 = connect(&server, RowFormat::Int8).await;
    let exact = TableSpec::dense("f32", ROWS as u64, DIM)
        .precision(Precision::F32)
        .initializer(Initializer::Zeros)
        .optimizer(Optimizer::Sgd, 0.01);
    let low = TableSpec::dense("int8", ROWS as u64, DIM)
        .precision(Precision::Int8)
        .cache(CacheBudget::Percent(5.0))
        .optimizer(Optimizer::Sgd, 0.01);
    client.create_table(&exact).await.unwrap();
    client.create_table(&low).await.unwrap();

    let mut zipf = Zipf::new(ROWS, 1.05, 7);
    let values = gradients(BATCH * DIM, 3);
    // All rows are trained, as in a table that is in use.
    let every: Vec<u64> = (0..ROWS as u64).collect();
    for keys in every.chunks(BATCH) {
        for table in ["f32", "int8"] {
            let gradients = &values[..keys.len() * DIM];
            client.push(&[Push { table, keys, gradients, ..Push::default() }]).await.unwrap();
        }
    }
    let mut bare = Bare::start();
    let mut out = vec![0.0f32; BATCH * DIM];
    let mut times: [Vec<f64>; 7] = Default::default();
    for round in 0..ROUNDS + 10 {
        let keys = zipf.unique_batch(BATCH);
        let mut seconds = [0.0; 7];
        // Blocking calls on this thread; the others go on.
        seconds[0] = tokio::task::block_in_place(|| timed(|| bare.pull(&keys, &mut out)));
        let begun = Instant::now();
        client.pull_into(&[Pull { table: "f32", keys: &keys }], &mut out).await.unwrap();
        seconds[1] = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        int8.pull_into(&[Pull { table: "int8", keys: &keys }], &mut out).await.unwrap();
        seconds[2] = begun.elapsed().as_secs_f64();
        seconds[3] = tokio::task::block_in_place(|| timed(|| bare.push(&keys, &values)));
        for (table, time) in [("f32", 4), ("int8", 5)] {
            let begun = Instant::now();
            client.push(&[Push { table, keys: &keys, gradients: &values, ..Push::default() }]).await.unwrap();
            seconds[time] = begun.elapsed().as_secs_f64();
        }
        let begun = Instant::now();
        client.pull_into(&[Pull { table: "int8", keys: &keys }], &mut out).await.unwrap();
        seconds[6] = begun.elapsed().as_secs_f64();
        if round >= 10 {
            times.iter_mut().zip(seconds).for_each(|(times, seconds)| times.push(seconds));
        }
    }
    let rate = |times: &[f64]| BATCH as f64 / median(times.to_vec()) / 1e6;
    let ratio =
        |limit: &[f64], ours: &[f64]| median(limit.iter().zip(ours).map(|(limit, ours)| limit / ours).collect());
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
    client.close().await;
    int8.close().await;
    rival(&server).await;
    server.drain().await.unwrap();
}

fn timed(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}

/// 512-byte rows, 500 keys a request, 200,000 rows, 8 clients.
async fn rival(server: &Server) {
    const ROWS: usize = 200_000;
    const KEYS: usize = 500;
    const CLIENTS: usize = 8;
    let admin = connect(server, RowFormat::F32).await;
    let spec = TableSpec::dense("rival", ROWS as u64, 128).precision(Precision::F32).optimizer(Optimizer::Sgd, 0.01);
    admin.create_table(&spec).await.unwrap();
    let every: Vec<u64> = (0..ROWS as u64).collect();
    let values = vec![0.01f32; 8000 * 128];
    for keys in every.chunks(8000) {
        let gradients = &values[..keys.len() * 128];
        admin.push(&[Push { table: "rival", keys, gradients, ..Push::default() }]).await.unwrap();
    }
    let (counted, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        let client = connect(server, RowFormat::F32).await;
        let (counted, stop) = (Arc::clone(&counted), Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            let mut zipf = Zipf::new(ROWS, 1.05, number as u64);
            let batches: Vec<Vec<u64>> = (0..32).map(|_| zipf.unique_batch(KEYS)).collect();
            let mut out = vec![0.0f32; KEYS * 128];
            for keys in batches.iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                client.pull_into(&[Pull { table: "rival", keys }], &mut out).await.unwrap();
                counted.fetch_add(KEYS as u64, Ordering::Relaxed);
            }
        }));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (mut rates, mut before) = (Vec::new(), counted.load(Ordering::Relaxed));
    for _ in 0..5 {
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = counted.load(Ordering::Relaxed);
        rates.push((now - before) as f64 / begun.elapsed().as_secs_f64());
        before = now;
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let rate = median(rates);
    println!(
        "# 512-byte rows, {KEYS} keys a request, {ROWS} rows, {CLIENTS} clients: {:.2} M keys/s (the rival: {:.2})",
        rate / 1e6,
        RIVAL_KEYS_PER_S / 1e6
    );
    println!("ratio service.keys_per_s.rival {:.3}", rate / RIVAL_KEYS_PER_S);
}

/// A server of plain arrays: a request is a byte and the keys, and gradients for a push; an answer is the rows, or a byte.
struct Bare {
    stream: TcpStream,
}

impl Bare {
    fn start() -> Bare {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        for stream in [&stream, &server] {
            stream.set_nodelay(true).unwrap();
        }
        std::thread::spawn(move || Bare::serve(server));
        Bare { stream }
    }

    fn serve(mut stream: TcpStream) {
        let mut table = Array::new((0..ROWS * DIM).map(|_| 0.0f32));
        let mut kind = [0u8];
        let mut keys = vec![0u64; BATCH];
        let mut rows = vec![0.0f32; BATCH * DIM];
        while stream.read_exact(&mut kind).is_ok() {
            stream.read_exact(bytemuck::cast_slice_mut(&mut keys)).unwrap();
            if kind[0] == 0 {
                limits::gather_f32(table.as_ref(), DIM, &keys, &mut rows);
                stream.write_all(bytemuck::cast_slice(&rows)).unwrap();
            } else {
                stream.read_exact(bytemuck::cast_slice_mut(&mut rows)).unwrap();
                limits::sgd(table.as_mut(), DIM, &keys, &rows, 0.01);
                stream.write_all(&[1]).unwrap();
            }
        }
    }

    fn pull(&mut self, keys: &[u64], out: &mut [f32]) {
        self.stream.write_all(&[0]).unwrap();
        self.stream.write_all(bytemuck::cast_slice(keys)).unwrap();
        self.stream.read_exact(bytemuck::cast_slice_mut(out)).unwrap();
    }

    fn push(&mut self, keys: &[u64], gradients: &[f32]) {
        self.stream.write_all(&[1]).unwrap();
        self.stream.write_all(bytemuck::cast_slice(keys)).unwrap();
        self.stream.write_all(bytemuck::cast_slice(gradients)).unwrap();
        self.stream.read_exact(&mut [0u8]).unwrap();
    }
}
