//! Philox4x32-10, the counter-based generator behind all randomness (docs/NUMERICS.md, section 2).
//!
//! `unsafe` lives here because the compiler does not find the wide multiplications of AVX2 and AVX-512 by itself, so they
//! are written out; the functions are only called after the CPU was asked for them.
#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", not(miri)))]
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
    let first: [u32; LANES] = std::array::from_fn(|lane| first_block.wrapping_add(lane as u32));
    let counters = [first, [rest[0]; LANES], [rest[1]; LANES], [rest[2]; LANES]];
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if simd::level().has_avx2() {
        // SAFETY: the CPU has AVX2.
        return unsafe { rounds_avx2(counters, key) };
    }
    rounds(counters, key)
}

#[inline(always)]
fn rounds([mut c0, mut c1, mut c2, mut c3]: [[u32; LANES]; 4], mut key: Key) -> [[u32; LANES]; 4] {
    for _ in 0..ROUNDS {
        for lane in 0..LANES {
            let p0 = u64::from(M0) * u64::from(c0[lane]);
            let p1 = u64::from(M1) * u64::from(c2[lane]);
            c0[lane] = (p1 >> 32) as u32 ^ c1[lane] ^ key.seed;
            c1[lane] = p1 as u32;
            c2[lane] = (p0 >> 32) as u32 ^ c3[lane] ^ key.domain;
            c3[lane] = p0 as u32;
        }
        key = key.next();
    }
    [c0, c1, c2, c3]
}

impl Key {
    #[inline(always)]
    fn next(self) -> Key {
        Key { seed: self.seed.wrapping_add(W0), domain: self.domain.wrapping_add(W1) }
    }
}

/// The same, vectors in and out.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
#[inline]
fn rounds_avx2(counters: [[u32; LANES]; 4], key: Key) -> [[u32; LANES]; 4] {
    use std::arch::x86_64::__m256i;
    // SAFETY: arrays of eight u32 and vectors of 256 bits have the same size, and any bits are valid in both.
    let counters = counters.map(|c| unsafe { std::mem::transmute::<[u32; LANES], __m256i>(c) });
    // SAFETY: as above.
    vector_rounds(counters, key).map(|c| unsafe { std::mem::transmute::<__m256i, [u32; LANES]>(c) })
}

/// The words behind [`Noise::group`], in vectors.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn words_avx2(noise: &Noise, group: usize, domain: u32) -> [std::arch::x86_64::__m256i; 4] {
    use std::arch::x86_64::*;
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let first = _mm256_add_epi32(_mm256_set1_epi32((group * LANES) as i32), lanes);
    let rest = [noise.write_back as u32, (noise.write_back >> 32) as u32, noise.partition];
    let [second, third, fourth] = rest.map(|word| _mm256_set1_epi32(word as i32));
    vector_rounds([first, second, third, fourth], Key { seed: noise.seed, domain })
}

/// Random words for a group of many rows of one seed and partition, by AVX-512. As only write-back numbers differ, what the first three
/// rounds make of all else is worked out once.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) struct RowsAvx512 {
    /// By what the words of a block differ in round two and three. A word is in the lower half of 64 bits; what is in the upper
    /// halves does not matter, here and below.
    second: std::arch::x86_64::__m512i,
    third: [std::arch::x86_64::__m512i; 3],
    /// The keys of the rounds.
    keys: [[u64; 2]; ROUNDS],
    /// What the first round makes of a write-back number of 0.
    first: u32,
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl RowsAvx512 {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    pub fn new(noise: &Noise, group: usize, domain: u32) -> RowsAvx512 {
        use std::arch::x86_64::*;
        let each = |word: u32| _mm512_set1_epi64(i64::from(word));
        let (m0, m1) = (each(M0), each(M1));
        let mut key = Key { seed: noise.seed, domain };
        let keys = std::array::from_fn(|_| {
            let words = [u64::from(key.seed), u64::from(key.domain)];
            key = key.next();
            words
        });
        let [seeds, domains]: [[__m512i; 3]; 2] =
            [0, 1].map(|which| std::array::from_fn(|round| each(keys[round][which] as u32)));
        // A round, where c0 and c2 are the same in all rows. c1 is in no block's way: it is the write-back number, and comes later.
        let block =
            _mm512_add_epi64(_mm512_set1_epi64((group * LANES) as i64), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
        let upper_number = u64::from(M1) * (noise.write_back >> 32);
        let p0 = _mm512_mul_epu32(block, m0);
        let c2 = _mm512_ternarylogic_epi64::<0x96>(upper(p0), each(noise.partition), domains[0]);
        let p1 = _mm512_mul_epu32(c2, m1);
        let c0 = _mm512_ternarylogic_epi64::<0x96>(upper(p1), each(upper_number as u32), seeds[1]);
        let last = _mm512_mul_epu32(c0, m0);
        RowsAvx512 {
            second: _mm512_xor_si512(p0, domains[1]),
            third: [_mm512_xor_si512(p1, seeds[2]), _mm512_xor_si512(upper(last), domains[2]), last],
            keys,
            first: (upper_number >> 32) as u32 ^ noise.seed,
        }
    }

    /// The words behind [`Noise::group`] for the lower halves of some write-back numbers.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    pub fn words<const ROWS: usize>(&self, numbers: [u32; ROWS]) -> [[std::arch::x86_64::__m512i; 4]; ROWS] {
        use std::arch::x86_64::*;
        let (m0, m1) = (_mm512_set1_epi64(i64::from(M0)), _mm512_set1_epi64(i64::from(M1)));
        let mut rows = [[_mm512_setzero_si512(); 4]; ROWS];
        for (c, number) in rows.iter_mut().zip(numbers) {
            let p0 = _mm512_set1_epi64((u64::from(number ^ self.first) * u64::from(M0)) as i64);
            let p1 = _mm512_mul_epu32(_mm512_xor_si512(upper(p0), self.second), m1);
            let [c0, c2, c3] = self.third;
            *c = [_mm512_xor_si512(upper(p1), c0), p1, _mm512_xor_si512(p0, c2), c3];
        }
        // Rows take turns: each has to wait for its own last instruction. The compiler must not know how many rounds there are, or it would put
        // all of one row before the next, and what waits for a row would leave the processor no room to see the others.
        for key in std::hint::black_box(&self.keys[3..]) {
            let [seed, domain] = key.map(|word| _mm512_set1_epi64(word as i64));
            for c in &mut rows {
                let (p0, p1) = (_mm512_mul_epu32(c[0], m0), _mm512_mul_epu32(c[2], m1));
                // Both exclusive ors at once.
                let c0 = _mm512_ternarylogic_epi64::<0x96>(upper(p1), c[1], seed);
                let c2 = _mm512_ternarylogic_epi64::<0x96>(upper(p0), c[3], domain);
                *c = [c0, p1, c2, p0];
            }
        }
        rows
    }
}

/// Upper halves of 64 bits, in both halves. Not by a shift, which fewer of the units for vectors can do.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx512f")]
#[inline]
fn upper(product: std::arch::x86_64::__m512i) -> std::arch::x86_64::__m512i {
    std::arch::x86_64::_mm512_shuffle_epi32::<0b11_11_01_01>(product)
}

/// The instruction multiplies the lower halves of 64 bits, so lanes with even numbers and those with odd ones go through
/// the rounds side by side, and come together at the end. What is in the upper halves meanwhile does not matter.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
#[inline]
fn vector_rounds(counters: [std::arch::x86_64::__m256i; 4], key: Key) -> [std::arch::x86_64::__m256i; 4] {
    use std::arch::x86_64::*;
    let mut even = counters;
    let mut odd = counters.map(|c| _mm256_srli_epi64::<32>(c));
    let (m0, m1) = (_mm256_set1_epi32(M0 as i32), _mm256_set1_epi32(M1 as i32));
    let (w0, w1) = (_mm256_set1_epi32(W0 as i32), _mm256_set1_epi32(W1 as i32));
    let (mut seed, mut domain) = (_mm256_set1_epi32(key.seed as i32), _mm256_set1_epi32(key.domain as i32));
    let round = |[c0, c1, c2, c3]: [__m256i; 4], seed: __m256i, domain: __m256i| {
        let (p0, p1) = (_mm256_mul_epu32(c0, m0), _mm256_mul_epu32(c2, m1));
        [
            _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64::<32>(p1), c1), seed),
            p1,
            _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64::<32>(p0), c3), domain),
            p0,
        ]
    };
    for _ in 0..ROUNDS {
        even = round(even, seed, domain);
        odd = round(odd, seed, domain);
        (seed, domain) = (_mm256_add_epi32(seed, w0), _mm256_add_epi32(domain, w1));
    }
    std::array::from_fn(|word| _mm256_blend_epi32::<0b1010_1010>(even[word], _mm256_slli_epi64::<32>(odd[word])))
}

/// Which rounding of which row: the counter behind 16 random bits per element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noise {
    /// The cluster's seed.
    pub seed: u32,
    /// The partition that rounds.
    pub partition: u32,
    /// The partition's write-back number.
    pub write_back: u64,
}

impl Noise {
    /// Whether it is another's but for the lower half of the write-back number.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline(always)]
    pub(super) fn differs_in_number_only(&self, other: &Noise) -> bool {
        let rest = |noise: &Noise| (noise.seed, noise.partition, noise.write_back >> 32);
        rest(self) == rest(other)
    }

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
            assert_eq!(rounds(counter.map(|c| [c; LANES]), key).map(|word| word[0]), expected);
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
