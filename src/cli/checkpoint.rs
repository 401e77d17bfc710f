//! `hotrow checkpoint`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::Output;
use super::connect::Connect;
use crate::durability::checkpoint::{self, CheckpointStore, Manifest, Share};
use crate::table::{CacheBudget, show_bytes};

#[derive(Debug, Subcommand)]
pub enum Command {
    Save(Save),
    /// List the checkpoints.
    List {
        #[command(flatten)]
        place: Place,
        /// How to print.
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Show what is in a checkpoint: files, shards, tables.
    Inspect {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        place: Place,
        /// How to print.
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Read every byte of a checkpoint, and of those that it differs from, and check it; changes nothing.
    Verify {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        place: Place,
    },
    Restore(Restore),
    /// Remove old checkpoints. The newest complete one is never removed, nor what it differs from.
    Prune {
        /// How many complete checkpoints to keep.
        #[arg(long, default_value_t = 3)]
        keep: usize,
        /// Only say what would be removed.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        place: Place,
    },
}

/// Save the whole cluster while training goes on. With --data-dir: save shards that do not run.
///
/// The checkpoint is an exact cut of the cluster if no push is under way: call it after every trainer's flush().
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  A running cluster, to where its servers were told to (hotrow serve --checkpoints):
    hotrow checkpoint save --label step=1000
  Two shards that do not run, from their folders; then any number of shards can start from it:
    hotrow checkpoint save --data-dir /var/lib/hotrow-0 --data-dir /var/lib/hotrow-1 --checkpoints s3://bucket/hotrow")]
pub struct Save {
    /// What to call it, such as step=1000.
    #[arg(long, default_value = "")]
    label: String,
    /// Save only what changed since the last checkpoint, where a shard can.
    #[arg(long, conflicts_with = "data_dir")]
    incremental: bool,
    /// The data folder of a shard that does not run; once for each shard of the cluster.
    #[arg(long, value_name = "DIR", requires = "checkpoints")]
    data_dir: Vec<PathBuf>,
    /// With --data-dir: where checkpoints are, a folder or a URL.
    #[arg(long, env = "HOTROW_CHECKPOINTS", value_name = "URL")]
    checkpoints: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Make a shard that does not run start from a checkpoint, instead of from where it was.
///
/// Not needed for an ordinary start: a shard goes on where it was, and one with a fresh --data-dir begins with the newest
/// checkpoint, also where the number of shards has changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  Back to an earlier checkpoint (for each shard, with its own folder):
    hotrow checkpoint restore --label step=1000 --data-dir /var/lib/hotrow --checkpoints s3://bucket/hotrow --discard-log
  The first of three shards, whatever number has saved it, with a larger cache for one table:
    hotrow checkpoint restore 12 --data-dir /var/lib/new-0 --shard 0 --shards 3 --cache item=10% --checkpoints /saved")]
pub struct Restore {
    #[command(flatten)]
    which: Which,
    /// The shard's data folder; a new one needs --shard and --shards.
    #[arg(long, env = "HOTROW_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    /// Which shard the folder is for, from 0.
    #[arg(long, requires = "shards")]
    shard: Option<u32>,
    /// How many shards there are.
    #[arg(long, requires = "shard")]
    shards: Option<u32>,
    /// Another size for a table's cache, such as item=10% or item=2GiB. Rows that a smaller one has no room for are rounded.
    #[arg(long, value_name = "TABLE=SIZE")]
    cache: Vec<String>,
    /// Give up the changes of the folder's log that the checkpoint does not have; the log is kept beside it.
    #[arg(long)]
    discard_log: bool,
    #[command(flatten)]
    place: Place,
}

/// Where checkpoints are.
#[derive(Debug, clap::Args)]
pub struct Place {
    /// Where checkpoints are: a folder, or a URL such as s3://bucket/hotrow.
    #[arg(long, env = "HOTROW_CHECKPOINTS", value_name = "URL")]
    checkpoints: String,
}

/// Which checkpoint.
#[derive(Debug, clap::Args)]
pub struct Which {
    /// Its number, as `hotrow checkpoint list` shows it [default: the newest complete one; restore: what a start would take].
    #[arg(conflicts_with = "label")]
    number: Option<u64>,
    /// The newest with this label.
    #[arg(long)]
    label: Option<String>,
}

impl Which {
    async fn find(&self, store: &CheckpointStore) -> Result<Manifest> {
        if let Some(number) = self.number {
            return store.get(number).await;
        }
        let mut found = None;
        for (_, manifest) in store.list().await? {
            let manifest = manifest?;
            let wanted = self.label.as_ref().is_none_or(|label| *label == manifest.label);
            if wanted && manifest.is_complete() {
                found = Some(manifest);
            }
        }
        let called = self.label.as_ref().map_or(String::new(), |label| format!(" with the label '{label}'"));
        found.with_context(|| format!("there is no complete checkpoint{called} in {}", store.url()))
    }
}

/// Runs the command.
pub async fn run(command: Command) -> Result<()> {
    match command {
        Command::Save(save) if save.data_dir.is_empty() => save_cluster(save).await,
        Command::Save(save) => save_folders(save).await,
        Command::List { place, output } => list(&CheckpointStore::existing(&place.checkpoints)?, output).await,
        Command::Inspect { which, place, output } => {
            let store = CheckpointStore::existing(&place.checkpoints)?;
            inspect(&which.find(&store).await?, output)
        }
        Command::Verify { which, place } => {
            let store = CheckpointStore::existing(&place.checkpoints)?;
            let manifest = which.find(&store).await?;
            let bar = bar();
            let mut watch = |bytes, all| {
                bar.set_length(all);
                bar.set_position(bytes);
            };
            let read = checkpoint::verify(&store, &manifest, &mut watch).await;
            bar.finish_and_clear();
            let read = read.with_context(|| format!("checkpoint {} is not whole", manifest.sequence))?;
            println!("checkpoint {} is whole: {} read", manifest.sequence, show_bytes(read as f64));
            Ok(())
        }
        Command::Restore(args) => restore(args).await,
        Command::Prune { keep, dry_run, place } => {
            let store = CheckpointStore::existing(&place.checkpoints)?;
            let gone = checkpoint::prune(&store, keep, dry_run).await?;
            let would = if dry_run { "would be " } else { "" };
            gone.iter().for_each(|number| println!("checkpoint {number} {would}removed"));
            if gone.is_empty() {
                println!("nothing to remove");
            }
            Ok(())
        }
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    ProgressBar::new(0).with_style(style.expect("the template is tested by using it"))
}

async fn save_cluster(save: Save) -> Result<()> {
    let begun = std::time::Instant::now();
    let bar = bar();
    let watch = |bytes: u64, expected: u64| {
        bar.set_length(expected.max(bytes));
        bar.set_position(bytes);
    };
    let saved = save.connect.client().await?.save_checkpoint(&save.label, save.incremental, watch).await;
    bar.finish_and_clear();
    let saved = saved?;
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "checkpoint {} is complete: {} in {seconds:.1} s, {}/s",
        saved.sequence,
        show_bytes(saved.bytes as f64),
        show_bytes(saved.bytes as f64 / seconds)
    );
    Ok(())
}

async fn save_folders(save: Save) -> Result<()> {
    let store = CheckpointStore::open(&save.checkpoints.unwrap_or_default())?;
    let mut say = |text: String| println!("{text}");
    let manifest = checkpoint::save_folders(&store, &save.data_dir, &save.label, &mut say).await?;
    println!("checkpoint {} is complete: {}", manifest.sequence, show_bytes(manifest.bytes() as f64));
    Ok(())
}

fn age(made: u64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let age = Duration::from_secs(now.saturating_sub(made));
    indicatif::HumanDuration(age).to_string() + " ago"
}

fn shards(manifest: &Manifest) -> String {
    let of = manifest.files.first().map_or(0, |file| file.shards);
    match manifest.is_complete() {
        true => format!("all {of}"),
        false => {
            let some: Vec<String> = manifest.files.iter().map(|file| file.shard.to_string()).collect();
            format!("shard {} of {of}", some.join(","))
        }
    }
}

fn differs_from(manifest: &Manifest) -> Option<u64> {
    manifest.bases().max()
}

async fn list(store: &CheckpointStore, output: Output) -> Result<()> {
    let manifests = store.list().await?;
    if output == Output::Json {
        let all: Vec<_> = manifests
            .iter()
            .map(|(number, manifest)| match manifest {
                Ok(m) => json!({
                    "checkpoint": number, "label": m.label, "made": m.made, "bytes": m.bytes(),
                    "complete": m.is_complete(), "differs_from": differs_from(m),
                    "shards": m.files.iter().map(|file| file.shard).collect::<Vec<_>>(),
                }),
                Err(error) => json!({"checkpoint": number, "error": format!("{error:#}")}),
            })
            .collect();
        println!("{}", json!({ "checkpoints": all }));
        return Ok(());
    }
    if manifests.is_empty() {
        println!("there are no checkpoints in {}", store.url());
        return Ok(());
    }
    println!("{:>10} {:>10} {:>12} {:>16}  {:18} label", "checkpoint", "size", "differs from", "shards", "made");
    for (number, manifest) in &manifests {
        match manifest {
            Ok(m) => println!(
                "{number:>10} {:>10} {:>12} {:>16}  {:18} {}",
                show_bytes(m.bytes() as f64),
                differs_from(m).map_or("-".into(), |base| base.to_string()),
                shards(m),
                age(m.made),
                m.label
            ),
            Err(error) => println!("{number:>10} cannot be read: {error:#}"),
        }
    }
    Ok(())
}

fn inspect(manifest: &Manifest, output: Output) -> Result<()> {
    if output == Output::Json {
        println!("{}", serde_json::to_string(manifest)?);
        return Ok(());
    }
    let cluster = &manifest.cluster;
    println!("checkpoint {} '{}', made {}", manifest.sequence, manifest.label, age(manifest.made));
    println!("cluster '{}', {} partitions, seed {}", cluster.name, cluster.partitions, cluster.seed);
    println!("shards: {}", shards(manifest));
    for file in &manifest.files {
        let from = file.base.map_or("all rows".into(), |base| format!("what changed since checkpoint {base}"));
        println!(
            "  shard {} up to change {}: {} partitions, {}, {from}",
            file.shard,
            file.lsn,
            file.sections.len(),
            show_bytes(file.bytes as f64)
        );
        println!("    {}", file.path);
    }
    if let Some(file) = manifest.files.first() {
        println!("tables:");
        for table in &file.tables {
            // By way of text, where 0.01 is 0.01.
            let words: serde_json::Map<String, Value> = serde_json::from_str(&serde_json::to_string(&table.current)?)?;
            let words = words.iter().filter(|(key, value)| *key != "name" && !value.is_null());
            let words: Vec<String> = words
                .map(|(key, value)| format!("{key} {}", value.as_str().map_or(value.to_string(), Into::into)))
                .collect();
            println!("  {}: {}", table.current.name, words.join(", "));
        }
    }
    Ok(())
}

async fn restore(args: Restore) -> Result<()> {
    let store = CheckpointStore::existing(&args.place.checkpoints)?;
    // Without either, it is what a start would take: also what shards saved by themselves when they were drained.
    let named = args.which.number.is_some() || args.which.label.is_some();
    let manifest = if named { Some(args.which.find(&store).await?) } else { None };
    let mut caches = std::collections::BTreeMap::new();
    for text in &args.cache {
        let Some((table, size)) = text.split_once('=') else { bail!("--cache {text}: it is like item=10%") };
        let size: CacheBudget = size.parse().map_err(|e| anyhow::anyhow!("--cache {text}: {e}"))?;
        ensure!(caches.insert(table.to_string(), size).is_none(), "--cache names '{table}' twice");
    }
    let share = args.shard.zip(args.shards).map(|(shard, shards)| Share { shard, shards });
    let done =
        checkpoint::restore_folder(&store, manifest.as_ref(), &args.data_dir, share, caches, args.discard_log).await?;
    let (identity, checkpoints, kept) = done;
    if let Some(kept) = kept {
        println!("the log that was there is in {}", kept.display());
    }
    println!(
        "{} starts shard {} of {} from checkpoint {} now",
        args.data_dir.display(),
        identity.shard,
        identity.shards,
        checkpoints.iter().map(u64::to_string).collect::<Vec<_>>().join(" and ")
    );
    Ok(())
}
