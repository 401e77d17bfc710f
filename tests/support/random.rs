//! A small generator of keys and numbers: the same on every run, so a failure can be looked at again.

use hotrow::TableSpec;

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// A number from -1 up to 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// `count` numbers from -1 up to 1, times `range`.
    pub fn row(&mut self, count: usize, range: f32) -> Vec<f32> {
        (0..count).map(|_| self.unit() * range).collect()
    }

    /// Gradients or weights: mostly of ordinary size, sometimes tiny, large or zero.
    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        let number = |_| match self.below(16) {
            0 => 0.0,
            1 => self.unit() * 1e-12,
            2 => self.unit() * 50.0,
            _ => self.unit(),
        };
        (0..count).map(number).collect()
    }

    /// `count` keys of a table, drawn from the `range` first; small ones are drawn more often.
    pub fn keys(&mut self, table: &TableSpec, range: u64, count: usize) -> Vec<u64> {
        (0..count)
            .map(|_| {
                let upper = self.below(range) + 1;
                key(table, self.below(upper))
            })
            .collect()
    }
}

/// The key that a small number stands for: hashed tables spread them over all 64 bits.
pub fn key(table: &TableSpec, small: u64) -> u64 {
    match (table.rows(), small) {
        (Some(_), _) => small,
        (None, 0) => u64::MAX,
        (None, _) => (small - 1).wrapping_mul(0x0123_4567_89ab_cdef),
    }
}
