//! The distinct keys of a group, in order of first appearance, and which gradients belong to each.
//!
//! Hot path: no allocation once the buffers have grown.

use crate::numeric::hash;

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
    /// A bit for each place that keys fall in: whether one has, and whether a second has.
    taken: Vec<[u64; 2]>,
    /// Keys that share a place.
    crowded: Vec<u64>,
}

/// Keys that tell whether it is worth to look at all of them.
const FIRST: usize = 256;
/// The golden ratio: the upper bits of a product with it spread whatever keys people have.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

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

    /// Keys fall in places, which are bits and so few that they stay in the first-level cache; only those that share one are compared. Nothing
    /// branches on who does.
    fn none_repeat_of(&mut self, keys: &[u64]) -> bool {
        let places = (8 * keys.len()).next_power_of_two().max(64);
        let shift = 64 - places.trailing_zeros();
        self.taken.clear();
        self.taken.resize(places / 64, [0; 2]);
        let taken = self.taken.as_mut_slice();
        let words = taken.len();
        let place = |key: u64| {
            let place = (key.wrapping_mul(SPREAD) >> shift) as usize;
            ((place / 64) & (words - 1), 1 << (place % 64))
        };
        for &key in keys {
            let (word, bit) = place(key);
            let [once, twice] = &mut taken[word];
            *twice |= *once & bit;
            *once |= bit;
        }
        if self.crowded.len() < keys.len() {
            self.crowded.resize(keys.len(), 0);
        }
        let crowded = &mut self.crowded[..keys.len()];
        let mut count = 0;
        for &key in keys {
            let (word, bit) = place(key);
            // Written over by the next unless it counts.
            crowded[count] = key;
            count += usize::from(taken[word][1] & bit != 0);
        }
        let crowded = std::mem::take(&mut self.crowded);
        self.find(crowded[..count].iter().copied());
        self.crowded = crowded;
        self.len() == count
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
