//! The same changes give the same bits in host memory and on a GPU: rows, state, cache, counts, every answer.

use hotrow::{
    CacheBudget, CudaConfig, Engine, EngineConfig, Optimizer, Piece, PoolConfig, PooledPull, Pooling, Precision, Pull,
    Push, Quantizer, RowFormat, SavedTable, StatePrecision, TableSpec, Touch,
};

use crate::support;
use crate::support::changes::{KEYS, Owned, two_tables};
use crate::support::emulated;
use crate::support::random::{Random, key};

const PARTITIONS: u32 = 8;

fn config(pool: PoolConfig) -> EngineConfig {
    EngineConfig { partitions: PARTITIONS, threads: 2, seed: 7, small_table_bytes: 0, pool, ..EngineConfig::default() }
}

/// The same tables in host memory and on the GPU.
fn both(tables: &[TableSpec]) -> [Engine; 2] {
    [PoolConfig::Host, emulated::pool()].map(|pool| {
        let engine = Engine::new(config(pool)).unwrap();
        tables.iter().for_each(|table| {
            engine.create(table).unwrap();
        });
        engine
    })
}

/// All that can be read of these tables: rows in every format, and bags.
fn answers(engine: &Engine, tables: &[TableSpec], random: &mut Random, count: usize) -> Vec<Vec<u8>> {
    let keys: Vec<Vec<u64>> = tables.iter().map(|table| random.keys(table, KEYS, count)).collect();
    let mut all = Vec::new();
    for format in [RowFormat::F32, RowFormat::F16, RowFormat::Bf16, RowFormat::Int8] {
        let pulls: Vec<Pull<'_>> =
            tables.iter().zip(&keys).map(|(table, keys)| Pull { table: &table.name, keys }).collect();
        let bytes: usize = tables.iter().map(|table| count * format.row_bytes(table.dim)).sum();
        let mut out = vec![0f32; bytes.div_ceil(4)];
        let out: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut out)[..bytes];
        engine.pull_as(format, &pulls, out).unwrap();
        all.push(out.to_vec());

        let offsets: Vec<u64> = (0..count as u64).step_by(7).collect();
        let weights = random.numbers(count);
        for (weights, pooling) in [(None, Pooling::Mean), (Some(&weights[..]), Pooling::Sum)] {
            let bags = |(table, keys): (&'_ TableSpec, _)| (table.name.clone(), keys);
            let named: Vec<(String, &Vec<u64>)> = tables.iter().zip(&keys).map(bags).collect();
            let pulls: Vec<PooledPull<'_>> = named
                .iter()
                .map(|(table, keys)| PooledPull { table, keys, offsets: &offsets, weights, pooling })
                .collect();
            let bytes: usize = tables.iter().map(|table| offsets.len() * format.row_bytes(table.dim)).sum();
            let mut out = vec![0f32; bytes.div_ceil(4)];
            let out: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut out)[..bytes];
            engine.pull_pooled_as(format, &pulls, out).unwrap();
            all.push(out.to_vec());
        }
    }
    all
}

fn agree([host, cuda]: &[Engine; 2], tables: &[TableSpec], seed: u64, what: &str) {
    assert_eq!(host.digests(), cuda.digests(), "{what}");
    for (count, seed) in [(40, seed), (1500, seed + 1)] {
        let of = |engine| answers(engine, tables, &mut Random(seed), count);
        assert!(of(host) == of(cuda), "{what}: {count} rows");
    }
    for table in tables {
        let keys: Vec<u64> = (0..KEYS).map(|small| key(table, small)).collect();
        let stored = |engine: &Engine| {
            let format = engine.stored_format(&table.name).unwrap();
            let mut out = vec![0; keys.len() * format.bytes(table.dim)];
            engine.read_stored(Pull { table: &table.name, keys: &keys }, &mut out).unwrap();
            out
        };
        assert!(stored(host) == stored(cuda), "{what}: rows as they are stored");
        let (host, cuda) = (host.stats(&table.name).unwrap(), cuda.stats(&table.name).unwrap());
        assert_eq!((host.changes, host.pull_hits, host.pull_misses), (cuda.changes, cuda.pull_hits, cuda.pull_misses));
    }
}

/// Tables of dims of every kind, odd ones too: neighbours of what threads and random numbers come in.
fn tables(case: usize, format: (Precision, Quantizer), policy: hotrow::Policy, optimizer: Optimizer) -> Vec<TableSpec> {
    const DIMS: [usize; 14] = [1, 2, 3, 4, 5, 16, 31, 33, 64, 65, 127, 130, 257, 300];
    let mut tables = two_tables(format, policy, optimizer);
    for (i, table) in tables.iter_mut().enumerate() {
        table.dim = DIMS[(3 * case + 5 * i) % DIMS.len()];
    }
    tables
}

#[test]
fn every_precision_policy_and_optimizer() {
    for (case, (format, policy, optimizer)) in support::matrix().into_iter().enumerate() {
        let tables = tables(case, format, policy, optimizer);
        let engines = both(&tables);
        let mut random = Random(case as u64);
        for step in 0..25 * crate::scale() {
            let count = if step % 9 == 8 { 1500 } else { 1 + random.below(40) as usize };
            let change = Owned::random(&mut random, &tables, count);
            engines.iter().for_each(|engine| {
                change.apply(engine).unwrap();
            });
        }
        agree(&engines, &tables, case as u64, &format!("case {case}: {format:?} {policy} {optimizer:?}"));
    }
}

/// Everything that a checkpoint would hold.
fn saved(engine: &Engine) -> (Vec<SavedTable>, Vec<Piece>) {
    let mut snapshot = engine.cut(true).unwrap();
    let tables = snapshot.tables().to_vec();
    let pieces = std::iter::from_fn(|| snapshot.next_piece()).collect();
    (tables, pieces)
}

#[test]
fn what_one_pool_saved_the_other_takes_over() {
    for (case, (format, policy, optimizer)) in support::matrix().into_iter().enumerate().step_by(13) {
        let tables = tables(case, format, policy, optimizer);
        let engines = both(&tables);
        let mut random = Random(case as u64);
        let change = |random: &mut Random| {
            let change = Owned::random(random, &tables, 100);
            move |engine: &Engine| change.apply(engine).unwrap()
        };
        for _ in 0..10 {
            let change = change(&mut random);
            for engine in &engines {
                change(engine);
            }
        }
        let both_saved = [saved(&engines[0]), saved(&engines[1])];
        assert!(both_saved[0] == both_saved[1], "case {case}: what is saved");

        // Crosswise, and then both go on.
        let pools = [emulated::pool(), PoolConfig::Host];
        let crossed: Vec<Engine> = both_saved
            .iter()
            .zip(pools)
            .map(|((saved_tables, pieces), pool)| {
                let engine = Engine::new(config(pool)).unwrap();
                let restore = engine.restore(saved_tables).unwrap();
                let names: Vec<Option<&str>> = saved_tables.iter().map(|t| Some(t.spec.name.as_str())).collect();
                for pieces in pieces.split_inclusive(|piece| *piece == Piece::End) {
                    let Piece::Partition { id, .. } = pieces[0] else { panic!("a partition begins with its head") };
                    let mut partition = restore.partition(id, &names).unwrap();
                    pieces.iter().for_each(|piece| partition.piece(piece.clone(), true).unwrap());
                }
                restore.finish(engines[0].last_lsn(), true);
                engine
            })
            .collect();
        for _ in 0..10 {
            let change = change(&mut random);
            for engine in engines.iter().chain(&crossed) {
                change(engine);
            }
        }
        let expected = engines[0].digests();
        assert!(crossed.iter().chain(&engines).all(|engine| engine.digests() == expected), "case {case}: going on");
    }
}

/// A bag that has more rows than a launch takes is added up in the same order.
#[test]
fn a_bag_that_is_larger_than_a_launch() {
    let table = TableSpec::dense("t", 3000, 3).cache(CacheBudget::Rows(3000)).precision(Precision::Int8);
    let engines = both(std::slice::from_ref(&table));
    let mut random = Random(5);
    let all: Vec<u64> = (0..3000).collect();
    let gradients = random.numbers(all.len() * 3);
    for engine in &engines {
        engine.push(&[Push { table: "t", keys: &all, gradients: &gradients, ..Push::default() }]).unwrap();
    }
    let keys: Vec<u64> = (0..20_000).map(|_| random.below(3000)).collect();
    let weights = random.numbers(keys.len());
    for offsets in [vec![0], vec![0, 10, 15_000, 15_000, 19_990]] {
        let pooled = |engine: &Engine| {
            let mut out = vec![0.0; offsets.len() * 3];
            let weights = Some(&weights[..]);
            let pull = PooledPull { table: "t", keys: &keys, offsets: &offsets, weights, pooling: Pooling::Sum };
            engine.pull_pooled(&[pull], &mut out).unwrap();
            support::bits(&out)
        };
        assert_eq!(pooled(&engines[0]), pooled(&engines[1]), "{offsets:?}");
    }
}

/// However many tables and partitions a request has, rows that are laid out alike are one launch.
#[test]
fn one_launch_for_an_operation_of_a_request() {
    let alike = |name: &str| {
        TableSpec::dense(name, 4000, 8)
            .precision(Precision::Int8)
            .optimizer(Optimizer::rowwise_adagrad(), 0.1)
            .state_precision(StatePrecision::F32)
            .cache(CacheBudget::Rows(600))
    };
    let PoolConfig::Cuda(small) = emulated::pool() else { unreachable!("it is on a GPU") };
    // Trays that hold the whole request.
    let pool = PoolConfig::Cuda(CudaConfig { tray_bytes: 8 << 20, ..small });
    let engine = Engine::new(config(pool)).unwrap();
    let names: Vec<String> = (0..5).map(|i| format!("t{i}")).collect();
    for name in &names {
        engine.create(&alike(name)).unwrap();
    }
    let count = |operation: &str| {
        let stats = engine.device().unwrap().stats();
        stats.operations.iter().find(|(name, ..)| *name == operation).unwrap().1
    };
    let launches = || ["gather", "gather_pooled", "fill", "load", "update", "write_back"].map(count);
    let counted = |work: &dyn Fn()| {
        let before = launches();
        work();
        let after = launches();
        std::array::from_fn(|i| after[i] - before[i])
    };
    let push = |keys: &[u64]| {
        let gradients = vec![0.5; keys.len() * 8];
        let push = |table| Push { table, keys, gradients: &gradients, ..Push::default() };
        engine.push(&names.iter().map(|name| push(name)).collect::<Vec<_>>()).unwrap();
    };
    let first: Vec<u64> = (0..500).collect();
    let others: Vec<u64> = (1000..1500).collect();
    assert_eq!(counted(&|| push(&first)), [0, 0, 0, 1, 1, 0], "untrained rows come in");
    push(&others);
    assert_eq!(counted(&|| push(&first)), [0, 0, 1, 0, 1, 1], "some leave, others come back");
    let mut out = vec![0.0; 5 * 500 * 8];
    let pulls: Vec<Pull<'_>> = names.iter().map(|table| Pull { table, keys: &first }).collect();
    assert_eq!(counted(&|| engine.pull(&pulls, &mut out.clone()).unwrap()), [1, 0, 0, 0, 0, 0]);
    let offsets: Vec<u64> = (0..500).step_by(10).collect();
    let bags = |table| PooledPull { table, keys: &first, offsets: &offsets, weights: None, pooling: Pooling::Sum };
    let bags: Vec<PooledPull<'_>> = names.iter().map(|table| bags(table)).collect();
    out.truncate(5 * 50 * 8);
    assert_eq!(counted(&|| engine.pull_pooled(&bags, &mut out.clone()).unwrap()), [0, 1, 0, 0, 0, 0]);
    let touches: Vec<Touch<'_>> = names.iter().map(|table| Touch { table, keys: &first }).collect();
    let touch = || {
        engine.touch(&touches).unwrap();
    };
    assert_eq!(counted(&touch), [0; 6], "all of them are hot already");
}

/// Whoever waits for a GPU does so on its own thread: compute threads that waited would keep others from giving room back.
#[test]
fn exports_and_pulls_do_not_wait_for_each_other() {
    let table = TableSpec::dense("t", 6000, 16).cache(CacheBudget::Rows(6000)).precision(Precision::Int8);
    let engine = Engine::new(config(emulated::pool())).unwrap();
    engine.create(&table).unwrap();
    let keys: Vec<u64> = (0..6000).collect();
    let gradients = vec![0.5; keys.len() * 16];
    engine.push(&[Push { table: "t", keys: &keys, gradients: &gradients, ..Push::default() }]).unwrap();
    let (done, finished) = std::sync::mpsc::channel();
    let engine = std::sync::Arc::new(engine);
    for reader in 0..12 {
        let (engine, keys, done) = (std::sync::Arc::clone(&engine), keys.clone(), done.clone());
        // Not scoped: if they wait for ever, the test says so.
        std::thread::spawn(move || {
            let mut rows = vec![0f32; keys.len() * 16];
            let bytes = engine.stored_format("t").unwrap().bytes(16);
            let mut stored = vec![0; keys.len() * bytes];
            for _ in 0..20 {
                match reader % 3 {
                    0 => engine.read_stored(Pull { table: "t", keys: &keys }, &mut stored).unwrap(),
                    _ => engine.pull(&[Pull { table: "t", keys: &keys[..2048] }], &mut rows[..2048 * 16]).unwrap(),
                }
            }
            done.send(()).unwrap();
        });
    }
    for reader in 0..12 {
        let waited = finished.recv_timeout(std::time::Duration::from_secs(120));
        waited.unwrap_or_else(|_| panic!("{reader} of 12 readers are done, and the others wait for ever"));
    }
}
