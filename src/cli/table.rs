//! `hotrow table`.

mod export;
mod import;

use anyhow::{Result, anyhow, bail};

use super::Output;
use super::connect::Connect;
use crate::engine::Alteration;
use crate::proto;
use crate::server::config::TableConfig;
use crate::table::{TableSpec, show_bytes};

/// Make, list, describe, alter, export, import and drop tables.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a table on all shards. Making the same one again is fine.
    #[command(after_help = "\
Examples:
  A million rows at int8, 5 % of them, the hot ones, at full precision in the cache:
    hotrow table create item --dim 64 --rows 1000000
  Any 64-bit key, int4, Adam with half-size state, two gigabytes of cache:
    hotrow table create user --dim 128 --precision int4 --optimizer adam --state-precision bf16 --cache 2GiB
  What it will cost, before it is made: the same flags with `hotrow plan`.")]
    Create {
        #[command(flatten)]
        table: Box<TableFlags>,
        #[command(flatten)]
        connect: Connect,
        /// How to print.
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// List all tables.
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        connect: Connect,
        /// How to print.
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Show a table's spec and what it costs.
    Describe {
        /// The table.
        name: String,
        #[command(flatten)]
        connect: Connect,
        /// How to print.
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Change learning rate, weight decay or clipping of a table that is in use.
    Alter {
        /// The table.
        name: String,
        /// The new learning rate.
        #[arg(long)]
        learning_rate: Option<f32>,
        /// The new weight decay.
        #[arg(long)]
        weight_decay: Option<f32>,
        /// The new clipping norm; 0 ends clipping.
        #[arg(long)]
        clip_norm: Option<f32>,
        #[command(flatten)]
        connect: Connect,
        /// How to print.
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    Export(export::Args),
    Import(import::Args),
    /// Forget a table with all its rows.
    Drop {
        /// The table.
        name: String,
        /// Needed, so that nobody drops a table by mistake.
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        connect: Connect,
    },
}

/// A table in flags.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Table")]
pub struct TableFlags {
    /// The table's name: letters, digits, _ - . /
    #[arg(help_heading = None)]
    pub name: String,
    /// Numbers in a row.
    #[arg(long)]
    pub dim: usize,
    #[command(flatten)]
    pub spec: SpecFlags,
}

impl TableFlags {
    /// The spec that the flags describe.
    pub fn spec(&self) -> Result<TableSpec> {
        self.spec.spec(&self.name, self.dim)
    }
}

/// Everything about a table that has a default.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Table")]
pub struct SpecFlags {
    /// Rows: keys are 0 to rows - 1. Leave it out for a hashed table: any 64-bit key, rows appear on first use.
    #[arg(long, value_name = "N", value_parser = count)]
    pub rows: Option<u64>,
    /// How rows are stored: f32, f16, bf16, int8, int4 or int2 [default: int8].
    #[arg(long)]
    pub precision: Option<String>,
    /// How integers map to numbers: symmetric or affine [default: affine for int4 and int2, symmetric for int8].
    #[arg(long)]
    pub quantizer: Option<String>,
    /// How a row is rounded when it leaves the cache: stochastic or nearest (to compare) [default: stochastic].
    #[arg(long)]
    pub rounding: Option<String>,
    /// sgd, adagrad, rowwise_adagrad, adam or adamw; numbers as in adam:beta1=0.9,eps=1e-8 [default: rowwise_adagrad].
    #[arg(long)]
    pub optimizer: Option<String>,
    /// The learning rate, where a push brings none [default: 0.01].
    #[arg(long)]
    pub learning_rate: Option<f32>,
    /// Weight decay on the rows of a push: L2, or decoupled for adamw [default: 0].
    #[arg(long)]
    pub weight_decay: Option<f32>,
    /// The largest L2 norm of a row's gradient; longer ones are scaled down to it [default: no limit].
    #[arg(long)]
    pub clip_norm: Option<f32>,
    /// How optimizer state is stored: f32 or bf16 [default: f32].
    #[arg(long)]
    pub state_precision: Option<String>,
    /// What untrained rows read as: zeros, constant:0.1, uniform:-0.1,0.1, normal:0,0.01 or dlrm [default: dlrm, or
    /// uniform:-0.01,0.01 if hashed].
    #[arg(long)]
    pub initializer: Option<String>,
    /// What the full-precision cache may hold: 5%, 100000rows or 2GiB [default: 5%, or 65536rows if hashed].
    #[arg(long)]
    pub cache: Option<String>,
    /// Which cached row gives way to a new one: lru (least recently pushed) or lfu (least often) [default: lfu for
    /// int4 and int2, lru otherwise].
    #[arg(long)]
    pub policy: Option<String>,
}

impl SpecFlags {
    /// The spec of a table of this name and dim.
    pub fn spec(&self, name: &str, dim: usize) -> Result<TableSpec> {
        let flags = self.clone();
        let config = TableConfig {
            name: name.into(),
            dim,
            rows: flags.rows,
            precision: flags.precision,
            quantizer: flags.quantizer,
            rounding: flags.rounding,
            optimizer: flags.optimizer,
            learning_rate: flags.learning_rate,
            weight_decay: flags.weight_decay,
            clip_norm: flags.clip_norm,
            state_precision: flags.state_precision,
            initializer: flags.initializer,
            cache: flags.cache,
            policy: flags.policy,
        };
        config.spec().map_err(|e| anyhow!(e))
    }
}

/// A number of rows: 1000000, 1_000_000 or 1e6.
pub fn count(text: &str) -> Result<u64, String> {
    let digits = text.trim().replace('_', "");
    if let Ok(count) = digits.parse() {
        return Ok(count);
    }
    match digits.parse::<f64>() {
        // Up to here every whole number is an f64.
        Ok(count) if count >= 0.0 && count.fract() == 0.0 && count <= (1u64 << 53) as f64 => Ok(count as u64),
        _ => Err("use a whole number, such as 1000000, 1_000_000 or 1e6".into()),
    }
}

/// Runs a table command.
pub async fn run(command: Command) -> Result<()> {
    match command {
        Command::Create { table, connect, output } => {
            let spec = table.spec()?;
            let footprint = connect.client().await?.create_table(&spec).await?;
            match output {
                Output::Json => println!("{}", json(&spec, &footprint)),
                Output::Text => println!("made '{}': {}", spec.name, cost(&footprint)),
            }
        }
        Command::List { connect, output } => {
            let tables = connect.client().await?.list_tables().await?;
            match output {
                Output::Json => {
                    let tables: Vec<_> = tables.iter().map(|(spec, footprint)| json(spec, footprint)).collect();
                    println!("{}", serde_json::Value::from(tables));
                }
                Output::Text => {
                    println!("{:24} {:>12} {:>5} {:>9} {:>9}  memory", "table", "rows", "dim", "precision", "cache");
                    for (spec, footprint) in tables {
                        let rows = spec.rows().map_or("hashed".into(), |rows| rows.to_string());
                        let (precision, cache) = (spec.precision.to_string(), spec.cache.to_string());
                        println!(
                            "{:24} {rows:>12} {:>5} {precision:>9} {cache:>9}  {}",
                            spec.name,
                            spec.dim,
                            cost(&footprint)
                        );
                    }
                }
            }
        }
        Command::Describe { name, connect, output } => {
            let (spec, footprint) = connect.client().await?.describe_table(&name).await?;
            show(&spec, Some(&footprint), output)?;
        }
        Command::Alter { name, learning_rate, weight_decay, clip_norm, connect, output } => {
            if learning_rate.is_none() && weight_decay.is_none() && clip_norm.is_none() {
                bail!("nothing to change: give --learning-rate, --weight-decay or --clip-norm");
            }
            let clip_norm = clip_norm.map(|norm| (norm != 0.0).then_some(norm));
            let alteration = Alteration { learning_rate, weight_decay, clip_norm };
            let spec = connect.client().await?.alter_table(&name, alteration).await?;
            show(&spec, None, output)?;
        }
        Command::Export(args) => export::run(args).await?,
        Command::Import(args) => import::run(args).await?,
        Command::Drop { name, yes, connect } => {
            let client = connect.client().await?;
            if !yes {
                // Fails here if there is no such table.
                client.describe_table(&name).await?;
                bail!("this forgets all rows of '{name}': say --yes");
            }
            client.drop_table(&name).await?;
            println!("dropped '{name}'");
        }
    }
    Ok(())
}

fn show(spec: &TableSpec, footprint: Option<&proto::Footprint>, output: Output) -> Result<()> {
    match output {
        Output::Json => println!("{}", json(spec, &footprint.cloned().unwrap_or_default())),
        Output::Text => {
            print!("{}", toml::to_string(&TableConfig::of(spec))?);
            if let Some(footprint) = footprint {
                println!("# {}", cost(footprint));
            }
        }
    }
    Ok(())
}

fn json(spec: &TableSpec, footprint: &proto::Footprint) -> serde_json::Value {
    let mut value = serde_json::to_value(TableConfig::of(spec)).expect("plain fields");
    value["bytes_per_row"] = footprint.bytes_per_row.into();
    value["total_bytes"] = footprint.total_bytes.into();
    value
}

fn cost(footprint: &proto::Footprint) -> String {
    let per_row = format!("{:.1} bytes per row", footprint.bytes_per_row);
    match footprint.total_bytes {
        Some(total) => format!("{} ({per_row}, cache included)", show_bytes(total)),
        None => format!("{per_row}, and {} of cache", show_bytes(footprint.cache_bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_people_write_them() {
        for (text, value) in [("7", 7), ("1_000", 1_000), ("1e11", 100_000_000_000), ("18446744073709551615", u64::MAX)]
        {
            assert_eq!(count(text), Ok(value), "{text}");
        }
        for wrong in ["", "-1", "1.5", "1e99", "many", "nan"] {
            assert!(count(wrong).unwrap_err().contains("1e6"), "{wrong}");
        }
    }
}
