//! How big should the cache be? The hit rates that a table predicts for other sizes of its cache are those that
//! engines with such caches have, within two points.

use std::io::BufRead as _;
use std::process::{Command, Stdio};

use hotrow::{CacheBudget, Engine, EngineConfig, Optimizer, Policy, Pull, Push, TableSpec, TableStats, Touch};

const DIM: usize = 4;
/// The promise.
const POINTS: f64 = 0.02;

fn engine(spec: &TableSpec) -> Engine {
    let engine = Engine::new(EngineConfig { threads: 1, small_table_bytes: 0, ..EngineConfig::default() }).unwrap();
    engine.create(spec).unwrap();
    engine
}

fn push(engine: &Engine, keys: &[u64]) {
    let gradients = vec![0.01; keys.len() * DIM];
    engine.push(&[Push { table: "t", keys, gradients: &gradients, ..Push::default() }]).unwrap();
}

fn stats(engine: &Engine) -> TableStats {
    engine.stats("t").unwrap()
}

/// Pushes everything; the hit rate after the first quarter.
fn run(spec: &TableSpec, pushes: &[Vec<u64>]) -> (TableStats, f64) {
    let engine = engine(spec);
    let (first, rest) = pushes.split_at(pushes.len() / 4);
    first.iter().for_each(|keys| push(&engine, keys));
    let before = stats(&engine).changes;
    rest.iter().for_each(|keys| push(&engine, keys));
    let stats = stats(&engine);
    let hits = stats.changes.push_hits - before.push_hits;
    let misses = stats.changes.push_misses - before.push_misses;
    let rate = hits as f64 / (hits + misses) as f64;
    (stats, rate)
}

/// Compares what a table with a cache of so many rows predicts with what others have.
fn compare(what: &str, spec: &TableSpec, rows: u64, pushes: &[Vec<u64>]) {
    let sized = |rows: u64| spec.clone().cache(CacheBudget::Rows(rows)).optimizer(Optimizer::Sgd, 0.01);
    let (stats, _) = run(&sized(rows), pushes);
    let sampled = stats.curve.as_ref().unwrap().sampled_keys();
    for size in [0.5, 1.0, 2.0, 4.0] {
        let other = (rows as f64 * size) as u64;
        let predicted = stats.predicted_hit_rate(other).unwrap();
        let (_, real) = run(&sized(other), pushes);
        println!("{what}: {size} x {rows} rows: predicted {predicted:.4}, real {real:.4} ({sampled} keys sampled)");
        assert!((predicted - real).abs() < POINTS, "{what}, {size} x {rows} rows: {predicted} predicted, {real} real");
        let at = stats.curve.as_ref().unwrap().hit_rate_at(size).unwrap();
        assert!((at - predicted).abs() < 1e-9, "a size is a multiple of today's");
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// Pushes of `count` keys each; how often a key comes has nothing to do with its number.
fn zipf(exponent: f64, keys: u64, count: usize, pushes: usize, seed: u64) -> Vec<Vec<u64>> {
    let mut sum = 0.0;
    let mut cumulative = Vec::new();
    for rank in 1..=keys {
        sum += (rank as f64).powf(-exponent);
        cumulative.push(sum);
    }
    let mut random = Random(seed);
    let mut key_of_rank: Vec<u64> = (0..keys).collect();
    for i in (1..keys as usize).rev() {
        key_of_rank.swap(i, (random.bits() % (i as u64 + 1)) as usize);
    }
    let mut draw = || {
        let target = (random.bits() >> 11) as f64 / (1u64 << 53) as f64 * sum;
        key_of_rank[cumulative.partition_point(|&upto| upto < target).min(keys as usize - 1)]
    };
    (0..pushes).map(|_| (0..count).map(|_| draw()).collect()).collect()
}

#[test]
fn predictions_hold_for_zipf() {
    for exponent in [0.8, 1.05, 1.2] {
        // Of 200,000 keys about one in ten is sampled.
        let pushes = zipf(exponent, 200_000, 1024, 1500, 1);
        compare(&format!("Zipf {exponent}"), &TableSpec::dense("t", 200_000, DIM), 10_000, &pushes);
    }
}

#[test]
fn predictions_hold_where_a_push_is_larger_than_the_cache() {
    // All keys are sampled. About 1,300 distinct keys in a push, and as few as 500 rows for them.
    let pushes = zipf(1.05, 12_000, 4096, 400, 2);
    compare("large pushes", &TableSpec::dense("t", 12_000, DIM), 1000, &pushes);
}

/// The categories of the flights, each with its column: a push for every 512 flights.
fn flights() -> Option<Vec<Vec<u64>>> {
    let path = std::env::var("HOTROW_FLIGHTS")
        .unwrap_or_else(|_| format!("{}/../shared/data/flights.tsv.gz", env!("CARGO_MANIFEST_DIR")));
    if !std::path::Path::new(&path).exists() {
        println!("skipped: there is no {path} (HOTROW_FLIGHTS names another place)");
        return None;
    }
    let mut gzip = Command::new("gzip").args(["-dc", &path]).stdout(Stdio::piped()).spawn().unwrap();
    let mut pushes = vec![Vec::new()];
    for (i, line) in std::io::BufReader::new(gzip.stdout.take().unwrap()).lines().enumerate() {
        if i % 512 == 511 {
            pushes.push(Vec::new());
        }
        let push = pushes.last_mut().unwrap();
        for (column, text) in line.unwrap().split('\t').skip(14).enumerate().filter(|(_, text)| !text.is_empty()) {
            push.push((column as u64) << 32 | u64::from_str_radix(text, 16).unwrap());
        }
    }
    assert!(gzip.wait().unwrap().success());
    Some(pushes)
}

#[test]
fn predictions_hold_for_flights() {
    let Some(pushes) = flights() else { return };
    // 5 % of the 106,060 rows that there are in the end.
    compare("flights", &TableSpec::hashed("t", DIM), 5304, &pushes);
}

#[test]
fn pulls_do_not_move_the_curve_and_touches_do() {
    let engine = engine(&TableSpec::dense("t", 10_000, DIM).cache(CacheBudget::Rows(512)));
    let keys: Vec<u64> = (0..300).collect();
    push(&engine, &keys);
    push(&engine, &keys);
    let before = stats(&engine).curve.unwrap();
    assert_eq!((before.references(), before.sampled_keys()), (600.0, 300));
    assert_eq!(before.hit_rate(10_000), Some(0.5));
    let mut out = vec![0.0; keys.len() * DIM];
    let others: Vec<u64> = (5000..5300).collect();
    engine.pull(&[Pull { table: "t", keys: &others }], &mut out).unwrap();
    assert_eq!(stats(&engine).curve.unwrap(), before);
    engine.touch(&[Touch { table: "t", keys: &others }]).unwrap();
    assert_eq!(stats(&engine).curve.unwrap().hit_rate(10_000), Some(300.0 / 900.0));
}

#[test]
fn tables_without_a_cache() {
    // Rows at low precision and no cache yet: what would one be worth?
    let none = engine(&TableSpec::dense("t", 10_000, DIM).cache(CacheBudget::Rows(0)).policy(Policy::Lfu));
    assert_eq!(stats(&none).predicted_hit_rate(100), None);
    let keys: Vec<u64> = (0..300).collect();
    push(&none, &keys);
    push(&none, &keys);
    assert_eq!(stats(&none).predicted_hit_rate(5000), Some(0.5));
    assert_eq!(stats(&none).curve.unwrap().hit_rate_at(1.0), None);
    // An f32 table never has one.
    let exact = engine(&TableSpec::dense("t", 10_000, DIM).precision(hotrow::Precision::F32));
    push(&exact, &keys);
    assert_eq!(stats(&exact).curve, None);
}
