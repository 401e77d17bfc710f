//! Vector clocks: which work comes before which, by stream order, events and what the host waited for.

/// How many streams can have work that the host has not waited for.
pub const STREAMS: usize = 128;

const SLOT_BITS: u32 = 7;
/// The highest bit of a stamp stays free: shadow memory uses it.
const LAST_EPOCH: u32 = (1 << (31 - SLOT_BITS)) - 1;

/// One piece of work: the slot of its stream and its place there, which is never zero.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stamp(pub u32);

impl Stamp {
    /// `None` where the stream has had more work than can be counted.
    pub fn new(slot: usize, epoch: u32) -> Option<Self> {
        debug_assert!(slot < STREAMS && epoch > 0);
        (epoch <= LAST_EPOCH).then_some(Self(epoch << SLOT_BITS | slot as u32))
    }

    pub fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    pub fn epoch(self) -> u32 {
        self.0 >> SLOT_BITS
    }
}

/// For each stream the last piece of its work that comes before.
#[derive(Clone)]
pub struct Clock([u32; STREAMS]);

impl Clock {
    pub const fn new() -> Self {
        Self([0; STREAMS])
    }

    /// Whether the work with this stamp comes before (or is) what the clock belongs to.
    #[inline(always)]
    pub fn covers(&self, stamp: Stamp) -> bool {
        self.0[stamp.slot()] >= stamp.epoch()
    }

    pub fn set(&mut self, slot: usize, epoch: u32) {
        self.0[slot] = epoch;
    }

    pub fn get(&self, slot: usize) -> u32 {
        self.0[slot]
    }

    /// What comes before the other now comes before this, too.
    pub fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }
}
