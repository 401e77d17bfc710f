//! A request that cannot be done is refused whole, with an error that says what to do, and nothing is changed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::support::changes::{engine, engine_with};
use crate::support::random::Random;
use hotrow::{
    Assign, CacheBudget, Change, Engine, EngineConfig, Error, Initializer, KeySpace, Lsn, Optimizer, Policy,
    PoolConfig, PooledPull, Pooling, Precision, Pull, Push, Quantizer, Remove, Result, TableSpec, TableStats, Touch,
};

const DIM: usize = 3;

fn tables() -> Vec<TableSpec> {
    let dense = TableSpec::dense("dense", 100, DIM).cache(CacheBudget::Rows(16));
    let hashed = TableSpec::hashed("hashed", DIM).cache(CacheBudget::Rows(16)).policy(Policy::Lfu);
    let adam = TableSpec::hashed("adam", DIM).optimizer(Optimizer::adam(), 0.1).cache(CacheBudget::Rows(16));
    vec![dense, hashed, adam]
}

/// An engine with three tables that hold something, in the cache and out of it.
fn used() -> Engine {
    let engine = engine_with(&tables(), 4, 2);
    let keys: Vec<u64> = (0..60).collect();
    let gradients = Random(1).row(keys.len() * DIM, 1.0);
    for table in tables() {
        let push = Push { table: &table.name, keys: &keys, gradients: &gradients, step: Some(1), ..Push::default() };
        engine.push(&[push]).unwrap();
    }
    engine
}

/// Everything that a refused request must leave alone.
#[derive(Debug, PartialEq)]
struct Seen {
    digests: Vec<(u32, u64)>,
    last: Lsn,
    tables: Vec<TableStats>,
    memory: u64,
}

fn look(engine: &Engine) -> Seen {
    Seen {
        digests: engine.digests(),
        last: engine.last_lsn(),
        tables: engine.table_names().iter().map(|name| engine.stats(name).unwrap()).collect(),
        memory: engine.memory_used(),
    }
}

/// Checks that `request` is refused with an error that `expected` accepts, that the message has `word`, and that
/// nothing was changed.
fn refused<T: std::fmt::Debug>(
    engine: &Engine,
    word: &str,
    expected: impl Fn(&Error) -> bool,
    request: impl FnOnce(&Engine) -> Result<T>,
) {
    let before = look(engine);
    let error = request(engine).expect_err(word);
    assert!(expected(&error), "{error:?} is not the error for '{word}'");
    let message = error.to_string();
    assert!(message.contains(word), "'{message}' does not say '{word}'");
    assert_eq!(look(engine), before, "{message}");
}

/// A push of `gradients` to as many keys of a table as they are for.
fn push<'a>(table: &'a str, gradients: &'a [f32]) -> Push<'a> {
    static KEYS: LazyLock<Vec<u64>> = LazyLock::new(|| (0..90).cycle().take(1000).collect());
    Push { table, keys: &KEYS[..gradients.len() / DIM], gradients, step: Some(1), ..Push::default() }
}

#[test]
fn numbers_that_are_not_finite() {
    let engine = used();
    let not_finite = |error: &Error| matches!(error, Error::NotFinite { .. });
    let good = vec![0.5; 900 * DIM];
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in [0, 1, good.len() / 2, good.len() - 1] {
            let mut numbers = good.clone();
            numbers[place] = bad;
            for table in ["dense", "hashed", "adam"] {
                refused(&engine, "learning rate", not_finite, |e| e.push(&[push(table, &numbers)]));
            }
            // The table that is fine is not changed either.
            refused(&engine, "'hashed'", not_finite, |e| e.push(&[push("dense", &good), push("hashed", &numbers)]));
            refused(&engine, "'dense'", not_finite, |e| e.push(&[push("hashed", &good), push("dense", &numbers)]));
        }
        let (keys, row) = (&[1, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, bad]);
        let assign = Assign { table: "dense", keys, weights: row, state: None };
        refused(&engine, "weights", not_finite, |e| e.assign(&[assign]));
        let assign = Assign { table: "dense", keys, weights: &[1.0; 6], state: Some(&[1.0, bad]) };
        refused(&engine, "state", not_finite, |e| e.assign(&[assign]));
        let bags =
            PooledPull { table: "dense", keys, offsets: &[0], weights: Some(&[bad, 1.0]), pooling: Pooling::Sum };
        refused(&engine, "weights", not_finite, |e| e.pull_pooled(&[bags], &mut [0.0; DIM]));
    }
}

#[test]
fn wrong_lengths() {
    let engine = used();
    let wrong = |what: &'static str, expected: usize, actual: usize| {
        move |error: &Error| {
            let (w, e, a) = (what, expected, actual);
            matches!(error, Error::WrongLength { what, expected, actual, .. } if (*what, *expected, *actual) == (w, e, a))
        }
    };
    let keys = &[1, 2];
    for len in [0, 5, 7] {
        let numbers = &[0.5; 7][..len];
        let short = Push { table: "hashed", keys, gradients: numbers, ..Push::default() };
        refused(&engine, "expected 6", wrong("gradients", 6, len), |e| e.push(&[short]));
        refused(&engine, "expected 6", wrong("gradients", 6, len), |e| e.push(&[push("dense", &[0.5; DIM]), short]));
        let assign = Assign { table: "hashed", keys, weights: numbers, state: None };
        refused(&engine, "expected 6", wrong("weights", 6, len), |e| e.assign(&[assign]));
        let assign = Assign { table: "adam", keys, weights: &[0.5; 6], state: Some(numbers) };
        refused(&engine, "expected 12", wrong("state", 12, len), |e| e.assign(&[assign]));
        let pull = Pull { table: "dense", keys };
        refused(&engine, "expected 6", wrong("out", 6, len), |e| e.pull(&[pull], &mut [0.0; 7][..len]));
        let bags = PooledPull { table: "dense", keys, offsets: &[0, 1], weights: None, pooling: Pooling::Sum };
        refused(&engine, "expected 6", wrong("out", 6, len), |e| e.pull_pooled(&[bags], &mut [0.0; 7][..len]));
        let bags = PooledPull { weights: Some(numbers), ..bags };
        refused(&engine, "expected 2", wrong("weights", 2, len), |e| e.pull_pooled(&[bags], &mut [0.0; 6]));
    }
}

#[test]
fn unknown_tables_and_tables_named_twice() {
    let engine = used();
    let unknown = |error: &Error| *error == Error::UnknownTable("other".into());
    let twice = |error: &Error| *error == Error::TableTwice("dense".into());
    let (keys, weights) = (&[1u64][..], &[0.5; DIM][..]);
    let touch = |table| Touch { table, keys };
    let assign = |table| Assign { table, keys, weights, state: None };
    let remove = |table| Remove { table, keys };
    let bags = |table| PooledPull { table, keys, offsets: &[0], weights: None, pooling: Pooling::Sum };
    for first in [false, true] {
        // The unknown table comes alone, or after one that is known.
        let with = |table: &'static str| if first { vec!["dense", table] } else { vec![table] };
        let names = with("other");
        let pushes: Vec<Push<'_>> = names.iter().map(|name| push(name, weights)).collect();
        refused(&engine, "create it first", unknown, |e| e.push(&pushes));
        refused(&engine, "create it first", unknown, |e| e.touch(&names.iter().map(|n| touch(n)).collect::<Vec<_>>()));
        refused(&engine, "create it first", unknown, |e| {
            e.assign(&names.iter().map(|name| assign(name)).collect::<Vec<_>>())
        });
        refused(&engine, "create it first", unknown, |e| {
            e.remove(&names.iter().map(|name| remove(name)).collect::<Vec<_>>())
        });
        let pulls: Vec<Pull<'_>> = names.iter().map(|table| Pull { table, keys }).collect();
        refused(&engine, "create it first", unknown, |e| e.pull(&pulls, &mut [0.0; DIM]));
        let pulls: Vec<PooledPull<'_>> = names.iter().map(|name| bags(name)).collect();
        refused(&engine, "create it first", unknown, |e| e.pull_pooled(&pulls, &mut [0.0; DIM]));
    }
    refused(&engine, "create it first", unknown, |e| e.inspect("other", 1));
    refused(&engine, "create it first", unknown, |e| e.stats("other"));
    refused(&engine, "create it first", unknown, |e| e.spec("other"));
    refused(&engine, "create it first", unknown, |e| e.partition_of("other", 1));
    refused(&engine, "create it first", unknown, |e| e.drop_table("other"));

    let pushes = [push("dense", weights), push("hashed", weights), push("dense", weights)];
    refused(&engine, "merge", twice, |e| e.push(&pushes));
    refused(&engine, "merge", twice, |e| e.touch(&[touch("dense"), touch("dense")]));
    refused(&engine, "merge", twice, |e| e.assign(&[assign("dense"), assign("dense")]));
    refused(&engine, "merge", twice, |e| e.remove(&[remove("dense"), remove("dense")]));
}

#[test]
fn keys_out_of_range() {
    let engine = used();
    for key in [100, 101, u64::MAX] {
        let out = |error: &Error| *error == Error::KeyOutOfRange { table: "dense".into(), key, rows: 100 };
        let keys = &[99, key];
        let numbers = &[0.5; 2 * DIM];
        let word = "keys 0 to 99";
        refused(&engine, word, out, |e| {
            e.push(&[Push { table: "dense", keys, gradients: numbers, ..Push::default() }])
        });
        refused(&engine, word, out, |e| {
            let dense = Push { table: "dense", keys, gradients: numbers, ..Push::default() };
            e.push(&[push("hashed", numbers), dense])
        });
        refused(&engine, word, out, |e| e.touch(&[Touch { table: "dense", keys }]));
        refused(&engine, word, out, |e| e.assign(&[Assign { table: "dense", keys, weights: numbers, state: None }]));
        refused(&engine, word, out, |e| e.remove(&[Remove { table: "dense", keys }]));
        refused(&engine, word, out, |e| e.pull(&[Pull { table: "dense", keys }], &mut [0.0; 2 * DIM]));
        let bags = PooledPull { table: "dense", keys, offsets: &[0], weights: None, pooling: Pooling::Sum };
        refused(&engine, word, out, |e| e.pull_pooled(&[bags], &mut [0.0; DIM]));
        refused(&engine, word, out, |e| e.inspect("dense", key));
    }
}

#[test]
fn options_that_do_not_fit() {
    let engine = used();
    let invalid = |error: &Error| matches!(error, Error::InvalidRequest { .. });
    let row = &[0.5; DIM];
    for step in [None, Some(0)] {
        let no_step = Push { step, ..push("adam", row) };
        refused(&engine, "step number", invalid, |e| e.push(&[no_step]));
        refused(&engine, "step number", invalid, |e| e.push(&[push("dense", row), no_step]));
    }
    for rate in [-0.1, f32::NAN, f32::INFINITY] {
        let bad_rate = Push { learning_rate: Some(rate), ..push("dense", row) };
        refused(&engine, "learning rate", invalid, |e| e.push(&[bad_rate]));
        refused(&engine, "learning rate", invalid, |e| e.push(&[push("hashed", row), bad_rate]));
    }
    let bags = PooledPull { table: "dense", keys: &[1, 2, 3], offsets: &[0], weights: None, pooling: Pooling::Sum };
    for (offsets, word) in [
        (&[][..], "start with 0"),
        (&[1][..], "start with 0"),
        (&[0, 2, 1][..], "not decrease"),
        (&[0, 4][..], "number of keys, 3"),
        (&[0, u64::MAX][..], "number of keys, 3"),
    ] {
        let mut out = vec![0.0; offsets.len() * DIM];
        refused(&engine, word, invalid, |e| e.pull_pooled(&[PooledPull { offsets, ..bags }], &mut out));
    }
    let weighted_mean = PooledPull { weights: Some(&[1.0; 3]), pooling: Pooling::Mean, ..bags };
    refused(&engine, "sum pooling", invalid, |e| e.pull_pooled(&[weighted_mean], &mut [0.0; DIM]));
}

#[test]
fn invalid_specs() {
    let dense = || TableSpec::dense("new", 100, DIM);
    let hashed = || TableSpec::hashed("new", DIM);
    let named = |name: &str| TableSpec { name: name.into(), ..dense() };
    let rows = |rows| TableSpec { keys: KeySpace::Dense { rows }, ..dense() };
    let stepped = |optimizer| dense().optimizer(optimizer, 0.1);
    let adam = |beta1, beta2, eps| stepped(Optimizer::Adam { beta1, beta2, eps });
    let normal = |mean, std| dense().initializer(Initializer::Normal { mean, std });
    let uniform = |low, high| dense().initializer(Initializer::Uniform { low, high });
    let specs = vec![
        (named(""), "a name has"),
        (named(&"x".repeat(256)), "255"),
        (named("a b"), "letters"),
        (named("é"), "letters"),
        (TableSpec { dim: 0, ..dense() }, "from 1 to 4096"),
        (TableSpec { dim: 4097, ..dense() }, "from 1 to 4096"),
        (rows(0), "at least one row"),
        (rows((1 << 40) + 1), "use a hashed one"),
        (rows(1 << 40), "partitions"),
        (dense().precision(Precision::Int2).quantizer(Quantizer::Symmetric), "affine"),
        (hashed().initializer(Initializer::Dlrm), "use uniform"),
        (dense().cache(CacheBudget::Percent(-1.0)), "0 to 100"),
        (dense().cache(CacheBudget::Percent(100.1)), "0 to 100"),
        (dense().cache(CacheBudget::Percent(f64::NAN)), "0 to 100"),
        (hashed().cache(CacheBudget::Percent(5.0)), "rows or bytes"),
        (hashed().cache(CacheBudget::Rows(1 << 40)), "too large"),
        (dense().optimizer(Optimizer::Sgd, -1.0), "learning rate"),
        (dense().optimizer(Optimizer::Sgd, f32::NAN), "learning rate"),
        (dense().optimizer(Optimizer::Sgd, f32::INFINITY), "learning rate"),
        (dense().weight_decay(-1.0), "weight decay"),
        (dense().weight_decay(f32::NAN), "weight decay"),
        (dense().clip_norm(0.0), "clipping norm"),
        (dense().clip_norm(-1.0), "clipping norm"),
        (dense().clip_norm(f32::INFINITY), "clipping norm"),
        (stepped(Optimizer::Adagrad { eps: -1.0 }), "eps >= 0"),
        (stepped(Optimizer::RowwiseAdagrad { eps: f32::NAN }), "eps >= 0"),
        (adam(1.0, 0.9, 1e-8), "betas"),
        (adam(0.9, 1.0, 1e-8), "betas"),
        (adam(-0.1, 0.9, 1e-8), "betas"),
        (adam(0.9, f32::NAN, 1e-8), "betas"),
        (stepped(Optimizer::AdamW { beta1: 0.9, beta2: 0.999, eps: -1e-8 }), "eps >= 0"),
        (dense().initializer(Initializer::Constant(f32::NAN)), "constant must be finite"),
        (uniform(1.0, -1.0), "low <= high"),
        (uniform(f32::NAN, 1.0), "low <= high"),
        (uniform(-f32::MAX, f32::MAX), "finite"),
        (uniform(0.0, f32::INFINITY), "finite"),
        (normal(f32::NAN, 1.0), "finite mean"),
        (normal(0.0, -1.0), "not negative"),
        (normal(0.0, f32::INFINITY), "finite std"),
    ];
    let engine = used();
    let memory = engine.memory_used();
    for (spec, word) in &specs {
        let about = |error: &Error| matches!(error, Error::InvalidSpec { table, .. } if *table == spec.name);
        refused(&engine, word, about, |e| e.create(spec));
    }
    let other = dense().cache(CacheBudget::Rows(7));
    let exists = |error: &Error| *error == Error::TableExists("dense".into());
    refused(&engine, "drop it first", exists, |e| e.create(&TableSpec { name: "dense".into(), ..other }));
    assert_eq!(engine.table_names().len(), 3);
    // Room for new keys is made before a change is ordered; what a refused one leaves is small and is used later.
    assert!(engine.memory_used() - memory < 4096);

    // The same spec again is no mistake, and no change.
    let before = look(&engine);
    assert_eq!(engine.create(&tables()[0]), Ok(engine.last_lsn()));
    assert_eq!(look(&engine), before);
}

#[test]
fn invalid_engines() {
    let config = || engine(8, 1).config().clone();
    for (config, word) in [
        (EngineConfig { partitions: 0, ..config() }, "power of two"),
        (EngineConfig { partitions: 12, ..config() }, "power of two"),
        (EngineConfig { partitions: 1 << 17, ..config() }, "65536"),
        (EngineConfig { owned: Some(vec![]), ..config() }, "0 to 7"),
        (EngineConfig { owned: Some(vec![0, 8]), ..config() }, "0 to 7"),
    ] {
        let error = Engine::new(config.clone()).err().unwrap_or_else(|| panic!("{config:?} was accepted"));
        assert!(matches!(error, Error::InvalidConfig(_)), "{error:?}");
        assert!(error.to_string().contains(word), "'{error}' does not say '{word}'");
    }
}

fn out_of_memory(error: &Error) -> bool {
    matches!(error, Error::OutOfMemory { .. } | Error::OutOfDeviceMemory { .. })
}

/// An engine with a memory budget, and the same on its GPU, if it has one.
fn engine_of(budget: u64) -> Engine {
    let mut config = EngineConfig { memory_budget: Some(budget), ..engine(4, 1).config().clone() };
    if let PoolConfig::Cuda(cuda) = &mut config.pool {
        cuda.memory = Some(budget);
    }
    Engine::new(config).unwrap()
}

#[test]
fn a_table_that_does_not_fit() {
    let engine = engine_of(1 << 20);
    let spec = |name: &str, rows| TableSpec::dense(name, rows, 64).cache(CacheBudget::Rows(0));
    engine.create(&spec("fits", 8000)).unwrap();
    let used = engine.memory_used();
    assert!(used > 8000 * 66 && used <= 1 << 20);
    refused(&engine, "raise the budget", out_of_memory, |e| e.create(&spec("too_large", 8000)));
    let large_cache = spec("too_large", 100).cache(CacheBudget::Rows(100));
    let raise = if engine.device().is_some() { "raise --device-memory" } else { "raise the budget" };
    refused(&engine, raise, out_of_memory, |e| e.create(&TableSpec { dim: 4096, ..large_cache.clone() }));
    // Sizes that overflow are too large as well.
    let huge = TableSpec::dense("too_large", (1 << 33) - 1, 4096);
    refused(&engine, "raise the budget", out_of_memory, |e| e.create(&huge));
    assert_eq!(engine.memory_used(), used);

    engine.drop_table("fits").unwrap();
    assert_eq!(engine.memory_used(), 0);
    engine.create(&spec("too_large", 8000)).unwrap();
}

#[test]
fn a_hashed_table_that_grows_to_the_limit() {
    let engine = engine_of(300 << 10);
    let spec = TableSpec::hashed("t", 16).cache(CacheBudget::Rows(64));
    let push = |engine: &Engine, keys: &[u64]| {
        let gradients = vec![0.5; keys.len() * 16];
        engine.push(&[Push { table: "t", keys, gradients: &gradients, ..Push::default() }])
    };
    for round in 0..2 {
        engine.create(&spec).unwrap();
        let mut known = Vec::new();
        let error = loop {
            assert!(known.len() < 100_000, "the budget has no effect");
            let keys: Vec<u64> = (known.len() as u64..).take(50).collect();
            match push(&engine, &keys) {
                Ok(_) => known.extend(keys),
                Err(error) => break error,
            }
        };
        assert!(out_of_memory(&error), "{error:?}");
        // The budget is used to a good part, or the limit would be one in name only.
        assert!(known.len() > 1000, "round {round}: {} rows", known.len());
        assert!(engine.memory_used() <= 300 << 10);
        // A request of thousands of new keys does not fit in whatever room the partitions have left.
        let new: Vec<u64> = (1 << 40..(1 << 40) + 5000).collect();
        let weights = vec![0.5; new.len() * 16];
        refused(&engine, "drop a table", out_of_memory, |e| push(e, &new));
        refused(&engine, "drop a table", out_of_memory, |e| e.touch(&[Touch { table: "t", keys: &new }]));
        refused(&engine, "drop a table", out_of_memory, |e| {
            e.assign(&[Assign { table: "t", keys: &new, weights: &weights, state: None }])
        });
        // Rows that are there can be trained on, all at once and each more than once.
        push(&engine, &known).unwrap();
        push(&engine, &known.repeat(3)).unwrap();
        assert_eq!(engine.stats("t").unwrap().rows, known.len() as u64);
        // Those that are removed make room for as many others of their partitions.
        let gone = &known[..100];
        engine.remove(&[Remove { table: "t", keys: gone }]).unwrap();
        push(&engine, gone).unwrap();
        engine.drop_table("t").unwrap();
        assert_eq!(engine.memory_used(), 0);
    }
}

#[test]
fn a_log_that_refuses() {
    let engine = used();
    let full = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&full);
    engine.set_log(Box::new(move |_, _| match switch.load(Ordering::Relaxed) {
        true => Err("the disk is full".into()),
        false => Ok(()),
    }));
    let memory = engine.memory_used();
    let spec = TableSpec::dense("new", 1000, DIM);
    let (keys, weights) = (&[1, 2][..], &[0.5; 2 * DIM][..]);
    let requests = [
        Change::Create(&spec),
        Change::Drop("dense"),
        Change::Push(&[push("dense", weights), push("hashed", weights)]),
        Change::Touch(&[Touch { table: "hashed", keys: &[1 << 50] }]),
        Change::Assign(&[Assign { table: "hashed", keys: &[1 << 51, 2], weights, state: None }]),
        Change::Remove(&[Remove { table: "dense", keys }]),
    ];
    for request in &requests {
        // Room for new keys is made before a change is ordered. It is all that a refused one leaves, and it is used later.
        let _ = engine.apply(request).unwrap_err();
        let expected = |error: &Error| *error == Error::NotOrdered("the disk is full".into());
        refused(&engine, "the disk is full", expected, |e| e.apply(request));
    }
    assert_eq!(engine.table_names().len(), 3);
    assert!(engine.memory_used() - memory < 4096);

    // Room that was made for a refused change is used by the next, however often that is.
    let new: Vec<u64> = (1 << 40..(1 << 40) + 900).collect();
    let gradients = vec![0.5; new.len() * DIM];
    let refuse = || engine.push(&[Push { keys: &new, ..push("hashed", &gradients) }]).unwrap_err();
    refuse();
    let memory = engine.memory_used();
    (0..50).for_each(|_| drop(refuse()));
    assert_eq!(engine.memory_used(), memory);

    // When there is room again, everything goes on without a gap in the numbers.
    full.store(false, Ordering::Relaxed);
    let last = engine.last_lsn().0;
    for (i, request) in requests.iter().filter(|request| !matches!(request, Change::Drop(_))).enumerate() {
        assert_eq!(engine.apply(request).unwrap().0, last + 1 + i as u64);
    }
}
