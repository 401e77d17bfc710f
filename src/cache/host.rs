//! `HostPool`: the pool in host memory.
//!
//! Hot path: no allocation per row, no lock; the next rows are prefetched while one is worked on.
//!
//! `unsafe` lives here because partitions work on their own slots of one memory area side by side. It is sound
//! under the contract of [`Pool`]: whoever names a slot holds its partition's lock.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::ptr::NonNull;

use super::{Gradients, Pool, RoundingError, RowLayout, WriteBack};
use crate::memory::{Mapping, Region};
use crate::numeric::simd::{self, dispatch};
use crate::numeric::{Noise, Rule};

/// How many rows ahead to prefetch.
const AHEAD: usize = 8;

/// Full-precision rows in host memory: weights and state in arrays of their own, so that a pull reads whole cache
/// lines of weights and nothing else.
pub struct HostPool {
    layout: RowLayout,
    seed: u32,
    slots: u32,
    weights: Array,
    state: Array,
}

/// `len` numbers for every slot.
struct Array {
    start: NonNull<f32>,
    len: usize,
    /// Keeps the memory behind `start`; never dereferenced itself.
    _memory: Region,
}

// SAFETY: the memory is owned by the array and reached only under the contract of `Pool`, which asks for the
// locks that make shared reads and exclusive writes.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

thread_local! {
    /// Two rows' worth of numbers: the sum of a row's gradients, and the gradient as the rule changes it.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Array {
    fn new(slots: u32, len: usize) -> io::Result<Array> {
        let bytes = slots as usize * len * size_of::<f32>();
        let mut memory = Mapping::new(bytes)?.take(bytes).expect("the mapping was made this long");
        let start = NonNull::new(memory.as_mut_ptr()).expect("a mapping is never at address zero").cast();
        Ok(Array { start, len, _memory: memory })
    }

    /// # Safety
    /// `slot` is in bounds, and the caller holds its partition's lock, shared or exclusive.
    #[inline(always)]
    unsafe fn get(&self, slot: u32) -> &[f32] {
        // SAFETY: in bounds of the memory, which the kernel zeroed; the lock keeps writers out.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(slot as usize * self.len), self.len) }
    }

    /// # Safety
    /// `slot` is in bounds, and the caller holds its partition's lock exclusively and no other reference to the slot.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    unsafe fn get_mut(&self, slot: u32) -> &mut [f32] {
        // SAFETY: in bounds of the memory, which the kernel zeroed; the exclusive lock makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(slot as usize * self.len), self.len) }
    }

    /// Where the numbers of a slot are, or would be: only to ask for the memory.
    #[inline(always)]
    fn address(&self, slot: u32) -> *const f32 {
        self.start.as_ptr().wrapping_add(slot as usize * self.len)
    }

    #[inline(always)]
    fn prefetch(&self, slot: u32) {
        let start = self.address(slot);
        for line in 0..self.len.div_ceil(16) {
            simd::prefetch(start.wrapping_add(16 * line));
        }
    }

    #[inline(always)]
    fn approach(&self, slot: u32) {
        let start = self.address(slot);
        for line in 0..self.len.div_ceil(16) {
            simd::prefetch_early(start.wrapping_add(16 * line));
        }
    }
}

impl HostPool {
    /// A pool of zeroed slots. Memory is committed as slots are first written.
    pub fn new(layout: RowLayout, seed: u32, slots: u32) -> io::Result<HostPool> {
        let (weights, state) = (Array::new(slots, layout.dim)?, Array::new(slots, layout.state.numbers())?);
        Ok(HostPool { layout, seed, slots, weights, state })
    }

    /// The bounds check behind every access.
    #[inline(always)]
    fn check(&self, slot: u32) {
        assert!(slot < self.slots, "slot {slot} is not one of {}", self.slots);
    }

    /// The weights of a slot.
    ///
    /// # Safety
    /// The caller holds the slot's partition lock, shared or exclusive.
    #[inline(always)]
    pub unsafe fn weights(&self, slot: u32) -> &[f32] {
        self.check(slot);
        // SAFETY: the slot was checked; the lock is the caller's.
        unsafe { self.weights.get(slot) }
    }

    /// # Safety
    /// The caller holds the slot's partition lock, shared or exclusive.
    #[inline(always)]
    unsafe fn slot(&self, slot: u32) -> (&[f32], &[f32]) {
        self.check(slot);
        // SAFETY: the slot was checked; the lock is the caller's.
        unsafe { (self.weights.get(slot), self.state.get(slot)) }
    }

    /// # Safety
    /// The caller holds the slot's partition lock exclusively and no other reference to the slot.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    unsafe fn slot_mut(&self, slot: u32) -> (&mut [f32], &mut [f32]) {
        self.check(slot);
        // SAFETY: the slot was checked; the exclusive lock is the caller's; the arrays are apart.
        unsafe { (self.weights.get_mut(slot), self.state.get_mut(slot)) }
    }

    #[inline(always)]
    fn prefetch(&self, slot: Option<&u32>) {
        if let Some(&slot) = slot {
            self.weights.prefetch(slot);
            self.state.prefetch(slot);
        }
    }
}

impl HostPool {
    /// Where the weights of a slot are, or would be: only to ask for the memory.
    #[inline(always)]
    pub fn address(&self, slot: u32) -> *const u8 {
        self.weights.address(slot).cast()
    }

    /// Asks early for the memory of a slot.
    #[inline(always)]
    pub fn approach(&self, slot: u32) {
        self.weights.approach(slot);
        self.state.approach(slot);
    }

    /// Adds the weights of `slots[i]`, times `scales[i]` where given, to row `bags[i]` of `out`, in order.
    ///
    /// # Safety
    /// See [`Pool`]; shared locks will do.
    pub unsafe fn gather_pooled(&self, slots: &[u32], bags: &[u32], scales: Option<&[f32]>, out: &mut [f32]) {
        gather_pooled(self, slots, bags, scales, out);
    }

    /// Steps the optimizer once on each slot; slot i takes the sum of its gradients.
    ///
    /// # Safety
    /// See [`Pool`].
    pub unsafe fn update(&self, slots: &[u32], gradients: &Gradients<'_>, rule: &Rule) {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(2 * self.layout.dim, 0.0);
            update(self, slots, gradients, rule, scratch);
        });
    }

    /// Rounds slots into stored rows, one after the other in `rows`; `decoded` has room for the weights of one.
    ///
    /// # Safety
    /// See [`Pool`].
    #[inline(always)]
    pub unsafe fn write_back(&self, leaving: &[WriteBack], rows: &mut [u8], decoded: &mut [f32]) -> RoundingError {
        let full = leaving.iter().map(|leaving| {
            // SAFETY: the caller's exclusive locks, by the contract of `Pool`.
            let (weights, state) = unsafe { self.slot(leaving.slot) };
            (weights, state, Noise { seed: self.seed, partition: leaving.partition, write_back: leaving.number })
        });
        self.layout.encode_many(full, rows);
        let mut error = RoundingError::default();
        for (leaving, row) in leaving.iter().zip(rows.chunks_exact(self.layout.row_bytes())) {
            if RoundingError::samples(leaving.number) {
                self.layout.decode_weights(row, decoded);
                // SAFETY: as above.
                error.add(RoundingError::between(unsafe { self.weights(leaving.slot) }, decoded));
            }
        }
        error
    }

    /// Decodes a stored row into a slot. `DIM` is as in [`RowLayout::known`].
    ///
    /// # Safety
    /// See [`Pool`].
    #[inline(always)]
    pub unsafe fn fill_one<const DIM: usize>(&self, slot: u32, row: &[u8]) {
        // SAFETY: the caller's exclusive locks, by the contract of `Pool`.
        let (weights, state) = unsafe { self.slot_mut(slot) };
        self.layout.known::<DIM>().decode(row, weights, state);
    }
}

impl Pool for HostPool {
    fn slot_len(&self) -> usize {
        self.layout.slot_len()
    }

    unsafe fn fill(&self, slots: &[u32], rows: &[u8]) {
        fill(self, slots, rows);
    }

    unsafe fn load(&self, slots: &[u32], rows: &[f32]) {
        for (&slot, row) in slots.iter().zip(rows.chunks_exact(self.layout.slot_len())) {
            // SAFETY: the caller's locks, by the contract of `Pool`.
            let (weights, state) = unsafe { self.slot_mut(slot) };
            weights.copy_from_slice(&row[..self.layout.dim]);
            state.copy_from_slice(&row[self.layout.dim..]);
        }
    }

    unsafe fn read(&self, slots: &[u32], rows: &mut [f32]) {
        for (&slot, row) in slots.iter().zip(rows.chunks_exact_mut(self.layout.slot_len())) {
            // SAFETY: the caller's locks, by the contract of `Pool`.
            let (weights, state) = unsafe { self.slot(slot) };
            row[..self.layout.dim].copy_from_slice(weights);
            row[self.layout.dim..].copy_from_slice(state);
        }
    }
}

// The loops below are free functions because `dispatch!` makes them; each is only called from the method of its
// name, whose caller has promised to hold the locks.

dispatch! {
    fn gather_pooled(pool: &HostPool, slots: &[u32], bags: &[u32], scales: Option<&[f32]>, out: &mut [f32]) {
        let dim = pool.layout.dim;
        for (i, (&slot, &bag)) in slots.iter().zip(bags).enumerate() {
            if let Some(&ahead) = slots.get(i + AHEAD) {
                pool.weights.prefetch(ahead);
            }
            // SAFETY: the caller's locks, by the contract of `Pool`.
            let weights = unsafe { pool.weights(slot) };
            let out = &mut out[bag as usize * dim..][..dim];
            match scales {
                Some(scales) => out.iter_mut().zip(weights).for_each(|(out, w)| *out += scales[i] * w),
                None => out.iter_mut().zip(weights).for_each(|(out, w)| *out += w),
            }
        }
    }
}

dispatch! {
    fn fill(pool: &HostPool, slots: &[u32], rows: &[u8]) {
        for (&slot, row) in slots.iter().zip(rows.chunks_exact(pool.layout.row_bytes())) {
            // SAFETY: the caller's exclusive locks, by the contract of `Pool`.
            unsafe { pool.fill_one::<0>(slot, row) };
        }
    }
}

dispatch! {
    fn update(pool: &HostPool, slots: &[u32], gradients: &Gradients<'_>, rule: &Rule, scratch: &mut [f32]) {
        match pool.layout.dim {
            16 => update_rows::<16>(pool, slots, gradients, rule, scratch),
            32 => update_rows::<32>(pool, slots, gradients, rule, scratch),
            64 => update_rows::<64>(pool, slots, gradients, rule, scratch),
            128 => update_rows::<128>(pool, slots, gradients, rule, scratch),
            _ => update_rows::<0>(pool, slots, gradients, rule, scratch),
        }
    }
}

/// `DIM` is the number of weights, or 0 where it is not one of the usual ones: loops of a known length are unrolled.
#[inline(always)]
fn update_rows<const DIM: usize>(
    pool: &HostPool,
    slots: &[u32],
    gradients: &Gradients<'_>,
    rule: &Rule,
    scratch: &mut [f32],
) {
    let dim = if DIM > 0 { DIM } else { pool.layout.dim };
    let (sum, changed) = scratch.split_at_mut(dim);
    for i in 0..AHEAD {
        pool.prefetch(slots.get(i));
        gradients.prefetch(i, dim);
    }
    for (i, &slot) in slots.iter().enumerate() {
        pool.prefetch(slots.get(i + AHEAD));
        gradients.prefetch(i + AHEAD, dim);
        let gradient = gradients.of(i, sum);
        // SAFETY: the caller's exclusive locks, by the contract of `Pool`.
        let (weights, state) = unsafe { pool.slot_mut(slot) };
        rule.apply(&mut weights[..dim], state, &gradient[..dim], &mut changed[..dim]);
    }
}
