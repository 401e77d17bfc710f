//! An f32 table is what a plain program would do with a `Vec<f32>`: the same bits, for every optimizer, with
//! duplicate keys, clipping and weight decay.

use crate::support::changes::engine_with;
use crate::support::random::{Random, key};
use crate::support::{bits, cases};
use hotrow::{Assign, Optimizer, PooledPull, Pooling, Precision, Pull, Push, TableSpec};
use proptest::prelude::*;

const KEYS: usize = 12;

/// The plain program: rows of weights, and two rows of state for each.
struct Plain {
    spec: TableSpec,
    weights: Vec<Vec<f32>>,
    state: Vec<[Vec<f32>; 2]>,
}

/// The sum of squares, in 32 lanes (docs/NUMERICS.md, section 5).
fn squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 32];
    for (i, x) in x.iter().enumerate() {
        lanes[i % 32] += x * x;
    }
    for half in [16, 8, 4, 2, 1] {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
    }
    lanes[0]
}

fn power(b: f32, t: u64) -> f64 {
    let (mut result, mut b, mut t) = (1.0, f64::from(b), t);
    while t > 0 {
        result *= if t % 2 == 1 { b } else { 1.0 };
        b *= b;
        t /= 2;
    }
    result
}

impl Plain {
    /// One push: gradients of a key are added up, and every key is stepped once.
    fn push(&mut self, keys: &[usize], gradients: &[f32], lr: f32, t: u64) {
        let dim = self.spec.dim;
        for row in 0..KEYS {
            let mut sum: Option<Vec<f32>> = None;
            for (i, _) in keys.iter().enumerate().filter(|&(_, &key)| key == row) {
                let gradient = &gradients[i * dim..][..dim];
                match &mut sum {
                    Some(sum) => sum.iter_mut().zip(gradient).for_each(|(s, g)| *s += g),
                    None => sum = Some(gradient.to_vec()),
                }
            }
            if let Some(sum) = sum {
                self.step(row, sum, lr, t);
            }
        }
    }

    fn step(&mut self, row: usize, mut g: Vec<f32>, lr: f32, t: u64) {
        let (w, [a, b]) = (&mut self.weights[row], &mut self.state[row]);
        let decay = self.spec.weight_decay;
        let decoupled = matches!(self.spec.optimizer, Optimizer::AdamW { .. });
        if let Some(limit) = self.spec.clip_norm {
            let norm = squares(&g).sqrt();
            if norm > limit {
                g.iter_mut().for_each(|g| *g *= limit / norm);
            }
        }
        if decay != 0.0 && !decoupled {
            g.iter_mut().zip(&*w).for_each(|(g, w)| *g += decay * w);
        }
        match self.spec.optimizer {
            Optimizer::Sgd => {
                for i in 0..w.len() {
                    w[i] -= lr * g[i];
                }
            }
            Optimizer::Adagrad { eps } => {
                for i in 0..w.len() {
                    a[i] += g[i] * g[i];
                    w[i] -= lr * (g[i] / (a[i].sqrt() + eps));
                }
            }
            Optimizer::RowwiseAdagrad { eps } => {
                a[0] += squares(&g) / w.len() as f32;
                let rate = lr / (a[0].sqrt() + eps);
                for i in 0..w.len() {
                    w[i] -= rate * g[i];
                }
            }
            Optimizer::Adam { beta1, beta2, eps } | Optimizer::AdamW { beta1, beta2, eps } => {
                let c1 = 1.0 - power(beta1, t);
                let c2 = 1.0 - power(beta2, t);
                let scale = (f64::from(lr) * c2.sqrt() / c1) as f32;
                let eps = if decoupled { (f64::from(eps) * c2.sqrt()) as f32 } else { eps };
                let keep = if decoupled { (1.0 - f64::from(lr) * f64::from(decay)) as f32 } else { 1.0 };
                for i in 0..w.len() {
                    w[i] *= keep;
                    a[i] += (g[i] - a[i]) * (1.0 - f64::from(beta1)) as f32;
                    b[i] += (g[i] * g[i] - b[i]) * (1.0 - f64::from(beta2)) as f32;
                    w[i] -= scale * (a[i] / (b[i].sqrt() + eps));
                }
            }
        }
    }
}

fn spec() -> impl Strategy<Value = TableSpec> {
    let (eps, beta) = (0.0f32..1e-3, 0.0f32..0.999);
    let optimizer = prop_oneof![
        Just(Optimizer::Sgd),
        eps.clone().prop_map(|eps| Optimizer::Adagrad { eps: eps + 1e-10 }),
        eps.clone().prop_map(|eps| Optimizer::RowwiseAdagrad { eps: eps + 1e-8 }),
        (beta.clone(), beta.clone(), eps.clone()).prop_map(|(beta1, beta2, eps)| Optimizer::Adam {
            beta1,
            beta2,
            eps: eps + 1e-8
        }),
        (beta.clone(), beta, eps).prop_map(|(beta1, beta2, eps)| Optimizer::AdamW { beta1, beta2, eps: eps + 1e-8 }),
    ];
    let dim = prop_oneof![1usize..40, Just(64), Just(100), Just(129)];
    let decay = prop_oneof![Just(0.0f32), 0.0f32..0.1];
    let numbers = (dim, 0.0f32..0.5, decay, prop::option::of(0.01f32..3.0));
    (optimizer, numbers, any::<bool>()).prop_map(|(optimizer, (dim, lr, weight_decay, clip_norm), hashed)| {
        let spec = if hashed { TableSpec::hashed("t", dim) } else { TableSpec::dense("t", KEYS as u64, dim) };
        let spec = spec.precision(Precision::F32).optimizer(optimizer, lr).weight_decay(weight_decay);
        TableSpec { clip_norm, ..spec }
    })
}

/// Large pushes are applied in another way than small ones: to the same effect. Rows do not depend on each other, so that one push of
/// many keys is several of a few.
#[test]
fn a_large_push_is_several_small_ones() {
    for dim in [5, 16, 32, 64, 128] {
        for optimizer in [Optimizer::Sgd, Optimizer::rowwise_adagrad(), Optimizer::adam()] {
            let spec = TableSpec::dense("t", 4000, dim).precision(Precision::F32).optimizer(optimizer, 0.1);
            let [at_once, in_pieces] = [(); 2].map(|()| engine_with(std::slice::from_ref(&spec), 8, 1));
            let mut random = Random(dim as u64);
            for step in 1..=3 {
                // Distinct keys in no order.
                let keys: Vec<u64> = (0..3000).map(|i| (i * 1237 + step * 11) % 4000).collect();
                let mut gradients = random.numbers(keys.len() * dim);
                let push = |engine: &hotrow::Engine, keys: &[u64], gradients: &[f32]| {
                    engine.push(&[Push { table: "t", keys, gradients, step: Some(step), ..Push::default() }]).unwrap();
                };
                if step == 2 {
                    // One of them once more, behind all others.
                    let again = random.numbers(dim);
                    push(&at_once, &[&keys[..], &keys[7..8]].concat(), &[&gradients[..], &again].concat());
                    gradients[7 * dim..][..dim].iter_mut().zip(&again).for_each(|(sum, g)| *sum += g);
                } else {
                    push(&at_once, &keys, &gradients);
                }
                for (keys, gradients) in keys.chunks(700).zip(gradients.chunks(700 * dim)) {
                    push(&in_pieces, keys, gradients);
                }
                assert_eq!(at_once.digests(), in_pieces.digests(), "dim {dim}, {optimizer:?}, push {step}");
                let updated = |engine: &hotrow::Engine| engine.stats("t").unwrap().changes.updated_rows;
                assert_eq!((updated(&at_once), updated(&in_pieces)), (3000 * step, 3000 * step));
            }
        }
    }
}

/// Sums are worked out in other ways where all rows are stored and of a usual length: to the bits of a plain loop, in order, whoever owns
/// the rows and however long the bags are.
#[test]
fn bags_are_plain_sums_in_order() {
    const ROWS: u64 = 300;
    for (dim, optimizer) in
        [1, 16, 20, 32, 64, 128].into_iter().zip([Optimizer::rowwise_adagrad(), Optimizer::Sgd].iter().cycle())
    {
        let spec = TableSpec::dense("t", ROWS, dim).precision(Precision::F32).optimizer(*optimizer, 0.1);
        let engine = engine_with(std::slice::from_ref(&spec), 8, 1);
        let mut random = Random(dim as u64);
        // One key, too: of most partitions nothing is needed then.
        for (stored, few) in [(ROWS / 2, false), (ROWS, false), (ROWS, true)] {
            let all: Vec<u64> = (0..stored).collect();
            let weights = random.numbers(all.len() * dim);
            engine.assign(&[Assign { table: "t", keys: &all, weights: &weights, state: None }]).unwrap();
            let mut sizes: Vec<u64> = (0..40).map(|_| random.below(9)).collect();
            sizes.extend([0, 77, 0]);
            if few {
                sizes = vec![0, 1, 0];
            }
            let offsets: Vec<u64> =
                sizes.iter().scan(0, |end, size| Some(std::mem::replace(end, *end + size))).collect();
            let keys: Vec<u64> = (0..sizes.iter().sum::<u64>()).map(|_| random.below(ROWS)).collect();
            let mut rows = vec![0.0; keys.len() * dim];
            engine.pull(&[Pull { table: "t", keys: &keys }], &mut rows).unwrap();
            let factors = random.numbers(keys.len());
            for (weights, pooling) in [(None, Pooling::Sum), (Some(&factors[..]), Pooling::Sum), (None, Pooling::Mean)]
            {
                let mut expected = Vec::new();
                for (&start, &size) in offsets.iter().zip(&sizes) {
                    let mut sum = vec![0.0f32; dim];
                    for at in start as usize..(start + size) as usize {
                        let factor = weights.map_or(1.0, |weights| weights[at]);
                        sum.iter_mut().zip(&rows[at * dim..]).for_each(|(sum, w)| *sum += factor * w);
                    }
                    let by = if pooling == Pooling::Mean && size > 0 { size as f32 } else { 1.0 };
                    expected.extend(sum.iter().map(|sum| sum / by));
                }
                let mut out = vec![f32::NAN; offsets.len() * dim];
                let pull = PooledPull { table: "t", keys: &keys, offsets: &offsets, weights, pooling };
                engine.pull_pooled(&[pull], &mut out).unwrap();
                assert_eq!(bits(&out), bits(&expected), "dim {dim}, {stored} of {ROWS} rows stored, {pooling:?}");
            }
        }
    }
}

/// Without a cache every row is stepped in place, and takes the next number for its rounding: however many come in one push.
#[test]
fn many_conflicts_of_a_push_are_those_of_several() {
    let spec = TableSpec::dense("t", 1000, 16).precision(Precision::Int8).cache(hotrow::CacheBudget::Rows(0));
    let spec = spec.optimizer(Optimizer::rowwise_adagrad(), 0.1);
    let [at_once, in_pieces] = [(); 2].map(|()| engine_with(std::slice::from_ref(&spec), 1, 1));
    let mut random = Random(5);
    let keys: Vec<u64> = (0..500).map(|i| i * 37 % 1000).collect();
    let gradients = random.numbers(keys.len() * spec.dim);
    let push = |engine: &hotrow::Engine, keys: &[u64], gradients: &[f32]| {
        engine.push(&[Push { table: "t", keys, gradients, ..Push::default() }]).unwrap();
    };
    push(&at_once, &keys, &gradients);
    for (keys, gradients) in keys.chunks(23).zip(gradients.chunks(23 * spec.dim)) {
        push(&in_pieces, keys, gradients);
    }
    let rows = [&at_once, &in_pieces].map(|engine| keys.iter().map(|&key| engine.inspect("t", key).unwrap()).collect());
    let [a, b]: [Vec<_>; 2] = rows;
    for (a, b) in a.iter().zip(&b) {
        assert_eq!((&a.weights, &a.state), (&b.weights, &b.state));
    }
    assert_eq!(at_once.stats("t").unwrap().changes.conflicts, 500);
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn an_f32_table_is_a_plain_array(
        spec in spec(),
        partition_bits in 0u32..4,
        seed in any::<u64>(),
        pushes in prop::collection::vec((prop::collection::vec(0..KEYS, 1..30), prop::option::of(0.0f32..1.0)), 1..12),
    ) {
        let engine = engine_with(std::slice::from_ref(&spec), 1 << partition_bits, 1);
        let mut random = Random(seed);
        let key_of = |row: &usize| key(&spec, *row as u64);
        let all: Vec<u64> = (0..KEYS).map(|row| key_of(&row)).collect();
        let weights = random.numbers(KEYS * spec.dim);
        engine.assign(&[Assign { table: "t", keys: &all, weights: &weights, state: None }]).unwrap();
        let (tensors, len) = spec.optimizer.state(spec.dim);
        let mut plain = Plain {
            weights: weights.chunks(spec.dim).map(<[f32]>::to_vec).collect(),
            state: vec![[vec![0.0; len], vec![0.0; if tensors == 2 { len } else { 0 }]]; KEYS],
            spec,
        };
        for (i, (rows, lr)) in pushes.iter().enumerate() {
            let gradients = random.numbers(rows.len() * plain.spec.dim);
            let keys: Vec<u64> = rows.iter().map(|&row| key(&plain.spec, row as u64)).collect();
            let step = i as u64 + 1;
            engine
                .push(&[Push { table: "t", keys: &keys, gradients: &gradients, learning_rate: *lr, step: Some(step) }])
                .unwrap();
            plain.push(rows, &gradients, lr.unwrap_or(plain.spec.learning_rate), step);
        }
        let mut out = vec![f32::NAN; KEYS * plain.spec.dim];
        engine.pull(&[Pull { table: "t", keys: &all }], &mut out).unwrap();
        prop_assert_eq!(bits(&out), bits(&plain.weights.concat()));
        for (key, state) in all.into_iter().zip(&plain.state) {
            prop_assert_eq!(bits(&engine.inspect("t", key).unwrap().state), bits(&state.concat()));
        }
    }
}
