//! The codes of integer rows, by AVX2 and by AVX-512.
//!
//! `unsafe` lives here because the compiler takes the numbers of neighbouring vectors apart and puts them together again
//! where the loop in `integer.rs` is compiled; so it is written out. Every step gives the bits of the loop's. The functions
//! are only called after the CPU was asked for these instructions (`simd.rs`).
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::RangeInclusive;

use super::Rounding;
use super::integer::{GROUP, Scale, encode_with, row_bytes};
use super::philox::{self, Noise, domain};
use super::simd;

/// Rounds a row, as [`encode_with`] does, unless this CPU has no such instructions.
#[inline(always)]
pub fn encode_row<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    x: &[f32],
    rounding: Rounding,
    noise: &Noise,
    row: &mut [u8],
) -> bool {
    let level = simd::level();
    if level.has_avx512() {
        // SAFETY: the CPU has AVX-512.
        unsafe { row_avx512::<BITS, AFFINE, LEN>(x, rounding, noise, row) };
    } else if level.has_avx2() {
        // SAFETY: the CPU has AVX2.
        unsafe { row_avx2::<BITS, AFFINE, LEN>(x, rounding, noise, row) };
    }
    level.has_avx2()
}

#[target_feature(enable = "avx2,fma")]
fn row_avx2<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    x: &[f32],
    rounding: Rounding,
    noise: &Noise,
    row: &mut [u8],
) {
    let kernel =
        |x: &_, scale: Scale, noise: Option<&_>, group, codes: &mut _| match WITHOUT_DIVIDING.contains(&scale.step) {
            true => avx2::<BITS, AFFINE, LEN, false>(x, scale, noise, group, codes),
            false => dividing_avx2(x, scale, noise, group, codes),
        };
    encode_with::<BITS, AFFINE, LEN>(x, rounding, noise, row, kernel);
}

/// Out of line, or quotients would be worked out in both ways, to choose between them.
#[target_feature(enable = "avx2,fma")]
#[cold]
#[inline(never)]
fn dividing_avx2(x: &[f32; GROUP], scale: Scale, noise: Option<&Noise>, group: usize, codes: &mut [u8; GROUP]) {
    avx2::<8, true, 0, true>(x, scale, noise, group, codes);
}

/// Rounds rows that lie side by side, each with the next write-back number, unless this CPU has no AVX-512. In one function, which keeps
/// its constants in registers from row to row. `LEN` is `dim` or 0.
#[inline(always)]
pub fn encode_rows<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    dim: usize,
    x: &[f32],
    rounding: Rounding,
    noise: Noise,
    rows: &mut [u8],
) -> bool {
    let has_it = simd::level().has_avx512();
    if has_it {
        // SAFETY: the CPU has AVX-512.
        unsafe { rows_avx512::<BITS, AFFINE, LEN>(dim, x, rounding, noise, rows) };
    }
    has_it
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn rows_avx512<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    dim: usize,
    x: &[f32],
    rounding: Rounding,
    mut noise: Noise,
    rows: &mut [u8],
) {
    let dim = if LEN > 0 { LEN } else { dim };
    for (row, x) in rows.chunks_exact_mut(row_bytes::<BITS, AFFINE>(dim)).zip(x.chunks_exact(dim)) {
        row_avx512::<BITS, AFFINE, LEN>(x, rounding, &noise, row);
        noise.write_back += 1;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn row_avx512<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    x: &[f32],
    rounding: Rounding,
    noise: &Noise,
    row: &mut [u8],
) {
    let kernel =
        |x: &_, scale: Scale, noise: Option<&_>, group, codes: &mut _| match WITHOUT_DIVIDING.contains(&scale.step) {
            true => avx512::<BITS, AFFINE, LEN, false>(x, scale, noise, group, codes),
            false => dividing_avx512::<BITS, AFFINE>(x, scale, noise, group, codes),
        };
    encode_with::<BITS, AFFINE, LEN>(x, rounding, noise, row, kernel);
}

/// Out of line, or quotients would be worked out in both ways, to choose between them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[cold]
#[inline(never)]
fn dividing_avx512<const BITS: u32, const AFFINE: bool>(
    x: &[f32; GROUP],
    scale: Scale,
    noise: Option<&Noise>,
    group: usize,
    codes: &mut [u8; GROUP],
) {
    avx512::<BITS, AFFINE, 0, true>(x, scale, noise, group, codes);
}

/// Steps by which [`Scale`]'s division can be done without dividing, which takes a third of the time. With the step's
/// reciprocal `r`, `q = x * r` is nearly the quotient; what is left, `x - q * step`, is exact in a fused operation; and
/// `q + left * r` is the quotient as a division rounds it. That was tried for every step and number (see the test): a step
/// has eight significant bits, and powers of two change nothing within this range. Where `left` is too small to be
/// exact the quotient is so small that its last bits make no difference to the code.
const WITHOUT_DIVIDING: RangeInclusive<f32> = f32::from_bits((127 - 60) << 23)..=1.0;

/// A `Kernel` of `integer.rs`. The constants make it one for each row function, of which it becomes a part.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn avx2<const BITS: u32, const AFFINE: bool, const LEN: usize, const DIVIDES: bool>(
    x: &[f32; GROUP],
    scale: Scale,
    noise: Option<&Noise>,
    group: usize,
    codes: &mut [u8; GROUP],
) {
    // SAFETY: the numbers and bytes that are loaded and stored are there, and need no alignment.
    unsafe {
        let words = noise.map(|noise| philox::words_avx2(noise, group, domain::WEIGHTS));
        let (origin, step) = (_mm256_set1_ps(scale.origin), _mm256_set1_ps(scale.step));
        let offset = _mm256_set1_epi32(scale.offset);
        let reciprocal = _mm256_set1_ps(1.0 / scale.step);
        let eight = |j: usize| {
            let x = _mm256_sub_ps(_mm256_loadu_ps(x.as_ptr().add(8 * j)), origin);
            let q = _mm256_mul_ps(x, reciprocal);
            let q = match DIVIDES {
                true => _mm256_div_ps(x, step),
                false => _mm256_fmadd_ps(_mm256_fnmadd_ps(q, step, x), reciprocal, q),
            };
            let whole = match &words {
                None => _mm256_cvtps_epi32(q),
                Some(words) => {
                    let bits = match j % 2 {
                        0 => _mm256_and_si256(words[j / 2], _mm256_set1_epi32(0xffff)),
                        _ => _mm256_srli_epi32::<16>(words[j / 2]),
                    };
                    // The fraction is exact, so this rounds as adding it does.
                    let sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(bits), _mm256_set1_ps(1.0 / 65536.0), q);
                    _mm256_cvtps_epi32(_mm256_floor_ps(sum))
                }
            };
            _mm256_and_si256(_mm256_add_epi32(whole, offset), _mm256_set1_epi32(0xff))
        };
        // Packing works within halves of registers, so the order is put right at the end.
        for half in 0..2 {
            let four = |first: usize| _mm256_packus_epi32(eight(4 * half + first), eight(4 * half + first + 1));
            let bytes = _mm256_packus_epi16(four(0), four(2));
            let ordered = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256(codes.as_mut_ptr().add(32 * half).cast(), ordered);
        }
    }
}

/// Which 16 bits of eight 64-bit lanes become the lower halves of 16 elements: the lowest of each, then the next.
const HALVES: [u16; 32] = {
    let mut halves = [0; 32];
    let mut element = 0;
    while element < 16 {
        halves[2 * element] = (4 * (element % 8) + element / 8) as u16;
        element += 1;
    }
    halves
};

/// The same by AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn avx512<const BITS: u32, const AFFINE: bool, const LEN: usize, const DIVIDES: bool>(
    x: &[f32; GROUP],
    scale: Scale,
    noise: Option<&Noise>,
    group: usize,
    codes: &mut [u8; GROUP],
) {
    // SAFETY: the numbers and bytes that are loaded and stored are there, and need no alignment.
    unsafe {
        let words = noise.map(|noise| philox::words_avx512(noise, group, domain::WEIGHTS));
        let (origin, step) = (_mm512_set1_ps(scale.origin), _mm512_set1_ps(scale.step));
        let offset = _mm512_set1_epi32(scale.offset);
        let reciprocal = _mm512_set1_ps(1.0 / scale.step);
        let halves = _mm512_loadu_si512(HALVES.as_ptr().cast());
        let sixteen = |j: usize| {
            let x = _mm512_sub_ps(_mm512_loadu_ps(x.as_ptr().add(16 * j)), origin);
            let q = _mm512_mul_ps(x, reciprocal);
            let q = match DIVIDES {
                true => _mm512_div_ps(x, step),
                false => _mm512_fmadd_ps(_mm512_fnmadd_ps(q, step, x), reciprocal, q),
            };
            let whole = match &words {
                None => _mm512_cvtps_epi32(q),
                Some(words) => {
                    let bits = _mm512_maskz_permutexvar_epi16(0x5555_5555, halves, words[j]);
                    // The fraction is exact, so this rounds as adding it does.
                    let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(bits), _mm512_set1_ps(1.0 / 65536.0), q);
                    _mm512_cvt_roundps_epi32::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(sum)
                }
            };
            _mm512_add_epi32(whole, offset)
        };
        // Codes are within the range of a byte, signed where they are symmetric ones of eight bits: packing changes none of them. It
        // works within quarters of registers, so the order is put right at the end.
        let (low, high) = (_mm512_packs_epi32(sixteen(0), sixteen(1)), _mm512_packs_epi32(sixteen(2), sixteen(3)));
        let bytes = match BITS == 8 && !AFFINE {
            true => _mm512_packs_epi16(low, high),
            false => _mm512_packus_epi16(low, high),
        };
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let ordered = _mm512_permutexvar_epi32(order, bytes);
        _mm512_storeu_si512(codes.as_mut_ptr().cast(), ordered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every significand of a step, with every one of a number.
    #[test]
    fn a_quotient_without_dividing_is_the_quotient() {
        if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
            eprintln!("this CPU has no AVX2: there is nothing to compare");
            return;
        }
        for significand in 0..128 {
            let step = f32::from_bits((127 - 5) << 23 | significand << 16);
            assert!(WITHOUT_DIVIDING.contains(&step));
            // SAFETY: the CPU has AVX2.
            assert_eq!(unsafe { differences(step) }, 0, "step {step}");
        }
    }

    /// How many numbers have another quotient.
    #[target_feature(enable = "avx2,fma")]
    fn differences(step: f32) -> u32 {
        let reciprocal = 1.0 / step;
        let differs = |significand: u32| {
            let x = f32::from_bits(127 << 23 | significand);
            let q = x * reciprocal;
            let left = (-q).mul_add(step, x);
            u32::from(left.mul_add(reciprocal, q) != x / step)
        };
        (0..1 << 23).map(differs).sum()
    }
}
