//! Shadow memory: who last wrote and read each four bytes, to find two accesses that nothing orders.
//!
//! The method is FastTrack's (Flanagan and Freund, 2009): the last write and the reads since are enough to find the
//! first race in any order of execution. This is the hot path of every kernel: no allocation, no lookup by key.

use crate::clock::{Clock, Stamp};
use crate::mapping::Mapping;

/// Bytes that share a cell.
pub const GRANULE: usize = 4;

/// Set in `reads` where it is the number of a set of readers rather than the stamp of one.
const SET: u32 = 1 << 31;

/// Zero means none in both fields.
#[repr(C)]
#[derive(Clone, Copy)]
struct Cell {
    write: u32,
    reads: u32,
}

/// An earlier access that nothing orders before the one at hand.
pub struct Conflict {
    pub earlier: Stamp,
    pub wrote: bool,
}

/// The cells for one arena.
pub struct Shadow {
    cells: Mapping,
    sets: ReadSets,
}

impl Shadow {
    /// For an arena of `length` bytes.
    pub fn new(length: usize) -> Self {
        Self { cells: Mapping::new(length / GRANULE * size_of::<Cell>(), true), sets: ReadSets::new() }
    }

    /// Notes an access to one granule of the arena, after the check against those before it.
    #[inline(always)]
    pub fn touch(&mut self, granule: usize, by: Stamp, clock: &Clock, write: bool) -> Result<(), Conflict> {
        debug_assert!(granule * size_of::<Cell>() < self.cells.length);
        // SAFETY: granules are counted from the start of the arena and the callers have found the access to lie in an
        // allocation of it, so the cell is in the mapping. `&mut self` makes it the only reference.
        let cell = unsafe { &mut *(self.cells.base as *mut Cell).add(granule) };
        if cell.write == by.0 {
            // Written by the same work before: all that was to be checked was checked then.
            return Ok(());
        }
        if write {
            if cell.write != 0 && !clock.covers(Stamp(cell.write)) {
                return Err(Conflict { earlier: Stamp(cell.write), wrote: true });
            }
            if cell.reads != 0 {
                if cell.reads & SET != 0 {
                    self.sets.check(cell.reads, clock)?;
                    self.sets.release(cell.reads);
                } else if !clock.covers(Stamp(cell.reads)) {
                    return Err(Conflict { earlier: Stamp(cell.reads), wrote: false });
                }
            }
            // Whoever comes after this write comes after the reads before it.
            *cell = Cell { write: by.0, reads: 0 };
        } else if cell.reads != by.0 {
            if cell.write != 0 && !clock.covers(Stamp(cell.write)) {
                return Err(Conflict { earlier: Stamp(cell.write), wrote: true });
            }
            if cell.reads == 0 || (cell.reads & SET == 0 && clock.covers(Stamp(cell.reads))) {
                cell.reads = by.0;
            } else {
                cell.reads = self.sets.add(cell.reads, by, clock);
            }
        }
        Ok(())
    }

    /// Whether all accesses to one granule so far come before a clock.
    pub fn check(&self, granule: usize, clock: &Clock) -> Result<(), Conflict> {
        debug_assert!(granule * size_of::<Cell>() < self.cells.length);
        // SAFETY: as in `touch`.
        let cell = unsafe { *(self.cells.base as *const Cell).add(granule) };
        if cell.write != 0 && !clock.covers(Stamp(cell.write)) {
            return Err(Conflict { earlier: Stamp(cell.write), wrote: true });
        }
        if cell.reads & SET != 0 {
            return self.sets.check(cell.reads, clock);
        }
        match cell.reads == 0 || clock.covers(Stamp(cell.reads)) {
            true => Ok(()),
            false => Err(Conflict { earlier: Stamp(cell.reads), wrote: false }),
        }
    }

    /// Forgets the cells of memory that is freed.
    pub fn forget(&mut self, first_granule: usize, granules: usize) {
        let start = self.cells.base + first_granule * size_of::<Cell>();
        if self.sets.live > 0 {
            for i in 0..granules {
                // SAFETY: as in `touch`; the callers pass the granules of one allocation.
                let reads = unsafe { (*(start as *const Cell).add(i)).reads };
                if reads & SET != 0 {
                    self.sets.release(reads);
                }
            }
        }
        // Whole pages: each allocation has pages of its own, so the cells beside it belong to no other.
        self.cells.discard(start, granules * size_of::<Cell>());
    }
}

/// Readers of one granule that nothing orders with one another. Granules read by the same work share a set.
struct ReadSets {
    sets: Vec<ReadSet>,
    unused: Vec<u32>,
    live: usize,
    /// Recent results of `add`: what was there, who read, what came of it. Most granules of a row change alike.
    recent: [(u32, u32, u32); 16],
}

#[derive(Default)]
struct ReadSet {
    readers: Vec<Stamp>,
    /// How many cells hold it.
    cells: u32,
}

impl ReadSets {
    const fn new() -> Self {
        Self { sets: Vec::new(), unused: Vec::new(), live: 0, recent: [(0, 0, 0); 16] }
    }

    /// What a cell with `old` holds after one more read.
    fn add(&mut self, old: u32, by: Stamp, clock: &Clock) -> u32 {
        if old & SET != 0 && self.sets[(old & !SET) as usize].readers.contains(&by) {
            return old;
        }
        let place = (old as usize ^ (old >> 6) as usize) % self.recent.len();
        let (known_old, known_by, known_new) = self.recent[place];
        let new = if (known_old, known_by) == (old, by.0) {
            if known_new & SET != 0 {
                self.sets[(known_new & !SET) as usize].cells += 1;
            }
            known_new
        } else {
            let single = [Stamp(old)];
            let before = if old & SET != 0 { &self.sets[(old & !SET) as usize].readers[..] } else { &single[..] };
            // A read that comes before this one is covered by it: a write after this one is after both.
            let mut readers: Vec<Stamp> = before.iter().copied().filter(|&stamp| !clock.covers(stamp)).collect();
            readers.push(by);
            let new = if readers.len() == 1 { by.0 } else { self.insert(readers) };
            self.recent[place] = (old, by.0, new);
            new
        };
        if old & SET != 0 {
            self.release(old);
        }
        new
    }

    fn insert(&mut self, readers: Vec<Stamp>) -> u32 {
        self.live += 1;
        let set = ReadSet { readers, cells: 1 };
        if let Some(number) = self.unused.pop() {
            self.sets[number as usize] = set;
            return number | SET;
        }
        self.sets.push(set);
        (self.sets.len() - 1) as u32 | SET
    }

    fn release(&mut self, number: u32) {
        let set = &mut self.sets[(number & !SET) as usize];
        set.cells -= 1;
        if set.cells == 0 {
            set.readers = Vec::new();
            self.live -= 1;
            self.unused.push(number & !SET);
            // The number may come back with other readers.
            self.recent
                .iter_mut()
                .filter(|seen| seen.0 == number || seen.2 == number)
                .for_each(|seen| *seen = (0, 0, 0));
        }
    }

    fn check(&self, number: u32, clock: &Clock) -> Result<(), Conflict> {
        let readers = &self.sets[(number & !SET) as usize].readers;
        match readers.iter().find(|&&stamp| !clock.covers(stamp)) {
            Some(&earlier) => Err(Conflict { earlier, wrote: false }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::STREAMS;
    use crate::random::Random;

    /// All accesses to one granule, each compared with each: slow, and plainly right.
    #[derive(Default)]
    struct Model(Vec<(Stamp, bool)>);

    impl Model {
        fn touch(&mut self, by: Stamp, clock: &Clock, write: bool) -> bool {
            let race = self.0.iter().any(|&(earlier, wrote)| (write || wrote) && !clock.covers(earlier));
            self.0.push((by, write));
            race
        }
    }

    /// Random work on random streams with random waits in between, up to the first race.
    fn compare(seed: u64) -> bool {
        const GRANULES: u32 = 4;
        let mut random = Random::new(seed);
        let streams = 2 + random.below(6);
        let mut shadow = Shadow::new(4096);
        let mut model: [Model; GRANULES as usize] = Default::default();
        let mut clocks = vec![Clock::new(); STREAMS];
        for _ in 0..200 {
            let slot = random.below(streams) as usize;
            // Mostly ordered, or every run would end at its second step.
            for other in 0..streams as usize {
                if random.below(100) < 97 {
                    let before = clocks[other].clone();
                    clocks[slot].join(&before);
                }
            }
            let epoch = clocks[slot].get(slot) + 1;
            clocks[slot].set(slot, epoch);
            let by = Stamp::new(slot, epoch).unwrap();
            for _ in 0..1 + random.below(4) {
                let (granule, write) = (random.below(GRANULES) as usize, random.below(4) == 0);
                let found = shadow.touch(granule, by, &clocks[slot], write).is_err();
                assert_eq!(found, model[granule].touch(by, &clocks[slot], write), "seed {seed}");
                if found {
                    return true;
                }
            }
        }
        shadow.forget(0, GRANULES as usize);
        assert_eq!(shadow.sets.live, 0, "sets of readers are left over with seed {seed}");
        false
    }

    #[test]
    fn races_are_found_exactly() {
        let races = (0..3000).filter(|&seed| compare(seed)).count();
        assert!((500..2800).contains(&races), "{races} of 3000 runs raced: too many or too few to mean anything");
    }
}
