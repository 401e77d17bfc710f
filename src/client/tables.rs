//! Tables, rows one by one, and looking after shards.

use tonic::Response;

use super::{Client, Error, Result};
use crate::engine::{Alteration, Assign, Row};
use crate::proto;
use crate::proto::admin_client::AdminClient;
use crate::proto::tables_client::TablesClient;
use crate::table::TableSpec;
use crate::wire;

impl Client {
    /// Makes a table on all shards. Making the same one again is fine.
    pub async fn create_table(&self, spec: &TableSpec) -> Result<proto::Footprint> {
        // What is wrong with it is found here, without a round trip.
        spec.footprint()?;
        let message = || proto::CreateTableRequest { spec: Some(wire::spec_to(spec)), local: false };
        let cluster = self.cluster.load_full();
        let made = self
            .call(0, &cluster, async |shard, _| {
                TablesClient::new(shard.channel()).create(self.options.credentials.request(message())).await
            })
            .await?;
        self.tables.remove(&spec.name);
        Ok(made.into_inner().footprint.unwrap_or_default())
    }

    /// Changes hyper-parameters of a table on all shards.
    pub async fn alter_table(&self, table: &str, alteration: Alteration) -> Result<TableSpec> {
        let message = || proto::AlterTableRequest {
            table: table.into(),
            learning_rate: alteration.learning_rate,
            weight_decay: alteration.weight_decay,
            clip_norm: alteration.clip_norm.map(|norm| norm.unwrap_or(0.0)),
            local: false,
        };
        let cluster = self.cluster.load_full();
        let altered = self
            .call(0, &cluster, async |shard, _| {
                TablesClient::new(shard.channel()).alter(self.options.credentials.request(message())).await
            })
            .await?;
        Ok(wire::spec_from(&altered.into_inner().spec.unwrap_or_default())?)
    }

    /// A table's spec and what it costs.
    pub async fn describe_table(&self, table: &str) -> Result<(TableSpec, proto::Footprint)> {
        let message = || proto::DescribeTableRequest { table: table.into() };
        let cluster = self.cluster.load_full();
        let described = self
            .call_any(&cluster, async |shard, _| {
                TablesClient::new(shard.channel()).describe(self.options.credentials.request(message())).await
            })
            .await?
            .into_inner();
        Ok((wire::spec_from(&described.spec.unwrap_or_default())?, described.footprint.unwrap_or_default()))
    }

    /// All tables with what they cost.
    pub async fn list_tables(&self) -> Result<Vec<(TableSpec, proto::Footprint)>> {
        let cluster = self.cluster.load_full();
        let listed = self
            .call_any(&cluster, async |shard, _| {
                let message = proto::ListTablesRequest {};
                TablesClient::new(shard.channel()).list(self.options.credentials.request(message)).await
            })
            .await?;
        let tables = listed.into_inner().tables.into_iter();
        tables
            .map(|table| Ok((wire::spec_from(&table.spec.unwrap_or_default())?, table.footprint.unwrap_or_default())))
            .collect()
    }

    /// Forgets a table on all shards.
    pub async fn drop_table(&self, table: &str) -> Result<()> {
        let message = || proto::DropTableRequest { table: table.into(), local: false };
        let cluster = self.cluster.load_full();
        self.call(0, &cluster, async |shard, _| {
            TablesClient::new(shard.channel()).drop(self.options.credentials.request(message())).await
        })
        .await?;
        self.tables.remove(table);
        Ok(())
    }

    /// Sets rows, on the shards that own them.
    pub async fn assign(&self, assign: &Assign<'_>) -> Result<()> {
        let info = self.table(assign.table).await?;
        let cluster = self.cluster.load_full();
        let state_len = assign.state.map_or(0, |state| state.len() / assign.keys.len().max(1));
        if assign.weights.len() != assign.keys.len() * info.dim {
            return Err(Error::Invalid(crate::error::Error::WrongLength {
                table: assign.table.into(),
                what: "weights",
                expected: assign.keys.len() * info.dim,
                actual: assign.weights.len(),
            }));
        }
        for shard in 0..cluster.shards.len() as u32 {
            let owner = |key: u64| cluster.topology.partition_shards[cluster.route.partition(info.keys, key) as usize];
            let mine: Vec<usize> = (0..assign.keys.len()).filter(|&i| owner(assign.keys[i]) == shard).collect();
            if mine.is_empty() {
                continue;
            }
            let rows = |numbers: &[f32], len: usize| -> Vec<f32> {
                mine.iter().flat_map(|&i| numbers[i * len..][..len].iter().copied()).collect()
            };
            let keys: Vec<u64> = mine.iter().map(|&i| assign.keys[i]).collect();
            let message = proto::AssignRowsRequest {
                table: assign.table.into(),
                keys: wire::packed(&keys),
                weights: wire::packed(&rows(assign.weights, info.dim)),
                state: assign.state.map_or_else(Default::default, |state| wire::packed(&rows(state, state_len))),
            };
            self.call(shard, &cluster, async |shard, _| {
                AdminClient::new(shard.channel()).assign_rows(self.options.credentials.request(message.clone())).await
            })
            .await?;
        }
        Ok(())
    }

    /// Everything about one row.
    pub async fn inspect(&self, table: &str, key: u64) -> Result<Row> {
        let info = self.table(table).await?;
        let cluster = self.cluster.load_full();
        let shard = cluster.topology.partition_shards[cluster.route.partition(info.keys, key) as usize];
        let row = self
            .call(shard, &cluster, async |shard, _| {
                let message = proto::InspectRowRequest { table: table.into(), key };
                AdminClient::new(shard.channel()).inspect_row(self.options.credentials.request(message)).await
            })
            .await
            .map(Response::into_inner)?;
        Ok(Row {
            weights: bytemuck::pod_collect_to_vec(&row.weights),
            state: bytemuck::pod_collect_to_vec(&row.state),
            cached: row.cached,
            dirty: row.dirty,
            stored: row.stored,
        })
    }
}
