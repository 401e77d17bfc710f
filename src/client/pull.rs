//! Pulls: split, ask side by side, put back in order.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Buf as _;
use futures_util::future::try_join_all;
use parking_lot::Mutex;

use super::split::Split;
use super::{Client, Cluster, Error, Result, TableInfo, channel};
use crate::engine::{PooledPull, Pooling, Pull, RowFormat, Touch, check_bags};
use crate::framing::{Outgoing, PULL_RESPONSE_ROWS, Pieces, Requests};
use crate::{proto, wire};

impl Client {
    /// Reads rows: those of the first table, in the order of its keys, then those of the next.
    pub async fn pull(&self, pulls: &[Pull<'_>]) -> Result<Vec<f32>> {
        let mut out = vec![0.0; self.size(pulls.iter().map(|pull| (pull.table, pull.keys.len()))).await?];
        self.pull_into(pulls, &mut out).await?;
        Ok(out)
    }

    /// [`Client::pull`] into memory of the caller's. Rows are placed as they come: after an error some may have been.
    pub async fn pull_into(&self, pulls: &[Pull<'_>], out: &mut [f32]) -> Result<()> {
        let infos = self.infos(pulls.iter().map(|pull| pull.table)).await?;
        let expected = infos.iter().zip(pulls).map(|(info, pull)| info.dim * pull.keys.len()).sum();
        check_len(pulls.first().map_or("", |pull| pull.table), expected, out.len())?;
        self.pushes.wait(self.options.lookahead).await;
        let out = Mutex::new(out);
        let asked = self.routed(async |cluster| self.ask(&cluster, &infos, pulls, &out).await);
        let splits = self.caller.wait(asked).await?;
        let mut rest = out.into_inner();
        for ((info, pull), split) in infos.iter().zip(pulls).zip(&splits) {
            let (mine, others) = rest.split_at_mut(pull.keys.len() * info.dim);
            rest = others;
            split.repeat(info.dim, mine);
        }
        Ok(())
    }

    /// Forgets what is known of tables: one has another dim than this client thinks.
    fn forget<'a>(&self, tables: impl Iterator<Item = &'a str>) -> Error {
        tables.for_each(|table| drop(self.tables.remove(table)));
        changed_dim()
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

    /// Asks the shards for the distinct rows of a pull, and puts them where they belong.
    async fn ask(
        &self,
        cluster: &Cluster,
        infos: &[TableInfo],
        pulls: &[Pull<'_>],
        out: &Mutex<&mut [f32]>,
    ) -> Result<Vec<Split>> {
        let owners = &cluster.topology.partition_shards;
        let shards = cluster.shards.len();
        let splits: Vec<Split> = infos
            .iter()
            .zip(pulls)
            .map(|(info, pull)| Split::new(&cluster.route, owners, shards, info.keys, pull.keys))
            .collect();
        let asked = (0..shards).map(|shard| {
            let tables = pulls.iter().zip(&splits).filter(|(_, split)| !split.shards[shard].keys.is_empty());
            let tables = tables.map(|(pull, split)| proto::TablePull {
                table: pull.table.into(),
                keys: wire::packed(&split.shards[shard].keys),
                ..Default::default()
            });
            let placing = Placing::new(self.options.rows, infos, &splits, shard, out);
            self.pull_shard(cluster, shard as u32, tables.collect(), Some(placing))
        });
        // An answer has what was asked for and no more, or a table has another dim than this client thinks.
        let right = |rest: &(Pieces, Option<Placing<'_, '_>>)| {
            !rest.0.has_remaining() && rest.1.as_ref().is_none_or(|placing| placing.shares.is_empty())
        };
        if !try_join_all(asked).await?.iter().all(right) {
            return Err(self.forget(pulls.iter().map(|pull| pull.table)));
        }
        Ok(splits)
    }

    /// The rows that a shard answers, in the pieces in which they came, but for those that were placed as they came. A
    /// shard that is not needed gives an empty answer.
    async fn pull_shard<'a, 'o>(
        &self,
        cluster: &Cluster,
        shard: u32,
        tables: Vec<proto::TablePull>,
        placing: Option<Placing<'a, 'o>>,
    ) -> Result<(Pieces, Option<Placing<'a, 'o>>)> {
        if tables.is_empty() {
            return Ok((Pieces::default(), placing));
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
            // From the start, if this is not the first attempt.
            let mut placing = placing.clone();
            let rest = answer.await?.answer(PULL_RESPONSE_ROWS, |rows| {
                if let Some(placing) = &mut placing {
                    placing.take(rows);
                }
            });
            Ok((rest.await?, placing))
        })
        .await
    }

    /// Reads bags of rows as one row each, table after table. Shards add up their rows of a bag; the client adds up the
    /// shards in ascending order.
    pub async fn pull_pooled(&self, pulls: &[PooledPull<'_>]) -> Result<Vec<f32>> {
        let infos = self.infos(pulls.iter().map(|pull| pull.table)).await?;
        for pull in pulls {
            check_bags(pull.table, pull.keys.len(), pull.offsets, pull.weights, pull.pooling)?;
        }
        self.pushes.wait(self.options.lookahead).await;
        let asked = self.routed(async |cluster| self.ask_pooled(&cluster, &infos, pulls).await);
        let mut answers = self.caller.wait(asked).await?;
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
                    return Err(self.forget([pull.table].into_iter()));
                }
            }
            match n {
                0 => out.copy_from_slice(&shard_rows),
                _ => out.iter_mut().zip(&shard_rows).for_each(|(out, more)| *out += more),
            }
        }
        if answers.iter().any(|answer| answer.has_remaining()) {
            return Err(self.forget(pulls.iter().map(|pull| pull.table)));
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
        let answers = requests.map(|(shard, tables)| self.pull_shard(cluster, shard, tables, None));
        Ok(try_join_all(answers).await?.into_iter().map(|(rows, _)| rows).collect())
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

/// Puts the rows of one shard's answer where they belong, as they come.
#[derive(Clone)]
struct Placing<'a, 'o> {
    format: RowFormat,
    /// What has not come, table by table.
    shares: VecDeque<Share<'a>>,
    /// The caller's memory: shards answer side by side, each with rows of its own.
    out: &'a Mutex<&'o mut [f32]>,
}

/// One table's rows of one shard.
#[derive(Clone)]
struct Share<'a> {
    dim: usize,
    /// Where each row goes, counted in rows of this table; `None` where they lie side by side.
    to: Option<&'a [u32]>,
    /// How many there are.
    rows: usize,
    /// How many have come.
    placed: usize,
    /// Where the table's rows start in the caller's memory.
    start: usize,
}

impl<'a, 'o> Placing<'a, 'o> {
    fn new(
        format: RowFormat,
        infos: &[TableInfo],
        splits: &'a [Split],
        shard: usize,
        out: &'a Mutex<&'o mut [f32]>,
    ) -> Placing<'a, 'o> {
        let mut start = 0;
        let mut shares = VecDeque::new();
        for (info, split) in infos.iter().zip(splits) {
            let (dim, share) = (info.dim, &split.shards[shard]);
            let to = (!split.is_plain()).then_some(share.first.as_slice());
            if !share.keys.is_empty() {
                shares.push_back(Share { dim, to, rows: share.keys.len(), placed: 0, start });
            }
            start += split.len() * dim;
        }
        Placing { format, shares, out }
    }

    /// Takes the whole rows among what has come.
    fn take(&mut self, rows: &mut Pieces) {
        let mut out = self.out.lock();
        while let Some(share) = self.shares.front_mut() {
            let (dim, out) = (share.dim, &mut out[share.start..]);
            let row_bytes = self.format.row_bytes(dim);
            let count = (rows.remaining() / row_bytes).min(share.rows - share.placed);
            rows.rows(row_bytes, count, |rows| {
                let count = rows.len() / row_bytes;
                match share.to {
                    None => self.format.decode(rows, dim, &mut out[share.placed * dim..][..count * dim]),
                    Some(to) => {
                        for (row, &to) in rows.chunks_exact(row_bytes).zip(&to[share.placed..]) {
                            self.format.decode(row, dim, &mut out[to as usize * dim..][..dim]);
                        }
                    }
                }
                share.placed += count;
            });
            if share.placed < share.rows {
                return;
            }
            self.shares.pop_front();
        }
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
