//! What a row reads as before it is trained (docs/NUMERICS.md, section 4).

use crate::numeric::philox::{self, Key, domain};

/// How the weights of untrained rows are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    /// All zero.
    Zeros,
    /// All the same.
    Constant(f32),
    /// Evenly between two numbers.
    Uniform {
        /// The lower end.
        low: f32,
        /// The upper end.
        high: f32,
    },
    /// A bell curve.
    Normal {
        /// The middle.
        mean: f32,
        /// The width.
        std: f32,
    },
    /// Evenly between -sqrt(1/rows) and sqrt(1/rows), as in DLRM; for dense tables.
    Dlrm,
}

impl Initializer {
    /// What is wrong with it, if anything.
    pub(super) fn problem(&self) -> Option<&'static str> {
        match *self {
            Initializer::Constant(c) if !c.is_finite() => Some("the constant must be finite"),
            Initializer::Uniform { low, high } if !(low <= high && (high - low).is_finite()) => {
                Some("uniform needs low <= high, both finite")
            }
            Initializer::Normal { mean, std } if !(mean.is_finite() && std.is_finite() && std >= 0.0) => {
                Some("normal needs a finite mean and a finite std that is not negative")
            }
            _ => None,
        }
    }
}

/// An initializer with everything that its values depend on besides the key.
#[derive(Clone, Copy, Debug)]
pub struct Initial {
    kind: Initializer,
    seed: u32,
    table_tag: u32,
}

impl Initial {
    /// Works in the seed, the table and, for [`Initializer::Dlrm`], its number of rows.
    pub fn new(kind: Initializer, rows: Option<u64>, seed: u32, table_tag: u32) -> Initial {
        let kind = match (kind, rows) {
            (Initializer::Dlrm, Some(rows)) => {
                let a = (1.0 / rows as f64).sqrt() as f32;
                Initializer::Uniform { low: -a, high: a }
            }
            _ => kind,
        };
        Initial { kind, seed, table_tag }
    }

    /// Writes the initial weights of a key.
    #[inline(always)]
    pub fn weights(&self, key: u64, out: &mut [f32]) {
        match self.kind {
            Initializer::Zeros | Initializer::Dlrm => out.fill(0.0),
            Initializer::Constant(c) => out.fill(c),
            Initializer::Uniform { low, high } => {
                let range = high - low;
                self.each(key, out, |k| low + range * ((k >> 8) as f32 * (1.0 / 16_777_216.0)));
            }
            Initializer::Normal { mean, std } => {
                let (mean, std) = (f64::from(mean), f64::from(std));
                self.each(key, out, |k| {
                    (mean + std * inverse_normal((f64::from(k) + 0.5) * (1.0 / 4_294_967_296.0))) as f32
                });
            }
        }
    }

    /// Writes a whole untrained row: initial weights, then zero state.
    #[inline(always)]
    pub fn row(&self, key: u64, dim: usize, slot: &mut [f32]) {
        self.weights(key, &mut slot[..dim]);
        slot[dim..].fill(0.0);
    }

    #[inline(always)]
    fn each(&self, key: u64, out: &mut [f32], value: impl Fn(u32) -> f32) {
        let rest = [key as u32, (key >> 32) as u32, self.table_tag];
        let philox_key = Key { seed: self.seed, domain: domain::INITIAL };
        for (group, out) in out.chunks_mut(4 * philox::LANES).enumerate() {
            let words = philox::blocks((group * philox::LANES) as u32, rest, philox_key);
            for (out, word) in out.chunks_mut(philox::LANES).zip(words) {
                for (out, word) in out.iter_mut().zip(word) {
                    *out = value(word);
                }
            }
        }
    }
}

/// Wichura's AS 241 (PPND16): the number below which a standard normal variable falls with probability p.
/// Written out, logarithm included, so that it does not depend on a platform's mathematics library.
fn inverse_normal(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        let (numerator, denominator) = terms(r, &CENTRE);
        return q * numerator / denominator;
    }
    let r = (-ln(if q < 0.0 { p } else { 1.0 - p })).sqrt();
    let (numerator, denominator) = if r <= 5.0 { terms(r - 1.6, &TAIL) } else { terms(r - 5.0, &FAR_TAIL) };
    let z = numerator / denominator;
    if q < 0.0 { -z } else { z }
}

/// Numerator and denominator, highest coefficient first.
type Ratio = ([f64; 8], [f64; 8]);

fn terms(r: f64, (numerator, denominator): &Ratio) -> (f64, f64) {
    let horner = |c: &[f64; 8]| c[1..].iter().fold(c[0], |acc, c| r * acc + c);
    (horner(numerator), horner(denominator))
}

fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1022;
    let mut f = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 0x3fe0_0000_0000_0000);
    if f < std::f64::consts::FRAC_1_SQRT_2 {
        f *= 2.0;
        exponent -= 1;
    }
    let t = (f - 1.0) / (f + 1.0);
    let t2 = t * t;
    let series = (0..=10).rev().fold(1.0 / 23.0, |p, i| p * t2 + 1.0 / f64::from(2 * i + 1));
    2.0 * t * series + exponent as f64 * std::f64::consts::LN_2
}

#[allow(clippy::excessive_precision)]
const CENTRE: Ratio = (
    [
        2.509_080_928_730_122_672_7e3,
        3.343_057_558_358_812_810_5e4,
        6.726_577_092_700_870_085_3e4,
        4.592_195_393_154_987_145_7e4,
        1.373_169_376_550_946_112_5e4,
        1.971_590_950_306_551_442_7e3,
        1.331_416_678_917_843_774_5e2,
        3.387_132_872_796_366_608_0,
    ],
    [
        5.226_495_278_852_854_561_0e3,
        2.872_908_573_572_194_267_4e4,
        3.930_789_580_009_271_061_0e4,
        2.121_379_430_158_659_586_7e4,
        5.394_196_021_424_751_107_7e3,
        6.871_870_074_920_579_083_0e2,
        4.231_333_070_160_091_125_2e1,
        1.0,
    ],
);

#[allow(clippy::excessive_precision)]
const TAIL: Ratio = (
    [
        7.745_450_142_783_414_076_40e-4,
        2.272_384_498_926_918_458_33e-2,
        2.417_807_251_774_506_117_70e-1,
        1.270_458_252_452_368_382_58,
        3.647_848_324_763_204_605_04,
        5.769_497_221_460_691_405_50,
        4.630_337_846_156_545_295_90,
        1.423_437_110_749_683_577_34,
    ],
    [
        1.050_750_071_644_416_843_24e-9,
        5.475_938_084_995_344_946_00e-4,
        1.519_866_656_361_645_719_66e-2,
        1.481_039_764_274_800_745_90e-1,
        6.897_673_349_851_000_045_50e-1,
        1.676_384_830_183_803_849_40,
        2.053_191_626_637_758_821_87,
        1.0,
    ],
);

#[allow(clippy::excessive_precision)]
const FAR_TAIL: Ratio = (
    [
        2.010_334_399_292_288_132_65e-7,
        2.711_555_568_743_487_578_15e-5,
        1.242_660_947_388_078_438_60e-3,
        2.653_218_952_657_612_309_30e-2,
        2.965_605_718_285_048_912_30e-1,
        1.784_826_539_917_291_335_80,
        5.463_784_911_164_114_369_90,
        6.657_904_643_501_103_777_20,
    ],
    [
        2.044_263_103_389_939_785_64e-15,
        1.421_511_758_316_445_888_70e-7,
        1.846_318_317_510_054_681_80e-5,
        7.868_691_311_456_132_591_00e-4,
        1.487_536_129_085_061_485_25e-2,
        1.369_298_809_227_358_053_10e-1,
        5.998_322_065_558_879_376_90e-1,
        1.0,
    ],
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inverse_of_the_normal_distribution() {
        // Quantiles to 16 digits, from an arbitrary-precision computation.
        let cases = [
            (0.975, 1.959_963_984_540_054_2),
            (0.5, 0.0),
            (0.1, -1.281_551_565_544_600_8),
            (1e-10, -6.361_340_902_404_056),
            (0.5 / 4_294_967_296.0, -6.337_957_754_553_789),
        ];
        for (p, z) in cases {
            assert!((inverse_normal(p) - z).abs() <= 1e-15 * f64::max(1.0, z.abs()), "{p}: {} {z}", inverse_normal(p));
        }
    }

    #[test]
    fn the_logarithm_is_close_to_the_platform_s() {
        for i in 1..10_000 {
            let x = f64::from(i) * 1e-4;
            assert!((ln(x) - x.ln()).abs() <= 1e-15 * x.ln().abs().max(1.0), "{x}");
        }
    }

    #[test]
    fn values_follow_their_distribution() {
        let mut out = vec![0.0; 4096];
        let initial = |kind| Initial::new(kind, Some(10_000), 1, 2);
        initial(Initializer::Uniform { low: -2.0, high: 6.0 }).weights(9, &mut out);
        let mean = out.iter().sum::<f32>() / 4096.0;
        assert!(out.iter().all(|x| (-2.0..=6.0).contains(x)) && (mean - 2.0).abs() < 0.15, "{mean}");
        initial(Initializer::Normal { mean: 1.0, std: 0.5 }).weights(9, &mut out);
        let mean = out.iter().sum::<f32>() / 4096.0;
        let variance = out.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / 4096.0;
        assert!((mean - 1.0).abs() < 0.03 && (variance - 0.25).abs() < 0.03, "{mean} {variance}");
        initial(Initializer::Dlrm).weights(9, &mut out);
        assert!(out.iter().all(|x| x.abs() <= 0.01) && out.iter().any(|x| x.abs() > 0.009));
    }
}
