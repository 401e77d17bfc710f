//! The console: a page that loads nothing else, and one answer with the numbers of all shards, the same as `/metrics`.

use std::time::{Duration, Instant};

use hotrow::{Pull, Push, TableSpec};
use serde_json::Value;

use crate::cluster::{Cluster, Shard, free_address};

fn get(shard: &Shard, path: &str) -> (String, String) {
    let (code, answer) = shard.get(path).expect("the HTTP port answers");
    assert_eq!(code, 200, "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_string())
}

/// An answer that was collected after this was called.
async fn status(shard: &Shard) -> Value {
    tokio::time::sleep(Duration::from_secs(1)).await;
    serde_json::from_str(&get(shard, "/api/status").1).unwrap()
}

/// The metric of one shard, its labels as the text has them.
fn metric(shard: &Shard, name: &str) -> u64 {
    let (_, text) = get(shard, "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("there is no {name}")).parse::<f64>().unwrap() as u64
}

async fn train(cluster: &Cluster) {
    let client = cluster.client().await;
    client.create_table(&TableSpec::dense("item", 128_000, 8)).await.unwrap();
    client.create_table(&TableSpec::hashed("user", 4)).await.unwrap();
    let keys: Vec<u64> = (0..20_000).collect();
    let push = |table, gradients| Push { table, keys: &keys, gradients, ..Push::default() };
    client.push(&[push("item", &[0.5; 160_000]), push("user", &[0.5; 80_000])]).await.unwrap();
    client.pull(&[Pull { table: "item", keys: &keys[..5000] }]).await.unwrap();
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_may_load_nothing() {
    let shard = Shard::start(&free_address(), &[]).await;
    let nonce_of = |head: &str| head.split_once("script-src 'nonce-").unwrap().1[..32].to_string();
    let (head, page) = get(&shard, "/");
    let nonce = nonce_of(&head);
    assert!(head.contains("content-security-policy: default-src 'none';"), "{head}");
    assert!(head.contains("x-content-type-options: nosniff"), "{head}");
    assert!(page.contains(&format!("<script nonce=\"{nonce}\">")), "the page can run its script");
    assert!(page.contains(&format!("<style nonce=\"{nonce}\">")), "the page can use its styles");
    assert!(!page.contains("{nonce}"));
    assert_ne!(nonce, nonce_of(&get(&shard, "/").0), "a nonce is used once");
    let (head, _) = get(&shard, "/api/status");
    assert!(head.contains("cache-control: no-store") && head.contains("content-type: application/json"), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_shard_tells_of_all_what_their_metrics_tell() {
    let folder = tempfile::tempdir().unwrap();
    let url = folder.path().join("saved").display().to_string();
    let cluster = Cluster::start(2, &["--checkpoints", &url, "--memory", "1GiB"]).await;
    train(&cluster).await;
    cluster.client().await.save_checkpoint("", false, |_, _| {}).await.unwrap();
    for asked in &cluster.shards {
        let answer = status(asked).await;
        assert_eq!(answer["cluster"], "hotrow");
        for (number, shard) in cluster.shards.iter().enumerate() {
            let told = &answer["shards"][number];
            assert_eq!((&told["state"], &told["address"]), (&"ready".into(), &shard.address.as_str().into()));
            assert_eq!(told["memory_used"], metric(shard, "hotrow_memory_used_bytes"));
            assert_eq!(told["memory_budget"], 1u64 << 30);
            assert_eq!(told["last_lsn"], metric(shard, "hotrow_changes_total"));
            let status = &told["status"];
            assert_eq!(status["log"], Value::Null, "there is none");
            assert_eq!(status["checkpoint"]["last"], 1);
            assert_eq!(status["checkpoint"]["bytes"], metric(shard, "hotrow_checkpoint_last_bytes"));
            let methods = status["methods"].as_array().unwrap();
            let pull = methods.iter().find(|method| method["method"] == "Data/Pull").unwrap();
            assert_eq!(pull["requests"], metric(shard, "hotrow_rpc_duration_seconds_count{method=\"Data/Pull\"}"));
            let within = "hotrow_rpc_duration_seconds_bucket{method=\"Data/Pull\",le=\"10\"}";
            let (bounds, buckets) = (&status["bucket_seconds"], pull["buckets"].as_array().unwrap());
            assert_eq!((bounds.as_array().unwrap().len(), &bounds[16]), (buckets.len(), &10.0.into()));
            assert_eq!(buckets[16], metric(shard, within));
        }
        let sum = |name| cluster.shards.iter().map(|shard| metric(shard, name)).sum::<u64>();
        let item = &answer["tables"][0];
        assert_eq!((&item["table"], &item["rows"], &item["dim"]), (&"item".into(), &128_000.into(), &8.into()));
        assert_eq!(item["precision"], "int8");
        assert_eq!(item["pull_hits"], sum("hotrow_cache_lookups_total{table=\"item\",op=\"pull\",result=\"hit\"}"));
        assert_eq!(item["push_misses"], 20_000);
        assert_eq!(item["write_backs"], sum("hotrow_write_backs_total{table=\"item\"}"));
        assert_eq!(item["cache_bytes"], sum("hotrow_table_bytes{table=\"item\",tier=\"cache\"}"));
        assert_eq!((&answer["tables"][1]["table"], &answer["tables"][1]["rows"]), (&"user".into(), &20_000.into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_shard_is_down_and_the_rest_is_told() {
    let mut cluster = Cluster::start(2, &[]).await;
    train(&cluster).await;
    assert_eq!(status(&cluster.shards[0]).await["shards"][1]["state"], "ready");
    cluster.shards[1].kill();
    let answer = status(&cluster.shards[0]).await;
    let (here, there) = (&answer["shards"][0], &answer["shards"][1]);
    assert_eq!((&here["state"], &there["state"]), (&"ready".into(), &"down".into()));
    assert!(there["reason"].as_str().unwrap().contains("refused"), "{there}");
    assert_eq!(answer["tables"][0]["rows"], 64_000, "what the other has");

    // One that is there and does not answer is no reason to fail either.
    let address = cluster.shards[1].address.clone();
    let _deaf = std::net::TcpListener::bind(&address).unwrap();
    crate::until("the silence is told", async || status(&cluster.shards[0]).await["shards"][1]["state"] == "silent")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_pages_cost_as_much_as_one() {
    let cluster = Cluster::start(2, &[]).await;
    let asked = || metric(&cluster.shards[1], "hotrow_rpc_requests_total{code=\"OK\",method=\"Admin/Stats\"}");
    status(&cluster.shards[0]).await;
    let (before, begun) = (asked(), Instant::now());
    let answers = std::thread::scope(|scope| {
        let ask = || (0..20).filter(|_| !get(&cluster.shards[0], "/api/status").1.is_empty()).count();
        let pages: Vec<_> = (0..10).map(|_| scope.spawn(ask)).collect();
        pages.into_iter().map(|page| page.join().unwrap()).sum::<usize>()
    });
    // Each time the last answer had grown old, and once for whatever was left of it.
    let at_most = begun.elapsed().as_millis() as u64 / 900 + 1;
    let asked = asked() - before;
    assert!(answers == 200 && asked <= at_most, "{answers} answers took {asked} calls, more than {at_most}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_token_is_told_and_a_refusal_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let tokens = file("tokens", "read reading-secret\nadmin cluster-secret\n");
    let (token, wrong) = (file("token", "cluster-secret\n"), file("wrong", "another-secret\n"));
    for (shown, state) in [(&token, "ready"), (&wrong, "silent")] {
        let cluster = Cluster::start(2, &["--tokens", &tokens, "--cluster-token-file", shown]).await;
        let answer = status(&cluster.shards[0]).await;
        assert_eq!(answer["shards"][1]["state"], state, "{answer}");
        assert!(!answer.to_string().contains("secret"), "{answer}");
        if state == "silent" {
            assert_eq!(answer["shards"][1]["reason"], "unknown token");
        }
    }
}
