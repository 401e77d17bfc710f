//! Section 3: row precisions, the choice of the scale, rounding.

use super::philox::{DOMAIN_STATE, DOMAIN_WEIGHTS, k16};
use super::{Precision, Quantizer, Rounding, StatePrecision};

/// Encodes the weights of a row with the numbers of the given write-back.
pub fn encode_weights(
    precision: Precision,
    quantizer: Quantizer,
    rounding: Rounding,
    x: &[f32],
    seed: u32,
    partition: u32,
    write_back: u64,
) -> Vec<u8> {
    let mut k = Vec::new();
    for i in 0..x.len() {
        k.push(k16(i, seed, DOMAIN_WEIGHTS, partition, write_back));
    }
    encode_with(precision, quantizer, rounding, x, &k)
}

/// Encodes state tensor `tensor` of a row (section 5, last paragraph).
pub fn encode_state(
    precision: StatePrecision,
    rounding: Rounding,
    x: &[f32],
    seed: u32,
    tensor: u32,
    partition: u32,
    write_back: u64,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, &v) in x.iter().enumerate() {
        match precision {
            StatePrecision::F32 => bytes.extend(v.to_le_bytes()),
            StatePrecision::Bf16 => {
                let k = k16(i, seed, DOMAIN_STATE + tensor, partition, write_back);
                bytes.extend(to_bf16(v, rounding, k).to_le_bytes());
            }
        }
    }
    bytes
}

/// Reads `count` state numbers from the front of `bytes`.
pub fn decode_state(precision: StatePrecision, count: usize, bytes: &[u8]) -> Vec<f32> {
    let mut values = Vec::new();
    for i in 0..count {
        values.push(match precision {
            StatePrecision::F32 => f32_at(bytes, 4 * i),
            StatePrecision::Bf16 => from_bf16(u16_at(bytes, 2 * i)),
        });
    }
    values
}

/// Bytes that the weights of a row take.
pub fn weight_bytes(precision: Precision, quantizer: Quantizer, dim: usize) -> usize {
    let header = match quantizer {
        Quantizer::Symmetric => 2,
        Quantizer::Affine => 4,
    };
    match precision {
        Precision::F32 => 4 * dim,
        Precision::F16 | Precision::Bf16 => 2 * dim,
        Precision::Int8 => header + dim,
        Precision::Int4 => header + dim.div_ceil(2),
        Precision::Int2 => header + dim.div_ceil(4),
    }
}

/// Encodes with given random bits: `k[i]` is k16(i).
fn encode_with(precision: Precision, quantizer: Quantizer, rounding: Rounding, x: &[f32], k: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match precision {
        Precision::F32 => {
            for v in x {
                bytes.extend(v.to_le_bytes());
            }
        }
        Precision::F16 => {
            for i in 0..x.len() {
                bytes.extend(to_f16(x[i], rounding, k[i]).to_le_bytes());
            }
        }
        Precision::Bf16 => {
            for i in 0..x.len() {
                bytes.extend(to_bf16(x[i], rounding, k[i]).to_le_bytes());
            }
        }
        Precision::Int8 | Precision::Int4 | Precision::Int2 => {
            bytes = encode_integers(precision, quantizer, rounding, x, k);
        }
    }
    assert_eq!(bytes.len(), weight_bytes(precision, quantizer, x.len()));
    bytes
}

/// Reads the weights of a row from the front of `bytes`.
pub fn decode_weights(precision: Precision, quantizer: Quantizer, dim: usize, bytes: &[u8]) -> Vec<f32> {
    let mut values = Vec::new();
    for i in 0..dim {
        values.push(match precision {
            Precision::F32 => f32_at(bytes, 4 * i),
            Precision::F16 => from_f16(u16_at(bytes, 2 * i)),
            Precision::Bf16 => from_bf16(u16_at(bytes, 2 * i)),
            Precision::Int8 | Precision::Int4 | Precision::Int2 => decode_integer(precision, quantizer, bytes, i),
        });
    }
    values
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

// ---- integer rows ----

fn bits_of(precision: Precision) -> usize {
    match precision {
        Precision::Int8 => 8,
        Precision::Int4 => 4,
        Precision::Int2 => 2,
        _ => panic!("not an integer precision"),
    }
}

/// `L` of section 3.
fn symmetric_limit(precision: Precision) -> f32 {
    match precision {
        Precision::Int8 => 127.0,
        Precision::Int4 => 7.0,
        _ => panic!("symmetric is for int8 and int4"),
    }
}

fn decode_integer(precision: Precision, quantizer: Quantizer, bytes: &[u8], i: usize) -> f32 {
    let scale = from_bf16(u16_at(bytes, 0));
    let (z, elements) = match quantizer {
        Quantizer::Symmetric => (0, &bytes[2..]),
        Quantizer::Affine => (i32::from(u16_at(bytes, 2) as i16), &bytes[4..]),
    };
    let per_byte = 8 / bits_of(precision);
    let mask = (1i32 << bits_of(precision)) - 1;
    let n = (i32::from(elements[i / per_byte]) >> (bits_of(precision) * (i % per_byte))) & mask;
    let integer = match (quantizer, precision) {
        (Quantizer::Affine, _) => n + z,
        (Quantizer::Symmetric, Precision::Int8) => i32::from(n as u8 as i8),
        (Quantizer::Symmetric, Precision::Int4) => n - 8,
        (Quantizer::Symmetric, _) => panic!("symmetric is for int8 and int4"),
    };
    integer as f32 * scale
}

/// `up16` of section 3.1, as bits.
fn up16(x: f32) -> u16 {
    assert!(x >= 0.0);
    (((x + 0.0).to_bits() + 0xffff) >> 16) as u16
}

/// Section 3.1 steps 4 and 5 for a finite row, limited to 2^126 and not all zero: scale bits and z.
fn choose_scale(precision: Precision, quantizer: Quantizer, x: &[f32]) -> (u16, i32) {
    let mut m = 0f32;
    let mut lo = x[0];
    let mut hi = x[0];
    for &v in x {
        m = m.max(v.abs());
        lo = lo.min(v);
        hi = hi.max(v);
    }
    match quantizer {
        Quantizer::Symmetric => {
            let limit = symmetric_limit(precision);
            let mut s = up16(m / limit);
            while m > limit * from_bf16(s) {
                s += 1;
            }
            (s, 0)
        }
        Quantizer::Affine => {
            let max_code = ((1u32 << bits_of(precision)) - 1) as f32;
            let mut s = up16(((hi - lo) / max_code).max(m / 32767.0));
            if s == 0 {
                s = 1;
            }
            loop {
                let scale = from_bf16(s);
                let mut z = (lo / scale).floor();
                if z * scale > lo {
                    z -= 1.0;
                }
                if (-32768.0..=32767.0).contains(&z) && (hi - z * scale) / scale <= max_code {
                    return (s, z as i32);
                }
                s += 1;
            }
        }
    }
}

fn encode_integers(precision: Precision, quantizer: Quantizer, rounding: Rounding, x: &[f32], k: &[u32]) -> Vec<u8> {
    let size = weight_bytes(precision, quantizer, x.len());
    // Step 1: poisoned rows.
    if x.iter().any(|v| !v.is_finite()) {
        let mut bytes = vec![0u8; size];
        bytes[0] = 0xc0;
        bytes[1] = 0x7f;
        return bytes;
    }
    // Step 2: saturation.
    let limit = 2f32.powi(126);
    let x: Vec<f32> = x.iter().map(|v| v.clamp(-limit, limit)).collect();
    // Step 3 to 5.
    let (s, z) = if x.iter().all(|&v| v == 0.0) { (0, 0) } else { choose_scale(precision, quantizer, &x) };
    let scale = from_bf16(s);
    // Section 3.2.
    let mut codes: Vec<u32> = Vec::new();
    for i in 0..x.len() {
        let u = k[i] as f32 / 65536.0;
        let position = match quantizer {
            Quantizer::Symmetric => x[i] / scale,
            Quantizer::Affine => (x[i] - z as f32 * scale) / scale,
        };
        let rounded = match rounding {
            _ if s == 0 => 0.0,
            Rounding::Stochastic => (position + u).floor(),
            Rounding::Nearest => position.round_ties_even(),
        };
        let q = rounded as i32;
        // Nothing is clamped: the contract says that this always holds.
        match (quantizer, precision) {
            (Quantizer::Symmetric, Precision::Int8) => {
                assert!((-127..=127).contains(&q), "code {q}");
                codes.push(u32::from(q as i8 as u8));
            }
            (Quantizer::Symmetric, Precision::Int4) => {
                assert!((-7..=7).contains(&q), "code {q}");
                codes.push((q + 8) as u32);
            }
            (Quantizer::Symmetric, _) => panic!("symmetric is for int8 and int4"),
            (Quantizer::Affine, _) => {
                assert!((0..1 << bits_of(precision)).contains(&q), "code {q}");
                codes.push(q as u32);
            }
        }
    }
    let mut bytes = Vec::new();
    bytes.extend(s.to_le_bytes());
    if quantizer == Quantizer::Affine {
        bytes.extend((z as i16).to_le_bytes());
    }
    let per_byte = 8 / bits_of(precision);
    for chunk in codes.chunks(per_byte) {
        let mut byte = 0u32;
        for (j, code) in chunk.iter().enumerate() {
            byte |= code << (bits_of(precision) * j);
        }
        bytes.push(byte as u8);
    }
    bytes
}

// ---- floats ----

pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

pub fn to_bf16(x: f32, rounding: Rounding, k: u32) -> u16 {
    if x.is_nan() {
        return 0x7fc0;
    }
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let bits = x.abs().to_bits();
    if x.is_infinite() {
        return sign | 0x7f80;
    }
    let magnitude = match rounding {
        Rounding::Stochastic => (bits + k) >> 16,
        Rounding::Nearest => half_to_even(bits, 16),
    };
    sign | magnitude.min(0x7f7f) as u16
}

/// `value / 2^shift`, rounded half to even.
fn half_to_even(value: u32, shift: u32) -> u32 {
    let whole = value >> shift;
    let rest = value - (whole << shift);
    let half = 1 << (shift - 1);
    if rest > half || (rest == half && whole % 2 == 1) { whole + 1 } else { whole }
}

pub fn from_f16(bits: u16) -> f32 {
    let negative = bits & 0x8000 != 0;
    let exponent = i32::from((bits >> 10) & 0x1f);
    let fraction = f32::from(bits & 0x3ff);
    let magnitude = if exponent == 31 {
        if fraction == 0.0 { f32::INFINITY } else { f32::NAN }
    } else if exponent == 0 {
        fraction * 2f32.powi(-24)
    } else {
        (1024.0 + fraction) * 2f32.powi(exponent - 25)
    };
    if negative { -magnitude } else { magnitude }
}

pub fn to_f16(x: f32, rounding: Rounding, k: u32) -> u16 {
    if x.is_nan() {
        return 0x7e00;
    }
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let a = x.abs();
    if x.is_infinite() {
        return sign | 0x7c00;
    }
    let magnitude = if a >= 2f32.powi(-14) {
        let shifted = match rounding {
            Rounding::Stochastic => (a.to_bits() + (k >> 3)) >> 13,
            Rounding::Nearest => half_to_even(a.to_bits(), 13),
        };
        shifted - 0x1c000
    } else {
        // Steps of 2^-24.
        let steps = a * 2f32.powi(24);
        match rounding {
            Rounding::Stochastic => (steps + (k >> 3) as f32 / 8192.0).floor() as u32,
            Rounding::Nearest => steps.round_ties_even() as u32,
        }
    };
    sign | magnitude.min(0x7bff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(Precision, Quantizer); 8] = [
        (Precision::F32, Quantizer::Symmetric),
        (Precision::F16, Quantizer::Symmetric),
        (Precision::Bf16, Quantizer::Symmetric),
        (Precision::Int8, Quantizer::Symmetric),
        (Precision::Int4, Quantizer::Symmetric),
        (Precision::Int8, Quantizer::Affine),
        (Precision::Int4, Quantizer::Affine),
        (Precision::Int2, Quantizer::Affine),
    ];

    #[test]
    fn example_of_section_3_2() {
        let x = [0.5f32, -1.0, 0.25];
        assert_eq!((1f32 / 127.0).to_bits(), 0x3c010204);
        let bytes = encode_with(Precision::Int8, Quantizer::Symmetric, Rounding::Stochastic, &x, &[0x8000; 3]);
        assert_eq!(bytes, [0x02, 0x3c, 0x3f, 0x82, 0x20]);
        let read = decode_weights(Precision::Int8, Quantizer::Symmetric, 3, &bytes);
        assert_eq!(read, [0.49987793, -0.99975586, 0.25390625]);
    }

    #[test]
    fn affine_by_hand() {
        // lo = 0, hi = 3: scale 1, z = 0; codes are the values, packed from the low bits.
        let x = [3.0, 0.0, 1.0, 2.0, 1.0];
        let k = [0xffff; 5];
        for rounding in [Rounding::Nearest, Rounding::Stochastic] {
            let bytes = encode_with(Precision::Int2, Quantizer::Affine, rounding, &x, &k);
            assert_eq!(bytes, [0x80, 0x3f, 0, 0, 0b10_01_00_11, 0b01]);
            let read = decode_weights(Precision::Int2, Quantizer::Affine, 5, &bytes);
            assert_eq!(read, x);
        }
        // lo = -2, hi = 13: scale 1, z = -2.
        let x = [-2.0, 13.0, 0.5];
        let bytes = encode_with(Precision::Int4, Quantizer::Affine, Rounding::Nearest, &x, &k[..3]);
        assert_eq!(bytes, [0x80, 0x3f, 0xfe, 0xff, 0xf0, 0x02]);
    }

    #[test]
    fn zero_and_poison() {
        let k = [0xffff; 3];
        for (precision, quantizer) in ALL {
            let zero = encode_with(precision, quantizer, Rounding::Stochastic, &[-0.0; 3], &k);
            let read = decode_weights(precision, quantizer, 3, &zero);
            assert!(read.iter().all(|v| *v == 0.0));
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let row = [1.0, bad, 2.0];
                let bytes = encode_with(precision, quantizer, Rounding::Nearest, &row, &k);
                let read = decode_weights(precision, quantizer, 3, &bytes);
                match precision {
                    Precision::F32 | Precision::F16 | Precision::Bf16 => {
                        assert_eq!(read[0], 1.0);
                        assert!(read[1] == bad || (read[1].is_nan() && bad.is_nan()));
                    }
                    _ => {
                        assert!(read.iter().all(|v| v.is_nan()));
                        assert!(bytes[2..].iter().all(|&b| b == 0));
                    }
                }
            }
        }
        let zero = encode_with(Precision::Int4, Quantizer::Symmetric, Rounding::Nearest, &[0.0; 3], &k);
        assert_eq!(zero, [0, 0, 0x88, 0x08]);
    }

    #[test]
    fn float_rules() {
        let n = Rounding::Nearest;
        let s = Rounding::Stochastic;
        assert_eq!(to_bf16(1.0, s, 0xffff), 0x3f80);
        assert_eq!(to_bf16(-f32::from_bits(0x3f80_0001), s, 0xffff), 0xbf81);
        assert_eq!(to_bf16(f32::from_bits(0x3f80_8000), n, 0), 0x3f80);
        assert_eq!(to_bf16(f32::from_bits(0x3f81_8000), n, 0), 0x3f82);
        assert_eq!(to_bf16(f32::MAX, n, 0), 0x7f7f);
        assert_eq!(to_bf16(-f32::MAX, s, 0xffff), 0xff7f);
        assert_eq!(to_bf16(f32::NEG_INFINITY, s, 0xffff), 0xff80);
        assert_eq!(to_f16(1.0, s, 0xffff), 0x3c00);
        assert_eq!(to_f16(-2.0, n, 0), 0xc000);
        assert_eq!(to_f16(65519.0, n, 0), 0x7bff);
        assert_eq!(to_f16(1e10, n, 0), 0x7bff);
        assert_eq!(to_f16(-f32::MAX, s, 0xffff), 0xfbff);
        assert_eq!(to_f16(f32::INFINITY, s, 0xffff), 0x7c00);
        assert_eq!(to_f16(2f32.powi(-24), n, 0), 1);
        assert_eq!(to_f16(2f32.powi(-25), n, 0), 0);
        assert_eq!(to_f16(1.5 * 2f32.powi(-24), n, 0), 2);
        assert_eq!(to_f16(2f32.powi(-25), s, 0x7fff), 0);
        assert_eq!(to_f16(2f32.powi(-25), s, 0x8000), 1);
        // The largest number below 2^-14 goes up to the smallest normal.
        assert_eq!(to_f16(f32::from_bits(0x387f_ffff), n, 0), 0x400);
        assert_eq!(to_f16(f32::from_bits(0x387f_ffff), s, 0xffff), 0x400);
        // Every f16 and bf16 reads and writes as itself, in both modes.
        for bits in 0..=u16::MAX {
            let (h, b) = (from_f16(bits), from_bf16(bits));
            for rounding in [n, s] {
                if !h.is_nan() {
                    assert_eq!(to_f16(h, rounding, 0xfff8), bits);
                }
                if !b.is_nan() {
                    assert_eq!(to_bf16(b, rounding, 0xffff), bits);
                }
            }
        }
    }

    /// Rows of all magnitudes: codes stay in range (asserted in the encoder) and every element is
    /// read back within one step.
    #[test]
    fn no_code_leaves_its_range() {
        let mut random = 1u64;
        let mut next = || {
            random = super::super::keys::mix64(random.wrapping_add(0x9e3779b97f4a7c15));
            random
        };
        for _ in 0..20000 {
            let dim = 1 + next() as usize % 5;
            let base = (next() % 255) as u32;
            let mut x = Vec::new();
            for _ in 0..dim {
                let exponent = base.saturating_sub((next() % 4) as u32 * (next() % 9) as u32);
                let fraction = match next() % 3 {
                    0 => 0,
                    1 => (next() as u32 & 0x7f) << 16,
                    _ => next() as u32 & 0x7fffff,
                };
                let sign = (next() as u32) & 0x8000_0000;
                x.push(f32::from_bits(sign | exponent << 23 | fraction));
            }
            if next() % 4 == 0 {
                // Nearly constant rows.
                for i in 1..dim {
                    x[i] = f32::from_bits(x[0].to_bits() ^ (next() as u32 & 3));
                }
            }
            for (precision, quantizer) in ALL {
                if matches!(precision, Precision::F32 | Precision::F16 | Precision::Bf16) {
                    continue;
                }
                for (rounding, bits) in [
                    (Rounding::Nearest, 0),
                    (Rounding::Stochastic, 0),
                    (Rounding::Stochastic, 0xffff),
                    (Rounding::Stochastic, next() as u32 & 0xffff),
                ] {
                    let bytes = encode_with(precision, quantizer, rounding, &x, &[bits; 5]);
                    let read = decode_weights(precision, quantizer, dim, &bytes);
                    let scale = f64::from(from_bf16(u16_at(&bytes, 0)));
                    let limit = 2f32.powi(126);
                    for i in 0..dim {
                        let wanted = f64::from(x[i].clamp(-limit, limit));
                        let error = (f64::from(read[i]) - wanted).abs();
                        // A little more than a step: x - z * s and x / s are rounded.
                        assert!(error <= scale * 1.01, "{x:?} {read:?} {precision:?}");
                    }
                }
            }
        }
    }
}
