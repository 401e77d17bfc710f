//! Pulls: split, ask side by side, put back in order.

use std::time::Duration;

use futures_util::future::try_join_all;
use tonic::Response;

use super::split::Split;
use super::{Client, Cluster, Error, Result, TableInfo};
use crate::engine::{PooledPull, Pooling, Pull, Touch, check_bags};
use crate::{proto, wire};

impl Client {
    /// Reads rows: those of the first table, in the order of its keys, then those of the next.
    pub async fn pull(&self, pulls: &[Pull<'_>]) -> Result<Vec<f32>> {
        let mut out = vec![0.0; self.size(pulls.iter().map(|pull| (pull.table, pull.keys.len()))).await?];
        self.pull_into(pulls, &mut out).await?;
        Ok(out)
    }

    /// [`Client::pull`] into memory of the caller's.
    pub async fn pull_into(&self, pulls: &[Pull<'_>], out: &mut [f32]) -> Result<()> {
        let infos = self.infos(pulls.iter().map(|pull| pull.table)).await?;
        let expected = infos.iter().zip(pulls).map(|(info, pull)| info.dim * pull.keys.len()).sum();
        check_len(pulls.first().map_or("", |pull| pull.table), expected, out.len())?;
        self.pushes.wait(self.options.lookahead).await;
        // The closure may run again after a stale topology, so it cannot own `out`: it returns the answers.
        let (splits, answers) = self.routed(async |cluster| self.ask(&cluster, &infos, pulls).await).await?;
        let mut rest = out;
        let mut read = vec![0usize; answers.len()];
        for (info, split) in infos.iter().zip(&splits) {
            let (mine, others) = rest.split_at_mut(split.at.len() * info.dim);
            rest = others;
            self.place(info, split, &answers, &mut read, mine)?;
        }
        Ok(())
    }

    /// The numbers that a pull of so many keys of these tables gives.
    async fn size(&self, pulls: impl Iterator<Item = (&str, usize)>) -> Result<usize> {
        let mut size = 0;
        for (table, keys) in pulls {
            size += self.table(table).await?.dim * keys;
        }
        Ok(size)
    }

    async fn infos(&self, tables: impl Iterator<Item = &str>) -> Result<Vec<TableInfo>> {
        let mut infos = Vec::new();
        for table in tables {
            infos.push(self.table(table).await?);
        }
        Ok(infos)
    }

    /// Asks the shards for the distinct rows of a pull. A shard that is not needed gives an empty answer.
    async fn ask(
        &self,
        cluster: &Cluster,
        infos: &[TableInfo],
        pulls: &[Pull<'_>],
    ) -> Result<(Vec<Split>, Vec<proto::PullResponse>)> {
        let owners = &cluster.topology.partition_shards;
        let shards = cluster.shards.len();
        let splits: Vec<Split> = infos
            .iter()
            .zip(pulls)
            .map(|(info, pull)| Split::new(&cluster.route, owners, shards, info.keys, pull.keys))
            .collect();
        let requests = (0..shards).map(|shard| {
            let tables = pulls.iter().zip(&splits).filter(|(_, split)| !split.shards[shard].is_empty());
            tables
                .map(|(pull, split)| proto::TablePull {
                    table: pull.table.into(),
                    keys: wire::packed(&split.shards[shard]),
                    ..Default::default()
                })
                .collect()
        });
        let answers = try_join_all(requests.enumerate().map(|(n, tables)| self.pull_shard(cluster, n as u32, tables)));
        let answers = answers.await?;
        Ok((splits, answers))
    }

    async fn pull_shard(
        &self,
        cluster: &Cluster,
        shard: u32,
        tables: Vec<proto::TablePull>,
    ) -> Result<proto::PullResponse> {
        if tables.is_empty() {
            return Ok(proto::PullResponse::default());
        }
        let request = proto::PullRequest {
            tables,
            format: wire::wire_format(self.options.rows).into(),
            topology_version: cluster.topology.version,
        };
        self.call(shard, cluster, async |connections, left: Duration| {
            let mut request = self.options.credentials.request(request.clone());
            request.set_timeout(left);
            connections.data().pull(request).await.map(Response::into_inner)
        })
        .await
    }

    /// Puts one table's rows where they belong. `read` is how far each answer was read.
    fn place(
        &self,
        info: &TableInfo,
        split: &Split,
        answers: &[proto::PullResponse],
        read: &mut [usize],
        out: &mut [f32],
    ) -> Result<()> {
        let format = self.options.rows;
        let row_bytes = format.row_bytes(info.dim);
        let mut rows = Vec::with_capacity(answers.len());
        for ((keys, answer), read) in split.shards.iter().zip(answers).zip(read) {
            let bytes = answer.rows.get(*read..*read + keys.len() * row_bytes);
            // A table that was dropped and made again with another dim.
            rows.push(bytes.ok_or_else(|| Error::Setup("a table has changed its dim: connect again".into()))?);
            *read += keys.len() * row_bytes;
        }
        if split.is_plain() {
            format.decode(rows[0], info.dim, out);
            return Ok(());
        }
        for (&(shard, place), out) in split.at.iter().zip(out.chunks_exact_mut(info.dim)) {
            let row = &rows[shard as usize][place as usize * row_bytes..][..row_bytes];
            format.decode(row, info.dim, out);
        }
        Ok(())
    }

    /// Reads bags of rows as one row each, table after table. Shards add up their rows of a bag; the client adds up the
    /// shards in ascending order.
    pub async fn pull_pooled(&self, pulls: &[PooledPull<'_>]) -> Result<Vec<f32>> {
        let infos = self.infos(pulls.iter().map(|pull| pull.table)).await?;
        for pull in pulls {
            check_bags(pull.table, pull.keys.len(), pull.offsets, pull.weights, pull.pooling)?;
        }
        self.pushes.wait(self.options.lookahead).await;
        let answers = self.routed(async |cluster| self.ask_pooled(&cluster, &infos, pulls).await).await?;
        let mut out = vec![0.0; infos.iter().zip(pulls).map(|(info, pull)| info.dim * pull.offsets.len()).sum()];
        let mut shard_rows = vec![0.0; out.len()];
        for (n, answer) in answers.iter().enumerate() {
            let (mut from, mut to) = (0, 0);
            for (info, pull) in infos.iter().zip(pulls) {
                let (bags, row_bytes) = (pull.offsets.len(), self.options.rows.row_bytes(info.dim));
                let bytes = answer.rows.get(from..from + bags * row_bytes);
                let bytes = bytes.ok_or_else(|| Error::Setup("a table has changed its dim: connect again".into()))?;
                self.options.rows.decode(bytes, info.dim, &mut shard_rows[to..to + bags * info.dim]);
                from += bags * row_bytes;
                to += bags * info.dim;
            }
            match n {
                0 => out.copy_from_slice(&shard_rows),
                _ => out.iter_mut().zip(&shard_rows).for_each(|(out, more)| *out += more),
            }
        }
        if answers.len() > 1 {
            let mut rest = out.as_mut_slice();
            for (info, pull) in infos.iter().zip(pulls) {
                let (mine, others) = rest.split_at_mut(pull.offsets.len() * info.dim);
                rest = others;
                if pull.pooling == Pooling::Mean {
                    for (bag, out) in mine.chunks_exact_mut(info.dim).enumerate() {
                        let size = bag_range(pull, bag).len();
                        if size > 0 {
                            out.iter_mut().for_each(|out| *out /= size as f32);
                        }
                    }
                }
            }
        }
        Ok(out)
    }

    async fn ask_pooled(
        &self,
        cluster: &Cluster,
        infos: &[TableInfo],
        pulls: &[PooledPull<'_>],
    ) -> Result<Vec<proto::PullResponse>> {
        let owners = &cluster.topology.partition_shards;
        let only = cluster.shards.len() == 1;
        let requests = (0..cluster.shards.len() as u32).map(|shard| {
            let tables = infos.iter().zip(pulls).map(|(info, pull)| {
                let mine =
                    |i: &usize| only || owners[cluster.route.partition(info.keys, pull.keys[*i]) as usize] == shard;
                let (mut keys, mut weights, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
                for bag in 0..pull.offsets.len() {
                    offsets.push(keys.len() as u64);
                    for i in bag_range(pull, bag).filter(mine) {
                        keys.push(pull.keys[i]);
                        weights.extend(pull.weights.map(|weights| weights[i]));
                    }
                }
                // Sums of several shards are divided when they are added up.
                let pooling = match pull.pooling {
                    Pooling::Mean if only => proto::Pooling::Mean,
                    _ => proto::Pooling::Sum,
                };
                proto::TablePull {
                    table: pull.table.into(),
                    keys: wire::packed(&keys),
                    pooling: pooling.into(),
                    offsets: wire::packed(&offsets),
                    weights: wire::packed(&weights),
                }
            });
            (shard, tables.collect::<Vec<_>>())
        });
        try_join_all(requests.map(|(shard, tables)| self.pull_shard(cluster, shard, tables))).await
    }

    /// Brings rows into the cache, ahead of a push.
    pub async fn touch(&self, touches: &[Touch<'_>]) -> Result<()> {
        let infos = self.infos(touches.iter().map(|touch| touch.table)).await?;
        self.routed(async |cluster| {
            let owners = &cluster.topology.partition_shards;
            let shards = cluster.shards.len();
            let splits: Vec<Split> = infos
                .iter()
                .zip(touches)
                .map(|(info, touch)| Split::new(&cluster.route, owners, shards, info.keys, touch.keys))
                .collect();
            let calls = (0..shards).map(|shard| {
                let tables: Vec<_> = touches
                    .iter()
                    .zip(&splits)
                    .filter(|(_, split)| !split.shards[shard].is_empty())
                    .map(|(touch, split)| proto::TableTouch {
                        table: touch.table.into(),
                        keys: wire::packed(&split.shards[shard]),
                    })
                    .collect();
                let request = proto::TouchRequest { tables, topology_version: cluster.topology.version };
                let cluster = &cluster;
                async move {
                    if request.tables.is_empty() {
                        return Ok(());
                    }
                    self.call(shard as u32, cluster, async |connections, _| {
                        connections.data().touch(self.options.credentials.request(request.clone())).await
                    })
                    .await
                    .map(drop)
                }
            });
            try_join_all(calls).await.map(drop)
        })
        .await
    }
}

/// The keys of a bag that was checked.
fn bag_range(pull: &PooledPull<'_>, bag: usize) -> std::ops::Range<usize> {
    let end = pull.offsets.get(bag + 1).map_or(pull.keys.len(), |&end| end as usize);
    pull.offsets[bag] as usize..end
}

fn check_len(table: &str, expected: usize, actual: usize) -> Result<()> {
    if expected == actual {
        return Ok(());
    }
    Err(Error::Invalid(crate::error::Error::WrongLength { table: table.into(), what: "out", expected, actual }))
}
