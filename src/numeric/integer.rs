//! Integer rows: codes with a scale per row (docs/NUMERICS.md, section 3).
//!
//! A row is `scale (bf16) | zero point (i16, affine only) | codes`. The scale is widened until every element
//! falls on a code, so nothing is clamped when it is rounded, and there is no absolute epsilon.
//!
//! `unsafe` lives here to call the functions for an instruction set, after the CPU was asked for it.

use super::Rounding;
use super::philox::{self, Noise, domain};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::simd;

pub(super) const MAGNITUDE: u32 = 0x7fff_ffff;
/// 2^126: larger elements are limited to it, so that no code times its scale overflows.
pub(super) const LIMIT: f32 = f32::from_bits((126 + 127) << 23);
/// The scale of a row with a NaN or an infinity: the whole row reads as NaN.
const POISON: u16 = 0x7fc0;
/// Elements that share eight Philox blocks.
pub(super) const GROUP: usize = 64;

/// A row, and where it is rounded to.
#[derive(Default)]
pub struct RowToRound<'a> {
    /// Its numbers.
    pub x: &'a [f32],
    /// Which rounding it is.
    pub noise: Noise,
    /// Where it is stored.
    pub to: &'a mut [u8],
}

/// How numbers become codes: `(x - origin) / step`, rounded, plus `offset`.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub origin: f32,
    pub step: f32,
    pub offset: i32,
}

/// Steps by which [`Scale`]'s division can be done without dividing, which takes a third of the time. With the step's
/// reciprocal `r`, `q = x * r` is nearly the quotient; what is left, `x - q * step`, is exact in a fused operation; and
/// `q + left * r` is the quotient as a division rounds it. That was tried for every step and number (see the test of `codes_avx2.rs`): a step
/// has eight significant bits, and powers of two change nothing within this range. Where `left` is too small to be
/// exact the quotient is so small that its last bits make no difference to the code.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) const WITHOUT_DIVIDING: std::ops::RangeInclusive<f32> =
    f32::from_bits((127 - 60) << 23)..=f32::from_bits((127 + 60) << 23);

/// A small number plus 1.5 * 2^23 is rounded to a whole one, ties to even, which stands in its lowest bits, two's complement and
/// all. A cast would do, but its checks for NaN and range keep the compiler from vectorising it.
const WHOLE: f32 = 12_582_912.0;

/// The smallest bf16 that is at least `x`, for x >= 0.
#[inline(always)]
fn up16(x: f32) -> u16 {
    ((x.to_bits() + 0xffff) >> 16) as u16
}

#[inline(always)]
fn widen(scale: u16) -> f32 {
    f32::from_bits(u32::from(scale) << 16)
}

/// The bits of the largest magnitude. Magnitudes order like their bits, NaN above all.
#[inline(always)]
fn max_abs_bits(x: &[f32]) -> u32 {
    x.iter().fold(0, |max, x| max.max(x.to_bits() & MAGNITUDE))
}

#[inline(always)]
fn min_max(x: &[f32]) -> (f32, f32) {
    let lo = x.iter().fold(f32::INFINITY, |m, &x| if x < m { x } else { m });
    let hi = x.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
    (lo, hi)
}

/// The largest symmetric code of a width.
#[inline(always)]
pub(super) const fn largest(bits: u32) -> i32 {
    (1 << (bits - 1)) - 1
}

#[inline(always)]
fn symmetric_scale(max: f32, largest: f32) -> u16 {
    let mut scale = up16(max / largest);
    while max > largest * widen(scale) {
        scale += 1;
    }
    scale
}

#[inline(always)]
fn affine_scale(lo: f32, hi: f32, max: f32, codes: f32) -> (u16, i16) {
    let narrowest = (hi - lo) / codes;
    let addressable = max / 32767.0;
    let mut scale = up16(if narrowest > addressable { narrowest } else { addressable }).max(1);
    loop {
        let s = widen(scale);
        let mut zero = (lo / s).floor();
        if zero * s > lo {
            zero -= 1.0;
        }
        if (-32768.0..=32767.0).contains(&zero) && (hi - zero * s) / s <= codes {
            return (scale, zero as i16);
        }
        scale += 1;
    }
}

/// Makes the codes of 64 numbers: rounded up or down at random where there is noise for the group of this number, else to the
/// nearest.
pub(super) trait Kernel: Fn(&[f32; GROUP], Scale, Option<&Noise>, usize, &mut [u8; GROUP]) {}
impl<F: Fn(&[f32; GROUP], Scale, Option<&Noise>, usize, &mut [u8; GROUP])> Kernel for F {}

/// Rounds every element to its code, and packs the codes.
#[inline(always)]
fn encode_codes<const BITS: u32>(x: &[f32], data: &mut [u8], noise: Option<&Noise>, scale: Scale, kernel: impl Kernel) {
    let group_bytes = GROUP * BITS as usize / 8;
    for (group, (some, data)) in x.chunks(GROUP).zip(data.chunks_mut(group_bytes)).enumerate() {
        let (mut padded, mut unpacked) = ([0.0; GROUP], [0; GROUP]);
        let x = some.as_array().unwrap_or_else(|| {
            padded[..some.len()].copy_from_slice(some);
            &padded
        });
        let in_place = BITS == 8 && data.len() == GROUP;
        // Called in one place only, so that it becomes a part of this.
        kernel(
            x,
            scale,
            noise,
            group,
            if in_place { data.as_mut_array().expect("its length is right") } else { &mut unpacked },
        );
        if !in_place {
            unpacked[some.len()..].fill(0);
            pack::<BITS>(&unpacked, data);
        }
    }
}

/// The [`Kernel`] for any CPU.
#[inline(always)]
fn portable(x: &[f32; GROUP], scale: Scale, noise: Option<&Noise>, group: usize, codes: &mut [u8; GROUP]) {
    let mut v = x.map(|x| (x - scale.origin) / scale.step);
    if let Some(noise) = noise {
        let words = noise.group(group, domain::WEIGHTS);
        for j in 0..GROUP / 8 {
            let k = philox::half(&words, j);
            for lane in 0..8 {
                let u = k[lane] as i32 as f32 * (1.0 / 65536.0);
                v[8 * j + lane] = (v[8 * j + lane] + u).floor();
            }
        }
    }
    *codes = v.map(|v| (v + (scale.offset as f32 + WHOLE)).to_bits() as u8);
}

/// Rounding to nearest takes no noise.
#[inline(always)]
fn noise_for(rounding: Rounding, noise: &Noise) -> Option<&Noise> {
    (rounding == Rounding::Stochastic).then_some(noise)
}

#[inline(always)]
fn pack<const BITS: u32>(codes: &[u8; GROUP], data: &mut [u8]) {
    match BITS {
        8 => data.copy_from_slice(&codes[..data.len()]),
        4 => {
            for (byte, pair) in data.iter_mut().zip(codes.as_chunks::<2>().0) {
                *byte = pair[0] | pair[1] << 4;
            }
        }
        _ => {
            for (byte, four) in data.iter_mut().zip(codes.as_chunks::<4>().0) {
                *byte = four[0] | four[1] << 2 | four[2] << 4 | four[3] << 6;
            }
        }
    }
}

/// Applies `value` to every stored code.
#[inline(always)]
fn decode_codes<const BITS: u32>(data: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    match BITS {
        8 => out.iter_mut().zip(data).for_each(|(out, &byte)| *out = value(byte)),
        4 => {
            let (pairs, last) = out.as_chunks_mut::<2>();
            for (pair, &byte) in pairs.iter_mut().zip(data) {
                *pair = [value(byte & 15), value(byte >> 4)];
            }
            if let [out] = last {
                *out = value(data[pairs.len()] & 15);
            }
        }
        _ => {
            let (fours, last) = out.as_chunks_mut::<4>();
            for (four, &byte) in fours.iter_mut().zip(data) {
                *four = [value(byte & 3), value(byte >> 2 & 3), value(byte >> 4 & 3), value(byte >> 6)];
            }
            for (j, out) in last.iter_mut().enumerate() {
                *out = value(data[fours.len()] >> (2 * j) & 3);
            }
        }
    }
}

/// Rounds a row of codes of a width, symmetric or affine.
#[inline(always)]
pub(super) fn encode<const BITS: u32, const AFFINE: bool>(
    x: &[f32],
    rounding: Rounding,
    noise: &Noise,
    row: &mut [u8],
) {
    encode_rows::<BITS, AFFINE>(x.len(), rounding, &mut [RowToRound { x, noise: *noise, to: row }]);
}

/// Rounds rows of `dim` elements. There is a function for each of the usual lengths, whose loops have no ends to look after.
#[inline(always)]
pub(super) fn encode_rows<const BITS: u32, const AFFINE: bool>(
    dim: usize,
    rounding: Rounding,
    rows: &mut [RowToRound<'_>],
) {
    match dim {
        16 => encode_rows_of::<BITS, AFFINE, 16>(dim, rounding, rows),
        32 => encode_rows_of::<BITS, AFFINE, 32>(dim, rounding, rows),
        64 => encode_rows_of::<BITS, AFFINE, 64>(dim, rounding, rows),
        128 => encode_rows_of::<BITS, AFFINE, 128>(dim, rounding, rows),
        _ => encode_rows_of::<BITS, AFFINE, 0>(dim, rounding, rows),
    }
}

/// `LEN` is `dim`, or 0 where that is not one of the usual ones; so too below.
#[inline(always)]
#[allow(unsafe_code)]
fn encode_rows_of<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    dim: usize,
    rounding: Rounding,
    rows: &mut [RowToRound<'_>],
) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use super::{codes_avx2, codes_avx512};
        let level = simd::level();
        if level.has_avx512() {
            let alike = |a: &RowToRound<'_>, b: &RowToRound<'_>| a.noise.differs_in_number_only(&b.noise);
            for rows in rows.chunk_by_mut(alike).flat_map(|rows| rows.chunks_mut(codes_avx512::MOST)) {
                // SAFETY: the CPU has AVX-512.
                unsafe { codes_avx512::encode::<BITS, AFFINE, LEN>(dim, rounding, rows) };
            }
            return;
        }
        if level.has_avx2() {
            for RowToRound { x, noise, to } in rows {
                // SAFETY: the CPU has AVX2.
                unsafe { codes_avx2::encode_row::<BITS, AFFINE, LEN>(x, rounding, noise, to) };
            }
            return;
        }
    }
    let _ = dim;
    for RowToRound { x, noise, to } in rows {
        row_portable::<BITS, AFFINE, LEN>(x, rounding, noise, to);
    }
}

/// The bytes of a row: its head and its codes.
#[inline(always)]
pub(super) const fn row_bytes<const BITS: u32, const AFFINE: bool>(dim: usize) -> usize {
    (if AFFINE { 4 } else { 2 }) + (dim * BITS as usize).div_ceil(8)
}

/// Rounds a row on any CPU.
#[inline(never)]
pub(super) fn row_portable<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    x: &[f32],
    rounding: Rounding,
    noise: &Noise,
    row: &mut [u8],
) {
    encode_with::<BITS, AFFINE, LEN>(x, rounding, noise, row, portable);
}

/// Rounds a row by a kernel.
#[inline(always)]
pub(super) fn encode_with<const BITS: u32, const AFFINE: bool, const LEN: usize>(
    x: &[f32],
    rounding: Rounding,
    noise: &Noise,
    row: &mut [u8],
    kernel: impl Kernel,
) {
    let (x, row) = if LEN > 0 { (&x[..LEN], &mut row[..row_bytes::<BITS, AFFINE>(LEN)]) } else { (x, row) };
    let max = max_abs_bits(x);
    if max <= LIMIT.to_bits() {
        return encode_finite::<BITS, AFFINE>(x, f32::from_bits(max), rounding, noise, row, kernel);
    }
    encode_beyond::<BITS, AFFINE>(x, rounding, noise, row);
}

/// A row whose magnitude is beyond what a scale can hold.
#[cold]
#[inline(never)]
fn encode_beyond<const BITS: u32, const AFFINE: bool>(x: &[f32], rounding: Rounding, noise: &Noise, row: &mut [u8]) {
    let limited: Option<Vec<f32>> = x.iter().map(|x| x.is_finite().then(|| x.clamp(-LIMIT, LIMIT))).collect();
    match limited {
        Some(x) => encode_finite::<BITS, AFFINE>(&x, LIMIT, rounding, noise, row, portable),
        None => {
            row.fill(0);
            row[..2].copy_from_slice(&POISON.to_le_bytes());
        }
    }
}

#[inline(always)]
fn encode_finite<const BITS: u32, const AFFINE: bool>(
    x: &[f32],
    max: f32,
    rounding: Rounding,
    noise: &Noise,
    row: &mut [u8],
    kernel: impl Kernel,
) {
    match AFFINE {
        true => encode_affine::<BITS>(x, max, rounding, noise, row, kernel),
        false => encode_symmetric::<BITS>(x, max, rounding, noise, row, kernel),
    }
}

#[inline(always)]
fn encode_symmetric<const BITS: u32>(
    x: &[f32],
    max: f32,
    rounding: Rounding,
    noise: &Noise,
    row: &mut [u8],
    kernel: impl Kernel,
) {
    let (head, data) = row.split_at_mut(2);
    let scale = symmetric_scale(max, largest(BITS) as f32);
    head.copy_from_slice(&scale.to_le_bytes());
    // All numbers of a row without a scale are zero.
    let (step, noise) = if scale == 0 { (1.0, None) } else { (widen(scale), noise_for(rounding, noise)) };
    let scale = Scale { origin: 0.0, step, offset: symmetric_offset::<BITS>() };
    encode_codes::<BITS>(x, data, noise, scale, kernel);
}

/// Four-bit codes are stored with 8 added; bytes are two's complement.
#[inline(always)]
const fn symmetric_offset<const BITS: u32>() -> i32 {
    if BITS == 4 { 8 } else { 0 }
}

#[inline(always)]
pub(super) fn decode_symmetric<const BITS: u32>(row: &[u8], out: &mut [f32]) {
    let (head, data) = row.split_at(2);
    let s = widen(u16::from_le_bytes([head[0], head[1]]));
    if BITS == 8 {
        decode_codes::<BITS>(data, out, |byte| f32::from(byte as i8) * s);
    } else {
        decode_codes::<BITS>(data, out, |code| (i32::from(code) - symmetric_offset::<BITS>()) as f32 * s);
    }
}

#[inline(always)]
fn encode_affine<const BITS: u32>(
    x: &[f32],
    max: f32,
    rounding: Rounding,
    noise: &Noise,
    row: &mut [u8],
    kernel: impl Kernel,
) {
    if max == 0.0 {
        return row.fill(0);
    }
    let (head, data) = row.split_at_mut(4);
    let (lo, hi) = min_max(x);
    let (scale, zero) = affine_scale(lo, hi, max, ((1 << BITS) - 1) as f32);
    head[..2].copy_from_slice(&scale.to_le_bytes());
    head[2..].copy_from_slice(&zero.to_le_bytes());
    let s = widen(scale);
    let scale = Scale { origin: f32::from(zero) * s, step: s, offset: 0 };
    encode_codes::<BITS>(x, data, noise_for(rounding, noise), scale, kernel);
}

#[inline(always)]
pub(super) fn decode_affine<const BITS: u32>(row: &[u8], out: &mut [f32]) {
    let (head, data) = row.split_at(4);
    let s = widen(u16::from_le_bytes([head[0], head[1]]));
    let zero = i32::from(i16::from_le_bytes([head[2], head[3]]));
    decode_codes::<BITS>(data, out, |code| (i32::from(code) + zero) as f32 * s);
}
