//! A piece of state as bytes and back (docs/CHECKPOINT.md): frames, each sealed by a checksum that covers the one before.

use anyhow::{Result, ensure};
use bytes::{Buf, BufMut as _, Bytes, BytesMut};
use xxhash_rust::xxh3::Xxh3Default;

use crate::cache::{DirectoryImage, Ranks};
use crate::engine::{ClientId, Piece};
use crate::table::RowsPiece;

/// Bytes of a frame's head.
pub const HEAD: usize = 40;
const MAGIC: [u8; 4] = *b"HRC1";
/// Longer ones are damage.
const LONGEST: u64 = 1 << 40;

const PARTITION: u32 = 1;
const PART: u32 = 2;
const ROWS: u32 = 3;
const INDEX: u32 = 4;
const DIRECTORY: u32 = 5;
const SLOTS: u32 = 6;
const END: u32 = 7;

const LISTED: u32 = 1;
const KEYED: u32 = 2;
const LRU: u32 = 1;
const LFU: u32 = 2;

fn seal(head: &[u8], payload: &[u8]) -> u64 {
    let mut hasher = Xxh3Default::new();
    hasher.update(&head[..32]);
    hasher.update(payload);
    hasher.digest()
}

/// Appends a piece of a partition. Returns its seal.
pub fn encode(piece: &Piece, partition: u32, before: u64, out: &mut BytesMut) -> u64 {
    let start = out.len();
    out.put_bytes(0, HEAD);
    let kind = payload(piece, out);
    let len = (out.len() - start - HEAD) as u64;
    let (head, payload) = out[start..].split_at_mut(HEAD);
    head[..4].copy_from_slice(&MAGIC);
    head[4..8].copy_from_slice(&kind.to_le_bytes());
    head[8..12].copy_from_slice(&partition.to_le_bytes());
    head[16..24].copy_from_slice(&len.to_le_bytes());
    head[24..32].copy_from_slice(&before.to_le_bytes());
    let seal = seal(head, payload);
    head[32..].copy_from_slice(&seal.to_le_bytes());
    seal
}

fn payload(piece: &Piece, out: &mut BytesMut) -> u32 {
    match piece {
        Piece::Partition { write_backs, clients, .. } => {
            out.put_u64_le(*write_backs);
            out.put_u64_le(clients.len() as u64);
            for (client, highest, below) in clients {
                out.put_u128(client.0);
                out.put_u64_le(*highest);
                out.put_u64_le(*below);
            }
            PARTITION
        }
        Piece::Part { table } => {
            out.put_u64_le(u64::from(*table));
            PART
        }
        Piece::Rows(rows) => {
            let flags = u32::from(rows.listed.is_some()) * LISTED + u32::from(!rows.keys.is_empty()) * KEYED;
            out.put_u32_le(rows.first);
            out.put_u32_le(rows.count);
            out.put_u32_le(flags);
            out.put_u32_le(rows.keys.len() as u32);
            for words in [rows.listed.as_deref().unwrap_or(&[]), &rows.stored, &rows.keys] {
                out.put_slice(bytemuck::cast_slice(words));
            }
            out.put_slice(&rows.bytes);
            ROWS
        }
        Piece::Index { rows, free } => {
            out.put_u32_le(*rows);
            out.put_u32_le(free.len() as u32);
            out.put_slice(bytemuck::cast_slice(free));
            INDEX
        }
        Piece::Directory(image) => {
            out.put_u32_le(image.sets);
            out.put_u32_le(image.ways);
            let (policy, time) = match image.ranks {
                Ranks::Lru { clock, .. } => (LRU, u64::from(clock)),
                Ranks::Lfu { uses, .. } => (LFU, uses),
            };
            out.put_u64_le(u64::from(policy));
            out.put_u64_le(time);
            out.put_slice(bytemuck::cast_slice(&image.tags));
            match &image.ranks {
                Ranks::Lru { stamps, .. } => out.put_slice(bytemuck::cast_slice(stamps)),
                Ranks::Lfu { counts, sketch, .. } => {
                    out.put_slice(bytemuck::cast_slice(counts));
                    out.put_slice(sketch);
                }
            }
            DIRECTORY
        }
        Piece::Slots { slots, values } => {
            out.put_u32_le(slots.len() as u32);
            out.put_u32_le((values.len() / slots.len().max(1)) as u32);
            out.put_slice(bytemuck::cast_slice(slots));
            out.put_slice(bytemuck::cast_slice(values));
            SLOTS
        }
        Piece::End => END,
    }
}

/// Reads the frames of one section.
pub struct Frames {
    partition: u32,
    /// The seal of the last frame.
    pub seal: u64,
    /// Whether the last frame was read.
    pub ended: bool,
}

impl Frames {
    /// Nothing read yet.
    pub fn new(partition: u32) -> Frames {
        Frames { partition, seal: 0, ended: false }
    }

    /// The next frame, taken off the front of `bytes`; `None` if more of them are needed.
    pub fn next(&mut self, bytes: &mut BytesMut) -> Result<Option<Piece>> {
        if bytes.len() < HEAD {
            return Ok(None);
        }
        let number = |at: usize| (&bytes[at..at + 8]).get_u64_le();
        let (kind, partition) = ((number(0) >> 32) as u32, number(8) as u32);
        let (len, before, sealed) = (number(16), number(24), number(32));
        let fits = bytes[..4] == MAGIC && partition == self.partition && before == self.seal && len < LONGEST;
        ensure!(fits && !self.ended, "no frame that continues the one before it");
        if bytes.len() as u64 - (HEAD as u64) < len {
            return Ok(None);
        }
        let frame = bytes.split_to(HEAD + len as usize).freeze();
        ensure!(seal(&frame[..HEAD], &frame[HEAD..]) == sealed, "a frame's checksum is wrong");
        self.seal = sealed;
        let piece = decode(kind, partition, frame.slice(HEAD..))?;
        self.ended = piece == Piece::End;
        Ok(Some(piece))
    }
}

fn decode(kind: u32, partition: u32, bytes: Bytes) -> Result<Piece> {
    let mut read = Read(bytes);
    let piece = match kind {
        PARTITION => {
            let (write_backs, count) = (read.u64()?, read.u64()? as usize);
            let mut clients = Vec::new();
            for _ in 0..count {
                let id = read.take(16)?.get_u128();
                clients.push((ClientId(id), read.u64()?, read.u64()?));
            }
            Piece::Partition { id: partition, write_backs, clients }
        }
        PART => Piece::Part { table: u32::try_from(read.u64()?)? },
        ROWS => {
            let (first, count, flags, keys) = (read.u32()?, read.u32()?, read.u32()?, read.u32()? as usize);
            let words = (count as usize).div_ceil(64);
            let listed = (flags & LISTED != 0).then(|| read.numbers(words)).transpose()?;
            let (stored, keys) = (read.numbers(words)?, read.numbers(keys)?);
            Piece::Rows(RowsPiece { first, count, listed, stored, keys, bytes: read.rest() })
        }
        INDEX => {
            let (rows, free) = (read.u32()?, read.u32()? as usize);
            Piece::Index { rows, free: read.numbers(free)? }
        }
        DIRECTORY => {
            let (sets, ways, policy, time) = (read.u32()?, read.u32()?, read.u64()? as u32, read.u64()?);
            let slots = sets as usize * ways as usize;
            let tags = read.numbers(slots)?;
            let ranks = match policy {
                LRU => Ranks::Lru { clock: u32::try_from(time)?, stamps: read.numbers(slots)? },
                LFU => Ranks::Lfu { uses: time, counts: read.numbers(slots)?, sketch: read.numbers(2 * slots)? },
                other => anyhow::bail!("policy {other} is not known"),
            };
            Piece::Directory(DirectoryImage { sets, ways, tags, ranks })
        }
        SLOTS => {
            let (count, len) = (read.u32()? as usize, read.u32()? as usize);
            Piece::Slots { slots: read.numbers(count)?, values: read.numbers(count * len)? }
        }
        END => Piece::End,
        other => anyhow::bail!("a piece of kind {other} is not known"),
    };
    ensure!(read.0.is_empty(), "a frame has more bytes than its piece");
    Ok(piece)
}

/// Bytes that may be too few.
struct Read(Bytes);

impl Read {
    fn take(&mut self, len: usize) -> Result<Bytes> {
        ensure!(self.0.len() >= len, "a frame has fewer bytes than its piece");
        Ok(self.0.split_to(len))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(self.take(4)?.get_u32_le())
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(self.take(8)?.get_u64_le())
    }

    fn numbers<T: bytemuck::AnyBitPattern>(&mut self, count: usize) -> Result<Vec<T>> {
        let bytes = self.take(count.saturating_mul(size_of::<T>()))?;
        Ok(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).into()
    }
}
