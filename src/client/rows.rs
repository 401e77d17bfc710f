//! Whole tables: which keys there are, and their rows without counting them as pulls.

use bytes::Bytes;
use futures_util::future::try_join_all;

use super::pull::changed_dim;
use super::split::Split;
use super::{Client, Cluster, Error, Result, channel};
use crate::numeric::WeightFormat;
use crate::{proto, wire};

/// Keys of one answer to a scan: a shard looks through a whole partition for each.
const SCAN_KEYS: u32 = 1 << 18;

/// Where a scan of keys goes on.
#[derive(Clone, Debug, Default)]
pub struct KeyCursor {
    shard: u32,
    cursor: Bytes,
}

impl Client {
    /// Keys of rows that were ever trained or set, shard after shard, and where to go on. A row that comes or goes while
    /// a scan is under way may or may not be seen.
    pub async fn scan_keys(&self, table: &str, from: &KeyCursor) -> Result<(Vec<u64>, Option<KeyCursor>)> {
        let cluster = self.cluster.load_full();
        let request = || proto::ScanKeysRequest { table: table.into(), cursor: from.cursor.clone(), limit: SCAN_KEYS };
        let answer = self
            .call(from.shard, &cluster, async |shard, _| {
                channel::admin(shard.channel()).scan_keys(self.options.credentials.request(request())).await
            })
            .await?
            .into_inner();
        let next = match answer.cursor.is_empty() {
            false => Some(KeyCursor { shard: from.shard, cursor: answer.cursor }),
            true if from.shard as usize + 1 < cluster.shards.len() => {
                Some(KeyCursor { shard: from.shard + 1, cursor: Bytes::new() })
            }
            true => None,
        };
        Ok((bytemuck::pod_collect_to_vec(&answer.keys), next))
    }

    /// How a table stores its weights. It may be f32 where its spec says otherwise, because it is small.
    pub async fn stored_format(&self, table: &str) -> Result<WeightFormat> {
        let cluster = self.cluster.load_full();
        let request = || proto::ReadRowsRequest { table: table.into(), keys: Bytes::new(), stored: true };
        let answer = self.call_any(&cluster, async |shard, _| {
            channel::admin(shard.channel()).read_rows(self.options.credentials.request(request())).await
        });
        format_of(&answer.await?.into_inner())
    }

    /// Rows in the order of the keys, as a pull reads them (f32) or, if `stored`, as the table stores them; and which
    /// form that is. Counts nothing.
    pub async fn read_rows(&self, table: &str, keys: &[u64], stored: bool) -> Result<(WeightFormat, Vec<u8>)> {
        let info = self.table(table).await?;
        let (split, answers) = self
            .routed(async |cluster| {
                let owners = &cluster.topology.partition_shards;
                let split = Split::new(&cluster.route, owners, cluster.shards.len(), info.keys, keys);
                let shares = (0..).zip(&split.shards).filter(|(_, share)| !share.keys.is_empty());
                let asked = shares.map(|(shard, share)| self.read_shard(&cluster, shard, table, &share.keys, stored));
                let answers = try_join_all(asked).await?;
                Ok((split, answers))
            })
            .await?;
        let format = answers.first().map_or(Ok(WeightFormat::F32), format_of)?;
        let row_bytes = format.bytes(info.dim);
        let mut out = vec![0; keys.len() * row_bytes];
        let shares = split.shards.iter().filter(|share| !share.keys.is_empty());
        for (share, answer) in shares.zip(&answers) {
            if format_of(answer)? != format || answer.rows.len() != share.keys.len() * row_bytes {
                self.tables.remove(table);
                return Err(changed_dim());
            }
            for (row, &first) in answer.rows.chunks_exact(row_bytes).zip(&share.first) {
                out[first as usize * row_bytes..][..row_bytes].copy_from_slice(row);
            }
        }
        for repeat in &split.repeats {
            let first = split.shards[repeat.shard as usize].first[repeat.place as usize] as usize;
            out.copy_within(first * row_bytes..(first + 1) * row_bytes, repeat.position as usize * row_bytes);
        }
        Ok((format, out))
    }

    async fn read_shard(
        &self,
        cluster: &Cluster,
        shard: u32,
        table: &str,
        keys: &[u64],
        stored: bool,
    ) -> Result<proto::ReadRowsResponse> {
        let request = proto::ReadRowsRequest { table: table.into(), keys: wire::packed(keys), stored };
        let answer = self.call(shard, cluster, async |shard, _| {
            channel::admin(shard.channel()).read_rows(self.options.credentials.request(request.clone())).await
        });
        Ok(answer.await?.into_inner())
    }
}

fn format_of(answer: &proto::ReadRowsResponse) -> Result<WeightFormat> {
    WeightFormat::named(&answer.precision, &answer.quantizer)
        .ok_or_else(|| Error::Setup(format!("rows came as '{}', which this client does not know", answer.precision)))
}
