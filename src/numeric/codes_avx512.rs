//! The codes of integer rows by AVX-512, four rows side by side.
//!
//! A row has to wait for its scale, and a scale for all of its row, which takes longer than all the rest: so scales are found for four rows
//! at once, and two such fours before the rows are rounded. Random words come for four rows at once too (`philox.rs`). Every step gives
//! the bits of `integer.rs`.
//!
//! `unsafe` lives here because the compiler makes none of this of plain loops. The functions are only called after the CPU was
//! asked for these instructions (`simd.rs`).
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Rounding;
use super::integer::{GROUP, LIMIT, MAGNITUDE, RowToRound, WITHOUT_DIVIDING, largest, row_bytes, row_portable};
use super::philox::{RowsAvx512, domain};
use super::simd;

/// Rows side by side.
const FOUR: usize = 4;
/// Fours whose scales are known before the first of them is rounded.
const AHEAD: usize = 2;
/// Fours that are asked for before their scales are found.
const ASKED: usize = 4;
/// Rows at a time.
pub const MOST: usize = 64;
/// Numbers in a vector, and vectors in a group.
const LANES: usize = 16;
const VECTORS: usize = GROUP / LANES;

/// How four rows are rounded: as `Scale` in `integer.rs`, with the reciprocal of the step and what is stored before the codes.
#[repr(align(16))]
#[derive(Clone, Copy, Default)]
struct Scales {
    origin: [f32; FOUR],
    step: [f32; FOUR],
    reciprocal: [f32; FOUR],
    head: [u32; FOUR],
    /// A bit for each row that is left to `integer.rs`: quotients without dividing are not made for its step.
    unusual: u8,
}

/// Rounds at most [`MOST`] rows of `dim` numbers, all of one seed and partition, and of write-back numbers with the same upper half.
/// `LEN` is `dim`, or 0 where that is not one of the usual ones.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub fn encode<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    dim: usize,
    rounding: Rounding,
    rows: &mut [RowToRound<'_>],
) {
    let dim = if LEN > 0 { LEN } else { dim };
    let bytes = row_bytes::<BITS, AFFINE>(dim);
    let Some(last) = rows.len().checked_sub(1) else { return };
    assert!(last < MOST && rows.iter().all(|row| row.x.len() == dim && row.to.len() == bytes), "rows of these lengths");
    let noise = rows[0].noise;
    let fours = rows.len().div_ceil(FOUR);
    let mut scales = [Scales::default(); MOST / FOUR];
    for group in 0..dim.div_ceil(GROUP) {
        // Read from memory where it is needed: there are not enough registers for all of it.
        let words = match rounding {
            Rounding::Stochastic => Some(std::hint::black_box(RowsAvx512::new(&noise, group, domain::WEIGHTS))),
            Rounding::Nearest => None,
        };
        for number in 0..fours + AHEAD {
            if group == 0 && number < fours {
                // Of the last four, rows that are not there are the last one again.
                let x = |i: usize| rows[(FOUR * number + i).min(last)].x;
                scales[number] = scales_of::<BITS, AFFINE, LEN>([x(0), x(1), x(2), x(3)]);
                for row in rows.iter().skip(FOUR * (number + ASKED)).take(FOUR) {
                    simd::prefetch_slice(row.x);
                }
            }
            if let Some(number) = number.checked_sub(AHEAD) {
                let rows = &mut rows[FOUR * number..(FOUR * number + FOUR).min(last + 1)];
                round_four::<BITS, AFFINE, LEN>(group, rounding, rows, &scales[number], words.as_ref());
            }
        }
    }
}

/// Rounds a group of 64 numbers of up to four rows, at random if there are random words.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn round_four<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    group: usize,
    rounding: Rounding,
    rows: &mut [RowToRound<'_>],
    scales: &Scales,
    words: Option<&RowsAvx512>,
) {
    match (rows, words) {
        ([a, b, c, d], Some(words)) if scales.unusual == 0 => {
            let words = words.words([&*a, &*b, &*c, &*d].map(|row| row.noise.write_back as u32));
            for (i, row) in [a, b, c, d].into_iter().enumerate() {
                code::<BITS, AFFINE, LEN>(row, group, scales, i, Some(&words[i]));
            }
        }
        (rows, words) => {
            for (i, row) in rows.iter_mut().enumerate() {
                if scales.unusual & 1 << i != 0 {
                    if group == 0 {
                        row_portable::<BITS, AFFINE, LEN>(row.x, rounding, &row.noise, row.to);
                    }
                } else if let Some(words) = words {
                    let [words] = words.words([row.noise.write_back as u32]);
                    code::<BITS, AFFINE, LEN>(row, group, scales, i, Some(&words));
                } else {
                    code::<BITS, AFFINE, LEN>(row, group, scales, i, None);
                }
            }
        }
    }
}

/// The lanes of vector `at` of so many numbers.
#[inline(always)]
fn lanes(len: usize, at: usize) -> u16 {
    match len.saturating_sub(LANES * at) {
        LANES.. => u16::MAX,
        few => (1 << few) - 1,
    }
}

/// Vector `at` of some numbers, with zeros where there are none.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn load(x: &[f32], at: usize) -> __m512 {
    // SAFETY: only lanes within the slice are read.
    unsafe { _mm512_maskz_loadu_ps(lanes(x.len(), at), x.as_ptr().wrapping_add(LANES * at)) }
}

/// What `op` makes of all the lanes of each of four vectors.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn across(of: [__m512i; FOUR], op: impl Fn(__m512i, __m512i) -> __m512i) -> __m128i {
    let pair = |a, b| op(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (first, second) = (pair(of[0], of[1]), pair(of[2], of[3]));
    let all = op(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
    // Each quarter of the register has something of all four now.
    let all = op(all, _mm512_shuffle_i64x2::<0b01_00_11_10>(all, all));
    _mm512_castsi512_si128(op(all, _mm512_shuffle_i64x2::<0b10_11_00_01>(all, all)))
}

/// Finds the scales of four rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn scales_of<const BITS: u32, const AFFINE: bool, const LEN: usize>(rows: [&[f32]; FOUR]) -> Scales {
    let infinity = _mm512_set1_ps(f32::INFINITY);
    let mut max = [_mm512_setzero_si512(); FOUR];
    let mut lo = [infinity; FOUR];
    let mut hi = [_mm512_sub_ps(_mm512_setzero_ps(), infinity); FOUR];
    for i in 0..FOUR {
        let x = if LEN > 0 { &rows[i][..LEN] } else { rows[i] };
        for at in 0..x.len().div_ceil(LANES) {
            let some = load(x, at);
            // Magnitudes order like their bits, NaN above all.
            let bits = _mm512_and_si512(_mm512_castps_si512(some), _mm512_set1_epi32(MAGNITUDE as i32));
            max[i] = _mm512_max_epu32(max[i], bits);
            if AFFINE {
                let these = lanes(x.len(), at);
                lo[i] = _mm512_mask_min_ps(lo[i], these, lo[i], some);
                hi[i] = _mm512_mask_max_ps(hi[i], these, hi[i], some);
            }
        }
    }
    let max = across(max, |a, b| _mm512_max_epu32(a, b));
    let unlimited = _mm_cmpgt_epu32_mask(max, _mm_set1_epi32(LIMIT.to_bits() as i32));
    let max = _mm_castsi128_ps(max);
    let is_zero = _mm_cmp_ps_mask::<_CMP_EQ_OQ>(max, _mm_setzero_ps());
    let (step, zero) = match AFFINE {
        true => {
            let floats = _mm512_castsi512_ps;
            let lo = across(lo.map(|lo| _mm512_castps_si512(lo)), |a, b| {
                _mm512_castps_si512(_mm512_min_ps(floats(a), floats(b)))
            });
            let hi = across(hi.map(|hi| _mm512_castps_si512(hi)), |a, b| {
                _mm512_castps_si512(_mm512_max_ps(floats(a), floats(b)))
            });
            affine::<BITS>(_mm_castsi128_ps(lo), _mm_castsi128_ps(hi), max, !(unlimited | is_zero) & 15)
        }
        false => (symmetric::<BITS>(max), _mm_setzero_ps()),
    };
    // A row of zeros has no scale, and is rounded with any.
    let stored = _mm_maskz_srli_epi32::<16>(!is_zero, _mm_castps_si128(step));
    let zero = _mm_maskz_mov_ps(!is_zero, zero);
    let step = _mm_mask_mov_ps(step, is_zero, _mm_set1_ps(1.0));
    let (least, most) = (_mm_set1_ps(*WITHOUT_DIVIDING.start()), _mm_set1_ps(*WITHOUT_DIVIDING.end()));
    let usual = _mm_cmp_ps_mask::<_CMP_GE_OQ>(step, least) & _mm_cmp_ps_mask::<_CMP_LE_OQ>(step, most);
    let mut scales = Scales { unusual: (unlimited | !usual) & 15, ..Scales::default() };
    // SAFETY: each has room for four.
    unsafe {
        _mm_storeu_ps(scales.step.as_mut_ptr(), step);
        _mm_storeu_ps(scales.reciprocal.as_mut_ptr(), _mm_div_ps(_mm_set1_ps(1.0), step));
        _mm_storeu_ps(scales.origin.as_mut_ptr(), _mm_mul_ps(zero, step));
        let head = _mm_or_si128(stored, _mm_slli_epi32::<16>(_mm_cvtps_epi32(zero)));
        _mm_storeu_si128(scales.head.as_mut_ptr().cast(), head);
    }
    scales
}

/// The smallest bf16 numbers that are at least these.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn up16(x: __m128) -> __m128i {
    let up = _mm_add_epi32(_mm_castps_si128(x), _mm_set1_epi32(0xffff));
    _mm_and_si128(up, _mm_set1_epi32(!0xffff))
}

/// `symmetric_scale` of four rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn symmetric<const BITS: u32>(max: __m128) -> __m128 {
    let largest = _mm_set1_ps(largest(BITS) as f32);
    let mut scale = up16(_mm_div_ps(max, largest));
    loop {
        let s = _mm_castsi128_ps(scale);
        let narrow = _mm_cmp_ps_mask::<_CMP_GT_OQ>(max, _mm_mul_ps(largest, s));
        if narrow == 0 {
            return s;
        }
        scale = _mm_mask_add_epi32(scale, narrow, scale, _mm_set1_epi32(1 << 16));
    }
}

/// `affine_scale` of four rows, or of those that are wanted: scales and zero points.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn affine<const BITS: u32>(lo: __m128, hi: __m128, max: __m128, wanted: u8) -> (__m128, __m128) {
    let codes = _mm_set1_ps(((1 << BITS) - 1) as f32);
    let narrowest = _mm_div_ps(_mm_sub_ps(hi, lo), codes);
    let addressable = _mm_div_ps(max, _mm_set1_ps(32767.0));
    let mut scale = _mm_max_epi32(up16(_mm_max_ps(narrowest, addressable)), _mm_set1_epi32(1 << 16));
    loop {
        let s = _mm_castsi128_ps(scale);
        let zero = _mm_floor_ps(_mm_div_ps(lo, s));
        let above = _mm_cmp_ps_mask::<_CMP_GT_OQ>(_mm_mul_ps(zero, s), lo);
        let zero = _mm_mask_sub_ps(zero, above, zero, _mm_set1_ps(1.0));
        let spans = _mm_div_ps(_mm_sub_ps(hi, _mm_mul_ps(zero, s)), s);
        let fits = _mm_cmp_ps_mask::<_CMP_LE_OQ>(spans, codes)
            & _mm_cmp_ps_mask::<_CMP_GE_OQ>(zero, _mm_set1_ps(-32768.0))
            & _mm_cmp_ps_mask::<_CMP_LE_OQ>(zero, _mm_set1_ps(32767.0));
        let narrow = !fits & wanted;
        if narrow == 0 {
            return (s, zero);
        }
        scale = _mm_mask_add_epi32(scale, narrow, scale, _mm_set1_epi32(1 << 16));
    }
}

/// Which 16 bits of eight 64-bit lanes become the lower halves of 16 elements: the lowest of each, then the next.
const HALVES: [u16; 32] = {
    let mut halves = [0; 32];
    let mut element = 0;
    while element < LANES {
        halves[2 * element] = (4 * (element % 8) + element / 8) as u16;
        element += 1;
    }
    halves
};

/// Rounds a group of 64 numbers of a row, the one of number `i` among four: at random if there are random words.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn code<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    row: &mut RowToRound<'_>,
    group: usize,
    scales: &Scales,
    i: usize,
    words: Option<&[__m512i; VECTORS]>,
) {
    let dim = if LEN > 0 { LEN } else { row.x.len() };
    let x = &row.x[GROUP * group..dim.min(GROUP * group + GROUP)];
    let (head, data) = row.to.split_at_mut(if AFFINE { 4 } else { 2 });
    head.copy_from_slice(&scales.head[i].to_le_bytes()[..head.len()]);
    let (step, reciprocal) = (_mm512_set1_ps(scales.step[i]), _mm512_set1_ps(scales.reciprocal[i]));
    // Four-bit codes are stored with 8 added.
    let offset = _mm512_set1_epi32(if BITS == 4 && !AFFINE { 8 } else { 0 });
    // SAFETY: as many bytes as a vector has.
    let halves = unsafe { _mm512_loadu_si512(HALVES.as_ptr().cast()) };
    let sixteen = |at: usize| {
        if LANES * at >= x.len() {
            return _mm512_setzero_si512();
        }
        let mut x = load(x, at);
        if AFFINE {
            x = _mm512_sub_ps(x, _mm512_set1_ps(scales.origin[i]));
        }
        let q = _mm512_mul_ps(x, reciprocal);
        let q = _mm512_fmadd_ps(_mm512_fnmadd_ps(q, step, x), reciprocal, q);
        let whole = match words {
            None => _mm512_cvtps_epi32(q),
            Some(words) => {
                let bits = _mm512_maskz_permutexvar_epi16(0x5555_5555, halves, words[at]);
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
    let mut codes = _mm512_permutexvar_epi32(order, bytes);
    if !x.len().is_multiple_of(LANES) {
        codes = _mm512_maskz_mov_epi8(bytes_mask(x.len()), codes);
    }
    let data = &mut data[GROUP * group * BITS as usize / 8..][..(x.len() * BITS as usize).div_ceil(8)];
    store(pack::<BITS>(codes), data);
}

/// A bit for each of so many bytes, at most 64.
#[inline(always)]
fn bytes_mask(bytes: usize) -> u64 {
    u64::MAX >> (64 - bytes)
}

/// Packs 64 codes into as few bytes as they need, the first of the vector.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn pack<const BITS: u32>(codes: __m512i) -> __m512i {
    match BITS {
        8 => codes,
        4 => {
            let pairs = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x1001));
            _mm512_castsi256_si512(_mm512_cvtepi16_epi8(pairs))
        }
        _ => {
            let pairs = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x0401));
            let fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x0010_0001));
            _mm512_castsi128_si512(_mm512_cvtepi32_epi8(fours))
        }
    }
}

/// Stores the first bytes of a vector, as many as there is room for.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn store(bytes: __m512i, to: &mut [u8]) {
    let at = to.as_mut_ptr();
    // SAFETY: each writes as many bytes as there are.
    unsafe {
        match to.len() {
            64 => _mm512_storeu_si512(at.cast(), bytes),
            32 => _mm256_storeu_si256(at.cast(), _mm512_castsi512_si256(bytes)),
            16 => _mm_storeu_si128(at.cast(), _mm512_castsi512_si128(bytes)),
            8 => _mm_storeu_si64(at, _mm512_castsi512_si128(bytes)),
            4 => _mm_storeu_si32(at, _mm512_castsi512_si128(bytes)),
            some => _mm512_mask_storeu_epi8(at.cast(), bytes_mask(some), bytes),
        }
    }
}
