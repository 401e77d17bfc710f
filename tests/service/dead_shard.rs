//! A shard that is gone: its keys fail in time with an error that names it, and the other shard's keys go on.

use std::time::{Duration, Instant};

use hotrow::client::{Client, Options};
use hotrow::{Precision, Pull, Push, TableSpec};

use crate::cluster::Cluster;

const TIMEOUT: Duration = Duration::from_secs(2);

fn options() -> Options {
    Options { timeout: TIMEOUT, ..Options::default() }
}

/// Dense keys go to partition `key % 128`, and the first half of the partitions is shard 0's.
const KEYS: [u64; 2] = [5, 100];

async fn push(client: &Client, key: u64) -> hotrow::client::Result<()> {
    client.push(&[Push { table: "t", keys: &[key], gradients: &[1.0; 4], ..Push::default() }]).await
}

async fn pull(client: &Client, key: u64) -> hotrow::client::Result<Vec<f32>> {
    client.pull(&[Pull { table: "t", keys: &[key] }]).await
}

async fn without(dead: usize) {
    let mut cluster = Cluster::start(2, &[]).await;
    let client = cluster.client_with(options()).await;
    client.create_table(&TableSpec::dense("t", 200, 4).precision(Precision::F32)).await.unwrap();
    for key in KEYS {
        push(&client, key).await.unwrap();
        pull(&client, key).await.unwrap();
    }
    let before = pull(&client, KEYS[1 - dead]).await.unwrap();
    cluster.shards[dead].kill();

    let named = format!("shard {dead} ({})", cluster.shards[dead].address);
    let begun = Instant::now();
    let error = pull(&client, KEYS[dead]).await.unwrap_err().to_string();
    assert!(error.contains(&named) && error.contains("did not answer within"), "{error}");
    let waited = begun.elapsed();
    assert!(waited < TIMEOUT * 2, "the deadline was {TIMEOUT:?}, the error came after {waited:?}");
    let begun = Instant::now();
    let error = push(&client, KEYS[dead]).await.unwrap_err().to_string();
    assert!(error.contains(&named) && error.contains("push_again"), "{error}");
    let waited = begun.elapsed();
    assert!(waited < TIMEOUT * 2, "the deadline was {TIMEOUT:?}, the error came after {waited:?}");
    // Both together fail too, and say which.
    let error = client.pull(&[Pull { table: "t", keys: &KEYS }]).await.unwrap_err().to_string();
    assert!(error.contains(&named), "{error}");

    // While one push waits for the dead shard, pushes to the other go on.
    let waiting = [Push { table: "t", keys: &[KEYS[dead]], gradients: &[1.0; 4], ..Push::default() }];
    let waiting = client.push_later(&waiting).await.unwrap();
    for _ in 0..5 {
        push(&client, KEYS[1 - dead]).await.unwrap();
    }
    waiting.done().await.unwrap_err();
    assert_ne!(pull(&client, KEYS[1 - dead]).await.unwrap(), before);

    // A client that comes now knows no table yet; whichever shard is left tells it.
    let addresses: Vec<&String> = cluster.shards.iter().map(|shard| &shard.address).collect();
    let newcomer = Client::connect_with(&addresses, options()).await.unwrap();
    push(&newcomer, KEYS[1 - dead]).await.unwrap();
    pull(&newcomer, KEYS[1 - dead]).await.unwrap();
    let error = pull(&newcomer, KEYS[dead]).await.unwrap_err().to_string();
    assert!(error.contains(&named), "{error}");
    cluster.shards[1 - dead].check();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_shard_dies() {
    without(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_shard_dies() {
    without(0).await;
}
