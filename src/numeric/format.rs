//! Row precisions, and the one place that picks the kernel for each (docs/NUMERICS.md, section 3).

use super::philox::domain;
use super::{Noise, RowToRound, float, integer};

/// How the weights of a row are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 32-bit floating point: nothing is ever rounded.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// 8-bit integers with a scale per row.
    Int8,
    /// 4-bit integers with a scale per row.
    Int4,
    /// 2-bit integers with a scale and a zero point per row.
    Int2,
}

/// How integer codes map to values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantizer {
    /// `q * scale`, q from -L to L: 2 bytes per row beside the codes.
    Symmetric,
    /// `(q + zero) * scale`: 4 bytes per row beside the codes; the only one for int2.
    Affine,
}

/// How a full-precision row becomes a low-precision one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// Up or down at random, so that the mean is the value.
    Stochastic,
    /// To the nearest code. Small updates are lost; it exists for comparison.
    Nearest,
}

/// Gives an enum its names: printing, parsing, and an error that lists them.
macro_rules! names {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),+) => {
        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $name),+ })
            }
        }
        impl ::std::str::FromStr for $type {
            type Err = String;
            fn from_str(s: &str) -> Result<Self, String> {
                match s {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(format!("unknown {} '{s}': use one of {}", $what, [$($name),+].join(", "))),
                }
            }
        }
    };
}
pub(crate) use names;

names!(Precision, "precision", F32 = "f32", F16 = "f16", Bf16 = "bf16", Int8 = "int8", Int4 = "int4", Int2 = "int2");
names!(Quantizer, "quantizer", Symmetric = "symmetric", Affine = "affine");
names!(Rounding, "rounding", Stochastic = "stochastic", Nearest = "nearest");

/// A precision with its quantizer, where it has one: all that is needed to read and write weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// As they are.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// 8-bit codes, symmetric.
    Int8Symmetric,
    /// 4-bit codes, symmetric.
    Int4Symmetric,
    /// 8-bit codes, affine.
    Int8Affine,
    /// 4-bit codes, affine.
    Int4Affine,
    /// 2-bit codes, affine.
    Int2Affine,
}

impl WeightFormat {
    /// The format of a precision and quantizer, or `None` for int2 with a symmetric quantizer.
    pub fn new(precision: Precision, quantizer: Quantizer) -> Option<WeightFormat> {
        Some(match (precision, quantizer) {
            (Precision::F32, _) => WeightFormat::F32,
            (Precision::F16, _) => WeightFormat::F16,
            (Precision::Bf16, _) => WeightFormat::Bf16,
            (Precision::Int8, Quantizer::Symmetric) => WeightFormat::Int8Symmetric,
            (Precision::Int4, Quantizer::Symmetric) => WeightFormat::Int4Symmetric,
            (Precision::Int8, Quantizer::Affine) => WeightFormat::Int8Affine,
            (Precision::Int4, Quantizer::Affine) => WeightFormat::Int4Affine,
            (Precision::Int2, Quantizer::Affine) => WeightFormat::Int2Affine,
            (Precision::Int2, Quantizer::Symmetric) => return None,
        })
    }

    /// The format of a precision and quantizer by their names; the quantizer may be empty where there are no integers.
    pub fn named(precision: &str, quantizer: &str) -> Option<WeightFormat> {
        let precision = precision.parse().ok()?;
        match precision {
            Precision::F32 | Precision::F16 | Precision::Bf16 => WeightFormat::new(precision, Quantizer::Symmetric),
            _ => WeightFormat::new(precision, quantizer.parse().ok()?),
        }
    }

    /// The precision, and the quantizer of integers.
    pub fn parts(self) -> (Precision, Option<Quantizer>) {
        match self {
            WeightFormat::F32 => (Precision::F32, None),
            WeightFormat::F16 => (Precision::F16, None),
            WeightFormat::Bf16 => (Precision::Bf16, None),
            WeightFormat::Int8Symmetric => (Precision::Int8, Some(Quantizer::Symmetric)),
            WeightFormat::Int4Symmetric => (Precision::Int4, Some(Quantizer::Symmetric)),
            WeightFormat::Int8Affine => (Precision::Int8, Some(Quantizer::Affine)),
            WeightFormat::Int4Affine => (Precision::Int4, Some(Quantizer::Affine)),
            WeightFormat::Int2Affine => (Precision::Int2, Some(Quantizer::Affine)),
        }
    }

    /// Bytes that the weights of a row of `dim` elements take.
    pub fn bytes(self, dim: usize) -> usize {
        match self {
            WeightFormat::F32 => 4 * dim,
            WeightFormat::F16 | WeightFormat::Bf16 => 2 * dim,
            WeightFormat::Int8Symmetric => integer::row_bytes::<8, false>(dim),
            WeightFormat::Int4Symmetric => integer::row_bytes::<4, false>(dim),
            WeightFormat::Int8Affine => integer::row_bytes::<8, true>(dim),
            WeightFormat::Int4Affine => integer::row_bytes::<4, true>(dim),
            WeightFormat::Int2Affine => integer::row_bytes::<2, true>(dim),
        }
    }

    /// Reads stored weights. `row` has [`Self::bytes`] of `out.len()`.
    #[inline(always)]
    pub fn decode(self, row: &[u8], out: &mut [f32]) {
        match self {
            WeightFormat::F32 => float::decode_f32(row, out),
            WeightFormat::F16 => float::decode_f16(row, out),
            WeightFormat::Bf16 => float::decode_bf16(row, out),
            WeightFormat::Int8Symmetric => integer::decode_symmetric::<8>(row, out),
            WeightFormat::Int4Symmetric => integer::decode_symmetric::<4>(row, out),
            WeightFormat::Int8Affine => integer::decode_affine::<8>(row, out),
            WeightFormat::Int4Affine => integer::decode_affine::<4>(row, out),
            WeightFormat::Int2Affine => integer::decode_affine::<2>(row, out),
        }
    }

    /// Rounds weights to the nearest. Takes no random numbers.
    #[inline(always)]
    pub fn encode_nearest(self, x: &[f32], row: &mut [u8]) {
        self.encode(x, Rounding::Nearest, &Noise { seed: 0, partition: 0, write_back: 0 }, row);
    }

    /// Rounds weights into `row`, which has [`Self::bytes`] of `x.len()`. The noise comes by reference: a copy would be read
    /// as a whole just after a part of it was written, for which the processor waits until nothing else is under way.
    #[inline(always)]
    pub fn encode(self, x: &[f32], rounding: Rounding, noise: &Noise, row: &mut [u8]) {
        match self {
            WeightFormat::F32 => float::encode_f32(x, row),
            WeightFormat::F16 => float::encode_f16(x, rounding, noise, row),
            WeightFormat::Bf16 => float::encode_bf16(x, rounding, noise, domain::WEIGHTS, row),
            WeightFormat::Int8Symmetric => integer::encode::<8, false>(x, rounding, noise, row),
            WeightFormat::Int4Symmetric => integer::encode::<4, false>(x, rounding, noise, row),
            WeightFormat::Int8Affine => integer::encode::<8, true>(x, rounding, noise, row),
            WeightFormat::Int4Affine => integer::encode::<4, true>(x, rounding, noise, row),
            WeightFormat::Int2Affine => integer::encode::<2, true>(x, rounding, noise, row),
        }
    }
}

super::simd::dispatch! {
    /// Decodes many rows that lie side by side: `rows` holds `out.len() / dim` of them.
    pub fn decode_rows(format: WeightFormat, dim: usize, rows: &[u8], out: &mut [f32]) {
        match dim {
            16 => decode_all::<16>(format, dim, rows, out),
            32 => decode_all::<32>(format, dim, rows, out),
            64 => decode_all::<64>(format, dim, rows, out),
            128 => decode_all::<128>(format, dim, rows, out),
            _ => decode_all::<0>(format, dim, rows, out),
        }
    }
}

/// `DIM` is `dim`, or 0 where that is not one of the usual ones: loops of a known length are unrolled.
#[inline(always)]
fn decode_all<const DIM: usize>(format: WeightFormat, dim: usize, rows: &[u8], out: &mut [f32]) {
    let dim = if DIM > 0 { DIM } else { dim };
    for (row, out) in rows.chunks_exact(format.bytes(dim)).zip(out.chunks_exact_mut(dim)) {
        format.decode(row, out);
    }
}

super::simd::dispatch! {
    /// [`WeightFormat::encode_nearest`].
    pub fn encode_nearest(format: WeightFormat, x: &[f32], row: &mut [u8]) {
        format.encode_nearest(x, row);
    }
}

impl WeightFormat {
    /// Rounds rows of `dim` elements, wherever they lie: [`Self::encode`] of many, which is faster than one after the other.
    #[inline(always)]
    pub fn encode_many(self, dim: usize, rounding: Rounding, rows: &mut [RowToRound<'_>]) {
        // With the format known the loop has no choices to make.
        match self {
            WeightFormat::Int8Symmetric => integer::encode_rows::<8, false>(dim, rounding, rows),
            WeightFormat::Int4Symmetric => integer::encode_rows::<4, false>(dim, rounding, rows),
            WeightFormat::Int8Affine => integer::encode_rows::<8, true>(dim, rounding, rows),
            WeightFormat::Int4Affine => integer::encode_rows::<4, true>(dim, rounding, rows),
            WeightFormat::Int2Affine => integer::encode_rows::<2, true>(dim, rounding, rows),
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 => {
                for RowToRound { x, noise, to } in rows {
                    self.encode(x, rounding, noise, to);
                }
            }
        }
    }
}

super::simd::dispatch! {
    /// Encodes many rows side by side; row i takes the write-back number `noise.write_back + i`.
    pub fn encode_rows(format: WeightFormat, dim: usize, x: &[f32], rounding: Rounding, noise: Noise, rows: &mut [u8]) {
        const MANY: usize = 64;
        let bytes = format.bytes(dim);
        let mut many: [RowToRound<'_>; MANY] = std::array::from_fn(|_| RowToRound::default());
        let mut first = noise.write_back;
        for (x, rows) in x.chunks(MANY * dim).zip(rows.chunks_mut(MANY * bytes)) {
            let mut count = 0;
            for (x, to) in x.chunks_exact(dim).zip(rows.chunks_exact_mut(bytes)) {
                let row = &mut many[count];
                (row.x, row.to) = (x, to);
                row.noise = Noise { write_back: first + count as u64, ..noise };
                count += 1;
            }
            format.encode_many(dim, rounding, &mut many[..count]);
            first += count as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_errors_list_the_choices() {
        for precision in ["f32", "f16", "bf16", "int8", "int4", "int2"] {
            assert_eq!(precision.parse::<Precision>().unwrap().to_string(), precision);
        }
        let error = "int3".parse::<Precision>().unwrap_err();
        assert!(error.contains("int3") && error.contains("int4"), "{error}");
    }

    #[test]
    fn the_worked_example_of_the_contract() {
        let x = [0.5f32, -1.0, 0.25];
        let format = WeightFormat::Int8Symmetric;
        let mut row = [0u8; 5];
        format.encode(&x, Rounding::Nearest, &Noise { seed: 0, partition: 0, write_back: 0 }, &mut row);
        assert_eq!(row, [0x02, 0x3c, 0x3f, 0x82, 0x20]);
        let mut out = [0.0; 3];
        format.decode(&row, &mut out);
        assert_eq!(out, [0.499_877_93, -0.999_755_86, 0.253_906_25]);
    }
}
