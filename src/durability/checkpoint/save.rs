//! Writing a shard's part of a checkpoint.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use bytes::BytesMut;
use object_store::WriteMultipart;
use tokio::sync::mpsc;

use super::background::in_background;
use super::frame;
use super::manifest::{FileEntry, Section, TableEntry, folder};
use super::store::{CheckpointStore, told};
use crate::engine::{Engine, Piece, Snapshot, Unsettled};

/// Frames are handed on in blocks of about this size.
const BLOCK: usize = 1 << 20;
/// Pieces that may wait to be written.
const WAITING: usize = 4;
/// The least that goes up in one part; object stores ask for 5 MiB.
const LEAST_PART: u64 = 8 << 20;
/// Object stores take at most 10,000 parts of a file.
const MOST_PARTS: u64 = 9000;
/// Parts that go up side by side.
const SIDE_BY_SIDE: usize = 2;

/// A shard's part of a checkpoint.
#[derive(Clone, Debug)]
pub struct PartOf {
    /// The checkpoint's number.
    pub sequence: u64,
    /// The shard.
    pub shard: u32,
    /// Of how many.
    pub shards: u32,
    /// The history that the shard's changes belong to.
    pub history: u64,
    /// The checkpoint to differ from, and how many come before that in its chain; `None` saves all rows.
    pub base: Option<(u64, u32)>,
}

/// What is read of a snapshot beside its pieces.
struct Read {
    lsn: u64,
    tables: Vec<TableEntry>,
    unsettled: Unsettled,
}

/// What was written.
struct Written {
    bytes: u64,
    sections: Vec<Section>,
}

/// Cuts an engine's state and writes it while changes go on. `cut` is called with the last change in it, and `watch` with
/// the bytes written so far. The file counts for nothing before a manifest names it; an error leaves the engine as if
/// nothing had been tried.
pub async fn save_part(
    store: &CheckpointStore,
    engine: &Arc<Engine>,
    part: PartOf,
    cut: impl FnOnce(u64) + Send + 'static,
    watch: impl FnMut(u64) + Send + 'static,
) -> Result<(FileEntry, Unsettled)> {
    let PartOf { sequence, shard, shards, history, base } = part;
    let token: u64 = rand::random();
    let path = format!("{}/shard-{shard}-of-{shards}-{token:016x}.data", folder(sequence));
    let part_bytes =
        if store.is_folder() { BLOCK } else { (engine.memory_used() / MOST_PARTS).max(LEAST_PART) as usize };
    let (pieces, taken) = mpsc::channel(WAITING);
    let writing = in_background(write(store.clone(), path.clone(), part_bytes, taken, watch));
    // Not in the background: it holds locks, for moments, that requests wait for.
    let reading = Arc::clone(engine);
    let reader = tokio::task::spawn_blocking(move || -> Result<Read> {
        let snapshot = reading.cut(base.is_none())?;
        cut(snapshot.lsn().0);
        read(snapshot, &pieces)
    });
    let (written, read) = tokio::join!(writing, reader);
    match (written, read?) {
        (Ok(Written { bytes, sections }), Ok(Read { lsn, tables, unsettled })) => {
            let (base, links) = base.map_or((None, 0), |(base, links)| (Some(base), links + 1));
            Ok((FileEntry { path, shard, shards, lsn, history, base, links, bytes, tables, sections }, unsettled))
        }
        (Err(error), Ok(read)) => {
            engine.settle(read.unsettled, false);
            Err(error)
        }
        // The writer ends when the reader does, and the reader when nobody takes its pieces.
        (Err(error), Err(_)) if !error.is::<GivenUp>() => Err(error),
        (_, Err(error)) => Err(error),
    }
}

/// The reader has ended before the snapshot did.
#[derive(Debug, thiserror::Error)]
#[error("what was read is not complete")]
struct GivenUp;

/// Reads a snapshot to its end, and hands its pieces on; `None` is the end.
fn read(mut snapshot: Snapshot<'_>, pieces: &mpsc::Sender<Option<Piece>>) -> Result<Read> {
    let lsn = snapshot.lsn().0;
    let tables = snapshot.tables().iter().map(TableEntry::of).collect();
    loop {
        let piece = snapshot.next_piece();
        let ended = piece.is_none();
        if pieces.blocking_send(piece).is_err() {
            bail!("the upload has ended");
        }
        if ended {
            return Ok(Read { lsn, tables, unsettled: snapshot.done() });
        }
    }
}

/// Writes pieces, as frames, until the end of them.
async fn write(
    store: CheckpointStore,
    path: String,
    part_bytes: usize,
    pieces: mpsc::Receiver<Option<Piece>>,
    watch: impl FnMut(u64) + Send,
) -> Result<Written> {
    let mut upload = store.upload(&path, part_bytes).await?;
    match send(&mut upload, pieces, watch).await {
        Ok(written) => {
            upload.finish().await.map_err(|error| told(error).context(store.place(&path)))?;
            Ok(written)
        }
        Err(error) => {
            // What went up is of no use, and the first error is the one to tell.
            let _ = upload.abort().await;
            Err(if error.is::<GivenUp>() { error } else { error.context(store.place(&path)) })
        }
    }
}

async fn send(
    upload: &mut WriteMultipart,
    mut pieces: mpsc::Receiver<Option<Piece>>,
    mut watch: impl FnMut(u64) + Send,
) -> Result<Written> {
    let mut sections: Vec<Section> = Vec::new();
    let mut block = BytesMut::with_capacity(BLOCK + BLOCK / 2);
    let mut bytes = 0;
    loop {
        let piece = pieces.recv().await.ok_or(GivenUp)?;
        if let Some(piece) = &piece {
            let offset = bytes + block.len() as u64;
            if let Piece::Partition { id, .. } = piece {
                sections.push(Section { partition: *id, offset, length: 0, seal: 0 });
            }
            let section = sections.last_mut().context("a snapshot begins with a partition")?;
            section.seal = frame::encode(piece, section.partition, section.seal, &mut block);
            section.length = bytes + block.len() as u64 - section.offset;
            // The system lets a thread run for milliseconds, low priority or not, and a pull should not wait for that.
            std::thread::yield_now();
        }
        if block.len() >= BLOCK || piece.is_none() {
            bytes += block.len() as u64;
            upload.wait_for_capacity(SIDE_BY_SIDE).await.map_err(told)?;
            upload.put(std::mem::replace(&mut block, BytesMut::with_capacity(BLOCK + BLOCK / 2)).freeze());
            watch(bytes);
        }
        if piece.is_none() {
            return Ok(Written { bytes, sections });
        }
    }
}
