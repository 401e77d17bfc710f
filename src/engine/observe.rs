//! What a table's pushes and touches show of how its keys are used, for the hit rates that a cache of another size
//! would have.
//!
//! This is statistics. It never steers anything, is no part of the state, and is empty after a start. Hot path: a
//! compare for each distinct key, and one short lock for the sampled keys of a push.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::cache::{CachePlace, HitCurve, Sampler, Use, sample_hash};
use crate::numeric::hash::mix64;

/// Caches of up to so many times today's size are asked about.
const REACH: f64 = 16.0;
/// Pushes of fewer keys, as a share of the cache, hardly meet its end.
const SMALL_PUSH: f64 = 0.25;
/// After so many uses of sampled keys, what was counted before counts half.
const HALF_LIFE: u64 = 1 << 16;
/// Of so many keys that are sent, one may be looked at, or it would cost too much. Where more are sampled, because a
/// table has few keys, some time is observed and some is not.
const SENT_PER_USE: i64 = 256;
/// What a new table may spend at once, and later on after each rest: the keys that must be sent for so many looks.
const FIRST_CREDIT: i64 = SENT_PER_USE << 19;
const CREDIT: i64 = SENT_PER_USE << 17;
/// Uses after a rest until the order of the keys is right again.
const SETTLE: u64 = 1 << 15;

/// Watches one table.
pub struct Observer {
    /// Off only to measure what it costs.
    on: AtomicBool,
    cache_rows: u64,
    /// Keys whose hash is below this are looked at; 0 during a rest.
    limit: AtomicU64,
    /// Keys that are still to be sent before the rest is over.
    rest: AtomicI64,
    state: Mutex<State>,
}

struct State {
    sampler: Sampler,
    /// Keys that were sent and whose looks are not spent yet.
    credit: i64,
    /// Pushes and touches that were looked at.
    pushes: u64,
}

/// What one push or touch shows.
pub struct Seen {
    limit: u64,
    hits: AtomicU64,
    uses: Mutex<Vec<Use>>,
}

impl Seen {
    /// Picks the keys that are looked at out of distinct ones.
    #[inline(always)]
    pub fn pick(&self, mixed: &[u64], times: &[u32], picked: &mut Vec<Use>) {
        const SOME: usize = 8;
        for (first, (mixed, times)) in (0..).step_by(SOME).zip(mixed.chunks(SOME).zip(times.chunks(SOME))) {
            // Mostly none of them is, and that takes a few vector instructions.
            if !mixed.iter().fold(false, |any, &mixed| any | (sample_hash(mixed) < self.limit)) {
                continue;
            }
            for (place, (&mixed, &times)) in (first..).zip(mixed.iter().zip(times)) {
                let hash = sample_hash(mixed);
                if hash < self.limit {
                    picked.push(Use { hash, times, place });
                }
            }
        }
    }

    /// Keeps what a partition has picked, and how many keys it hit.
    pub fn keep(&self, picked: &[Use], hits: u64) {
        self.hits.fetch_add(hits, Ordering::Relaxed);
        if !picked.is_empty() {
            self.uses.lock().extend_from_slice(picked);
        }
    }
}

impl Observer {
    /// For a table with a cache of so many rows.
    pub fn new(cache_rows: u64) -> Observer {
        // Where there is no cache yet, one of any size may be asked about.
        let reach = if cache_rows == 0 { f64::MAX } else { REACH * cache_rows as f64 };
        let sampler = Sampler::new(reach);
        Observer {
            on: AtomicBool::new(true),
            cache_rows,
            limit: AtomicU64::new(sampler.limit()),
            rest: AtomicI64::new(0),
            state: Mutex::new(State { sampler, credit: FIRST_CREDIT, pushes: 0 }),
        }
    }

    /// For the next push or touch; `None` if nobody looks.
    pub fn begin(&self) -> Option<Seen> {
        let limit = self.limit.load(Ordering::Relaxed);
        let looks = limit > 0 && self.on.load(Ordering::Relaxed);
        looks.then(|| Seen { limit, hits: AtomicU64::new(0), uses: Mutex::default() })
    }

    /// A push or touch of so many keys is over.
    pub fn end(&self, seen: Option<Seen>, sent: u64) {
        let sent = sent as i64;
        let Some(seen) = seen else {
            let resting = self.limit.load(Ordering::Relaxed) == 0;
            if resting && self.rest.fetch_sub(sent, Ordering::Relaxed) <= sent {
                self.go_on();
            }
            return;
        };
        let mut uses = seen.uses.into_inner();
        let mut state = self.state.lock();
        let State { sampler, credit, pushes } = &mut *state;
        *pushes += 1;
        // They come partition by partition. Where a push is not small beside the cache it matters who came first: the n-th
        // keys of all partitions came at about the same time, now one before the other, now the other way round.
        if uses.len() as f64 > SMALL_PUSH * self.cache_rows as f64 * (seen.limit as f64 / u64::MAX as f64) {
            let order = mix64(*pushes) | 1;
            uses.sort_unstable_by_key(|used| (used.place, used.hash.wrapping_mul(order)));
        }
        sampler.observe(sent as u64, seen.hits.into_inner(), &mut uses);
        if sampler.counted() >= HALF_LIFE {
            sampler.fade();
        }
        *credit = (*credit + sent - SENT_PER_USE * uses.len() as i64).min(FIRST_CREDIT);
        let rests = *credit < 0;
        if rests {
            self.rest.store(CREDIT - *credit, Ordering::Relaxed);
            *credit = CREDIT;
        }
        let limit = if rests { 0 } else { sampler.limit() };
        self.limit.store(limit, Ordering::Relaxed);
    }

    fn go_on(&self) {
        let mut state = self.state.lock();
        state.sampler.settle(SETTLE);
        self.limit.store(state.sampler.limit(), Ordering::Relaxed);
    }

    /// The hit rates that caches would have. `is_lru` says that the one there is, is one.
    pub fn curve(&self, place: CachePlace, is_lru: bool) -> HitCurve {
        self.state.lock().sampler.curve(place, is_lru)
    }

    /// Looks, or does not.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: CachePlace = CachePlace { partitions: 1, rows: 500.0 };

    /// Pushes of distinct keys; how many were picked.
    fn push(observer: &Observer, keys: std::ops::Range<u64>) -> usize {
        let sent = keys.end - keys.start;
        let mixed: Vec<u64> = keys.map(mix64).collect();
        let seen = observer.begin();
        let mut picked = Vec::new();
        if let Some(seen) = &seen {
            seen.pick(&mixed, &vec![1; mixed.len()], &mut picked);
            seen.keep(&picked, 0);
        }
        observer.end(seen, sent);
        picked.len()
    }

    #[test]
    fn few_keys_are_looked_at_now_and_then() {
        // Every key is sampled, but one look at 128 keys must do in the long run.
        let observer = Observer::new(500);
        let (mut looks, mut sent) = (0, 0);
        while sent < 100_000_000 {
            looks += push(&observer, 0..1000) as i64;
            sent += 1000;
        }
        let most = (FIRST_CREDIT + CREDIT + sent) / SENT_PER_USE;
        assert!((most - 3 * CREDIT / SENT_PER_USE..=most).contains(&looks), "{looks} {most}");
        // The same thousand keys over and over: the curve is that of a cyclic scan, rests or not.
        let curve = observer.curve(PLACE, false);
        assert!(curve.hit_rate(4000).unwrap() > 0.99);
    }

    #[test]
    fn nothing_is_seen_while_it_is_off() {
        let observer = Observer::new(500);
        observer.switch(false);
        assert_eq!((push(&observer, 0..1000), observer.curve(PLACE, false).references()), (0, 0.0));
        observer.switch(true);
        assert_eq!((push(&observer, 0..1000), observer.curve(PLACE, false).references()), (1000, 1000.0));
    }
}
