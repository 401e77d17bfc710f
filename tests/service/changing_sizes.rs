//! Requests and answers of many sizes follow each other on the same connections, and nothing waits for what never comes.

use std::time::Duration;

use hotrow::client::{Client, Options};
use hotrow::{Engine, EngineConfig, Optimizer, Precision, Pull, Push, RowFormat, TableSpec};

use crate::cluster::{Shard, free_address};

const ROWS: u64 = 40_000;
const DIM: usize = 64;

#[tokio::test(flavor = "multi_thread")]
async fn pulls_and_pushes_of_changing_sizes_over_one_connection() {
    let mut shard = Shard::start(&free_address(), &[]).await;
    let spec = TableSpec::dense("t", ROWS, DIM).precision(Precision::F32).optimizer(Optimizer::Sgd, 0.5);
    // What the shard must hold.
    let engine = Engine::new(EngineConfig { partitions: 128, ..EngineConfig::default() }).unwrap();
    engine.create(&spec).unwrap();
    for rows in [RowFormat::F32, RowFormat::Int8] {
        let options = Options { rows, connections: 1, ..Options::default() };
        let client = Client::connect_with(&[&shard.address], options).await.unwrap();
        client.create_table(&spec).await.unwrap();
        // From less than a frame to several, in both directions, large after small and small after large.
        for (i, count) in [1, 20_000, 1, 300, 17_000, 4_096, 30_000, 2, 8_192, 64, 12_345].into_iter().enumerate() {
            let keys: Vec<u64> = (0..count).map(|k| (k * 7 + i as u64) % ROWS).collect();
            let gradients: Vec<f32> = (0..keys.len() * DIM).map(|g| (g % 13) as f32 * 0.001).collect();
            let push = Push { table: "t", keys: &keys, gradients: &gradients, ..Push::default() };
            let pull = Pull { table: "t", keys: &keys };
            engine.push(&[push]).unwrap();
            let work = async {
                client.push(&[push]).await.unwrap();
                client.pull(&[pull]).await.unwrap()
            };
            let got = tokio::time::timeout(Duration::from_secs(60), work).await;
            let got = got.unwrap_or_else(|_| panic!("{count} rows as {rows}: no answer came"));
            let mut held = vec![0.0; keys.len() * DIM];
            engine.pull(&[pull], &mut held).unwrap();
            let largest = held.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            let most = if rows == RowFormat::F32 { 0.0 } else { largest / 127.0 };
            assert!(got.iter().zip(&held).all(|(a, b)| (a - b).abs() <= most), "{count} rows as {rows}");
        }
    }
    shard.terminate();
    assert!(shard.ended().await.success(), "{}", shard.log());
}
