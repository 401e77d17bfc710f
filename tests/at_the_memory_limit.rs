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
    let config = EngineConfig { partitions: 1, threads: 1, memory_budget: Some(budget), ..EngineConfig::default() };
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
