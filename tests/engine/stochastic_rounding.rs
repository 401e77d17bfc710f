//! Stochastic rounding is right on average, takes its noise from seed, partition and write-back number, and never
//! moves a weight by more than one step.

use crate::reference;
use crate::support;
use crate::support::random::Random;
use crate::support::{bits, cases, to_reference_precision, to_reference_quantizer};
use hotrow::Rounding::{self, Nearest, Stochastic};
use hotrow::numeric::format::{decode_rows, encode_rows};
use hotrow::numeric::{Noise, WeightFormat};
use proptest::prelude::*;

const NOISE: Noise = Noise { seed: 1, partition: 2, write_back: 3 };
/// Integer rows limit what they hold to this.
const LIMIT: f32 = f32::from_bits((126 + 127) << 23);

fn formats() -> Vec<WeightFormat> {
    support::formats()
        .into_iter()
        .map(|(precision, quantizer)| WeightFormat::new(precision, quantizer).unwrap())
        .collect()
}

fn is_integer(format: WeightFormat) -> bool {
    !matches!(format, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16)
}

fn encode(format: WeightFormat, x: &[f32], rounding: Rounding, noise: Noise) -> Vec<u8> {
    let mut row = vec![0; format.bytes(x.len())];
    encode_rows(format, x.len(), x, rounding, noise, &mut row);
    row
}

fn decode(format: WeightFormat, dim: usize, row: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; dim];
    decode_rows(format, dim, row, &mut out);
    out
}

/// The distance of the two codes that a number may become. An integer row starts with it.
fn step(format: WeightFormat, row: &[u8], x: f32) -> f64 {
    let exponent = f64::from(x.abs()).max(f64::from(f32::MIN_POSITIVE)).log2().floor() as i32;
    match format {
        WeightFormat::F32 => 0.0,
        WeightFormat::Bf16 => 2f64.powi(exponent - 7),
        WeightFormat::F16 => 2f64.powi((exponent - 10).max(-24)),
        _ => f64::from(f32::from_bits(u32::from(row[0]) << 16 | u32::from(row[1]) << 24)),
    }
}

/// What a format holds at most.
fn limited(format: WeightFormat, x: f32) -> f32 {
    let limit = match format {
        WeightFormat::F32 => f32::MAX,
        WeightFormat::F16 => 65504.0,
        WeightFormat::Bf16 => f32::from_bits(0x7f7f_0000),
        _ => LIMIT,
    };
    x.clamp(-limit, limit)
}

#[test]
fn the_mean_of_many_roundings_is_the_value() {
    const TIMES: usize = 10_000;
    const DIM: usize = 70;
    for format in formats() {
        // 1e-6 is where f16 has subnormals only, 1e-4 where it has both kinds.
        for range in [1.0, 1e-12, 1e-30, 1e30, 1e-6, 1e-4] {
            if format == WeightFormat::F16 && range > 65504.0 {
                continue;
            }
            let x = Random(9).row(DIM, range);
            let many = x.repeat(TIMES);
            let mut rows = vec![0; TIMES * format.bytes(DIM)];
            encode_rows(format, DIM, &many, Stochastic, NOISE, &mut rows);
            let mut read = vec![0.0; many.len()];
            decode_rows(format, DIM, &rows, &mut read);
            let resolution = if format == WeightFormat::F16 { 2f64.powi(-13) } else { 2f64.powi(-16) };
            let mut all = 0.0;
            for (i, &x) in x.iter().enumerate() {
                // A fair coin has a standard deviation of half a step, every other one less.
                let step = step(format, &rows, x);
                let error: f64 = read.iter().skip(i).step_by(DIM).map(|&y| f64::from(y) - f64::from(x)).sum();
                let bound = 5.0 * 0.5 / (TIMES as f64).sqrt() + resolution;
                let error = error / TIMES as f64;
                assert!(error.abs() <= step * bound, "{format:?}: {x:e} is off by {error:e} of {step:e} on average");
                all += if step > 0.0 { error / step } else { 0.0 };
            }
            // All elements together would show a bias that is too small to be seen in one.
            let bound = 5.0 * 0.5 / ((DIM * TIMES) as f64).sqrt() + resolution;
            assert!((all / DIM as f64).abs() <= bound, "{format:?}, range {range:e}: {all} steps over {DIM} elements");
        }
    }
}

#[test]
fn noise_depends_on_seed_partition_and_number() {
    let x = Random(5).row(200, 1.0);
    let others = [
        Noise { seed: 2, ..NOISE },
        Noise { partition: 3, ..NOISE },
        Noise { write_back: 4, ..NOISE },
        // The upper half of the number counts too.
        Noise { write_back: 3 | 1 << 32, ..NOISE },
    ];
    for format in formats().into_iter().filter(|&format| format != WeightFormat::F32) {
        let stochastic = encode(format, &x, Stochastic, NOISE);
        assert_eq!(stochastic, encode(format, &x, Stochastic, NOISE), "{format:?}");
        let nearest = encode(format, &x, Nearest, NOISE);
        assert_ne!(stochastic, nearest, "{format:?}");
        for noise in others {
            assert_ne!(stochastic, encode(format, &x, Stochastic, noise), "{format:?} {noise:?}");
            assert_eq!(nearest, encode(format, &x, Nearest, noise), "{format:?} {noise:?}");
        }
    }
}

#[test]
fn rows_of_a_batch_take_numbers_in_order() {
    let (dim, x) = (50, Random(6).row(3 * 50, 1.0));
    for format in formats() {
        let mut rows = vec![0; 3 * format.bytes(dim)];
        encode_rows(format, dim, &x, Stochastic, NOISE, &mut rows);
        for (i, row) in rows.chunks(format.bytes(dim)).enumerate() {
            let noise = Noise { write_back: NOISE.write_back + i as u64, ..NOISE };
            assert_eq!(row, encode(format, &x[i * dim..][..dim], Stochastic, noise), "{format:?}, row {i}");
        }
    }
}

/// Rows that would clamp, overflow or vanish in a careless quantizer.
fn hard_rows() -> Vec<Vec<f32>> {
    let mut rows = vec![
        vec![1.0, -1.0, 1.0, -1.0],
        vec![f32::MAX, -f32::MAX, f32::MAX / 3.0, 1.0],
        vec![f32::MAX; 5],
        vec![LIMIT, -LIMIT, f32::from_bits(LIMIT.to_bits() + 1), f32::from_bits(LIMIT.to_bits() - 1)],
        vec![f32::from_bits(1), -f32::from_bits(1), 0.0],
        vec![f32::from_bits(1); 3],
        vec![f32::MIN_POSITIVE, -f32::MIN_POSITIVE, f32::MIN_POSITIVE / 2.0],
        vec![1e30, 1e-30, -1e-30, 1e-38],
        vec![-1e6, 1e-6, 2e-6],
        vec![-0.0, 0.0, 1.0],
        vec![-0.0, -0.0],
        vec![0.1; 9],
        vec![-0.1; 9],
        vec![1e-38; 3],
        // A narrow range far from zero: the zero point must hold it.
        vec![1000.0, 1000.001, 1000.002],
        vec![-32768.0, -32767.5, -32767.0],
        vec![65504.0, 65519.0, 65520.0, -65535.0],
        vec![6.103_515_6e-5, 6.097_555e-5, 5.960_464_5e-8, 2.980_232_2e-8],
    ];
    // The largest element just below, at, and just above what a scale holds with all its codes.
    for codes in [127.0f32, 7.0, 255.0, 15.0, 3.0] {
        for scale in [0x3c02_0000u32, 0x3f80_0000, 0x0001_0000, 0x0080_0000, 0x2b80_0000, 0x3fff_0000] {
            let most = codes * f32::from_bits(scale);
            for max in [most.to_bits() - 1, most.to_bits(), most.to_bits() + 1].map(f32::from_bits) {
                rows.push(vec![max, -max, max / 2.0, max / 3.0, 0.0]);
                rows.push(vec![max, max / 2.0, 0.0]);
                rows.push(vec![-max, max / 1e3]);
            }
        }
    }
    rows
}

/// Every element is finite and at most one step away from the input, or from the largest number the format holds.
fn check_within_one_step(format: WeightFormat, x: &[f32], rounding: Rounding, noise: Noise) {
    let row = encode(format, x, rounding, noise);
    for (&x, y) in x.iter().zip(decode(format, x.len(), &row)) {
        let target = limited(format, x);
        // The position of an element between codes is itself computed in f32.
        let step = step(format, &row, target) * 1.0001;
        let off = (f64::from(y) - f64::from(target)).abs();
        assert!(y.is_finite() && off <= step, "{format:?} {rounding}: {x:e} reads as {y:e}, the step is {step:e}");
    }
}

#[test]
fn nothing_clamps_or_overflows() {
    for format in formats() {
        for x in hard_rows() {
            for write_back in 0..50 {
                check_within_one_step(format, &x, Stochastic, Noise { write_back, ..NOISE });
            }
            check_within_one_step(format, &x, Nearest, NOISE);
        }
    }
}

#[test]
fn a_row_of_zeros_is_exact() {
    for format in formats() {
        for write_back in 0..100 {
            let row = encode(format, &[0.0; 67], Stochastic, Noise { write_back, ..NOISE });
            assert_eq!(bits(&decode(format, 67, &row)), [0; 67], "{format:?}");
        }
    }
}

#[test]
fn a_poisoned_row_reads_as_nan() {
    for format in formats() {
        for poison in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 8, 66] {
                let mut x = vec![1.0f32; 67];
                x[place] = poison;
                let read = decode(format, 67, &encode(format, &x, Stochastic, NOISE));
                if is_integer(format) {
                    assert!(read.iter().all(|y| y.is_nan()), "{format:?}");
                } else {
                    // A float row says which element it was.
                    assert_eq!(bits(&read), bits(&x), "{format:?}");
                }
            }
        }
    }
}

#[test]
fn numbers_that_fit_are_never_moved() {
    for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16] {
        // Every number of a 16-bit format, both zeros, subnormals and infinities included.
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let x = decode(format, all.len() / format.bytes(1), &all);
        for write_back in 0..20 {
            let row = encode(format, &x, Stochastic, Noise { write_back, ..NOISE });
            assert_eq!(bits(&decode(format, x.len(), &row)), bits(&x), "{format:?}");
        }
        assert_eq!(bits(&decode(format, x.len(), &encode(format, &x, Nearest, NOISE))), bits(&x), "{format:?}");
    }
}

/// A row of one range, now and then with any bits at all in it.
fn row() -> impl Strategy<Value = Vec<f32>> {
    let element = prop_oneof![20 => -1.0f32..1.0, 1 => Just(0.0f32), 1 => Just(1.0f32), 1 => Just(-1.0f32)];
    let exponent = prop_oneof![4 => -10i32..10, 1 => -149i32..128];
    let odd = prop::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u32>()));
    let offset = prop_oneof![Just(0.0f32), -100.0f32..100.0];
    (prop::collection::vec(element, 1..=200), exponent, odd, offset).prop_map(|(row, exponent, odd, offset)| {
        let scale = 2f64.powi(exponent);
        let mut row: Vec<f32> = row.into_iter().map(|x| (f64::from(x + offset) * scale) as f32).collect();
        if let Some((place, bits)) = odd {
            let place = place.index(row.len());
            row[place] = f32::from_bits(bits);
        }
        row
    })
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn rows_are_those_of_the_reference(
        x in row(), seed in any::<u32>(), partition in 0u32..65536, write_back in any::<u64>(), nearest in any::<bool>(),
    ) {
        let noise = Noise { seed, partition, write_back };
        let (rounding, expected) = match nearest {
            true => (Nearest, reference::Rounding::Nearest),
            false => (Stochastic, reference::Rounding::Stochastic),
        };
        for (precision, quantizer) in support::formats() {
            let format = WeightFormat::new(precision, quantizer).unwrap();
            let row = encode(format, &x, rounding, noise);
            let (p, q) = (to_reference_precision(precision), to_reference_quantizer(quantizer));
            prop_assert_eq!(&row, &reference::encode_weights(p, q, expected, &x, seed, partition, write_back));
            let read = decode(format, x.len(), &row);
            prop_assert_eq!(bits(&read), bits(&reference::decode_weights(p, q, x.len(), &row)));
            if x.iter().all(|x| x.is_finite()) {
                check_within_one_step(format, &x, rounding, noise);
            }
        }
    }
}
