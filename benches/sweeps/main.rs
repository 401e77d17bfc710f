//! `make bench-sweeps`: what pull and push cost as one thing changes at a time, beside the machine's limit on the same keys
//! in the same round where there is one.
//!
//! Every point is a line `point {json}` and one for people. Arguments name the sweeps to run, such as `rows dim`; none runs
//! all. `--quick` measures fewer points less often, to see whether it runs.

#[path = "../common/mod.rs"]
mod common;

mod clients;
mod engine;
mod point;
mod rows;
mod service;

use clap::{Parser, ValueEnum};

use crate::common::process;

/// What pull and push cost as one thing changes at a time.
#[derive(Parser)]
struct Args {
    /// The sweeps to run; none is all.
    sweeps: Vec<Sweep>,
    /// Fewer points and repetitions.
    #[arg(long)]
    quick: bool,
    /// What cargo adds.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Sweep {
    Rows,
    Dim,
    Batch,
    Precision,
    Cache,
    Zipf,
    Clients,
    Wire,
    Shards,
    Transport,
    Log,
}

fn main() {
    process::serve_if_child();
    // `cargo test --benches` asks for tests; there are none here.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let Args { sweeps, quick, .. } = Args::parse();
    for sweep in Sweep::value_variants() {
        if !sweeps.is_empty() && !sweeps.contains(sweep) {
            continue;
        }
        eprintln!("sweep: {sweep:?}");
        let begun = std::time::Instant::now();
        match sweep {
            Sweep::Rows => rows::sweep(quick),
            Sweep::Dim => engine::dim(quick),
            Sweep::Batch => {
                engine::batch(quick);
                service::batch(quick);
            }
            Sweep::Precision => engine::precision(quick),
            Sweep::Cache => engine::cache(quick),
            Sweep::Zipf => engine::zipf(quick),
            Sweep::Clients => clients::sweep(quick),
            Sweep::Wire => service::wire(quick),
            Sweep::Shards => service::shards(quick),
            Sweep::Transport => service::transport(quick),
            Sweep::Log => service::log(quick),
        }
        eprintln!("sweep: {sweep:?} took {:.0} s", begun.elapsed().as_secs_f64());
    }
}
