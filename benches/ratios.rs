//! `make bench-engine`: the engine beside the machine's limits, in one run, as `ratio NAME VALUE` lines.
//!
//! Every round runs the limit and the engine on the same keys, one right after the other, so that a noisy machine
//! slows both; a ratio is the median over the rounds. Memory is measured in a process of its own per table.
//! An argument (`pull`, `push`, `curve` or `memory`) runs that part alone.

mod common;

use std::hint::black_box;

use common::limits::{self, Array};
use common::workload::{Zipf, gradients, median, ratio, seconds, warm_seconds};
use hotrow::{
    Assign, CacheBudget, Engine, EngineConfig, Initializer, Optimizer, Policy, Precision, Pull, Push, TableSpec,
};

const ROWS: usize = 1_000_000;
const DIM: usize = 64;
const BATCH: usize = 8192;
const ROUNDS: usize = 61;
const WARM_UP: usize = 200;

fn main() {
    // `cargo test --benches` asks for tests; there are none here.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--test") {
        return;
    }
    match args.iter().position(|arg| arg == "--memory") {
        Some(at) => println!("{}", trained_memory(args[at + 1].parse().expect("a precision"))),
        None => {
            let wanted = args.iter().find(|arg| !arg.starts_with('-')).map_or("", String::as_str);
            if !["memory", "curve"].contains(&wanted) {
                speed(wanted);
            }
            if wanted.is_empty() || wanted == "curve" {
                curve();
            }
            if wanted.is_empty() || wanted == "memory" {
                memory();
            }
        }
    }
}

/// A table of `ROWS` trained rows whose cache has seen the workload.
fn trained(precision: Precision, policy: Policy, zipf: &mut Zipf) -> Engine {
    let engine = Engine::new(EngineConfig { threads: 1, ..EngineConfig::default() }).unwrap();
    let spec = TableSpec::dense("t", ROWS as u64, DIM)
        .precision(precision)
        .cache(CacheBudget::Percent(5.0))
        .policy(policy)
        .optimizer(Optimizer::rowwise_adagrad(), 0.01);
    engine.create(&spec).unwrap();
    let keys: Vec<u64> = (0..ROWS as u64).collect();
    for keys in keys.chunks(65_536) {
        let weights = gradients(keys.len() * DIM, keys[0]);
        engine.assign(&[Assign { table: "t", keys, weights: &weights, state: None }]).unwrap();
    }
    let values = gradients(BATCH * DIM, 1);
    for _ in 0..WARM_UP {
        let keys = zipf.batch(BATCH);
        engine.push(&[Push { table: "t", keys: &keys, gradients: &values, ..Push::default() }]).unwrap();
    }
    engine
}

fn report(name: &str, limit: Vec<f64>, ours: Vec<f64>) {
    let ratio = ratio(&limit, &ours);
    let rate = |times: Vec<f64>| BATCH as f64 / median(times) / 1e6;
    println!("# {name}: limit {:.1} Mrows/s, hotrow {:.1} Mrows/s (medians of {ROUNDS})", rate(limit), rate(ours));
    println!("ratio {name} {ratio:.3}");
}

/// `wanted` is empty for everything, or `pull` or `push`.
fn speed(wanted: &str) {
    println!(
        "# engine, 1 thread, {ROWS} rows, dim {DIM}, {BATCH} unique keys of a Zipf 1.05 draw (as drawn, with duplicates, where a \
         name says so), f32 out, {}",
        hotrow::numeric::simd::name()
    );
    let mut zipf = Zipf::new(ROWS, 1.05, 7);
    let mut table = Array::new((0..ROWS * DIM).map(|_| 0.1f32));
    let mut sums = Array::new((0..ROWS).map(|_| 0.1f32));

    let codes = Array::new((0..ROWS * (DIM + 2)).map(|i| (i * 37 % 64) as u8));
    for (policy, suffix) in [(Policy::Lru, ""), (Policy::Lfu, ".lfu")] {
        let engine = trained(Precision::Int8, policy, &mut zipf);
        if wanted != "push" {
            let limit = |keys: &[u64], out: &mut [f32]| limits::gather_int8(black_box(codes.as_ref()), DIM, keys, out);
            pulls(&format!("engine.pull.int8{suffix}"), &engine, &mut zipf, limit);
        }
        if wanted != "pull" {
            let name = format!("engine.push.rowwise_adagrad{suffix}");
            pushes(&name, &engine, &mut zipf, table.as_mut(), sums.as_mut());
        }
    }

    let engine = trained(Precision::F32, Policy::Lru, &mut zipf);
    if wanted != "push" {
        let limit = |keys: &[u64], out: &mut [f32]| limits::gather_f32(black_box(table.as_ref()), DIM, keys, out);
        pulls("engine.pull.f32", &engine, &mut zipf, limit);
    }
    if wanted != "pull" {
        pushes("engine.push.rowwise_adagrad.f32", &engine, &mut zipf, table.as_mut(), sums.as_mut());
    }
}

/// Pulls of unique keys, and of keys as drawn.
fn pulls(name: &str, engine: &Engine, zipf: &mut Zipf, limit_pull: impl Fn(&[u64], &mut [f32])) {
    let mut out = vec![0.0f32; BATCH * DIM];
    for suffix in ["", ".drawn"] {
        let (mut limit, mut ours) = (Vec::new(), Vec::new());
        let before = engine.stats("t").unwrap();
        for _ in 0..ROUNDS {
            let keys = if suffix.is_empty() { zipf.unique_batch(BATCH) } else { zipf.batch(BATCH) };
            limit.push(warm_seconds(&keys, &mut out, |out| limit_pull(&keys, out)));
            let pull = Pull { table: "t", keys: &keys };
            ours.push(warm_seconds(&keys, &mut out, |out| engine.pull(&[pull], out).unwrap()));
        }
        let after = engine.stats("t").unwrap();
        let hits = (after.pull_hits - before.pull_hits) as f64 / (ROUNDS * BATCH) as f64;
        println!("# {name}{suffix}: hit rate {hits:.3}");
        report(&format!("{name}{suffix}"), limit, ours);
    }
}

/// Pushes beside the plain update of these arrays.
fn pushes(name: &str, engine: &Engine, zipf: &mut Zipf, table: &mut [f32], sums: &mut [f32]) {
    let mut values = gradients(BATCH * DIM, 3);
    let (mut limit, mut ours) = (Vec::new(), Vec::new());
    let before = engine.stats("t").unwrap();
    for _ in 0..ROUNDS {
        let keys = zipf.unique_batch(BATCH);
        limit.push(warm_seconds(&keys, &mut values, |values| {
            limits::rowwise_adagrad(black_box(table), sums, DIM, &keys, values, 0.01);
        }));
        ours.push(warm_seconds(&keys, &mut values, |gradients| {
            engine.push(&[Push { table: "t", keys: &keys, gradients, ..Push::default() }]).unwrap()
        }));
    }
    let after = engine.stats("t").unwrap();
    let pushed = (ROUNDS * BATCH) as f64;
    println!(
        "# {name}: hit rate {:.3}, write-backs per update {:.3}",
        (after.changes.push_hits - before.changes.push_hits) as f64 / pushed,
        (after.changes.write_backs - before.changes.write_backs) as f64 / pushed,
    );
    report(name, limit, ours);
}

/// Pushes with the curve of hit rates beside pushes without, in turn. The curve looks at pushes for a while and rests for a
/// while; what counts is a long time of both, after the first look at a new table, which is the longest.
fn curve() {
    const FIRST_LOOK: usize = 6_000;
    const PUSHES: usize = 24_000;
    let mut zipf = Zipf::new(ROWS, 1.05, 7);
    let engine = trained(Precision::Int8, Policy::Lru, &mut zipf);
    let values = gradients(BATCH * DIM, 3);
    let batches: Vec<Vec<u64>> = (0..256).map(|_| zipf.unique_batch(BATCH)).collect();
    let push = |number: usize| {
        let push = Push { table: "t", keys: &batches[number % batches.len()], gradients: &values, ..Push::default() };
        seconds(|| engine.push(&[push]).unwrap())
    };
    for number in 0..FIRST_LOOK {
        push(number);
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for number in 0..PUSHES {
        // Now the one goes first, now the other, and each gets every batch.
        let on = (number + number / 2 + number / batches.len()).is_multiple_of(2);
        engine.watch("t", on).unwrap();
        if on { &mut with } else { &mut without }.push(push(number));
    }
    let curve = engine.stats("t").unwrap().curve.unwrap();
    println!(
        "# push int8, 5 % lru cache, with the curve of hit rates and without: {} keys sampled, one in {:.0}",
        curve.sampled_keys(),
        1.0 / curve.sampling_rate()
    );
    // A median would be that of the longer phase. Of the mean, the slowest hundredth is left out: that is the machine.
    let mean = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.truncate(times.len() - times.len() / 100);
        times.iter().sum::<f64>() / times.len() as f64
    };
    println!("ratio engine.push.curve_over_none {:.3}", mean(without) / mean(with));
}

const MEMORY_ROWS: u64 = 10_000_000;
const MEMORY_DIM: usize = 16;

fn memory_spec(precision: Precision) -> TableSpec {
    let cache = if precision == Precision::F32 { 0.0 } else { 5.0 };
    TableSpec::dense("t", MEMORY_ROWS, MEMORY_DIM)
        .precision(precision)
        .cache(CacheBudget::Percent(cache))
        .policy(Policy::Lru)
        .initializer(Initializer::Zeros)
        .optimizer(Optimizer::Sgd, 0.1)
}

/// Resident bytes of a table of which every row was trained.
fn trained_memory(precision: Precision) -> u64 {
    let engine = Engine::new(EngineConfig { threads: 1, ..EngineConfig::default() }).unwrap();
    let keys: Vec<u64> = (0..65_536).collect();
    let values = gradients(keys.len() * MEMORY_DIM, 3);
    // A table of the same kind, dropped again, brings the buffers to their size.
    engine.create(&TableSpec { name: "warm".into(), ..memory_spec(precision) }).unwrap();
    engine.push(&[Push { table: "warm", keys: &keys, gradients: &values, ..Push::default() }]).unwrap();
    engine.drop_table("warm").unwrap();

    let before = resident();
    engine.create(&memory_spec(precision)).unwrap();
    for first in (0..MEMORY_ROWS).step_by(keys.len()) {
        let keys: Vec<u64> = (first..MEMORY_ROWS.min(first + 65_536)).collect();
        let gradients = &values[..keys.len() * MEMORY_DIM];
        engine.push(&[Push { table: "t", keys: &keys, gradients, ..Push::default() }]).unwrap();
    }
    resident() - before
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("memory is measured on Linux");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("statm has a second field");
    pages * 4096
}

fn memory() {
    println!(
        "# memory: {MEMORY_ROWS} rows, dim {MEMORY_DIM}, SGD, all rows trained; int8 with a 5 % lru cache, f32 without"
    );
    let measure = |precision: Precision| -> f64 {
        let program = std::env::current_exe().unwrap();
        let output = std::process::Command::new(program).args(["--memory", &precision.to_string()]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().expect("the child prints its bytes")
    };
    let (int8, f32) = (measure(Precision::Int8), measure(Precision::F32));
    let predicted = memory_spec(Precision::Int8).footprint().unwrap();
    println!(
        "# int8: {:.1} MB measured, {:.1} MB predicted ({:.2} bytes per row); f32: {:.1} MB measured",
        int8 / 1e6,
        predicted.total_bytes.unwrap() / 1e6,
        predicted.bytes_per_row,
        f32 / 1e6,
    );
    println!("ratio engine.memory.measured_over_predicted {:.3}", int8 / predicted.total_bytes.unwrap());
    println!("ratio engine.memory.f32_over_int8 {:.3}", f32 / int8);
}
