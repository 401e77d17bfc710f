//! Shards are restarted one after the other (SIGTERM, wait, start), under pushes and pulls of several clients: no call
//! fails, no push is lost or applied twice, and no pull shows a row from before a push that was acknowledged.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hotrow::client::Client;
use hotrow::{CacheBudget, Initializer, Optimizer, Precision, Pull, Push, TableSpec};

use crate::cluster::{Shard, free_address};
use crate::random::Random;

const SHARDS: usize = 3;
const CLIENTS: u64 = 4;
/// Keys of each client's own in a push: some for every shard.
const OWN: u64 = 12;
/// Keys that all clients push to, of a table that is rounded.
const SHARED: u64 = 2000;
const DIM: usize = 8;
/// Pushes that a client gets through, at least, before the next shard is told to end.
const BETWEEN: u64 = 20;

/// A push adds its number to keys that no other push has: the judge of what was applied, and how often.
fn counts() -> TableSpec {
    let spec = TableSpec::hashed("count", 1).precision(Precision::F32).optimizer(Optimizer::Sgd, 1.0);
    spec.initializer(Initializer::Zeros)
}

/// Rounded stochastically, all the time: its cache holds few of its rows.
fn rounded() -> TableSpec {
    TableSpec::hashed("low", DIM).precision(Precision::Int8).cache(CacheBudget::Rows(256))
}

fn own_keys(client: u64, number: u64) -> Vec<u64> {
    (0..OWN).map(|part| client << 40 | number << 8 | part).collect()
}

/// Whether the rows of a push have its number, once.
async fn check(client: &Client, id: u64, number: u64) {
    let rows = client.pull(&[Pull { table: "count", keys: &own_keys(id, number) }]).await.unwrap();
    assert_eq!(rows, vec![number as f32; OWN as usize], "push {number} of client {id} was not applied once");
}

/// A trainer that knows nothing of restarts: pushes, some of them side by side, and pulls until told to stop. Returns how
/// many pushes were acknowledged: all.
async fn train(client: Client, id: u64, seed: u64, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) -> u64 {
    let mut random = Random(seed ^ id);
    let mut pending = VecDeque::new();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let keys: Vec<u64> = (0..20).map(|_| random.below(SHARED)).collect();
        let gradients = random.row(keys.len() * DIM, 1.0);
        let (own, numbers) = (own_keys(id, number), [-(number as f32); OWN as usize]);
        let pushes = [
            Push { table: "count", keys: &own, gradients: &numbers, ..Push::default() },
            Push { table: "low", keys: &keys, gradients: &gradients, ..Push::default() },
        ];
        pending.push_back((number, client.push_later(&pushes).await.unwrap()));
        while pending.len() > random.below(8) as usize {
            let (number, push) = pending.pop_front().unwrap();
            push.done().await.unwrap();
            done.fetch_add(1, Ordering::Relaxed);
            if random.below(4) == 0 {
                check(&client, id, number).await;
            }
        }
    }
    for (_, push) in pending {
        push.done().await.unwrap();
    }
    client.close().await;
    number
}

/// An evaluation: reads, on connections of its own, until told to stop.
async fn read(client: Client, seed: u64, stop: Arc<AtomicBool>) -> u64 {
    let mut random = Random(seed);
    let mut pulls = 0;
    while !stop.load(Ordering::Relaxed) {
        let keys: Vec<u64> = (0..50).map(|_| random.below(SHARED)).collect();
        client.pull(&[Pull { table: "low", keys: &keys }]).await.unwrap();
        pulls += 1;
    }
    pulls
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_loses_nothing_and_fails_no_call() {
    let (seed, rounds) = (crate::seed(), 2 * crate::scale().min(4));
    let mut random = Random(seed);
    let addresses: [String; SHARDS] = std::array::from_fn(|_| free_address());
    let folders: [_; SHARDS] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let saved = tempfile::tempdir().unwrap();
    let (list, checkpoints) = (addresses.join(","), saved.path().to_str().unwrap());
    let start = async |number: usize, on_drain: bool| {
        let data_dir = folders[number].path().to_str().unwrap();
        let (number_text, on_drain) = (number.to_string(), format!("--checkpoint-on-drain={on_drain}"));
        let flags = ["--shards", &list, "--shard", &number_text, "--data-dir", data_dir, "--checkpoints", checkpoints];
        Shard::start(&addresses[number], &[&flags[..], &[&on_drain]].concat()).await
    };
    let mut shards = Vec::new();
    for number in 0..SHARDS {
        shards.push(start(number, true).await);
    }
    // As a trainer gets it: the ordinary deadline, and one address to begin with.
    let connect = async || Client::connect(&addresses[0]).await.unwrap();
    let judge = connect().await;
    judge.create_table(&counts()).await.unwrap();
    judge.create_table(&rounded()).await.unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let done: Vec<Arc<AtomicU64>> = (0..CLIENTS).map(|_| Arc::default()).collect();
    let mut trainers = Vec::new();
    for (id, done) in (1..).zip(&done) {
        trainers.push(tokio::spawn(train(connect().await, id, seed, Arc::clone(&stop), Arc::clone(done))));
    }
    let reader = tokio::spawn(read(connect().await, seed, Arc::clone(&stop)));
    let progress = async |trainers: &[tokio::task::JoinHandle<u64>]| {
        let before: Vec<u64> = done.iter().map(|done| done.load(Ordering::Relaxed)).collect();
        let all = async || {
            // One that has failed says why at the end.
            let failed = trainers.iter().any(|trainer| trainer.is_finished());
            failed || done.iter().zip(&before).all(|(done, before)| done.load(Ordering::Relaxed) >= before + BETWEEN)
        };
        crate::until("every client gets pushes through", all).await;
    };
    // The end of a shard is a checkpoint in one round, and in the next its log is all there is.
    for round in 0..rounds {
        for (number, shard) in shards.iter_mut().enumerate() {
            progress(&trainers).await;
            shard.terminate();
            let ended = shard.ended().await;
            let log = shard.log();
            assert!(ended.success(), "shard {number} ended with {ended}:\n{log}");
            assert_eq!(log.contains("saving before the end"), round % 2 == 0, "shard {number}:\n{log}");
            // A new pod takes its time; shorter than a client's deadline.
            tokio::time::sleep(Duration::from_millis(random.below(500 * u64::from(crate::scale().min(40))))).await;
            *shard = start(number, round % 2 == 1).await;
            let replayed = !shard.log().contains("changes=0");
            assert_eq!(replayed, round % 2 == 1, "shard {number}:\n{}", shard.log());
        }
    }
    progress(&trainers).await;
    stop.store(true, Ordering::Relaxed);
    let mut pushes = Vec::new();
    for trainer in trainers {
        pushes.push(trainer.await.unwrap());
    }
    let pulls = reader.await.unwrap();
    println!(
        "{rounds} rounds over {SHARDS} shards: {} pushes and {pulls} pulls, none failed",
        pushes.iter().sum::<u64>()
    );
    for (id, pushes) in (1..).zip(pushes) {
        let keys: Vec<u64> = (1..=pushes).flat_map(|number| own_keys(id, number)).collect();
        let rows = judge.pull(&[Pull { table: "count", keys: &keys }]).await.unwrap();
        for (number, rows) in (1..).zip(rows.chunks(OWN as usize)) {
            assert_eq!(rows, [number as f32; OWN as usize], "push {number} of client {id} was not applied once");
        }
    }
    for shard in &mut shards {
        shard.check();
    }
}
