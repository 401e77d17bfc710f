//! Zipf-distributed keys, repeatable by seed.

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

/// Draws keys 0..rows; how often a key comes has nothing to do with its number.
pub struct Zipf {
    cumulative: Vec<f64>,
    key_of_rank: Vec<u32>,
    random: Random,
}

impl Zipf {
    pub fn new(rows: usize, exponent: f64, seed: u64) -> Zipf {
        let mut sum = 0.0;
        let cumulative = (1..=rows)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        let mut random = Random(seed);
        let mut key_of_rank: Vec<u32> = (0..rows as u32).collect();
        for i in (1..rows).rev() {
            key_of_rank.swap(i, (random.next() % (i as u64 + 1)) as usize);
        }
        Zipf { cumulative, key_of_rank, random }
    }

    fn draw(&mut self) -> u64 {
        let target = self.random.unit() * self.cumulative[self.cumulative.len() - 1];
        let rank = self.cumulative.partition_point(|&sum| sum < target).min(self.cumulative.len() - 1);
        u64::from(self.key_of_rank[rank])
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

/// Small random numbers, as gradients are.
pub fn gradients(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| (random.unit() as f32 - 0.5) * 0.01).collect()
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How long some work takes.
pub fn seconds<T>(work: impl FnOnce() -> T) -> f64 {
    let start = std::time::Instant::now();
    std::hint::black_box(work());
    start.elapsed().as_secs_f64()
}
