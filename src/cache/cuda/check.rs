//! A look at a GPU before it is used: each kernel once, against the host, bit for bit.
//!
//! `hotrow selftest --cuda` looks much closer. This is for the shard that finds a GPU by itself: one that computes other
//! bits than the host must not hold rows.
//!
//! `unsafe` is for the pools, which trust their caller to hold locks: nobody else has these.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::device::Device;
use super::slots::{self, Bags, CudaSlots, Rounded};
use super::tray::Pipeline;
use crate::cache::{Gradients, HostPool, Pool, RoundingError, RowLayout, StateLayout, StatePrecision, WriteBack};
use crate::numeric::format::encode_nearest;
use crate::numeric::{Rounding, Rule, Step, WeightFormat};

/// Rows that are worked on: one more than a block takes.
const ROWS: u32 = 5;
/// Not a multiple of anything.
const DIM: usize = 67;

const FORMATS: [WeightFormat; 8] = [
    WeightFormat::F32,
    WeightFormat::F16,
    WeightFormat::Bf16,
    WeightFormat::Int8Symmetric,
    WeightFormat::Int4Symmetric,
    WeightFormat::Int8Affine,
    WeightFormat::Int4Affine,
    WeightFormat::Int2Affine,
];

const STEPS: [(Step, usize, usize); 4] = [
    (Step::Sgd { lr: 0.1 }, 0, 0),
    (Step::Adagrad { lr: 0.1, eps: 1e-10 }, 1, DIM),
    (Step::RowwiseAdagrad { lr: 0.1, eps: 1e-8 }, 1, 1),
    (Step::Adam { scale: 0.1, eps: 1e-8, rate1: 0.1, rate2: 0.001, decay: 0.99 }, 2, DIM),
];

/// Numbers of every size, from the smallest to the largest that training meets.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let number = |i: u32| {
        let bits = (i + seed).wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995u32.wrapping_mul(i ^ seed);
        let unit = (bits >> 8) as f32 / (1 << 23) as f32 - 1.0;
        unit * [1.0, 1e-3, 1e-12, 30.0, 1e-40, 1.0, 0.0, 1.0][(bits & 7) as usize]
    };
    (0..count as u32).map(number).collect()
}

/// Which kind of work gives other bits than the host, if any does.
pub fn differs(device: &Arc<Device>) -> crate::error::Result<Option<String>> {
    for (i, format) in FORMATS.into_iter().enumerate() {
        let (step, tensors, len) = STEPS[i % STEPS.len()];
        let precision = if i % 2 == 0 { StatePrecision::Bf16 } else { StatePrecision::F32 };
        let state = StateLayout { tensors, len, precision };
        let layout = RowLayout { dim: DIM, weights: format, rounding: Rounding::Stochastic, state };
        let rule = Rule { step, clip_norm: (i < 4).then_some(0.5), weight_decay: 0.01 };
        if let Some(what) = differs_in(device, layout, &rule)? {
            return Ok(Some(format!("{what} of rows stored as {format:?}")));
        }
    }
    Ok(None)
}

fn differs_in(device: &Arc<Device>, layout: RowLayout, rule: &Rule) -> crate::error::Result<Option<&'static str>> {
    let system = |e: std::io::Error| crate::error::Error::System(e.to_string());
    let seed = 3;
    let (host, cuda) = (HostPool::new(layout, seed, ROWS).map_err(system)?, CudaSlots::new(device, layout, ROWS)?);
    let all: Vec<u32> = (0..ROWS).collect();
    let addresses: Vec<u64> = all.iter().map(|&slot| cuda.address(slot)).collect();
    let len = layout.slot_len();
    let mut rows = numbers(ROWS as usize * len, 1);
    // State is never below zero.
    rows.chunks_mut(len).for_each(|row| row[DIM..].iter_mut().for_each(|number| *number = number.abs()));
    let same = || {
        let (mut ours, mut theirs) = (vec![0f32; rows.len()], vec![0f32; rows.len()]);
        // SAFETY: nobody else has these pools.
        unsafe {
            host.read(&all, &mut ours);
            cuda.read(&all, &mut theirs);
        }
        ours.iter().zip(&theirs).all(|(a, b)| a.to_bits() == b.to_bits())
    };

    // SAFETY: nobody else has these pools, and every slot is named once. So for all that follows.
    unsafe {
        host.load(&all, &rows);
        cuda.load(&all, &rows);
    }
    if !same() {
        return Ok(Some("load or gather"));
    }

    let gradients = numbers(ROWS as usize * DIM, 7);
    let ends: Vec<u32> = (1..=ROWS).collect();
    // SAFETY: as above.
    unsafe { host.update(&all, &Gradients { values: &gradients, picked: &all, ends: &ends }, rule) };
    let mut pipeline = Pipeline::<()>::new(device);
    let gradient = |i: usize| &gradients[i * DIM..][..DIM];
    slots::update(&mut pipeline, &mut |(), _| {}, &layout, rule, addresses.len(), |i| addresses[i], gradient);
    if !same() {
        return Ok(Some("update"));
    }
    if let Some(what) = differs_in_reading(device, &host, &layout, &all, &addresses) {
        return Ok(Some(what));
    }

    // A number of the sample, and some that are not.
    let leaving: Vec<WriteBack> =
        all.iter().map(|&slot| WriteBack { slot, partition: 2, number: u64::from(slot) << 33 }).collect();
    let mut ours = vec![0; ROWS as usize * layout.row_bytes()];
    // SAFETY: as above.
    let error = unsafe { host.write_back(&leaving, &mut ours, &mut [0.0; DIM]) };
    let (mut theirs, mut squares) = (Vec::new(), 0.0);
    let mut land = |count: usize, bytes: &[u8]| {
        for ((row, error), leaving) in Rounded::new(&layout, count).rows(bytes).zip(&leaving) {
            theirs.extend_from_slice(row);
            squares += if RoundingError::samples(leaving.number) { f64::from(error) } else { 0.0 };
        }
    };
    let mut pipeline = Pipeline::new(device);
    let leave = |row: &WriteBack| (cuda.address(row.slot), *row);
    slots::write_back(&mut pipeline, &mut land, &layout, seed, &leaving, leave, |range| range.len());
    pipeline.land(&mut land);
    if ours != theirs || error.squares.to_bits() != squares.to_bits() {
        return Ok(Some("write-back"));
    }
    // SAFETY: as above.
    unsafe {
        host.fill(&all, &ours);
        cuda.fill(&all, &ours);
    }
    Ok((!same()).then_some("fill"))
}

/// Reads rows in every format in which answers are sent, and as one bag.
fn differs_in_reading(
    device: &Device,
    host: &HostPool,
    layout: &RowLayout,
    all: &[u32],
    addresses: &[u64],
) -> Option<&'static str> {
    // SAFETY: nobody else has this pool.
    let weights: Vec<f32> = all.iter().flat_map(|&slot| unsafe { host.weights(slot) }).copied().collect();
    for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16, WeightFormat::Int8Symmetric] {
        let mut ours = vec![0; all.len() * format.bytes(DIM)];
        for (row, out) in weights.chunks_exact(DIM).zip(ours.chunks_exact_mut(format.bytes(DIM))) {
            encode_nearest(format, row, out);
        }
        let mut same = true;
        let mut land = |(): (), bytes: &[u8]| same &= bytes[..ours.len()] == ours;
        let mut pipeline = Pipeline::new(device);
        slots::gather(&mut pipeline, &mut land, format, layout.dim, addresses, |&address| address, |_| ());
        pipeline.land(&mut land);
        if !same {
            return Some("gather");
        }
    }
    let factors = numbers(all.len(), 9);
    let mut ours = vec![0.0; DIM];
    // SAFETY: as above.
    unsafe { host.gather_pooled(all, &vec![0; all.len()], Some(&factors), &mut ours) };
    let bags = Bags { slots: addresses.to_vec(), factors, ends: vec![all.len() as u32] };
    let mut same = true;
    let mut land = |(): (), bytes: &[u8]| same &= bytes[..4 * DIM] == *bytemuck::cast_slice::<f32, u8>(&ours);
    let mut pipeline = Pipeline::new(device);
    slots::gather_pooled(&mut pipeline, &mut land, DIM, &bags, |_| ());
    pipeline.land(&mut land);
    (!same).then_some("pooled gather")
}
