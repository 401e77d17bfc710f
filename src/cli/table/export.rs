//! `hotrow table export`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use futures_util::{StreamExt as _, TryStreamExt as _};
use indicatif::{HumanCount, ProgressBar, ProgressState, ProgressStyle};

use super::super::Output;
use super::super::connect::Connect;
use crate::client::{Client, KeyCursor};
use crate::exchange::{FileKind, KeysReader, KeysWriter, Layout, RowsWriter, Target};
use crate::numeric::WeightFormat;
use crate::table::{TableSpec, show_bytes};

/// Bytes of a batch at f32, keys included: little memory, and below any limit of a server that serves at all.
const BATCH: usize = 1 << 20;
/// Batches that are asked for before the first is written.
const AHEAD: usize = 4;

/// Write the rows of a table to a NumPy or safetensors file.
///
/// All rows of a dense table, in the order of their keys, or the rows of a hashed table that were ever pushed, touched or
/// set. Weights only: optimizer state is in checkpoints. If training goes on meanwhile, rows are from different moments;
/// an exact cut is a checkpoint. Nothing is changed on the servers, and nothing is counted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  Numbers for np.load:
    hotrow table export item --to item.npy
  Codes and scales, as the table has them:
    hotrow table export item --to item.safetensors --precision stored
  A hashed table:
    hotrow table export user --to user.npy --keys user-keys.npy")]
pub struct Args {
    /// The table.
    name: String,
    /// The file to write; its name ends in .npy or .safetensors.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// How to write rows.
    #[arg(long, value_enum, default_value_t)]
    precision: Precision,
    /// Where to write the keys of a hashed table's rows, uint64; for .npy only, safetensors has them in the same file.
    #[arg(long, value_name = "FILE.npy")]
    keys: Option<PathBuf>,
    /// Replace files that exist.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    connect: Connect,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Precision {
    /// The numbers that a pull reads.
    #[default]
    F32,
    /// As the table stores them: codes with scales, f16 or bf16. Rows that are newer in the cache are rounded to nearest.
    Stored,
}

/// Writes a table to files.
pub async fn run(args: Args) -> Result<()> {
    let begun = Instant::now();
    let kind = FileKind::of(&args.to)?;
    let client = args.connect.client().await?;
    let spec = client.describe_table(&args.name).await?.0;
    check_keys_flag(&args, kind, &spec)?;
    let stored = args.precision == Precision::Stored;
    let format = if stored { client.stored_format(&args.name).await? } else { WeightFormat::F32 };
    let target = Target::create(&args.to, args.force)?;
    let keys_target = args.keys.as_deref().map(|path| Target::create(path, args.force)).transpose()?;
    let layout = Layout { table: &spec.name, format, dim: spec.dim, keys: spec.rows().is_none() };

    // The keys come first: how many there are decides where everything else is.
    let (keys, keys_target) = match (spec.rows(), keys_target) {
        (Some(rows), _) => (Keys::Dense(rows), None),
        (None, keys_target) => {
            let writer = match keys_target {
                Some(target) => KeysWriter::npy(target)?,
                None => layout.keys_writer(&target)?,
            };
            let (reader, target) = scan(&client, &spec.name, writer).await?;
            (Keys::Hashed(reader), target)
        }
    };
    let rows = keys.count();
    let mut writer = match kind {
        FileKind::Npy => RowsWriter::npy(target, format, spec.dim, rows)?,
        FileKind::Safetensors => RowsWriter::safetensors(target, &layout, rows)?,
    };
    let bar = progress(rows)?;
    let batch = batch_rows(spec.dim);
    let mut batches = futures_util::stream::iter((0..rows).step_by(batch as usize))
        .map(|first| {
            let (client, keys, spec) = (&client, &keys, &spec);
            async move {
                let keys = keys.read(first, batch.min(rows - first) as usize)?;
                let (found, bytes) = client.read_rows(&spec.name, &keys, stored).await?;
                ensure!(found == format, "table '{}' was made anew meanwhile: try again", spec.name);
                anyhow::Ok((first, keys.len(), bytes))
            }
        })
        .buffered(AHEAD);
    while let Some((first, count, bytes)) = batches.try_next().await? {
        writer.write(first, &bytes)?;
        bar.inc(count as u64);
    }
    bar.finish_and_clear();
    // Whoever finds the rows finds their keys.
    if let Some(target) = keys_target {
        target.finish()?;
    }
    let bytes = writer.finish()?;

    let (precision, quantizer) = format.parts();
    let seconds = begun.elapsed().as_secs_f64();
    let (to, name) = (args.to.display(), &spec.name);
    match args.output {
        Output::Json => println!(
            "{}",
            serde_json::json!({
                "table": name, "rows": rows, "dim": spec.dim, "precision": precision.to_string(),
                "quantizer": quantizer.map(|quantizer| quantizer.to_string()), "file": to.to_string(),
                "keys": args.keys.as_ref().map(|keys| keys.display().to_string()),
                "bytes": bytes, "seconds": seconds,
            })
        ),
        Output::Text => {
            println!(
                "wrote {rows} rows of '{name}' as {precision} to {to}: {}, {seconds:.1} s",
                show_bytes(bytes as f64)
            );
        }
    }
    Ok(())
}

/// Rows of a batch.
pub fn batch_rows(dim: usize) -> u64 {
    (BATCH / (4 * dim + 8)).max(1) as u64
}

/// How far it is, on a terminal.
pub fn progress(rows: u64) -> Result<ProgressBar> {
    Ok(ProgressBar::new(rows).with_style(style("{bar:30} {human_pos} of {human_len} rows, {rate}/s, {eta} left")?))
}

/// A style with a rate in whole numbers.
fn style(template: &str) -> Result<ProgressStyle> {
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        // Nobody hears of what a terminal does not take.
        let _ = write!(out, "{}", HumanCount(state.per_sec() as u64));
    };
    Ok(ProgressStyle::with_template(template)?.with_key("rate", rate))
}

fn check_keys_flag(args: &Args, kind: FileKind, spec: &TableSpec) -> Result<()> {
    let name = &spec.name;
    match (&args.keys, spec.rows(), kind) {
        (None, None, FileKind::Npy) => {
            bail!("'{name}' is a hashed table: give a file for the keys of its rows, --keys {name}-keys.npy")
        }
        (Some(_), Some(_), _) => bail!("'{name}' is a dense table, row i is key i: leave --keys out"),
        (Some(_), None, FileKind::Safetensors) => bail!("a safetensors file has the keys in it: leave --keys out"),
        (Some(keys), _, _) if FileKind::of(keys)? != FileKind::Npy => bail!("--keys takes the name of a .npy file"),
        (Some(keys), _, _) if same(keys, &args.to) => bail!("--to and --keys name the same file"),
        _ => Ok(()),
    }
}

fn same(a: &Path, b: &Path) -> bool {
    match (std::path::absolute(a), std::path::absolute(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

/// The keys of the rows of an export.
enum Keys {
    /// 0 to this.
    Dense(u64),
    Hashed(KeysReader),
}

impl Keys {
    fn count(&self) -> u64 {
        match self {
            Keys::Dense(rows) => *rows,
            Keys::Hashed(keys) => keys.count(),
        }
    }

    fn read(&self, first: u64, count: usize) -> Result<Vec<u64>> {
        match self {
            Keys::Dense(_) => Ok((first..first + count as u64).collect()),
            Keys::Hashed(keys) => keys.read(first, count),
        }
    }
}

/// Writes all keys of a hashed table, as they are found.
async fn scan(client: &Client, table: &str, mut writer: KeysWriter) -> Result<(KeysReader, Option<Target>)> {
    let spinner = ProgressBar::no_length().with_style(style("{spinner} {human_pos} keys, {rate}/s")?);
    let mut cursor = Some(KeyCursor::default());
    while let Some(from) = cursor {
        let (keys, next) = client.scan_keys(table, &from).await?;
        writer.append(&keys)?;
        spinner.inc(keys.len() as u64);
        cursor = next;
    }
    spinner.finish_and_clear();
    writer.finish()
}
