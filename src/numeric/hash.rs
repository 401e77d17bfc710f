//! Where a key lives: the hashes behind partitions, cache sets and sketches (docs/NUMERICS.md, section 1).

/// Mixes all bits of `x` into all bits of the result; a bijection.
#[inline(always)]
pub fn mix64(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A second hash, from the result of [`mix64`], whose upper bits do not repeat the partition.
#[inline(always)]
pub fn second(hash: u64) -> u64 {
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The table's part of the counter behind initial values: FNV-1a of its name.
pub fn table_tag(name: &str) -> u32 {
    name.bytes().fold(2_166_136_261, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_1a_known_answers() {
        assert_eq!(table_tag(""), 0x811c_9dc5);
        assert_eq!(table_tag("a"), 0xe40c_292c);
        assert_eq!(table_tag("foobar"), 0xbf9c_f968);
    }

    #[test]
    fn mix64_is_splitmix64_s_finalizer() {
        // The first output of SplitMix64 seeded with 0 is the finalizer of its increment.
        assert_eq!(mix64(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
    }
}
