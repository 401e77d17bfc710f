//! The kernels for AVX2 and AVX-512 give the bits of the portable ones. One test only: the switch is for the whole process.
//! On a CPU without these it compares the best that it has.

mod reference;
mod support;

use hotrow::numeric::format::{decode_rows, encode_rows};
use hotrow::numeric::simd::at_most;
use hotrow::numeric::{Noise, WeightFormat};
use hotrow::{Pull, Rounding};
use support::bits;
use support::changes::{KEYS, Owned, engine_with, two_tables};
use support::random::{Random, key};

/// Rows side by side: ordinary, tiny, subnormal, huge, with zeros, all zero, and with a NaN.
fn rows(dim: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let mut all = Vec::new();
    for range in [1.0, 0.01, 1e-12, 1e-20, 1e-39, 1e3, 1e30, f32::MAX, 0.0] {
        all.extend(random.row(dim, range));
    }
    let mut mixed = random.numbers(dim);
    mixed[dim / 2] = -0.0;
    all.extend(&mixed);
    mixed[dim - 1] = f32::NAN;
    all.extend(&mixed);
    all
}

/// What the kernels make of such rows, for every format: stored bytes and the numbers read back.
fn codes(dim: usize) -> Vec<(Vec<u8>, Vec<u32>)> {
    let rows = rows(dim, dim as u64);
    let mut all = Vec::new();
    for (precision, quantizer) in support::formats() {
        let format = WeightFormat::new(precision, quantizer).unwrap();
        for rounding in [Rounding::Stochastic, Rounding::Nearest] {
            let noise = Noise { seed: 3, partition: 5, write_back: u64::from(u32::MAX) - 2 };
            let mut stored = vec![0; rows.len() / dim * format.bytes(dim)];
            encode_rows(format, dim, &rows, rounding, noise, &mut stored);
            let mut read = vec![0.0; rows.len()];
            decode_rows(format, dim, &stored, &mut read);
            all.push((stored, bits(&read)));
        }
    }
    all
}

/// Digests of all partitions, and the rows of a pull.
type Outcome = (Vec<(u32, u64)>, Vec<u32>);

/// The outcome of a workload, for everything in the matrix.
fn workload() -> Vec<Outcome> {
    let mut all = Vec::new();
    for (seed, (format, policy, optimizer)) in support::matrix().into_iter().enumerate() {
        let tables = two_tables(format, policy, optimizer);
        let engine = engine_with(&tables, 4, 1);
        let mut random = Random(seed as u64);
        for _ in 0..30 {
            Owned::random(&mut random, &tables, 30).apply(&engine).unwrap();
        }
        let mut out = Vec::new();
        for table in &tables {
            let keys: Vec<u64> = (0..KEYS).map(|small| key(table, small)).collect();
            let mut rows = vec![0.0; keys.len() * table.dim];
            engine.pull(&[Pull { table: &table.name, keys: &keys }], &mut rows).unwrap();
            out.extend(bits(&rows));
        }
        all.push((engine.digests(), out));
    }
    all
}

#[test]
fn all_kernels_give_the_same_bits() {
    let levels = ["portable", "avx2", "avx512"];
    let at = |level: &str, dim: usize| {
        at_most(level);
        codes(dim)
    };
    for dim in (1..=130).chain([4096]) {
        let portable = at("portable", dim);
        for level in &levels[1..] {
            assert_eq!(at(level, dim), portable, "{level}, dim {dim}");
        }
    }
    let [portable, others @ ..] = levels.map(|level| {
        at_most(level);
        (level, workload())
    });
    for (level, outcomes) in others {
        for ((outcome, expected), case) in outcomes.into_iter().zip(&portable.1).zip(support::matrix()) {
            assert_eq!(outcome, *expected, "{level}, {case:?}");
        }
    }
}
