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

/// Rows side by side.
const FOUR: usize = 4;
/// Fours whose extremes are known before the first of them has its scale, and whose scales are known before the first of them is rounded: a
/// processor sees one or two fours at a time, so that what takes long in one is best put off to the next.
const AHEAD: usize = 1;
/// Rows at a time.
pub const MOST: usize = 64;
/// Numbers in a vector, and vectors in a group.
const LANES: usize = 16;
const VECTORS: usize = GROUP / LANES;

/// What scales are made of: the bits of the largest magnitudes of four rows, and their smallest and largest numbers where that matters.
#[repr(align(16))]
#[derive(Clone, Copy, Default)]
struct Extremes {
    max: [u32; FOUR],
    lo: [f32; FOUR],
    hi: [f32; FOUR],
}

/// How four rows are rounded: as `Scale` in `integer.rs`, with the reciprocal of the step and what is stored before the codes.
#[repr(align(16))]
#[derive(Clone, Copy, Default)]
struct Scales {
    origin: [f32; FOUR],
    step: [f32; FOUR],
    reciprocal: [f32; FOUR],
    /// 65536 of it.
    units: [f32; FOUR],
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
    let mut extremes = [Extremes::default(); MOST / FOUR];
    let mut scales = [Scales::default(); MOST / FOUR];
    for group in 0..dim.div_ceil(GROUP) {
        // Read from memory where it is needed: there are not enough registers for all of it.
        let words = match rounding {
            Rounding::Stochastic => Some(std::hint::black_box(RowsAvx512::new(&noise, group, domain::WEIGHTS))),
            Rounding::Nearest => None,
        };
        let mut unsure = 0;
        for number in 0..fours + 2 * AHEAD {
            if group == 0 && number < fours {
                // Of the last four, rows that are not there are the last one again.
                let x = |i: usize| rows[(FOUR * number + i).min(last)].x;
                extremes[number] = extremes_of::<AFFINE, LEN>([x(0), x(1), x(2), x(3)]);
            }
            if group == 0
                && let Some(number) = number.checked_sub(AHEAD)
                && number < fours
            {
                scales[number] = scales_of::<BITS, AFFINE>(&extremes[number]);
            }
            if let Some(number) = number.checked_sub(2 * AHEAD) {
                let rows = &mut rows[FOUR * number..(FOUR * number + FOUR).min(last + 1)];
                let these = round_four::<BITS, AFFINE, LEN>(group, rounding, rows, &scales[number], words.as_ref());
                unsure |= u64::from(these) << (FOUR * number);
            }
        }
        if let Some(words) = words.filter(|_| unsure != 0) {
            as_written::<BITS, AFFINE, LEN>(group, rows, unsure, &scales, &words);
        }
    }
}

/// The numbers of a row, whose length is then known.
#[inline(always)]
fn numbers_of<'a, const LEN: usize>(row: &RowToRound<'a>) -> &'a [f32] {
    if LEN > 0 { &row.x[..LEN] } else { row.x }
}

/// Rounds a group of 64 numbers of up to four rows, at random if there are random words. Returns a bit for each that must be done [`as_written`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn round_four<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    group: usize,
    rounding: Rounding,
    rows: &mut [RowToRound<'_>],
    scales: &Scales,
    words: Option<&RowsAvx512>,
) -> u8 {
    let mut unsure = 0;
    match (rows, words) {
        ([a, b, c, d], Some(words)) if scales.unusual == 0 => {
            let words = words.words([&*a, &*b, &*c, &*d].map(|row| row.noise.write_back as u32));
            for (i, row) in [a, b, c, d].into_iter().enumerate() {
                let sure = code_at_random::<BITS, AFFINE, LEN>(row, group, scales, i, &words[i]);
                unsure |= u8::from(!sure) << i;
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
                    let sure = code_at_random::<BITS, AFFINE, LEN>(row, group, scales, i, &words);
                    unsure |= u8::from(!sure) << i;
                } else {
                    code::<BITS, AFFINE, LEN>(row, group, scales, i, None);
                }
            }
        }
    }
    unsure
}

/// Rounds a group of some rows at random once more, by [`code`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[cold]
#[inline(never)]
fn as_written<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    group: usize,
    rows: &mut [RowToRound<'_>],
    which: u64,
    scales: &[Scales; MOST / FOUR],
    words: &RowsAvx512,
) {
    for (number, row) in rows.iter_mut().enumerate().filter(|(number, _)| which >> number & 1 != 0) {
        let [words] = words.words([row.noise.write_back as u32]);
        code::<BITS, AFFINE, LEN>(row, group, &scales[number / FOUR], number % FOUR, Some(&words));
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

/// Finds the extremes of four rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn extremes_of<const AFFINE: bool, const LEN: usize>(rows: [&[f32]; FOUR]) -> Extremes {
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
    let mut extremes = Extremes::default();
    let max = across(max, |a, b| _mm512_max_epu32(a, b));
    // SAFETY: each has room for four.
    unsafe { _mm_storeu_si128(extremes.max.as_mut_ptr().cast(), max) };
    if AFFINE {
        let floats = _mm512_castsi512_ps;
        let lo = across(lo.map(|lo| _mm512_castps_si512(lo)), |a, b| {
            _mm512_castps_si512(_mm512_min_ps(floats(a), floats(b)))
        });
        let hi = across(hi.map(|hi| _mm512_castps_si512(hi)), |a, b| {
            _mm512_castps_si512(_mm512_max_ps(floats(a), floats(b)))
        });
        // SAFETY: as above.
        unsafe {
            _mm_storeu_si128(extremes.lo.as_mut_ptr().cast(), lo);
            _mm_storeu_si128(extremes.hi.as_mut_ptr().cast(), hi);
        }
    }
    extremes
}

/// Finds the scales of four rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn scales_of<const BITS: u32, const AFFINE: bool>(of: &Extremes) -> Scales {
    // SAFETY: each has four.
    let (max, lo, hi) = unsafe {
        (_mm_loadu_si128(of.max.as_ptr().cast()), _mm_loadu_ps(of.lo.as_ptr()), _mm_loadu_ps(of.hi.as_ptr()))
    };
    let unlimited = _mm_cmpgt_epu32_mask(max, _mm_set1_epi32(LIMIT.to_bits() as i32));
    let max = _mm_castsi128_ps(max);
    let is_zero = _mm_cmp_ps_mask::<_CMP_EQ_OQ>(max, _mm_setzero_ps());
    let (step, zero) = match AFFINE {
        true => affine::<BITS>(lo, hi, max, !(unlimited | is_zero) & 15),
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
        let reciprocal = _mm_div_ps(_mm_set1_ps(1.0), step);
        _mm_storeu_ps(scales.reciprocal.as_mut_ptr(), reciprocal);
        _mm_storeu_ps(scales.units.as_mut_ptr(), _mm_mul_ps(reciprocal, _mm_set1_ps(65536.0)));
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

/// Which 16 bits of eight 64-bit lanes belong to 16 elements: the lowest of each, then the next.
const fn half_of(element: usize) -> u16 {
    (4 * (element % 8) + element / 8) as u16
}

/// [`half_of`] as the lower halves of elements.
const HALVES: [u16; 32] = {
    let mut halves = [0; 32];
    let mut element = 0;
    while element < LANES {
        halves[2 * element] = half_of(element);
        element += 1;
    }
    halves
};

/// For the 32 elements of two vectors: [`half_of`] each, and the lower and the upper half of what they have themselves.
const PAIR: [[u16; 32]; 3] = {
    let mut pair = [[0; 32]; 3];
    let mut element = 0;
    while element < 32 {
        // What is from 32 on comes from the second vector.
        pair[0][element] = half_of(element % LANES) + 32 * (element / LANES) as u16;
        pair[1][element] = 2 * element as u16;
        pair[2][element] = 2 * element as u16 + 1;
        element += 1;
    }
    pair
};

/// By how many units of 1/65536 of a code what [`code_at_random`] finds may be off from what NUMERICS.md says. With symmetric codes the reciprocal
/// makes half a unit, the fused operation a quarter, and to make it whole a half; the quotient and the sum of NUMERICS.md are rounded too, by
/// a quarter each. With affine ones of eight bits all but one of these are twice as much, as numbers are.
const fn unsure(affine: bool) -> i32 {
    if affine { 4 } else { 2 }
}

/// Rounds a group of 64 numbers of a row at random, the one of number `i` among four. Returns whether the codes are surely those of [`code`].
///
/// A code is found in units of 1/65536, in which the random bits are whole numbers: a fused operation, and then all is done by halves of 32 bits. That
/// is not what NUMERICS.md says, but can only differ next to where codes change, where one row in two hundred has a number.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn code_at_random<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    row: &mut RowToRound<'_>,
    group: usize,
    scales: &Scales,
    i: usize,
    words: &[__m512i; VECTORS],
) -> bool {
    let unsure = const { unsure(AFFINE) };
    let x = group_of(numbers_of::<LEN>(row), group);
    let scale = _mm512_set1_ps(scales.units[i]);
    // The average below adds one more, so that what is off by no more than that is still above a multiple of 65536.
    let bias = _mm512_set1_ps((unsure - 1 + (offset::<BITS, AFFINE>() << 16)) as f32);
    let units = |at: usize| {
        if LANES * at >= x.len() {
            return _mm512_set1_epi32(0x7fff);
        }
        let mut x = load(x, at);
        if AFFINE {
            x = _mm512_sub_ps(x, _mm512_set1_ps(scales.origin[i]));
        }
        _mm512_cvtps_epi32(_mm512_fmadd_ps(x, scale, bias))
    };
    let mut codes = [_mm512_setzero_si512(); 2];
    let mut sure = u32::MAX;
    for (pair, codes) in codes.iter_mut().enumerate().take(x.len().div_ceil(2 * LANES)) {
        // SAFETY: as many bytes as a vector has.
        let [bits, lower, upper] = PAIR.each_ref().map(|of| unsafe { _mm512_loadu_si512(of.as_ptr().cast()) });
        let (first, second) = (units(2 * pair), units(2 * pair + 1));
        let bits = _mm512_permutex2var_epi16(words[2 * pair], bits, words[2 * pair + 1]);
        // Half of the sum of the lower halves, of the random bits, and one: its highest bit is what is carried.
        let sum = _mm512_avg_epu16(_mm512_permutex2var_epi16(first, lower, second), bits);
        let carried = _mm512_srli_epi16::<15>(sum);
        *codes = _mm512_add_epi16(_mm512_permutex2var_epi16(first, upper, second), carried);
        sure = _mm512_mask_test_epi16_mask(sure, sum, _mm512_set1_epi16((0x7fff & !(unsure - 1)) as i16));
    }
    // Packing works within quarters of registers, so the order is put right.
    let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    let bytes = _mm512_permutexvar_epi64(order, bytes::<BITS, AFFINE>(codes[0], codes[1]));
    put::<BITS, AFFINE>(row, group, x.len(), scales.head[i], bytes);
    sure == u32::MAX
}

/// Rounds a group of 64 numbers of a row, the one of number `i` among four, as it is written in NUMERICS.md: at random if there are random words.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn code<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    row: &mut RowToRound<'_>,
    group: usize,
    scales: &Scales,
    i: usize,
    words: Option<&[__m512i; VECTORS]>,
) {
    let x = group_of(numbers_of::<LEN>(row), group);
    let (step, reciprocal) = (_mm512_set1_ps(scales.step[i]), _mm512_set1_ps(scales.reciprocal[i]));
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
        _mm512_add_epi32(whole, _mm512_set1_epi32(offset::<BITS, AFFINE>()))
    };
    // Packing works within quarters of registers, so the order is put right at the end.
    let (low, high) = (_mm512_packs_epi32(sixteen(0), sixteen(1)), _mm512_packs_epi32(sixteen(2), sixteen(3)));
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let bytes = _mm512_permutexvar_epi32(order, bytes::<BITS, AFFINE>(low, high));
    put::<BITS, AFFINE>(row, group, x.len(), scales.head[i], bytes);
}

/// The numbers of a group of a row.
#[inline(always)]
fn group_of(x: &[f32], group: usize) -> &[f32] {
    &x[GROUP * group..x.len().min(GROUP * group + GROUP)]
}

/// Four-bit codes are stored with 8 added.
const fn offset<const BITS: u32, const AFFINE: bool>() -> i32 {
    if BITS == 4 && !AFFINE { 8 } else { 0 }
}

/// Codes as bytes. They are within the range of a byte, signed where they are symmetric ones of eight bits: packing changes none of them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn bytes<const BITS: u32, const AFFINE: bool>(low: __m512i, high: __m512i) -> __m512i {
    match BITS == 8 && !AFFINE {
        true => _mm512_packs_epi16(low, high),
        false => _mm512_packus_epi16(low, high),
    }
}

/// Stores a row's head, and the codes of a group of so many numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn put<const BITS: u32, const AFFINE: bool>(
    row: &mut RowToRound<'_>,
    group: usize,
    len: usize,
    head: u32,
    mut codes: __m512i,
) {
    let (to, data) = row.to.split_at_mut(if AFFINE { 4 } else { 2 });
    to.copy_from_slice(&head.to_le_bytes()[..to.len()]);
    if !len.is_multiple_of(LANES) {
        codes = _mm512_maskz_mov_epi8(bytes_mask(len), codes);
    }
    store(pack::<BITS>(codes), &mut data[GROUP * group * BITS as usize / 8..][..(len * BITS as usize).div_ceil(8)]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::Noise;
    use crate::numeric::philox::half;
    use crate::numeric::simd;

    /// Numbers that lie where codes change for their random bits, or so near that the last bits of a quotient decide: all but the first two of a row,
    /// which make its scale.
    fn where_codes_change<const BITS: u32, const AFFINE: bool>(dim: usize, noise: Noise) -> Vec<f32> {
        let step = 1.0 + (noise.write_back % 128) as f64 / 128.0;
        let (origin, codes) = match AFFINE {
            true => (-3.0 * (noise.write_back % 11) as f64, (1 << BITS) - 1),
            false => (-f64::from(largest(BITS)), 2 * largest(BITS)),
        };
        let mut row: Vec<f32> = (0..dim)
            .map(|i| {
                let k = half(&noise.group(i / GROUP, domain::WEIGHTS), i % GROUP / 8)[i % 8];
                let code = 1 + (i * 37 + noise.write_back as usize * 11) as i32 % codes;
                let x = step * (origin + f64::from(code) - f64::from(k) / 65536.0 + (i % 5) as f64 / 131072.0);
                let x = x as f32;
                // Some neighbours in either direction.
                f32::from_bits(x.to_bits().wrapping_add_signed((i as i32 * 7 + noise.write_back as i32) % 9 - 4))
            })
            .collect();
        row[0] = (step * origin) as f32;
        row[1] = (step * (origin + f64::from(codes))) as f32;
        row
    }

    fn as_portable<const BITS: u32, const AFFINE: bool, const LEN: usize>(dim: usize) {
        let bytes = row_bytes::<BITS, AFFINE>(dim);
        for first in (0..256).step_by(MOST) {
            let noise = |i: usize| Noise { seed: 7, partition: 3, write_back: (first + i) as u64 };
            let x: Vec<Vec<f32>> = (0..MOST).map(|i| where_codes_change::<BITS, AFFINE>(dim, noise(i))).collect();
            let (mut stored, mut expected) = (vec![0; MOST * bytes], vec![0; MOST * bytes]);
            let mut rows: Vec<RowToRound<'_>> = stored
                .chunks_mut(bytes)
                .enumerate()
                .map(|(i, to)| RowToRound { x: &x[i], noise: noise(i), to })
                .collect();
            // SAFETY: the test asked whether the CPU has AVX-512.
            unsafe { encode::<BITS, AFFINE, LEN>(dim, Rounding::Stochastic, &mut rows) };
            for (i, to) in expected.chunks_mut(bytes).enumerate() {
                row_portable::<BITS, AFFINE, LEN>(&x[i], Rounding::Stochastic, &noise(i), to);
            }
            for i in 0..MOST {
                let range = i * bytes..(i + 1) * bytes;
                assert_eq!(stored[range.clone()], expected[range], "{BITS} bits, affine {AFFINE}, row {}", first + i);
            }
        }
    }

    #[test]
    fn codes_next_to_where_they_change_are_as_written() {
        if !simd::level().has_avx512() {
            return;
        }
        as_portable::<8, false, 64>(64);
        as_portable::<8, false, 0>(75);
        as_portable::<8, true, 64>(64);
        as_portable::<8, true, 0>(130);
        as_portable::<4, false, 16>(16);
        as_portable::<4, false, 0>(37);
        as_portable::<4, true, 128>(128);
        as_portable::<2, true, 32>(32);
    }
}
