//! `make bench-matrix`: pull and push for every precision, cache size and policy, over rows and dims, each beside the
//! machine's limit on the same keys in the same round, as ratios.
//!
//! The limit of a pull is the plain gather of f32 rows for an f32 table and gather plus dequantize of int8 rows for
//! the others; the limit of a push is the plain in-place f32 row-wise Adagrad. Keys are unique keys of a Zipf draw.
//! Arguments name the rows in millions and the dims to run, such as `1 64`; none runs everything.

mod common;

use std::hint::black_box;

use common::limits::{self, Array};
use common::workload::{Zipf, gradients, median, seconds};
use hotrow::{CacheBudget, Engine, EngineConfig, Initializer, Optimizer, Policy, Precision, Pull, Push, TableSpec};

const BATCH: usize = 8192;
const BATCHES: usize = 16;
const ROUNDS: usize = 16;

struct Limits {
    f32: Array<f32>,
    sums: Array<f32>,
    int8: Array<u8>,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--test") {
        return;
    }
    let mut numbers = args.iter().filter_map(|arg| arg.parse::<usize>().ok());
    let millions = numbers.next().map_or(vec![1, 10], |m| vec![m]);
    let dims = numbers.next().map_or(vec![16, 64, 128], |dim| vec![dim]);
    println!("# 1 thread, Zipf 1.05, batches of {BATCH} unique keys, medians of {ROUNDS} rounds, row-wise Adagrad");
    println!("# Mrows/s, and the ratio to the limit on the same keys in the same round");
    for &millions in &millions {
        let rows = millions * 1_000_000;
        let mut zipf = Zipf::new(rows, 1.05, 7);
        let batches: Vec<Vec<u64>> = (0..BATCHES).map(|_| zipf.unique_batch(BATCH)).collect();
        for &dim in &dims {
            let mut limits = Limits {
                f32: Array::new((0..rows * dim).map(|_| 0.1)),
                sums: Array::new((0..rows).map(|_| 0.1)),
                int8: Array::new((0..rows * (dim + 2)).map(|i| (i % 64) as u8)),
            };
            println!("\n# {millions}M rows, dim {dim}");
            println!("{:<26} {:>9} {:>7} {:>9} {:>7} {:>9}", "table", "pull", "ratio", "push", "ratio", "push hits");
            for spec in specs(rows as u64, dim) {
                case(&spec, &batches, &mut limits);
            }
        }
    }
}

fn specs(rows: u64, dim: usize) -> Vec<TableSpec> {
    let mut specs = Vec::new();
    for precision in [Precision::F32, Precision::F16, Precision::Int8, Precision::Int4, Precision::Int2] {
        for cache in [0.0, 1.0, 5.0] {
            for policy in [Policy::Lru, Policy::Lfu] {
                // An f32 table has no cache, and no cache has no policy.
                if (precision == Precision::F32 && cache > 0.0) || (cache == 0.0 && policy == Policy::Lfu) {
                    continue;
                }
                specs.push(
                    TableSpec::dense("t", rows, dim)
                        .precision(precision)
                        .cache(CacheBudget::Percent(cache))
                        .policy(policy)
                        .initializer(Initializer::Zeros)
                        .optimizer(Optimizer::rowwise_adagrad(), 0.01),
                );
            }
        }
    }
    specs
}

fn case(spec: &TableSpec, batches: &[Vec<u64>], limits: &mut Limits) {
    let dim = spec.dim;
    let engine = Engine::new(EngineConfig { threads: 1, ..EngineConfig::default() }).unwrap();
    engine.create(spec).unwrap();
    let values = gradients(BATCH * dim, 3);
    let push =
        |keys: &Vec<u64>| engine.push(&[Push { table: "t", keys, gradients: &values, ..Push::default() }]).unwrap();
    for _ in 0..2 {
        for keys in batches {
            push(keys);
        }
    }
    let mut out = vec![0.0; BATCH * dim];
    let (mut pull_limit, mut pull, mut push_limit, mut pushed) = (vec![], vec![], vec![], vec![]);
    let before = engine.stats("t").unwrap().changes;
    for keys in batches.iter().cycle().take(ROUNDS) {
        pull_limit.push(match spec.precision {
            Precision::F32 => seconds(|| limits::gather_f32(limits.f32.as_ref(), dim, keys, black_box(&mut out))),
            _ => seconds(|| limits::gather_int8(limits.int8.as_ref(), dim, keys, black_box(&mut out))),
        });
        pull.push(seconds(|| engine.pull(&[Pull { table: "t", keys }], black_box(&mut out)).unwrap()));
        push_limit.push(seconds(|| {
            limits::rowwise_adagrad(limits.f32.as_mut(), limits.sums.as_mut(), dim, keys, &values, 0.01);
        }));
        pushed.push(seconds(|| push(keys)));
    }
    let after = engine.stats("t").unwrap().changes;
    let ratio =
        |limit: &[f64], ours: &[f64]| median(limit.iter().zip(ours).map(|(limit, ours)| limit / ours).collect());
    let name = match (spec.precision, spec.cache) {
        (Precision::F32, _) => "f32".into(),
        (precision, CacheBudget::Percent(cache)) if cache > 0.0 => format!("{precision} + {cache} % {}", spec.policy),
        (precision, _) => format!("{precision}, no cache"),
    };
    println!(
        "{name:<26} {:>9.2} {:>7.2} {:>9.2} {:>7.2} {:>8.1} %",
        BATCH as f64 / median(pull.clone()) / 1e6,
        ratio(&pull_limit, &pull),
        BATCH as f64 / median(pushed.clone()) / 1e6,
        ratio(&push_limit, &pushed),
        100.0 * (after.push_hits - before.push_hits) as f64 / (ROUNDS * BATCH) as f64,
    );
}
