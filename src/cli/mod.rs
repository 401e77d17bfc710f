//! The command line: one file for each subcommand.

mod bench;
mod checkpoint;
mod connect;
mod health;
mod log;
mod plan;
mod pull;
mod push;
mod selftest;
mod serve;
mod stats;
mod table;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};

pub use self::serve::{server_config, start_logging};

/// An embedding parameter server: tables in host memory at low precision, hot rows at full precision in a cache.
#[derive(Parser)]
#[command(name = "hotrow", version, max_term_width = 120)]
#[command(
    after_help = "Start with:\n  hotrow serve\n  hotrow table create item --dim 64 --rows 1000000\n  hotrow push item 3 1415 --fill 0.1\n  hotrow pull item 3 1415\n  hotrow stats"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    /// Make, list, describe, alter, export, import and drop tables.
    #[command(subcommand)]
    Table(table::Command),
    Pull(pull::Args),
    Push(push::Args),
    Stats(stats::Args),
    /// Measure pulls, pushes or training steps against a server.
    Bench(bench::Args),
    Plan(Box<plan::Args>),
    /// Save, list, inspect, verify, restore and prune checkpoints.
    #[command(subcommand)]
    Checkpoint(checkpoint::Command),
    /// Look at the log of a shard that is not running, or mend it.
    #[command(subcommand)]
    Log(log::Command),
    Selftest(selftest::Args),
    Health(health::Args),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  hotrow completions fish > ~/.config/fish/completions/hotrow.fish")]
    Completions {
        /// Which shell the script is for.
        shell: clap_complete::Shell,
    },
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    #[default]
    Text,
    /// For scripts.
    Json,
}

/// Runs the command that the process was given.
pub fn main() -> ExitCode {
    match run(std::env::args_os()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Runs the command that the arguments ask for, the program's name first. Says on standard error what went wrong, if
/// anything did; arguments that make no sense end the process.
pub fn run(args: impl IntoIterator<Item = OsString>) -> bool {
    let result = match Cli::parse_from(args).command {
        Command::Serve(args) => serve::run(*args),
        Command::Table(command) => block_on(table::run(command)),
        Command::Pull(args) => block_on(pull::run(args)),
        Command::Push(args) => block_on(push::run(args)),
        Command::Stats(args) => block_on(stats::run(args)),
        Command::Bench(args) => bench::run(args),
        Command::Plan(args) => plan::run(*args),
        Command::Checkpoint(command) => block_on(checkpoint::run(command)),
        Command::Log(command) => log::run(command),
        Command::Selftest(args) => selftest::run(args),
        Command::Health(args) => health::run(args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "hotrow", &mut std::io::stdout());
            Ok(())
        }
    };
    result.inspect_err(|error| eprintln!("hotrow: {error:#}")).is_ok()
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
