//! Counts how far apart the uses of keys are, in fixed memory.

#[cfg(test)]
use std::mem::size_of;

use super::curve::{CachePlace, HitCurve, bucket};
use super::reuse::{Stack, Use};

/// Follows a sample of the keys of one table, and counts the distances between their uses.
pub struct Sampler {
    stack: Stack,
    /// Caches of more rows than this are not asked about.
    reach: f64,
    /// By distance: uses of all keys, as far as the sample tells.
    uses: Vec<f64>,
    /// Uses of keys that were not known, as far as the sample tells.
    first_uses: f64,
    /// Keys that were sent, sampled or not, and how many of them the cache hit.
    sent: f64,
    hits: f64,
    /// Uses of sampled keys that are in these numbers.
    counted: u64,
    /// Uses of sampled keys that only bring the order up to date.
    unsettled: u64,
}

impl Sampler {
    /// Bytes that it takes at most.
    #[cfg(test)]
    pub const MOST_BYTES: usize = Stack::MOST_BYTES + super::curve::BUCKETS * size_of::<f64>() + size_of::<Sampler>();

    /// Nothing was sent yet. `reach` is the largest cache that anybody asks about, in rows.
    pub fn new(reach: f64) -> Sampler {
        let (uses, first_uses, sent, hits) = (Vec::new(), 0.0, 0.0, 0.0);
        Sampler { stack: Stack::new(), reach, uses, first_uses, sent, hits, counted: 0, unsettled: 0 }
    }

    /// Keys are followed if their [`super::sample_hash`] is below this.
    pub fn limit(&self) -> u64 {
        self.stack.limit()
    }

    /// A push or touch of `sent` keys, duplicates included, of which the cache hit so many; `uses` are those that are
    /// followed, each once, in the order in which they were sent.
    pub fn observe(&mut self, sent: u64, hits: u64, uses: &mut Vec<Use>) {
        let settled = self.unsettled == 0;
        let Sampler { stack, reach, uses: distances, first_uses, .. } = self;
        stack.observe(uses, *reach, |used, depth, keys_per_sampled| {
            if !settled {
                return;
            }
            let times = f64::from(used.times) * keys_per_sampled;
            match depth {
                // As many keys as there are on average between two that were sampled.
                Some(depth) => {
                    let bucket = bucket(((f64::from(depth) + 0.5) * keys_per_sampled - 0.5) as u64);
                    if distances.len() <= bucket {
                        distances.reserve_exact(bucket + 1 - distances.len());
                        distances.resize(bucket + 1, 0.0);
                    }
                    distances[bucket] += times;
                }
                None => *first_uses += times,
            }
        });
        match settled {
            true => {
                self.sent += sent as f64;
                self.hits += hits as f64;
                self.counted += uses.len() as u64;
            }
            false => self.unsettled = self.unsettled.saturating_sub(uses.len() as u64),
        }
    }

    /// Some pushes were not shown. The order of the keys is not right again before so many uses, which are not counted.
    pub fn settle(&mut self, uses: u64) {
        self.unsettled = uses;
    }

    /// Uses of sampled keys that were counted since the last [`Sampler::fade`].
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// What was counted so far counts half from now on.
    pub fn fade(&mut self) {
        self.uses.iter_mut().for_each(|uses| *uses /= 2.0);
        self.first_uses /= 2.0;
        self.sent /= 2.0;
        self.hits /= 2.0;
        self.counted = 0;
    }

    /// The hit rates that follow. `is_lru` says that the cache is one, so that what it has hit tells how far off the
    /// sample is.
    pub fn curve(&self, place: CachePlace, is_lru: bool) -> HitCurve {
        let mut uses = self.uses.clone();
        // A sample has too many or too few uses, mostly of the few keys that are used all the time: SHARDS-adj puts
        // the difference where those are, at the shortest distance.
        let missing = self.sent - self.first_uses - uses.iter().sum::<f64>();
        match uses.first_mut() {
            Some(first) => *first += missing,
            None if self.sent > 0.0 && missing != 0.0 => uses.push(missing),
            None => {}
        }
        HitCurve::new(uses, self.sent, self.stack.len() as u64, self.stack.rate(), place)
            .corrected(is_lru.then_some(self.hits))
    }

    /// Bytes that it takes now.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.stack.bytes() + self.uses.capacity() * size_of::<f64>() + size_of::<Sampler>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::sample_hash;
    use crate::numeric::hash::mix64;

    const PLACE: CachePlace = CachePlace { partitions: 1, rows: 10.0 };

    fn uses(keys: impl Iterator<Item = u64>) -> Vec<Use> {
        keys.map(|key| Use { hash: sample_hash(mix64(key)), times: 2, place: 0 }).collect()
    }

    #[test]
    fn keys_count_as_often_as_they_were_sent() {
        let mut sampler = Sampler::new(f64::MAX);
        assert_eq!(sampler.curve(PLACE, false).hit_rate(100), None);
        for _ in 0..4 {
            sampler.observe(20, 0, &mut uses(0..10));
        }
        // Ten keys at a time, the same ones four times, each twice.
        let curve = sampler.curve(PLACE, false);
        assert_eq!((curve.references(), curve.sampled_keys()), (80.0, 10));
        assert_eq!((curve.hit_rate(10), curve.hit_rate(0)), (Some(0.75), Some(0.0)));
        assert_eq!(curve.hit_rate(4), Some(0.3));
        sampler.fade();
        assert_eq!(sampler.curve(PLACE, false).references(), 40.0);
        assert_eq!(sampler.curve(PLACE, false).hit_rate(4), Some(0.3));
    }

    #[test]
    fn what_only_settles_is_not_counted() {
        let mut sampler = Sampler::new(f64::MAX);
        sampler.settle(15);
        sampler.observe(10, 0, &mut uses(0..10));
        sampler.observe(10, 0, &mut uses(0..10));
        assert_eq!((sampler.counted(), sampler.curve(PLACE, false).references()), (0, 0.0));
        sampler.observe(20, 0, &mut uses(0..10));
        assert_eq!(sampler.curve(PLACE, false).hit_rate(10), Some(1.0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut sampler = Sampler::new(f64::MAX);
        for round in 0..3 {
            for first in (0..1_000_000).step_by(10_000) {
                sampler.observe(20_000, 0, &mut uses(first..first + 10_000 + round));
                assert!(sampler.bytes() <= Sampler::MOST_BYTES);
            }
        }
        // What the documentation says.
        const { assert!(Sampler::MOST_BYTES <= 280 << 10) };
    }
}
