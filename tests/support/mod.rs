//! What several tests share: random table specs, comparison of bits, and the number of cases to run.
#![allow(dead_code)]

pub mod changes;
pub mod emulated;
pub mod random;

use hotrow::{
    CacheBudget, EngineConfig, Initializer, KeySpace, Optimizer, Policy, PoolConfig, Precision, Quantizer, Rounding,
    StatePrecision, TableSpec,
};
use proptest::prelude::*;

use crate::reference;

/// How many cases a property runs: `HOTROW_TEST_SCALE` times the usual number (`make test-long` sets it).
pub fn cases(usual: u32) -> ProptestConfig {
    let scale: u32 = std::env::var("HOTROW_TEST_SCALE").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(usual * scale) }
}

/// Rows of a request that the compute threads help with.
pub const SHARED: usize = 17_000;

/// The configuration that tests start from. With `HOTROW_TEST_POOL=cuda` hot rows are on an emulated GPU.
pub fn config() -> EngineConfig {
    let pool = if emulated::wanted() { emulated::pool() } else { PoolConfig::Host };
    EngineConfig { pool, ..EngineConfig::default() }
}

/// Bits of numbers, any NaN as the same NaN.
pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect()
}

/// Every precision with every quantizer that it has.
pub fn formats() -> Vec<(Precision, Quantizer)> {
    use Precision::*;
    use Quantizer::*;
    vec![
        (F32, Symmetric),
        (F16, Symmetric),
        (Bf16, Symmetric),
        (Int8, Symmetric),
        (Int8, Affine),
        (Int4, Symmetric),
        (Int4, Affine),
        (Int2, Affine),
    ]
}

/// Every optimizer.
pub fn optimizers() -> Vec<Optimizer> {
    vec![Optimizer::Sgd, Optimizer::adagrad(), Optimizer::rowwise_adagrad(), Optimizer::adam(), Optimizer::adamw()]
}

/// Every format with every policy and every optimizer.
pub fn matrix() -> Vec<((Precision, Quantizer), Policy, Optimizer)> {
    let mut all = Vec::new();
    for format in formats() {
        for policy in [Policy::Lru, Policy::Lfu] {
            all.extend(optimizers().into_iter().map(|optimizer| (format, policy, optimizer)));
        }
    }
    all
}

/// Any table with `rows` dense rows or any keys.
pub fn table_spec(rows: u64) -> impl Strategy<Value = TableSpec> {
    let initializer = prop_oneof![
        Just(Initializer::Zeros),
        (-1.0f32..1.0).prop_map(Initializer::Constant),
        (-1.0f32..0.0, 0.0f32..1.0).prop_map(|(low, high)| Initializer::Uniform { low, high }),
        (-1.0f32..1.0, 0.0f32..1.0).prop_map(|(mean, std)| Initializer::Normal { mean, std }),
        Just(Initializer::Dlrm),
    ];
    let numbers = (
        prop_oneof![1usize..10, Just(32), Just(33), Just(64), Just(70), Just(130)],
        prop_oneof![Just(0u64), 1u64..40, Just(1000)],
        0.0f32..1.0,
        prop_oneof![Just(0.0f32), 0.0f32..0.1],
        prop::option::of(0.01f32..2.0),
    );
    let choices = (
        prop::sample::select(formats()),
        prop::sample::select(optimizers()),
        prop::sample::select(vec![Rounding::Stochastic, Rounding::Stochastic, Rounding::Nearest]),
        prop::sample::select(vec![StatePrecision::F32, StatePrecision::Bf16]),
        prop::sample::select(vec![Policy::Lru, Policy::Lfu]),
        any::<bool>(),
    );
    (numbers, choices, initializer).prop_map(move |(numbers, choices, initializer)| {
        let (dim, cache, learning_rate, weight_decay, clip_norm) = numbers;
        let ((precision, quantizer), optimizer, rounding, state_precision, policy, hashed) = choices;
        let initializer = match initializer {
            Initializer::Dlrm if hashed => Initializer::Zeros,
            other => other,
        };
        let base = if hashed { TableSpec::hashed("t", dim) } else { TableSpec::dense("t", rows, dim) };
        TableSpec {
            precision,
            quantizer,
            rounding,
            optimizer,
            learning_rate,
            weight_decay,
            clip_norm,
            state_precision,
            initializer,
            cache: CacheBudget::Rows(cache),
            policy,
            ..base
        }
    })
}

/// The spec in the words of the reference model.
pub fn to_reference(spec: &TableSpec) -> reference::Table {
    reference::Table {
        name: spec.name.clone(),
        dim: spec.dim,
        keys: match spec.keys {
            KeySpace::Dense { rows } => reference::KeySpace::Dense { rows },
            KeySpace::Hashed => reference::KeySpace::Hashed,
        },
        precision: to_reference_precision(spec.precision),
        quantizer: to_reference_quantizer(spec.quantizer),
        rounding: match spec.rounding {
            Rounding::Nearest => reference::Rounding::Nearest,
            Rounding::Stochastic => reference::Rounding::Stochastic,
        },
        state_precision: match spec.state_precision {
            StatePrecision::F32 => reference::StatePrecision::F32,
            StatePrecision::Bf16 => reference::StatePrecision::Bf16,
        },
        policy: match spec.policy {
            Policy::Lru => reference::Policy::Lru,
            Policy::Lfu => reference::Policy::Lfu,
        },
        cache_rows: match (spec.cache, spec.rows()) {
            (CacheBudget::Rows(cache), rows) => cache.min(rows.unwrap_or(u64::MAX)),
            other => panic!("the model knows budgets in rows only: {other:?}"),
        },
        initializer: match spec.initializer {
            Initializer::Zeros => reference::Initializer::Zeros,
            Initializer::Constant(c) => reference::Initializer::Constant(c),
            Initializer::Uniform { low, high } => reference::Initializer::Uniform(low, high),
            Initializer::Normal { mean, std } => reference::Initializer::Normal(mean, std),
            Initializer::Dlrm => reference::Initializer::Dlrm,
        },
        optimizer: match spec.optimizer {
            Optimizer::Sgd => reference::Optimizer::Sgd,
            Optimizer::Adagrad { eps } => reference::Optimizer::Adagrad { eps },
            Optimizer::RowwiseAdagrad { eps } => reference::Optimizer::RowwiseAdagrad { eps },
            Optimizer::Adam { beta1, beta2, eps } => reference::Optimizer::Adam { b1: beta1, b2: beta2, eps },
            Optimizer::AdamW { beta1, beta2, eps } => reference::Optimizer::AdamW { b1: beta1, b2: beta2, eps },
        },
        learning_rate: spec.learning_rate,
        weight_decay: spec.weight_decay,
        clip_norm: spec.clip_norm,
    }
}

/// A precision in the words of the reference model.
pub fn to_reference_precision(precision: Precision) -> reference::Precision {
    match precision {
        Precision::F32 => reference::Precision::F32,
        Precision::F16 => reference::Precision::F16,
        Precision::Bf16 => reference::Precision::Bf16,
        Precision::Int8 => reference::Precision::Int8,
        Precision::Int4 => reference::Precision::Int4,
        Precision::Int2 => reference::Precision::Int2,
    }
}

/// A quantizer in the words of the reference model.
pub fn to_reference_quantizer(quantizer: Quantizer) -> reference::Quantizer {
    match quantizer {
        Quantizer::Symmetric => reference::Quantizer::Symmetric,
        Quantizer::Affine => reference::Quantizer::Affine,
    }
}
