//! `hotrow plan`.

use anyhow::Result;

/// To be written.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_: Args) -> Result<()> {
    anyhow::bail!("not yet")
}
