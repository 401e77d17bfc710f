//! `hotrow selftest`: does the hardware compute what the contract says?

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::cache::cuda::CudaConfig;
use crate::cache::{Policy, StatePrecision};
use crate::engine::{
    Assign, Engine, EngineConfig, PoolConfig, PooledPull, Pooling, Pull, Push, Remove, RowFormat, Touch,
};
use crate::numeric::{Precision, Quantizer, Rounding};
use crate::table::{CacheBudget, Optimizer, TableSpec};

/// Check that the hardware computes what it should: the same bits as the host, on random workloads.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "docs/GPU.md says what is checked, and what to do when it fails.\n\nExamples:\n  \
    hotrow selftest --cuda\n  hotrow selftest --cuda --device 1 --changes 1000")]
pub struct Args {
    /// Check a GPU: every kernel against the host, bit for bit, and then how fast it is.
    #[arg(long)]
    cuda: bool,
    /// Which GPU, as the driver counts them.
    #[arg(long, env = "HOTROW_DEVICE", default_value_t = 0)]
    device: usize,
    /// The NVRTC library that compiles the kernels [default: where libraries are].
    #[arg(long, env = "HOTROW_NVRTC", value_name = "FILE")]
    nvrtc: Option<PathBuf>,
    /// Where compiled kernels are kept [default: hotrow in the user's cache folder].
    #[arg(long, env = "HOTROW_KERNEL_CACHE", value_name = "DIR")]
    kernel_cache: Option<PathBuf>,
    /// Changes of each workload; there are 320 workloads.
    #[arg(long, default_value_t = 40)]
    changes: usize,
    /// Seconds of each of the six measurements; 0 measures nothing.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// The seed of the workloads.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the checks.
pub fn run(args: Args) -> Result<()> {
    if !args.cuda {
        bail!("say what to check: --cuda checks a GPU");
    }
    ensure!(args.changes > 0, "--changes must be above zero");
    ensure!(args.seconds >= 0.0 && args.seconds.is_finite(), "--seconds must not be below zero");
    let cuda = PoolConfig::Cuda(CudaConfig {
        device: args.device,
        nvrtc: args.nvrtc.clone(),
        kernels: args.kernel_cache.clone(),
        // It would only say less.
        checked: false,
        ..CudaConfig::default()
    });
    let workloads = workloads();
    let bar = ProgressBar::new(workloads.len() as u64)
        .with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} workloads, {eta} left  {msg}")?);
    let mut random = StdRng::seed_from_u64(args.seed);
    let mut engines = Pair::new(&cuda)?;
    let info = engines.cuda.device().map(|device| device.info().clone()).ok_or_else(|| anyhow!("there is no GPU"))?;
    println!("GPU {}: {}, sm_{}{}", info.device, info.name, info.capability.0, info.capability.1);
    let mut differing = Vec::new();
    for (number, specs) in workloads.iter().enumerate() {
        if let Err(error) = engines.check(specs, args.changes, &mut random) {
            differing.push((number, error));
            // What is different stays different: go on with new ones.
            engines = Pair::new(&cuda)?;
        }
        bar.inc(1);
        if differing.len() == ENOUGH {
            break;
        }
    }
    bar.finish_and_clear();
    for (number, error) in &differing {
        println!("workload {number}: {error:#}: {}", describe(&workloads[*number][0]));
    }
    if !differing.is_empty() {
        let checked = bar.position();
        bail!("{} of {checked} workloads differ from the host: do not use this GPU", differing.len());
    }
    println!("{} workloads of {} changes: every bit as on the host", workloads.len(), args.changes);
    drop(engines);
    if args.seconds > 0.0 { measure(&cuda, Duration::from_secs_f64(args.seconds)) } else { Ok(()) }
}

fn describe(spec: &TableSpec) -> String {
    format!(
        "{} {} {}, {:?}, {}, dim {}",
        spec.precision, spec.quantizer, spec.rounding, spec.optimizer, spec.policy, spec.dim
    )
}

/// Every precision, quantizer, rounding, optimizer, policy and precision of state, over dims of every kind.
fn workloads() -> Vec<[TableSpec; 2]> {
    let formats = [
        (Precision::F32, Quantizer::Symmetric),
        (Precision::F16, Quantizer::Symmetric),
        (Precision::Bf16, Quantizer::Symmetric),
        (Precision::Int8, Quantizer::Symmetric),
        (Precision::Int4, Quantizer::Symmetric),
        (Precision::Int8, Quantizer::Affine),
        (Precision::Int4, Quantizer::Affine),
        (Precision::Int2, Quantizer::Affine),
    ];
    let optimizers =
        [Optimizer::Sgd, Optimizer::adagrad(), Optimizer::rowwise_adagrad(), Optimizer::adam(), Optimizer::adamw()];
    let dims = [1, 3, 4, 16, 17, 31, 32, 33, 64, 67, 128, 130, 255, 256, 260, 513];
    let mut all = Vec::new();
    for (precision, quantizer) in formats {
        for optimizer in optimizers {
            for (rounding, state, policy, plain) in [
                (Rounding::Stochastic, StatePrecision::F32, Policy::Lru, true),
                (Rounding::Stochastic, StatePrecision::Bf16, Policy::Lfu, false),
                (Rounding::Nearest, StatePrecision::Bf16, Policy::Lru, true),
                (Rounding::Nearest, StatePrecision::F32, Policy::Lfu, false),
                (Rounding::Stochastic, StatePrecision::Bf16, Policy::Lru, true),
                (Rounding::Stochastic, StatePrecision::F32, Policy::Lfu, true),
                (Rounding::Stochastic, StatePrecision::Bf16, Policy::Lfu, true),
                (Rounding::Stochastic, StatePrecision::F32, Policy::Lru, false),
            ] {
                let dim = dims[all.len() % dims.len()];
                // Rows of f32 are only cached where there is state to be rounded.
                let cached = |spec: TableSpec| {
                    let spec = spec.precision(precision).quantizer(quantizer).rounding(rounding);
                    let spec = spec.optimizer(optimizer, 0.05).state_precision(state).policy(policy);
                    let spec = if plain { spec } else { spec.clip_norm(0.7).weight_decay(0.01) };
                    spec.cache(CacheBudget::Rows(120))
                };
                all.push([
                    cached(TableSpec::dense("dense", KEYS, dim)),
                    cached(TableSpec::hashed("hashed", dims[(all.len() * 7 + 3) % dims.len()])),
                ]);
            }
        }
    }
    all
}

/// Workloads that differ, after which there is no need to go on.
const ENOUGH: usize = 10;

/// Keys that workloads draw from: several times what the cache holds.
const KEYS: u64 = 600;

/// The same engine twice.
struct Pair {
    host: Engine,
    cuda: Engine,
    step: u64,
}

impl Pair {
    fn new(cuda: &PoolConfig) -> Result<Pair> {
        let config =
            |pool| EngineConfig { partitions: 4, seed: 11, small_table_bytes: 0, pool, ..EngineConfig::default() };
        Ok(Pair { host: Engine::new(config(PoolConfig::Host))?, cuda: Engine::new(config(cuda.clone()))?, step: 0 })
    }

    fn both(&self, change: impl Fn(&Engine) -> crate::Result<crate::Lsn>) -> Result<()> {
        change(&self.host)?;
        change(&self.cuda)?;
        Ok(())
    }

    /// Applies random changes to new tables of both, and compares everything.
    fn check(&mut self, specs: &[TableSpec], changes: usize, random: &mut StdRng) -> Result<()> {
        for spec in specs {
            self.both(|engine| engine.create(spec))?;
        }
        for _ in 0..changes {
            self.change(specs, random)?;
            self.compare_pulls(specs, random)?;
        }
        ensure!(self.host.digests() == self.cuda.digests(), "rows, state or cache differ");
        for spec in specs {
            let (host, cuda) = (self.host.stats(&spec.name)?, self.cuda.stats(&spec.name)?);
            ensure!(host.changes == cuda.changes, "counts differ: {:?} and {:?}", host.changes, cuda.changes);
            self.both(|engine| engine.drop_table(&spec.name))?;
        }
        Ok(())
    }

    fn change(&mut self, specs: &[TableSpec], random: &mut StdRng) -> Result<()> {
        self.step += 1;
        // Now and then more than a launch takes.
        let most = if random.random_ratio(1, 10) { 2000 } else { 60 };
        let keys: Vec<Vec<u64>> = specs.iter().map(|_| self::keys(random, most)).collect();
        match random.random_range(0..12) {
            0 => {
                let touch = |i: usize| Touch { table: &specs[i].name, keys: &keys[i] };
                self.both(|engine| engine.touch(&[touch(0), touch(1)]))
            }
            1 => {
                let weights = numbers(random, keys[0].len() * specs[0].dim);
                let assign = Assign { table: &specs[0].name, keys: &keys[0], weights: &weights, state: None };
                self.both(|engine| engine.assign(&[assign]))
            }
            2 => self.both(|engine| engine.remove(&[Remove { table: &specs[1].name, keys: &keys[1] }])),
            _ => {
                let gradients: Vec<Vec<f32>> =
                    specs.iter().zip(&keys).map(|(spec, keys)| numbers(random, keys.len() * spec.dim)).collect();
                let push = |i: usize| Push {
                    table: &specs[i].name,
                    keys: &keys[i],
                    gradients: &gradients[i],
                    learning_rate: None,
                    step: Some(self.step),
                };
                self.both(|engine| engine.push(&[push(0), push(1)]))
            }
        }
    }

    fn compare_pulls(&self, specs: &[TableSpec], random: &mut StdRng) -> Result<()> {
        let keys: Vec<Vec<u64>> = specs.iter().map(|_| self::keys(random, 100)).collect();
        for format in [RowFormat::F32, RowFormat::F16, RowFormat::Bf16, RowFormat::Int8] {
            let pull = |i: usize| Pull { table: &specs[i].name, keys: &keys[i] };
            let bytes = (0..2).map(|i| keys[i].len() * format.row_bytes(specs[i].dim)).sum();
            compare(bytes, |which, out| self.engine(which).pull_as(format, &[pull(0), pull(1)], out))
                .map_err(|error| anyhow!("{error:#} in rows read as {format}"))?;
        }
        for (spec, keys) in specs.iter().zip(&keys) {
            let weights: Vec<f32> = numbers(random, keys.len());
            let offsets: Vec<u64> = (0..keys.len() as u64).step_by(5).collect();
            for (weights, pooling) in [(None, Pooling::Mean), (Some(&weights[..]), Pooling::Sum)] {
                let pull = PooledPull { table: &spec.name, keys, offsets: &offsets, weights, pooling };
                let bytes = offsets.len() * 4 * spec.dim;
                compare(bytes, |which, out| self.engine(which).pull_pooled_as(RowFormat::F32, &[pull], out))
                    .map_err(|error| anyhow!("{error:#} in pooled rows"))?;
            }
        }
        Ok(())
    }

    fn engine(&self, which: Which) -> &Engine {
        match which {
            Which::Host => &self.host,
            Which::Cuda => &self.cuda,
        }
    }
}

#[derive(Clone, Copy)]
enum Which {
    Host,
    Cuda,
}

/// Lets both write as many bytes, and compares them.
fn compare(bytes: usize, read: impl Fn(Which, &mut [u8]) -> crate::Result<()>) -> Result<()> {
    // Words, so that they are aligned for f32.
    let (mut host, mut cuda) = (vec![0u32; bytes.div_ceil(4)], vec![0u32; bytes.div_ceil(4)]);
    read(Which::Host, &mut bytemuck::cast_slice_mut(&mut host)[..bytes])?;
    read(Which::Cuda, &mut bytemuck::cast_slice_mut(&mut cuda)[..bytes])?;
    let differing = host.iter().zip(&cuda).filter(|(a, b)| a != b).count();
    ensure!(differing == 0, "{differing} of {} numbers differ", host.len());
    Ok(())
}

/// Keys with repeats, some much more often than others.
fn keys(random: &mut StdRng, most: usize) -> Vec<u64> {
    let count = random.random_range(1..=most);
    (0..count).map(|_| (random.random::<f64>().powi(3) * KEYS as f64) as u64).collect()
}

/// Gradients or weights: mostly of ordinary size, some tiny, large or zero.
fn numbers(random: &mut StdRng, count: usize) -> Vec<f32> {
    let number = |random: &mut StdRng| {
        let unit = random.random::<f32>() - 0.5;
        match random.random_range(0..16) {
            0 => 0.0,
            1 => unit * 1e-12,
            2 => unit * 100.0,
            _ => unit,
        }
    };
    (0..count).map(|_| number(random)).collect()
}

/// Rows per second of both, on a table whose rows are all cached, half of them, and of pushes.
fn measure(cuda: &PoolConfig, time: Duration) -> Result<()> {
    const ROWS: u64 = 200_000;
    const DIM: usize = 64;
    const BATCH: usize = 8192;
    println!("{BATCH} rows of {DIM} numbers, int8 with row-wise Adagrad, at a time:");
    let engines = [PoolConfig::Host, cuda.clone()]
        .map(|pool| Engine::new(EngineConfig { pool, ..EngineConfig::default() }))
        .into_iter()
        .collect::<crate::Result<Vec<Engine>>>()?;
    let spec = TableSpec::dense("t", ROWS, DIM)
        .precision(Precision::Int8)
        .optimizer(Optimizer::rowwise_adagrad(), 0.05)
        .cache(CacheBudget::Rows(ROWS / 2));
    let mut random = StdRng::seed_from_u64(5);
    for engine in &engines {
        engine.create(&spec)?;
        let all: Vec<u64> = (0..ROWS / 2).collect();
        for keys in all.chunks(BATCH) {
            engine.touch(&[Touch { table: "t", keys }])?;
        }
    }
    let gradients = vec![0.01; BATCH * DIM];
    for (name, below, push) in [("pull.hits", ROWS / 2, false), ("pull.half", ROWS, false), ("push", ROWS / 2, true)] {
        let rates: Vec<f64> = engines
            .iter()
            .map(|engine| {
                let mut out = vec![0.0; BATCH * DIM];
                let (begun, mut rows) = (Instant::now(), 0);
                while begun.elapsed() < time {
                    let keys: Vec<u64> = (0..BATCH).map(|_| random.random_range(0..below)).collect();
                    match push {
                        true => {
                            let (learning_rate, step) = (None, None);
                            let push = Push { table: "t", keys: &keys, gradients: &gradients, learning_rate, step };
                            engine.push(&[push])?;
                        }
                        false => engine.pull(&[Pull { table: "t", keys: &keys }], &mut out)?,
                    }
                    rows += BATCH;
                }
                Ok(rows as f64 / begun.elapsed().as_secs_f64())
            })
            .collect::<crate::Result<_>>()?;
        println!("  {name:<10} host {:>12.0} rows/s   GPU {:>12.0} rows/s", rates[0], rates[1]);
        println!("ratio selftest.{name}.cuda_over_host {:.3}", rates[1] / rates[0]);
    }
    let stats = engines[1].device().map(|device| device.stats()).unwrap_or_default();
    for (operation, count, seconds) in stats.operations.iter().filter(|(_, count, _)| *count > 0) {
        println!("  {operation:<13} {count:>8} kernels, {:>9.1} us each", seconds * 1e6 / *count as f64);
    }
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    println!("  {:.2} GiB up, {:.2} GiB down", gib(stats.bytes_up), gib(stats.bytes_down));
    Ok(())
}
