//! One system to be compared with others, told by lines on standard input what to do (`benches/compare.py` starts it).
//!
//! `pull I N` and `push I N` work on N batches of the keys from batch I on, and then print the seconds that each took; `sum I 1`
//! prints the sum of the numbers that a pull gives; `quit` ends. `benches/peers/protocol.py` says why it is so.

mod common;

use std::fmt::Write as _;
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Parser, ValueEnum};
use common::Store;
use common::bare::Bare;
use common::limits::{self, Array};
use common::process::{self, Child};
use common::remote::Remote;
use common::workload::{initial_rows, initial_weight, seconds};
use hotrow::numeric::format::{decode_rows, encode_rows};
use hotrow::numeric::{Noise, Rounding, WeightFormat};
use hotrow::{
    Assign, CacheBudget, Engine, EngineConfig, Optimizer, PooledPull, Pooling, Precision, Pull, Push, RowFormat,
    TableSpec,
};

const LEARNING_RATE: f32 = 0.01;
/// Keys of a bag.
const BAG: usize = 20;

/// Runs one system for a comparison.
#[derive(Parser)]
struct Args {
    system: System,
    #[arg(long)]
    rows: usize,
    #[arg(long)]
    dim: usize,
    #[arg(long)]
    batch: usize,
    /// Batches of keys, one after the other: little-endian u64.
    #[arg(long)]
    keys: PathBuf,
    /// The gradients of every push: little-endian f32.
    #[arg(long)]
    gradients: PathBuf,
    /// What cargo adds.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum System {
    #[value(name = "limit-gather-f32")]
    LimitGather,
    LimitUpdate,
    #[value(name = "engine-f32")]
    Engine,
    #[value(name = "engine-f32-sum20")]
    EngineSum,
    #[value(name = "codec-int8")]
    Codec,
    BareTcp,
    BareUnix,
    #[value(name = "hotrow-f32")]
    Hotrow,
    #[value(name = "hotrow-int8-wire")]
    HotrowInt8,
    HotrowUnix,
}

fn main() -> anyhow::Result<()> {
    process::serve_if_child();
    // `cargo test --benches` asks for tests; there are none here.
    if std::env::args().any(|arg| arg == "--test") {
        return Ok(());
    }
    let args = Args::parse();
    let keys: Vec<u64> = read(&args.keys)?;
    let gradients: Vec<f32> = read(&args.gradients)?;
    if keys.is_empty() || !keys.len().is_multiple_of(args.batch) || gradients.len() != args.batch * args.dim {
        bail!("the keys are no batches of {}, or the gradients not those of one", args.batch);
    }
    let batches: Vec<&[u64]> = keys.chunks(args.batch).collect();
    // Sockets are here, and go with it.
    let folder = tempfile::tempdir()?;
    let (mut store, settings) = make(&args, folder.path());
    let name = args.system.to_possible_value().context("every system has a name")?;
    let versions = serde_json::json!({"hotrow": env!("CARGO_PKG_VERSION")});
    let ready = serde_json::json!({"system": name.get_name(), "versions": versions, "settings": settings});
    say(format_args!("ready {ready}"))?;

    // On cache lines, as PyTorch's tensors are, and on ordinary pages, as theirs.
    let mut memory = vec![0.0f32; args.batch * args.dim + 16];
    let start = memory.as_ptr().align_offset(64);
    let out = &mut memory[start..][..args.batch * args.dim];
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line == "quit" {
            break;
        }
        match obey(&line, &mut *store, &batches, &gradients, out) {
            Ok(numbers) => say(format_args!("{numbers}"))?,
            Err(error) => say(format_args!("error {error:#}"))?,
        }
    }
    Ok(())
}

fn say(line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

fn read<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(path: &Path) -> anyhow::Result<Vec<T>> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(bytemuck::pod_collect_to_vec(&bytes))
}

/// What a line asks for: the seconds of some batches, or the sums.
fn obey(
    line: &str,
    store: &mut dyn Store,
    batches: &[&[u64]],
    gradients: &[f32],
    out: &mut [f32],
) -> anyhow::Result<String> {
    let [what, first, count] = line.split(' ').collect::<Vec<_>>()[..] else { bail!("'{line}' is no order") };
    let (first, count): (usize, usize) = (first.parse()?, count.parse()?);
    let mut answers = String::new();
    for batch in first..first + count {
        let keys = batches[batch % batches.len()];
        store.prepare(keys);
        let mut done = Ok(());
        let time = match what {
            "pull" | "sum" => seconds(|| done = store.pull(keys, out)),
            "push" => seconds(|| done = store.push(keys, gradients)),
            _ => bail!("'{line}' is no order"),
        };
        done?;
        let answer = if what == "sum" { out.iter().map(|&x| f64::from(x)).sum() } else { time };
        write!(answers, "{answer} ")?;
    }
    Ok(answers)
}

/// The system, ready, and how it is set.
fn make(args: &Args, folder: &Path) -> (Box<dyn Store>, &'static str) {
    let &Args { rows, dim, .. } = args;
    let table = TableSpec::dense("t", rows as u64, dim);
    let f32 = table.clone().precision(Precision::F32);
    let sgd = f32.clone().optimizer(Optimizer::Sgd, LEARNING_RATE);
    match args.system {
        System::LimitGather | System::LimitUpdate => (
            Box::new(Plain {
                dim,
                table: Array::new((0..rows * dim).map(|i| initial_weight((i / dim) as u64, i % dim))),
                sums: Array::new((0..rows).map(|_| 0.0)),
            }),
            "plain arrays in process, 1 thread, f32, row-wise Adagrad in place",
        ),
        System::Engine | System::EngineSum => {
            let pooled = matches!(args.system, System::EngineSum);
            let engine = InProcess::new(&f32.optimizer(Optimizer::rowwise_adagrad(), LEARNING_RATE), pooled);
            let settings = match pooled {
                true => "engine in process, 1 thread, f32 table, bags of 20 summed",
                false => "engine in process, 1 thread, f32 table, row-wise Adagrad",
            };
            (Box::new(engine), settings)
        }
        System::Codec => {
            let settings = "codec in process, 1 thread, int8 symmetric, push encodes (stochastic), pull decodes";
            (Box::new(Codec { dim, rows: Vec::new(), encoded: Vec::new() }), settings)
        }
        System::BareTcp => {
            let settings = "a server without protocol on loopback TCP, f32, SGD in place";
            (served(Child::bare(rows, dim, None), |server| Bare::connect(&server.address)), settings)
        }
        System::BareUnix => {
            let child = Child::bare(rows, dim, Some(folder.join("socket")));
            let settings = "a server without protocol on a Unix socket, f32, SGD in place";
            (served(child, |server| Bare::connect(&server.address)), settings)
        }
        System::Hotrow => (
            hotrow(Child::hotrow(|_| ()), None, RowFormat::F32, &sgd),
            "server on loopback TCP, 1 connection, f32 table, SGD, f32 wire",
        ),
        System::HotrowUnix => {
            let socket = folder.join("socket");
            let child = Child::hotrow(|config| config.server.unix = socket.clone());
            (
                hotrow(child, Some(&socket), RowFormat::F32, &sgd),
                "server on a Unix socket, 1 connection, f32 table, SGD, f32 wire",
            )
        }
        System::HotrowInt8 => {
            let int8 = table.precision(Precision::Int8).cache(CacheBudget::Percent(5.0));
            let int8 = int8.optimizer(Optimizer::Sgd, LEARNING_RATE);
            (
                hotrow(Child::hotrow(|_| ()), None, RowFormat::Int8, &int8),
                "server on loopback TCP, 1 connection, int8 table with a 5 % cache, SGD, int8 wire, gradients f32",
            )
        }
    }
}

/// A client with the server that it belongs to.
struct Served<C> {
    client: C,
    _server: Child,
}

fn served<C: Store + 'static>(server: Child, connect: impl FnOnce(&Child) -> C) -> Box<dyn Store> {
    Box::new(Served { client: connect(&server), _server: server })
}

fn hotrow(server: Child, socket: Option<&Path>, format: RowFormat, spec: &TableSpec) -> Box<dyn Store> {
    served(server, |server| {
        let address = socket.map_or(server.address.clone(), |path| format!("unix:{}", path.display()));
        let remote = Remote::connect(&address, format, &spec.name);
        remote.create(spec);
        remote
    })
}

impl<C: Store> Store for Served<C> {
    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> anyhow::Result<()> {
        self.client.pull(keys, out)
    }

    fn push(&mut self, keys: &[u64], gradients: &[f32]) -> anyhow::Result<()> {
        self.client.push(keys, gradients)
    }
}

/// The machine's limit in process.
struct Plain {
    dim: usize,
    table: Array<f32>,
    sums: Array<f32>,
}

impl Store for Plain {
    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> anyhow::Result<()> {
        limits::gather_f32(self.table.as_ref(), self.dim, keys, out);
        Ok(())
    }

    fn push(&mut self, keys: &[u64], gradients: &[f32]) -> anyhow::Result<()> {
        limits::rowwise_adagrad(self.table.as_mut(), self.sums.as_mut(), self.dim, keys, gradients, LEARNING_RATE);
        Ok(())
    }
}

/// An engine, with or without bags.
struct InProcess {
    engine: Engine,
    dim: usize,
    pooled: bool,
}

impl InProcess {
    fn new(spec: &TableSpec, pooled: bool) -> InProcess {
        let engine = Engine::new(EngineConfig { threads: 1, ..EngineConfig::default() }).unwrap();
        engine.create(spec).unwrap();
        let every: Vec<u64> = (0..spec.rows().unwrap()).collect();
        for keys in every.chunks(65_536) {
            let weights = initial_rows(keys, spec.dim);
            engine.assign(&[Assign { table: "t", keys, weights: &weights, state: None }]).unwrap();
        }
        InProcess { engine, dim: spec.dim, pooled }
    }
}

impl Store for InProcess {
    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> anyhow::Result<()> {
        if !self.pooled {
            return Ok(self.engine.pull(&[Pull { table: "t", keys }], out)?);
        }
        let offsets: Vec<u64> = (0..keys.len() as u64).step_by(BAG).collect();
        let pull = PooledPull { table: "t", keys, offsets: &offsets, weights: None, pooling: Pooling::Sum };
        Ok(self.engine.pull_pooled(&[pull], &mut out[..offsets.len() * self.dim])?)
    }

    fn push(&mut self, keys: &[u64], gradients: &[f32]) -> anyhow::Result<()> {
        if self.pooled {
            bail!("bags are only pulled here");
        }
        self.engine.push(&[Push { table: "t", keys, gradients, ..Push::default() }])?;
        Ok(())
    }
}

/// Encoding and decoding, of rows that are gathered before the clock starts.
struct Codec {
    dim: usize,
    rows: Vec<f32>,
    encoded: Vec<u8>,
}

impl Codec {
    const FORMAT: WeightFormat = WeightFormat::Int8Symmetric;

    fn encode(&mut self) {
        let noise = Noise { seed: 1, partition: 2, write_back: 3 };
        encode_rows(Codec::FORMAT, self.dim, &self.rows, Rounding::Stochastic, noise, &mut self.encoded);
    }
}

impl Store for Codec {
    fn prepare(&mut self, keys: &[u64]) {
        self.rows.clear();
        self.rows.extend(initial_rows(keys, self.dim));
        self.encoded.resize(keys.len() * Codec::FORMAT.bytes(self.dim), 0);
        self.encode();
    }

    fn pull(&mut self, _keys: &[u64], out: &mut [f32]) -> anyhow::Result<()> {
        decode_rows(Codec::FORMAT, self.dim, &self.encoded, out);
        Ok(())
    }

    fn push(&mut self, _keys: &[u64], _gradients: &[f32]) -> anyhow::Result<()> {
        self.encode();
        Ok(())
    }
}
