//! Counts and sizes, shard by shard and table by table.

use std::collections::BTreeMap;

use super::{Client, Result};
use crate::proto;
use crate::proto::admin_client::AdminClient;

impl Client {
    /// Counts and sizes, shard by shard.
    pub async fn stats(&self) -> Result<Vec<proto::StatsResponse>> {
        let credentials = &self.options.credentials;
        let request = proto::StatsRequest::default;
        self.call_all(async |channel| {
            AdminClient::new(channel).stats(credentials.request(request())).await.map(tonic::Response::into_inner)
        })
        .await
    }
}

/// The tables of all shards, added up.
pub fn total_stats(shards: &[proto::StatsResponse]) -> BTreeMap<String, proto::TableStats> {
    let mut tables: BTreeMap<String, proto::TableStats> = BTreeMap::new();
    for stats in shards.iter().flat_map(|shard| &shard.tables) {
        match tables.get_mut(&stats.table) {
            Some(sum) => add(sum, stats),
            None => drop(tables.insert(stats.table.clone(), stats.clone())),
        }
    }
    tables
}

fn add(sum: &mut proto::TableStats, more: &proto::TableStats) {
    // Everything is named, so that a new field is not forgotten here.
    let proto::TableStats {
        table: _,
        rows,
        stored_rows,
        cached_rows,
        cache_slots,
        row_bytes,
        cache_bytes,
        directory_bytes,
        pull_hits,
        pull_misses,
        push_hits,
        push_misses,
        touch_hits,
        touch_misses,
        updated_rows,
        conflicts,
        clean_evictions,
        write_backs,
        rounding_rms,
    } = more;
    // A mean of squares, weighted by how many rows each shard has rounded.
    let square = |rms: Option<f64>, rows: u64| rms.map_or(0.0, |rms| rms * rms * rows as f64);
    let rounded = |rms: Option<f64>, rows: u64| rms.map_or(0, |_| rows);
    let squares = square(sum.rounding_rms, sum.write_backs) + square(*rounding_rms, *write_backs);
    let rows_rounded = rounded(sum.rounding_rms, sum.write_backs) + rounded(*rounding_rms, *write_backs);
    sum.rounding_rms = (rows_rounded > 0).then(|| (squares / rows_rounded as f64).sqrt());
    sum.rows += rows;
    sum.stored_rows += stored_rows;
    sum.cached_rows += cached_rows;
    sum.cache_slots += cache_slots;
    sum.row_bytes += row_bytes;
    sum.cache_bytes += cache_bytes;
    sum.directory_bytes += directory_bytes;
    sum.pull_hits += pull_hits;
    sum.pull_misses += pull_misses;
    sum.push_hits += push_hits;
    sum.push_misses += push_misses;
    sum.touch_hits += touch_hits;
    sum.touch_misses += touch_misses;
    sum.updated_rows += updated_rows;
    sum.conflicts += conflicts;
    sum.clean_evictions += clean_evictions;
    sum.write_backs += write_backs;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_add_up_and_errors_are_weighted() {
        let shard = |rows, write_backs, rounding_rms| proto::StatsResponse {
            tables: vec![proto::TableStats {
                table: "t".into(),
                rows,
                write_backs,
                rounding_rms,
                ..Default::default()
            }],
            ..Default::default()
        };
        let total = |shards: &[_]| total_stats(shards)["t"].clone();
        let sum = total(&[shard(3, 1, Some(2.0)), shard(4, 3, Some(0.0)), shard(5, 0, None)]);
        assert_eq!((sum.rows, sum.write_backs, sum.rounding_rms), (12, 4, Some(1.0)));
        assert_eq!(total(&[shard(1, 0, None), shard(1, 0, None)]).rounding_rms, None);
    }
}
