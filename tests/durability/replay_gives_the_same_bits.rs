//! Recovery is replay: whatever the changes were, an engine that reads its log is bit for bit what it was, and goes on as
//! if it had never stopped.

use std::sync::Arc;
use std::time::Duration;

use hotrow::durability::{self, DataFolder, Identity, LocalFolder, LogError, LogOptions, SyncPolicy};
use hotrow::{Alteration, Change, ClientId, Lsn, Origin, TableSpec};

use crate::disk::{IDENTITY, Logged, OPTIONS, SimDisk, wait};
use crate::support::changes::{Owned, Rows, engine, two_tables};
use crate::support::matrix;
use crate::support::random::Random;

/// Changes of every kind.
fn change(random: &mut Random, tables: &[TableSpec], sequence: &mut u64) -> Owned {
    let client = ClientId(1 + u128::from(random.below(2)));
    match random.below(14) {
        0 => Owned::OpenClient(client),
        1 if random.below(4) == 0 => Owned::CloseClient(client),
        2 => {
            let alteration = Alteration {
                learning_rate: Some(random.unit().abs()),
                weight_decay: None,
                clip_norm: [None, Some(None), Some(Some(2.0))][random.below(3) as usize],
            };
            Owned::Alter(tables[random.below(2) as usize].name.clone(), alteration)
        }
        3 if random.below(6) == 0 => Owned::Drop(tables[random.below(2) as usize].name.clone()),
        4 => Owned::Create(tables[random.below(2) as usize].clone()),
        5..8 => match Owned::random(random, tables, 20) {
            Owned::Push(rows) => {
                *sequence += 1;
                // Sometimes one that was sent before.
                let sequence = sequence.saturating_sub(random.below(3)).max(1);
                Owned::PushOnce(Origin { client, sequence }, rows)
            }
            other => other,
        },
        _ => Owned::random(random, tables, 20),
    }
}

#[test]
fn an_engine_that_reads_its_log_is_what_it_was() {
    for (seed, (format, policy, optimizer)) in (0..).zip(matrix()) {
        let tables = two_tables(format, policy, optimizer);
        let disk = SimDisk::default();
        let mut random = Random(seed);
        let (mut sequence, mut last) = (0, 0);
        let mut digests = None;
        for round in 0..4 {
            let logged = Logged::start(&disk, OPTIONS).unwrap();
            assert_eq!(logged.replayed, last);
            if let Some(digests) = digests {
                assert_eq!(logged.engine.digests(), digests, "seed {seed}, round {round}");
            }
            for table in &tables {
                logged.engine.create(table).unwrap();
            }
            for _ in 0..30 {
                // Some are refused; those must not be in the log.
                let _ = change(&mut random, &tables, &mut sequence).apply(&logged.engine);
            }
            last = logged.engine.last_lsn().0;
            digests = Some(logged.engine.digests());
        }
    }
}

/// The same on a folder of the system, with each policy, and a large push that fills groups.
#[test]
fn on_a_real_folder_with_each_policy() {
    for sync in [SyncPolicy::Always, SyncPolicy::Interval(Duration::from_millis(5)), SyncPolicy::Never] {
        let dir = tempfile::tempdir().unwrap();
        let options = LogOptions { sync, segment_bytes: 1 << 16 };
        let tables = two_tables(crate::support::formats()[3], hotrow::Policy::Lfu, crate::support::optimizers()[0]);
        let start = |identity| {
            let engine = engine(4, 2);
            let disk = Arc::new(LocalFolder::new(dir.path()).unwrap());
            let mut apply = |change: &Change<'_>| engine.apply(change);
            let recovered = durability::recover(disk, identity, options, Lsn(0), &mut apply, &mut |_| {})?;
            engine.set_log(recovered.log.hook());
            Ok::<_, LogError>((engine, recovered.log))
        };
        let (first, log) = start(IDENTITY).unwrap();
        for table in &tables {
            first.create(table).unwrap();
        }
        let mut random = Random(8);
        for count in [1, 2000, 10, 500] {
            let lsn = Owned::random(&mut random, &tables, count).apply(&first).unwrap();
            wait(log.safe(lsn)).unwrap();
        }
        drop(log);
        let refused =
            Owned::Touch(vec![Rows { table: "dense".into(), keys: vec![1], ..Rows::default() }]).apply(&first);
        assert!(refused.is_err(), "a closed log takes no changes");
        let (again, log) = start(IDENTITY).unwrap();
        assert_eq!(again.digests(), first.digests(), "{sync:?}");
        drop(log);
        assert!(matches!(start(IDENTITY + 1), Err(LogError::Foreign { .. })));
    }
}

#[test]
fn a_missing_segment_is_noticed() {
    let disk = SimDisk::default();
    let logged = Logged::start(&disk, OPTIONS).unwrap();
    let tables = two_tables(crate::support::formats()[0], hotrow::Policy::Lru, crate::support::optimizers()[0]);
    for table in &tables {
        logged.engine.create(table).unwrap();
    }
    for seed in 0..20 {
        let lsn = Owned::random(&mut Random(seed), &tables, 5).apply(&logged.engine).unwrap();
        wait(logged.log.safe(lsn)).unwrap();
    }
    drop(logged);
    let files = disk.bytes();
    assert!(files.len() > 3);
    for missing in 0..files.len() - 1 {
        let mut left = files.clone();
        left.remove(missing);
        let error = Logged::start(&SimDisk::of(&left), OPTIONS).err().expect("a segment is missing");
        assert!(matches!(error, LogError::Missing { .. }), "{error}");
    }
}

/// What is behind a missing file, the first or another, can be given up, by the change that the refusal names.
#[test]
fn what_is_behind_a_missing_segment_can_be_given_up() {
    let tables = two_tables(crate::support::formats()[3], hotrow::Policy::Lru, crate::support::optimizers()[0]);
    for missing in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity { cluster: "c".into(), shard: 0, shards: 1, partitions: 4, seed: 7 };
        let folder = DataFolder::lock(dir.path()).unwrap();
        let start = || {
            let engine = engine(4, 1);
            let mut apply = |change: &Change<'_>| engine.apply(change);
            let disk = Arc::new(folder.log().unwrap());
            let recovered = durability::recover(disk, identity.tag(), OPTIONS, Lsn(0), &mut apply, &mut |_| {})?;
            engine.set_log(recovered.log.hook());
            Ok::<_, LogError>((engine, recovered.log))
        };
        let (first, log) = start().unwrap();
        tables.iter().for_each(|table| assert!(first.create(table).is_ok()));
        for seed in 0..20 {
            let lsn = Owned::random(&mut Random(seed), &tables, 5).apply(&first).unwrap();
            wait(log.safe(lsn)).unwrap();
        }
        drop(log);
        let mut files: Vec<_> =
            std::fs::read_dir(dir.path().join("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() > 4);
        std::fs::remove_file(&files[missing]).unwrap();

        let Err(LogError::Missing { expected, .. }) = start() else { panic!("a segment is missing") };
        let looked = durability::verify(Arc::new(folder.log().unwrap()), identity.tag(), Lsn(0), &mut |_| {});
        assert!(matches!(looked, Err(LogError::Missing { .. })), "verify says what a start says");
        assert!(durability::cut(&folder, &identity, expected + 1).is_err(), "only what is named is given up");
        let kept = durability::cut(&folder, &identity, expected).unwrap();
        assert_eq!(kept.len(), files.len() - missing - 1, "everything behind it is kept aside");
        let (again, _log) = start().unwrap();
        assert_eq!(again.last_lsn().0, expected - 1);
    }
}
