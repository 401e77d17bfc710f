//! `hotrow table import`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use tonic::Code;

use super::super::Output;
use super::super::connect::Connect;
use super::export::{batch_rows, progress};
use crate::client::{Client, Error as Refusal};
use crate::engine::Assign;
use crate::exchange::{KeysReader, RowsReader};
use crate::table::TableSpec;

/// Keys that are checked at a time.
const CHECKED: u64 = 1 << 18;

/// Set rows of a table to those of a NumPy or safetensors file.
///
/// The file has float32 or float16 rows (bf16 too in safetensors), or what `hotrow table export --precision stored`
/// writes. Rows are rounded to the table's precision as it rounds. Their optimizer state becomes zeros. The table must
/// exist. If it fails in the middle, the rows before are set; importing again is fine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  Row i is key i:
    hotrow table create item --dim 64 --rows 1000000
    hotrow table import item --from item.npy
  A hashed table, or some rows of a dense one:
    hotrow table import user --from user.npy --keys user-keys.npy
    hotrow table import user --from user.safetensors")]
pub struct Args {
    /// The table.
    name: String,
    /// The file to read; its name ends in .npy or .safetensors.
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// The keys of its rows, uint64, if they are not 0 to the table's rows - 1 and not in the file itself.
    #[arg(long, value_name = "FILE.npy")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    connect: Connect,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// Fills a table from files.
pub async fn run(args: Args) -> Result<()> {
    let begun = Instant::now();
    let mut file = RowsReader::open(&args.from)?;
    let keys = match (file.keys.take(), &args.keys) {
        (Some(_), Some(_)) => bail!("{} has its keys in it: leave --keys out", file.name),
        (None, Some(path)) => Some(KeysReader::open(path)?),
        (inside, None) => inside,
    };
    let client = args.connect.client().await?;
    let spec = describe(&client, &args.name, &file, keys.is_some()).await?;
    check(&spec, &file, keys.as_ref())?;

    let bar = progress(file.rows)?;
    let batch = batch_rows(spec.dim);
    for first in (0..file.rows).step_by(batch as usize) {
        let count = batch.min(file.rows - first);
        let keys = match &keys {
            Some(keys) => keys.read(first, count as usize)?,
            None => (first..first + count).collect(),
        };
        let weights = file.read(first, count as usize, spec.dim)?;
        let set = client.assign(&Assign { table: &spec.name, keys: &keys, weights: &weights, state: None }).await;
        set.with_context(|| {
            let bad = weights.iter().position(|x| !x.is_finite()).map(|i| first + (i / spec.dim) as u64);
            let see = bad.map_or_else(String::new, |row| format!(" (see row {row})"));
            format!("{}: stopped at rows {first} to {}{see}; those before are set", file.name, first + count - 1)
        })?;
        bar.inc(count);
    }
    bar.finish_and_clear();

    let (precision, _) = file.format.parts();
    let seconds = begun.elapsed().as_secs_f64();
    match args.output {
        Output::Json => println!(
            "{}",
            serde_json::json!({
                "table": spec.name, "rows": file.rows, "dim": spec.dim, "precision": precision.to_string(),
                "file": file.name, "keys": args.keys.as_ref().map(|keys| keys.display().to_string()), "seconds": seconds,
            })
        ),
        Output::Text => println!("set {} rows of '{}' from {}: {seconds:.1} s", file.rows, spec.name, file.name),
    }
    Ok(())
}

/// The table; if there is none, how to make it.
async fn describe(client: &Client, name: &str, file: &RowsReader, hashed: bool) -> Result<TableSpec> {
    match client.describe_table(name).await {
        Ok((spec, _)) => Ok(spec),
        Err(Refusal::Refused { code: Code::NotFound, .. }) => {
            let rows = if hashed { String::new() } else { format!(" --rows {}", file.rows) };
            let form = match file.format.parts() {
                (precision, Some(quantizer)) => format!(" --precision {precision} --quantizer {quantizer}"),
                _ => String::new(),
            };
            Err(anyhow!(
                "there is no table '{name}': make it first, hotrow table create {name} --dim {}{rows}{form}",
                file.dims.end()
            ))
        }
        Err(error) => Err(error.into()),
    }
}

/// Finds what would fail in the middle before anything is set.
fn check(spec: &TableSpec, file: &RowsReader, keys: Option<&KeysReader>) -> Result<()> {
    let (name, file_name, dim) = (&spec.name, &file.name, spec.dim);
    if !file.dims.contains(&dim) {
        bail!("{file_name} has rows of {} numbers, table '{name}' has {dim}", file.dims.end());
    }
    match (keys, spec.rows()) {
        (None, None) => bail!("'{name}' is a hashed table: give the keys of the rows, --keys {name}-keys.npy"),
        (None, Some(rows)) if rows != file.rows => {
            let found = file.rows;
            bail!("{file_name} has {found} rows, table '{name}' has {rows}: to set some of them, give their --keys")
        }
        (None, Some(_)) => Ok(()),
        (Some(keys), _) if keys.count() != file.rows => {
            bail!("{} has {} keys, but {file_name} has {} rows", keys.name(), keys.count(), file.rows)
        }
        (Some(keys), rows) => (0..keys.count()).step_by(CHECKED as usize).try_for_each(|first| {
            let found = keys.read(first, CHECKED.min(keys.count() - first) as usize)?;
            match found.iter().position(|&key| rows.is_some_and(|rows| key >= rows)) {
                None => Ok(()),
                Some(i) => {
                    let (key, row, last) = (found[i], first + i as u64, rows.unwrap_or(0) - 1);
                    let keys = keys.name();
                    bail!("{keys}: key {key} of row {row} is out of range, table '{name}' has keys 0 to {last}")
                }
            }
        }),
    }
}
