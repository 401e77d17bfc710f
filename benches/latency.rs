//! `make bench-latency`: how long pulls of 1,024 rows take at half of the load that the server can bear.
//!
//! First the peak, with eight clients that each ask one after the other. Then requests come at times that are fixed
//! beforehand (Poisson arrivals at half the peak), whether or not earlier ones are answered, and are timed from when they were to
//! begin: a server that stalls pays for everybody who had to wait. The server is a process of its own. A bare TCP server that does
//! the same work gets the same requests at the same times: its tail is the machine's.

mod common;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use common::Store;
use common::bare::Bare;
use common::load::{What, closed_loop};
use common::process::{self, Child};
use common::remote::Remote;
use common::workload::{Random, Zipf, median};
use hdrhistogram::Histogram;
use hotrow::{Optimizer, Precision, RowFormat, TableSpec};

const ROWS: usize = 1_000_000;
const DIM: usize = 64;
const KEYS: usize = 1024;
const CLIENTS: usize = 8;
const LOAD: f64 = 0.5;
/// Windows of the peak, and repetitions at half of it.
const WINDOWS: usize = 5;
const REPETITIONS: usize = 7;

fn main() {
    process::serve_if_child();
    let args: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` asks for tests; there are none here.
    if args.iter().any(|arg| arg == "--test") {
        return;
    }
    let quick = args.iter().any(|arg| arg == "--quick");
    let (window, time) = if quick { (0.2, 0.5) } else { (1.0, 4.0) };

    let server = Child::hotrow(|_| ());
    let mut clients: Vec<Remote> =
        (0..CLIENTS).map(|_| Remote::connect(&server.address, RowFormat::F32, "t")).collect();
    let spec = TableSpec::dense("t", ROWS as u64, DIM).precision(Precision::F32).optimizer(Optimizer::Sgd, 0.01);
    clients[0].create(&spec);
    let mut zipf = Zipf::new(ROWS, 1.05, 7);
    let batches: Vec<Vec<u64>> = (0..256).map(|_| zipf.unique_batch(KEYS)).collect();

    let numbers = vec![0.0; KEYS * DIM];
    let mut peak = || closed_loop(&mut clients, What::Pull, &batches, &numbers, Duration::from_secs_f64(window));
    peak();
    let peak = median((0..WINDOWS).map(|_| peak()).collect()) / KEYS as f64;
    println!(
        "# latency: {KEYS} unique keys a pull, {ROWS} rows, dim {DIM}, f32, {CLIENTS} clients: {peak:.0} pulls/s at most \
         ({:.2} Mrows/s, median of {WINDOWS})",
        peak * KEYS as f64 / 1e6
    );

    let bare_server = Child::bare(ROWS, DIM, None);
    let mut bare: Vec<Bare> = (0..CLIENTS).map(|_| Bare::connect(&bare_server.address)).collect();
    let (mut ours, mut machine) = (Vec::new(), Vec::new());
    for repetition in 0..REPETITIONS as u64 {
        ours.push(tail("hotrow", &mut clients, &batches, peak * LOAD, time, repetition));
        machine.push(tail("bare TCP", &mut bare, &batches, peak * LOAD, time, repetition));
    }
    println!("# medians of {REPETITIONS} repetitions");
    println!("ratio service.latency.p99_over_p50 {:.3}", median(ours));
    println!("ratio service.latency.bare_tcp_p99_over_p50 {:.3}", median(machine));
}

/// The 99th percentile over the median, of pulls that come `rate` times a second.
fn tail<S: Store>(name: &str, clients: &mut [S], batches: &[Vec<u64>], rate: f64, time: f64, repetition: u64) -> f64 {
    let times = open_loop(clients, batches, rate, time, repetition);
    let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    println!(
        "# {name} at {rate:.0} pulls/s: p50 {:.0} us, p90 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, longest {:.0} us, {} pulls",
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        times.max() as f64 / 1e3,
        times.len()
    );
    at(0.99) / at(0.5)
}

/// Nanoseconds from when a pull was to begin to its end, for pulls that come `rate` times a second.
fn open_loop<S: Store>(clients: &mut [S], batches: &[Vec<u64>], rate: f64, time: f64, seed: u64) -> Histogram<u64> {
    let each = rate / clients.len() as f64;
    let ready = Barrier::new(clients.len());
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(n, client)| {
                let arrivals = arrivals(each, time, seed << 8 | n as u64);
                let ready = &ready;
                scope.spawn(move || {
                    common::load::wake_in_time();
                    let mut out = vec![0.0; KEYS * DIM];
                    let mut times = Histogram::<u64>::new(3).unwrap();
                    ready.wait();
                    let begun = Instant::now();
                    for (arrival, keys) in arrivals.iter().zip(batches.iter().cycle().skip(n * 31)) {
                        // One that is late is sent at once.
                        std::thread::sleep(arrival.saturating_sub(begun.elapsed()));
                        client.pull(keys, &mut out).unwrap();
                        times.record((begun.elapsed() - *arrival).as_nanos() as u64).unwrap();
                    }
                    times
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let mut all = Histogram::<u64>::new(3).unwrap();
    times.into_iter().for_each(|times| all += times);
    all
}

/// When requests come that come independently of each other, `rate` a second.
fn arrivals(rate: f64, time: f64, seed: u64) -> Vec<Duration> {
    let mut random = Random(seed);
    let mut at = 0.0;
    std::iter::from_fn(|| {
        at -= (1.0 - random.unit()).ln() / rate;
        (at < time).then(|| Duration::from_secs_f64(at))
    })
    .collect()
}
