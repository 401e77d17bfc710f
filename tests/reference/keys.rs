//! Section 1: where a key lives.

use super::KeySpace;

pub fn mix64(key: u64) -> u64 {
    let mut x = key;
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d049bb133111eb);
    x ^= x >> 31;
    x
}

/// The `g` of section 1.
pub fn second_hash(key: u64) -> u64 {
    mix64(key).wrapping_mul(0x9e3779b97f4a7c15)
}

/// The partition of a key among `2^bits`.
pub fn partition(keys: KeySpace, bits: u32, key: u64) -> u32 {
    match keys {
        KeySpace::Dense { .. } => (key % (1u64 << bits)) as u32,
        KeySpace::Hashed if bits == 0 => 0,
        KeySpace::Hashed => (mix64(key) >> (64 - bits)) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions() {
        assert_eq!(mix64(0), 0);
        // SplitMix64 with seed 0: its first output is the finalizer of the golden gamma.
        assert_eq!(mix64(0x9e3779b97f4a7c15), 0xe220a8397b1dcdaf);
        let dense = KeySpace::Dense { rows: 100 };
        assert_eq!(partition(dense, 3, 29), 5);
        assert_eq!(partition(dense, 0, 29), 0);
        assert_eq!(partition(KeySpace::Hashed, 4, 0x9e3779b97f4a7c15), 0xe);
        assert_eq!(partition(KeySpace::Hashed, 16, 0x9e3779b97f4a7c15), 0xe220);
        assert_eq!(partition(KeySpace::Hashed, 0, 0x9e3779b97f4a7c15), 0);
    }
}
