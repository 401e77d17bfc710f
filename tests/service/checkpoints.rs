//! Checkpoints of real clusters: any number of shards takes over from any other, nothing is given up unless somebody says
//! so, and every refusal names the command that mends it.

use std::path::Path;

use hotrow::client::Client;
use hotrow::{CacheBudget, Optimizer, Policy, Precision, Push, Quantizer, Row, TableSpec};
use tempfile::TempDir;

use crate::cluster::{Cluster, Shard, free_address, hotrow};
use crate::random::{Random, key};

const KEYS: u64 = 200;
const PARTITIONS: &str = "16";

/// Adam, int4 and lfu in one, row-wise Adagrad, int8 and lru in the other.
fn tables() -> [TableSpec; 2] {
    [
        TableSpec::dense("dense", 40_000, 40)
            .precision(Precision::Int4)
            .quantizer(Quantizer::Affine)
            .policy(Policy::Lfu)
            .cache(CacheBudget::Rows(64))
            .optimizer(Optimizer::adam(), 0.01),
        TableSpec::hashed("hashed", 8).precision(Precision::Int8).cache(CacheBudget::Rows(64)),
    ]
}

/// Trains for some steps, from `step` on.
async fn train(client: &Client, random: &mut Random, step: u64, steps: u64) {
    for step in step..step + steps {
        for table in tables() {
            let keys = random.keys(&table, KEYS, 60);
            let gradients = random.row(keys.len() * table.dim, 1.0);
            let push =
                Push { table: &table.name, keys: &keys, gradients: &gradients, step: Some(step), ..Push::default() };
            client.push(&[push]).await.unwrap();
        }
    }
}

/// Everything about every row.
async fn rows(client: &Client) -> Vec<Row> {
    let mut rows = Vec::new();
    for table in tables() {
        for small in 0..KEYS {
            rows.push(client.inspect(&table.name, key(&table, small)).await.unwrap());
        }
    }
    rows
}

/// A cluster with a data folder for each shard, in `folders`, and checkpoints in `saved`.
struct Home {
    folders: TempDir,
    saved: String,
}

impl Home {
    fn new(saved: &Path) -> Home {
        Home { folders: tempfile::tempdir().unwrap(), saved: saved.to_str().unwrap().into() }
    }

    fn data_dir(&self, shard: usize) -> String {
        self.folders.path().join(shard.to_string()).to_str().unwrap().into()
    }

    fn flags(&self, shard: usize, list: &str) -> Vec<String> {
        let (number, data_dir) = (shard.to_string(), self.data_dir(shard));
        let flags = ["--shards", list, "--shard", &number, "--data-dir", &data_dir, "--checkpoints", &self.saved];
        flags.iter().chain(&["--partitions", PARTITIONS]).map(|flag| flag.to_string()).collect()
    }

    async fn start(&self, shards: usize, more: &[&str]) -> Cluster {
        let addresses: Vec<String> = (0..shards).map(|_| free_address()).collect();
        let list = addresses.join(",");
        let mut started = Vec::new();
        for (shard, address) in addresses.iter().enumerate() {
            let flags = self.flags(shard, &list);
            let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
            started.push(Shard::start(address, &flags).await);
        }
        Cluster { shards: started }
    }

    /// What a start says that does not succeed.
    fn refused(&self, shard: usize, shards: usize) -> String {
        let list: Vec<String> = (0..shards).map(|_| free_address()).collect();
        let flags = self.flags(shard, &list.join(","));
        let mut command = hotrow(&["serve", "--listen", &list[shard], "--http", ""]);
        let output = command.args(&flags).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Runs a command that must succeed, or must not. Returns what it says.
fn run(arguments: &[&str], succeeds: bool) -> String {
    let output = hotrow(arguments).output().unwrap();
    let text = String::from_utf8_lossy(if succeeds { &output.stdout } else { &output.stderr }).into_owned();
    assert_eq!(output.status.success(), succeeds, "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

async fn make_tables(client: &Client) {
    for table in tables() {
        client.create_table(&table).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_on_four_shards_and_taken_over_by_one_three_and_eight() {
    let saved = tempfile::tempdir().unwrap();
    let home = Home::new(saved.path());
    let cluster = home.start(4, &[]).await;
    let client = cluster.client().await;
    make_tables(&client).await;
    let mut random = Random(1);
    train(&client, &mut random, 1, 20).await;
    client.save_checkpoint("", false, |_, _| {}).await.unwrap();
    train(&client, &mut random, 21, 5).await;
    let done = client.save_checkpoint("step=25", true, |_, _| {}).await.unwrap();
    assert_eq!((done.sequence, done.complete, done.shards_done), (2, true, 4));
    let before = rows(&client).await;
    assert!(before.iter().any(|row| row.dirty) && before.iter().any(|row| row.stored && !row.cached));
    // Goes on here as well as on the others.
    let at_cut = random.clone();
    train(&client, &mut random, 26, 5).await;
    let expected = rows(&client).await;
    drop(cluster);

    for shards in [1, 3, 8] {
        // Started from what four have saved, in folders of their own.
        let other = Home::new(saved.path());
        let mut cluster = other.start(shards, &[]).await;
        let client = cluster.client().await;
        assert_eq!(rows(&client).await, before, "{shards} shards");
        train(&client, &mut at_cut.clone(), 26, 5).await;
        assert_eq!(rows(&client).await, expected, "{shards} shards go on as if nothing had happened");
        cluster.check();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_number_of_shards_is_refused_while_a_log_is_pending_and_the_command_mends_it() {
    let saved = tempfile::tempdir().unwrap();
    let home = Home::new(saved.path());
    let cluster = home.start(4, &[]).await;
    let client = cluster.client().await;
    make_tables(&client).await;
    let mut random = Random(2);
    train(&client, &mut random, 1, 10).await;
    client.save_checkpoint("", false, |_, _| {}).await.unwrap();
    train(&client, &mut random, 11, 5).await;
    let before = rows(&client).await;
    drop(cluster);

    for shard in 0..3 {
        let error = home.refused(shard, 3);
        assert!(error.contains("it would be lost"), "{error}");
        assert!(error.contains(&format!("shard {shard} of 4")) && error.contains("hotrow checkpoint save"), "{error}");
    }
    // The command, as it stands there, with the folders that a shard cannot know.
    let error = home.refused(0, 3);
    let mut command = error.split("hotrow checkpoint save ").nth(1).unwrap().trim().to_string();
    for shard in 1..4 {
        command = command.replace(&format!("FOLDER-OF-SHARD-{shard}"), &home.data_dir(shard));
    }
    let arguments: Vec<&str> = ["checkpoint", "save"].into_iter().chain(command.split_whitespace()).collect();
    let missing = run(&arguments[..arguments.len() - 2], false);
    assert!(missing.contains("give a --data-dir for each of 0 to 3"), "{missing}");
    assert!(run(&arguments, true).contains("checkpoint 2 is complete"));

    let cluster = home.start(3, &[]).await;
    let client = cluster.client().await;
    assert_eq!(rows(&client).await, before);
    train(&client, &mut random, 16, 3).await;
    let now = rows(&client).await;
    drop(cluster);
    // They are three now, and the log is theirs.
    let cluster = home.start(3, &[]).await;
    assert_eq!(rows(&cluster.client().await).await, now);
    drop(cluster);
    // The fourth folder is not in use any more: started again as one of four it would have old rows, and says so.
    let error = home.refused(0, 4);
    assert!(error.contains("shard 0 of 3"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_with_a_checkpoint_and_the_next_start_has_nothing_to_replay() {
    let saved = tempfile::tempdir().unwrap();
    let home = Home::new(saved.path());
    let mut cluster = home.start(2, &[]).await;
    let client = cluster.client().await;
    make_tables(&client).await;
    let mut random = Random(3);
    train(&client, &mut random, 1, 10).await;
    let before = rows(&client).await;
    for shard in &mut cluster.shards {
        shard.terminate();
        assert!(shard.ended().await.success(), "{}", shard.log());
    }
    for shard in 0..2 {
        let left = std::fs::read_dir(Path::new(&home.data_dir(shard)).join("log")).unwrap().count();
        assert_eq!(left, 0, "shard {shard} has nothing to replay");
    }
    let cluster = home.start(2, &[]).await;
    assert_eq!(rows(&cluster.client().await).await, before);
    for shard in &cluster.shards {
        assert!(shard.log().contains("recovered from the log changes=0"), "{}", shard.log());
    }
    drop(cluster);

    // Each shard has saved itself alone; together they are all there is, and three others can take over.
    let list = run(&["checkpoint", "list", "--checkpoints", &home.saved], true);
    assert!(list.contains("shard 0 of 2") && list.contains("shard 1 of 2"), "{list}");
    let other = Home::new(saved.path());
    let cluster = other.start(3, &[]).await;
    assert_eq!(rows(&cluster.client().await).await, before);
}

/// Without a log a checkpoint is what survives.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_log_a_drain_saves_and_a_start_restores() {
    let saved = tempfile::tempdir().unwrap();
    let checkpoints = saved.path().to_str().unwrap();
    let mut shard = Shard::start(&free_address(), &["--checkpoints", checkpoints]).await;
    let client = Client::connect(&shard.address).await.unwrap();
    make_tables(&client).await;
    train(&client, &mut Random(4), 1, 5).await;
    let before = rows(&client).await;
    shard.terminate();
    assert!(shard.ended().await.success(), "{}", shard.log());
    let shard = Shard::start(&free_address(), &["--checkpoints", checkpoints]).await;
    assert_eq!(rows(&Client::connect(&shard.address).await.unwrap()).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_save_by_themselves_and_old_checkpoints_go() {
    let saved = tempfile::tempdir().unwrap();
    let home = Home::new(saved.path());
    let flags = ["--checkpoint-interval-seconds", "1", "--checkpoint-keep", "2", "--checkpoint-chain", "2"];
    let mut cluster = home.start(2, &[&flags[..], &["--segment", "64KiB"]].concat()).await;
    let client = cluster.client().await;
    make_tables(&client).await;
    let mut random = Random(5);
    let mut step = 1;
    crate::until("there are seven checkpoints", async || {
        train(&client, &mut random, step, 5).await;
        step += 5;
        let list = run(&["checkpoint", "list", "--checkpoints", &home.saved, "--output", "json"], true);
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        list["checkpoints"].as_array().unwrap().iter().any(|checkpoint| checkpoint["checkpoint"] == 7)
    })
    .await;
    // Two are kept, and what they differ from: at most two whole chains of three.
    crate::until("old ones are gone", async || std::fs::read_dir(saved.path()).unwrap().count() <= 6).await;
    // Nobody pushes any more: the next checkpoint has everything, and only the segment that is written to is left.
    let log = Path::new(&home.data_dir(0)).join("log");
    crate::until("the log is short", async || std::fs::read_dir(&log).unwrap().count() <= 1).await;
    let (_, metrics) = cluster.shards[1].get("/metrics").unwrap();
    let last = metrics.lines().find_map(|line| line.strip_prefix("hotrow_checkpoint_last ")?.parse::<u64>().ok());
    assert!(last >= Some(7), "{metrics}");
    cluster.check();
    let before = rows(&client).await;
    drop(cluster);
    let cluster = home.start(2, &[]).await;
    assert_eq!(rows(&cluster.client().await).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn back_to_a_label_and_to_another_cache_when_somebody_says_so() {
    let saved = tempfile::tempdir().unwrap();
    let home = Home::new(saved.path());
    let cluster = home.start(1, &[]).await;
    let client = cluster.client().await;
    make_tables(&client).await;
    let mut random = Random(6);
    train(&client, &mut random, 1, 10).await;
    client.save_checkpoint("step=10", false, |_, _| {}).await.unwrap();
    let then = rows(&client).await;
    train(&client, &mut random, 11, 5).await;
    client.save_checkpoint("step=15", true, |_, _| {}).await.unwrap();
    train(&client, &mut random, 16, 5).await;
    let data_dir = home.data_dir(0);
    let restore = |more: &[&str], succeeds: bool| {
        let arguments = ["checkpoint", "restore", "--checkpoints", &home.saved, "--data-dir", &data_dir];
        run(&[&arguments[..], more].concat(), succeeds)
    };
    assert!(restore(&["--label", "step=10"], false).contains("in use by another process"));
    drop(cluster);

    let error = restore(&["--label", "step=10"], false);
    assert!(error.contains("--discard-log") && error.contains("hotrow checkpoint save"), "{error}");
    assert!(restore(&["--label", "step=11"], false).contains("no complete checkpoint with the label 'step=11'"));
    assert!(restore(&["9"], false).contains("no checkpoint 9"));
    assert!(restore(&["--label", "step=10", "--cache", "nobody=5%"], false).contains("no table 'nobody'"));
    let said = restore(&["--label", "step=10", "--discard-log"], true);
    assert!(said.contains("the log that was there is in") && said.contains("from checkpoint 1 now"), "{said}");
    let cluster = home.start(1, &[]).await;
    let client = cluster.client().await;
    assert_eq!(rows(&client).await, then);
    // What is trained from here survives, and the checkpoint that was given up does not come back.
    train(&client, &mut random, 11, 2).await;
    let now = rows(&client).await;
    drop(cluster);
    let cluster = home.start(1, &[]).await;
    assert_eq!(rows(&cluster.client().await).await, now);
    drop(cluster);

    restore(&["--label", "step=10", "--discard-log", "--cache", "hashed=1000rows", "--cache", "dense=0%"], true);
    for _ in 0..2 {
        // Twice: a start before the next checkpoint does the same again.
        let cluster = home.start(1, &[]).await;
        let client = cluster.client().await;
        let specs: Vec<CacheBudget> = [client.describe_table("dense").await, client.describe_table("hashed").await]
            .map(|table| table.unwrap().0.cache)
            .to_vec();
        assert_eq!(specs, [CacheBudget::Percent(0.0), CacheBudget::Rows(1000)]);
        let now = rows(&client).await;
        let (dense, hashed) = (0..KEYS as usize, KEYS as usize..2 * KEYS as usize);
        assert!(now[dense.clone()].iter().all(|row| !row.cached));
        for (row, then) in now[hashed.clone()].iter().zip(&then[hashed]) {
            assert_eq!((&row.weights, &row.state, row.cached), (&then.weights, &then.state, then.cached));
        }
        for (row, then) in now[dense.clone()].iter().zip(&then[dense]).filter(|(_, then)| !then.dirty) {
            assert_eq!((&row.weights, &row.state), (&then.weights, &then.state));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_is_known_after_a_restore() {
    let saved = tempfile::tempdir().unwrap();
    let home = Home::new(saved.path());
    let addresses = [free_address(), free_address()];
    let start = async |home: &Home, shard: usize| {
        let flags = home.flags(shard, &addresses.join(","));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Shard::start(&addresses[shard], &flags).await
    };
    let shards = [start(&home, 0).await, start(&home, 1).await];
    let client = Client::connect(&addresses[0]).await.unwrap();
    make_tables(&client).await;
    let table = &tables()[1];
    let keys: Vec<u64> = (0..50).map(|small| key(table, small)).collect();
    let gradients = vec![0.5; keys.len() * table.dim];
    let push = [Push { table: "hashed", keys: &keys, gradients: &gradients, ..Push::default() }];
    client.push(&push).await.unwrap();
    client.save_checkpoint("", false, |_, _| {}).await.unwrap();
    let before = rows(&client).await;
    drop(shards);
    // All folders are lost; the checkpoint remembers the client with the rows.
    let other = Home::new(saved.path());
    let _shards = [start(&other, 0).await, start(&other, 1).await];
    // Its first push, sent again.
    client.push_again(1, &push).await.unwrap();
    assert_eq!(rows(&client).await, before, "applied once");
    client.push(&push).await.unwrap();
    assert_ne!(rows(&client).await, before, "and the next one is new");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_does_not_come_back() {
    let saved = tempfile::tempdir().unwrap();
    let home = Home::new(saved.path());
    let cluster = home.start(2, &[]).await;
    let client = cluster.client().await;
    make_tables(&client).await;
    let mut random = Random(7);
    train(&client, &mut random, 1, 5).await;
    client.save_checkpoint("good", false, |_, _| {}).await.unwrap();
    train(&client, &mut random, 6, 30).await;
    client.save_checkpoint("bad", true, |_, _| {}).await.unwrap();
    drop(cluster);
    for shard in 0..2 {
        let data_dir = home.data_dir(shard);
        let arguments = ["--label", "good", "--discard-log", "--checkpoints", &home.saved, "--data-dir", &data_dir];
        run(&[&["checkpoint", "restore"], &arguments[..]].concat(), true);
    }
    let cluster = home.start(2, &[]).await;
    let client = cluster.client().await;
    train(&client, &mut random, 6, 3).await;
    let before = rows(&client).await;
    drop(cluster);
    // The checkpoint that was given up has later places. It is not what this log went through, and covers nothing of it.
    let error = home.refused(0, 3);
    assert!(error.contains("it would be lost"), "{error}");
    let cluster = home.start(2, &[]).await;
    let client = cluster.client().await;
    assert_eq!(rows(&client).await, before);
    client.save_checkpoint("", true, |_, _| {}).await.unwrap();
    drop(cluster);
    assert_eq!(rows(&home.start(3, &[]).await.client().await).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_of_another_life_are_refused() {
    let saved = tempfile::tempdir().unwrap();
    let earlier = Home::new(saved.path());
    let cluster = earlier.start(1, &[]).await;
    let client = cluster.client().await;
    make_tables(&client).await;
    train(&client, &mut Random(8), 1, 30).await;
    client.save_checkpoint("", false, |_, _| {}).await.unwrap();
    drop(cluster);

    // A cluster of the same name that has never seen them, with fewer changes.
    let home = Home::new(saved.path());
    let data_dir = home.data_dir(0);
    let flags = ["--data-dir", &data_dir, "--partitions", PARTITIONS];
    let shard = Shard::start(&free_address(), &flags).await;
    let client = Client::connect(&shard.address).await.unwrap();
    make_tables(&client).await;
    train(&client, &mut Random(9), 1, 5).await;
    let before = rows(&client).await;
    drop(shard);
    let error = home.refused(0, 1);
    assert!(error.contains("does not come from the log there") && error.contains("--discard-log"), "{error}");
    let shard = Shard::start(&free_address(), &flags).await;
    assert_eq!(rows(&Client::connect(&shard.address).await.unwrap()).await, before, "nothing was lost by asking");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_save_that_does_not_begin_is_counted() {
    let saved = tempfile::tempdir().unwrap();
    let place = saved.path().to_str().unwrap();
    let shard = Shard::start(&free_address(), &["--cluster", "ours", "--checkpoints", place]).await;
    let other = Shard::start(&free_address(), &["--cluster", "other", "--checkpoints", place]).await;
    let save = async |shard: &Shard| {
        Client::connect(&shard.address).await.unwrap().save_checkpoint("", false, |_, _| {}).await
    };
    save(&other).await.unwrap();
    save(&shard).await.unwrap_err();
    let (_, metrics) = shard.get("/metrics").unwrap();
    assert!(metrics.contains("\nhotrow_checkpoint_failures_total 1\n"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_cache_after_a_drain_keeps_everything_and_so_does_the_next_drain() {
    let saved = tempfile::tempdir().unwrap();
    let home = Home::new(saved.path());
    let drained = async |mut cluster: Cluster| {
        for shard in &mut cluster.shards {
            shard.terminate();
            assert!(shard.ended().await.success(), "{}", shard.log());
        }
    };
    let cluster = home.start(2, &[]).await;
    let client = cluster.client().await;
    make_tables(&client).await;
    let mut random = Random(10);
    train(&client, &mut random, 1, 5).await;
    client.save_checkpoint("", false, |_, _| {}).await.unwrap();
    train(&client, &mut random, 6, 10).await;
    let before = rows(&client).await;
    drained(cluster).await;
    for shard in 0..2 {
        let data_dir = home.data_dir(shard);
        let arguments = ["--cache", "hashed=16rows", "--checkpoints", &home.saved, "--data-dir", &data_dir];
        // Without a number it is what a start would take: what each shard saved when it was drained.
        run(&[&["checkpoint", "restore"], &arguments[..]].concat(), true);
        let older = run(&[&["checkpoint", "restore", "1"], &arguments[..]].concat(), false);
        assert!(older.contains("--discard-log"), "{older}");
    }
    let cluster = home.start(2, &[]).await;
    let client = cluster.client().await;
    let now = rows(&client).await;
    assert!(now[KEYS as usize..].iter().filter(|row| row.cached).count() <= 16);
    for (row, then) in now.iter().zip(&before).filter(|(row, then)| row.cached || !then.dirty) {
        assert_eq!((&row.weights, &row.state), (&then.weights, &then.state));
    }
    // Nothing is pushed: the rows that were rounded on the way in are all that changed.
    client.create_table(&TableSpec::dense("other", 10, 2)).await.unwrap();
    drained(cluster).await;
    assert_eq!(rows(&home.start(2, &[]).await.client().await).await, now);
}
