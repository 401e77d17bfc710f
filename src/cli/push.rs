//! `hotrow push`.

use anyhow::{Context as _, Result, bail};

use super::connect::Connect;
use crate::engine::Push;

/// Apply gradients to rows of a table, to try it out.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  hotrow push item 3 1415 --fill 0.1\n  echo '{\"key\": 3, \"row\": [0.1, 0.2]}' | hotrow push item --stdin"
)]
pub struct Args {
    /// The table's name.
    table: String,
    /// The keys of the rows.
    keys: Vec<u64>,
    /// The gradient of every number of every row.
    #[arg(long, conflicts_with = "stdin", allow_negative_numbers = true)]
    fill: Option<f32>,
    /// Read gradients from standard input: a JSON object with key and row on each line, as `hotrow pull --output json`
    /// prints.
    #[arg(long, conflicts_with = "keys")]
    stdin: bool,
    /// A learning rate for this push, instead of the table's.
    #[arg(long)]
    learning_rate: Option<f32>,
    /// Which step this is, from 1; adam and adamw need it.
    #[arg(long)]
    step: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(serde::Deserialize)]
struct Line {
    key: u64,
    row: Vec<f32>,
}

/// Pushes gradients.
pub async fn run(args: Args) -> Result<()> {
    let client = args.connect.client().await?;
    let (mut keys, mut gradients) = (args.keys, Vec::new());
    if args.stdin {
        for (number, line) in std::io::stdin().lines().enumerate() {
            let line = line?;
            let line: Line = serde_json::from_str(&line).with_context(|| format!("line {}", number + 1))?;
            keys.push(line.key);
            gradients.extend(line.row);
        }
    } else {
        let Some(fill) = args.fill else { bail!("give the gradients: --fill 0.1, or --stdin") };
        let dim = client.describe_table(&args.table).await?.0.dim;
        gradients.resize(keys.len() * dim, fill);
    }
    if keys.is_empty() {
        bail!("no keys given");
    }
    let (learning_rate, step) = (args.learning_rate, args.step);
    client.push(&[Push { table: &args.table, keys: &keys, gradients: &gradients, learning_rate, step }]).await?;
    client.close().await;
    println!("pushed {} gradients to '{}'", keys.len(), args.table);
    Ok(())
}
