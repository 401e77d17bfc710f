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
        policy: _,
        curve,
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
    match (&mut sum.curve, curve) {
        (Some(sum), Some(more)) => add_curve(sum, more),
        (sum @ None, Some(more)) => *sum = Some(more.clone()),
        (_, None) => {}
    }
}

/// Every shard has its own keys and its own part of the cache.
fn add_curve(sum: &mut proto::HitCurve, more: &proto::HitCurve) {
    let proto::HitCurve { references, sampled_keys, sampling_rate, points } = more;
    let whole = sum.references + references;
    for (sum_point, point) in sum.points.iter_mut().zip(points) {
        sum_point.rows += point.rows;
        let hits = sum_point.hit_rate * sum.references + point.hit_rate * references;
        sum_point.hit_rate = if whole > 0.0 { hits / whole } else { 0.0 };
    }
    let all_keys = sum.sampled_keys as f64 / sum.sampling_rate + *sampled_keys as f64 / sampling_rate;
    sum.sampled_keys += sampled_keys;
    sum.sampling_rate = if all_keys > 0.0 { sum.sampled_keys as f64 / all_keys } else { 1.0 };
    sum.references = whole;
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

    #[test]
    fn curves_are_weighted_by_what_they_stand_for() {
        let shard = |references, sampling_rate, rows, hit_rate| proto::StatsResponse {
            tables: vec![proto::TableStats {
                table: "t".into(),
                curve: Some(proto::HitCurve {
                    references,
                    sampled_keys: 100,
                    sampling_rate,
                    points: vec![proto::HitCurvePoint { size: 1.0, rows, hit_rate }],
                }),
                ..Default::default()
            }],
            ..Default::default()
        };
        // The second has seen three times as much, and has three times as many keys; the third nothing yet.
        let shards = [shard(10.0, 0.5, 4, 0.2), shard(30.0, 1.0 / 6.0, 5, 0.6), shard(0.0, 1.0, 6, 0.0)];
        let curve = total_stats(&shards)["t"].curve.clone().unwrap();
        assert_eq!((curve.references, curve.sampled_keys), (40.0, 300));
        assert!((curve.sampling_rate - 300.0 / 900.0).abs() < 1e-12);
        let point = &curve.points[0];
        assert_eq!((point.size, point.rows), (1.0, 15));
        assert!((point.hit_rate - 0.5).abs() < 1e-12);
    }
}
