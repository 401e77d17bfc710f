//! More requests than there may be: the excess is refused with a hint when to come back, and the server stays as it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hotrow::TableSpec;
use hotrow::proto::{PullRequest, TablePull};
use prost::Message as _;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::cluster::{Cluster, packed};
use crate::random::Random;
use crate::raw::{Raw, framed};

const IN_FLIGHT: usize = 8;
const ROWS: u64 = 100_000;
const KEYS: usize = 4_000;

#[tokio::test(flavor = "multi_thread")]
async fn the_excess_is_refused_and_memory_stays() {
    let mut cluster = Cluster::start(1, &["--max-in-flight", &IN_FLIGHT.to_string()]).await;
    cluster.client().await.create_table(&TableSpec::dense("t", ROWS, 64)).await.unwrap();
    let time = Duration::from_secs(3) * crate::scale();
    // Half of the room is taken by callers who take their time.
    let table = |keys: &[u64]| TablePull { table: "t".into(), keys: packed(keys), ..Default::default() };
    let small = framed(&PullRequest { tables: vec![table(&[1])], ..Default::default() }.encode_to_vec());
    let mut slow = JoinSet::new();
    let mut rests = Vec::new();
    for _ in 0..IN_FLIGHT / 2 {
        let (rest, body) = tokio::sync::mpsc::channel::<Bytes>(2);
        rest.send(small.slice(..9)).await.unwrap();
        let mut raw = Raw::connect(&cluster.shards[0].address).await;
        slow.spawn(async move { raw.post_slowly("/hotrow.v1.Data/Pull", &[], ReceiverStream::new(body)).await });
        rests.push(rest);
    }
    let under_way = format!("\nhotrow_rpc_in_flight {}\n", IN_FLIGHT / 2);
    let begun = async || cluster.shards[0].get("/metrics").is_some_and(|(_, page)| page.contains(&under_way));
    crate::until("the slow ones have their room", begun).await;
    let refused = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    // Few connections: a server takes all the requests of one before it answers the first.
    let connections = [cluster.shards[0].data(), cluster.shards[0].data()];
    for task in 0..2 * IN_FLIGHT - IN_FLIGHT / 2 {
        let (mut data, refused) = (connections[task % 2].clone(), Arc::clone(&refused));
        let mut random = Random(task as u64);
        tasks.spawn(async move {
            let mut times = Vec::new();
            while begun.elapsed() < time {
                let keys: Vec<u64> = (0..KEYS).map(|_| random.below(ROWS)).collect();
                let table = TablePull { table: "t".into(), keys: packed(&keys), ..Default::default() };
                let sent = Instant::now();
                match data.pull(PullRequest { tables: vec![table], ..Default::default() }).await {
                    Ok(answer) => {
                        assert_eq!(answer.into_inner().rows.len(), KEYS * 64 * 4);
                        times.push(sent.elapsed());
                    }
                    Err(status) => {
                        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                        assert!(status.message().contains("8 requests are under way"), "{status}");
                        let after = status.metadata().get("grpc-retry-pushback-ms").expect("a hint when to come back");
                        refused.fetch_add(1, Ordering::Relaxed);
                        let after: u64 = after.to_str().unwrap().parse().unwrap();
                        tokio::time::sleep(Duration::from_millis(after.min(5))).await;
                    }
                }
            }
            times
        });
    }
    tokio::time::sleep(time / 3).await;
    let warm = cluster.shards[0].resident();
    let mut most = warm;
    while begun.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(50)).await;
        most = most.max(cluster.shards[0].resident());
        // Looking after the shard works all the time.
        cluster.shards[0].admin().stats(hotrow::proto::StatsRequest::default()).await.unwrap();
    }
    let mut times = Vec::new();
    while let Some(done) = tasks.join_next().await {
        times.extend(done.unwrap());
    }
    times.sort_unstable();
    let refused = refused.load(Ordering::Relaxed);
    let p99 = times[times.len() * 99 / 100];
    println!(
        "{} pulls, {refused} refused, p99 {p99:?}, {} MiB then at most {} MiB",
        times.len(),
        warm >> 20,
        most >> 20
    );
    assert!(refused > 0, "twice as many as there may be, and none was refused");
    // Buffers for as many answers as there may be at a time are a few megabytes.
    assert!(most < warm + warm / 4 + (32 << 20), "memory grew from {warm} to {most} bytes");
    // Those who were slow are answered, and all the room is given back.
    for rest in rests {
        rest.send(small.slice(9..)).await.unwrap();
    }
    while let Some(answer) = slow.join_next().await {
        assert_eq!(answer.unwrap().unwrap().status.code(), Code::Ok);
    }
    let mut data = cluster.shards[0].data();
    for _ in 0..10 * IN_FLIGHT {
        data.pull(PullRequest { tables: vec![table(&[1])], ..Default::default() }).await.unwrap();
    }
    cluster.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_come_back_until_there_is_room() {
    let mut cluster = Cluster::start(1, &["--max-in-flight", "2"]).await;
    let client = Arc::new(cluster.client().await);
    client.create_table(&TableSpec::dense("t", ROWS, 64)).await.unwrap();
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let client = Arc::clone(&client);
        tasks.spawn(async move {
            let keys: Vec<u64> = (0..2_000).map(|i| (i * 37 + task) % ROWS).collect();
            let gradients = vec![0.1; keys.len() * 64];
            for _ in 0..5 {
                client.pull(&[hotrow::Pull { table: "t", keys: &keys }]).await.unwrap();
                let push = hotrow::Push { table: "t", keys: &keys, gradients: &gradients, ..Default::default() };
                client.push(&[push]).await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    cluster.check();
}
