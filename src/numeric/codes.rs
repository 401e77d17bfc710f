//! The codes of 64 numbers, by AVX2.
//!
//! `unsafe` lives here because the compiler takes the numbers of neighbouring vectors apart and puts them together again
//! where the loop in `integer.rs` is compiled; so it is written out. Every step is that of the loop, in its order, and
//! gives the same bits. The functions are only called after the CPU was asked for AVX2.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::integer::{GROUP, Scale};
use super::philox::{self, Noise, domain};

/// What `group_codes` in `integer.rs` does.
#[target_feature(enable = "avx2")]
#[inline]
pub fn avx2(x: &[f32; GROUP], scale: Scale, noise: Option<Noise>, group: usize, codes: &mut [u8; GROUP]) {
    let words = noise.map(|noise| philox::words_avx2(noise, group, domain::WEIGHTS));
    let (origin, step) = (_mm256_set1_ps(scale.origin), _mm256_set1_ps(scale.step));
    let offset = _mm256_set1_ps(scale.offset);
    let eight = |j: usize| {
        // SAFETY: numbers 8 * j to 8 * j + 7 are readable, and the load asks for no alignment.
        let x = unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * j)) };
        let mut v = _mm256_div_ps(_mm256_sub_ps(x, origin), step);
        if let Some(words) = &words {
            let bits = match j % 2 {
                0 => _mm256_and_si256(words[j / 2], _mm256_set1_epi32(0xffff)),
                _ => _mm256_srli_epi32::<16>(words[j / 2]),
            };
            let u = _mm256_mul_ps(_mm256_cvtepi32_ps(bits), _mm256_set1_ps(1.0 / 65536.0));
            v = _mm256_floor_ps(_mm256_add_ps(v, u));
        }
        _mm256_and_si256(_mm256_castps_si256(_mm256_add_ps(v, offset)), _mm256_set1_epi32(0xff))
    };
    // Packing works within halves of registers, so the order is put right at the end.
    let half = |first: usize| {
        let (low, high) = (
            _mm256_packus_epi32(eight(first), eight(first + 1)),
            _mm256_packus_epi32(eight(first + 2), eight(first + 3)),
        );
        _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    };
    for (first, codes) in [0, 4].into_iter().zip(codes.as_chunks_mut::<32>().0) {
        // SAFETY: 32 writable bytes, and the store asks for no alignment.
        unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), half(first)) };
    }
}
