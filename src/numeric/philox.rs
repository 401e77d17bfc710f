//! Philox4x32-10, the counter-based generator behind all randomness (docs/NUMERICS.md, section 2).

use super::simd;

const M0: u32 = 0xd251_1f53;
const M1: u32 = 0xcd9e_8d57;
const W0: u32 = 0x9e37_79b9;
const W1: u32 = 0xbb67_ae85;
const ROUNDS: usize = 10;

/// Blocks computed side by side, one per vector lane.
pub const LANES: usize = 8;

/// What the generator is keyed by: the cluster's seed and what the numbers are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The cluster's seed.
    pub seed: u32,
    /// What the numbers are for.
    pub domain: u32,
}

/// Key domains.
pub mod domain {
    /// Initial values of rows.
    pub const INITIAL: u32 = 0;
    /// Rounding of weights.
    pub const WEIGHTS: u32 = 1;
    /// Rounding of the first optimizer state tensor; the second follows.
    pub const STATE: u32 = 2;
}

/// Eight neighbouring blocks: `words[w][lane]` is word `w` of block `first_block + lane`.
#[inline(always)]
pub fn blocks(first_block: u32, rest: [u32; 3], key: Key) -> [[u32; LANES]; 4] {
    let mut c0: [u32; LANES] = std::array::from_fn(|lane| first_block.wrapping_add(lane as u32));
    let mut c1 = [rest[0]; LANES];
    let mut c2 = [rest[1]; LANES];
    let mut c3 = [rest[2]; LANES];
    let (mut k0, mut k1) = (key.seed, key.domain);
    for _ in 0..ROUNDS {
        let (high0, low0) = simd::wide_multiply(M0, c0);
        let (high1, low1) = simd::wide_multiply(M1, c2);
        c0 = std::array::from_fn(|lane| high1[lane] ^ c1[lane] ^ k0);
        c1 = low1;
        c2 = std::array::from_fn(|lane| high0[lane] ^ c3[lane] ^ k1);
        c3 = low0;
        k0 = k0.wrapping_add(W0);
        k1 = k1.wrapping_add(W1);
    }
    [c0, c1, c2, c3]
}

/// Which rounding of which row: the counter behind 16 random bits per element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    /// The cluster's seed.
    pub seed: u32,
    /// The partition that rounds.
    pub partition: u32,
    /// The partition's write-back number.
    pub write_back: u64,
}

impl Noise {
    /// The random words of elements `64 * group ..`; see [`half()`] for which element takes which half.
    #[inline(always)]
    pub fn group(self, group: usize, domain: u32) -> [[u32; LANES]; 4] {
        let rest = [self.write_back as u32, (self.write_back >> 32) as u32, self.partition];
        blocks((group * LANES) as u32, rest, Key { seed: self.seed, domain })
    }
}

/// The 16 bits of the eight elements `8 * j ..` of a group of 64.
#[inline(always)]
pub fn half(words: &[[u32; LANES]; 4], j: usize) -> [u32; LANES] {
    let word = &words[j / 2];
    let shift = 16 * (j % 2);
    std::array::from_fn(|lane| (word[lane] >> shift) & 0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of Random123 1.14 (`kat_vectors`, philox4x32 10).
    #[test]
    fn published_known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            let key = Key { seed: key[0], domain: key[1] };
            let words = blocks(counter[0], [counter[1], counter[2], counter[3]], key);
            assert_eq!(words.map(|word| word[0]), expected);
        }
    }

    #[test]
    fn lanes_are_neighbouring_blocks() {
        let key = Key { seed: 7, domain: 1 };
        let wide = blocks(40, [1, 2, 3], key);
        for lane in 0..LANES {
            let one = blocks(40 + lane as u32, [1, 2, 3], key);
            assert_eq!(wide.map(|word| word[lane]), one.map(|word| word[0]));
        }
    }
}
