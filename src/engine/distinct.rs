//! The distinct keys of a group, in order of first appearance, and which gradients belong to each.
//!
//! Hot path: no allocation once the buffers have grown.

use crate::numeric::hash;
use crate::numeric::simd::dispatch;

/// The distinct keys of a group.
#[derive(Default)]
pub struct Distinct {
    /// The keys, in order of first appearance.
    pub keys: Vec<u64>,
    /// Their [`hash::mix64`].
    pub mixed: Vec<u64>,
    /// How often each appears.
    pub times: Vec<u32>,
    /// For each position of the group, which distinct key it is.
    pub which: Vec<u32>,
    /// An open hash table of indices into `keys`, plus one.
    buckets: Vec<u32>,
    /// Where each key's group starts, while groups are made.
    starts: Vec<u32>,
    /// Which key fell last in each of the places that keys fall in.
    last: Vec<u32>,
    /// Which keys were not the last in their place.
    beaten: Vec<u32>,
}

/// Keys that tell whether it is worth to look at all of them.
const FIRST: usize = 256;
/// The golden ratio: the upper bits of a product with it spread whatever keys people have.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Places that keys fall in: four for each, so that few share one.
#[derive(Clone, Copy)]
struct Places {
    count: usize,
    shift: u32,
}

impl Places {
    fn of(keys: usize) -> Places {
        let count = (4 * keys).next_power_of_two().max(2);
        Places { count, shift: 64 - count.trailing_zeros() }
    }

    #[inline(always)]
    fn of_key(self, key: u64) -> usize {
        (key.wrapping_mul(SPREAD) >> self.shift) as usize & (self.count - 1)
    }
}

dispatch! {
    /// Finds which key is the last in each place, and which keys are not: so many of `beaten`. Nothing branches on who is.
    fn fall(places: Places, keys: &[u64], last: &mut [u32], beaten: &mut [u32]) -> usize {
        let last = &mut last[..places.count];
        // What is there from other keys is not read: every place that is asked for is written to before.
        for (i, &key) in (0..).zip(keys) {
            last[places.of_key(key)] = i;
        }
        let mut count = 0;
        for (i, &key) in (0..).zip(keys) {
            // Written over by the next unless it counts.
            beaten[count] = i;
            count += usize::from(last[places.of_key(key)] != i);
        }
        count
    }
}

impl Distinct {
    /// Finds the distinct keys among `keys[positions[..]]`, with their hashes and how often each appears.
    #[inline(always)]
    pub fn fill(&mut self, keys: &[u64], positions: &[u32]) {
        self.find(positions.iter().map(|&position| keys[position as usize]));
        self.mixed.clear();
        self.mixed.extend(self.keys.iter().map(|&key| hash::mix64(key)));
        self.times.clear();
        if self.keys.len() == positions.len() {
            self.times.resize(positions.len(), 1);
        } else {
            self.times.resize(self.keys.len(), 0);
            self.which.iter().for_each(|&which| self.times[which as usize] += 1);
        }
    }

    /// Whether no key is there twice: half the work of [`Distinct::find`] where that is so. What was found before is forgotten.
    pub fn none_repeats(&mut self, keys: &[u64]) -> bool {
        // Where keys repeat, some of the first do, and the others need not be looked at.
        self.none_repeat_of(&keys[..keys.len().min(FIRST)]) && (keys.len() <= FIRST || self.none_repeat_of(keys))
    }

    /// Keys fall in places, and each place knows the last. A key that is there twice meets itself there, or both times another key: so
    /// only those need be looked up that are not the last in their place.
    fn none_repeat_of(&mut self, keys: &[u64]) -> bool {
        let places = Places::of(keys.len());
        self.last.resize(self.last.len().max(places.count), 0);
        let mut beaten = std::mem::take(&mut self.beaten);
        beaten.resize(beaten.len().max(keys.len()), 0);
        let count = fall(places, keys, &mut self.last, &mut beaten);
        let keys_beaten = || beaten[..count].iter().map(|&i| keys[i as usize]);
        let met = |key: u64| keys[self.last[places.of_key(key)] as usize] == key;
        let none = !keys_beaten().any(met) && {
            self.find(keys_beaten());
            self.len() == count
        };
        self.beaten = beaten;
        none
    }

    /// Finds the distinct keys, and which of them each key is; nothing else.
    #[inline(always)]
    pub fn find(&mut self, keys: impl ExactSizeIterator<Item = u64>) {
        // Most buckets stay free, so that the first look nearly always tells whether a key is new.
        let buckets = (4 * keys.len()).next_power_of_two().max(2);
        let shift = 64 - buckets.trailing_zeros();
        self.buckets.clear();
        self.buckets.resize(buckets, 0);
        self.keys.resize(keys.len(), 0);
        self.which.resize(keys.len(), 0);
        let mut count = 0;
        for (key, which) in keys.zip(&mut self.which) {
            let mut bucket = (key.wrapping_mul(SPREAD) >> shift) as usize & (buckets - 1);
            *which = loop {
                match self.buckets[bucket] {
                    0 => {
                        self.keys[count] = key;
                        count += 1;
                        self.buckets[bucket] = count as u32;
                        break count as u32 - 1;
                    }
                    found if self.keys[found as usize - 1] == key => break found - 1,
                    _ => bucket = (bucket + 1) & (buckets - 1),
                }
            };
        }
        self.keys.truncate(count);
    }

    /// How many distinct keys there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// For the distinct keys that `included` picks: which positions belong to each, grouped (`picked`), and where
    /// each group ends (`ends`).
    #[inline(always)]
    pub fn group(
        &mut self,
        positions: &[u32],
        included: impl Fn(usize) -> bool,
        picked: &mut Vec<u32>,
        ends: &mut Vec<u32>,
    ) {
        picked.clear();
        ends.clear();
        if self.keys.len() == positions.len() {
            for (i, &position) in positions.iter().enumerate() {
                if included(i) {
                    picked.push(position);
                    ends.push(picked.len() as u32);
                }
            }
            return;
        }
        let starts = &mut self.starts;
        starts.clear();
        let mut total = 0;
        for (i, &times) in self.times.iter().enumerate() {
            starts.push(total);
            if included(i) {
                total += times;
                ends.push(total);
            }
        }
        picked.resize(total as usize, 0);
        for (&which, &position) in self.which.iter().zip(positions) {
            if included(which as usize) {
                picked[starts[which as usize] as usize] = position;
                starts[which as usize] += 1;
            }
        }
    }

    /// The last position of each distinct key, in order of position.
    pub fn last_positions(&self, positions: &[u32]) -> Vec<u32> {
        let mut seen = vec![false; self.keys.len()];
        let mut last: Vec<u32> = Vec::with_capacity(self.keys.len());
        for (&which, &position) in self.which.iter().zip(positions).rev() {
            if !std::mem::replace(&mut seen[which as usize], true) {
                last.push(position);
            }
        }
        last.reverse();
        last
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few places and many, keys that share one and keys that do not; one buffer after the other.
        #[test]
        fn a_key_that_is_there_twice_is_found(
            mut keys in prop::collection::btree_set(prop_oneof![0u64..900, any::<u64>()], 0..900).prop_map(Vec::from_iter).prop_shuffle(),
            twice in prop::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>())),
        ) {
            let mut distinct = Distinct::default();
            prop_assert!(distinct.none_repeats(&keys));
            if let Some((which, to)) = twice.filter(|_| !keys.is_empty()) {
                keys.insert(to.index(keys.len() + 1), keys[which.index(keys.len())]);
                prop_assert!(!distinct.none_repeats(&keys));
            }
        }
    }

    #[test]
    fn keys_are_grouped_in_order_of_appearance() {
        let keys = [7, 9, 7, u64::MAX, 0, 9, 7];
        let positions = [0, 1, 2, 3, 4, 5, 6];
        let mut distinct = Distinct::default();
        distinct.fill(&keys, &positions);
        assert_eq!(distinct.keys, [7, 9, u64::MAX, 0]);
        assert_eq!(distinct.times, [3, 2, 1, 1]);
        let (mut picked, mut ends) = (Vec::new(), Vec::new());
        distinct.group(&positions, |i| i != 1, &mut picked, &mut ends);
        assert_eq!(picked, [0, 2, 6, 3, 4]);
        assert_eq!(ends, [3, 4, 5]);
        assert_eq!(distinct.last_positions(&positions), [3, 4, 5, 6]);
    }
}
