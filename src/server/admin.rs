//! The admin service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tonic::{Request, Response, Status};

use super::data::check_response;
use super::metrics;
use super::shard::Shard;
use crate::durability::Log;
use crate::engine::{Assign, Pull, Remove, ScanCursor};
use crate::numeric::WeightFormat;
use crate::proto::admin_server::Admin;
use crate::{proto, wire};

/// Keys of one answer to a scan, where the caller does not say.
const SCAN_KEYS: u32 = 65_536;
/// The most that a caller may ask for.
const MAX_SCAN_KEYS: u32 = 1 << 20;

/// The admin service of a shard.
pub struct AdminService {
    /// The shard.
    pub shard: Arc<Shard>,
}

/// Counts and sizes of a table, or of all where none is named.
pub fn stats(shard: &Shard, table: &str) -> crate::error::Result<proto::StatsResponse> {
    let tables = match table.is_empty() {
        false => vec![shard.engine.stats(table)?],
        // A table that is dropped meanwhile is left out.
        true => shard.engine.table_names().iter().filter_map(|name| shard.engine.stats(name).ok()).collect(),
    };
    Ok(proto::StatsResponse {
        shard: shard.number,
        tables: tables.iter().map(wire::stats_to).collect(),
        memory_used: shard.engine.memory_used(),
        memory_budget: shard.memory_budget.unwrap_or(0),
        last_lsn: shard.engine.last_lsn().0,
        open_clients: shard.engine.open_clients() as u64,
        status: Some(status(shard)),
    })
}

/// How the shard itself is.
fn status(shard: &Shard) -> proto::ShardStatus {
    let device = shard.engine.device().map(|device| {
        let stats = device.stats();
        proto::DeviceStatus {
            name: device.info().name.clone(),
            memory_used: stats.memory_used,
            memory_budget: stats.memory_budget,
        }
    });
    proto::ShardStatus {
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_ms: shard.started.elapsed().as_millis() as u64,
        state: shard.readiness().0.into(),
        partitions: shard.topology.owned_by(shard.number).len() as u32,
        pool: if device.is_some() { "cuda" } else { "host" }.into(),
        device,
        in_flight: (shard.max_in_flight - shard.in_flight.available_permits()) as u64,
        in_flight_limit: shard.max_in_flight as u64,
        shed: shard.metrics.shed.get(),
        log: shard.log.get().map(Log::stats).map(|log| proto::LogStatus {
            bytes: log.disk_bytes,
            waiting_bytes: log.waiting_bytes,
            unsynced_changes: log.unsynced_changes,
            full: log.full,
        }),
        checkpoint: shard.checkpoints.as_ref().map(|checkpoints| {
            let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
            proto::CheckpointStatus {
                last: count(&checkpoints.counts.sequence),
                made: count(&checkpoints.counts.made),
                bytes: count(&checkpoints.counts.bytes),
                millis: count(&checkpoints.counts.millis),
                failures: count(&checkpoints.counts.failures),
            }
        }),
        bucket_seconds: metrics::SECONDS.to_vec(),
        methods: shard.metrics.methods(),
    }
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn stats(&self, request: Request<proto::StatsRequest>) -> Result<Response<proto::StatsResponse>, Status> {
        let table = request.into_inner().table;
        self.shard.run(move |shard| stats(shard, &table)).await.map(Response::new)
    }

    async fn topology(&self, _: Request<proto::TopologyRequest>) -> Result<Response<proto::TopologyResponse>, Status> {
        let topology = &self.shard.topology;
        Ok(Response::new(proto::TopologyResponse {
            version: topology.version,
            cluster: topology.cluster.clone(),
            shards: topology.shards.clone(),
            partition_shards: wire::packed(&topology.partition_shards),
            this_shard: self.shard.number,
        }))
    }

    async fn flush(&self, _: Request<proto::FlushRequest>) -> Result<Response<proto::FlushResponse>, Status> {
        self.shard.change(|shard| Ok(proto::FlushResponse { lsn: shard.engine.flush().0 })).await.map(Response::new)
    }

    async fn drain(&self, _: Request<proto::DrainRequest>) -> Result<Response<proto::DrainResponse>, Status> {
        tracing::info!("asked to drain");
        self.shard.drain();
        Ok(Response::new(proto::DrainResponse {}))
    }

    async fn assign_rows(
        &self,
        request: Request<proto::AssignRowsRequest>,
    ) -> Result<Response<proto::AssignRowsResponse>, Status> {
        let request = request.into_inner();
        self.shard
            .change(move |shard| {
                let table = request.table.as_str();
                let keys = wire::numbers(table, "keys", &request.keys)?;
                let weights = wire::numbers(table, "weights", &request.weights)?;
                let state = wire::numbers(table, "state", &request.state)?;
                let state = (!request.state.is_empty()).then_some(&*state);
                let lsn = shard.engine.assign(&[Assign { table, keys: &keys, weights: &weights, state }])?;
                Ok(proto::AssignRowsResponse { lsn: lsn.0 })
            })
            .await
            .map(Response::new)
    }

    async fn remove_rows(
        &self,
        request: Request<proto::RemoveRowsRequest>,
    ) -> Result<Response<proto::RemoveRowsResponse>, Status> {
        let request = request.into_inner();
        self.shard
            .change(move |shard| {
                let keys = wire::numbers(&request.table, "keys", &request.keys)?;
                let lsn = shard.engine.remove(&[Remove { table: &request.table, keys: &keys }])?;
                Ok(proto::RemoveRowsResponse { lsn: lsn.0 })
            })
            .await
            .map(Response::new)
    }

    async fn scan_keys(
        &self,
        request: Request<proto::ScanKeysRequest>,
    ) -> Result<Response<proto::ScanKeysResponse>, Status> {
        let request = request.into_inner();
        let from = match &request.cursor[..] {
            [] => ScanCursor::default(),
            &[a, b, c, d, e, f, g, h] => {
                ScanCursor { partition: u32::from_le_bytes([a, b, c, d]), row: u32::from_le_bytes([e, f, g, h]) }
            }
            _ => return Err(Status::invalid_argument("cursor is not one that an earlier answer gave")),
        };
        let limit = if request.limit == 0 { SCAN_KEYS } else { request.limit.min(MAX_SCAN_KEYS) };
        self.shard
            .run(move |shard| {
                let (keys, next) = shard.engine.scan(&request.table, from, limit as usize)?;
                let cursor = next.map_or(Bytes::new(), |next| wire::packed(&[next.partition, next.row]));
                Ok(proto::ScanKeysResponse { keys: wire::packed(&keys), cursor })
            })
            .await
            .map(Response::new)
    }

    async fn read_rows(
        &self,
        request: Request<proto::ReadRowsRequest>,
    ) -> Result<Response<proto::ReadRowsResponse>, Status> {
        let request = request.into_inner();
        self.shard
            .run(move |shard| {
                let table = request.table.as_str();
                let keys: &[u64] = &wire::numbers(table, "keys", &request.keys)?;
                let format = match request.stored {
                    true => shard.engine.stored_format(table)?,
                    false => WeightFormat::F32,
                };
                let bytes = keys.len().saturating_mul(format.bytes(shard.engine.dim(table)?));
                check_response(shard, table, bytes)?;
                let mut rows = shard.buffers.take(bytes);
                let out = rows.bytes_mut();
                match request.stored {
                    true => shard.engine.read_stored(Pull { table, keys }, out)?,
                    // Buffers are aligned for it.
                    false => shard.engine.read(Pull { table, keys }, bytemuck::cast_slice_mut(out))?,
                }
                let (precision, quantizer) = format.parts();
                Ok(proto::ReadRowsResponse {
                    rows: rows.freeze(),
                    precision: precision.to_string(),
                    quantizer: quantizer.map_or_else(String::new, |quantizer| quantizer.to_string()),
                })
            })
            .await
            .map(Response::new)
    }

    async fn inspect_row(
        &self,
        request: Request<proto::InspectRowRequest>,
    ) -> Result<Response<proto::InspectRowResponse>, Status> {
        let request = request.into_inner();
        self.shard
            .run(move |shard| {
                let row = shard.engine.inspect(&request.table, request.key)?;
                Ok(proto::InspectRowResponse {
                    weights: wire::packed(&row.weights),
                    state: wire::packed(&row.state),
                    cached: row.cached,
                    dirty: row.dirty,
                    stored: row.stored,
                })
            })
            .await
            .map(Response::new)
    }
}
