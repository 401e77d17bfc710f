//! Which rows are in the cache, how recent or frequent they are, and which are dirty
//! (docs/NUMERICS.md, section 6).
//!
//! Set-associative: a row can sit in any way of one set. A slot is `set * ways + way`. Eight bytes per slot:
//! `lru` has a tag and a stamp of four bytes each; `lfu` a tag of four, a count of two, and two of sketch.
//! Hot path: no allocation, no hashing of keys (the caller passes the hash it has).

use super::image::{COUNT_SHIFT, DIRTY, DirectoryImage, Ranks};
use crate::memory::{Mapping, Region};
use crate::numeric::format::names;
use crate::numeric::{hash, simd};

/// Ways per set, where a partition's budget is not smaller.
const WAYS: u32 = 32;
/// From this many rows on, all sets have all ways: what does not fill a set is left, and a set is two cache lines.
const WHOLE_SETS: u32 = 256;

/// Sets, and ways in each, of a cache of at most `rows` rows.
pub(super) fn geometry(rows: u32) -> (u32, u32) {
    if rows >= WHOLE_SETS {
        return (rows / WAYS, WAYS);
    }
    let sets = rows.div_ceil(WAYS);
    (sets, rows.checked_div(sets).unwrap_or(0))
}

/// Which row gives way to a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The one pushed longest ago.
    Lru,
    /// The one pushed least often of late, and only if the new one is pushed more often.
    Lfu,
}

names!(Policy, "policy", Lru = "lru", Lfu = "lfu");

/// The directory of one table's cache in one partition.
pub struct Directory {
    sets: u32,
    ways: u32,
    /// `u32`s: the number of the row in a slot plus one; zero is an empty way. A set of 32 ways is two cache lines.
    tags: Region,
    /// `u64`s: a bit for each row of a dense part, whether it is in the cache. Pulls look here first, and spare themselves the sets of rows that
    /// are not.
    cached: Region,
    occupied: u32,
    ranks: Ranks,
}

/// What a lookup reads of a directory.
#[derive(Clone, Copy, Default)]
pub struct Tags<'a> {
    tags: &'a [u32],
    sets: u32,
    ways: u32,
}

impl<'a> Tags<'a> {
    /// The first slot of the set of a key with this hash.
    #[inline(always)]
    pub fn set(self, hash: u64) -> u32 {
        let set = ((hash & 0xffff_ffff) * u64::from(self.sets)) >> 32;
        set as u32 * self.ways
    }

    /// The tags of a set, whose memory is asked for.
    #[inline(always)]
    pub fn approach(self, set: u32) -> &'a [u32] {
        let tags = &self.tags[set as usize..][..self.ways as usize];
        simd::prefetch(tags.as_ptr());
        simd::prefetch(tags.as_ptr().wrapping_add(tags.len()).wrapping_sub(1));
        tags
    }
}

/// A bit for the way of a set that holds a row, if one does.
#[inline(always)]
pub fn ways_with(level: simd::Level, tags: &[u32], row: u32) -> u32 {
    simd::matches(level, tags, row + 1)
}

/// What became of a row that was not in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is now in `slot`, which was empty.
    Free {
        /// Where it is.
        slot: u32,
    },
    /// It is now in `slot`, and `row` is not any more.
    Evicted {
        /// Where it is.
        slot: u32,
        /// The row that was there.
        row: u32,
        /// Whether that row must be written back.
        dirty: bool,
    },
    /// It is not in the cache.
    Conflict,
}

/// The lru clock starts over before it reaches this; stamps have 31 bits.
const CLOCK_END: u32 = (1 << 31) - 1;
const CLOCK_STEP_BACK: u32 = 1 << 30;

const COUNT_IN_USE: u16 = 2;
const COUNT_MAX: u16 = (1 << 14) - 1;
const SKETCH_MAX: u8 = 15;
/// Uses per slot after which frequencies are halved. Beyond this a row that is in for its past counts more than the sketch can
/// count for one that wants in, and the cache follows a change of the traffic too slowly.
const DECAY_AFTER: u64 = 32;

impl Directory {
    /// An empty directory for at most `rows` rows of the `all` that a dense part has; for a hashed one that is 0. What pulls read of it is in
    /// `memory`, which has [`Directory::mapped`] bytes left for it.
    pub fn new(policy: Policy, rows: u32, all: u64, memory: &mut Mapping) -> Directory {
        let (sets, ways) = geometry(rows);
        let slots = sets as usize * ways as usize;
        let ranks = match policy {
            Policy::Lru => Ranks::Lru { clock: 0, stamps: vec![0; slots] },
            Policy::Lfu => Ranks::Lfu { uses: 0, counts: vec![0; slots], sketch: vec![0; 2 * slots] },
        };
        let [tags, cached] =
            Directory::lens(rows, all).map(|len| memory.take(len).expect("memory was mapped for the directory"));
        Directory { sets, ways, tags, cached, occupied: 0, ranks }
    }

    /// Bytes of the memory that [`Directory::new`] takes.
    pub fn mapped(rows: u32, all: u64) -> usize {
        Directory::lens(rows, all).map(|len| Mapping::len_for(1, len)).iter().sum()
    }

    /// Bytes of tags, and of bits.
    fn lens(rows: u32, all: u64) -> [usize; 2] {
        [size_of::<u32>() * Directory::slots_for(rows) as usize, size_of::<u64>() * all.div_ceil(64) as usize]
    }

    /// Bytes of directory per slot.
    pub const BYTES_PER_SLOT: u64 = 8;

    /// How many slots a budget of `rows` rows gives.
    pub fn slots_for(rows: u32) -> u32 {
        let (sets, ways) = geometry(rows);
        sets * ways
    }

    /// How many slots there are.
    pub fn slots(&self) -> u32 {
        self.sets * self.ways
    }

    /// How many slots hold a row.
    pub fn occupied(&self) -> u32 {
        self.occupied
    }

    /// The row in a slot.
    pub fn row_at(&self, slot: u32) -> Option<u32> {
        self.tags().tags[slot as usize].checked_sub(1)
    }

    /// A bit for each row of a dense part, whether it is in the cache; nothing where there is no cache.
    pub fn cached(&self) -> &[u64] {
        bytemuck::cast_slice(&self.cached)
    }

    #[inline(always)]
    fn flip(&mut self, row: u32) {
        if let Some(word) = bytemuck::cast_slice_mut::<u8, u64>(&mut self.cached).get_mut((row / 64) as usize) {
            *word ^= 1 << (row % 64);
        }
    }

    /// What a lookup reads.
    #[inline(always)]
    pub fn tags(&self) -> Tags<'_> {
        Tags { tags: bytemuck::cast_slice(&self.tags), sets: self.sets, ways: self.ways }
    }

    /// Asks for the memory of the sets of keys with these hashes.
    #[inline(always)]
    pub fn approach(&self, hashes: &[u64]) {
        let tags = self.tags();
        // Asking for memory that is not mapped would have the page tables searched in vain.
        for &hash in hashes.iter().filter(|_| self.sets > 0) {
            let set = tags.set(hash);
            tags.approach(set);
            self.ranks.prefetch(set, self.ways);
        }
    }

    /// The slot of a row. Changes nothing.
    #[inline(always)]
    pub fn find(&self, row: u32, hash: u64) -> Option<u32> {
        let tags = self.tags();
        let set = tags.set(hash);
        let found = ways_with(simd::level(), &tags.tags[set as usize..][..tags.ways as usize], row);
        (found != 0).then(|| set + found.trailing_zeros())
    }

    /// Starts a push or touch of at least one row.
    pub fn begin(&mut self) {
        if let Ranks::Lru { clock, stamps } = &mut self.ranks {
            if *clock == CLOCK_END {
                // Empty ways have the stamp 0.
                for stamp in stamps {
                    if *stamp != 0 {
                        let time = (*stamp >> 1).saturating_sub(CLOCK_STEP_BACK).max(1);
                        *stamp = time << 1 | *stamp & DIRTY;
                    }
                }
                *clock = CLOCK_STEP_BACK - 1;
            }
            *clock += 1;
        }
    }

    /// Counts a use of the row in `slot`, which is then in use until [`Directory::end`].
    #[inline(always)]
    pub fn hit(&mut self, slot: u32) {
        let slot = slot as usize;
        match &mut self.ranks {
            Ranks::Lru { clock, stamps } => stamps[slot] = *clock << 1 | stamps[slot] & DIRTY,
            Ranks::Lfu { uses, counts, .. } => {
                *uses += 1;
                let count = counts[slot];
                let frequency = (count >> COUNT_SHIFT).saturating_add(1).min(COUNT_MAX);
                counts[slot] = frequency << COUNT_SHIFT | COUNT_IN_USE | count & DIRTY as u16;
            }
        }
    }

    /// Finds a way for a row that is not in the cache. Rows in use are never evicted. `hash_of` gives the hash
    /// of the key of a row that is in the cache.
    #[inline(always)]
    pub fn admit(&mut self, row: u32, hash: u64, hash_of: impl Fn(u32) -> u64) -> Admission {
        if self.sets == 0 {
            return Admission::Conflict;
        }
        let first = self.tags().set(hash) as usize;
        let set = first..first + self.ways as usize;
        let tags = &mut bytemuck::cast_slice_mut::<u8, u32>(&mut self.tags)[set.clone()];
        let empty = simd::matches(simd::level(), tags, 0);
        let empty = (empty != 0).then(|| empty.trailing_zeros() as usize);
        let way = match &mut self.ranks {
            Ranks::Lru { clock, stamps } => {
                let stamps = &mut stamps[set];
                let now = *clock;
                let way = match empty {
                    Some(way) => way,
                    None => {
                        let mut oldest = u32::MAX;
                        for &stamp in &*stamps {
                            oldest = oldest.min(stamp >> 1);
                        }
                        match first_where(stamps, |stamp| stamp >> 1 == oldest) {
                            Some(way) if oldest != now => way,
                            _ => return Admission::Conflict,
                        }
                    }
                };
                let dirty = stamps[way] & DIRTY != 0;
                stamps[way] = now << 1;
                (way, dirty)
            }
            Ranks::Lfu { uses, counts, sketch } => {
                *uses += 1;
                let mut sketch = Sketch { nibbles: &mut sketch[2 * set.start..2 * set.end] };
                let estimate = sketch.count(hash);
                let counts = &mut counts[set.clone()];
                let way = match empty {
                    Some(way) => way,
                    None => {
                        // A row in use ranks above all estimates.
                        let rank = |count: u16| if count & COUNT_IN_USE != 0 { u16::MAX } else { count >> COUNT_SHIFT };
                        let mut rarest = u16::MAX;
                        for &count in &*counts {
                            rarest = rarest.min(rank(count));
                        }
                        match counts.iter().position(|&count| rank(count) == rarest) {
                            Some(way) if rarest < estimate => way,
                            _ => return Admission::Conflict,
                        }
                    }
                };
                if empty.is_none() {
                    let leaving = hash_of(tags[way] - 1);
                    sketch.raise(leaving, counts[way] >> COUNT_SHIFT);
                }
                let dirty = counts[way] & DIRTY as u16 != 0;
                counts[way] = estimate << COUNT_SHIFT | COUNT_IN_USE;
                (way, dirty)
            }
        };
        let (way, dirty) = way;
        let slot = first + way;
        let before = std::mem::replace(&mut tags[way], row + 1);
        self.flip(row);
        match before.checked_sub(1) {
            None => {
                self.occupied += 1;
                Admission::Free { slot: slot as u32 }
            }
            Some(row) => {
                self.flip(row);
                Admission::Evicted { slot: slot as u32, row, dirty }
            }
        }
    }

    /// Ends a push or touch; `used` are the slots that it hit or admitted to.
    pub fn end(&mut self, used: impl Iterator<Item = u32>) {
        if let Ranks::Lfu { uses, counts, sketch } = &mut self.ranks {
            for slot in used {
                counts[slot as usize] &= !COUNT_IN_USE;
            }
            if *uses >= DECAY_AFTER * counts.len() as u64 {
                *uses = 0;
                for count in counts {
                    *count = (*count >> COUNT_SHIFT >> 1) << COUNT_SHIFT | *count & DIRTY as u16;
                }
                for pair in sketch {
                    *pair = *pair >> 1 & 0x77;
                }
            }
        }
    }

    /// Notes that the row in `slot` differs from the row store.
    #[inline(always)]
    pub fn set_dirty(&mut self, slot: u32) {
        match &mut self.ranks {
            Ranks::Lru { stamps, .. } => stamps[slot as usize] |= DIRTY,
            Ranks::Lfu { counts, .. } => counts[slot as usize] |= DIRTY as u16,
        }
    }

    /// Whether the row in `slot` differs from the row store.
    pub fn is_dirty(&self, slot: u32) -> bool {
        self.ranks.is_dirty(slot)
    }

    /// A copy of everything.
    pub fn image(&self) -> DirectoryImage {
        let tags = self.tags().tags.to_vec();
        DirectoryImage { sets: self.sets, ways: self.ways, tags, ranks: self.ranks.clone() }
    }

    /// Takes over the rows of an image into a directory without rows. Returns the slot that each slot of the image went
    /// to; `None` for an empty one, and for a row that has no way here. Of the same geometry it becomes the same
    /// directory; of another, each set keeps the rows of the highest rank (of equal ones the first), and `lfu` starts
    /// its sketch anew. `hash_of` gives the hash of a row's key.
    pub fn restore(&mut self, image: DirectoryImage, hash_of: impl Fn(u32) -> u64) -> Vec<Option<u32>> {
        let slots = image.sets * image.ways;
        let same_policy = std::mem::discriminant(&self.ranks) == std::mem::discriminant(&image.ranks);
        if same_policy && (self.sets, self.ways) == (image.sets, image.ways) {
            let tags = bytemuck::cast_slice_mut::<u8, u32>(&mut self.tags);
            tags[..image.tags.len()].copy_from_slice(&image.tags);
            self.occupied = image.tags.iter().filter(|&&tag| tag != 0).count() as u32;
            let kept = (0..slots).map(|slot| image.row_at(slot).map(|_| slot)).collect();
            self.ranks = image.ranks;
            image.tags.iter().filter_map(|tag| tag.checked_sub(1)).for_each(|row| self.flip(row));
            return kept;
        }
        match (&mut self.ranks, &image.ranks) {
            (Ranks::Lru { clock, .. }, Ranks::Lru { clock: then, .. }) => *clock = *then,
            (Ranks::Lru { clock, .. }, Ranks::Lfu { .. }) => *clock = u32::from(COUNT_MAX),
            _ => {}
        }
        let mut order: Vec<u32> = (0..slots).filter(|&slot| image.row_at(slot).is_some()).collect();
        order.sort_by_key(|&slot| std::cmp::Reverse(image.ranks.rank(slot)));
        let mut went = vec![None; slots as usize];
        for slot in order {
            let Some(row) = image.row_at(slot) else { continue };
            let first = self.tags().set(hash_of(row)) as usize;
            let set = first..first + self.ways as usize;
            let tags = &mut bytemuck::cast_slice_mut::<u8, u32>(&mut self.tags)[set];
            let Some(way) = tags.iter().position(|&tag| tag == 0) else { continue };
            tags[way] = row + 1;
            self.flip(row);
            self.occupied += 1;
            let (rank, dirty) = (image.ranks.rank(slot), u32::from(image.is_dirty(slot)));
            match &mut self.ranks {
                Ranks::Lru { stamps, .. } => stamps[first + way] = rank.max(1) << 1 | dirty,
                Ranks::Lfu { counts, .. } => {
                    let count = rank.min(u32::from(COUNT_MAX)) as u16;
                    counts[first + way] = count << COUNT_SHIFT | dirty as u16;
                }
            }
            went[slot as usize] = Some((first + way) as u32);
        }
        went
    }

    /// Empties a slot that holds a row.
    pub fn clear(&mut self, slot: u32) {
        self.occupied -= 1;
        if let Some(row) = self.row_at(slot) {
            self.flip(row);
        }
        let slot = slot as usize;
        bytemuck::cast_slice_mut::<u8, u32>(&mut self.tags)[slot] = 0;
        match &mut self.ranks {
            Ranks::Lru { stamps, .. } => stamps[slot] = 0,
            Ranks::Lfu { counts, .. } => counts[slot] = 0,
        }
    }

    /// Feeds everything that decides future behaviour to `write`, for comparing copies.
    pub fn digest(&self, mut write: impl FnMut(&[u8])) {
        write(bytemuck::cast_slice(self.tags().tags));
        match &self.ranks {
            Ranks::Lru { clock, stamps } => {
                write(&clock.to_le_bytes());
                write(bytemuck::cast_slice(stamps));
            }
            Ranks::Lfu { uses, counts, sketch } => {
                write(&uses.to_le_bytes());
                write(bytemuck::cast_slice(counts));
                write(sketch);
            }
        }
    }
}

/// The four-bit counters of one set, two to a byte, four to a way.
struct Sketch<'a> {
    nibbles: &'a mut [u8],
}

impl Sketch<'_> {
    #[inline(always)]
    fn counters_of(&self, hash: u64) -> [usize; 2] {
        let g = hash::second(hash);
        let n = 2 * self.nibbles.len() as u64;
        [(((g >> 48) * n) >> 16) as usize, (((g >> 32 & 0xffff) * n) >> 16) as usize]
    }

    #[inline(always)]
    fn get(&self, counter: usize) -> u8 {
        self.nibbles[counter / 2] >> (4 * (counter % 2)) & 15
    }

    #[inline(always)]
    fn set(&mut self, counter: usize, value: u8) {
        let shift = 4 * (counter % 2);
        let byte = &mut self.nibbles[counter / 2];
        *byte = *byte & !(15 << shift) | value << shift;
    }

    /// Counts a use, and returns the estimate that includes it.
    #[inline(always)]
    fn count(&mut self, hash: u64) -> u16 {
        let counters = self.counters_of(hash);
        let estimate = (counters.map(|c| self.get(c)).into_iter().fold(SKETCH_MAX, u8::min) + 1).min(SKETCH_MAX);
        self.raise_counters(counters, estimate);
        u16::from(estimate)
    }

    #[inline(always)]
    fn raise(&mut self, hash: u64, frequency: u16) {
        self.raise_counters(self.counters_of(hash), frequency.min(u16::from(SKETCH_MAX)) as u8);
    }

    #[inline(always)]
    fn raise_counters(&mut self, counters: [usize; 2], least: u8) {
        for counter in counters {
            if self.get(counter) < least {
                self.set(counter, least);
            }
        }
    }
}

/// The index of the first element that `is` picks. Without an early exit, so that it vectorises.
#[inline(always)]
fn first_where(elements: &[u32], is: impl Fn(u32) -> bool) -> Option<usize> {
    const LANES: usize = 8;
    let Some(last) = elements.last_chunk::<LANES>() else { return elements.iter().position(|&element| is(element)) };
    let mut first = [u32::MAX; LANES];
    let mut look = |chunk: &[u32; LANES], start: usize| {
        for lane in 0..LANES {
            let index = if is(chunk[lane]) { (start + lane) as u32 } else { u32::MAX };
            first[lane] = first[lane].min(index);
        }
    };
    for (i, chunk) in elements.as_chunks::<LANES>().0.iter().enumerate() {
        look(chunk, LANES * i);
    }
    // What is left over, together with elements that were already seen.
    look(last, elements.len() - LANES);
    let first = first.into_iter().fold(u32::MAX, u32::min);
    (first != u32::MAX).then_some(first as usize)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::numeric::hash::mix64;

    /// Rows below this have a bit.
    const ALL: u64 = 8192;

    fn empty(policy: Policy, rows: u32) -> Directory {
        let mut memory = Mapping::new(Directory::mapped(rows, ALL)).unwrap();
        Directory::new(policy, rows, ALL, &mut memory)
    }

    fn touch(directory: &mut Directory, rows: &[u32]) -> Vec<Admission> {
        let hash_of = |row: u32| mix64(u64::from(row));
        directory.begin();
        let mut used = Vec::new();
        let mut missing = Vec::new();
        for &row in rows {
            match directory.find(row, hash_of(row)) {
                Some(slot) => {
                    directory.hit(slot);
                    used.push(slot);
                }
                None => missing.push(row),
            }
        }
        let mut admissions = Vec::new();
        for row in missing {
            let admission = directory.admit(row, hash_of(row), hash_of);
            match admission {
                Admission::Free { slot } | Admission::Evicted { slot, .. } => used.push(slot),
                Admission::Conflict => {}
            }
            admissions.push(admission);
        }
        directory.end(used.into_iter());
        admissions
    }

    #[test]
    fn the_budget_is_used_almost_whole_and_never_exceeded() {
        for rows in 0..2000 {
            let slots = Directory::slots_for(rows);
            assert_eq!(empty(Policy::Lru, rows).slots(), slots);
            let left = if rows >= WHOLE_SETS { WAYS } else { rows.div_ceil(WAYS).max(1) };
            assert!(slots <= rows && rows - slots < left, "{rows}: {slots}");
        }
    }

    #[test]
    fn lru_evicts_the_oldest_and_never_what_is_in_use() {
        let mut directory = empty(Policy::Lru, 4);
        touch(&mut directory, &[1, 2, 3, 4]);
        touch(&mut directory, &[1, 3]);
        let admissions = touch(&mut directory, &[5, 4]);
        assert!(matches!(admissions[..], [Admission::Evicted { row: 2, dirty: false, .. }]), "{admissions:?}");
        let admissions = touch(&mut directory, &[6, 7, 8, 9, 10]);
        assert_eq!(admissions.iter().filter(|a| **a == Admission::Conflict).count(), 1, "{admissions:?}");
    }

    #[test]
    fn lru_survives_the_end_of_its_clock() {
        let mut directory = empty(Policy::Lru, 3);
        touch(&mut directory, &[1]);
        let Ranks::Lru { clock, .. } = &mut directory.ranks else { unreachable!() };
        *clock = CLOCK_END - 2;
        touch(&mut directory, &[2]);
        directory.set_dirty(directory.find(2, mix64(2)).unwrap());
        touch(&mut directory, &[3]);
        touch(&mut directory, &[1]);
        let Ranks::Lru { clock, .. } = &directory.ranks else { unreachable!() };
        assert_eq!(*clock, CLOCK_STEP_BACK);
        let admissions = touch(&mut directory, &[4]);
        assert!(matches!(admissions[..], [Admission::Evicted { row: 2, dirty: true, .. }]), "{admissions:?}");
    }

    #[test]
    fn lfu_keeps_what_is_frequent_against_a_scan() {
        let mut directory = empty(Policy::Lfu, 32);
        let hot: Vec<u32> = (0..16).collect();
        for round in 0..40u32 {
            touch(&mut directory, &hot);
            let scan: Vec<u32> = (0..64).map(|i| 1000 + round * 64 + i).collect();
            touch(&mut directory, &scan);
        }
        assert!(hot.iter().all(|&row| directory.find(row, mix64(u64::from(row))).is_some()));
    }

    #[test]
    fn eight_bytes_per_slot() {
        for policy in [Policy::Lru, Policy::Lfu] {
            let mut bytes = 0;
            let directory = empty(policy, 390);
            directory.digest(|part| bytes += part.len());
            let fixed = bytes as u64 - Directory::BYTES_PER_SLOT * u64::from(directory.slots());
            assert!(fixed <= 8, "{policy}: {fixed} bytes beside the slots");
        }
    }

    /// Whatever becomes of rows, the bits say of each what the tags say.
    #[test]
    fn bits_say_which_rows_are_cached() {
        let hash_of = |row: u32| mix64(u64::from(row));
        let check = |directory: &Directory| {
            let mut expected = vec![0; directory.cached().len()];
            for row in (0..directory.slots()).filter_map(|slot| directory.row_at(slot)) {
                expected[row as usize / 64] |= 1u64 << (row % 64);
            }
            assert!(expected.iter().any(|&word| word != 0) && directory.cached() == expected);
        };
        for policy in [Policy::Lru, Policy::Lfu] {
            let mut directory = empty(policy, 300);
            for round in 0..200u32 {
                let rows: BTreeSet<u32> = (0..50).map(|i| (round * 131 + i * i * 7) % (500 + 30 * round)).collect();
                touch(&mut directory, &Vec::from_iter(rows));
                if let Some(slot) = directory.find(round * 131 % 500, hash_of(round * 131 % 500)) {
                    directory.clear(slot);
                }
                check(&directory);
            }
            // Into the same geometry, a smaller one and another policy.
            for (policy, rows) in [(policy, 300), (policy, 90), (Policy::Lru, 500), (Policy::Lfu, 500)] {
                let mut other = empty(policy, rows);
                other.restore(directory.image(), hash_of);
                check(&other);
            }
        }
    }
}
