//! At the memory limit a push of known keys goes on, whatever happens beside it: a change that was ordered is applied.

use std::time::Duration;

use hotrow::{Change, Engine, EngineConfig, Error, Optimizer, Precision, Push, Remove, TableSpec};

/// Rounds of each thread. A race that broke this once showed within a few hundred.
const ROUNDS: usize = 300;

#[test]
fn a_known_key_may_be_removed_and_its_room_taken_before_its_push_has_its_turn() {
    // Rows of 16 KiB: one to a chunk, so that exactly four fit.
    let dim = 4096;
    let budget = 4 * (8 + 4 * dim as u64 + 1) + 200;
    let config = EngineConfig { partitions: 1, threads: 1, memory_budget: Some(budget), ..crate::support::config() };
    let engine = Engine::new(config).unwrap();
    let spec = TableSpec::hashed("t", dim).precision(Precision::F32).optimizer(Optimizer::Sgd, 0.1);
    engine.create(&spec).unwrap();
    let gradients = vec![0.5; dim];
    let push = |key: u64| engine.push(&[Push { table: "t", keys: &[key], gradients: &gradients, ..Push::default() }]);
    let remove = |key: u64| {
        engine.remove(&[Remove { table: "t", keys: &[key] }]).unwrap();
    };
    for key in 0..4 {
        push(key).unwrap();
    }
    assert!(matches!(push(4), Err(Error::OutOfMemory { .. })));
    push(3).unwrap();

    // A log that takes a moment for removes, so that pushes queue up behind them.
    engine.set_log(Box::new(|_, change| {
        if let Change::Remove(_) = change {
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }));
    let refused_or_done = |result: hotrow::Result<hotrow::Lsn>| match result {
        Ok(_) => true,
        Err(Error::OutOfMemory { .. }) => false,
        Err(other) => panic!("{other}"),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..ROUNDS).for_each(|_| {
                refused_or_done(push(0));
            })
        });
        scope.spawn(|| (0..ROUNDS).for_each(|_| remove(0)));
        for key in [9, 10] {
            let (push, remove) = (&push, &remove);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    if refused_or_done(push(key)) {
                        remove(key);
                    }
                }
            });
        }
    });
    assert!(engine.memory_used() <= budget);
    assert!(engine.stats("t").unwrap().rows <= 4);
}

/// Room is taken for keys that are new and for nothing else: not for keys sent twice, not for known ones, and not by
/// a request that is refused.
#[test]
fn only_new_keys_take_room() {
    let config = EngineConfig { partitions: 2, threads: 1, memory_budget: Some(8 << 20), ..crate::support::config() };
    let engine = Engine::new(config).unwrap();
    let cache = hotrow::CacheBudget::Rows(100);
    engine.create(&TableSpec::hashed("t", 16).cache(cache).optimizer(Optimizer::Sgd, 0.1)).unwrap();
    let push = |keys: &[u64]| {
        let gradients = vec![0.5; keys.len() * 16];
        engine.push(&[Push { table: "t", keys, gradients: &gradients, ..Push::default() }])
    };
    let empty = engine.memory_used();
    push(&[7; 100_000]).unwrap();
    assert!(engine.memory_used() - empty < 64 << 10, "{} bytes for one row", engine.memory_used() - empty);

    let many: Vec<u64> = (0..1_000_000).collect();
    let before = engine.memory_used();
    let Err(Error::OutOfMemory { needed, .. }) = push(&many) else { panic!("a million rows do not fit in 8 MiB") };
    assert!(needed > 30 << 20, "the error says {needed} bytes");
    assert_eq!(engine.memory_used(), before);

    let known = &many[..100_000];
    push(known).unwrap();
    let before = engine.memory_used();
    let mut again = known.to_vec();
    again.push(1 << 60);
    push(&again).unwrap();
    assert!(engine.memory_used() - before <= 64 << 10, "{} bytes for one row", engine.memory_used() - before);
    let stats = engine.stats("t").unwrap();
    assert_eq!(stats.rows, 100_001);
    let footprint = engine.spec("t").unwrap().footprint().unwrap();
    assert!(stats.row_bytes as f64 <= 1.05 * footprint.row_bytes * stats.rows as f64, "{stats:?} {footprint:?}");
}
