//! `hotrow plan`: memory and hosts, worked out without a server; and how large caches should be, by what a running cluster or
//! a trace tells.
//!
//! All figures come from [`crate::TableSpec::footprint`], which is what a server goes by.

mod cache;
mod show;
mod size;
mod split;
mod trace;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};

use self::cache::CachePlan;
use self::size::{Hosts, MAX_PARTITIONS, Planned};
use self::split::Goal;
use super::Output;
use super::connect::Connect;
use super::table::{SpecFlags, count};
use crate::server::config::{Config, TableConfig};
use crate::table::{TableSpec, parse_bytes};

/// What describes one table goes without a file of tables.
const ALONE: [&str; 14] = [
    "name",
    "dim",
    "rows",
    "precision",
    "quantizer",
    "rounding",
    "optimizer",
    "learning_rate",
    "weight_decay",
    "clip_norm",
    "state_precision",
    "initializer",
    "cache",
    "policy",
];

/// Work out how much memory tables take, and how many hosts, before anything is started; or how large caches should be.
///
/// No server is needed. Everything is counted: codes, scales, optimizer state, keys and their index, the cache and its
/// directory. Beside the tables as specified, it shows them at every precision and with caches of 0, 1, 5 and 10 % of
/// the rows.
///
/// With --target-hit-rate or --cache-bytes it sizes the caches of tables that are in use: it asks a running cluster how often
/// its tables would hit with caches of other sizes, or works that out from a file of keys (--trace).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  One table of a hundred billion rows, on hosts of 512 GiB:
    hotrow plan --rows 1e11 --dim 64 --precision int4 --cache 1% --memory-per-host 512GiB
  A hashed table, of which you expect two billion rows:
    hotrow plan user --dim 128 --optimizer adam --state-precision bf16 --expected-rows 2e9
  The tables that a server would make at start:
    hotrow plan --config hotrow.toml --expected-rows user=2e9 --memory-per-host 256GiB
  The smallest caches with which the tables of a running cluster would hit 95 % of all keys:
    hotrow plan --target-hit-rate 95% --endpoint host-a:7700
  How to share out 10 GiB among the caches of its tables:
    hotrow plan --cache-bytes 10GiB --endpoint host-a:7700
  The same from a file of keys, before there is a server:
    hotrow plan --target-hit-rate 95% --trace keys.txt --dim 64 --rows 1e8")]
pub struct Args {
    /// The table's name, for the printout.
    #[arg(default_value = "table")]
    name: String,
    /// Take the tables from this file, the one that `hotrow serve --config` reads: its `[[table]]` entries.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ALONE)]
    config: Option<PathBuf>,
    /// How many rows a hashed table will have. With --config: NAME=N, once for each hashed table.
    #[arg(long, value_name = "[NAME=]N", value_parser = expected)]
    expected_rows: Vec<(Option<String>, u64)>,
    /// What a host has, such as 256GiB: print how many shards are needed, one on each host.
    #[arg(long, alias = "host-memory", value_name = "BYTES", value_parser = parse_bytes)]
    memory_per_host: Option<u64>,
    /// The share of a host's memory that is left free: for requests under way, growing tables and the system.
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = percent)]
    headroom: f64,
    /// Partitions of the cluster. A shard owns whole partitions [default: that of --config, or 128].
    #[arg(long, value_parser = partitions)]
    partitions: Option<u32>,
    /// Print precisions and cache sizes for each table, not only for all together.
    #[arg(long)]
    each: bool,
    /// Propose the smallest caches with which this share of all pushed keys would be hit, such as 95%.
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with_all = SIZES, help_heading = "Cache sizes")]
    target_hit_rate: Option<f64>,
    /// Propose how to share out so many bytes, such as 10GiB, among the caches of all tables.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, conflicts_with_all = SIZES, help_heading = "Cache sizes")]
    #[arg(conflicts_with = "target_hit_rate")]
    cache_bytes: Option<u64>,
    /// Go by this file of pushed keys instead of a running cluster. A line has a key, or a table's name, a tab and a key; a blank
    /// line ends a push (without any, every line is one). --config describes the tables, or --dim and the like all of them.
    #[arg(long, value_name = "FILE", help_heading = "Cache sizes")]
    trace: Option<PathBuf>,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// Numbers in a row.
    #[arg(long, required_unless_present_any = ["config", "target_hit_rate", "cache_bytes"], help_heading = "Table")]
    dim: Option<usize>,
    #[command(flatten)]
    spec: SpecFlags,
    #[command(flatten)]
    connect: Connect,
}

impl Args {
    /// What is wanted of caches, if they are what it is about.
    fn goal(&self) -> Option<Goal> {
        let rate = self.target_hit_rate.map(|percent| Goal::HitRate(percent / 100.0));
        rate.or(self.cache_bytes.map(Goal::Bytes))
    }

    /// A flag that describes a table, if one was given.
    fn describes_a_table(&self) -> Option<&'static str> {
        let spec = &self.spec;
        let given = [
            ("--config", self.config.is_some()),
            ("--dim", self.dim.is_some()),
            ("--rows", spec.rows.is_some()),
            ("--precision", spec.precision.is_some()),
            ("--quantizer", spec.quantizer.is_some()),
            ("--rounding", spec.rounding.is_some()),
            ("--optimizer", spec.optimizer.is_some()),
            ("--learning-rate", spec.learning_rate.is_some()),
            ("--weight-decay", spec.weight_decay.is_some()),
            ("--clip-norm", spec.clip_norm.is_some()),
            ("--state-precision", spec.state_precision.is_some()),
            ("--initializer", spec.initializer.is_some()),
            ("--cache", spec.cache.is_some()),
            ("--policy", spec.policy.is_some()),
            ("--partitions", self.partitions.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// The tables of --config, and the partitions of the cluster.
    fn configured(&self) -> Result<(Vec<TableSpec>, u32)> {
        let path = self.config.as_ref().context("--config is missing")?;
        let named = || format!("--config {}", path.display());
        let text = std::fs::read_to_string(path).with_context(named)?;
        let config = Config::parse(&text).map_err(|e| anyhow!(e)).with_context(named)?;
        let specs: Result<Vec<_>, String> = config.tables.iter().map(TableConfig::spec).collect();
        let specs = specs.map_err(|e| anyhow!(e)).with_context(named)?;
        if specs.is_empty() {
            bail!("{}: there is no [[table]] in it", named());
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = specs.iter().find(|spec| !names.insert(spec.name.as_str())) {
            bail!("{}: table '{}' is there twice", named(), twice.name);
        }
        Ok((specs, self.partitions_or(config.engine.partitions)?))
    }

    /// The partitions that were asked for, or those of a configuration.
    fn partitions_or(&self, configured: u32) -> Result<u32> {
        let file = self.config.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let valid = || partitions(&configured.to_string());
        let invalid = |e| anyhow!("--config {file}: engine.partitions is {configured}: {e}");
        self.partitions.map_or_else(|| valid().map_err(invalid), Ok)
    }
}

/// What goes without asking for cache sizes.
const SIZES: [&str; 3] = ["memory_per_host", "expected_rows", "each"];

fn expected(text: &str) -> Result<(Option<String>, u64), String> {
    match text.split_once('=') {
        Some((name, rows)) => Ok((Some(name.into()), count(rows)?)),
        None => Ok((None, count(text)?)),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').trim().parse() {
        Ok(percent) if (0.0..100.0).contains(&percent) => Ok(percent),
        _ => Err("use a percentage from 0 to below 100, such as 10%".into()),
    }
}

fn partitions(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(partitions) if partitions.is_power_of_two() && partitions <= MAX_PARTITIONS => Ok(partitions),
        _ => Err(format!("use a power of two up to {MAX_PARTITIONS}")),
    }
}

/// Prints the plan.
pub fn run(args: Args) -> Result<()> {
    let (output, each) = (args.output, args.each);
    if let Some(goal) = args.goal() {
        let plan = super::block_on(CachePlan::new(args, goal))?;
        match output {
            Output::Json => println!("{:#}", plan.json()),
            Output::Text => print!("{}", plan.text()),
        }
        return Ok(());
    }
    let plan = Plan::new(args)?;
    match output {
        Output::Json => println!("{:#}", plan.json()?),
        Output::Text => print!("{}", plan.text(each)?),
    }
    Ok(())
}
struct Plan {
    tables: Vec<Planned>,
    hosts: Option<Hosts>,
}

impl Plan {
    fn new(args: Args) -> Result<Plan> {
        if args.trace.is_some() {
            bail!("--trace goes with --target-hit-rate or --cache-bytes");
        }
        let (specs, partitions) = match &args.config {
            Some(_) => args.configured()?,
            None => {
                let dim = args.dim.context("--dim is missing")?;
                (vec![args.spec.spec(&args.name, dim)?], args.partitions_or(Config::default().engine.partitions)?)
            }
        };
        let mut tables: Vec<Planned> = specs.into_iter().map(|spec| Planned { rows: spec.rows(), spec }).collect();
        expect(&mut tables, &args.expected_rows)?;
        let hosts = args.memory_per_host.map(|memory| Hosts { memory, headroom: args.headroom, partitions });
        if hosts.is_some_and(|hosts| hosts.memory == 0) {
            bail!("--memory-per-host is 0: nothing fits in it");
        }
        Ok(Plan { tables, hosts })
    }
}

/// Fills in what the user expects of hashed tables.
fn expect(tables: &mut [Planned], expected: &[(Option<String>, u64)]) -> Result<()> {
    for (name, rows) in expected {
        let hashed = tables.iter().filter(|table| table.spec.rows().is_none()).count();
        let table = match name {
            Some(name) => tables
                .iter_mut()
                .find(|table| table.spec.name == *name)
                .with_context(|| format!("--expected-rows {name}={rows}: there is no table '{name}'"))?,
            None if hashed > 1 => {
                bail!("--expected-rows {rows}: there are {hashed} hashed tables, say which one: NAME={rows}")
            }
            None => tables
                .iter_mut()
                .max_by_key(|table| table.spec.rows().is_none())
                .context("--expected-rows: there are no tables")?,
        };
        if let Some(fixed) = table.spec.rows() {
            bail!("--expected-rows is for hashed tables: '{}' is dense and has {fixed} rows", table.spec.name);
        }
        table.rows = Some(*rows);
    }
    Ok(())
}
#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::{Value, json};

    use super::size::Shards;
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    pub fn args(line: &str) -> Result<Args> {
        Ok(Cli::try_parse_from(std::iter::once("plan").chain(line.split_whitespace()))?.args)
    }

    fn plan(line: &str) -> Result<Plan> {
        Plan::new(args(line)?)
    }

    fn refusal(line: &str) -> String {
        format!("{:#}", plan(line).err().expect("it is wrong"))
    }

    fn choice(value: &Value, precision: &str, cache: f64) -> f64 {
        let choices = value["choices"].as_array().unwrap();
        let of = |c: &&Value| c["precision"] == precision && c["cache_percent"] == cache;
        choices.iter().find(of).unwrap()["total_bytes"].as_f64().unwrap()
    }

    #[test]
    fn figures_are_those_of_plain_arithmetic() {
        let value = plan("--rows 8e6 --dim 64").unwrap().json().unwrap();
        // int8: 64 codes, a scale of 2, one f32 of state, two bits. A slot: 65 f32 and 8 of directory, for one row in 20.
        let row = &value["tables"][0]["bytes_per_row"];
        let near =
            |value: &Value, wanted: f64| assert!((value.as_f64().unwrap() - wanted).abs() < 1e-9, "{value} {wanted}");
        near(&row["weights"], 66.0);
        near(&row["state"], 4.0);
        near(&row["index"], 0.25);
        near(&row["cache"], 65.0 * 4.0 / 20.0);
        near(&row["directory"], 8.0 / 20.0);
        near(&row["all"], 66.0 + 4.0 + 0.25 + 13.4);
        assert_eq!(value["total_bytes"], 669_200_000);
        // f32: 260 and a bit, with any cache, of which it has none; int4 is affine by default: 32 codes, 4 of scale and zero point.
        assert_eq!(choice(&value, "f32", 0.0), 8e6 * 260.125);
        assert_eq!(choice(&value, "f32", 10.0), 8e6 * 260.125);
        assert_eq!(choice(&value, "int4", 1.0), 8e6 * (36.0 + 4.0 + 0.25) + 80_000.0 * 268.0);
        assert_eq!(choice(&value, "int2", 0.0), 8e6 * (20.0 + 4.0 + 0.125));
        assert_eq!(choice(&value, "f16", 0.0), 8e6 * (128.0 + 4.0 + 0.125));
    }

    #[test]
    fn every_total_is_the_footprint() {
        for line in
            ["--rows 123_457 --dim 7 --optimizer adam --state-precision bf16", "--rows 99999 --dim 33 --cache 2MiB"]
        {
            let plan = plan(line).unwrap();
            let footprint = plan.tables[0].spec.footprint().unwrap();
            assert_eq!(plan.tables[0].bytes().unwrap(), footprint.total_bytes);
            assert!((plan.tables[0].parts().unwrap().sum() - footprint.bytes_per_row).abs() < 1e-6, "{line}");
        }
    }

    #[test]
    fn small_tables_stay_f32() {
        let value = plan("--rows 1000 --dim 64 --precision int4").unwrap().json().unwrap();
        assert_eq!(value["tables"][0]["stays_f32"], true);
        assert_eq!(value["total_bytes"], 260_125);
        assert_eq!(choice(&value, "int2", 5.0), 260_125.0);
        // 4096 rows are 1 MiB, which is not small any more.
        let value = plan("--rows 4096 --dim 64 --precision int4 --cache 0rows").unwrap().json().unwrap();
        assert_eq!(value["total_bytes"], 4096 * 40 + 512);
    }

    #[test]
    fn hashed_tables_count_with_the_rows_that_are_expected() {
        let value = plan("user --dim 16 --optimizer sgd").unwrap().json().unwrap();
        assert_eq!(value["not_counted"], json!(["user"]));
        assert_eq!(value["tables"][0]["total_bytes"], Value::Null);
        let value = plan("user --dim 16 --optimizer sgd --expected-rows 7e6 --cache 1000rows").unwrap().json().unwrap();
        // 16 codes, a scale of 2, a key of 8, a bit, and 80/7 bytes of index; a slot is 64 and 8.
        assert_eq!(value["total_bytes"], 7_000_000 * 26 + 875_000 + 80_000_000 + 72_000);
        assert_eq!(value["not_counted"], json!([]));
        assert!(plan("user --dim 16").unwrap().text(false).unwrap().contains("--expected-rows user=N"));
    }

    #[test]
    fn shards_own_whole_partitions() {
        // 65,536,000 rows of 40.125 bytes, no cache: 128 partitions of 20,544,000 bytes. With 10 % left free of 200 MB,
        // 180 MB hold 8 of them: 16 shards. 23 MB hold one: 128 shards. 20 MB hold none, half a partition would do.
        let line = "--rows 65_536_000 --dim 64 --precision int4 --cache 0rows --memory-per-host";
        let shards = |more: &str| {
            let plan = plan(&format!("{line} {more}")).unwrap();
            plan.hosts.unwrap().shards(&plan.tables).unwrap()
        };
        assert_eq!(shards("200MB"), Shards::Needed(16));
        assert_eq!(shards("200MB --headroom 0"), Shards::Needed(15));
        assert_eq!(shards("23MB"), Shards::Needed(128));
        assert_eq!(shards("20MB"), Shards::MorePartitions(256));
        assert_eq!(shards("20MB --partitions 256"), Shards::Needed(256));
        assert_eq!(shards("1TB"), Shards::Needed(1));
        assert_eq!(shards("1kB"), Shards::TooLarge);
        // 2,629,632,000 bytes in 180 MB each are 15 shards at least: 256 partitions of 10,272,000 bytes, 17 to a shard, are 16
        // still; 512 of them, 35 to a shard, are 15.
        let plan = plan(&format!("{line} 200MB")).unwrap();
        let fewer = plan.hosts.unwrap().fewer_with_more_partitions(&plan.tables, 16).unwrap();
        assert_eq!(fewer, Some((15, 512)));
        // What fits in memory may still be more than an engine can number.
        let plan = super::tests::plan("--rows 1e12 --dim 1 --cache 0rows --memory-per-host 1000TB").unwrap();
        assert_eq!(plan.hosts.unwrap().shards(&plan.tables).unwrap(), Shards::MorePartitions(256));
    }

    #[test]
    fn a_file_has_many_tables() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tables.toml");
        let text = "[engine]\npartitions = 64\n[[table]]\nname = 'a'\ndim = 8\nrows = 1_000_000\n[[table]]\nname = 'b'\ndim = 8\n";
        std::fs::write(&path, text).unwrap();
        let config = format!("--config {}", path.display());
        let value = plan(&format!("{config} --expected-rows b=1000 --memory-per-host 1GiB")).unwrap().json().unwrap();
        assert_eq!(value["hosts"]["partitions"], 64);
        let sum: u64 = value["tables"].as_array().unwrap().iter().map(|t| t["total_bytes"].as_u64().unwrap()).sum();
        assert!(value["total_bytes"].as_u64().unwrap().abs_diff(sum) <= 1);
        let printed = plan(&config).unwrap().text(true).unwrap();
        assert!(printed.contains("--expected-rows b=N") && printed.contains("total of 1 tables"), "{printed}");
        let printed: Value = serde_json::from_str(&format!("{value:#}")).unwrap();
        assert_eq!(printed["total_bytes"], value["total_bytes"]);

        assert!(refusal(&format!("{config} --expected-rows c=5")).contains("--expected-rows c=5"));
        assert!(refusal(&format!("{config} --expected-rows a=5")).contains("'a' is dense"));
        assert!(refusal(&format!("{config} --dim 5")).contains("--dim"));
        std::fs::write(&path, "[[table]]\nname = 'a'\ndimm = 8").unwrap();
        assert!(refusal(&config).contains("--config"));
        std::fs::write(&path, "").unwrap();
        assert!(refusal(&config).contains("no [[table]]"));
    }

    #[test]
    fn errors_name_the_flag() {
        for (line, flag) in [
            ("", "--dim"),
            ("--dim 8 --rows many", "--rows"),
            ("--dim 8 --rows 8 --expected-rows 9", "--expected-rows"),
            ("--dim 8 --memory-per-host lots", "--memory-per-host"),
            ("--dim 8 --memory-per-host 0", "--memory-per-host"),
            ("--dim 8 --headroom 100", "--headroom"),
            ("--dim 8 --partitions 100", "--partitions"),
            ("--dim 8 --trace keys.txt", "--target-hit-rate"),
            ("--config nowhere.toml", "--config nowhere.toml"),
        ] {
            assert!(refusal(line).contains(flag), "{line}: {}", refusal(line));
        }
    }
}
