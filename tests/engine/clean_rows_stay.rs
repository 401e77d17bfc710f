//! Coming and going costs a row nothing: rows that are brought into the cache and leave it unchanged keep every bit.
//! Rows that are rounded again and again wander, but do not fade.

use crate::support;
use crate::support::bits;
use crate::support::changes::engine_with;
use crate::support::random::Random;
use hotrow::{
    Assign, CacheBudget, Engine, Initializer, KeySpace, Optimizer, Policy, Precision, Push, Quantizer, StatePrecision,
    TableSpec, Touch,
};

const ROWS: u64 = 48;

fn spec(format: (Precision, Quantizer), policy: Policy) -> TableSpec {
    TableSpec::dense("t", ROWS, 10)
        .precision(format.0)
        .quantizer(format.1)
        .policy(policy)
        .cache(CacheBudget::Rows(16))
        .optimizer(Optimizer::adagrad(), 0.1)
}

fn touch(engine: &Engine, key: u64) {
    engine.touch(&[Touch { table: "t", keys: &[key] }]).unwrap();
}

/// Weights and state of every row, wherever it is.
fn rows(engine: &Engine) -> Vec<(Vec<u32>, Vec<u32>)> {
    let row = |key| engine.inspect("t", key).unwrap();
    (0..ROWS).map(row).map(|row| (bits(&row.weights), bits(&row.state))).collect()
}

/// Touches a key until it is in the cache; with lfu that takes a few times.
fn bring_in(engine: &Engine, key: u64) {
    for _ in 0..1000 {
        if engine.inspect("t", key).unwrap().cached {
            return;
        }
        touch(engine, key);
    }
    panic!("key {key} never came in");
}

/// An engine whose rows are trained and all clean; it has rounded them as often as it ever will.
fn trained(spec: &TableSpec) -> Engine {
    let engine = engine_with(std::slice::from_ref(spec), 1, 1);
    let mut random = Random(3);
    for _ in 0..5 {
        let keys: Vec<u64> = (0..ROWS).collect();
        let gradients = random.numbers(keys.len() * spec.dim);
        engine.push(&[Push { table: "t", keys: &keys, gradients: &gradients, ..Push::default() }]).unwrap();
    }
    if engine.stats("t").unwrap().cache_slots > 0 {
        for key in (0..ROWS).chain(0..ROWS) {
            bring_in(&engine, key);
        }
    }
    assert!((0..ROWS).all(|key| !engine.inspect("t", key).unwrap().dirty));
    engine
}

#[test]
fn a_thousand_clean_evictions_change_no_bit() {
    for format in support::formats() {
        for policy in [Policy::Lru, Policy::Lfu] {
            for state in [StatePrecision::F32, StatePrecision::Bf16] {
                let case = format!("{format:?} {policy} {state:?}");
                let engine = trained(&spec(format, policy).state_precision(state));
                let (before, number) = (rows(&engine), engine.write_backs(0));
                let evictions = || engine.stats("t").unwrap().changes.clean_evictions;
                let start = evictions();
                let has_cache = engine.stats("t").unwrap().cache_slots > 0;
                for key in (0..ROWS).cycle().take(2000) {
                    match has_cache {
                        true => bring_in(&engine, key),
                        false => touch(&engine, key),
                    }
                }
                // A table without a cache evicts nothing; it is touched as often.
                assert!(!has_cache || evictions() - start >= 1000, "{case}: {} evictions", evictions() - start);
                assert_eq!(rows(&engine), before, "{case}");
                assert_eq!(engine.write_backs(0), number, "{case}: nothing was rounded");
            }
        }
    }
}

#[test]
fn untrained_rows_stay_untrained() {
    for format in support::formats() {
        let engine =
            engine_with(&[spec(format, Policy::Lru).initializer(Initializer::Normal { mean: 0.0, std: 1.0 })], 1, 1);
        let before = rows(&engine);
        for key in (0..ROWS).cycle().take(1000) {
            touch(&engine, key);
        }
        assert_eq!(rows(&engine), before, "{format:?}");
        assert_eq!(engine.stats("t").unwrap().stored_rows, 0, "{format:?}");
    }
}

/// Rounds every row 1,000 times: a push without a gradient makes it dirty, and then it leaves.
fn round_again(engine: &Engine, rows: u64, dim: usize) {
    let gradients = vec![0.0; 16 * dim];
    for _ in 0..1000 {
        for first in (0..rows).step_by(16) {
            let keys: Vec<u64> = (first..first + 16).collect();
            engine.push(&[Push { table: "t", keys: &keys, gradients: &gradients, ..Push::default() }]).unwrap();
        }
    }
}

#[test]
fn tiny_rows_do_not_fade() {
    const ROWS: u64 = 128;
    const DIM: usize = 12;
    // The smallest number of f16 is 6e-8, so it is not among them.
    for format in support::formats().into_iter().filter(|format| !matches!(format.0, Precision::F32 | Precision::F16)) {
        let spec = TableSpec { keys: KeySpace::Dense { rows: ROWS }, dim: DIM, ..spec(format, Policy::Lru) }
            .optimizer(Optimizer::Sgd, 0.1);
        let engine = engine_with(&[spec], 1, 1);
        let keys: Vec<u64> = (0..ROWS).collect();
        let before = Random(8).row(keys.len() * DIM, 1e-12);
        engine.assign(&[Assign { table: "t", keys: &keys, weights: &before, state: None }]).unwrap();
        round_again(&engine, ROWS, DIM);
        assert!(engine.stats("t").unwrap().changes.write_backs > 990 * ROWS, "{format:?}: the rows were rounded");
        let after: Vec<f32> = keys.iter().flat_map(|&key| engine.inspect("t", key).unwrap().weights).collect();

        let n = before.len() as f64;
        let change: Vec<f64> = before.iter().zip(&after).map(|(b, a)| f64::from(*a) - f64::from(*b)).collect();
        let mean = change.iter().sum::<f64>() / n;
        let deviation = (change.iter().map(|c| c * c).sum::<f64>() / n).sqrt();
        assert!(mean.abs() <= 5.0 * deviation / n.sqrt(), "{format:?}: the mean moved by {mean:e}, {deviation:e} each");
        // Rounding without bias can only spread the numbers.
        let size = |x: &[f32]| x.iter().map(|x| f64::from(x.abs())).sum::<f64>();
        assert!(size(&after) > 0.9 * size(&before), "{format:?}: {:e} is left of {:e}", size(&after), size(&before));
    }
}
