//! Zipf-distributed keys, rows and gradients, repeatable by seed.

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand_distr::Distribution as _;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws keys 0..rows; how often a key comes has nothing to do with its number. Takes no memory per row.
pub struct Zipf {
    ranks: rand_distr::Zipf<f64>,
    key_of_rank: Permutation,
    random: StdRng,
}

impl Zipf {
    pub fn new(rows: usize, exponent: f64, seed: u64) -> Zipf {
        Zipf {
            ranks: rand_distr::Zipf::new(rows as f64, exponent).unwrap(),
            key_of_rank: Permutation::new(rows as u64, seed),
            random: StdRng::seed_from_u64(seed),
        }
    }

    fn draw(&mut self) -> u64 {
        let rank = self.ranks.sample(&mut self.random) as u64 - 1;
        self.key_of_rank.of(rank)
    }

    /// `count` keys as drawn, duplicates and all.
    pub fn batch(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.draw()).collect()
    }

    /// `count` distinct keys, in the order in which they were first drawn.
    pub fn unique_batch(&mut self, count: usize) -> Vec<u64> {
        let mut seen = std::collections::HashSet::new();
        let mut keys = Vec::with_capacity(count);
        while keys.len() < count {
            let key = self.draw();
            if seen.insert(key) {
                keys.push(key);
            }
        }
        keys
    }
}

/// The numbers below `rows` in another order: a Feistel network over the next even number of bits, walked until it
/// comes back below `rows`.
struct Permutation {
    rows: u64,
    half: u32,
    rounds: [u64; 4],
}

impl Permutation {
    fn new(rows: u64, seed: u64) -> Permutation {
        let mut random = Random(seed);
        let half = (u64::BITS - (rows - 1).leading_zeros()).div_ceil(2).max(1);
        Permutation { rows, half, rounds: std::array::from_fn(|_| random.next()) }
    }

    fn of(&self, number: u64) -> u64 {
        let mask = (1 << self.half) - 1;
        let mut at = number;
        loop {
            let (mut left, mut right) = (at >> self.half, at & mask);
            for round in self.rounds {
                (left, right) = (right, left ^ (Random(right ^ round).next() & mask));
            }
            at = left << self.half | right;
            if at < self.rows {
                return at;
            }
        }
    }
}

/// Small random numbers, as gradients are.
pub fn gradients(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| (random.unit() as f32 - 0.5) * 0.01).collect()
}

/// A number of a table before anything is pushed, where every system must hold the same.
pub fn initial_weight(key: u64, at: usize) -> f32 {
    ((key * 31 + at as u64 * 17) % 1000) as f32 / 100_000.0
}

/// The rows of these keys in such a table.
pub fn initial_rows(keys: &[u64], dim: usize) -> Vec<f32> {
    keys.iter().flat_map(|&key| (0..dim).map(move |at| initial_weight(key, at))).collect()
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median over rounds of how much longer the limit took: 1 is as fast as it.
pub fn ratio(limit: &[f64], ours: &[f64]) -> f64 {
    median(limit.iter().zip(ours).map(|(limit, ours)| limit / ours).collect())
}

/// How long some work takes.
pub fn seconds<T>(work: impl FnOnce() -> T) -> f64 {
    let start = std::time::Instant::now();
    std::hint::black_box(work());
    start.elapsed().as_secs_f64()
}

/// [`seconds`] of work on keys and numbers that are as near to the CPU for whoever comes first as for the next.
pub fn warm_seconds<T>(keys: &[u64], numbers: &mut [f32], work: impl FnOnce(&mut [f32]) -> T) -> f64 {
    std::hint::black_box(keys.iter().fold(0, |all, key| all ^ key));
    std::hint::black_box(numbers.iter().fold(0, |all, number| all ^ number.to_bits()));
    seconds(|| work(std::hint::black_box(numbers)))
}
