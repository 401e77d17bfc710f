//! `hotrow stats`.

use anyhow::Result;

use super::Output;
use super::connect::Connect;
use crate::client::total_stats;
use crate::proto;
use crate::table::show_bytes;

/// Show hit rates, sizes and memory, over all shards.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    connect: Connect,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// Prints statistics.
pub async fn run(args: Args) -> Result<()> {
    let client = args.connect.client().await?;
    let shards = client.stats().await?;
    let tables = total_stats(&shards);
    let ratio = |part: u64, rest: u64| (part + rest > 0).then(|| part as f64 / (part + rest) as f64);
    if args.output == Output::Json {
        let mut listed = Vec::new();
        for t in tables.values() {
            let mut table = serde_json::to_value(t)?;
            table["pull_hit_rate"] = ratio(t.pull_hits, t.pull_misses).into();
            table["push_hit_rate"] = ratio(t.push_hits, t.push_misses).into();
            let sizes = [0.25, 0.5, 1.0, 2.0, 4.0].map(|size| (size.to_string(), predicted(t, size).into()));
            table["predicted_hit_rate"] = serde_json::Map::from_iter(sizes).into();
            listed.push(table);
        }
        let shards: Vec<_> = shards
            .iter()
            .map(|s| {
                serde_json::json!({
                    "shard": s.shard, "memory_used": s.memory_used, "memory_budget": s.memory_budget,
                    "last_lsn": s.last_lsn, "open_clients": s.open_clients,
                })
            })
            .collect();
        println!("{}", serde_json::json!({ "tables": listed, "shards": shards }));
        return Ok(());
    }
    let percent = |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.1} %", 100.0 * share));
    println!(
        "{:24} {:>12} {:>12} {:>10} {:>9} {:>9} {:>12}",
        "table", "rows", "cached", "memory", "pull hits", "push hits", "write-backs"
    );
    for t in tables.values() {
        let memory = show_bytes((t.row_bytes + t.cache_bytes + t.directory_bytes) as f64);
        let per_update = if t.updated_rows == 0 {
            "-".into()
        } else {
            format!("{:.2}/update", t.write_backs as f64 / t.updated_rows as f64)
        };
        println!(
            "{:24} {:>12} {:>12} {memory:>10} {:>9} {:>9} {per_update:>12}",
            t.table,
            t.rows,
            t.cached_rows,
            percent(ratio(t.pull_hits, t.pull_misses).filter(|_| t.cache_slots > 0)),
            percent(ratio(t.push_hits, t.push_misses).filter(|_| t.cache_slots > 0)),
        );
    }
    for t in tables.values() {
        let rate = |size| predicted(t, size).map(|rate| percent(Some(rate)));
        if let (Some(half), Some(twice)) = (rate(0.5), rate(2.0)) {
            let lru = if t.policy == "lru" { "" } else { " (with lru: its curve is what is known)" };
            println!("{}: at half the cache you would hit {half}, at twice {twice}{lru}", t.table);
        }
    }
    for shard in shards {
        let budget = match shard.memory_budget {
            0 => "no limit".into(),
            budget => show_bytes(budget as f64),
        };
        let (used, clients, lsn) = (show_bytes(shard.memory_used as f64), shard.open_clients, shard.last_lsn);
        println!("shard {}: {used} of {budget}, {clients} open clients, {lsn} changes", shard.shard);
    }
    Ok(())
}

/// The hit rate that pushes would have with so many times the cache, if there is one and something was pushed.
fn predicted(table: &proto::TableStats, size: f64) -> Option<f64> {
    let curve = table.curve.as_ref().filter(|curve| curve.references > 0.0 && table.cache_slots > 0)?;
    curve.points.iter().find(|point| point.size == size).map(|point| point.hit_rate)
}
