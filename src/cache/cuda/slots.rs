//! The slots of one table on a GPU, and the work on slots of many tables at once.
//!
//! Each kind of work is one launch for all rows of a request that are laid out alike, whatever their tables and
//! partitions; rows that do not fit a tray take another. `unsafe` only stands in what [`Pool`] declares.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use super::device::Device;
use super::launch::{Kernel, Launch};
use super::memory::Buffer;
use super::tray::Pipeline;
use crate::cache::{Pool, RowLayout, WriteBack};
use crate::error::Result;
use crate::numeric::{Rule, WeightFormat};

/// The slots of one table.
pub struct CudaSlots {
    device: Arc<Device>,
    layout: RowLayout,
    /// There until it is dropped.
    memory: Option<Buffer>,
    start: Address,
    slots: u32,
    /// Bytes from one slot to the next.
    stride: u64,
}

/// The address of a slot on the device.
pub type Address = u64;

impl CudaSlots {
    /// So many slots, with anything in them.
    pub fn new(device: &Arc<Device>, layout: RowLayout, slots: u32) -> Result<CudaSlots> {
        let stride = CudaSlots::stride(&layout);
        let memory = device.allocate(stride * u64::from(slots))?;
        let start = memory.address();
        Ok(CudaSlots { device: Arc::clone(device), layout, memory: Some(memory), start, slots, stride })
    }

    /// Bytes that a slot takes: whole groups of four numbers, so that each begins where four are read at once.
    pub fn stride(layout: &RowLayout) -> u64 {
        4 * layout.slot_len().next_multiple_of(4) as u64
    }

    /// Bytes that all of them take.
    pub fn bytes(&self) -> u64 {
        self.stride * u64::from(self.slots)
    }

    /// The device that they are on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Where a slot is.
    #[inline(always)]
    pub fn address(&self, slot: u32) -> Address {
        assert!(slot < self.slots, "slot {slot} is not one of {}", self.slots);
        self.start + u64::from(slot) * self.stride
    }
}

impl Drop for CudaSlots {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.device.free(memory, self.bytes());
        }
    }
}

impl Pool for CudaSlots {
    fn slot_len(&self) -> usize {
        self.layout.slot_len()
    }

    unsafe fn fill(&self, slots: &[u32], rows: &[u8]) {
        let at: Vec<Address> = slots.iter().map(|&slot| self.address(slot)).collect();
        fill(&mut Pipeline::<()>::new(&self.device), &mut |(), _| {}, &self.layout, &at, rows);
    }

    unsafe fn load(&self, slots: &[u32], rows: &[f32]) {
        let at: Vec<Address> = slots.iter().map(|&slot| self.address(slot)).collect();
        load(&mut Pipeline::<()>::new(&self.device), &mut |(), _| {}, &self.layout, &at, rows);
    }

    unsafe fn read(&self, slots: &[u32], rows: &mut [f32]) {
        let len = self.slot_len();
        let at: Vec<Address> = slots.iter().map(|&slot| self.address(slot)).collect();
        let mut land = |range: Range<usize>, bytes: &[u8]| {
            let rows = &mut rows[range.start * len..range.end * len];
            rows.copy_from_slice(bytemuck::cast_slice(&bytes[..size_of_val(rows)]));
        };
        let mut pipeline = Pipeline::new(&self.device);
        gather(&mut pipeline, &mut land, WeightFormat::F32, len, &at, |&at| at, |range| range);
        pipeline.land(&mut land);
    }
}

/// Has `dim` numbers read of the slot of each of `rows`, in a format. `then` says what to land the output of some of the
/// rows with.
pub fn gather<R, T>(
    pipeline: &mut Pipeline<'_, T>,
    land: &mut impl FnMut(T, &[u8]),
    format: WeightFormat,
    dim: usize,
    rows: &[R],
    address: impl Fn(&R) -> Address,
    then: impl Fn(Range<usize>) -> T,
) {
    let row_bytes = format.bytes(dim);
    let most = pipeline.device().rows_in_tray(size_of::<Address>(), row_bytes);
    for (first, rows) in (0..).step_by(most).zip(rows.chunks(most)) {
        let mut tray = pipeline.tray(land);
        let launch = Launch {
            slots: tray.put_all(rows.iter().map(&address)),
            out: tray.output(),
            count: rows.len() as u32,
            dim: dim as u32,
            ..Launch::default()
        };
        pipeline.send_for(
            tray,
            Kernel::gather(format),
            &launch,
            rows.len() * row_bytes,
            then(first..first + rows.len()),
        );
    }
}

/// Bags of slots.
#[derive(Clone, Default)]
pub struct Bags {
    /// Their slots, bag after bag.
    pub slots: Vec<Address>,
    /// A factor for each slot.
    pub factors: Vec<f32>,
    /// Where each bag ends among the slots.
    pub ends: Vec<u32>,
}

/// Has bags of slots added up, each to a row of `dim` numbers. `then` says what to land the output of some of the bags
/// with.
pub fn gather_pooled<T>(
    pipeline: &mut Pipeline<'_, T>,
    land: &mut impl FnMut(T, &[u8]),
    dim: usize,
    all: &Bags,
    then: impl Fn(Range<usize>) -> T,
) {
    let device = pipeline.device();
    // A share of the tray for slots, the rest for where bags end and for what the first has so far.
    let most_slots = device.rows_in_tray(2 * (size_of::<Address>() + size_of::<f32>()), 0);
    let most_bags = device.rows_in_tray(4 * size_of::<u32>(), size_of::<f32>() * dim);
    let (mut bag, mut at) = (0, 0);
    let mut before: Option<Vec<f32>> = None;
    while bag < all.ends.len() {
        let fits = |&&end: &&u32| end as usize <= at + most_slots;
        let whole = all.ends[bag..].iter().take_while(fits).take(most_bags).count();
        let bags = bag..bag + whole.max(1);
        // A bag that is too large by itself is cut.
        let end = (all.ends[bags.end - 1] as usize).min(at + most_slots);
        let mut tray = pipeline.tray(land);
        let ends = &all.ends[bags.clone()];
        let launch = Launch {
            slots: tray.put_all(all.slots[at..end].iter().copied()),
            values: tray.put_all(all.factors[at..end].iter().copied()),
            ends: tray.put_all(ends.iter().map(|&bag_end| (bag_end as usize).min(end) as u32 - at as u32)),
            before: before.take().map_or(0, |before| tray.put_all(before.into_iter())),
            out: tray.output(),
            count: ends.len() as u32,
            dim: dim as u32,
            ..Launch::default()
        };
        pipeline.send_for(tray, Kernel::GATHER_POOLED, &launch, 4 * dim * ends.len(), then(bags));
        if whole == 0 {
            // What it has so far goes up again with the rest of it. It is the last that comes down.
            let mut so_far = vec![0.0; dim];
            pipeline.land(&mut |then: T, bytes: &[u8]| {
                so_far.copy_from_slice(bytemuck::cast_slice(&bytes[..4 * dim]));
                land(then, bytes);
            });
            before = Some(so_far);
        }
        at = end;
        bag += whole;
    }
}

/// Has stored rows, one after the other in `rows`, decoded into slots.
pub fn fill<T>(
    pipeline: &mut Pipeline<'_, T>,
    land: &mut impl FnMut(T, &[u8]),
    layout: &RowLayout,
    slots: &[Address],
    rows: &[u8],
) {
    let row_bytes = layout.row_bytes();
    let most = pipeline.device().rows_in_tray(size_of::<Address>() + row_bytes, 0);
    for (slots, rows) in slots.chunks(most).zip(rows.chunks(most * row_bytes)) {
        let mut tray = pipeline.tray(land);
        let launch = Launch {
            slots: tray.put_all(slots.iter().copied()),
            stored: tray.put(rows.len(), |places: &mut [u8]| places.copy_from_slice(rows)),
            count: slots.len() as u32,
            ..Launch::rows(layout, 0)
        };
        pipeline.send(tray, Kernel::fill(layout.weights), &launch);
    }
}

/// Has full-precision rows (weights and state, one after the other in `rows`) put into slots.
pub fn load<T>(
    pipeline: &mut Pipeline<'_, T>,
    land: &mut impl FnMut(T, &[u8]),
    layout: &RowLayout,
    slots: &[Address],
    rows: &[f32],
) {
    let most = pipeline.device().rows_in_tray(size_of::<Address>() + layout.slot_bytes(), 0);
    for (slots, rows) in slots.chunks(most).zip(rows.chunks(most * layout.slot_len())) {
        let mut tray = pipeline.tray(land);
        let launch = Launch {
            slots: tray.put_all(slots.iter().copied()),
            values: tray.put(rows.len(), |places: &mut [f32]| places.copy_from_slice(rows)),
            count: slots.len() as u32,
            ..Launch::rows(layout, 0)
        };
        pipeline.send(tray, Kernel::LOAD, &launch);
    }
}

/// Has the optimizer stepped once on each of so many slots.
pub fn update<'g, T>(
    pipeline: &mut Pipeline<'_, T>,
    land: &mut impl FnMut(T, &[u8]),
    layout: &RowLayout,
    rule: &Rule,
    count: usize,
    address: impl Fn(usize) -> Address,
    gradient: impl Fn(usize) -> &'g [f32],
) {
    let dim = layout.dim;
    let most = pipeline.device().rows_in_tray(size_of::<Address>() + 4 * dim, 0);
    for first in (0..count).step_by(most) {
        let rows = first..count.min(first + most);
        let mut tray = pipeline.tray(land);
        let launch = Launch {
            slots: tray.put_all(rows.clone().map(&address)),
            values: tray.put(rows.len() * dim, |places: &mut [f32]| {
                let places = places.chunks_exact_mut(dim);
                places.zip(rows.clone()).for_each(|(place, row)| place.copy_from_slice(gradient(row)));
            }),
            count: rows.len() as u32,
            ..Launch::rows(layout, 0).stepped(rule)
        };
        pipeline.send(tray, Kernel::update(&rule.step), &launch);
    }
}

/// Has slots rounded into stored rows. What comes back for a launch is [`Rounded`].
pub fn write_back<R, T>(
    pipeline: &mut Pipeline<'_, T>,
    land: &mut impl FnMut(T, &[u8]),
    layout: &RowLayout,
    seed: u32,
    rows: &[R],
    leaving: impl Fn(&R) -> (Address, WriteBack),
    then: impl Fn(Range<usize>) -> T,
) {
    let down = layout.row_bytes() + size_of::<f32>();
    let up = size_of::<Address>() + size_of::<u64>() + size_of::<u32>();
    let most = pipeline.device().rows_in_tray(up, down);
    for (first, rows) in (0..).step_by(most).zip(rows.chunks(most)) {
        let mut tray = pipeline.tray(land);
        let rounded = Rounded::new(layout, rows.len());
        let launch = Launch {
            slots: tray.put_all(rows.iter().map(|row| leaving(row).0)),
            numbers: tray.put_all(rows.iter().map(|row| leaving(row).1.number)),
            partitions: tray.put_all(rows.iter().map(|row| leaving(row).1.partition)),
            out: tray.output(),
            errors: tray.output() + rounded.errors as u64,
            count: rows.len() as u32,
            ..Launch::rows(layout, seed)
        };
        pipeline.send_for(
            tray,
            Kernel::write_back(layout.weights),
            &launch,
            rounded.end,
            then(first..first + rows.len()),
        );
    }
}

/// Where things are in what comes back of a write-back.
pub struct Rounded {
    row_bytes: usize,
    errors: usize,
    end: usize,
}

impl Rounded {
    /// Of so many rows.
    pub fn new(layout: &RowLayout, rows: usize) -> Rounded {
        let errors = (rows * layout.row_bytes()).next_multiple_of(16);
        Rounded { row_bytes: layout.row_bytes(), errors, end: errors + rows * size_of::<f32>() }
    }

    /// The stored form of each row, and the squared error of its weights, which is only right for rows in the sample.
    pub fn rows<'b>(&self, bytes: &'b [u8]) -> impl Iterator<Item = (&'b [u8], f32)> {
        let errors: &[f32] = bytemuck::cast_slice(&bytes[self.errors..self.end]);
        bytes[..self.errors].chunks_exact(self.row_bytes).zip(errors.iter().copied())
    }
}
