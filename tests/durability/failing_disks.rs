//! A disk that fails, at any call, or is full: the error is reported, nothing acknowledged is lost, and room that is made
//! is used without a restart.

use std::time::Duration;

use hotrow::durability::{LogOptions, SyncPolicy};
use hotrow::{Error, Lsn, Optimizer, Precision, Pull, Push, TableSpec};

use crate::disk::{Faults, Logged, OPTIONS, SimDisk, wait};
use crate::support::random::Random;

fn table() -> TableSpec {
    let spec = TableSpec::dense("t", 1000, 8).precision(Precision::F32).optimizer(Optimizer::Sgd, 1.0);
    spec.initializer(hotrow::Initializer::Zeros)
}

fn push(logged: &Logged, key: u64) -> hotrow::Result<Lsn> {
    let gradients = [-1.0 - key as f32; 8];
    logged.engine.push(&[Push { table: "t", keys: &[key], gradients: &gradients, ..Push::default() }])
}

fn row(logged: &Logged, key: u64) -> f32 {
    let mut row = [0.0; 8];
    logged.engine.pull(&[Pull { table: "t", keys: &[key] }], &mut row).unwrap();
    row[0]
}

/// Pushes one after the other, each waited for. Returns how many were acknowledged, and what went wrong.
fn push_all(logged: &Logged) -> (u64, Option<String>) {
    let made = match logged.engine.create(&table()) {
        Ok(lsn) => wait(logged.log.safe(lsn)),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = made {
        return (0, Some(error));
    }
    for key in 0..60 {
        let done = push(logged, key).map_err(|e| e.to_string()).and_then(|lsn| wait(logged.log.safe(lsn)));
        if let Err(error) = done {
            return (key, Some(error));
        }
    }
    (60, None)
}

#[test]
fn every_call_may_fail() {
    let calls = {
        let disk = SimDisk::default();
        let logged = Logged::start(&disk, OPTIONS).unwrap();
        assert_eq!(push_all(&logged), (60, None));
        drop(logged);
        disk.calls()
    };
    assert!(calls > 120, "{calls} calls");
    let mut random = Random(3);
    for fail_at in 0..calls {
        let disk = SimDisk::default();
        disk.set_faults(Faults { fail_at: Some(fail_at), ..Faults::default() });
        let logged = Logged::start(&disk, OPTIONS).unwrap();
        let (acknowledged, error) = push_all(&logged);
        if let Some(error) = error {
            assert!(error.contains("injected"), "call {fail_at}: {error}");
            assert!(wait(logged.log.failed()).contains("takes no more changes"));
            // Nothing more is taken, and what is there can be read.
            assert!(matches!(push(&logged, 999), Err(Error::NotOrdered(_))), "call {fail_at}");
            assert!(acknowledged == 0 || row(&logged, 0) == 1.0);
        }
        drop(logged);
        // The host starts again; or the process does, and the host after it.
        let killed = disk.copy();
        check(&Logged::start(&disk.lose_power(&mut random), OPTIONS).unwrap(), acknowledged, fail_at);
        killed.set_faults(Faults::default());
        let again = Logged::start(&killed, OPTIONS).unwrap();
        let safe = again.engine.last_lsn();
        wait(again.log.safe(safe)).unwrap();
        check(&again, acknowledged, fail_at);
        drop(again);
        let again = Logged::start(&killed.lose_power(&mut random), OPTIONS).unwrap();
        assert!(again.engine.last_lsn() >= safe, "call {fail_at}: what was safe after a restart is lost");
        check(&again, acknowledged, fail_at);
    }
}

fn check(logged: &Logged, acknowledged: u64, fail_at: u64) {
    logged.engine.create(&table()).unwrap();
    for key in 0..acknowledged {
        assert_eq!(row(logged, key), 1.0 + key as f32, "call {fail_at}: push {key} of {acknowledged} is lost");
    }
}

/// A failure while a torn end is cut off: the start fails, and the next one does not.
#[test]
fn a_start_may_fail_too() {
    let disk = SimDisk::default();
    let logged = Logged::start(&disk, OPTIONS).unwrap();
    push_all(&logged);
    drop(logged);
    let mut files = disk.bytes();
    files.last_mut().unwrap().1.extend([1, 2, 3]);
    for fail_at in 0..3 {
        let disk = SimDisk::of(&files);
        disk.set_faults(Faults { fail_at: Some(fail_at), ..Faults::default() });
        let error = Logged::start(&disk, OPTIONS).err().expect("the call fails");
        assert!(error.to_string().contains("injected"), "{error}");
        disk.set_faults(Faults::default());
        let again = Logged::start(&disk, OPTIONS).unwrap();
        assert_eq!(row(&again, 59), 60.0);
    }
}

#[test]
fn a_full_disk_refuses_changes_until_there_is_room() {
    let disk = SimDisk::default();
    disk.set_faults(Faults { room: Some(6000), ..Faults::default() });
    let logged = Logged::start(&disk, OPTIONS).unwrap();
    wait(logged.log.safe(logged.engine.create(&table()).unwrap())).unwrap();
    let mut taken = Vec::new();
    let refusal = loop {
        match push(&logged, taken.len() as u64) {
            Ok(lsn) => taken.push(lsn),
            Err(error) => break error,
        }
        assert!(taken.len() < 1000, "the disk never got full");
        // The log's thread needs a moment to find out.
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(matches!(&refusal, Error::NotOrdered(reason) if reason.contains("full")), "{refusal}");
    assert!(logged.log.stats().full);
    assert_eq!(row(&logged, 0), 1.0, "pulls go on");
    let last = *taken.last().unwrap();
    let refused = wait(logged.log.safe(last)).expect_err("what does not fit is not acknowledged");
    assert!(refused.contains("full"), "{refused}");

    disk.set_faults(Faults::default());
    let begun = std::time::Instant::now();
    while wait(logged.log.safe(last)).is_err() {
        assert!(begun.elapsed().as_secs() < 30, "the room was not noticed");
        std::thread::sleep(Duration::from_millis(10));
    }
    let next = taken.len() as u64;
    let lsn = push(&logged, next).expect("there is room again");
    wait(logged.log.safe(lsn)).unwrap();
    assert!(!logged.log.stats().full);
    let expected = logged.engine.digests();
    drop(logged);
    let again = Logged::start(&disk.lose_power(&mut Random(1)), OPTIONS).unwrap();
    assert_eq!(again.engine.digests(), expected);
}

/// With `interval` a second thread syncs: its failure ends the log too, at any call, and nothing hangs.
#[test]
fn every_call_may_fail_with_an_interval() {
    let options = LogOptions { sync: SyncPolicy::Interval(Duration::from_micros(200)), ..OPTIONS };
    let mut told = 0;
    for fail_at in 0..60 {
        let disk = SimDisk::default();
        disk.set_faults(Faults { fail_at: Some(fail_at), ..Faults::default() });
        let logged = Logged::start(&disk, options).unwrap();
        let mut acknowledged = 0;
        let made = logged.engine.create(&table()).ok().map(|lsn| wait(logged.log.safe(lsn)));
        for key in (0..80).take_while(|_| matches!(made, Some(Ok(())))) {
            let Ok(lsn) = push(&logged, key) else { break };
            if wait(logged.log.safe(lsn)).is_err() {
                break;
            }
            acknowledged = key + 1;
            std::thread::sleep(Duration::from_micros(100));
        }
        if disk.calls() > fail_at {
            assert!(wait(logged.log.failed()).contains("injected"), "call {fail_at}");
            assert!(matches!(push(&logged, 999), Err(Error::NotOrdered(_))), "call {fail_at}");
            let up_to = logged.engine.last_lsn();
            assert!(wait(logged.log.sync_up_to(Lsn(up_to.0 + 1))).is_err(), "call {fail_at}");
            told += 1;
        }
        drop(logged);
        // The process starts again: what was written is there.
        disk.set_faults(Faults::default());
        check(&Logged::start(&disk, OPTIONS).unwrap(), acknowledged, fail_at);
    }
    assert!(told > 50, "{told} of 60 failures happened");
}

/// A sync that is asked for comes, whatever the policy: what it covers survives a loss of power, in earlier segments too.
#[test]
fn a_sync_that_is_asked_for_comes() {
    for sync in [SyncPolicy::Never, SyncPolicy::Interval(Duration::from_secs(3600)), SyncPolicy::Always] {
        let disk = SimDisk::default();
        let logged = Logged::start(&disk, LogOptions { sync, ..OPTIONS }).unwrap();
        logged.engine.create(&table()).unwrap();
        let slowly = |key| {
            // So that each is a group of its own, and there are several segments.
            std::thread::sleep(Duration::from_millis(2));
            push(&logged, key).unwrap()
        };
        let last = (0..30).map(slowly).last().unwrap();
        wait(logged.log.sync_up_to(last)).unwrap();
        wait(logged.log.sync_up_to(last)).unwrap();
        let survived = disk.lose_power(&mut Random(4));
        assert_eq!(Logged::start(&survived, OPTIONS).unwrap().engine.last_lsn(), last, "{sync:?}");
    }
}
