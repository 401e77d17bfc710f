//! Which partition a key is in: the one function, and what is built on it (docs/NUMERICS.md, section 1).

use crate::error::{Error, Result};
use crate::numeric::hash;
use crate::numeric::simd::dispatch;
use crate::table::KeySpace;

/// The partitions of the cluster, and which of them are owned here.
pub struct Route {
    bits: u32,
    /// Owned partitions, ascending.
    owned: Vec<u32>,
    /// Partition to its place in `owned`, or `ABSENT`.
    places: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;

impl Route {
    /// `partitions` is a power of two; `owned` ascends.
    pub fn new(partitions: u32, owned: Vec<u32>) -> Route {
        let mut places = vec![ABSENT; partitions as usize];
        for (place, &partition) in owned.iter().enumerate() {
            places[partition as usize] = place as u32;
        }
        Route { bits: partitions.ilog2(), owned, places }
    }

    /// The base-2 logarithm of the number of partitions.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Owned partitions, ascending.
    pub fn owned(&self) -> &[u32] {
        &self.owned
    }

    /// The partition of a key.
    #[inline(always)]
    pub fn partition(&self, space: KeySpace, key: u64) -> u32 {
        match space {
            KeySpace::Dense { .. } => self.dense(key),
            KeySpace::Hashed => self.hashed(hash::mix64(key)),
        }
    }

    /// The partition of a key of a dense table.
    #[inline(always)]
    pub fn dense(&self, key: u64) -> u32 {
        key as u32 & (self.places.len() as u32 - 1)
    }

    /// The partition of a key of a hashed table, by its [`hash::mix64`].
    #[inline(always)]
    pub fn hashed(&self, mixed: u64) -> u32 {
        (mixed >> 32 >> (32 - self.bits)) as u32
    }

    /// The place among the owned partitions of a key that [`Route::check`] has accepted.
    #[inline(always)]
    pub fn place(&self, space: KeySpace, key: u64) -> usize {
        self.places[self.partition(space, key) as usize] as usize
    }

    /// Checks that all keys exist and are owned.
    pub fn check(&self, table: &str, space: KeySpace, keys: &[u64]) -> Result<()> {
        if let KeySpace::Dense { rows } = space
            && largest(keys) >= rows
            && let Some(&key) = keys.iter().find(|&&key| key >= rows)
        {
            return Err(Error::KeyOutOfRange { table: table.into(), key, rows });
        }
        if self.owned.len() == self.places.len() {
            return Ok(());
        }
        for &key in keys {
            let partition = self.partition(space, key);
            if self.places[partition as usize] == ABSENT {
                return Err(Error::NotOwned { key, partition });
            }
        }
        Ok(())
    }
}

dispatch! {
    fn largest(keys: &[u64]) -> u64 {
        keys.iter().fold(0, |max, &key| max.max(key))
    }
}

/// The keys of one table in one change, grouped by owned partition, in order within each.
#[derive(Default)]
pub struct Groups {
    /// Where the group of each place ends in `positions`.
    ends: Vec<u32>,
    /// Positions in the change's key list.
    positions: Vec<u32>,
}

impl Groups {
    /// Groups keys that [`Route::check`] has accepted (a stable counting sort).
    pub fn fill(&mut self, route: &Route, space: KeySpace, keys: &[u64]) {
        self.ends.clear();
        self.ends.resize(route.owned.len() + 1, 0);
        for &key in keys {
            self.ends[route.place(space, key) + 1] += 1;
        }
        for place in 1..self.ends.len() {
            self.ends[place] += self.ends[place - 1];
        }
        self.positions.resize(keys.len(), 0);
        // `ends[place]` starts as the group's start, and each position moves it on, to the group's end.
        for (position, &key) in keys.iter().enumerate() {
            let next = &mut self.ends[route.place(space, key)];
            self.positions[*next as usize] = position as u32;
            *next += 1;
        }
    }

    /// The positions of the keys in one place.
    #[inline(always)]
    pub fn of(&self, place: usize) -> &[u32] {
        let start = if place == 0 { 0 } else { self.ends[place - 1] as usize };
        &self.positions[start..self.ends[place] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_hold_every_position_once_in_order() {
        for space in [KeySpace::Dense { rows: 1 << 40 }, KeySpace::Hashed] {
            let route = Route::new(8, (0..8).collect());
            let keys: Vec<u64> = (0..1000u64).map(|i| hash::mix64(i) >> 30).collect();
            let mut groups = Groups::default();
            groups.fill(&route, space, &keys);
            let mut seen = 0;
            for place in 0..8 {
                let group = groups.of(place);
                assert!(group.is_sorted() && !group.is_empty());
                assert!(group.iter().all(|&at| route.partition(space, keys[at as usize]) == place as u32));
                seen += group.len();
            }
            assert_eq!(seen, keys.len());
        }
    }

    #[test]
    fn one_partition_takes_everything() {
        let route = Route::new(1, vec![0]);
        assert_eq!(route.partition(KeySpace::Hashed, u64::MAX), 0);
        assert_eq!(route.partition(KeySpace::Dense { rows: 10 }, 9), 0);
    }

    #[test]
    fn keys_of_other_engines_are_refused() {
        let route = Route::new(4, vec![1, 3]);
        let space = KeySpace::Dense { rows: 100 };
        assert_eq!(route.check("t", space, &[1, 3, 5, 97]), Ok(()));
        assert_eq!(route.check("t", space, &[1, 2]), Err(Error::NotOwned { key: 2, partition: 2 }));
        assert!(matches!(route.check("t", space, &[101]), Err(Error::KeyOutOfRange { key: 101, .. })));
        assert_eq!(route.place(space, 7), 1);
    }
}
