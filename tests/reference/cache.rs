//! Section 6: the hot cache of one table in one partition. Finding and counting only: what is
//! written back, and with which number, is in model.rs.

use super::Policy;
use super::keys::{mix64, second_hash};
use super::optimizer::Row;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: u64,
    pub stamp: u64,
    pub frequency: u32,
    pub dirty: bool,
    pub row: Row,
}

#[derive(Clone, Debug)]
pub struct Set {
    pub ways: Vec<Option<Entry>>,
    /// The sketch of lfu.
    pub counters: Vec<u32>,
}

#[derive(Clone, Debug)]
pub struct Cache {
    policy: Policy,
    ways: u64,
    sets: Vec<Set>,
    clock: u64,
    uses: u64,
}

/// Cache rows of partition `p` of `partitions`.
pub fn rows_of_partition(cache_rows: u64, partitions: u64, p: u64) -> u64 {
    cache_rows / partitions + if p < cache_rows % partitions { 1 } else { 0 }
}

impl Cache {
    /// A cache of `c` rows in a partition; none if c is 0.
    pub fn new(policy: Policy, c: u64) -> Option<Cache> {
        if c == 0 {
            return None;
        }
        let (sets, ways) = if c < 256 { (c.div_ceil(32), c / c.div_ceil(32)) } else { (c / 32, 32) };
        let set = Set { ways: vec![None; ways as usize], counters: vec![0; 4 * ways as usize] };
        Some(Cache { policy, ways, sets: vec![set; sets as usize], clock: 0, uses: 0 })
    }

    fn set_of(&self, key: u64) -> usize {
        (((mix64(key) & 0xffff_ffff) * self.sets.len() as u64) >> 32) as usize
    }

    fn position(&self, key: u64) -> Option<(usize, usize)> {
        let s = self.set_of(key);
        for (w, way) in self.sets[s].ways.iter().enumerate() {
            if way.as_ref().is_some_and(|e| e.key == key) {
                return Some((s, w));
            }
        }
        None
    }

    pub fn get(&self, key: u64) -> Option<&Entry> {
        let (s, w) = self.position(key)?;
        self.sets[s].ways[w].as_ref()
    }

    pub fn get_mut(&mut self, key: u64) -> Option<&mut Entry> {
        let (s, w) = self.position(key)?;
        self.sets[s].ways[w].as_mut()
    }

    /// Empties the way of a key.
    pub fn remove(&mut self, key: u64) {
        if let Some((s, w)) = self.position(key) {
            self.sets[s].ways[w] = None;
        }
    }

    /// A push or touch of at least one key begins: the clock of lru.
    pub fn begin(&mut self) {
        if self.policy != Policy::Lru {
            return;
        }
        if self.clock == (1 << 31) - 1 {
            for set in &mut self.sets {
                for entry in set.ways.iter_mut().flatten() {
                    entry.stamp = entry.stamp.saturating_sub(1 << 30).max(1);
                }
            }
            self.clock = (1 << 30) - 1;
        }
        self.clock += 1;
    }

    /// First pass for one row: is it a hit? If so it is counted.
    pub fn hit(&mut self, key: u64) -> bool {
        let (policy, clock) = (self.policy, self.clock);
        match self.get_mut(key) {
            None => false,
            Some(entry) => {
                match policy {
                    Policy::Lru => entry.stamp = clock,
                    Policy::Lfu => entry.frequency = (entry.frequency + 1).min(16383),
                }
                true
            }
        }
    }

    /// The two counters of a key, as indices in its set's sketch.
    fn counters_of(&self, key: u64) -> (usize, usize) {
        let g = second_hash(key);
        let size = 4 * self.ways;
        let first = ((g >> 48) * size) >> 16;
        let second = (((g >> 32) & 0xffff) * size) >> 16;
        (first as usize, second as usize)
    }

    fn estimate(&self, key: u64) -> u32 {
        let (a, b) = self.counters_of(key);
        let counters = &self.sets[self.set_of(key)].counters;
        counters[a].min(counters[b])
    }

    fn count_miss(&mut self, key: u64) {
        let (a, b) = self.counters_of(key);
        let smaller = self.estimate(key);
        let s = self.set_of(key);
        let counters = &mut self.sets[s].counters;
        // A set, so that two equal indices count once.
        for i in BTreeSet::from([a, b]) {
            if counters[i] == smaller {
                counters[i] = (counters[i] + 1).min(15);
            }
        }
    }

    /// Second pass for one missed row: counts the miss and picks the way that it may have, or none
    /// (a conflict). The entry that leaves, if any, is taken out and returned.
    pub fn make_room(&mut self, key: u64, in_use: &BTreeSet<u64>) -> Option<(Way, Option<Entry>)> {
        if self.policy == Policy::Lfu {
            self.count_miss(key);
        }
        let estimate = self.estimate(key);
        let s = self.set_of(key);
        // An empty way, the lowest.
        for (w, way) in self.sets[s].ways.iter().enumerate() {
            if way.is_none() {
                return Some((Way(s, w), None));
            }
        }
        // The smallest stamp or frequency, the lowest way among equals.
        let mut victim: Option<(u64, usize)> = None;
        for (w, way) in self.sets[s].ways.iter().enumerate() {
            let entry = way.as_ref().expect("no way is empty");
            if in_use.contains(&entry.key) {
                continue;
            }
            let rank = match self.policy {
                Policy::Lru => entry.stamp,
                Policy::Lfu => u64::from(entry.frequency),
            };
            if victim.is_none_or(|(smallest, _)| rank < smallest) {
                victim = Some((rank, w));
            }
        }
        let (rank, w) = victim?;
        if self.policy == Policy::Lfu && u64::from(estimate) <= rank {
            return None;
        }
        let leaving = self.sets[s].ways[w].take().expect("no way is empty");
        if self.policy == Policy::Lfu {
            let (a, b) = self.counters_of(leaving.key);
            for i in [a, b] {
                let counter = &mut self.sets[s].counters[i];
                *counter = (*counter).max(leaving.frequency.min(15));
            }
        }
        Some((Way(s, w), Some(leaving)))
    }

    /// Puts a row in the way that `make_room` gave, clean.
    pub fn admit(&mut self, way: Way, key: u64, row: Row) {
        let entry = Entry { key, stamp: self.clock, frequency: self.estimate(key), dirty: false, row };
        self.sets[way.0].ways[way.1] = Some(entry);
    }

    /// The push or touch, of `rows` distinct keys, ends: the decay of lfu.
    pub fn end(&mut self, rows: u64) {
        if self.policy != Policy::Lfu {
            return;
        }
        self.uses += rows;
        if self.uses >= 32 * self.sets.len() as u64 * self.ways {
            for set in &mut self.sets {
                for entry in set.ways.iter_mut().flatten() {
                    entry.frequency /= 2;
                }
                for counter in &mut set.counters {
                    *counter /= 2;
                }
            }
            self.uses = 0;
        }
    }
}

/// A set and a way in it.
#[derive(Clone, Copy, Debug)]
pub struct Way(usize, usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row { weights: vec![], state: vec![] }
    }

    /// One push of the given keys; returns the keys that left and the conflicts.
    fn push(cache: &mut Cache, keys: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let (mut left, mut conflicts) = (vec![], vec![]);
        cache.begin();
        let mut in_use: BTreeSet<u64> = keys.iter().copied().filter(|&k| cache.hit(k)).collect();
        for &k in keys {
            if in_use.contains(&k) {
                continue;
            }
            match cache.make_room(k, &in_use) {
                None => conflicts.push(k),
                Some((way, leaving)) => {
                    left.extend(leaving.map(|e| e.key));
                    cache.admit(way, k, row());
                    in_use.insert(k);
                }
            }
        }
        cache.end(keys.len() as u64);
        (left, conflicts)
    }

    #[test]
    fn sizes() {
        let sizes: Vec<u64> = (0..4).map(|p| rows_of_partition(6, 4, p)).collect();
        assert_eq!(sizes, [2, 2, 1, 1]);
        assert!(Cache::new(Policy::Lru, 0).is_none());
        for (c, sets, ways) in [(1, 1, 1), (32, 1, 32), (33, 2, 16), (100, 4, 25)] {
            let cache = Cache::new(Policy::Lfu, c).unwrap();
            assert_eq!((cache.sets.len(), cache.ways), (sets, ways));
        }
    }

    #[test]
    fn lru_order() {
        let mut cache = Cache::new(Policy::Lru, 3).unwrap();
        assert_eq!(push(&mut cache, &[1, 2, 3]), (vec![], vec![]));
        assert_eq!(push(&mut cache, &[1]), (vec![], vec![]));
        // 2 and 3 have the same stamp: the lower way leaves.
        assert_eq!(push(&mut cache, &[4]), (vec![2], vec![]));
        // 3 is hit later in the same push and is not a victim; 1 is the oldest other.
        assert_eq!(push(&mut cache, &[5, 3, 6, 7]), (vec![1, 4], vec![7]));
        cache.remove(3);
        assert_eq!(push(&mut cache, &[8]), (vec![], vec![]));
        assert_eq!(cache.clock, 5);
    }

    #[test]
    fn lru_clock_is_renewed() {
        let mut cache = Cache::new(Policy::Lru, 2).unwrap();
        push(&mut cache, &[1]);
        cache.clock = (1 << 31) - 2;
        push(&mut cache, &[2]);
        assert_eq!(cache.clock, (1 << 31) - 1);
        push(&mut cache, &[2]);
        assert_eq!(cache.clock, 1 << 30);
        assert_eq!(cache.get(1).unwrap().stamp, 1);
        assert_eq!(cache.get(2).unwrap().stamp, 1 << 30);
    }

    #[test]
    fn lfu_admission_and_decay() {
        let mut cache = Cache::new(Policy::Lfu, 1).unwrap();
        assert_eq!(push(&mut cache, &[1]), (vec![], vec![]));
        assert_eq!(cache.get(1).unwrap().frequency, 1);
        push(&mut cache, &[1]);
        assert_eq!(cache.get(1).unwrap().frequency, 2);
        // A key without a common counter must be missed three times to have more than 2.
        let (a, b) = cache.counters_of(1);
        let other = (2..1000)
            .find(|&k| {
                let (c, d) = cache.counters_of(k);
                c != a && c != b && d != a && d != b
            })
            .unwrap();
        assert_eq!(push(&mut cache, &[other]), (vec![], vec![other]));
        assert_eq!(push(&mut cache, &[other]), (vec![], vec![other]));
        assert_eq!(push(&mut cache, &[other]), (vec![1], vec![]));
        assert_eq!(cache.get(other).unwrap().frequency, 3);
        assert_eq!(cache.estimate(1), 2);
        // Five uses so far; the thirty-second halves.
        for _ in 0..26 {
            push(&mut cache, &[other]);
        }
        assert_eq!(cache.get(other).unwrap().frequency, 29);
        push(&mut cache, &[other]);
        assert_eq!(cache.get(other).unwrap().frequency, 15);
        assert_eq!((cache.estimate(1), cache.uses), (1, 0));
    }
}
