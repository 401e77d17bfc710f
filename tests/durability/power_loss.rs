//! Power goes at any moment, and with it what was not synced: no acknowledged push is lost, and none is applied twice.
//!
//! The judge needs no word of the log's: f32, SGD, learning rate 1, and every push adds a number of its own to a key of
//! its own.

use hotrow::{ClientId, Lsn, Optimizer, Origin, Precision, Pull, Push, TableSpec};

use std::collections::BTreeMap;
use std::sync::Arc;

use hotrow::durability::checkpoint::{self, CheckpointStore, ClusterIdentity, From, Manifest, PartOf};

use crate::disk::{Faults, Logged, OPTIONS, SimDisk, read_whole, wait, write_whole};
use crate::store::SimStore;
use crate::support::changes::engine;
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
    checkpoints: u64,
    /// Segments that a checkpoint made needless.
    forgotten: u64,
    /// Starts from a checkpoint.
    restored: u64,
}

/// Where the log goes on from, as a data folder has it.
const BASE: &str = "base";

fn cluster() -> ClusterIdentity {
    ClusterIdentity { name: "c".into(), partitions: 4, seed: 7 }
}

fn store_on(disk: &SimDisk) -> CheckpointStore {
    CheckpointStore::new(Arc::new(SimStore(disk.clone())), "sim://store")
}

/// Starts as a shard does: from the checkpoint that is written down, and then from the log.
fn start(disk: &SimDisk) -> anyhow::Result<(Logged, Option<(u64, u32)>)> {
    let engine = engine(4, 1);
    let Some(base) = read_whole(disk, BASE) else {
        return Ok((Logged::start_after(disk, OPTIONS, engine, Lsn(0))?, None));
    };
    let sequence: u64 = String::from_utf8(base)?.parse()?;
    let store = store_on(disk);
    let plan = wait(checkpoint::plan(&store, &cluster(), &[0, 1, 2, 3], &From::These(vec![sequence])))?;
    let plan = plan.expect("one is named");
    wait(checkpoint::load(&store, &engine, &plan, &BTreeMap::new(), &mut |_| {}))?;
    let (lsn, since) = (plan.lsn, plan.since);
    Ok((Logged::start_after(disk, OPTIONS, engine, lsn)?, since))
}

/// Saves as a shard does: its part, the manifest, what the log goes on from; and only then part of the log goes.
fn save(disk: &SimDisk, logged: &Logged, since: &mut Option<(u64, u32)>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let store = store_on(disk);
    let sequence = wait(store.next_sequence())?;
    let part = PartOf { sequence, shard: 0, shards: 1, history: 1, base: since.filter(|(_, links)| *links < 3) };
    let (file, unsettled) = wait(checkpoint::save_part(&store, &logged.engine, part, |_| {}, |_| {}))?;
    let (lsn, links) = (Lsn(file.lsn), file.links);
    let put = wait(store.put(&Manifest::new(sequence, "", cluster(), vec![file])));
    logged.engine.settle(unsettled, put.is_ok());
    assert!(put?, "nobody else saves");
    *since = Some((sequence, links));
    write_whole(disk, BASE, sequence.to_string().as_bytes())?;
    let before = disk.bytes().len();
    logged.log.forget(lsn)?;
    outcome.checkpoints += 1;
    outcome.forgotten += (before - disk.bytes().len()) as u64;
    wait(checkpoint::prune(&store, 2, false))?;
    Ok(())
}

fn push(logged: &Logged, number: u64) -> hotrow::Result<Lsn> {
    let gradients = [-(number as f32)];
    let push = Push { table: "t", keys: &[number], gradients: &gradients, ..Push::default() };
    logged.engine.push_once(Origin { client: CLIENT, sequence: number }, &[push]).map(|pushed| pushed.lsn)
}

/// Crashes again and again. After each, what had no answer is sent again, as a client would.
fn crash_again_and_again(seed: u64, crashes: u64, faults: Faults, saves: bool) -> Outcome {
    let mut random = Random(seed);
    let mut outcome = Outcome::default();
    let mut disk = SimDisk::default();
    // The last push that was acknowledged, and the last that was sent.
    let (mut acknowledged, mut sent) = (0, 0);
    for _ in 0..crashes {
        disk.set_faults(Faults { off_at: Some(disk.calls() + random.below(80)), ..faults });
        match start(&disk) {
            Ok((logged, since)) => {
                outcome.cuts += u64::from(logged.cut.is_some());
                outcome.restored += u64::from(since.is_some());
                let mut run = Run { logged: &logged, disk: &disk, since, saves };
                run.work(&mut random, &mut outcome, &mut acknowledged, &mut sent);
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

/// What runs until the power goes.
struct Run<'a> {
    logged: &'a Logged,
    disk: &'a SimDisk,
    since: Option<(u64, u32)>,
    saves: bool,
}

impl Run<'_> {
    /// Judges what the disk kept, sends again what had no answer, and pushes until the power goes or for a while.
    fn work(&mut self, random: &mut Random, outcome: &mut Outcome, acknowledged: &mut u64, sent: &mut u64) {
        let logged = self.logged;
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
            if self.saves && random.below(8) == 0 && save(self.disk, logged, &mut self.since, outcome).is_err() {
                return;
            }
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
        let outcome = crash_again_and_again(seed, crashes() / 20, Faults::default(), false);
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

/// The same with checkpoints, which take the log's place bit by bit.
#[test]
fn nothing_is_lost_while_checkpoints_are_made() {
    let mut total = Outcome::default();
    for seed in 0..20 {
        let outcome = crash_again_and_again(100 + seed, crashes() / 20, Faults::default(), true);
        println!("seed {seed}: {outcome:?}");
        assert_eq!((outcome.lost, outcome.twice, outcome.refused_starts), (0, 0, 0), "seed {seed}");
        total.acknowledged += outcome.acknowledged;
        total.checkpoints += outcome.checkpoints;
        total.forgotten += outcome.forgotten;
        total.restored += outcome.restored;
        total.cut_short += outcome.cut_short;
    }
    println!("{} crashes: {total:?}", crashes());
    let gentle = total.checkpoints < 200 || total.forgotten < 100 || total.restored < 400 || total.cut_short == 0;
    assert!(!gentle, "the crashes were too gentle: {total:?}");
    let lying = crash_again_and_again(1, 100, Faults { syncs_lie: true, ..Faults::default() }, true);
    assert!(lying.lost + lying.refused_starts > 20, "without syncs something is lost: {lying:?}");
}

/// The first test would notice a log that does not sync.
#[test]
fn without_syncs_pushes_are_lost() {
    let outcome = crash_again_and_again(1, 100, Faults { syncs_lie: true, ..Faults::default() }, false);
    println!("{outcome:?}");
    assert!(outcome.lost + outcome.refused_starts > 20, "{outcome:?}");
}
