//! How the partitions are split over engines changes no bit: any number of them hold together what one would hold.

use crate::support;
use std::collections::BTreeMap;

use crate::support::changes::{KEYS, Owned, engine, engine_with, two_tables};
use crate::support::random::{Random, key};
use hotrow::{
    Assign, Engine, EngineConfig, Error, Policy, PooledPull, Pooling, Pull, Push, Remove, Result, TableSpec, Touch,
};

const PARTITIONS: u32 = 8;

/// The engines of a cluster: engine i owns the partitions whose number leaves i when divided by their number.
fn cluster(engines: u32, tables: &[TableSpec]) -> Vec<Engine> {
    let one = |i| {
        let owned = (0..PARTITIONS).filter(|p| p % engines == i).collect();
        let config =
            EngineConfig { owned: Some(owned), threads: 1 + i as usize % 2, ..engine(PARTITIONS, 1).config().clone() };
        let engine = Engine::new(config).unwrap();
        tables.iter().for_each(|table| {
            engine.create(table).unwrap();
        });
        engine
    };
    (0..engines).map(one).collect()
}

/// The engine that owns a key.
fn owner<'a>(cluster: &'a [Engine], table: &str, key: u64) -> &'a Engine {
    let partition = cluster[0].partition_of(table, key).unwrap();
    &cluster[partition as usize % cluster.len()]
}

#[test]
fn any_split_holds_the_same_bits() {
    for (seed, (format, policy, optimizer)) in support::matrix().into_iter().enumerate() {
        let tables = two_tables(format, policy, optimizer);
        let whole = engine_with(&tables, PARTITIONS, 1);
        let clusters = [1, 2, 3, 8].map(|engines| cluster(engines, &tables));
        let mut random = Random(seed as u64);
        for i in 0..20 {
            let change = Owned::random(&mut random, &tables, if i == 10 { 1100 } else { 40 });
            change.apply(&whole).unwrap();
            for cluster in &clusters {
                for engine in cluster {
                    let here = |table: &str, key| std::ptr::eq(owner(cluster, table, key), engine);
                    change.only(here).apply(engine).unwrap();
                }
            }
        }
        let expected: BTreeMap<u32, u64> = whole.digests().into_iter().collect();
        for cluster in &clusters {
            let case = format!("{} engines, {format:?} {policy} {optimizer:?}", cluster.len());
            let digests: BTreeMap<u32, u64> = cluster.iter().flat_map(Engine::digests).collect();
            assert_eq!(digests, expected, "{case}");
            for table in &tables {
                for key in (0..KEYS).map(|small| key(table, small)) {
                    let row = owner(cluster, &table.name, key).inspect(&table.name, key);
                    assert_eq!(row, whole.inspect(&table.name, key), "{case}, key {key} of {}", table.name);
                }
            }
        }
    }
}

#[test]
fn keys_of_another_engine_are_refused() {
    let tables = two_tables(support::formats()[3], Policy::Lru, support::optimizers()[0]);
    let cluster = cluster(2, &tables);
    for table in &tables {
        let name = table.name.as_str();
        let engine = &cluster[0];
        let (own, foreign): (Vec<u64>, Vec<u64>) =
            (0..KEYS).map(|small| key(table, small)).partition(|&key| std::ptr::eq(owner(&cluster, name, key), engine));
        let foreign = foreign[0];
        // A key that is owned comes first: the whole request is refused for the second.
        let keys = &[own[0], foreign];
        let numbers = vec![0.5; 2 * table.dim];
        let mut out = numbers.clone();
        let before = engine.digests();
        let refusals: [Result<()>; 7] = [
            engine.pull(&[Pull { table: name, keys }], &mut out),
            engine.pull_pooled(
                &[PooledPull { table: name, keys, offsets: &[0, 1], weights: None, pooling: Pooling::Sum }],
                &mut out,
            ),
            engine.push(&[Push { table: name, keys, gradients: &numbers, ..Push::default() }]).map(drop),
            engine.touch(&[Touch { table: name, keys }]).map(drop),
            engine.assign(&[Assign { table: name, keys, weights: &numbers, state: None }]).map(drop),
            engine.remove(&[Remove { table: name, keys }]).map(drop),
            engine.inspect(name, foreign).map(drop),
        ];
        let partition = engine.partition_of(name, foreign).unwrap();
        for refusal in refusals {
            assert_eq!(refusal, Err(Error::NotOwned { key: foreign, partition }));
        }
        assert_eq!(engine.digests(), before);
        assert_eq!(engine.write_backs(partition), None);
    }
}
