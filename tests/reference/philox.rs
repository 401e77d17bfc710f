//! Section 2: random numbers.

/// Philox4x32-10 (Salmon et al., Random123).
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let mut c = counter;
    let mut k = key;
    for round in 0..10 {
        if round > 0 {
            k[0] = k[0].wrapping_add(0x9e3779b9);
            k[1] = k[1].wrapping_add(0xbb67ae85);
        }
        let a = u64::from(c[0]) * 0xd2511f53;
        let b = u64::from(c[2]) * 0xcd9e8d57;
        c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
    }
    c
}

pub const DOMAIN_INITIAL: u32 = 0;
pub const DOMAIN_WEIGHTS: u32 = 1;
pub const DOMAIN_STATE: u32 = 2;

/// The 16 random bits of element `i` of a tensor in the write-back `n` of `partition`.
pub fn k16(i: usize, seed: u32, domain: u32, partition: u32, n: u64) -> u32 {
    let i = i as u32;
    let group = i / 64;
    let r = i % 64;
    let block = 8 * group + r % 8;
    let j = r / 8;
    let w = philox([block, n as u32, (n >> 32) as u32, partition], [seed, domain]);
    let word = w[(j / 2) as usize];
    if j.is_multiple_of(2) { word & 0xffff } else { word >> 16 }
}

/// The 32 random bits of element `i` of the initial value of a row.
pub fn k32(i: usize, seed: u32, tag: u32, key: u64) -> u32 {
    let i = i as u32;
    let group = i / 32;
    let r = i % 32;
    let block = 8 * group + r % 8;
    let w = philox([block, key as u32, (key >> 32) as u32, tag], [seed, DOMAIN_INITIAL]);
    w[(r / 8) as usize]
}

/// The table tag: 32-bit FNV-1a of the name.
pub fn table_tag(name: &str) -> u32 {
    let mut hash: u32 = 2166136261;
    for byte in name.bytes() {
        hash ^= u32::from(byte);
        hash = hash.wrapping_mul(16777619);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            philox([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn element_layout() {
        // Element 0: lower half of word 0 of block 0. Element 8: its upper half. Element 16: lower half of word 1.
        assert_eq!(k16(0, 0, 0, 0, 0), 0xe8d5);
        assert_eq!(k16(8, 0, 0, 0, 0), 0x6627);
        assert_eq!(k16(16, 0, 0, 0, 0), 0xc58d);
        assert_eq!(k16(56, 0, 0, 0, 0), 0x9b00);
        // Element 64 + 8 + 3: block 11, upper half of word 0; the number and partition in the counter.
        let w = philox([11, 6, 5, 7], [9, 1]);
        assert_eq!(k16(75, 9, 1, 7, (5 << 32) + 6), w[0] >> 16);
        // Initial values: element 8 is word 1 of block 0, element 32 + 17 word 2 of block 9.
        assert_eq!(k32(8, 0, 0, 0), 0xe169c58d);
        let w = philox([9, 6, 5, 7], [4, 0]);
        assert_eq!(k32(49, 4, 7, (5 << 32) + 6), w[2]);
    }

    #[test]
    fn fnv() {
        assert_eq!(table_tag(""), 0x811c9dc5);
        assert_eq!(table_tag("a"), 0xe40c292c);
        assert_eq!(table_tag("foobar"), 0xbf9cf968);
    }
}
