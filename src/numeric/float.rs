//! f32, f16 and bf16 rows (docs/NUMERICS.md, section 3.2).

use half::slice::HalfFloatSliceExt;

use super::philox::{self, Noise, domain};
use super::{Rounding, simd};

const INFINITE: u32 = 0x7f80_0000;
const SIGN: u32 = 0x8000_0000;
/// Elements that share eight Philox blocks.
const GROUP: usize = 64;

#[inline(always)]
pub(super) fn decode_f32(row: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(row.as_chunks::<4>().0) {
        *out = f32::from_le_bytes(*bytes);
    }
}

#[inline(always)]
pub(super) fn encode_f32(x: &[f32], row: &mut [u8]) {
    for (bytes, x) in row.as_chunks_mut::<4>().0.iter_mut().zip(x) {
        *bytes = x.to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn decode_f16(row: &[u8], out: &mut [f32]) {
    match bytemuck::try_cast_slice::<u8, half::f16>(row) {
        Ok(row) if cfg!(target_endian = "little") => row.convert_to_f32_slice(out),
        _ => {
            for (out, bytes) in out.iter_mut().zip(row.as_chunks::<2>().0) {
                *out = half::f16::from_le_bytes(*bytes).to_f32();
            }
        }
    }
}

/// Reads bf16 numbers, of weights or of state.
#[inline(always)]
pub fn decode_bf16(row: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(row.as_chunks::<2>().0) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

/// Rounds to bf16, weights or state; the domain says which.
#[inline(always)]
pub fn encode_bf16(x: &[f32], rounding: Rounding, noise: &Noise, domain: u32, row: &mut [u8]) {
    encode16(x, rounding, noise, domain, row, bf16_stochastic, bf16_nearest);
}

#[inline(always)]
pub(super) fn encode_f16(x: &[f32], rounding: Rounding, noise: &Noise, row: &mut [u8]) {
    encode16(x, rounding, noise, domain::WEIGHTS, row, f16_stochastic, f16_nearest);
}

#[inline(always)]
fn encode16(
    x: &[f32],
    rounding: Rounding,
    noise: &Noise,
    domain: u32,
    row: &mut [u8],
    stochastic: impl Fn(u32, u32) -> u32,
    nearest: impl Fn(u32) -> u32,
) {
    let (row, _) = row.as_chunks_mut::<2>();
    match rounding {
        Rounding::Nearest => {
            for (out, x) in row.iter_mut().zip(x) {
                *out = (nearest(x.to_bits()) as u16).to_le_bytes();
            }
        }
        Rounding::Stochastic => {
            for (group, (row, x)) in row.chunks_mut(GROUP).zip(x.chunks(GROUP)).enumerate() {
                let words = noise.group(group, domain);
                for (j, (row, x)) in row.chunks_mut(8).zip(x.chunks(8)).enumerate() {
                    let k = philox::half(&words, j);
                    for ((out, x), k) in row.iter_mut().zip(x).zip(k) {
                        *out = (stochastic(x.to_bits(), k) as u16).to_le_bytes();
                    }
                }
            }
        }
    }
}

/// Picks among the rounded magnitude, infinity and NaN, and puts the sign back.
#[inline(always)]
fn finish(bits: u32, magnitude: u32, infinite: u32) -> u32 {
    let absolute = bits & !SIGN;
    let sign = (bits & SIGN) >> 16;
    let finite = sign | magnitude.min(infinite - 1);
    let quiet_nan = infinite | (infinite & !(infinite << 1)) >> 1;
    if absolute < INFINITE {
        finite
    } else if absolute == INFINITE {
        sign | infinite
    } else {
        quiet_nan
    }
}

#[inline(always)]
fn bf16_stochastic(bits: u32, k: u32) -> u32 {
    finish(bits, ((bits & !SIGN) + k) >> 16, 0x7f80)
}

#[inline(always)]
fn bf16_nearest(bits: u32) -> u32 {
    let absolute = bits & !SIGN;
    finish(bits, (absolute + 0x7fff + (absolute >> 16 & 1)) >> 16, 0x7f80)
}

#[inline(always)]
fn f16_stochastic(bits: u32, k: u32) -> u32 {
    let absolute = bits & !SIGN;
    let normal = ((absolute + (k >> 3)) >> 13).wrapping_sub(F16_REBIAS);
    let subnormal = small_integer((scaled_to_f16_steps(absolute) + (k >> 3) as i32 as f32 * (1.0 / 8192.0)).floor());
    finish(bits, if absolute >= F16_MIN_NORMAL { normal } else { subnormal }, 0x7c00)
}

#[inline(always)]
fn f16_nearest(bits: u32) -> u32 {
    let absolute = bits & !SIGN;
    let normal = ((absolute + 0xfff + (absolute >> 13 & 1)) >> 13).wrapping_sub(F16_REBIAS);
    let subnormal = small_integer(scaled_to_f16_steps(absolute).round_ties_even());
    finish(bits, if absolute >= F16_MIN_NORMAL { normal } else { subnormal }, 0x7c00)
}

/// A whole number below 2^23 as an integer; of anything else, anything. (A cast checks for NaN and range, which keeps the
/// compiler from vectorising it.)
#[inline(always)]
fn small_integer(x: f32) -> u32 {
    (x + 8_388_608.0).to_bits().wrapping_sub(0x4b00_0000)
}

/// 2^-14 as f32 bits.
const F16_MIN_NORMAL: u32 = 0x3880_0000;
/// The difference of the exponent biases, in place.
const F16_REBIAS: u32 = 112 << 10;

#[inline(always)]
fn scaled_to_f16_steps(absolute: u32) -> f32 {
    f32::from_bits(absolute) * 16_777_216.0
}

simd::dispatch! {
    /// Whether every number is finite.
    pub fn all_finite(x: &[f32]) -> bool {
        // One flag per block, not per element: the loop vectorises, and a bad batch still stops early.
        x.chunks(1024).all(|block| {
            block.iter().fold(0, |worst: u32, x| worst.max(x.to_bits() & !SIGN)) < INFINITE
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_agrees_with_the_half_crate() {
        for i in 0..1u32 << 20 {
            let bits = i.wrapping_mul(0x9e37_79b9) ^ i;
            let x = f32::from_bits(bits);
            if !x.is_finite() {
                continue;
            }
            let f16 = half::f16::from_f32(x);
            if f16.is_finite() {
                assert_eq!(f16_nearest(bits), u32::from(f16.to_bits()), "{x:e}");
            } else {
                assert_eq!(f16_nearest(bits) & 0x7fff, 0x7bff, "{x:e}");
            }
            let bf16 = half::bf16::from_f32(x);
            if bf16.is_finite() {
                assert_eq!(bf16_nearest(bits), u32::from(bf16.to_bits()), "{x:e}");
            } else {
                assert_eq!(bf16_nearest(bits) & 0x7fff, 0x7f7f, "{x:e}");
            }
        }
    }

    #[test]
    fn special_values() {
        assert_eq!(bf16_stochastic(f32::NAN.to_bits(), 0xffff), 0x7fc0);
        assert_eq!(f16_stochastic(f32::NAN.to_bits(), 0xffff), 0x7e00);
        assert_eq!(bf16_stochastic(f32::NEG_INFINITY.to_bits(), 0), 0xff80);
        assert_eq!(f16_nearest(f32::INFINITY.to_bits()), 0x7c00);
        assert_eq!(bf16_stochastic(f32::MAX.to_bits(), 0xffff), 0x7f7f);
        assert_eq!(f16_stochastic((-1e9f32).to_bits(), 0), 0xfbff);
    }

    #[test]
    fn finiteness_is_seen_anywhere() {
        let mut x = vec![1.0f32; 5000];
        assert!(all_finite(&x));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 1023, 1024, 4999] {
                x[at] = bad;
                assert!(!all_finite(&x));
                x[at] = f32::MAX;
                assert!(all_finite(&x));
            }
        }
    }
}
