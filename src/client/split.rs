//! A request for several shards: duplicates removed, keys routed, answers put back in order.

use crate::engine::distinct::Distinct;
use crate::engine::route::Route;
use crate::table::KeySpace;

/// How the keys of one table are spread over shards.
pub struct Split {
    /// The distinct keys of each shard, in order of first appearance.
    pub shards: Vec<Vec<u64>>,
    /// For each key as given: its shard, and its place among that shard's keys.
    pub at: Vec<(u32, u32)>,
    /// Whether no key is given twice.
    pub unique: bool,
}

impl Split {
    /// Spreads `keys` by the owners of their partitions.
    pub fn new(route: &Route, owners: &[u32], shards: usize, space: KeySpace, keys: &[u64]) -> Split {
        let positions: Vec<u32> = (0..keys.len() as u32).collect();
        let mut distinct = Distinct::default();
        distinct.fill(keys, &positions);
        let unique = distinct.len() == keys.len();
        if shards == 1 {
            let at = distinct.which.iter().map(|&which| (0, which)).collect();
            return Split { shards: vec![distinct.keys], at, unique };
        }
        let mut split = vec![Vec::new(); shards];
        let places: Vec<(u32, u32)> = distinct
            .keys
            .iter()
            .map(|&key| {
                let shard = owners[route.partition(space, key) as usize];
                let keys: &mut Vec<u64> = &mut split[shard as usize];
                keys.push(key);
                (shard, keys.len() as u32 - 1)
            })
            .collect();
        let at = distinct.which.iter().map(|&which| places[which as usize]).collect();
        Split { shards: split, at, unique }
    }

    /// Whether shard 0 has all keys in the order given, so that its answer is the answer.
    pub fn is_plain(&self) -> bool {
        self.unique && self.shards.len() == 1
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
            for (&key, &(shard, place)) in keys.iter().zip(&split.at) {
                assert_eq!(split.shards[shard as usize][place as usize], key);
                assert_eq!(owners[route.partition(space, key) as usize], shard);
            }
            let mut all = split.shards.concat();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), split.shards.iter().map(Vec::len).sum::<usize>());
        }
        assert!(Split::new(&route, &owners, 1, KeySpace::Hashed, &[5, 6]).is_plain());
        assert!(!Split::new(&route, &owners, 1, KeySpace::Hashed, &[5, 5]).is_plain());
    }
}
