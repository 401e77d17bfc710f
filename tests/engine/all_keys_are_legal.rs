//! Every 64-bit number is a key like any other, and a removed key leaves nothing behind but room.

use crate::support;
use crate::support::bits;
use crate::support::changes::engine_with;
use crate::support::random::Random;
use hotrow::{Assign, CacheBudget, Engine, Initializer, Optimizer, Policy, Pull, Push, Remove, Row, TableSpec, Touch};

const DIM: usize = 6;

/// Both ends, and every power of two with its neighbours.
fn keys() -> Vec<u64> {
    let mut keys: Vec<u64> = (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) - 1, (1 << bit) + 1]).collect();
    keys.extend([0, 1, u64::MAX, u64::MAX - 1]);
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Hashed tables of every format and both policies; the cache holds a part of the keys.
fn hashed_tables() -> Vec<TableSpec> {
    let mut all = Vec::new();
    for format in support::formats() {
        for policy in [Policy::Lru, Policy::Lfu] {
            let spec = TableSpec::hashed("t", DIM).precision(format.0).quantizer(format.1).policy(policy);
            all.push(spec.cache(CacheBudget::Rows(50)).optimizer(Optimizer::rowwise_adagrad(), 0.1));
        }
    }
    all
}

fn push(engine: &Engine, keys: &[u64], seed: u64) {
    let gradients = Random(seed).row(keys.len() * DIM, 1.0);
    engine.push(&[Push { table: "t", keys, gradients: &gradients, ..Push::default() }]).unwrap();
}

fn remove(engine: &Engine, keys: &[u64]) {
    engine.remove(&[Remove { table: "t", keys }]).unwrap();
}

fn pull(engine: &Engine, keys: &[u64]) -> Vec<u32> {
    let mut out = vec![f32::NAN; keys.len() * DIM];
    engine.pull(&[Pull { table: "t", keys }], &mut out).unwrap();
    bits(&out)
}

fn rows(engine: &Engine) -> u64 {
    engine.stats("t").unwrap().rows
}

/// A removed key reads as one that never was.
fn assert_untrained(engine: &Engine, fresh: &Engine, key: u64) {
    let row = engine.inspect("t", key).unwrap();
    let expected = Row { cached: false, dirty: false, stored: false, ..fresh.inspect("t", key).unwrap() };
    assert_eq!(row, expected, "key {key}");
    assert!(row.state.iter().all(|&x| x == 0.0));
    assert_eq!(pull(engine, &[key]), bits(&expected.weights), "key {key}");
}

#[test]
fn every_key_has_a_row_of_its_own() {
    for spec in hashed_tables() {
        for partitions in [1, 16] {
            let engine = engine_with(std::slice::from_ref(&spec), partitions, 1);
            let keys = keys();
            let untrained = pull(&engine, &keys);
            assert_eq!(rows(&engine), 0, "a pull adds no rows");
            push(&engine, &keys, 1);
            assert_eq!(rows(&engine), keys.len() as u64);
            let trained = pull(&engine, &keys);
            let changed = trained.chunks(DIM).zip(untrained.chunks(DIM)).filter(|(a, b)| a != b).count();
            assert_eq!(changed, keys.len(), "every row was stepped: {spec:?}");
            // A push to one key must not be seen in another one.
            for (i, &key) in keys.iter().enumerate().step_by(17) {
                let before = [&keys[..i], &keys[i + 1..]].concat();
                let others: Vec<Vec<f32>> =
                    before.iter().map(|&key| engine.inspect("t", key).unwrap().weights).collect();
                engine.assign(&[Assign { table: "t", keys: &[key], weights: &[3.0; DIM], state: None }]).unwrap();
                let after: Vec<Vec<f32>> =
                    before.iter().map(|&key| engine.inspect("t", key).unwrap().weights).collect();
                assert_eq!(after, others, "key {key}");
                assert!(engine.inspect("t", key).unwrap().weights.iter().all(|w| (w - 3.0).abs() < 0.1));
            }
        }
    }
}

#[test]
fn a_removed_key_reads_as_its_initial_value() {
    for spec in hashed_tables() {
        let engine = engine_with(std::slice::from_ref(&spec), 4, 1);
        let fresh = engine_with(std::slice::from_ref(&spec), 4, 1);
        let keys = keys();
        push(&engine, &keys, 1);
        push(&engine, &keys[..40], 2);
        // A key that was never there may be removed, and one may be named twice.
        let gone = [&keys[..60], &[12345, keys[0]]].concat();
        remove(&engine, &gone);
        gone.iter().for_each(|&key| assert_untrained(&engine, &fresh, key));
        assert_eq!(rows(&engine), keys.len() as u64 - 60);
        // Their rows are given to others; nothing of the old rows may show.
        let new: Vec<u64> = (1..=60).map(|i| 1_000_003 * i).collect();
        engine.touch(&[Touch { table: "t", keys: &new }]).unwrap();
        new.iter().for_each(|&key| {
            assert_eq!(
                bits(&engine.inspect("t", key).unwrap().weights),
                bits(&fresh.inspect("t", key).unwrap().weights)
            );
        });
        push(&engine, &keys, 3);
        assert_eq!(rows(&engine), keys.len() as u64 + 60);
    }
}

#[test]
fn a_removed_dense_row_reads_as_its_initial_value() {
    for format in support::formats() {
        for policy in [Policy::Lru, Policy::Lfu] {
            let spec = TableSpec::dense("t", 200, DIM).precision(format.0).quantizer(format.1).policy(policy);
            let spec = spec.cache(CacheBudget::Rows(50)).initializer(Initializer::Normal { mean: 1.0, std: 1.0 });
            let engine = engine_with(std::slice::from_ref(&spec), 4, 1);
            let fresh = engine_with(&[spec], 4, 1);
            let keys: Vec<u64> = (0..200).collect();
            push(&engine, &keys, 1);
            remove(&engine, &keys[..120]);
            keys[..120].iter().for_each(|&key| assert_untrained(&engine, &fresh, key));
            let stats = engine.stats("t").unwrap();
            assert_eq!(stats.rows, 200);
            assert!(stats.stored_rows <= 80 && stats.cached_rows <= 50);
            // The rows start over: their state depends on the new gradients alone.
            push(&engine, &keys[..120], 2);
            push(&fresh, &keys[..120], 2);
            let state = |engine: &Engine, key| bits(&engine.inspect("t", key).unwrap().state);
            (0..120).for_each(|key| assert_eq!(state(&engine, key), state(&fresh, key)));
        }
    }
}

#[test]
fn removal_makes_room_that_is_reused() {
    for spec in hashed_tables() {
        let engine = engine_with(std::slice::from_ref(&spec), 4, 1);
        let mut random = Random(1);
        let mut fresh = || (0..500).map(|_| random.bits()).collect::<Vec<u64>>();
        let mut early = 0;
        // Some keys stay all the time, so that the index is never empty.
        push(&engine, &fresh(), 0);
        for cycle in 0..60 {
            let keys = fresh();
            push(&engine, &keys, cycle);
            assert_eq!(rows(&engine), 1000);
            remove(&engine, &keys);
            assert_eq!(rows(&engine), 500);
            assert!(keys.iter().all(|&key| !engine.inspect("t", key).unwrap().cached));
            // Keys fall unevenly on partitions, so one may still be fuller than before. Without reuse the rows of
            // sixty cycles would take ten times the room of six.
            let stats = engine.stats("t").unwrap();
            let used = stats.row_bytes;
            let cache = if engine.device().is_some() { 0 } else { stats.cache_bytes };
            assert_eq!(used, engine.memory_used() - cache - stats.directory_bytes);
            early = if cycle < 6 { used } else { early };
            assert!(used * 10 <= early * 13, "cycle {cycle}: {used} bytes after {early}");
        }
    }
}
