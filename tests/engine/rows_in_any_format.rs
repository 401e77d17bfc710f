//! Rows are handed out in the format that is asked for: rounded to the nearest, or as they are stored where the table's own
//! format is asked for, so that nothing is rounded twice.

use hotrow::{
    CacheBudget, Engine, EngineConfig, Error, PooledPull, Pooling, Precision, Pull, Push, Quantizer, Remove, RowFormat,
    TableSpec, Touch,
};

use crate::reference;
use crate::support::random::{Random, key};
use crate::support::{SHARED, bits, formats, to_reference_precision, to_reference_quantizer};

const FORMATS: [(RowFormat, Precision); 4] = [
    (RowFormat::F32, Precision::F32),
    (RowFormat::F16, Precision::F16),
    (RowFormat::Bf16, Precision::Bf16),
    (RowFormat::Int8, Precision::Int8),
];
const KEYS: u64 = 300;

/// A table of which some rows are cached, some stored, some removed and some never seen.
fn trained(spec: &TableSpec, seed: u64) -> (Engine, Vec<u64>) {
    let config = EngineConfig { partitions: 4, small_table_bytes: 0, threads: 2, ..crate::support::config() };
    let engine = Engine::new(config).unwrap();
    engine.create(spec).unwrap();
    let keys: Vec<u64> = (0..KEYS).map(|small| key(spec, small)).collect();
    let mut random = Random(seed);
    for _ in 0..5 {
        let some: Vec<u64> = (0..200).map(|_| keys[random.below(KEYS - 50) as usize]).collect();
        let gradients = random.numbers(some.len() * spec.dim);
        engine.push(&[Push { table: "t", keys: &some, gradients: &gradients, ..Push::default() }]).unwrap();
    }
    engine.remove(&[Remove { table: "t", keys: &keys[..20] }]).unwrap();
    // Every key more than once, in no order, and enough of them for the compute threads.
    let asked = (0..SHARED).map(|_| keys[random.below(KEYS) as usize]).collect();
    (engine, asked)
}

fn tables(dim: usize) -> Vec<TableSpec> {
    let spec = |table: TableSpec, (precision, quantizer): (Precision, Quantizer)| {
        table.precision(precision).quantizer(quantizer).cache(CacheBudget::Rows(90))
    };
    let both = |format| [spec(TableSpec::dense("t", KEYS, dim), format), spec(TableSpec::hashed("t", dim), format)];
    formats().into_iter().flat_map(both).collect()
}

fn nearest(precision: reference::Precision, row: &[f32]) -> Vec<u8> {
    reference::encode_weights(precision, reference::Quantizer::Symmetric, reference::Rounding::Nearest, row, 0, 0, 0)
}

#[test]
fn rows_are_rounded_once() {
    // Loops are compiled for some of these; the longest rows are longer than what is asked for ahead.
    for (seed, dim) in (1..).zip([1, 7, 16, 32, 64, 100, 128, 300]) {
        for spec in tables(dim) {
            let (engine, keys) = trained(&spec, seed);
            let mut exact = vec![0.0; keys.len() * dim];
            engine.pull(&[Pull { table: "t", keys: &keys }], &mut exact).unwrap();
            let mut seen = [0; 3];
            for (format, precision) in FORMATS {
                let row_bytes = format.row_bytes(dim);
                let mut out = vec![0; keys.len() * row_bytes];
                let before = engine.stats("t").unwrap();
                engine.pull_as(format, &[Pull { table: "t", keys: &keys }], &mut out).unwrap();
                let after = engine.stats("t").unwrap();
                let mut hits = 0;
                for ((&key, exact), row) in keys.iter().zip(exact.chunks_exact(dim)).zip(out.chunks_exact(row_bytes)) {
                    let precision = to_reference_precision(precision);
                    let read = reference::decode_weights(precision, reference::Quantizer::Symmetric, dim, row);
                    let state = engine.inspect("t", key).unwrap();
                    assert_eq!(bits(&state.weights), bits(exact), "{spec:?}, key {key}: a pull reads another row");
                    hits += u64::from(state.cached);
                    let own = matches!(
                        (format, spec.precision, spec.quantizer),
                        (RowFormat::F32, ..)
                            | (RowFormat::F16, Precision::F16, _)
                            | (RowFormat::Bf16, Precision::Bf16, _)
                            | (RowFormat::Int8, Precision::Int8, Quantizer::Symmetric)
                    );
                    if own && state.stored && !state.cached {
                        seen[0] += 1;
                        assert_eq!(bits(&read), bits(exact), "{format} of {spec:?}, key {key}: not what is stored");
                        continue;
                    }
                    seen[if state.cached { 1 } else { 2 }] += 1;
                    assert_eq!(row, nearest(precision, exact), "{format} of {spec:?}, key {key}: not the nearest");
                }
                assert_eq!(after.pull_hits - before.pull_hits, hits);
                assert_eq!(after.pull_misses - before.pull_misses, keys.len() as u64 - hits);
            }
            let rounds = spec.precision != Precision::F32;
            assert!(seen[0] > 0 && (seen[1] > 0 || !rounds) && (seen[2] > 0 || !rounds), "{spec:?}: {seen:?}");
        }
    }
}

/// What is looked at ahead of the row that is read ends where the keys end.
#[test]
fn requests_of_any_length() {
    let dim = 16;
    for spec in tables(dim) {
        let (engine, keys) = trained(&spec, 3);
        for (format, _) in FORMATS {
            let row_bytes = format.row_bytes(dim);
            let mut all = vec![0; keys.len() * row_bytes];
            engine.pull_as(format, &[Pull { table: "t", keys: &keys }], &mut all).unwrap();
            for len in 1..=70 {
                let mut some = vec![0; len * row_bytes];
                engine.pull_as(format, &[Pull { table: "t", keys: &keys[..len] }], &mut some).unwrap();
                assert_eq!(some, all[..len * row_bytes], "the first {len} rows in {format} of {spec:?}");
            }
        }
    }
}

#[test]
fn bags_are_rounded_when_they_are_summed() {
    let dim = 20;
    for spec in tables(dim) {
        let (engine, keys) = trained(&spec, 9);
        let offsets: Vec<u64> = (0..keys.len() as u64).step_by(7).collect();
        let bags = PooledPull { table: "t", keys: &keys, offsets: &offsets, weights: None, pooling: Pooling::Mean };
        let mut exact = vec![0.0; offsets.len() * dim];
        engine.pull_pooled(&[bags], &mut exact).unwrap();
        for (format, precision) in FORMATS {
            let mut out = vec![0; offsets.len() * format.row_bytes(dim)];
            engine.pull_pooled_as(format, &[bags], &mut out).unwrap();
            let expected: Vec<u8> =
                exact.chunks_exact(dim).flat_map(|row| nearest(to_reference_precision(precision), row)).collect();
            assert_eq!(out, expected, "{format} of {spec:?}");
        }
    }
}

#[test]
fn the_stored_form_of_a_row_is_what_is_stored() {
    for (seed, dim) in [(1, 1), (2, 7), (3, 64), (4, 100)] {
        for spec in tables(dim) {
            let (engine, keys) = trained(&spec, seed);
            // Some of those that were written back come in again, and are clean.
            engine.touch(&[Touch { table: "t", keys: &keys[..40] }]).unwrap();
            let pull = Pull { table: "t", keys: &keys };
            let mut exact = vec![0.0; keys.len() * dim];
            engine.pull(&[pull], &mut exact).unwrap();
            let before = (engine.stats("t").unwrap(), engine.digests());

            let mut read = vec![0.0; exact.len()];
            engine.read(pull, &mut read).unwrap();
            assert_eq!(bits(&read), bits(&exact), "{spec:?}");
            let format = engine.stored_format("t").unwrap();
            let (precision, quantizer) = format.parts();
            assert_eq!((precision, quantizer.unwrap_or(spec.quantizer)), (spec.precision, spec.quantizer));
            let mut out = vec![0; keys.len() * format.bytes(dim)];
            engine.read_stored(pull, &mut out).unwrap();
            assert_eq!(
                (engine.stats("t").unwrap(), engine.digests()),
                before,
                "{spec:?}: reading has changed something"
            );

            let (precision, quantizer) = (to_reference_precision(precision), to_reference_quantizer(spec.quantizer));
            let mut seen = [0; 4];
            let rows = exact.chunks_exact(dim).zip(out.chunks_exact(format.bytes(dim)));
            for (&key, (exact, row)) in keys.iter().zip(rows) {
                let state = engine.inspect("t", key).unwrap();
                seen[usize::from(state.cached) + 2 * usize::from(state.stored && !state.dirty)] += 1;
                if state.stored && !state.dirty {
                    let decoded = reference::decode_weights(precision, quantizer, dim, row);
                    assert_eq!(bits(&decoded), bits(exact), "{spec:?}, key {key}: not what is stored");
                } else {
                    let nearest =
                        reference::encode_weights(precision, quantizer, reference::Rounding::Nearest, exact, 0, 0, 0);
                    assert_eq!(row, nearest, "{spec:?}, key {key}: not the nearest");
                }
            }
            let cached = spec.precision != Precision::F32;
            assert!(seen[0] > 0 && seen[2] > 0 && (!cached || seen[1] > 0 && seen[3] > 0), "{spec:?}: {seen:?}");
        }
    }
}

#[test]
fn the_stored_form_of_what_is_not_there_is_refused() {
    let spec = TableSpec::dense("t", KEYS, 4);
    let (engine, _) = trained(&spec, 5);
    let row = engine.stored_format("t").unwrap().bytes(4);
    let read = |table, keys: &[u64], bytes| engine.read_stored(Pull { table, keys }, &mut vec![0; bytes]);
    assert_eq!(read("t", &[1, 2], 2 * row), Ok(()));
    assert_eq!(read("t", &[], 0), Ok(()));
    assert_eq!(read("nobody", &[1], row), Err(Error::UnknownTable("nobody".into())));
    assert!(matches!(read("t", &[KEYS], row), Err(Error::KeyOutOfRange { key: KEYS, .. })));
    assert!(matches!(read("t", &[1], row + 1), Err(Error::WrongLength { .. })));
    let wrong = engine.read(Pull { table: "t", keys: &[1] }, &mut [0.0; 5]);
    assert!(matches!(wrong, Err(Error::WrongLength { .. })));
}
