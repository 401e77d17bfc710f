//! The engine with one thread, beside the plain loops: a million rows of dim 64, int8 with a 5 % cache, row-wise Adagrad,
//! batches of 8192 unique keys of a Zipf 1.05 draw, but for what is swept.
//!
//! The limit of a pull is the plain gather of rows in the table's own format with their decoding; the limit of a push is
//! the plain in-place update of f32 rows.

use hotrow::numeric::WeightFormat;
use hotrow::{Assign, CacheBudget, Engine, EngineConfig, Optimizer, Policy, Precision, Pull, Push, TableSpec};
use serde_json::{Value, json};

use crate::common::limits::{self, Array};
use crate::common::workload::{Zipf, gradients, warm_seconds};
use crate::point::{Point, Times};

pub const LEARNING_RATE: f32 = 0.01;
const ROWS: usize = 1_000_000;
/// Rows of a measurement, at least: small batches are measured several at a time.
const MEASURED: usize = 8192;
/// Rows that are pushed before anything is measured, at least, so that the cache has seen the workload.
const WARM_UP: usize = 1 << 20;
/// Rows that are set at a time when a table is filled.
const FILLED: usize = 65_536;

/// A point to measure.
struct Case {
    sweep: &'static str,
    x: Value,
    dim: usize,
    batch: usize,
    precision: Precision,
    cache: f64,
    zipf: f64,
}

fn case(sweep: &'static str, x: Value) -> Case {
    Case { sweep, x, dim: 64, batch: 8192, precision: Precision::Int8, cache: 5.0, zipf: 1.05 }
}

pub fn dim(quick: bool) {
    let dims = if quick { vec![16, 64] } else { vec![16, 32, 64, 128, 256] };
    run(dims.into_iter().map(|dim| Case { dim, ..case("dim", json!(dim)) }), quick);
}

pub fn batch(quick: bool) {
    let batches = if quick { vec![128, 8192] } else { vec![128, 512, 2048, 8192, 32_768, 65_536] };
    run(batches.into_iter().map(|batch| Case { batch, ..case("batch", json!(batch)) }), quick);
}

pub fn precision(quick: bool) {
    use Precision::{Bf16, F16, F32, Int2, Int4, Int8};
    let precisions = if quick { vec![F32, Int4] } else { vec![F32, F16, Bf16, Int8, Int4, Int2] };
    let point = |precision: Precision| Case { precision, ..case("precision", json!(precision.to_string())) };
    run(precisions.into_iter().map(point), quick);
}

pub fn cache(quick: bool) {
    let caches = if quick { vec![0.0, 5.0] } else { vec![0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0] };
    run(caches.into_iter().map(|cache| Case { cache, ..case("cache", json!(cache)) }), quick);
}

pub fn zipf(quick: bool) {
    let exponents = if quick { vec![0.8, 1.3] } else { vec![0.8, 0.9, 1.0, 1.05, 1.1, 1.2, 1.3] };
    run(exponents.into_iter().map(|zipf| Case { zipf, ..case("zipf", json!(zipf)) }), quick);
}

fn run(cases: impl Iterator<Item = Case>, quick: bool) {
    let mut limits = None;
    for case in cases {
        measure(&case, &mut limits, if quick { 5 } else { 61 });
    }
}

fn measure(case: &Case, limits: &mut Option<Limits>, rounds: usize) {
    let &Case { dim, batch, .. } = case;
    let spec = TableSpec::dense("t", ROWS as u64, dim)
        .precision(case.precision)
        .cache(CacheBudget::Percent(case.cache))
        .policy(Policy::Lru)
        .optimizer(Optimizer::rowwise_adagrad(), LEARNING_RATE);
    let format = WeightFormat::new(spec.precision, spec.quantizer).unwrap();
    if !limits.as_ref().is_some_and(|limits| limits.dim == dim && limits.format == format) {
        // The old ones go before the new ones come.
        drop(limits.take());
        *limits = Some(Limits::new(ROWS, dim, format));
    }
    let limits = limits.as_mut().unwrap();
    let mut zipf = Zipf::new(ROWS, case.zipf, 7);
    let table = Trained::new(&spec, &mut zipf, batch);
    let mut buffers = Buffers::new(batch, dim);
    let count = MEASURED.div_ceil(batch);
    let [mut pull, mut push] = [Times::default(), Times::default()];
    for _ in 0..rounds {
        let mut draw = || -> Vec<Vec<u64>> { (0..count).map(|_| zipf.unique_batch(batch)).collect() };
        table.pull_round(limits, &draw(), &mut buffers, &mut pull);
        table.push_round(limits, &draw(), &mut buffers, &mut push);
    }
    let stats = table.engine.stats("t").unwrap();
    let settings = json!({
        "rows": ROWS, "dim": dim, "batch": batch, "zipf": case.zipf, "threads": 1, "optimizer": "row-wise Adagrad",
        "precision": case.precision.to_string(), "cache_percent": case.cache, "policy": "lru",
        "pull_hit_rate": stats.pull_hit_rate(), "repetitions": rounds,
    });
    for (what, times) in [("pull", pull), ("push", push)] {
        let (rows_per_s, limit_rows_per_s) = times.rates(batch * count);
        let (sweep, x, settings) = (case.sweep, case.x.clone(), settings.clone());
        Point { sweep, layer: "engine", what, x, rows_per_s, limit_rows_per_s, settings }.print();
    }
}

/// A table of which every row is trained and whose cache has seen the workload.
pub struct Trained {
    pub engine: Engine,
}

impl Trained {
    pub fn new(spec: &TableSpec, zipf: &mut Zipf, batch: usize) -> Trained {
        let engine = Engine::new(EngineConfig { threads: 1, ..EngineConfig::default() }).unwrap();
        engine.create(spec).unwrap();
        let table = Trained { engine };
        let rows = spec.rows().unwrap();
        let values = gradients(FILLED.max(batch) * spec.dim, 1);
        for first in (0..rows).step_by(FILLED) {
            let keys: Vec<u64> = (first..rows.min(first + FILLED as u64)).collect();
            let weights = &values[..keys.len() * spec.dim];
            table.engine.assign(&[Assign { table: "t", keys: &keys, weights, state: None }]).unwrap();
        }
        let slots = table.engine.stats("t").unwrap().cache_slots as usize;
        for _ in 0..WARM_UP.max(4 * slots) / batch {
            table.push(&zipf.unique_batch(batch), &values[..batch * spec.dim]);
        }
        table
    }

    fn push(&self, keys: &[u64], gradients: &[f32]) {
        self.engine.push(&[Push { table: "t", keys, gradients, ..Push::default() }]).unwrap();
    }

    /// Pulls these batches, beside the limit. They are not to be pushed next: rows just read are near to the CPU.
    pub fn pull_round(&self, limits: &Limits, batches: &[Vec<u64>], buffers: &mut Buffers, times: &mut Times) {
        let pull = |keys: &[u64], out: &mut [f32]| self.engine.pull(&[Pull { table: "t", keys }], out).unwrap();
        times.limit.push(each(batches, &mut buffers.out, |keys, out| limits.gather(keys, out)));
        times.ours.push(each(batches, &mut buffers.out, pull));
    }

    /// Pushes these batches, beside the limit.
    pub fn push_round(&self, limits: &mut Limits, batches: &[Vec<u64>], buffers: &mut Buffers, times: &mut Times) {
        times.limit.push(each(batches, &mut buffers.gradients, |keys, gradients| limits.update(keys, gradients)));
        times.ours.push(each(batches, &mut buffers.gradients, |keys, gradients| self.push(keys, gradients)));
    }
}

/// Seconds that some work takes on all of these batches.
fn each(batches: &[Vec<u64>], numbers: &mut [f32], mut work: impl FnMut(&[u64], &mut [f32])) -> f64 {
    batches.iter().map(|keys| warm_seconds(keys, numbers, |numbers| work(keys, numbers))).sum()
}

/// What a batch is pulled into and pushed from.
pub struct Buffers {
    out: Vec<f32>,
    gradients: Vec<f32>,
}

impl Buffers {
    pub fn new(batch: usize, dim: usize) -> Buffers {
        Buffers { out: vec![0.0; batch * dim], gradients: gradients(batch * dim, 3) }
    }
}

/// Plain arrays as large as the table.
pub struct Limits {
    dim: usize,
    format: WeightFormat,
    f32: Array<f32>,
    sums: Array<f32>,
    coded: Array<u8>,
}

impl Limits {
    pub fn new(rows: usize, dim: usize, format: WeightFormat) -> Limits {
        let coded = if format == WeightFormat::F32 { 0 } else { rows * format.bytes(dim) };
        Limits {
            dim,
            format,
            f32: Array::new((0..rows * dim).map(|_| 0.1)),
            sums: Array::new((0..rows).map(|_| 0.1)),
            coded: Array::new((0..coded).map(|i| (i % 64) as u8)),
        }
    }

    fn gather(&self, keys: &[u64], out: &mut [f32]) {
        match self.format {
            WeightFormat::F32 => limits::gather_f32(self.f32.as_ref(), self.dim, keys, out),
            WeightFormat::Int8Symmetric => limits::gather_int8(self.coded.as_ref(), self.dim, keys, out),
            format => limits::gather_coded(format, self.coded.as_ref(), self.dim, keys, out),
        }
    }

    fn update(&mut self, keys: &[u64], gradients: &[f32]) {
        let (table, sums) = (self.f32.as_mut(), self.sums.as_mut());
        limits::rowwise_adagrad(table, sums, self.dim, keys, gradients, LEARNING_RATE);
    }
}
