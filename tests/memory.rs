//! Memory is what was promised: resident bytes against what `footprint` predicts, and against the same table in f32.
//! One test, in a process of its own, because it reads the process's resident memory.

use hotrow::{CacheBudget, Engine, EngineConfig, Initializer, Optimizer, Policy, Precision, Push, TableSpec};

const ROWS: u64 = 10_000_000;
const DIM: usize = 16;
const BATCH: u64 = 65_536;

#[test]
fn ten_million_trained_rows_take_what_was_predicted() {
    // The kernel is asked before the first table, so that buffers of the engine count against the promise.
    let spec = |precision, cache| {
        TableSpec::dense("t", ROWS, DIM)
            .precision(precision)
            .cache(CacheBudget::Percent(cache))
            .policy(Policy::Lru)
            .initializer(Initializer::Zeros)
            .optimizer(Optimizer::Sgd, 0.1)
    };
    let int8 = spec(Precision::Int8, 5.0);
    let predicted = int8.footprint().unwrap().total_bytes.unwrap();
    let measured = trained(&int8);
    let f32 = trained(&spec(Precision::F32, 0.0));
    println!("int8: {measured:.0} bytes, predicted {predicted:.0}; f32: {f32:.0}");
    assert!(measured <= 1.05 * predicted, "{measured} bytes resident, {predicted} predicted");
    assert!(f32 >= 2.9 * measured, "f32 takes {f32}, int8 {measured}");
}

/// Resident bytes that a table takes once every row was trained.
fn trained(spec: &TableSpec) -> f64 {
    let gradients = vec![0.25; BATCH as usize * DIM];
    let keys: Vec<u64> = (0..ROWS).collect();
    let engine = Engine::new(EngineConfig { threads: 1, ..EngineConfig::default() }).unwrap();
    let before = resident();
    engine.create(spec).unwrap();
    for keys in keys.chunks(BATCH as usize) {
        let gradients = &gradients[..keys.len() * DIM];
        engine.push(&[Push { table: "t", keys, gradients, ..Push::default() }]).unwrap();
    }
    let stats = engine.stats("t").unwrap();
    assert_eq!(stats.changes.updated_rows, ROWS);
    assert!(stats.stored_rows + stats.cached_rows >= ROWS);
    resident() - before
}

fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("memory is measured on Linux");
    let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("statm has a second field");
    pages * 4096.0
}
