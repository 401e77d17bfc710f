//! Reading changes nothing, and the counters count what happened: hits and misses as sent, rows as they moved.

use crate::reference;
use crate::support;
use std::collections::BTreeSet;

use crate::reference::Model;
use crate::support::random::{Random, key};
use crate::support::{cases, to_reference};
use hotrow::{Engine, EngineConfig, PooledPull, Pooling, Precision, Pull, Push, StatePrecision, TableSpec, Touch};
use proptest::prelude::*;

const KEYS: u64 = 60;

/// The engine and the model, given the same changes.
struct Pair {
    engine: Engine,
    model: Model,
    spec: TableSpec,
    step: u64,
}

impl Pair {
    fn new(spec: TableSpec, partition_bits: u32) -> Pair {
        let config = EngineConfig {
            partitions: 1 << partition_bits,
            small_table_bytes: 0,
            threads: 2,
            ..crate::support::config()
        };
        let engine = Engine::new(config).unwrap();
        engine.create(&spec).unwrap();
        let mut model = Model::new(partition_bits, 0);
        model.create(to_reference(&spec));
        Pair { engine, model, spec, step: 0 }
    }

    fn push(&mut self, keys: &[u64], random: &mut Random) {
        self.step += 1;
        let gradients = random.numbers(keys.len() * self.spec.dim);
        let step = Some(self.step);
        self.engine.push(&[Push { table: "t", keys, gradients: &gradients, step, ..Push::default() }]).unwrap();
        let (table, keys) = ("t".into(), keys.to_vec());
        self.model.push(&[reference::Push { table, keys, gradients, learning_rate: None, step }]);
    }

    fn touch(&mut self, keys: &[u64]) {
        self.engine.touch(&[Touch { table: "t", keys }]).unwrap();
        self.model.touch(&[("t".into(), keys.to_vec())]);
    }

    /// Keys in the model's cache, and which of them are dirty.
    fn cached(&self) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let keys = || (0..KEYS).map(|small| key(&self.spec, small));
        let cached = keys().filter(|&key| self.model.is_cached("t", key)).collect();
        (cached, keys().filter(|&key| self.model.is_dirty("t", key)).collect())
    }

    /// Tables without rounding have no cache, and no conflicts either.
    fn is_exact(&self) -> bool {
        let stateless = self.spec.optimizer.state(1).0 == 0;
        self.spec.precision == Precision::F32 && (stateless || self.spec.state_precision == StatePrecision::F32)
    }
}

fn keys() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0..KEYS, 1..40)
}

/// What to do with some keys: read them, bring them in, or push them.
fn operations() -> impl Strategy<Value = Vec<(u8, Vec<u64>)>> {
    prop::collection::vec((0u8..4, keys()), 1..25)
}

proptest! {
    #![proptest_config(cases(250))]

    #[test]
    fn pulls_change_nothing_but_their_counters(
        spec in support::table_spec(KEYS), partition_bits in 0u32..4, operations in operations(), seed in any::<u64>(),
    ) {
        let mut pair = Pair::new(spec, partition_bits);
        let mut random = Random(seed);
        for (kind, keys) in operations {
            let keys: Vec<u64> = keys.iter().map(|&small| key(&pair.spec, small)).collect();
            match kind {
                0 => pair.touch(&keys),
                1 => pair.push(&keys, &mut random),
                _ => {}
            }
            // Now and then enough keys for the compute threads.
            let keys = if random.below(8) == 0 { keys.repeat(support::SHARED / keys.len() + 1) } else { keys };
            let (engine, dim) = (&pair.engine, pair.spec.dim);
            let before = (engine.digests(), engine.last_lsn(), engine.memory_used());
            let stats = engine.stats("t").unwrap();
            let hits = keys.iter().filter(|&&key| engine.inspect("t", key).unwrap().cached).count() as u64;
            prop_assert_eq!(&engine.stats("t").unwrap(), &stats, "inspect counts nothing");
            let mut out = vec![0.0; keys.len() * dim];
            if kind % 2 == 0 {
                engine.pull(&[Pull { table: "t", keys: &keys }], &mut out).unwrap();
            } else {
                let offsets: Vec<u64> = (0..keys.len() as u64).step_by(3).collect();
                let bags = PooledPull { table: "t", keys: &keys, offsets: &offsets, weights: None, pooling: Pooling::Mean };
                engine.pull_pooled(&[bags], &mut out[..offsets.len() * dim]).unwrap();
            }
            let mut expected = stats;
            expected.pull_hits += hits;
            expected.pull_misses += keys.len() as u64 - hits;
            prop_assert_eq!(engine.stats("t").unwrap(), expected);
            prop_assert_eq!((engine.digests(), engine.last_lsn(), engine.memory_used()), before);
        }
    }

    #[test]
    fn counters_of_changes_count_what_happened(
        spec in support::table_spec(KEYS), partition_bits in 0u32..4, operations in operations(), seed in any::<u64>(),
    ) {
        let mut pair = Pair::new(spec, partition_bits);
        let mut random = Random(seed);
        let mut expected = pair.engine.stats("t").unwrap().changes;
        for (kind, keys) in operations {
            let keys: Vec<u64> = keys.iter().map(|&small| key(&pair.spec, small)).collect();
            let distinct: BTreeSet<u64> = keys.iter().copied().collect();
            let (before, dirty) = pair.cached();
            let hits = keys.iter().filter(|key| before.contains(key)).count() as u64;
            let misses = keys.len() as u64 - hits;
            let is_push = kind > 0;
            if is_push {
                pair.push(&keys, &mut random);
                expected.push_hits += hits;
                expected.push_misses += misses;
                expected.updated_rows += distinct.len() as u64;
            } else {
                pair.touch(&keys);
                expected.touch_hits += hits;
                expected.touch_misses += misses;
            }
            let (after, _) = pair.cached();
            let gone: BTreeSet<u64> = before.difference(&after).copied().collect();
            let written = gone.intersection(&dirty).count() as u64;
            // A pushed row that is not in the cache afterwards found no way in it.
            let conflicts = if is_push && !pair.is_exact() { distinct.difference(&after).count() as u64 } else { 0 };
            expected.write_backs += written + conflicts;
            expected.conflicts += conflicts;
            expected.clean_evictions += gone.len() as u64 - written;

            let stats = pair.engine.stats("t").unwrap();
            expected.rounding_error = stats.changes.rounding_error;
            prop_assert_eq!(&stats.changes, &expected);
            prop_assert_eq!(stats.cached_rows, after.len() as u64);
            let numbers: u64 = (0..1 << partition_bits).map(|p| pair.engine.write_backs(p).unwrap()).sum();
            prop_assert_eq!(numbers, expected.write_backs, "every rounding takes a number");
        }
    }
}
