//! The same pushes from one client give the same bits on one shard, on four, and in an engine without a network.

use hotrow::client::Client;
use hotrow::{CacheBudget, Engine, EngineConfig, Optimizer, Precision, Pull, Push, TableSpec};

use crate::cluster::Cluster;
use crate::random::Random;

const ROWS: u64 = 12_000;
const KEYS: u64 = 3_000;

/// A dense table that is too large to stay f32, and a hashed one.
fn tables() -> [TableSpec; 2] {
    [
        TableSpec::dense("item", ROWS, 24)
            .precision(Precision::Int8)
            .optimizer(Optimizer::rowwise_adagrad(), 0.05)
            .cache(CacheBudget::Rows(400)),
        TableSpec::hashed("user", 9)
            .precision(Precision::Int4)
            .optimizer(Optimizer::adam(), 0.01)
            .cache(CacheBudget::Rows(200)),
    ]
}

struct Batch {
    keys: [Vec<u64>; 2],
    gradients: [Vec<f32>; 2],
    step: u64,
}

impl Batch {
    fn random(random: &mut Random, step: u64) -> Batch {
        let specs = tables();
        let keys = [random.keys(&specs[0], ROWS, 40), random.keys(&specs[1], KEYS, 25)];
        let gradients = [random.numbers(40 * specs[0].dim), random.numbers(25 * specs[1].dim)];
        Batch { keys, gradients, step }
    }

    /// Most push to both tables, some to one.
    fn pushes(&self) -> Vec<Push<'_>> {
        let push = |table: &'static str, i: usize| Push {
            table,
            keys: &self.keys[i],
            gradients: &self.gradients[i],
            learning_rate: self.step.is_multiple_of(3).then_some(0.02),
            step: Some(self.step),
        };
        match self.step % 7 {
            0 => vec![push("item", 0)],
            1 => vec![push("user", 1)],
            _ => vec![push("item", 0), push("user", 1)],
        }
    }
}

/// Every key that could have been pushed, and the largest.
fn all_keys() -> [Vec<u64>; 2] {
    let [item, user] = tables();
    let keys = |table: &TableSpec, count: u64| (0..count).map(|small| crate::random::key(table, small)).collect();
    [keys(&item, ROWS), keys(&user, KEYS)]
}

async fn run(client: &Client, batches: &[Batch]) -> Vec<f32> {
    for spec in tables() {
        client.create_table(&spec).await.unwrap();
    }
    let mut pending = Vec::new();
    for batch in batches {
        pending.push(client.push_later(&batch.pushes()).await.unwrap());
        if batch.step % 100 == 0 {
            // A pull in between changes nothing.
            client.pull(&[Pull { table: "item", keys: &batch.keys[0] }]).await.unwrap();
        }
    }
    for pending in pending {
        pending.done().await.unwrap();
    }
    let [items, users] = all_keys();
    client.pull(&[Pull { table: "user", keys: &users }, Pull { table: "item", keys: &items }]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn four_shards_one_shard_and_no_network_give_the_same_bits() {
    let mut random = Random(crate::seed());
    let batches: Vec<Batch> = (1..=1000).map(|step| Batch::random(&mut random, step)).collect();

    let engine = Engine::new(EngineConfig::default()).unwrap();
    for spec in tables() {
        engine.create(&spec).unwrap();
    }
    for batch in &batches {
        engine.push(&batch.pushes()).unwrap();
    }
    let [items, users] = all_keys();
    let mut expected = vec![0.0; items.len() * 24 + users.len() * 9];
    engine.pull(&[Pull { table: "user", keys: &users }, Pull { table: "item", keys: &items }], &mut expected).unwrap();
    assert!(engine.stats("item").unwrap().changes.write_backs > 0, "rows were rounded");

    for shards in [1, 4] {
        let mut cluster = Cluster::start(shards, &[]).await;
        let client = cluster.client().await;
        let rows = run(&client, &batches).await;
        let different = rows.iter().zip(&expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        assert_eq!(different, 0, "numbers of {} differ on {shards} shards", expected.len());
        // Optimizer state, and what is cached, too.
        for i in (0..users.len()).step_by(97) {
            assert_eq!(client.inspect("user", users[i]).await.unwrap(), engine.inspect("user", users[i]).unwrap());
            assert_eq!(client.inspect("item", items[i]).await.unwrap(), engine.inspect("item", items[i]).unwrap());
        }
        cluster.check();
    }
}
