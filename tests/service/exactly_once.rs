//! Every push is applied exactly once and in order, whatever happens to connections. Nobody's word is taken for it: the
//! rows themselves tell.

use std::time::{Duration, Instant};

use hotrow::client::{Client, Options};
use hotrow::{Engine, EngineConfig, Initializer, Optimizer, Precision, Pull, Push, TableSpec};

use crate::cluster::{Cluster, free_address};
use crate::proxy::Proxy;
use crate::random::Random;

const DIM: usize = 4;
/// Keys that many pushes share, on both shards.
const SHARED: u64 = 8;

/// Whole numbers add up exactly.
fn counts() -> TableSpec {
    TableSpec::hashed("count", DIM)
        .precision(Precision::F32)
        .optimizer(Optimizer::Sgd, 1.0)
        .initializer(Initializer::Zeros)
}

/// Adagrad's steps depend on their order.
fn ordered() -> TableSpec {
    TableSpec::hashed("order", DIM).precision(Precision::F32).optimizer(Optimizer::adagrad(), 0.5)
}

struct Numbered {
    keys: Vec<u64>,
    gradients: Vec<f32>,
    order_keys: Vec<u64>,
    order_gradients: Vec<f32>,
}

impl Numbered {
    /// Push `n` adds `n` to two keys of its own, and 1 to a key that others add to as well.
    fn new(n: u64, random: &mut Random) -> Numbered {
        let shared = n % SHARED;
        let keys = vec![10_000 + n, 1_000_000 + n, shared];
        let gradient = |number: u64| [-(number as f32); DIM];
        let gradients = [gradient(n), gradient(n), gradient(1)].concat();
        let order_keys: Vec<u64> = (0..3).map(|_| random.below(SHARED)).collect();
        Numbered { keys, gradients, order_gradients: random.row(order_keys.len() * DIM, 3.0), order_keys }
    }

    fn pushes(&self) -> [Push<'_>; 2] {
        [
            Push { table: "count", keys: &self.keys, gradients: &self.gradients, ..Push::default() },
            Push { table: "order", keys: &self.order_keys, gradients: &self.order_gradients, ..Push::default() },
        ]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_through_a_broken_network_are_applied_once_and_in_order() {
    let seed = crate::seed();
    let listen = [free_address(), free_address()];
    let proxies = [Proxy::start(&listen[0], seed).await, Proxy::start(&listen[1], seed + 1).await];
    let announced = proxies.each_ref().map(|proxy| proxy.address.clone());
    let mut cluster = Cluster::announced(&listen, &announced, &[]).await;
    let options = Options { timeout: Duration::from_secs(40), ..Options::default() };
    let client = Client::connect_with(&announced, options).await.unwrap();
    let engine = Engine::new(EngineConfig::default()).unwrap();
    for spec in [counts(), ordered()] {
        client.create_table(&spec).await.unwrap();
        engine.create(&spec).unwrap();
    }
    let shard_of = |key| client.topology().partition_shards[engine.partition_of("count", key).unwrap() as usize];
    let on: Vec<u32> = (0..SHARED).map(shard_of).collect();
    assert!(on.contains(&0) && on.contains(&1), "both shards get pushes");

    proxies.iter().for_each(|proxy| proxy.set_wild(true));
    let (mut random, begun) = (Random(seed), Instant::now());
    let (mut pending, mut sent) = (Vec::new(), 0);
    // Enough of both, but not for ever on a slow machine.
    while sent < 300 || (proxies.iter().any(|proxy| proxy.harm() < 60) && begun.elapsed().as_secs() < 10) {
        sent += 1;
        let push = Numbered::new(sent, &mut random);
        pending.push(client.push_later(&push.pushes()).await.unwrap());
        engine.push(&push.pushes()).unwrap();
    }
    let harm = proxies.each_ref().map(Proxy::harm);
    println!("{sent} pushes in {:?}, harm done: {harm:?}", begun.elapsed());
    assert!(harm.iter().all(|&harm| harm >= 10), "the proxies did their part: {harm:?}");
    proxies.iter().for_each(|proxy| proxy.set_wild(false));
    for pending in pending {
        pending.done().await.unwrap();
    }

    let own: Vec<u64> = (1..=sent).flat_map(|n| [10_000 + n, 1_000_000 + n]).collect();
    let rows = client.pull(&[Pull { table: "count", keys: &own }]).await.unwrap();
    for (key, row) in own.iter().zip(rows.chunks(DIM)) {
        assert_eq!(row, [(key % 10_000) as f32; DIM], "key {key}");
    }
    let shared: Vec<u64> = (0..SHARED).collect();
    let rows = client.pull(&[Pull { table: "count", keys: &shared }]).await.unwrap();
    for (key, row) in shared.iter().zip(rows.chunks(DIM)) {
        let expected = (1..=sent).filter(|n| n % SHARED == *key).count();
        assert_eq!(row, [expected as f32; DIM], "key {key}");
    }
    let rows = client.pull(&[Pull { table: "order", keys: &shared }]).await.unwrap();
    let mut expected = vec![0.0; rows.len()];
    engine.pull(&[Pull { table: "order", keys: &shared }], &mut expected).unwrap();
    assert_eq!(rows, expected, "pushes were applied in another order than they were made");
    client.close().await;
    // The shards have forgotten what it has pushed: it cannot try anything again.
    let late = client
        .push_again(sent, &[Push { table: "count", keys: &[1], gradients: &[1.0; DIM], ..Push::default() }])
        .await;
    assert!(late.unwrap_err().to_string().contains("closed"));
    for shard in &cluster.shards {
        let stats = shard.admin().stats(hotrow::proto::StatsRequest::default()).await.unwrap().into_inner();
        assert_eq!(stats.open_clients, 0, "a client that was closed is forgotten");
    }
    cluster.check();
}

/// A shard remembers 64 sequences, and those that went to other shards count too.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_while_many_pushes_go_elsewhere_is_found_again() {
    let listen = [free_address(), free_address()];
    let proxy = Proxy::start(&listen[0], 0).await;
    let mut cluster = Cluster::announced(&listen, &[proxy.address.clone(), listen[1].clone()], &[]).await;
    let client = Client::connect(&proxy.address).await.unwrap();
    client.create_table(&counts()).await.unwrap();
    let engine = Engine::new(EngineConfig::default()).unwrap();
    engine.create(&counts()).unwrap();
    let shard_of = |key| client.topology().partition_shards[engine.partition_of("count", key).unwrap() as usize];
    let key_on = |shard| (0..).find(|&key| shard_of(key) == shard).unwrap();
    let (here, elsewhere) = ([key_on(0)], [key_on(1)]);
    let push = |keys| [Push { table: "count", keys, gradients: &[-1.0; DIM], ..Push::default() }];
    client.push(&push(&here)).await.unwrap();

    proxy.set_silent(true);
    let first = client.push_later(&push(&here)).await.unwrap();
    for _ in 0..100 {
        client.push(&push(&elsewhere)).await.unwrap();
    }
    let last = client.push_later(&push(&here)).await.unwrap();
    // Time for whatever was sent to be applied, and for its answer to be held back.
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.cut();
    proxy.set_silent(false);
    first.done().await.unwrap();
    last.done().await.unwrap();
    let keys = [here[0], elsewhere[0]];
    let rows = client.pull(&[Pull { table: "count", keys: &keys }]).await.unwrap();
    assert_eq!(rows, [[3.0; DIM], [100.0; DIM]].concat());
    cluster.check();
}
