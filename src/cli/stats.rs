//! `hotrow stats`.

use std::collections::BTreeMap;

use anyhow::Result;

use super::Output;
use super::connect::Connect;
use crate::proto::TableStats;
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
    let mut tables: BTreeMap<String, TableStats> = BTreeMap::new();
    for stats in shards.iter().flat_map(|shard| &shard.tables) {
        let sum = tables.entry(stats.table.clone()).or_default();
        sum.table.clone_from(&stats.table);
        sum.rows += stats.rows;
        sum.stored_rows += stats.stored_rows;
        sum.cached_rows += stats.cached_rows;
        sum.cache_slots += stats.cache_slots;
        sum.row_bytes += stats.row_bytes;
        sum.cache_bytes += stats.cache_bytes;
        sum.directory_bytes += stats.directory_bytes;
        sum.pull_hits += stats.pull_hits;
        sum.pull_misses += stats.pull_misses;
        sum.push_hits += stats.push_hits;
        sum.push_misses += stats.push_misses;
        sum.updated_rows += stats.updated_rows;
        sum.write_backs += stats.write_backs;
        sum.conflicts += stats.conflicts;
    }
    let ratio = |part: u64, rest: u64| (part + rest > 0).then(|| part as f64 / (part + rest) as f64);
    if args.output == Output::Json {
        let tables: Vec<_> = tables
            .values()
            .map(|t| {
                serde_json::json!({
                    "table": t.table, "rows": t.rows, "stored_rows": t.stored_rows, "cached_rows": t.cached_rows,
                    "cache_slots": t.cache_slots, "row_bytes": t.row_bytes, "cache_bytes": t.cache_bytes,
                    "directory_bytes": t.directory_bytes, "pull_hits": t.pull_hits, "pull_misses": t.pull_misses,
                    "push_hits": t.push_hits, "push_misses": t.push_misses, "updated_rows": t.updated_rows,
                    "write_backs": t.write_backs, "conflicts": t.conflicts,
                    "pull_hit_rate": ratio(t.pull_hits, t.pull_misses), "push_hit_rate": ratio(t.push_hits, t.push_misses),
                })
            })
            .collect();
        let shards: Vec<_> = shards
            .iter()
            .map(|s| {
                serde_json::json!({
                    "shard": s.shard, "memory_used": s.memory_used, "memory_budget": s.memory_budget,
                    "last_lsn": s.last_lsn, "open_clients": s.open_clients,
                })
            })
            .collect();
        println!("{}", serde_json::json!({ "tables": tables, "shards": shards }));
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
