//! The codes of integer rows by AVX2.
//!
//! `unsafe` lives here because the compiler takes the numbers of neighbouring vectors apart and puts them together again
//! where the loop in `integer.rs` is compiled; so it is written out. Every step gives the bits of the loop's. The functions
//! are only called after the CPU was asked for these instructions (`simd.rs`).
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Rounding;
use super::integer::{GROUP, Scale, WITHOUT_DIVIDING, encode_with};
use super::philox::{self, Noise, domain};

/// Rounds a row, as [`encode_with`] does.
#[target_feature(enable = "avx2,fma")]
pub fn encode_row<const BITS: u32, const AFFINE: bool, const LEN: usize>(
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
