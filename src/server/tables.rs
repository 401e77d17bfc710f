//! The table service. The shard that is asked asks the others.

use std::sync::Arc;

use futures_util::future::try_join_all;
use tonic::{Code, Request, Response, Status};

use super::shard::Shard;
use crate::client;
use crate::engine::Alteration;
use crate::proto::tables_client::TablesClient;
use crate::proto::tables_server::Tables;
use crate::{proto, wire};

/// The table service of a shard.
pub struct TablesService {
    /// The shard.
    pub shard: Arc<Shard>,
}

impl TablesService {
    /// Asks all other shards, side by side.
    async fn ask_others<F>(&self, ask: impl Fn(TablesClient<tonic::transport::Channel>) -> F) -> Result<(), Status>
    where
        F: Future<Output = Result<(), Status>>,
    {
        let others = self.shard.topology.shards.iter().enumerate().filter(|&(n, _)| n as u32 != self.shard.number);
        try_join_all(others.map(async |(number, address)| {
            let refused = |status: Status| {
                let text = format!("shard {number} ({address}): {}; the call can be repeated", status.message());
                Status::new(status.code(), text)
            };
            let channel = client::connect_shard(address, &self.shard.credentials)
                .map_err(|e| refused(Status::unavailable(e.to_string())))?;
            ask(TablesClient::new(channel)).await.map_err(refused)
        }))
        .await
        .map(drop)
    }

    fn authorised<T>(&self, message: T) -> Request<T> {
        self.shard.credentials.request(message)
    }

    fn describe(shard: &Shard, table: &str) -> crate::error::Result<proto::DescribeTableResponse> {
        let spec = shard.engine.spec(table)?;
        let footprint = wire::footprint_to(&spec.footprint()?);
        Ok(proto::DescribeTableResponse { spec: Some(wire::spec_to(&spec)), footprint: Some(footprint) })
    }
}

#[tonic::async_trait]
impl Tables for TablesService {
    async fn create(
        &self,
        request: Request<proto::CreateTableRequest>,
    ) -> Result<Response<proto::CreateTableResponse>, Status> {
        let request = request.into_inner();
        let given = request.spec.as_ref().ok_or_else(|| Status::invalid_argument("spec is missing"))?;
        let spec = wire::spec_from(given)?;
        let footprint = spec.footprint()?;
        let made = spec.clone();
        self.shard.change(move |shard| shard.engine.create(&made)).await?;
        if !request.local {
            let request = proto::CreateTableRequest { spec: Some(wire::spec_to(&spec)), local: true };
            self.ask_others(async |mut shard| shard.create(self.authorised(request.clone())).await.map(drop)).await?;
            tracing::info!(table = spec.name, bytes_per_row = footprint.bytes_per_row, "table made");
        }
        Ok(Response::new(proto::CreateTableResponse { footprint: Some(wire::footprint_to(&footprint)) }))
    }

    async fn alter(
        &self,
        request: Request<proto::AlterTableRequest>,
    ) -> Result<Response<proto::AlterTableResponse>, Status> {
        let request = request.into_inner();
        let alteration = Alteration {
            learning_rate: request.learning_rate,
            weight_decay: request.weight_decay,
            clip_norm: request.clip_norm.map(|norm| (norm != 0.0).then_some(norm)),
        };
        let table = request.table.clone();
        let spec = self
            .shard
            .change(move |shard| {
                shard.engine.alter(&table, alteration)?;
                shard.engine.spec(&table)
            })
            .await?;
        if !request.local {
            let request = proto::AlterTableRequest { local: true, ..request };
            self.ask_others(async |mut shard| shard.alter(self.authorised(request.clone())).await.map(drop)).await?;
        }
        Ok(Response::new(proto::AlterTableResponse { spec: Some(wire::spec_to(&spec)) }))
    }

    async fn describe(
        &self,
        request: Request<proto::DescribeTableRequest>,
    ) -> Result<Response<proto::DescribeTableResponse>, Status> {
        let table = request.into_inner().table;
        Ok(Response::new(self.shard.run(move |shard| Self::describe(shard, &table)).await?))
    }

    async fn list(&self, _: Request<proto::ListTablesRequest>) -> Result<Response<proto::ListTablesResponse>, Status> {
        let tables = self
            .shard
            .run(|shard| {
                // A table that is dropped meanwhile is left out.
                Ok(shard.engine.table_names().iter().filter_map(|name| Self::describe(shard, name).ok()).collect())
            })
            .await?;
        Ok(Response::new(proto::ListTablesResponse { tables }))
    }

    async fn drop(
        &self,
        request: Request<proto::DropTableRequest>,
    ) -> Result<Response<proto::DropTableResponse>, Status> {
        let request = request.into_inner();
        let table = request.table.clone();
        let here = self.shard.change(move |shard| shard.engine.drop_table(&table)).await;
        if request.local {
            here?;
        } else {
            let request = proto::DropTableRequest { local: true, ..request };
            self.ask_others(async |mut shard| {
                match shard.drop(self.authorised(request.clone())).await {
                    // An earlier call may have reached some shards only.
                    Err(status) if status.code() == Code::NotFound => Ok(()),
                    other => other.map(drop),
                }
            })
            .await?;
            here?;
            tracing::info!(table = request.table, "table dropped");
        }
        Ok(Response::new(proto::DropTableResponse {}))
    }
}
