//! Checkpoints as files: what comes out is what went in, on any number of shards and through any chain of differences; a
//! flipped bit is never served; and whatever call fails, there is a whole checkpoint or none.

use std::collections::BTreeMap;
use std::sync::Arc;

use hotrow::cluster::even_share;
use hotrow::durability::checkpoint::{self, CheckpointStore, ClusterIdentity, FileEntry, From, Manifest, PartOf};
use hotrow::{Engine, EngineConfig, Optimizer, Policy, Precision, Quantizer, Remove, TableSpec, Unsettled};

use crate::disk::{Faults, SimDisk, flip, wait};
use crate::store::SimStore;
use crate::support::changes::{KEYS, Owned, engine, two_tables};
use crate::support::random::Random;

const PARTITIONS: u32 = 16;

fn cluster() -> ClusterIdentity {
    ClusterIdentity { name: "c".into(), partitions: PARTITIONS, seed: 7 }
}

fn store_on(disk: &SimDisk) -> CheckpointStore {
    CheckpointStore::new(Arc::new(SimStore(disk.clone())), "sim://store")
}

/// An engine of one of so many shards, without tables.
fn shard(shards: u32, number: u32) -> Arc<Engine> {
    let owned = even_share(PARTITIONS, shards, number);
    let config = EngineConfig { owned: Some(owned), ..engine(PARTITIONS, 1).config().clone() };
    Arc::new(Engine::new(config).unwrap())
}

/// Some shards, with tables.
struct Shards {
    engines: Vec<Arc<Engine>>,
    since: Vec<Option<(u64, u32)>>,
}

impl Shards {
    fn new(count: u32, tables: &[TableSpec]) -> Shards {
        let engines: Vec<Arc<Engine>> = (0..count).map(|number| shard(count, number)).collect();
        for engine in &engines {
            tables.iter().for_each(|table| assert!(engine.create(table).is_ok()));
        }
        Shards { since: vec![None; engines.len()], engines }
    }

    fn apply(&self, change: &Owned) {
        for engine in &self.engines {
            let owned = engine.config().owned.as_ref().unwrap();
            let here = |table: &str, key: u64| owned.contains(&engine.partition_of(table, key).unwrap());
            change.only(here).apply(engine).unwrap();
        }
    }

    fn digests(&self) -> Vec<(u32, u64)> {
        self.engines.iter().flat_map(|engine| engine.digests()).collect()
    }

    /// Saves all shards; an error leaves everything as it was.
    fn save(&mut self, store: &CheckpointStore, incremental: bool) -> anyhow::Result<Manifest> {
        let sequence = wait(store.next_sequence())?;
        let mut parts: Vec<anyhow::Result<(FileEntry, Unsettled)>> = Vec::new();
        for (number, engine) in (0..).zip(&self.engines) {
            let base = self.since[number as usize].filter(|_| incremental);
            let part = PartOf { sequence, shard: number, shards: self.engines.len() as u32, history: 1, base };
            parts.push(wait(checkpoint::save_part(store, engine, part, |_| {}, |_| {})));
        }
        let failed = parts.iter().any(Result::is_err);
        let files = parts.iter().flatten().map(|(file, _)| file.clone()).collect();
        let manifest = Manifest::new(sequence, "", cluster(), files);
        let put = if failed { Ok(false) } else { wait(store.put(&manifest)) };
        let complete = matches!(put, Ok(true));
        let mut error = put.err();
        for ((engine, part), since) in self.engines.iter().zip(parts).zip(&mut self.since) {
            match part {
                Ok((file, unsettled)) => {
                    engine.settle(unsettled, complete);
                    if complete {
                        *since = Some((sequence, file.links));
                    }
                }
                Err(failure) => error = error.or(Some(failure)),
            }
        }
        error.map_or(Ok(manifest), Err)
    }
}

/// So many shards, from the newest checkpoint.
fn load(store: &CheckpointStore, shards: u32) -> anyhow::Result<Shards> {
    let mut loaded = Shards { engines: Vec::new(), since: Vec::new() };
    for number in 0..shards {
        let engine = shard(shards, number);
        let owned = even_share(PARTITIONS, shards, number);
        let plan = wait(checkpoint::plan(store, &cluster(), &owned, &From::Newest))?.expect("there is a checkpoint");
        wait(checkpoint::load(store, &engine, &plan, &BTreeMap::new(), &mut |_| {}))?;
        loaded.engines.push(engine);
        loaded.since.push(plan.since);
    }
    Ok(loaded)
}

#[test]
fn saved_on_four_restored_on_one_three_and_eight() {
    let combinations = [
        ((Precision::Int4, Quantizer::Affine), Policy::Lfu, Optimizer::adam()),
        ((Precision::Int8, Quantizer::Symmetric), Policy::Lru, Optimizer::rowwise_adagrad()),
        ((Precision::F32, Quantizer::Symmetric), Policy::Lru, Optimizer::adagrad()),
        ((Precision::Bf16, Quantizer::Symmetric), Policy::Lfu, Optimizer::Sgd),
    ];
    for (seed, (format, policy, optimizer)) in combinations.into_iter().enumerate() {
        let tables = two_tables(format, policy, optimizer);
        let mut live = Shards::new(4, &tables);
        let mut random = Random(seed as u64);
        let store = store_on(&SimDisk::default());
        let mut expected = Vec::new();
        for link in 0..11 {
            for _ in 0..4 {
                live.apply(&Owned::random(&mut random, &tables, 50));
            }
            for table in &tables {
                let gone = random.keys(table, KEYS, 8);
                for engine in &live.engines {
                    let owned = engine.config().owned.as_ref().unwrap();
                    let here = |key: &&u64| owned.contains(&engine.partition_of(&table.name, **key).unwrap());
                    let keys: Vec<u64> = gone.iter().filter(here).copied().collect();
                    engine.remove(&[Remove { table: &table.name, keys: &keys }]).unwrap();
                }
            }
            expected = live.digests();
            let manifest = live.save(&store, true).unwrap();
            assert!(manifest.is_complete());
            assert!(manifest.files.iter().all(|file| file.links == link && file.base.is_some() == (link > 0)));
            if link > 0 {
                // Another process goes on with the chain: what it restored knows what it differs from.
                live = load(&store, 4).unwrap();
                assert_eq!(live.since, vec![Some((manifest.sequence, link)); 4]);
            }
        }
        let newest = wait(store.get(11)).unwrap();
        assert_eq!(load(&store, 4).unwrap().digests(), expected, "{format:?} {policy} {optimizer:?}");
        assert!(wait(checkpoint::verify(&store, &newest, &mut |_, _| {})).unwrap() > newest.bytes());
        for shards in [1, 3, 8] {
            let live = load(&store, 4).unwrap();
            let mut other = load(&store, shards).unwrap();
            assert_eq!(other.digests(), live.digests(), "{shards} shards, {format:?} {policy} {optimizer:?}");
            // They go the same way from here, and what they save is theirs.
            let change = Owned::random(&mut random, &tables, 50);
            other.apply(&change);
            live.apply(&change);
            assert_eq!(other.digests(), live.digests(), "{shards} shards go on");
            let elsewhere = store_on(&SimDisk::default());
            other.save(&elsewhere, true).unwrap();
            assert_eq!(load(&elsewhere, 4).unwrap().digests(), live.digests());
        }
    }
}

#[test]
fn a_thousand_bits_of_a_chain() {
    let tables = two_tables((Precision::Int8, Quantizer::Symmetric), Policy::Lru, Optimizer::rowwise_adagrad());
    let mut live = Shards::new(2, &tables);
    let mut random = Random(77);
    let disk = SimDisk::default();
    for _ in 0..3 {
        (0..5).for_each(|_| live.apply(&Owned::random(&mut random, &tables, 30)));
        live.save(&store_on(&disk), true).unwrap();
    }
    let files = disk.bytes();
    assert_eq!(files.len(), 9, "three manifests and six files");
    let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    let mut in_manifests = 0;
    for _ in 0..1000 {
        let bit = random.below(8 * total as u64) as usize;
        let (flipped, file, byte) = flip(&files, bit);
        in_manifests += u32::from(flipped[file].0.ends_with("manifest.json"));
        let name = flipped[file].0.clone();
        let store = store_on(&SimDisk::of(&flipped));
        let error = match load(&store, 2) {
            Ok(_) => panic!("bit {} of byte {byte} of {name} was not noticed", bit % 8),
            Err(error) => format!("{error:#}"),
        };
        let path = name.strip_prefix("objects/").unwrap();
        assert!(error.contains(path), "the message does not name {path}: {error}");
    }
    println!("1000 bits of {total} bytes: all noticed, {in_manifests} of them in manifests");
    assert!(in_manifests > 50);
    assert_eq!(load(&store_on(&SimDisk::of(&files)), 2).unwrap().digests(), live.digests(), "unflipped it is taken");
}

/// Bytes that are missing at the end are noticed like others.
#[test]
fn a_file_that_is_cut_short_is_refused() {
    let tables = two_tables((Precision::Int8, Quantizer::Symmetric), Policy::Lru, Optimizer::Sgd);
    let mut live = Shards::new(1, &tables);
    let mut random = Random(5);
    live.apply(&Owned::random(&mut random, &tables, 100));
    let disk = SimDisk::default();
    live.save(&store_on(&disk), false).unwrap();
    for file in 0..2 {
        for part in 0..20 {
            let mut files = disk.bytes();
            let len = files[file].1.len();
            files[file].1.truncate(len * part / 20);
            assert!(load(&store_on(&SimDisk::of(&files)), 1).is_err(), "{} of {len} bytes", len * part / 20);
        }
    }
}

#[test]
fn every_call_may_fail() {
    let tables = two_tables((Precision::Int4, Quantizer::Affine), Policy::Lfu, Optimizer::adam());
    // Two checkpoints, with changes before and between; a call of the disk fails at one place. Returns the calls made.
    let run = |fail_at: Option<u64>| {
        let disk = SimDisk::default();
        let store = store_on(&disk);
        let mut live = Shards::new(2, &tables);
        let mut random = Random(12);
        let mut failures = 0;
        disk.set_faults(Faults { fail_at, ..Faults::default() });
        for save in 0..3 {
            (0..3).for_each(|_| live.apply(&Owned::random(&mut random, &tables, 30)));
            let before: Vec<u64> = wait(store.list()).unwrap().into_keys().collect();
            let saved = live.save(&store, true);
            let after = wait(store.list()).unwrap();
            assert!(after.values().all(Result::is_ok), "call {fail_at:?}: half a checkpoint is there");
            match saved {
                Ok(manifest) => {
                    let checked = wait(checkpoint::verify(&store, &manifest, &mut |_, _| {}));
                    assert!(checked.is_ok(), "call {fail_at:?}: {checked:?}");
                    assert_eq!(load(&store, 2).unwrap().digests(), live.digests(), "call {fail_at:?}, save {save}");
                }
                Err(error) => {
                    failures += 1;
                    assert!(format!("{error:#}").contains("injected"), "call {fail_at:?}: {error:#}");
                    let new = after.keys().filter(|number| !before.contains(number)).count();
                    // A manifest whose name could not be synced may be there, and is whole if it is.
                    assert!(new <= 1);
                    for (_, manifest) in after {
                        let checked = wait(checkpoint::verify(&store, &manifest.unwrap(), &mut |_, _| {}));
                        assert!(checked.is_ok(), "call {fail_at:?}: {checked:?}");
                    }
                }
            }
        }
        assert!(failures <= 1);
        let calls = disk.calls();
        disk.set_faults(Faults::default());
        // The next is as good as any.
        live.save(&store, true).unwrap();
        assert_eq!(load(&store, 2).unwrap().digests(), live.digests(), "call {fail_at:?}");
        (calls, failures)
    };
    let (calls, failures) = run(None);
    assert!(calls > 40 && failures == 0, "{calls} calls");
    let failed: u32 = (0..calls).map(|call| run(Some(call)).1).sum();
    println!("{calls} calls, {failed} of them with an error that was told");
    assert_eq!(u64::from(failed), calls, "every failure is told");
}

#[test]
fn pruning_keeps_what_is_needed() {
    let tables = two_tables((Precision::Int8, Quantizer::Symmetric), Policy::Lru, Optimizer::Sgd);
    let mut live = Shards::new(2, &tables);
    let mut random = Random(3);
    let disk = SimDisk::default();
    let store = store_on(&disk);
    // 1 whole, 2 and 3 differ, 4 whole, 5 and 6 differ, 7 of one shard only.
    for number in 1..=6u64 {
        live.apply(&Owned::random(&mut random, &tables, 40));
        live.save(&store, number != 4).unwrap();
    }
    live.apply(&Owned::random(&mut random, &tables, 40));
    let part = PartOf { sequence: 7, shard: 0, shards: 2, history: 1, base: live.since[0] };
    let (file, unsettled) = wait(checkpoint::save_part(&store, &live.engines[0], part, |_| {}, |_| {})).unwrap();
    live.engines[0].settle(unsettled, true);
    assert!(wait(store.put(&Manifest::new(7, "", cluster(), vec![file]))).unwrap());
    assert!(!wait(store.get(7)).unwrap().is_complete());

    assert!(wait(checkpoint::prune(&store, 0, false)).unwrap_err().to_string().contains("never removed"));
    let files = disk.bytes();
    assert_eq!(wait(checkpoint::prune(&store, 1, true)).unwrap(), [1, 2, 3]);
    assert_eq!(disk.bytes(), files, "a dry run removes nothing");
    assert_eq!(wait(checkpoint::prune(&store, 4, false)).unwrap(), [] as [u64; 0], "3 differs from 2, and that from 1");
    assert_eq!(wait(checkpoint::prune(&store, 2, false)).unwrap(), [1, 2, 3]);
    assert_eq!(wait(checkpoint::prune(&store, 1, false)).unwrap(), [] as [u64; 0], "6 differs from 5, and that from 4");
    let left: Vec<String> = disk.bytes().into_iter().map(|(name, _)| name).collect();
    assert!(left.iter().all(|name| name.as_str() > "objects/00000004"), "{left:?}");
    // The first shard's newest is 7, the second's 6.
    let expected = load(&store, 2).unwrap();
    assert_eq!(expected.engines[0].digests(), live.engines[0].digests());
    assert_ne!(expected.engines[1].digests(), live.engines[1].digests());
}
