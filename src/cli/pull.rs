//! `hotrow pull`.

use anyhow::Result;

use super::Output;
use super::connect::Connect;
use crate::engine::{Pull, RowFormat};

/// Read rows of a table and print them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  hotrow pull item 3 1415 --output json")]
pub struct Args {
    /// The table's name.
    table: String,
    /// The keys of the rows. A row that was never trained reads as its initial value.
    #[arg(required = true)]
    keys: Vec<u64>,
    /// How rows travel: f32, f16, bf16 or int8.
    #[arg(long, default_value_t = RowFormat::F32)]
    wire: RowFormat,
    #[command(flatten)]
    connect: Connect,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// Prints rows.
pub async fn run(args: Args) -> Result<()> {
    let mut options = args.connect.options()?;
    options.rows = args.wire;
    let client = args.connect.client_with(options).await?;
    let rows = client.pull(&[Pull { table: &args.table, keys: &args.keys }]).await?;
    let dim = rows.len() / args.keys.len();
    for (key, row) in args.keys.iter().zip(rows.chunks(dim)) {
        match args.output {
            Output::Json => println!("{}", serde_json::json!({ "key": key, "row": row })),
            Output::Text => {
                let numbers: Vec<String> = row.iter().map(|x| format!("{x}")).collect();
                println!("{key}: {}", numbers.join(" "));
            }
        }
    }
    Ok(())
}
