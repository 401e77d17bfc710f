//! Pull and push, per precision, cache size, policy, rows and dim, beside the machine's limits on the same keys.

mod common;

use std::hint::black_box;

use common::limits::{self, Array};
use common::workload::{Zipf, gradients};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hotrow::{CacheBudget, Engine, EngineConfig, Initializer, Optimizer, Policy, Precision, Pull, Push, TableSpec};

const BATCH: usize = 8192;
const BATCHES: usize = 16;

fn engine(c: &mut Criterion) {
    for rows in [1_000_000usize, 10_000_000] {
        let mut zipf = Zipf::new(rows, 1.05, 7);
        let batches: Vec<Vec<u64>> = (0..BATCHES).map(|_| zipf.unique_batch(BATCH)).collect();
        for dim in [16, 64, 128] {
            let values = gradients(BATCH * dim, 3);
            limit(c, rows, dim, &batches, &values);
            for precision in [Precision::F32, Precision::F16, Precision::Int8, Precision::Int4, Precision::Int2] {
                for cache in [0.0, 1.0, 5.0] {
                    for policy in [Policy::Lru, Policy::Lfu] {
                        // An f32 table has no cache, and no cache has no policy.
                        if (precision == Precision::F32 && cache > 0.0) || (cache == 0.0 && policy == Policy::Lfu) {
                            continue;
                        }
                        let spec = TableSpec::dense("t", rows as u64, dim)
                            .precision(precision)
                            .cache(CacheBudget::Percent(cache))
                            .policy(policy)
                            .initializer(Initializer::Zeros)
                            .optimizer(Optimizer::rowwise_adagrad(), 0.01);
                        case(c, &spec, &batches, &values);
                    }
                }
            }
        }
    }
}

fn limit(c: &mut Criterion, rows: usize, dim: usize, batches: &[Vec<u64>], values: &[f32]) {
    let mut group = c.benchmark_group(format!("limit/{}M/dim{dim}", rows / 1_000_000));
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut out = vec![0.0f32; BATCH * dim];
    let mut table = Array::new((0..rows * dim).map(|_| 0.1f32));
    let mut sums = Array::new((0..rows).map(|_| 0.1f32));
    let mut next = (0..).map(|i: usize| &batches[i % batches.len()]);
    group.bench_function("gather_f32", |b| {
        b.iter(|| limits::gather_f32(table.as_ref(), dim, next.next().unwrap(), black_box(&mut out)));
    });
    group.bench_function("update_rowwise_adagrad", |b| {
        b.iter(|| {
            limits::rowwise_adagrad(table.as_mut(), sums.as_mut(), dim, next.next().unwrap(), values, 0.01);
        });
    });
    drop(table);
    let codes = Array::new((0..rows * (dim + 2)).map(|i| (i % 64) as u8));
    group.bench_function("gather_int8", |b| {
        b.iter(|| limits::gather_int8(codes.as_ref(), dim, next.next().unwrap(), black_box(&mut out)));
    });
}

fn case(c: &mut Criterion, spec: &TableSpec, batches: &[Vec<u64>], values: &[f32]) {
    let engine = Engine::new(EngineConfig { threads: 1, ..EngineConfig::default() }).unwrap();
    engine.create(spec).unwrap();
    let push = |keys: &Vec<u64>| {
        engine.push(&[Push { table: "t", keys, gradients: values, ..Push::default() }]).unwrap();
    };
    for _ in 0..3 {
        batches.iter().for_each(push);
    }
    let rows = spec.rows().unwrap_or(0) / 1_000_000;
    let cache = match spec.cache {
        CacheBudget::Percent(percent) => percent,
        _ => unreachable!("cases give their cache in per cent"),
    };
    let name = format!("engine/{rows}M/dim{}/{}/cache{cache}/{}", spec.dim, spec.precision, spec.policy);
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut out = vec![0.0; BATCH * spec.dim];
    let mut next = (0..).map(|i: usize| &batches[i % batches.len()]);
    group.bench_function("pull", |b| {
        b.iter(|| engine.pull(&[Pull { table: "t", keys: next.next().unwrap() }], black_box(&mut out)).unwrap());
    });
    group.bench_function("push", |b| b.iter(|| push(next.next().unwrap())));
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(std::time::Duration::from_millis(400))
        .warm_up_time(std::time::Duration::from_millis(100));
    targets = engine
}
criterion_main!(benches);
