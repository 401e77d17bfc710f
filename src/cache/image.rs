//! What a directory knows of its rows, and all of it at one moment.

use crate::numeric::simd;

/// The bit of a stamp or count that says that the row differs from the row store.
pub(super) const DIRTY: u32 = 1;
/// Bits of a count below the frequency.
pub(super) const COUNT_SHIFT: u32 = 2;

/// How recent or frequent the row in each slot is.
#[derive(Clone, Debug, PartialEq)]
pub enum Ranks {
    /// The time of each slot's last use, with its dirty bit.
    Lru {
        /// The time now.
        clock: u32,
        /// `time << 1 | dirty`; zero is an empty way.
        stamps: Vec<u32>,
    },
    /// How often each slot was used, with its dirty bit.
    Lfu {
        /// Uses since the last halving.
        uses: u64,
        /// `count << 2 | dirty`.
        counts: Vec<u16>,
        /// Two bytes a slot: how often rows that are not in the cache were used.
        sketch: Vec<u8>,
    },
}

impl Ranks {
    /// Whether the row in a slot differs from the row store.
    pub fn is_dirty(&self, slot: u32) -> bool {
        match self {
            Ranks::Lru { stamps, .. } => stamps[slot as usize] & DIRTY != 0,
            Ranks::Lfu { counts, .. } => counts[slot as usize] & DIRTY as u16 != 0,
        }
    }

    /// Asks for the memory of a set's ranks.
    #[inline(always)]
    pub fn prefetch(&self, set: u32, ways: u32) {
        let (set, ways) = (set as usize, ways as usize);
        match self {
            Ranks::Lru { stamps, .. } => simd::prefetch_slice(&stamps[set..][..ways]),
            Ranks::Lfu { counts, sketch, .. } => {
                simd::prefetch_slice(&counts[set..][..ways]);
                simd::prefetch_slice(&sketch[2 * set..][..2 * ways]);
            }
        }
    }

    /// The larger, the rather a row stays.
    pub fn rank(&self, slot: u32) -> u32 {
        match self {
            Ranks::Lru { stamps, .. } => stamps[slot as usize] >> 1,
            Ranks::Lfu { counts, .. } => u32::from(counts[slot as usize] >> COUNT_SHIFT),
        }
    }
}

/// A directory at one moment, to be saved.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectoryImage {
    /// How many sets there are.
    pub sets: u32,
    /// Ways in each.
    pub ways: u32,
    /// The row in each slot plus one; zero is an empty way.
    pub tags: Vec<u32>,
    /// Recency or frequency, and dirty bits.
    pub ranks: Ranks,
}

impl DirectoryImage {
    /// The row in a slot.
    pub fn row_at(&self, slot: u32) -> Option<u32> {
        self.tags.get(slot as usize)?.checked_sub(1)
    }

    /// Whether the row in a slot differs from the row store.
    pub fn is_dirty(&self, slot: u32) -> bool {
        self.ranks.is_dirty(slot)
    }

    /// Whether its arrays are as long as they must be.
    pub fn is_consistent(&self) -> bool {
        let slots = self.sets as usize * self.ways as usize;
        let ranks = match &self.ranks {
            Ranks::Lru { stamps, .. } => stamps.len() == slots,
            Ranks::Lfu { counts, sketch, .. } => counts.len() == slots && sketch.len() == 2 * slots,
        };
        ranks && self.tags.len() == slots
    }
}
