//! The engine against a slow, obvious model (`reference/`, written from docs/NUMERICS.md alone): random sequences of
//! create, pull, push, touch, assign, remove and drop give the same bits, the same cache and the same counters.

use crate::reference;
use crate::reference::Model;
use crate::support;
use crate::support::{bits, cases, to_reference};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use hotrow::{Assign, Engine, EngineConfig, PooledPull, Pooling, Pull, Push, Remove, TableSpec, Touch};

/// Keys are drawn from a small range, so that they meet again; hashed tables spread them over all 64 bits.
const KEYS: u64 = 60;

#[derive(Clone, Debug)]
enum Op {
    Push { keys: Vec<u64>, seed: u64, lr: Option<f32>, both: bool },
    Touch { keys: Vec<u64> },
    Assign { keys: Vec<u64>, seed: u64, state: bool },
    Remove { keys: Vec<u64> },
    Pooled { keys: Vec<u64>, bags: Vec<u64>, weighted: bool, mean: bool },
    Recreate,
}

fn keys() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0..KEYS, 1..24)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (keys(), any::<u64>(), prop::option::of(0.0f32..0.5), any::<bool>())
            .prop_map(|(keys, seed, lr, both)| Op::Push { keys, seed, lr, both }),
        2 => keys().prop_map(|keys| Op::Touch { keys }),
        1 => (keys(), any::<u64>(), any::<bool>()).prop_map(|(keys, seed, state)| Op::Assign { keys, seed, state }),
        1 => keys().prop_map(|keys| Op::Remove { keys }),
        1 => (keys(), prop::collection::vec(0..24u64, 0..6), any::<bool>(), any::<bool>())
            .prop_map(|(keys, bags, weighted, mean)| Op::Pooled { keys, bags, weighted, mean: mean && !weighted }),
        1 => Just(Op::Recreate),
    ]
}

/// A gradient or weight: mostly of ordinary size, sometimes tiny, sometimes zero.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
            match state >> 33 & 15 {
                0 => 0.0,
                1 => unit * 1e-12,
                2 => unit * 100.0,
                _ => unit,
            }
        })
        .collect()
}

struct Pair {
    engine: Engine,
    model: Model,
    tables: Vec<TableSpec>,
    step: u64,
    bits: u32,
}

impl Pair {
    /// The key that a small number stands for in a table.
    fn key(table: &TableSpec, small: u64) -> u64 {
        match table.rows() {
            Some(_) => small,
            None if small == 0 => u64::MAX,
            None => (small - 1).wrapping_mul(0x0123_4567_89ab_cdef),
        }
    }

    fn run(&mut self, op: &Op) {
        self.step += 1;
        let first = self.tables[0].clone();
        let on = |table: &TableSpec, keys: &[u64]| keys.iter().map(|&key| Pair::key(table, key)).collect::<Vec<_>>();
        match op {
            Op::Push { keys, seed, lr, both } => {
                let tables = if *both { &self.tables[..] } else { &self.tables[..1] };
                let data: Vec<(Vec<u64>, Vec<f32>)> = tables
                    .iter()
                    .map(|table| (on(table, keys), numbers(seed ^ table.dim as u64, keys.len() * table.dim)))
                    .collect();
                let pushes: Vec<Push<'_>> = tables
                    .iter()
                    .zip(&data)
                    .map(|(table, (keys, gradients))| Push {
                        table: &table.name,
                        keys,
                        gradients,
                        learning_rate: *lr,
                        step: Some(self.step),
                    })
                    .collect();
                self.engine.push(&pushes).unwrap();
                let pushes: Vec<reference::Push> = pushes
                    .iter()
                    .map(|push| reference::Push {
                        table: push.table.into(),
                        keys: push.keys.to_vec(),
                        gradients: push.gradients.to_vec(),
                        learning_rate: push.learning_rate,
                        step: push.step,
                    })
                    .collect();
                self.model.push(&pushes);
            }
            Op::Touch { keys } => {
                let keys = on(&first, keys);
                self.engine.touch(&[Touch { table: &first.name, keys: &keys }]).unwrap();
                self.model.touch(&[(first.name.clone(), keys)]);
            }
            Op::Assign { keys, seed, state } => {
                let keys = on(&first, keys);
                let weights = numbers(*seed, keys.len() * first.dim);
                let (tensors, len) = first.optimizer.state(first.dim);
                let state: Option<Vec<f32>> =
                    state.then(|| numbers(seed ^ 1, keys.len() * tensors * len).into_iter().map(f32::abs).collect());
                let assign = Assign { table: &first.name, keys: &keys, weights: &weights, state: state.as_deref() };
                self.engine.assign(&[assign]).unwrap();
                self.model.assign(&first.name, &keys, &weights, state.as_deref());
            }
            Op::Remove { keys } => {
                let keys = on(&first, keys);
                self.engine.remove(&[Remove { table: &first.name, keys: &keys }]).unwrap();
                self.model.remove(&first.name, &keys);
            }
            Op::Pooled { keys, bags, weighted, mean } => {
                let keys = on(&first, keys);
                let mut offsets: Vec<u64> = bags.iter().map(|&at| at.min(keys.len() as u64)).collect();
                offsets.push(0);
                offsets.sort_unstable();
                let weights = numbers(7, keys.len());
                let weights = weighted.then_some(weights.as_slice());
                let pooling = if *mean { Pooling::Mean } else { Pooling::Sum };
                let mut out = vec![f32::NAN; offsets.len() * first.dim];
                let pull = PooledPull { table: &first.name, keys: &keys, offsets: &offsets, weights, pooling };
                self.engine.pull_pooled(&[pull], &mut out).unwrap();
                let expected = self.model.pooled(&first.name, &keys, &offsets, weights, *mean);
                assert_eq!(bits(&out), bits(&expected), "pooled");
            }
            Op::Recreate => {
                let last = self.tables.last().unwrap();
                self.engine.drop_table(&last.name).unwrap();
                self.model.drop_table(&last.name);
                self.engine.create(last).unwrap();
                self.model.create(to_reference(last));
            }
        }
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        for table in &self.tables {
            let keys: Vec<u64> = (0..KEYS).map(|small| Pair::key(table, small)).collect();
            let mut out = vec![f32::NAN; keys.len() * table.dim];
            self.engine.pull(&[Pull { table: &table.name, keys: &keys }], &mut out).unwrap();
            let expected = self.model.pull(&table.name, &keys);
            prop_assert_eq!(bits(&out), bits(&expected), "weights of {}", &table.name);
            for &key in &keys {
                let row = self.engine.inspect(&table.name, key).unwrap();
                prop_assert_eq!(row.cached, self.model.is_cached(&table.name, key), "cached {}", key);
                prop_assert_eq!(row.dirty, self.model.is_dirty(&table.name, key), "dirty {}", key);
                prop_assert_eq!(bits(&row.state), bits(&self.model.state(&table.name, key)), "state of {}", key);
            }
            if table.rows().is_none() {
                prop_assert_eq!(self.engine.stats(&table.name).unwrap().rows, self.model.rows(&table.name));
            }
        }
        for partition in 0..1 << self.bits {
            prop_assert_eq!(self.engine.write_backs(partition), Some(self.model.write_backs(partition)));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn the_engine_is_the_model(
        mut tables in prop::collection::vec(support::table_spec(KEYS), 1..3),
        partition_bits in 0u32..4,
        seed in any::<u32>(),
        threads in 1usize..3,
        ops in prop::collection::vec(op(), 1..40),
    ) {
        for (i, table) in tables.iter_mut().enumerate() {
            table.name = format!("t{i}");
        }
        let engine = Engine::new(EngineConfig {
            partitions: 1 << partition_bits, seed, threads, small_table_bytes: 0, ..crate::support::config()
        }).unwrap();
        let mut pair = Pair { engine, model: Model::new(partition_bits, seed), tables, step: 0, bits: partition_bits };
        for table in &pair.tables {
            pair.engine.create(table).unwrap();
            pair.model.create(to_reference(table));
        }
        for op in &ops {
            pair.run(op);
            pair.compare()?;
        }
    }
}
