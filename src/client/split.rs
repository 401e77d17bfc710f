//! A request for several shards: duplicates removed, keys routed, answers put back in order.

use std::cell::RefCell;

use crate::engine::distinct::Distinct;
use crate::engine::route::Route;
use crate::table::KeySpace;

thread_local! {
    static DISTINCT: RefCell<Distinct> = RefCell::default();
}

/// The distinct keys in order of first appearance, and which of them each key is.
pub fn distinct(keys: &[u64]) -> (Vec<u64>, Vec<u32>) {
    DISTINCT.with_borrow_mut(|distinct| {
        distinct.find(keys.iter().copied());
        (distinct.keys.clone(), distinct.which.clone())
    })
}

/// How the keys of one table are spread over shards.
pub struct Split {
    /// What goes to each shard.
    pub shards: Vec<Share>,
    /// The keys that were given before, in order.
    pub repeats: Vec<Repeat>,
}

/// The distinct keys of one shard, in order of first appearance.
#[derive(Clone, Default)]
pub struct Share {
    /// The keys.
    pub keys: Vec<u64>,
    /// Where each of them was given first.
    pub first: Vec<u32>,
}

/// A key that was given before.
pub struct Repeat {
    /// Where it is given again.
    pub position: u32,
    /// Its shard.
    pub shard: u32,
    /// Its place among that shard's keys.
    pub place: u32,
}

impl Split {
    /// Spreads `keys` by the owners of their partitions.
    pub fn new(route: &Route, owners: &[u32], shards: usize, space: KeySpace, keys: &[u64]) -> Split {
        DISTINCT.with_borrow_mut(|distinct| {
            if shards == 1 && distinct.none_repeats(keys) {
                let share = Share { keys: keys.to_vec(), first: (0..keys.len() as u32).collect() };
                return Split { shards: vec![share], repeats: Vec::new() };
            }
            distinct.find(keys.iter().copied());
            Split::of(distinct, route, owners, shards, space, keys)
        })
    }

    fn of(distinct: &Distinct, route: &Route, owners: &[u32], shards: usize, space: KeySpace, keys: &[u64]) -> Split {
        let mut split = vec![Share::default(); shards];
        let mut repeats = Vec::with_capacity(keys.len() - distinct.len());
        // Shard and place of each distinct key.
        let mut places: Vec<(u32, u32)> = Vec::with_capacity(distinct.len());
        for (position, (&key, &which)) in (0..).zip(keys.iter().zip(&distinct.which)) {
            if let Some(&(shard, place)) = places.get(which as usize) {
                repeats.push(Repeat { position, shard, place });
                continue;
            }
            let shard = if shards == 1 { 0 } else { owners[route.partition(space, key) as usize] };
            let share = &mut split[shard as usize];
            places.push((shard, share.keys.len() as u32));
            share.keys.push(key);
            share.first.push(position);
        }
        Split { shards: split, repeats }
    }

    /// How many keys were given.
    pub fn len(&self) -> usize {
        self.repeats.len() + self.shards.iter().map(|share| share.keys.len()).sum::<usize>()
    }

    /// Copies the rows of keys that were given before to where they are given again.
    pub fn repeat(&self, dim: usize, rows: &mut [f32]) {
        for repeat in &self.repeats {
            let first = self.shards[repeat.shard as usize].first[repeat.place as usize] as usize;
            rows.copy_within(first * dim..(first + 1) * dim, repeat.position as usize * dim);
        }
    }

    /// Whether shard 0 has all keys in the order given, so that its answer is the answer.
    pub fn is_plain(&self) -> bool {
        self.repeats.is_empty() && self.shards.len() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_again() {
        let route = Route::new(8, (0..8).collect());
        let owners = [0, 0, 1, 1, 2, 2, 2, 0];
        let keys: Vec<u64> = (0..500u64).map(|i| i * i % 97).collect();
        for space in [KeySpace::Dense { rows: 97 }, KeySpace::Hashed] {
            let split = Split::new(&route, &owners, 3, space, &keys);
            let mut found = vec![None; keys.len()];
            for (shard, share) in (0..).zip(&split.shards) {
                for (&key, &first) in share.keys.iter().zip(&share.first) {
                    assert_eq!(owners[route.partition(space, key) as usize], shard);
                    assert_eq!(keys.iter().position(|&other| other == key), Some(first as usize));
                    assert_eq!(found[first as usize].replace(key), None);
                }
            }
            for repeat in &split.repeats {
                let key = split.shards[repeat.shard as usize].keys[repeat.place as usize];
                assert_eq!(found[repeat.position as usize].replace(key), None);
            }
            assert_eq!(found, keys.iter().copied().map(Some).collect::<Vec<_>>());
            assert!(split.repeats.is_sorted_by_key(|repeat| repeat.position));
        }
        assert!(Split::new(&route, &owners, 1, KeySpace::Hashed, &[5, 6]).is_plain());
        assert!(!Split::new(&route, &owners, 1, KeySpace::Hashed, &[5, 5]).is_plain());
    }
}
