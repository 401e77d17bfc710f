//! The frame of the log (docs/LOG.md): segments, and in them groups, each sealed by a checksum that covers the one before.

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::engine::Lsn;

/// The version of this format.
pub const FORMAT: u32 = 1;
/// Bytes of a segment's head.
pub const SEGMENT_HEAD: usize = 56;
/// Bytes of a group's head.
pub const GROUP_HEAD: usize = 40;
/// What a group begins with: a search for groups behind damage looks for it.
pub const GROUP_MAGIC: [u8; 4] = *b"HRG1";
const SEGMENT_MAGIC: [u8; 8] = *b"hotrowlg";

/// How a segment begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHead {
    /// The version of this format.
    pub format: u32,
    /// The version of the numerics that its changes were applied with.
    pub numerics: u32,
    /// Whose log it is.
    pub identity: u64,
    /// The place of its first change.
    pub first: Lsn,
    /// The seal of the last group before it.
    pub before: u64,
}

impl SegmentHead {
    /// As bytes.
    pub fn encode(&self) -> [u8; SEGMENT_HEAD] {
        let mut bytes = [0; SEGMENT_HEAD];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&self.format.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.numerics.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.identity.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.before.to_le_bytes());
        let sum = xxh3_64(&bytes[..48]);
        bytes[48..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// From bytes; `None` if they are not one.
    pub fn decode(bytes: &[u8]) -> Option<SegmentHead> {
        let bytes: &[u8; SEGMENT_HEAD] = bytes.get(..SEGMENT_HEAD)?.try_into().ok()?;
        if bytes[..8] != SEGMENT_MAGIC || number(bytes, 48) != xxh3_64(&bytes[..48]) {
            return None;
        }
        Some(SegmentHead {
            format: number(bytes, 8) as u32,
            numerics: (number(bytes, 8) >> 32) as u32,
            identity: number(bytes, 16),
            first: Lsn(number(bytes, 24)),
            before: number(bytes, 32),
        })
    }
}

/// How a group begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupHead {
    /// Bytes of its records.
    pub len: u32,
    /// How many there are.
    pub count: u32,
    /// The place of the first.
    pub first: Lsn,
    /// The seal of the group before.
    pub before: u64,
    /// Its own seal.
    pub seal: u64,
}

impl GroupHead {
    /// Seals a group: `group` has room for the head and then the records. Returns the seal.
    pub fn seal(group: &mut [u8], count: u32, first: Lsn, before: u64) -> u64 {
        let mut head = GroupHead { len: (group.len() - GROUP_HEAD) as u32, count, first, before, seal: 0 };
        head.seal = sum(&head.encode()[..32], &group[GROUP_HEAD..]);
        group[..GROUP_HEAD].copy_from_slice(&head.encode());
        head.seal
    }

    /// As bytes.
    pub fn encode(&self) -> [u8; GROUP_HEAD] {
        let mut bytes = [0; GROUP_HEAD];
        bytes[..4].copy_from_slice(&GROUP_MAGIC);
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.count.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.before.to_le_bytes());
        bytes[32..].copy_from_slice(&self.seal.to_le_bytes());
        bytes
    }

    /// From bytes; `None` if they do not look like one. Nothing is certain before [`GroupHead::is_whole`].
    pub fn decode(bytes: &[u8]) -> Option<GroupHead> {
        let bytes = bytes.get(..GROUP_HEAD).filter(|bytes| bytes[..4] == GROUP_MAGIC)?;
        Some(GroupHead {
            len: (number(bytes, 0) >> 32) as u32,
            count: number(bytes, 8) as u32,
            first: Lsn(number(bytes, 16)),
            before: number(bytes, 24),
            seal: number(bytes, 32),
        })
    }

    /// Whether head and records are as they were sealed.
    pub fn is_whole(head: &[u8], records: &[u8]) -> bool {
        head.len() == GROUP_HEAD && number(head, 32) == sum(&head[..32], records)
    }
}

fn sum(head: &[u8], records: &[u8]) -> u64 {
    let mut hasher = Xxh3Default::new();
    hasher.update(head);
    hasher.update(records);
    hasher.digest()
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// The name of the segment that begins with a change.
pub fn segment_name(first: Lsn) -> String {
    format!("{:020}.log", first.0)
}

/// The place in a segment's name.
pub fn segment_first(name: &str) -> Option<Lsn> {
    let digits = name.strip_suffix(".log").filter(|digits| digits.len() == 20)?;
    digits.parse().ok().map(Lsn)
}
