//! Pulls: split, ask side by side, put back in order.

use std::time::Duration;

use bytes::Buf as _;
use futures_util::future::try_join_all;

use super::split::Split;
use super::{Client, Cluster, Error, Result, TableInfo, channel};
use crate::engine::{PooledPull, Pooling, Pull, Touch, check_bags};
use crate::framing::{Outgoing, PULL_RESPONSE_ROWS, Pieces, Requests};
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
        let (splits, mut answers) = self.routed(async |cluster| self.ask(&cluster, &infos, pulls).await).await?;
        let mut rest = out;
        for ((info, pull), split) in infos.iter().zip(pulls).zip(&splits) {
            let (mine, others) = rest.split_at_mut(pull.keys.len() * info.dim);
            rest = others;
            self.place(pull.table, info.dim, split, &mut answers, mine)?;
        }
        self.check_all_read(pulls.iter().map(|pull| pull.table), &answers)
    }

    /// Fails if an answer has more rows than were asked for: a table has another dim than this client thinks.
    fn check_all_read<'a>(&self, tables: impl Iterator<Item = &'a str>, answers: &[Pieces]) -> Result<()> {
        if answers.iter().any(|answer| answer.has_remaining()) {
            tables.for_each(|table| drop(self.tables.remove(table)));
            return Err(changed_dim());
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
    ) -> Result<(Vec<Split>, Vec<Pieces>)> {
        let owners = &cluster.topology.partition_shards;
        let shards = cluster.shards.len();
        let splits: Vec<Split> = infos
            .iter()
            .zip(pulls)
            .map(|(info, pull)| Split::new(&cluster.route, owners, shards, info.keys, pull.keys))
            .collect();
        let requests = (0..shards).map(|shard| {
            let tables = pulls.iter().zip(&splits).filter(|(_, split)| !split.shards[shard].keys.is_empty());
            tables
                .map(|(pull, split)| proto::TablePull {
                    table: pull.table.into(),
                    keys: wire::packed(&split.shards[shard].keys),
                    ..Default::default()
                })
                .collect()
        });
        let answers = try_join_all(requests.enumerate().map(|(n, tables)| self.pull_shard(cluster, n as u32, tables)));
        let answers = answers.await?;
        Ok((splits, answers))
    }

    /// The rows that a shard answers, in the pieces in which they came.
    async fn pull_shard(&self, cluster: &Cluster, shard: u32, tables: Vec<proto::TablePull>) -> Result<Pieces> {
        if tables.is_empty() {
            return Ok(Pieces::default());
        }
        let request = proto::PullRequest {
            tables,
            format: wire::wire_format(self.options.rows).into(),
            topology_version: cluster.topology.version,
        };
        let message = Outgoing::message(&request);
        self.call(shard, cluster, async |connections, left: Duration| {
            let body = Requests::new(tokio_stream::once(message.clone()));
            let channel = connections.channel();
            let answer = channel::send(channel, "/hotrow.v1.Data/Pull", body, &self.options.credentials, Some(left));
            answer.await?.answer().await?.payload(PULL_RESPONSE_ROWS)
        })
        .await
    }

    /// Puts one table's rows where they belong.
    fn place(&self, table: &str, dim: usize, split: &Split, answers: &mut [Pieces], out: &mut [f32]) -> Result<()> {
        let format = self.options.rows;
        let row_bytes = format.row_bytes(dim);
        let plain = split.is_plain();
        for (share, answer) in split.shards.iter().zip(answers) {
            let mut placed = 0;
            let enough = answer.rows(row_bytes, share.keys.len(), |rows| {
                let count = rows.len() / row_bytes;
                if plain {
                    format.decode(rows, dim, &mut out[placed * dim..][..count * dim]);
                } else {
                    for (row, &first) in rows.chunks_exact(row_bytes).zip(&share.first[placed..]) {
                        format.decode(row, dim, &mut out[first as usize * dim..][..dim]);
                    }
                }
                placed += count;
            });
            if !enough {
                self.tables.remove(table);
                return Err(changed_dim());
            }
        }
        for repeat in &split.repeats {
            let first = split.shards[repeat.shard as usize].first[repeat.place as usize] as usize;
            out.copy_within(first * dim..(first + 1) * dim, repeat.position as usize * dim);
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
        let mut answers = self.routed(async |cluster| self.ask_pooled(&cluster, &infos, pulls).await).await?;
        let mut out = vec![0.0; infos.iter().zip(pulls).map(|(info, pull)| info.dim * pull.offsets.len()).sum()];
        let mut shard_rows = vec![0.0; out.len()];
        for (n, answer) in answers.iter_mut().enumerate() {
            let mut rest = shard_rows.as_mut_slice();
            for (info, pull) in infos.iter().zip(pulls) {
                let enough = answer.rows(self.options.rows.row_bytes(info.dim), pull.offsets.len(), |rows| {
                    let count = rows.len() / self.options.rows.row_bytes(info.dim);
                    let (mine, others) = std::mem::take(&mut rest).split_at_mut(count * info.dim);
                    rest = others;
                    self.options.rows.decode(rows, info.dim, mine);
                });
                if !enough {
                    self.tables.remove(pull.table);
                    return Err(changed_dim());
                }
            }
            match n {
                0 => out.copy_from_slice(&shard_rows),
                _ => out.iter_mut().zip(&shard_rows).for_each(|(out, more)| *out += more),
            }
        }
        self.check_all_read(pulls.iter().map(|pull| pull.table), &answers)?;
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
    ) -> Result<Vec<Pieces>> {
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
                    .filter(|(_, split)| !split.shards[shard].keys.is_empty())
                    .map(|(touch, split)| proto::TableTouch {
                        table: touch.table.into(),
                        keys: wire::packed(&split.shards[shard].keys),
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

/// A table that was dropped and made again with another dim. What was known of it is forgotten.
pub(super) fn changed_dim() -> Error {
    Error::Setup("a table was dropped and made again with another dim: try again".into())
}

fn check_len(table: &str, expected: usize, actual: usize) -> Result<()> {
    if expected == actual {
        return Ok(());
    }
    Err(Error::Invalid(crate::error::Error::WrongLength { table: table.into(), what: "out", expected, actual }))
}
