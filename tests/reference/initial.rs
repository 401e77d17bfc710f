//! Section 4: initial values.

use super::Initializer;
use super::philox::{k32, table_tag};

/// The initial weights of a row; `rows` is the size of the table, for dlrm.
pub fn initial_row(i: &Initializer, rows: u64, dim: usize, seed: u32, table_name: &str, key: u64) -> Vec<f32> {
    let tag = table_tag(table_name);
    let mut row = Vec::new();
    for element in 0..dim {
        let k = k32(element, seed, tag, key);
        row.push(match *i {
            Initializer::Zeros => 0.0,
            Initializer::Constant(c) => c,
            Initializer::Uniform(lo, hi) => uniform(lo, hi, k),
            Initializer::Dlrm => {
                let a = (1.0 / rows as f64).sqrt() as f32;
                uniform(-a, a, k)
            }
            Initializer::Normal(mean, std) => {
                let z = ppnd16((f64::from(k) + 0.5) * 2f64.powi(-32));
                (f64::from(mean) + f64::from(std) * z) as f32
            }
        });
    }
    row
}

fn uniform(lo: f32, hi: f32, k: u32) -> f32 {
    lo + (hi - lo) * ((k >> 8) as f32 * 2f32.powi(-24))
}

/// The natural logarithm of a normal positive number, as section 4 spells it out.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut e = ((bits >> 52) & 0x7ff) as i64 - 1022;
    let mut f = f64::from_bits((bits & ((1 << 52) - 1)) | (1022 << 52));
    // The constant as written; it is the f64 next to 1/sqrt(2).
    #[allow(clippy::excessive_precision, clippy::approx_constant)]
    let split = 0.70710678118654752;
    #[allow(clippy::excessive_precision, clippy::approx_constant)]
    let ln2 = 0.69314718055994531;
    if f < split {
        f *= 2.0;
        e -= 1;
    }
    let t = (f - 1.0) / (f + 1.0);
    let t2 = t * t;
    let mut p = 1.0 / 23.0;
    for d in [21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1] {
        p = p * t2 + 1.0 / f64::from(d);
    }
    2.0 * t * p + e as f64 * ln2
}

/// Horner's rule; the coefficients are given lowest first.
fn horner(coefficients: &[f64; 8], r: f64) -> f64 {
    let mut acc = coefficients[7];
    for i in (0..7).rev() {
        acc = r * acc + coefficients[i];
    }
    acc
}

// Coefficients of AS 241, PPND16.
#[allow(clippy::excessive_precision)]
const A: [f64; 8] = [
    3.3871328727963666080e0,
    1.3314166789178437745e2,
    1.9715909503065514427e3,
    1.3731693765509461125e4,
    4.5921953931549871457e4,
    6.7265770927008700853e4,
    3.3430575583588128105e4,
    2.5090809287301226727e3,
];
#[allow(clippy::excessive_precision)]
const B: [f64; 8] = [
    1.0,
    4.2313330701600911252e1,
    6.8718700749205790830e2,
    5.3941960214247511077e3,
    2.1213794301586595867e4,
    3.9307895800092710610e4,
    2.8729085735721942674e4,
    5.2264952788528545610e3,
];
#[allow(clippy::excessive_precision)]
const C: [f64; 8] = [
    1.42343711074968357734e0,
    4.63033784615654529590e0,
    5.76949722146069140550e0,
    3.64784832476320460504e0,
    1.27045825245236838258e0,
    2.41780725177450611770e-1,
    2.27238449892691845833e-2,
    7.74545014278341407640e-4,
];
#[allow(clippy::excessive_precision)]
const D: [f64; 8] = [
    1.0,
    2.05319162663775882187e0,
    1.67638483018380384940e0,
    6.89767334985100004550e-1,
    1.48103976427480074590e-1,
    1.51986665636164571966e-2,
    5.47593808499534494600e-4,
    1.05075007164441684324e-9,
];
#[allow(clippy::excessive_precision)]
const E: [f64; 8] = [
    6.65790464350110377720e0,
    5.46378491116411436990e0,
    1.78482653991729133580e0,
    2.96560571828504891230e-1,
    2.65321895265761230930e-2,
    1.24266094738807843860e-3,
    2.71155556874348757815e-5,
    2.01033439929228813265e-7,
];
#[allow(clippy::excessive_precision)]
const F: [f64; 8] = [
    1.0,
    5.99832206555887937690e-1,
    1.36929880922735805310e-1,
    1.48753612908506148525e-2,
    7.86869131145613259100e-4,
    1.84631831751005468180e-5,
    1.42151175831644588870e-7,
    2.04426310338993978564e-15,
];

/// Wichura's AS 241: the normal deviate of a lower tail area p, 0 < p < 1.
fn ppnd16(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180625 - q * q;
        return q * horner(&A, r) / horner(&B, r);
    }
    let tail = if q < 0.0 { p } else { 1.0 - p };
    let mut r = (-ln(tail)).sqrt();
    let value = if r <= 5.0 {
        r -= 1.6;
        horner(&C, r) / horner(&D, r)
    } else {
        r -= 5.0;
        horner(&E, r) / horner(&F, r)
    };
    if q < 0.0 { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm() {
        for x in [1e-300, 2.3e-10, 0.01, 0.075, 0.5, 0.7, 0.7072, 1.0, 3.0, 1e9] {
            let (got, wanted) = (ln(x), f64::ln(x));
            assert!((got - wanted).abs() <= 4e-16 * wanted.abs().max(1.0), "{x}");
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn deviates() {
        for (p, wanted) in PUBLISHED {
            let got = ppnd16(p);
            assert!((got - wanted).abs() <= 1e-13 * wanted.abs(), "{p}: {got}");
        }
        assert_eq!(ppnd16(0.5), 0.0);
        assert_eq!(ppnd16(0.25), -ppnd16(0.75));
    }

    /// 0.975 and 1e-10 are the values asked for; the others are values of the normal quantile.
    const PUBLISHED: [(f64, f64); 5] = [
        (0.975, 1.959963984540054),
        (1e-10, -6.361340902404056),
        (0.25, -0.6744897501960817),
        (0.001, -3.090232306167813),
        (1e-20, -9.262340089798408),
    ];

    #[test]
    fn rows() {
        let w = super::super::philox([0, 5, 0, table_tag("t")], [3, 0]);
        let row = initial_row(&Initializer::Uniform(-1.0, 1.0), 0, 9, 3, "t", 5);
        assert_eq!(row[0], -1.0 + 2.0 * ((w[0] >> 8) as f32 / 16777216.0));
        assert_eq!(row[8], -1.0 + 2.0 * ((w[1] >> 8) as f32 / 16777216.0));
        let row = initial_row(&Initializer::Dlrm, 4, 100, 3, "t", 5);
        assert!(row.iter().all(|v| (-0.5..0.5).contains(v)));
        assert!(row.iter().any(|v| *v < -0.4) && row.iter().any(|v| *v > 0.4));
        let row = initial_row(&Initializer::Constant(2.5), 4, 2, 3, "t", 5);
        assert_eq!(row, [2.5, 2.5]);
        let row = initial_row(&Initializer::Normal(1.0, 2.0), 0, 4000, 3, "t", 5);
        let mean = row.iter().sum::<f32>() / 4000.0;
        let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / 4000.0;
        assert!((mean - 1.0).abs() < 0.15 && (variance - 4.0).abs() < 0.4);
    }
}
