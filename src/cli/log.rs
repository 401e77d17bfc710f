//! `hotrow log`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::Output;
use crate::durability::{self, DataFolder, Progress};
use crate::engine::Lsn;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Read the whole log and check every group; changes nothing.
    Verify {
        /// The shard's data folder.
        #[arg(long, env = "HOTROW_DATA_DIR", value_name = "DIR")]
        data_dir: PathBuf,
        /// How the result is printed.
        #[arg(long, default_value = "text")]
        output: Output,
    },
    /// Give up the changes of a damaged log from a place on. What is cut is kept beside it, in files that end in .cut.
    Cut {
        /// The shard's data folder.
        #[arg(long, env = "HOTROW_DATA_DIR", value_name = "DIR")]
        data_dir: PathBuf,
        /// The first change to give up, as `hotrow log verify` or the shard's refusal to start names it.
        #[arg(long, value_name = "LSN")]
        from: u64,
    },
}

/// Runs the command.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Verify { data_dir, output } => verify(&data_dir, output),
        Command::Cut { data_dir, from } => {
            let (folder, identity) = DataFolder::existing(&data_dir)?;
            for path in durability::cut(&folder, &identity, from)? {
                println!("kept {}", path.display());
            }
            println!("the log ends before change {from} now; start the shard");
            Ok(())
        }
    }
}

fn verify(data_dir: &Path, output: Output) -> Result<()> {
    let (folder, identity) = DataFolder::existing(data_dir)?;
    let style = ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")?;
    let bar = ProgressBar::new(0).with_style(style);
    let mut watch = |progress: Progress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.bytes);
    };
    let verified = durability::verify(Arc::new(folder.log()?), identity.tag(), Lsn(folder.base()?.lsn), &mut watch);
    bar.finish_and_clear();
    let verified = verified.context("the log is not whole")?;
    let (progress, torn) = (verified.progress, verified.torn.as_ref().map(|cut| cut.to - cut.from));
    if output == Output::Json {
        println!(
            "{}",
            json!({"changes": progress.changes, "bytes": progress.bytes, "last": verified.last.0, "torn_bytes": torn.unwrap_or(0)})
        );
        return Ok(());
    }
    println!("whole: {} changes up to {}, {} bytes", progress.changes, verified.last.0, progress.bytes);
    if let Some(bytes) = torn {
        println!("its last {bytes} bytes are not a whole group: the next start cuts them off");
    }
    Ok(())
}
