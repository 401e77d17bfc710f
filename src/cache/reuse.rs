//! How many other keys were used since a key was last used: the lru stack of a sample of the keys.
//!
//! Which keys are in the sample depends on their hash alone: those below a limit (SHARDS: Waldspurger et al., FAST
//! '15). All uses of a sampled key are seen, so distances among sampled keys are those among all keys times the rate.
//! When there are too many, the limit is lowered; so memory is bounded. This is statistics: nothing here steers the
//! cache.

#[cfg(test)]
use std::mem::size_of;

use crate::numeric::simd::{self, dispatch};

/// At most this many keys are followed; half of them stay when some must go.
pub const MOST_KEYS: usize = 16_384;
/// Moments that can be told apart before they are numbered anew.
const MOMENTS: usize = 1 << 16;
/// Moments whose number of keys is kept.
const BLOCK: usize = 512;
/// The bits of a hash; the others of a bucket say when its key was last used.
const HASH: u64 = !0xffff;
/// A bucket without a key. None has such a hash, for it is never below a limit.
const EMPTY: u64 = u64::MAX;
/// Buckets of a stack without keys.
const FEWEST_BUCKETS: usize = 256;

/// The hash that decides whether a key is in the sample, from its [`crate::numeric::hash::mix64`]. Its upper 16 bits
/// choose neither the partition nor the set of a key. It is cheap, because every pushed key is asked, and no key that
/// is common in practice comes first.
#[inline(always)]
pub fn sample_hash(mixed: u64) -> u64 {
    (mixed.rotate_left(16) ^ 0x2545_f491_4f6c_dd1d) & HASH
}

/// The uses of a sampled key in one push or touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Its [`sample_hash`], below the limit.
    pub hash: u64,
    /// How often the key was sent.
    pub times: u32,
    /// Which of the distinct keys it was, where it was picked.
    pub place: u32,
}

/// The sampled keys, in order of their last use.
pub struct Stack {
    /// Keys are followed if their hash is below this.
    limit: u64,
    /// An open hash table: the hash of a key, and in its lower bits when that was last used.
    buckets: Vec<u64>,
    len: usize,
    /// A bit for each moment that is some key's last use, and how many there are in each block.
    last_uses: Vec<u64>,
    blocks: [u16; MOMENTS / BLOCK],
    next: usize,
}

impl Stack {
    /// Bytes that it takes at most.
    #[cfg(test)]
    pub const MOST_BYTES: usize = 2 * MOST_KEYS * size_of::<u64>() + MOMENTS / 8 + size_of::<Stack>();

    /// Follows all keys, as long as there are not too many.
    pub fn new() -> Stack {
        Stack {
            limit: HASH,
            buckets: vec![EMPTY; FEWEST_BUCKETS],
            len: 0,
            last_uses: vec![0; MOMENTS / 64],
            blocks: [0; MOMENTS / BLOCK],
            next: 0,
        }
    }

    /// Keys are followed if their hash is below this.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The share of all keys that is followed.
    pub fn rate(&self) -> f64 {
        self.limit as f64 / HASH as f64
    }

    /// How many keys are followed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes now.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<u64>() + self.last_uses.capacity() * size_of::<u64>() + size_of::<Stack>()
    }

    /// The keys of one push or touch are used, all at the same moment, in the order in which they were sent; each is
    /// there once. Calls `seen` for each with how many sampled keys were used since it was last used (`None` for one
    /// that is new) and how many keys a sampled one stands for. Uses of keys that are not followed any more are
    /// removed from `uses`. `reach` is how many keys back anybody looks: beyond it, keys are forgotten rather than
    /// the rate lowered.
    pub fn observe(&mut self, uses: &mut Vec<Use>, reach: f64, mut seen: impl FnMut(Use, Option<u32>, f64)) {
        uses.retain(|used| used.hash < self.limit);
        let mut found = self.find_all(uses);
        let mut new = found.iter().filter(|bucket| bucket.is_none()).count();
        if self.len + new > MOST_KEYS {
            self.make_room(uses, &found, reach);
            uses.retain(|used| used.hash < self.limit);
            found = self.find_all(uses);
            new = found.iter().filter(|bucket| bucket.is_none()).count();
        }
        if 2 * (self.len + new) > self.buckets.len() {
            self.rebuild((2 * (self.len + new)).next_power_of_two(), |_, _| true);
            found = self.find_all(uses);
        }
        if self.next + uses.len() > MOMENTS {
            self.number_anew();
        }
        let keys_per_sampled = 1.0 / self.rate();
        let mut depths = Vec::with_capacity(uses.len());
        let moments = found.iter().map(|bucket| bucket.map(|bucket| moment(self.buckets[bucket as usize])));
        depths_of(&self.blocks, &self.last_uses, &moments.collect::<Vec<_>>(), &mut depths);
        for (&used, &depth) in uses.iter().zip(&depths) {
            seen(used, depth, keys_per_sampled);
        }
        for &bucket in found.iter().flatten() {
            self.forget_use(moment(self.buckets[bucket as usize]));
        }
        let now = self.next;
        for &i in order_after(&depths).iter().rev() {
            let bucket = match found[i as usize] {
                // Another key of this push that has the same hash: one is followed for both.
                Some(bucket) if usize::from(moment(self.buckets[bucket as usize])) >= now => continue,
                Some(bucket) => bucket as usize,
                None => self.free_bucket(uses[i as usize].hash),
            };
            self.buckets[bucket] = uses[i as usize].hash | self.next as u64;
            self.last_uses[self.next / 64] |= 1 << (self.next % 64);
            self.blocks[self.next / BLOCK] += 1;
            self.next += 1;
        }
    }

    /// Where each key is.
    fn find_all(&self, uses: &[Use]) -> Vec<Option<u32>> {
        for used in uses {
            simd::prefetch(&self.buckets[first_bucket(used.hash) & (self.buckets.len() - 1)]);
        }
        uses.iter().map(|used| self.find(used.hash)).collect()
    }

    fn find(&self, hash: u64) -> Option<u32> {
        let mask = self.buckets.len() - 1;
        let mut bucket = first_bucket(hash) & mask;
        loop {
            match self.buckets[bucket] {
                EMPTY => return None,
                found if found & HASH == hash => return Some(bucket as u32),
                _ => bucket = (bucket + 1) & mask,
            }
        }
    }

    /// Takes a bucket for a key that has none. There are always free ones.
    fn free_bucket(&mut self, hash: u64) -> usize {
        let mask = self.buckets.len() - 1;
        let mut bucket = first_bucket(hash) & mask;
        while self.buckets[bucket] != EMPTY {
            bucket = (bucket + 1) & mask;
        }
        self.len += 1;
        bucket
    }

    /// The moment since which at least so many keys were used, and not many more.
    fn moment_before(&self, keys: usize) -> u16 {
        let mut later = 0;
        for (word, bits) in self.last_uses.iter().enumerate().rev() {
            later += bits.count_ones() as usize;
            if later >= keys {
                return (64 * word) as u16;
            }
        }
        0
    }

    fn forget_use(&mut self, moment: u16) {
        let moment = usize::from(moment);
        let (word, bit) = (&mut self.last_uses[moment / 64], 1 << (moment % 64));
        // Two keys with the same hash have one last use.
        self.blocks[moment / BLOCK] -= u16::from(*word & bit != 0);
        *word &= !bit;
    }

    /// Lets go so many keys that half of what fits is left.
    fn make_room(&mut self, uses: &[Use], found: &[Option<u32>], reach: f64) {
        const HALF: usize = MOST_KEYS / 2;
        if uses.len() < HALF / 2 && HALF as f64 >= reach * self.rate() {
            // Who is used again after that long is a miss in every cache that anybody asks for.
            let oldest = self.moment_before(HALF);
            return self.rebuild(self.buckets.len(), |moment, _| moment >= oldest);
        }
        let followed = self.buckets.iter().filter(|&&bucket| bucket != EMPTY).map(|bucket| bucket & HASH);
        let unknown = uses.iter().zip(found).filter(|(_, bucket)| bucket.is_none()).map(|(used, _)| used.hash);
        let mut hashes: Vec<u64> = followed.chain(unknown).collect();
        let limit = *hashes.select_nth_unstable(HALF).1;
        self.limit = limit;
        self.rebuild(self.buckets.len(), |_, hash| hash < limit);
    }

    /// Another number of buckets, and only the keys that `kept` picks.
    fn rebuild(&mut self, buckets: usize, kept: impl Fn(u16, u64) -> bool) {
        let before = std::mem::replace(&mut self.buckets, vec![EMPTY; buckets]);
        self.len = 0;
        for key in before.into_iter().filter(|&bucket| bucket != EMPTY) {
            match kept(moment(key), key & HASH) {
                true => {
                    let bucket = self.free_bucket(key & HASH);
                    self.buckets[bucket] = key;
                }
                false => self.forget_use(moment(key)),
            }
        }
    }

    /// Numbers the last uses from 0, in the same order.
    fn number_anew(&mut self) {
        let moments: Vec<Option<u16>> = self.buckets.iter().map(|&bucket| Some(moment(bucket))).collect();
        let mut depths = Vec::with_capacity(moments.len());
        depths_of(&self.blocks, &self.last_uses, &moments, &mut depths);
        for (bucket, depth) in self.buckets.iter_mut().zip(depths.into_iter().flatten()) {
            if *bucket != EMPTY {
                *bucket = *bucket & HASH | (self.len - 1 - depth as usize) as u64;
            }
        }
        self.next = self.len;
        for (word, bits) in self.last_uses.iter_mut().enumerate() {
            let keys = self.len.saturating_sub(64 * word).min(64);
            *bits = if keys == 64 { u64::MAX } else { (1 << keys) - 1 };
        }
        for (block, keys) in self.blocks.iter_mut().enumerate() {
            *keys = self.len.saturating_sub(BLOCK * block).min(BLOCK) as u16;
        }
    }
}

/// When the key in a bucket was last used.
#[inline(always)]
fn moment(bucket: u64) -> u16 {
    bucket as u16
}

/// Where to look for a key first: by bits that are neither those of the rate nor those of the partition.
#[inline(always)]
fn first_bucket(hash: u64) -> usize {
    (hash >> 16) as usize
}

dispatch! {
    /// How many keys were last used after each moment.
    fn depths_of(
        blocks: &[u16; MOMENTS / BLOCK],
        last_uses: &[u64],
        moments: &[Option<u16>],
        depths: &mut Vec<Option<u32>>,
    ) {
        let mut after = [0; MOMENTS / BLOCK];
        let mut later = 0;
        for (after, &keys) in after.iter_mut().zip(blocks).rev() {
            *after = later;
            later += u32::from(keys);
        }
        depths.extend(moments.iter().map(|moment| {
            let moment = usize::from((*moment)?);
            let words = &last_uses[moment / BLOCK * (BLOCK / 64)..][..BLOCK / 64];
            let word = moment / 64 % (BLOCK / 64);
            let beside = words[word] >> (moment % 64) >> 1;
            let rest = words[word + 1..].iter().map(|word| word.count_ones()).sum::<u32>();
            Some(after[moment / BLOCK] + beside.count_ones() + rest)
        }));
    }
}

/// The order of a push's keys in the stack after it, by index, the top first. Where a cache is smaller than the push,
/// those stay that were in it, and the others find room in the order in which they were sent. So a key that is `d`
/// deep before the push is at most `d` deep after it, and what is left goes by appearance: this is what holds for
/// every size of cache at once.
fn order_after(depths: &[Option<u32>]) -> Vec<u32> {
    const NOBODY: u32 = u32::MAX;
    let mut at_depth = vec![NOBODY; depths.len()];
    for (i, depth) in depths.iter().enumerate() {
        if let Some(place) = depth.and_then(|depth| at_depth.get_mut(depth as usize)) {
            *place = i as u32;
        }
    }
    let mut placed = vec![false; depths.len()];
    let mut order = Vec::with_capacity(depths.len());
    let mut first_left = 0;
    for at_depth in at_depth {
        let i = match at_depth {
            i if i != NOBODY && !placed[i as usize] => i as usize,
            _ => {
                while placed[first_left] {
                    first_left += 1;
                }
                first_left
            }
        };
        placed[i] = true;
        order.push(i as u32);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::hash::mix64;

    /// A cache of so many rows, as docs/NUMERICS.md has it with one set, and any number of ways.
    struct Cache {
        size: usize,
        rows: Vec<(u64, u64)>,
        clock: u64,
    }

    impl Cache {
        /// Which of the keys are hits.
        fn push(&mut self, keys: &[u64]) -> Vec<bool> {
            self.clock += 1;
            let mut hits = Vec::new();
            for key in keys {
                let row = self.rows.iter_mut().find(|row| row.0 == *key);
                hits.push(row.is_some());
                if let Some(row) = row {
                    row.1 = self.clock;
                }
            }
            for (key, _) in keys.iter().zip(&hits).filter(|(_, hit)| !**hit) {
                if self.rows.len() < self.size {
                    self.rows.push((*key, self.clock));
                } else if let Some(row) = self.rows.iter_mut().min_by_key(|row| row.1).filter(|row| row.1 < self.clock)
                {
                    *row = (*key, self.clock);
                }
            }
            hits
        }
    }

    fn uses(keys: &[u64]) -> Vec<Use> {
        keys.iter().map(|&key| Use { hash: sample_hash(mix64(key)), times: 1, place: 0 }).collect()
    }

    /// Distinct keys, small ones more often.
    fn draw(random: &mut u64, count: usize, range: u64) -> Vec<u64> {
        let mut keys = Vec::new();
        while keys.len() < count {
            *random += 1;
            let bits = mix64(random.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let upper = (bits >> 32) % range + 1;
            let key = (bits & 0xffff_ffff) % upper;
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    #[test]
    fn with_a_key_at_a_time_depths_are_those_of_a_list() {
        let mut stack = Stack::new();
        let mut list: Vec<u64> = Vec::new();
        let mut random = 0;
        // Moments are numbered anew several times.
        for _ in 0..3 * MOMENTS {
            let key = draw(&mut random, 1, 700)[0];
            let expected = list.iter().position(|&other| other == key);
            list.retain(|&other| other != key);
            list.insert(0, key);
            stack.observe(&mut uses(&[key]), f64::MAX, |_, depth, rate| {
                assert_eq!((depth.map(|depth| depth as usize), rate), (expected, 1.0));
            });
        }
        assert_eq!(stack.len(), list.len());
    }

    #[test]
    fn a_key_is_a_hit_in_caches_that_are_larger_than_its_depth() {
        let mut random = 5;
        for count in [1, 7, 40] {
            let mut stack = Stack::new();
            let mut caches: Vec<Cache> =
                (1..=120).step_by(7).map(|size| Cache { size, rows: Vec::new(), clock: 0 }).collect();
            let (mut off, mut all) = (0, 0);
            for _ in 0..2000 {
                let keys = draw(&mut random, count, 200);
                let mut depths = Vec::new();
                stack.observe(&mut uses(&keys), f64::MAX, |_, depth, _| depths.push(depth));
                for cache in &mut caches {
                    for (hit, depth) in cache.push(&keys).into_iter().zip(&depths) {
                        let expected = depth.is_some_and(|depth| (depth as usize) < cache.size);
                        off += i64::from(hit) - i64::from(expected);
                        all += 1;
                        // With one key in a push nothing is left to chance: rows in it tie, and a cache lets any of
                        // them go.
                        assert!(count > 1 || hit == expected, "size {}, depth {depth:?}", cache.size);
                    }
                }
            }
            assert!((off as f64 / all as f64).abs() < 0.01, "{off} of {all} with {count} keys in a push");
        }
    }

    #[test]
    fn half_of_the_keys_stay_and_memory_is_bounded() {
        for reach in [f64::MAX, 1000.0] {
            let mut stack = Stack::new();
            assert!(stack.bytes() < 20_000, "{}", stack.bytes());
            let mut seen = 0;
            for first in (0..2_000_000).step_by(1000) {
                let keys: Vec<u64> = (first..first + 1000).collect();
                stack.observe(&mut uses(&keys), reach, |_, depth, _| assert_eq!(depth, None));
                seen += 1000;
                assert!(stack.len() <= MOST_KEYS && stack.len() >= seen.min(MOST_KEYS / 2), "{}", stack.len());
                assert!(stack.bytes() <= Stack::MOST_BYTES);
            }
            match reach == 1000.0 {
                true => assert_eq!(stack.rate(), 1.0, "the last ones are enough"),
                false => assert!((stack.rate() * 2e6 / stack.len() as f64 - 1.0).abs() < 0.05, "{}", stack.rate()),
            }
        }
        // All at once.
        let mut stack = Stack::new();
        let keys: Vec<u64> = (0..200_000).collect();
        stack.observe(&mut uses(&keys), 1000.0, |_, _, _| {});
        assert_eq!(stack.len(), MOST_KEYS / 2);
        assert!(stack.bytes() <= Stack::MOST_BYTES);
    }

    #[test]
    fn a_sample_has_the_depths_of_all_keys_times_its_rate() {
        let mut stack = Stack::new();
        let keys: Vec<u64> = (0..100_000).collect();
        for round in 0..3 {
            let mut depths = Vec::new();
            for keys in keys.chunks(500) {
                stack.observe(&mut uses(keys), f64::MAX, |_, depth, rate| {
                    depths.extend(depth.map(|d| f64::from(d) * rate))
                });
            }
            // All other keys come between two uses.
            let mean = depths.iter().sum::<f64>() / depths.len() as f64;
            assert!(round == 0 || (mean / 1e5 - 1.0).abs() < 0.03, "{mean}");
        }
    }

    #[test]
    fn keys_with_the_same_hash_are_one() {
        let mut stack = Stack::new();
        let one = |hash: u64| Use { hash: hash << 16, times: 1, place: 0 };
        for _ in 0..3 * MOMENTS {
            stack.observe(&mut vec![one(7), one(9), one(7)], f64::MAX, |_, _, _| {});
        }
        // New ones that come together have a place each; they are used as one from then on.
        assert!((2..=3).contains(&stack.len()));
        let uses: u32 = stack.last_uses.iter().map(|word| word.count_ones()).sum();
        assert_eq!(uses as usize, stack.len());
        assert_eq!(stack.blocks.iter().map(|&keys| usize::from(keys)).sum::<usize>(), stack.len());
    }
}
