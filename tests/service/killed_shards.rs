//! Shards are killed at any moment, under pushes of several clients and while checkpoints are made, and start again: every
//! push that was acknowledged is in, none is in twice, and the state is what it would be had nobody been killed.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hotrow::client::{Client, Options};
use hotrow::durability::checkpoint::{self, CheckpointStore, ClusterIdentity, From};
use hotrow::durability::{self, DataFolder, Identity, LocalFolder, LogOptions, SyncPolicy};
use hotrow::{
    CacheBudget, Change, Engine, EngineConfig, Initializer, Lsn, Optimizer, Precision, Pull, Push, TableSpec,
};

use crate::cluster::{Shard, free_address, hotrow};
use crate::random::Random;

const CLIENTS: u64 = 4;
/// Keys that all clients push to, of a table that is rounded.
const SHARED: u64 = 2000;
const DIM: usize = 8;

/// Each push adds a number of its own to a key of its own: the judge of what was applied, and how often.
fn counts() -> TableSpec {
    let spec = TableSpec::hashed("count", 1).precision(Precision::F32).optimizer(Optimizer::Sgd, 1.0);
    spec.initializer(Initializer::Zeros)
}

/// Rounded stochastically, all the time: its cache holds few of its rows.
fn rounded() -> TableSpec {
    TableSpec::hashed("low", DIM).precision(Precision::Int8).cache(CacheBudget::Rows(256))
}

fn own_key(client: u64, number: u64) -> u64 {
    client << 40 | number
}

/// Pushes until told to stop; returns how many, all of them acknowledged.
async fn train(client: Client, id: u64, seed: u64, stop: Arc<AtomicBool>) -> u64 {
    let mut random = Random(seed ^ id);
    let mut number = 0;
    let mut pending = std::collections::VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let keys: Vec<u64> = (0..20).map(|_| random.below(SHARED)).collect();
        let gradients = random.row(keys.len() * DIM, 1.0);
        let pushes = [
            Push { table: "count", keys: &[own_key(id, number)], gradients: &[-(number as f32)], ..Push::default() },
            Push { table: "low", keys: &keys, gradients: &gradients, ..Push::default() },
        ];
        pending.push_back(client.push_later(&pushes).await.unwrap());
        if pending.len() > random.below(8) as usize {
            pending.pop_front().unwrap().done().await.unwrap();
        }
    }
    for pending in pending {
        pending.done().await.unwrap();
    }
    client.close().await;
    number
}

/// Keeps every segment of a shard's log by a second name: checkpoints let the first one go.
fn archive(log: &Path, kept: &Path) {
    let Ok(names) = std::fs::read_dir(log) else { return };
    for name in names.flatten() {
        let (from, to) = (name.path(), kept.join(name.file_name()));
        let number = |path: &Path| std::fs::metadata(path).map(|file| file.ino()).ok();
        // A segment that got no head before the kill is made again.
        if number(&to).is_some() && number(&from).is_some() && number(&from) != number(&to) {
            std::fs::remove_file(&to).unwrap();
        }
        // It may be gone by now, and then it was kept before.
        let _ = std::fs::hard_link(&from, &to);
    }
}

/// An engine that has seen all changes of a shard, one after the other, and was never killed or saved.
fn undisturbed(identity: &Identity, kept: &Path, owned: Vec<u32>) -> Engine {
    let engine = Engine::new(EngineConfig { owned: Some(owned), threads: 1, ..EngineConfig::default() }).unwrap();
    let options = LogOptions { sync: SyncPolicy::Always, segment_bytes: 1 << 30 };
    let mut apply = |change: &Change<'_>| engine.apply(change);
    let log = Arc::new(LocalFolder::new(kept).unwrap());
    durability::recover(log, identity.tag(), options, Lsn(0), &mut apply, &mut |_| {}).unwrap();
    engine
}

/// What a checkpoint holds of a shard.
async fn restored(store: &CheckpointStore, cluster: &ClusterIdentity, owned: Vec<u32>) -> Engine {
    let engine = Engine::new(EngineConfig { owned: Some(owned.clone()), ..EngineConfig::default() }).unwrap();
    let plan = checkpoint::plan(store, cluster, &owned, &From::Newest).await.unwrap().unwrap();
    checkpoint::load(store, &engine, &plan, &BTreeMap::new(), &mut |_| {}).await.unwrap();
    engine
}

/// Saves again and again until told to stop. Returns how many checkpoints were made, and how many came to nothing.
async fn save(addresses: [String; 2], stop: Arc<AtomicBool>) -> (u32, u32) {
    let options = Options { timeout: Duration::from_secs(2), ..Options::default() };
    let (mut made, mut failed) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let Ok(client) = Client::connect_with(&addresses, options.clone()).await else { continue };
        match client.save_checkpoint("", (made + failed) % 4 != 0, |_, _| {}).await {
            Ok(_) => made += 1,
            Err(_) => failed += 1,
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (made, failed)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_shards_are_killed() {
    let (seed, kills) = (crate::seed(), 20 * crate::scale().min(10));
    let mut random = Random(seed);
    let addresses = [free_address(), free_address()];
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (saved, kept) = (tempfile::tempdir().unwrap(), [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()]);
    let (list, checkpoints) = (addresses.join(","), saved.path().to_str().unwrap());
    let start = async |number: usize| {
        let data_dir = folders[number].path().to_str().unwrap();
        let number_text = number.to_string();
        let flags = ["--shards", &list, "--shard", &number_text, "--data-dir", data_dir, "--segment", "1MiB"];
        Shard::start(&addresses[number], &[&flags[..], &["--checkpoints", checkpoints]].concat()).await
    };
    let mut shards = [start(0).await, start(1).await];
    let options = Options { timeout: Duration::from_secs(60), ..Options::default() };
    let connect = async || Client::connect_with(&addresses, options.clone()).await.unwrap();
    let judge = connect().await;
    judge.create_table(&counts()).await.unwrap();
    judge.create_table(&rounded()).await.unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let archiver = {
        let logs: Vec<_> =
            folders.iter().zip(&kept).map(|(f, k)| (f.path().join("log"), k.path().to_owned())).collect();
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                logs.iter().for_each(|(log, kept)| archive(log, kept));
                std::thread::sleep(Duration::from_millis(2));
            }
        })
    };
    let saving = tokio::spawn(save(addresses.clone(), Arc::clone(&stop)));
    let mut clients = Vec::new();
    for id in 1..=CLIENTS {
        clients.push(tokio::spawn(train(connect().await, id, seed, Arc::clone(&stop))));
    }
    let begun = Instant::now();
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(20 + random.below(300))).await;
        let which = random.below(2) as usize;
        shards[which].kill();
        shards[which] = start(which).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut pushes = Vec::new();
    for client in clients {
        pushes.push(client.await.unwrap());
    }
    let (made, failed) = saving.await.unwrap();
    archiver.join().unwrap();
    println!(
        "seed {seed}: {kills} kills in {:?}, {} pushes acknowledged, {made} checkpoints made and {failed} cut short",
        begun.elapsed(),
        pushes.iter().sum::<u64>()
    );
    assert!(pushes.iter().all(|&pushes| pushes >= u64::from(kills)), "too few pushes to mean anything: {pushes:?}");
    assert!(made >= kills / 4 && failed > 0, "too few checkpoints to mean anything: {made}, {failed}");

    for (id, pushes) in (1..).zip(&pushes) {
        let keys: Vec<u64> = (1..=*pushes).map(|number| own_key(id, number)).collect();
        let rows = judge.pull(&[Pull { table: "count", keys: &keys }]).await.unwrap();
        for (number, row) in (1..).zip(rows) {
            assert_eq!(row, number as f32, "push {number} of client {id} was not applied once");
        }
    }
    let topology = judge.topology();
    judge.close().await;
    for number in 0..2 {
        shards[number].check();
        shards[number].kill();
        archive(&folders[number].path().join("log"), kept[number].path());
    }
    // What is there, whole: rows, cache, recency, rounding counters, clients. Both folders become a checkpoint.
    let identities = folders.each_ref().map(|folder| DataFolder::existing(folder.path()).unwrap().1);
    let paths = folders.each_ref().map(|folder| folder.path().to_str().unwrap());
    let arguments =
        ["checkpoint", "save", "--checkpoints", checkpoints, "--data-dir", paths[0], "--data-dir", paths[1]];
    let output = hotrow(&arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let store = CheckpointStore::open(checkpoints).unwrap();
    for number in 0..2 {
        let owned = topology.owned_by(number as u32);
        let never_killed = undisturbed(&identities[number], kept[number].path(), owned.clone());
        let killed = restored(&store, &identities[number].cluster(), owned).await;
        assert_eq!(killed.last_lsn(), never_killed.last_lsn(), "shard {number}");
        assert_eq!(killed.digests(), never_killed.digests(), "shard {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_folder_belongs_to_one_shard() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().to_str().unwrap();
    let shard = Shard::start(&free_address(), &["--data-dir", data_dir]).await;
    let refused = |flags: &[&str]| {
        let address = free_address();
        let arguments = [&["serve", "--listen", &address, "--http", "", "--data-dir", data_dir], flags].concat();
        let output = hotrow(&arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let error = refused(&[]);
    assert!(error.contains("in use by another process"), "{error}");
    drop(shard);
    let error = refused(&["--seed", "5"]);
    assert!(error.contains("seed 0") && error.contains("seed 5"), "{error}");
    let error = refused(&["--sync", "sometimes"]);
    assert!(error.contains("always, interval or never"), "{error}");
    // Another address is fine.
    drop(Shard::start(&free_address(), &["--data-dir", data_dir, "--sync", "interval"]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_log_is_refused_and_mended_by_the_command_in_the_message() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().to_str().unwrap();
    let shard = Shard::start(&free_address(), &["--data-dir", data_dir]).await;
    let client = Client::connect(&shard.address).await.unwrap();
    client.create_table(&counts()).await.unwrap();
    for number in 1..=10u64 {
        let (keys, gradients) = ([number], [-(number as f32)]);
        client.push(&[Push { table: "count", keys: &keys, gradients: &gradients, ..Push::default() }]).await.unwrap();
    }
    drop(shard);
    let segment = folder.path().join("log").join("00000000000000000001.log");
    let mut bytes = std::fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&segment, &bytes).unwrap();

    let output =
        hotrow(&["serve", "--listen", &free_address(), "--http", "", "--data-dir", data_dir]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("00000000000000000001.log: damaged at byte"), "{error}");
    let verify = hotrow(&["log", "verify", "--data-dir", data_dir]).output().unwrap();
    assert!(!verify.status.success());
    assert_eq!(std::fs::read(&segment).unwrap(), bytes, "nothing was changed");

    let from = error.split("--from ").nth(1).unwrap().split_whitespace().next().unwrap();
    let wrong = hotrow(&["log", "cut", "--from", "1", "--data-dir", data_dir]).output().unwrap();
    assert!(!wrong.status.success());
    let cut = hotrow(&["log", "cut", "--from", from, "--data-dir", data_dir]).output().unwrap();
    assert!(cut.status.success(), "{}", String::from_utf8_lossy(&cut.stderr));
    let verify = hotrow(&["log", "verify", "--data-dir", data_dir, "--output", "json"]).output().unwrap();
    let verified: serde_json::Value = serde_json::from_slice(&verify.stdout).unwrap();
    let last = from.parse::<u64>().unwrap() - 1;
    assert_eq!(verified["last"], last, "{verified}");
    let shard = Shard::start(&free_address(), &["--data-dir", data_dir]).await;
    let client = Client::connect(&shard.address).await.unwrap();
    let keys: Vec<u64> = (1..=10).collect();
    let rows = client.pull(&[Pull { table: "count", keys: &keys }]).await.unwrap();
    let kept = rows.iter().filter(|&&row| row != 0.0).count();
    assert!(kept > 0 && kept < 10, "{rows:?}");
    for (key, row) in keys.iter().zip(&rows) {
        assert_eq!(*row, if *key <= kept as u64 { *key as f32 } else { 0.0 });
    }
}
