//! A server that is told to end finishes what it has, refuses what is new, and loses nothing that it acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hotrow::client::{Client, Options, PendingPush};
use hotrow::proto::{PullRequest, PullResponse, TablePull};
use hotrow::{Initializer, Optimizer, Precision, Push, TableSpec};
use prost::Message as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::cluster::{Cluster, hotrow, packed};
use crate::raw::{Raw, framed};

/// The value of a metric, all its labels added up.
fn metric(page: &str, name: &str) -> f64 {
    let lines = page.lines().filter(|line| line.starts_with(name));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn spec() -> TableSpec {
    TableSpec::dense("t", 10, 1)
        .precision(Precision::F32)
        .optimizer(Optimizer::Sgd, 1.0)
        .initializer(Initializer::Zeros)
}

/// A client that gives up soon.
async fn impatient(cluster: &Cluster) -> Client {
    cluster.client_with(Options { timeout: Duration::from_secs(2), ..Options::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_was_applied() {
    let mut cluster = Cluster::start(1, &[]).await;
    let client = impatient(&cluster).await;
    client.create_table(&spec()).await.unwrap();
    let mut data = cluster.shards[0].data();
    let request = || PullRequest {
        tables: vec![TablePull { table: "t".into(), keys: packed(&[3u64]), ..Default::default() }],
        ..Default::default()
    };
    data.pull(request()).await.unwrap();

    // A pull of which only a part has come yet: the server has to wait for the rest.
    let whole = framed(&request().encode_to_vec());
    let (rest, body) = tokio::sync::mpsc::channel::<Bytes>(2);
    rest.send(whole.slice(..7)).await.unwrap();
    let mut raw = Raw::connect(&cluster.shards[0].address).await;
    let slow =
        tokio::spawn(async move { raw.post_slowly("/hotrow.v1.Data/Pull", &[], ReceiverStream::new(body)).await });

    // A client that pushes as fast as it can.
    let acknowledged = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (counter, stopped) = (Arc::clone(&acknowledged), Arc::clone(&stop));
    let pushing = tokio::spawn(async move {
        let gradients = [-1.0];
        let (sender, mut pending) = tokio::sync::mpsc::channel(64);
        let confirming = tokio::spawn(async move {
            while let Some(push) = pending.recv().await {
                let push: PendingPush = push;
                counter.fetch_add(u64::from(push.done().await.is_ok()), Ordering::Relaxed);
            }
        });
        loop {
            let push = Push { table: "t", keys: &[3], gradients: &gradients, ..Push::default() };
            let Ok(pushed) = client.push_later(&[push]).await else { break };
            if sender.send(pushed).await.is_err() || stopped.load(Ordering::Relaxed) {
                break;
            }
        }
        drop(sender);
        confirming.await.unwrap();
    });
    crate::until("pushes are acknowledged", async || acknowledged.load(Ordering::Relaxed) > 200).await;

    cluster.shards[0].terminate();
    let ready = async || cluster.shards[0].get("/readyz").is_some_and(|(code, _)| code == 503);
    crate::until("the server says that it is not ready", ready).await;
    let health = hotrow(&["health", "--http", &cluster.shards[0].http]).output().unwrap();
    assert!(!health.status.success());
    assert!(String::from_utf8_lossy(&health.stderr).contains("not ready: draining"), "{health:?}");
    for mut data in [data, cluster.shards[0].data()] {
        // A request that meets the end of its connection half-way gets another code from the library, once.
        let refused = async || data.pull(request()).await.unwrap_err().code() == Code::Unavailable;
        crate::until("new requests are refused as unavailable", refused).await;
    }

    // No answer comes any more; those that came were of pushes that were applied.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let acknowledged_now = acknowledged.load(Ordering::Relaxed);
    let (_, page) = cluster.shards[0].get("/metrics").unwrap();
    let applied = metric(&page, "hotrow_updated_rows_total") as u64;
    assert!(applied >= acknowledged_now, "{applied} were applied, {acknowledged_now} acknowledged");
    assert!(applied <= acknowledged_now + 32, "{applied} were applied, {acknowledged_now} acknowledged");
    assert!(cluster.shards[0].is_alive(), "a request is under way");

    // The pull that had begun is answered, with all that was applied.
    rest.send(whole.slice(7..)).await.unwrap();
    drop(rest);
    let answer = slow.await.unwrap().unwrap();
    assert_eq!(answer.status.code(), Code::Ok, "{}", answer.status);
    let answer = PullResponse::decode(&answer.body[5..]).unwrap();
    assert_eq!(bytemuck::pod_read_unaligned::<f32>(&answer.rows), applied as f32);
    assert!(cluster.shards[0].ended().await.success(), "{}", cluster.shards[0].log());
    stop.store(true, Ordering::Relaxed);
    pushing.await.unwrap();
    assert_eq!(acknowledged.load(Ordering::Relaxed), acknowledged_now);
    assert!(!cluster.shards[0].log().contains("panicked"));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_watches_does_not_keep_a_server_from_ending() {
    let mut cluster = Cluster::start(1, &["--drain-seconds", "20"]).await;
    let client = impatient(&cluster).await;
    client.create_table(&spec()).await.unwrap();
    client.push(&[Push { table: "t", keys: &[3], gradients: &[1.0], ..Push::default() }]).await.unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(cluster.shards[0].channel());
    let request = tonic_health::pb::HealthCheckRequest { service: String::new() };
    let mut watching = health.watch(request).await.unwrap().into_inner();
    assert_eq!(watching.message().await.unwrap().unwrap().status, 1, "it serves");

    let mut admin = cluster.shards[0].admin();
    admin.drain(hotrow::proto::DrainRequest {}).await.unwrap();
    let begun = std::time::Instant::now();
    assert_eq!(watching.message().await.unwrap().unwrap().status, 2, "it does not serve any more");
    assert!(cluster.shards[0].ended().await.success(), "{}", cluster.shards[0].log());
    assert!(begun.elapsed() < Duration::from_secs(15), "it waited for somebody who only watched");
}
