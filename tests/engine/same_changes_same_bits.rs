//! The same changes in the same order give the same bits: whatever the threads, whatever is read meanwhile, and
//! when a log is replayed.

use crate::support;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::changes::{KEYS, Owned, engine, engine_with, two_tables};
use crate::support::random::Random;
use hotrow::{Engine, Lsn, PooledPull, Pooling, Pull, TableSpec};

/// Tells the readers to stop, also when a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads until it is told to stop: plain and pooled, few rows and many, both tables.
fn read(engine: &Engine, tables: &[TableSpec], stop: &AtomicBool, seed: u64) {
    let mut random = Random(seed);
    while !stop.load(Ordering::Relaxed) {
        let count = if random.below(4) == 0 { 1200 } else { 1 + random.below(40) as usize };
        for table in tables {
            let keys = random.keys(table, KEYS, count);
            let mut out = vec![0.0; keys.len() * table.dim];
            engine.pull(&[Pull { table: &table.name, keys: &keys }], &mut out).unwrap();
            let offsets: Vec<u64> = (0..count as u64).step_by(7).collect();
            let bags = PooledPull {
                table: &table.name,
                keys: &keys,
                offsets: &offsets,
                weights: None,
                pooling: Pooling::Mean,
            };
            engine.pull_pooled(&[bags], &mut out[..offsets.len() * table.dim]).unwrap();
            engine.inspect(&table.name, keys[0]).unwrap();
        }
    }
}

/// Digests after these changes, on `threads` threads, while `readers` others read.
fn digests(tables: &[TableSpec], changes: &[Owned], threads: usize, readers: u64) -> Vec<(u32, u64)> {
    let engine = engine_with(tables, 8, threads);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for seed in 0..readers {
            let (engine, stop) = (&engine, &stop);
            scope.spawn(move || read(engine, tables, stop, seed));
        }
        for change in changes {
            change.apply(&engine).unwrap();
        }
    });
    engine.digests()
}

/// Random changes: most of a few rows, every `large_every`-th of many, and every other of these large enough for the compute threads.
fn changes(tables: &[TableSpec], seed: u64, count: usize, large_every: usize, large: usize) -> Vec<Owned> {
    let mut random = Random(seed);
    (1..=count)
        .map(|i| {
            let rows = match (i % large_every, i / large_every % 2) {
                (0, 0) => support::SHARED,
                (0, _) => large,
                _ => 1 + random.below(40) as usize,
            };
            Owned::random(&mut random, tables, rows)
        })
        .collect()
}

#[test]
fn threads_and_readers_change_no_bit() {
    for (seed, (format, policy, optimizer)) in support::matrix().into_iter().enumerate() {
        let tables = two_tables(format, policy, optimizer);
        let changes = changes(&tables, seed as u64, 30, 10, 1100);
        let alone = digests(&tables, &changes, 1, 0);
        assert_eq!(alone.len(), 8);
        for (threads, readers) in [(2, 0), (1, 1), (4, 2)] {
            let others = digests(&tables, &changes, threads, readers);
            assert_eq!(alone, others, "{format:?} {policy} {optimizer:?}, {threads} threads, {readers} readers");
        }
    }
}

#[test]
fn large_batches_change_no_bit() {
    // Every format once, and between them every optimizer and both policies.
    for (seed, (format, policy, optimizer)) in support::matrix().into_iter().step_by(11).enumerate() {
        let tables = two_tables(format, policy, optimizer);
        let changes = changes(&tables, seed as u64, 12, 1, 6000);
        let alone = digests(&tables, &changes, 1, 0);
        for threads in [2, 4] {
            assert_eq!(alone, digests(&tables, &changes, threads, 1), "{format:?} {policy} {optimizer:?}, {threads}");
        }
    }
}

#[test]
fn a_digest_sees_every_change() {
    // Without this the tests above could hold for the wrong reason.
    for (seed, (format, policy, optimizer)) in support::matrix().into_iter().step_by(7).enumerate() {
        let tables = two_tables(format, policy, optimizer);
        let mut changes = changes(&tables, seed as u64, 20, 40, 1100);
        let last_push = changes.iter().rposition(|change| matches!(change, Owned::Push(_))).unwrap();
        changes.truncate(last_push + 1);
        let (_, without) = changes.split_last().unwrap();
        assert_ne!(digests(&tables, &changes, 1, 0), digests(&tables, without, 1, 0), "{format:?} {policy}");
    }
}

/// Applies random changes from four threads at once; the log says in which order they came.
fn recorded(tables: &[TableSpec], seed: u64) -> (Engine, Vec<(Lsn, Owned)>) {
    let engine = engine(8, 2);
    let log = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&log);
    engine.set_log(Box::new(move |lsn, change| {
        sink.lock().unwrap().push((lsn, Owned::record(change)));
        Ok(())
    }));
    for table in tables {
        engine.create(table).unwrap();
    }
    thread::scope(|scope| {
        for writer in 0..4 {
            let engine = &engine;
            scope.spawn(move || {
                for change in changes(tables, 4 * seed + writer, 25, 12, 1100) {
                    change.apply(engine).unwrap();
                }
            });
        }
    });
    let log = std::mem::take(&mut *log.lock().unwrap());
    (engine, log)
}

#[test]
fn a_replayed_log_gives_the_same_bits() {
    for (seed, (format, policy, optimizer)) in support::matrix().into_iter().step_by(3).enumerate() {
        let (engine, log) = recorded(&two_tables(format, policy, optimizer), seed as u64);
        let lsns: Vec<u64> = log.iter().map(|(lsn, _)| lsn.0).collect();
        assert_eq!(lsns, (1..=2 + 4 * 25).collect::<Vec<u64>>(), "every change is in the log once, in order");
        let copy = support::changes::engine(8, 1);
        for (lsn, change) in &log {
            assert_eq!(change.apply(&copy), Ok(*lsn));
        }
        assert_eq!(copy.digests(), engine.digests(), "{format:?} {policy} {optimizer:?}");
    }
}
