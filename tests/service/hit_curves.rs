//! How big should the cache be? A cluster says it as one engine would, in its statistics, its metrics, and a plan.

use hotrow::client::total_stats;
use hotrow::{CacheBudget, Engine, EngineConfig, Policy, Push, TableSpec};
use serde_json::Value;

use crate::cluster::{Cluster, hotrow};
use crate::random::Random;

const DIM: usize = 24;

/// One with a cache, one with lfu, one that is too small to be anything but f32, and one that nobody uses.
fn tables() -> [TableSpec; 4] {
    [
        TableSpec::dense("item", 12_000, DIM).cache(CacheBudget::Rows(1000)),
        TableSpec::hashed("user", DIM).cache(CacheBudget::Rows(500)).policy(Policy::Lfu),
        TableSpec::dense("tiny", 10, DIM),
        TableSpec::hashed("idle", DIM),
    ]
}

fn run(arguments: &[&str], endpoint: &str) -> String {
    let output = hotrow(arguments).args(["--endpoint", endpoint]).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_together_say_what_one_engine_says() {
    let mut cluster = Cluster::start(3, &[]).await;
    let client = cluster.client().await;
    let engine = Engine::new(EngineConfig::default()).unwrap();
    for spec in tables() {
        client.create_table(&spec).await.unwrap();
        engine.create(&spec).unwrap();
    }
    let mut random = Random(crate::seed());
    let [item, user, ..] = tables();
    let gradients = vec![0.01; 200 * DIM];
    for _ in 0..200 {
        // Distinct, because a client sends each key once.
        let distinct = |mut keys: Vec<u64>| {
            keys.sort_unstable();
            keys.dedup();
            keys
        };
        let items = distinct(random.keys(&item, 12_000, 200));
        let users = distinct(random.keys(&user, 3_000, 100));
        let push = |table, keys| Push { table, keys, gradients: &gradients[..keys.len() * DIM], ..Push::default() };
        let pushes = [push("item", &items[..]), push("user", &users), push("tiny", &[3])];
        client.push(&pushes).await.unwrap();
        engine.push(&pushes).unwrap();
    }

    let shards = client.stats().await.unwrap();
    let total = total_stats(&shards);
    for table in ["item", "user"] {
        let curve = total[table].curve.as_ref().unwrap();
        let expected = engine.stats(table).unwrap().curve.unwrap();
        assert_eq!((curve.references, curve.sampled_keys), (expected.references(), expected.sampled_keys()));
        assert_eq!(curve.points.len(), expected.points().len());
        for (point, expected) in curve.points.iter().zip(expected.points()) {
            assert!((point.hit_rate - expected.hit_rate).abs() < 0.02, "{table}: {point:?} {expected:?}");
            assert_eq!((point.size, point.rows.abs_diff(expected.rows) <= 2), (expected.size, true), "{point:?}");
        }
        assert!(curve.points[32].hit_rate > 1.5 * curve.points[8].hit_rate, "{table} has a curve: {curve:?}");
    }
    assert_eq!((&total["tiny"].curve, total["user"].policy.as_str()), (&None, "lfu"));

    let (_, metrics) = cluster.shards[1].get("/metrics").unwrap();
    let lines = |name: &str, label: &str| -> Vec<f64> {
        let found = metrics.lines().filter(|line| line.starts_with(name) && line.contains(label));
        found.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    };
    let of_shard = shards[1].tables.iter().find(|stats| stats.table == "item").unwrap().curve.as_ref().unwrap();
    let found = lines("hotrow_cache_predicted_hit_ratio{", "table=\"item\"");
    let expected: Vec<f64> = [8, 12, 16, 20, 24].iter().map(|&i: &usize| of_shard.points[i].hit_rate).collect();
    assert_eq!(found, expected, "a quarter, a half, today, twice, four times");
    assert_eq!(lines("hotrow_cache_sampled_keys{", "table=\"item\""), [of_shard.sampled_keys as f64]);
    assert!(lines("hotrow_cache_predicted_hit_ratio{", "table=\"idle\"").is_empty());

    let address = cluster.shards[2].address.clone();
    let shown = run(&["stats"], &address);
    assert!(shown.contains("item: at half the cache you would hit ") && shown.contains("(with lru"), "{shown}");
    let shown: Value = serde_json::from_str(&run(&["stats", "--output", "json"], &address)).unwrap();
    let twice = &total["item"].curve.as_ref().unwrap().points[20];
    let listed = shown["tables"].as_array().unwrap().iter().find(|table| table["table"] == "item").unwrap();
    assert!((listed["predicted_hit_rate"]["2"].as_f64().unwrap() - twice.hit_rate).abs() < 1e-9);

    let plan = |flags: &[&str]| -> Value {
        let line = [&["plan", "--output", "json"], flags].concat();
        serde_json::from_str(&run(&line, &address)).unwrap()
    };
    let proposal = plan(&["--target-hit-rate", "40%"]);
    assert!((0.4..0.41).contains(&proposal["proposed"]["hit_rate"].as_f64().unwrap()), "{proposal:#}");
    let left_out = &proposal["not_counted"];
    assert_eq!((&left_out[0]["table"], &left_out[1]["table"]), (&"idle".into(), &"tiny".into()), "{proposal:#}");
    assert_eq!(proposal["tables"][0]["now"]["rows"], 1000);
    // As many bytes as that takes bring as much.
    let bytes = proposal["proposed"]["bytes"].to_string();
    let other = plan(&["--cache-bytes", &format!("{bytes}B")]);
    let rates = [&proposal, &other].map(|plan| plan["proposed"]["hit_rate"].as_f64().unwrap());
    assert!((rates[0] - rates[1]).abs() < 0.01, "{rates:?}");
    let text = run(&["plan", "--cache-bytes", "200kB"], &address);
    assert!(text.contains("--cache item=") && text.contains("has lfu"), "{text}");
    cluster.check();
}
