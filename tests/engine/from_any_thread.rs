//! The engine may be called from any thread: of a rayon pool, or while tables come and go.

use std::sync::{Arc, Mutex};

use crate::support::changes::Owned;
use hotrow::{Change, Engine, EngineConfig, Error, Pull, Push, Result, TableSpec};
use rayon::prelude::*;

const DIM: usize = 8;

fn engine(threads: usize) -> Engine {
    let config = EngineConfig { partitions: 16, threads, small_table_bytes: 0, ..crate::support::config() };
    Engine::new(config).unwrap()
}

/// A worker that waits inside one pool is lent other jobs of its own. If it held a lock meanwhile, and the other job
/// wanted it, nothing would ever move again.
#[test]
fn callers_may_be_rayon_threads() {
    let engine = engine(2);
    engine.create(&TableSpec::dense("t", 10_000, DIM)).unwrap();
    let keys: Vec<u64> = (0..4000).collect();
    let gradients = vec![0.1; keys.len() * DIM];
    let callers = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    callers.install(|| {
        (0..400).into_par_iter().for_each(|i| {
            if i % 2 == 0 {
                engine.push(&[Push { table: "t", keys: &keys, gradients: &gradients, ..Push::default() }]).unwrap();
            } else {
                let mut out = vec![0.0; keys.len() * DIM];
                engine.pull(&[Pull { table: "t", keys: &keys }], &mut out).unwrap();
            }
        });
    });
    assert_eq!(engine.last_lsn().0, 201);
}

/// Tables that are made and dropped while others push and pull: only "unknown table" is ever seen, no byte of the budget
/// is lost, and the log gives the same bits again.
#[test]
fn tables_may_come_and_go() {
    let engine = engine(2);
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&log);
    engine.set_log(Box::new(move |lsn, change| {
        writer.lock().unwrap().push((lsn, Owned::record(change)));
        Ok(())
    }));
    let spec = TableSpec::hashed("t", DIM);
    let fine = |result: Result<()>| match result {
        Ok(()) | Err(Error::UnknownTable(_)) => {}
        Err(other) => panic!("{other}"),
    };
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (engine, spec) = (&engine, &spec);
            scope.spawn(move || {
                for _ in 0..150 {
                    fine(engine.create(spec).map(|_| ()));
                    if thread == 0 {
                        fine(engine.drop_table("t").map(|_| ()));
                    }
                }
            });
            scope.spawn(move || {
                for round in 0..300 {
                    let keys: Vec<u64> =
                        (0..200 + 1000 * (round % 2)).map(|i| (thread << 40) | (i * 7 + round)).collect();
                    let gradients = vec![0.5; keys.len() * DIM];
                    fine(
                        engine
                            .push(&[Push { table: "t", keys: &keys, gradients: &gradients, ..Push::default() }])
                            .map(|_| ()),
                    );
                    let mut out = vec![0.0; keys.len() * DIM];
                    fine(engine.pull(&[Pull { table: "t", keys: &keys }], &mut out));
                    fine(engine.stats("t").map(|_| ()));
                }
            });
        }
    });
    let replayed = self::engine(1);
    for (lsn, change) in log.lock().unwrap().iter() {
        assert_eq!(change.apply(&replayed).unwrap(), *lsn);
    }
    assert_eq!(replayed.digests(), engine.digests());
    if engine.table_names().contains(&"t".to_owned()) {
        engine.apply(&Change::Drop("t")).unwrap();
    }
    assert_eq!(engine.memory_used(), 0);
}
