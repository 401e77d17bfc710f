//! Writing a shard's part of a checkpoint.

use std::sync::Arc;

use anyhow::{Context as _, Error, Result, bail};
use bytes::{Bytes, BytesMut};
use object_store::WriteMultipart;
use tokio::sync::{mpsc, oneshot};

use super::frame;
use super::manifest::{FileEntry, Section, TableEntry, folder};
use super::store::{CheckpointStore, told};
use crate::engine::{Engine, Piece, Snapshot, Unsettled};

/// Frames are handed on in blocks of about this size.
const BLOCK: usize = 1 << 20;
/// Blocks that may wait for the store.
const WAITING: usize = 8;
/// The least that goes up in one part; object stores ask for 5 MiB.
const LEAST_PART: u64 = 8 << 20;
/// Object stores take at most 10,000 parts of a file.
const MOST_PARTS: u64 = 9000;
/// Parts that go up side by side.
const SIDE_BY_SIDE: usize = 4;

/// A shard's part of a checkpoint.
#[derive(Clone, Debug)]
pub struct PartOf {
    /// The checkpoint's number.
    pub sequence: u64,
    /// The shard.
    pub shard: u32,
    /// Of how many.
    pub shards: u32,
    /// The checkpoint to differ from, and how many come before that in its chain; `None` saves all rows.
    pub base: Option<(u64, u32)>,
}

/// What was read of a snapshot, but its bytes.
struct Read {
    lsn: u64,
    tables: Vec<TableEntry>,
    sections: Vec<Section>,
    unsettled: Unsettled,
}

/// Cuts an engine's state and writes it while changes go on. `cut` is called with the last change in it, and `watch` with
/// the bytes written so far. The file counts for nothing before a manifest names it; an error leaves the engine as if
/// nothing had been tried.
pub async fn save_part(
    store: &CheckpointStore,
    engine: &Arc<Engine>,
    part: PartOf,
    cut: impl FnOnce(u64),
    watch: impl FnMut(u64),
) -> Result<(FileEntry, Unsettled)> {
    let PartOf { sequence, shard, shards, base } = part;
    let token: u64 = rand::random();
    let path = format!("{}/shard-{shard}-of-{shards}-{token:016x}.data", folder(sequence));
    let part_bytes = (engine.memory_used() / MOST_PARTS).max(LEAST_PART) as usize;
    let (blocks, taken) = mpsc::channel(WAITING);
    let (cut_at, has_cut) = oneshot::channel();
    let reading = Arc::clone(engine);
    let reader = tokio::task::spawn_blocking(move || -> Result<Read> {
        let snapshot = reading.cut(base.is_none())?;
        // Nobody listens where the upload has failed.
        let _ = cut_at.send(snapshot.lsn().0);
        read(snapshot, &blocks)
    });
    let cut_told = async {
        if let Ok(lsn) = has_cut.await {
            cut(lsn);
        }
    };
    let (sent, ()) = tokio::join!(send(store, &path, part_bytes, taken, watch), cut_told);
    // The receiver is gone by now, so that a reader whose blocks nobody takes has given up.
    let read = reader.await?;
    let (upload, bytes) = match (sent, &read) {
        (Ok(sent), Ok(_)) => sent,
        (Ok((upload, _)), Err(_)) => {
            // What went up is of no use, and the first error is the one to tell.
            let _ = upload.abort().await;
            return Err(read.err().expect("it is one"));
        }
        (Err(error), _) => return Err(give_up(engine, read, error)),
    };
    if let Err(error) = upload.finish().await {
        return Err(give_up(engine, read, told(error).context(store.place(&path))));
    }
    let Read { lsn, tables, sections, unsettled } = read?;
    let (base, links) = base.map_or((None, 0), |(base, links)| (Some(base), links + 1));
    Ok((FileEntry { path, shard, shards, lsn, base, links, bytes, tables, sections }, unsettled))
}

/// What was read comes to nothing; returns why.
fn give_up(engine: &Engine, read: Result<Read>, error: Error) -> Error {
    if let Ok(read) = read {
        engine.settle(read.unsettled, false);
    }
    error
}

/// Sends blocks up until there are no more. The file is complete when the upload is finished.
async fn send(
    store: &CheckpointStore,
    path: &str,
    part_bytes: usize,
    mut blocks: mpsc::Receiver<Bytes>,
    mut watch: impl FnMut(u64),
) -> Result<(WriteMultipart, u64)> {
    let mut upload = store.upload(path, part_bytes).await?;
    let mut bytes = 0;
    while let Some(block) = blocks.recv().await {
        bytes += block.len() as u64;
        if let Err(error) = upload.wait_for_capacity(SIDE_BY_SIDE).await {
            let _ = upload.abort().await;
            return Err(told(error).context(store.place(path)));
        }
        upload.put(block);
        watch(bytes);
    }
    Ok((upload, bytes))
}

/// Reads a snapshot to its end, and hands its frames on in blocks.
fn read(mut snapshot: Snapshot<'_>, blocks: &mpsc::Sender<Bytes>) -> Result<Read> {
    let lsn = snapshot.lsn().0;
    let tables = snapshot.tables().iter().map(TableEntry::of).collect();
    let mut sections: Vec<Section> = Vec::new();
    let mut block = BytesMut::with_capacity(BLOCK + BLOCK / 2);
    let mut sent = 0;
    while let Some(piece) = snapshot.next_piece() {
        let offset = sent + block.len() as u64;
        if let Piece::Partition { id, .. } = piece {
            sections.push(Section { partition: id, offset, length: 0, seal: 0 });
        }
        let section = sections.last_mut().context("a snapshot begins with a partition")?;
        section.seal = frame::encode(&piece, section.partition, section.seal, &mut block);
        section.length = sent + block.len() as u64 - section.offset;
        if block.len() >= BLOCK {
            sent += block.len() as u64;
            let full = std::mem::replace(&mut block, BytesMut::with_capacity(BLOCK + BLOCK / 2));
            if blocks.blocking_send(full.freeze()).is_err() {
                bail!("the upload has ended");
            }
        }
    }
    if blocks.blocking_send(block.freeze()).is_err() {
        bail!("the upload has ended");
    }
    Ok(Read { lsn, tables, sections, unsettled: snapshot.done() })
}
