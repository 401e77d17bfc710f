//! Power goes at any moment, and with it what was not synced: no acknowledged push is lost, and none is applied twice.
//!
//! The judge needs no word of the log's: f32, SGD, learning rate 1, and every push adds a number of its own to a key of
//! its own.

use hotrow::{ClientId, Lsn, Optimizer, Origin, Precision, Pull, Push, TableSpec};

use crate::disk::{Faults, Logged, OPTIONS, SimDisk, wait};
use crate::support::random::Random;

const ROWS: u64 = 4096;
const CLIENT: ClientId = ClientId(9);

/// What became of the pushes of a run.
#[derive(Debug, Default)]
struct Outcome {
    acknowledged: u64,
    lost: u64,
    twice: u64,
    refused_starts: u64,
    cuts: u64,
    /// Starts during which the power went.
    cut_short: u64,
    segments: usize,
}

fn push(logged: &Logged, number: u64) -> hotrow::Result<Lsn> {
    let gradients = [-(number as f32)];
    let push = Push { table: "t", keys: &[number], gradients: &gradients, ..Push::default() };
    logged.engine.push_once(Origin { client: CLIENT, sequence: number }, &[push]).map(|pushed| pushed.lsn)
}

/// Crashes again and again. After each, what had no answer is sent again, as a client would.
fn crash_again_and_again(seed: u64, crashes: u64, faults: Faults) -> Outcome {
    let mut random = Random(seed);
    let mut outcome = Outcome::default();
    let mut disk = SimDisk::default();
    // The last push that was acknowledged, and the last that was sent.
    let (mut acknowledged, mut sent) = (0, 0);
    for _ in 0..crashes {
        disk.set_faults(Faults { off_at: Some(disk.calls() + random.below(80)), ..faults });
        match Logged::start(&disk, OPTIONS) {
            Ok(logged) => {
                outcome.cuts += u64::from(logged.cut.is_some());
                work(&logged, &mut random, &mut outcome, &mut acknowledged, &mut sent);
            }
            Err(_) if disk.is_off() => outcome.cut_short += 1,
            Err(_) => {
                outcome.refused_starts += 1;
                (disk, acknowledged, sent) = (SimDisk::default(), 0, 0);
                continue;
            }
        }
        outcome.acknowledged = outcome.acknowledged.max(acknowledged);
        outcome.segments = outcome.segments.max(disk.bytes().len());
        disk = disk.lose_power(&mut random);
        if sent + 40 > ROWS {
            (disk, acknowledged, sent) = (SimDisk::default(), 0, 0);
        }
    }
    outcome
}

/// Judges what the disk kept, sends again what had no answer, and pushes until the power goes or for a while.
fn work(logged: &Logged, random: &mut Random, outcome: &mut Outcome, acknowledged: &mut u64, sent: &mut u64) {
    let spec = TableSpec::dense("t", ROWS, 1).precision(Precision::F32).optimizer(Optimizer::Sgd, 1.0);
    let made = logged.engine.create(&spec.initializer(hotrow::Initializer::Zeros));
    let opened = made.and_then(|_| logged.engine.open_client(CLIENT));
    let Ok(opened) = opened else { return };

    let keys: Vec<u64> = (0..=*sent).collect();
    let mut rows = vec![0.0; keys.len()];
    logged.engine.pull(&[Pull { table: "t", keys: &keys }], &mut rows).unwrap();
    for (number, &row) in (1..).zip(&rows[1..]) {
        outcome.lost += u64::from(number <= *acknowledged && row == 0.0);
        outcome.twice += u64::from(row != 0.0 && row != number as f32);
    }
    if wait(logged.log.safe(opened)).is_err() {
        return;
    }
    for number in *acknowledged + 1..=*sent {
        if push(logged, number).is_err() {
            return;
        }
    }
    logged.engine.pull(&[Pull { table: "t", keys: &keys }], &mut rows).unwrap();
    outcome.twice += (*acknowledged + 1..=*sent).filter(|&n| rows[n as usize] != n as f32).count() as u64;

    for _ in 0..random.below(20) {
        let Ok(lsn) = push(logged, *sent + 1) else { return };
        *sent += 1;
        if random.below(3) == 0 {
            if wait(logged.log.safe(lsn)).is_err() {
                return;
            }
            *acknowledged = *sent;
        }
    }
}

fn crashes() -> u64 {
    1000 * std::env::var("HOTROW_TEST_SCALE").ok().and_then(|s| s.parse::<u64>().ok()).unwrap_or(1)
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_applied_twice() {
    let mut total = Outcome::default();
    for seed in 0..20 {
        let outcome = crash_again_and_again(seed, crashes() / 20, Faults::default());
        println!("seed {seed}: {outcome:?}");
        assert_eq!((outcome.lost, outcome.twice, outcome.refused_starts), (0, 0, 0), "seed {seed}");
        total.acknowledged += outcome.acknowledged;
        total.cuts += outcome.cuts;
        total.cut_short += outcome.cut_short;
        total.segments = total.segments.max(outcome.segments);
    }
    println!("{} crashes: {total:?}", crashes());
    let gentle = total.acknowledged < 1000 || total.cuts < 15 || total.cut_short == 0 || total.segments < 5;
    assert!(!gentle, "the crashes were too gentle: {total:?}");
}

/// The test above would notice a log that does not sync.
#[test]
fn without_syncs_pushes_are_lost() {
    let outcome = crash_again_and_again(1, 100, Faults { syncs_lie: true, ..Faults::default() });
    println!("{outcome:?}");
    assert!(outcome.lost + outcome.refused_starts > 20, "{outcome:?}");
}
