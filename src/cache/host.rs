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
const AHEAD: usize = 4;

/// Full-precision rows in host memory.
pub struct HostPool {
    layout: RowLayout,
    seed: u32,
    slots: u32,
    start: NonNull<f32>,
    /// Keeps the memory behind `start`; never dereferenced itself.
    _memory: Region,
}

// SAFETY: the memory is owned by the pool and reached only under the contract of `Pool`, which asks for the
// locks that make shared reads and exclusive writes.
unsafe impl Send for HostPool {}
// SAFETY: as above.
unsafe impl Sync for HostPool {}

thread_local! {
    /// Two rows' worth of numbers: the sum of a row's gradients, and the gradient as the rule changes it.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl HostPool {
    /// A pool of zeroed slots. Memory is committed as slots are first written.
    pub fn new(layout: RowLayout, seed: u32, slots: u32) -> io::Result<HostPool> {
        let bytes = slots as usize * layout.slot_bytes();
        let mut memory = Mapping::new(bytes)?.take(bytes).expect("the mapping was made this long");
        let start = NonNull::new(memory.as_mut_ptr()).expect("a mapping is never at address zero").cast();
        Ok(HostPool { layout, seed, slots, start, _memory: memory })
    }

    /// The bounds check behind every access.
    #[inline(always)]
    fn address(&self, slot: u32) -> *mut f32 {
        assert!(slot < self.slots, "slot {slot} is not one of {}", self.slots);
        // SAFETY: `slot < slots`, and the memory holds `slots * slot_len` numbers.
        unsafe { self.start.as_ptr().add(slot as usize * self.layout.slot_len()) }
    }

    /// # Safety
    /// The caller holds the slot's partition lock, shared or exclusive.
    #[inline(always)]
    unsafe fn slot(&self, slot: u32) -> &[f32] {
        // SAFETY: `address` is in bounds; the lock keeps writers out; the kernel zeroed the memory.
        unsafe { std::slice::from_raw_parts(self.address(slot), self.layout.slot_len()) }
    }

    /// # Safety
    /// The caller holds the slot's partition lock exclusively and no other reference to the slot.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    unsafe fn slot_mut(&self, slot: u32) -> &mut [f32] {
        // SAFETY: `address` is in bounds; the exclusive lock makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.address(slot), self.layout.slot_len()) }
    }

    #[inline(always)]
    fn prefetch(&self, slot: Option<&u32>, numbers: usize) {
        if let Some(&slot) = slot {
            let start = self.start.as_ptr().wrapping_add(slot as usize * self.layout.slot_len());
            let mut at = 0;
            while at < numbers {
                simd::prefetch(start.wrapping_add(at));
                at += 16;
            }
        }
    }
}

impl Pool for HostPool {
    fn slots(&self) -> u32 {
        self.slots
    }

    unsafe fn gather(&self, slots: &[u32], to: &[u32], out: &mut [f32]) {
        gather(self, slots, to, out);
    }

    unsafe fn gather_pooled(&self, slots: &[u32], bags: &[u32], scales: Option<&[f32]>, out: &mut [f32]) {
        gather_pooled(self, slots, bags, scales, out);
    }

    unsafe fn fill(&self, slots: &[u32], rows: &[u8]) {
        fill(self, slots, rows);
    }

    unsafe fn load(&self, slots: &[u32], rows: &[f32]) {
        for (&slot, row) in slots.iter().zip(rows.chunks_exact(self.layout.slot_len())) {
            // SAFETY: the caller's locks, by the contract of `Pool`.
            unsafe { self.slot_mut(slot) }.copy_from_slice(row);
        }
    }

    unsafe fn read(&self, slots: &[u32], rows: &mut [f32]) {
        for (&slot, row) in slots.iter().zip(rows.chunks_exact_mut(self.layout.slot_len())) {
            // SAFETY: the caller's locks, by the contract of `Pool`.
            row.copy_from_slice(unsafe { self.slot(slot) });
        }
    }

    unsafe fn update(&self, slots: &[u32], gradients: &Gradients<'_>, rule: &Rule) {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(2 * self.layout.dim, 0.0);
            update(self, slots, gradients, rule, scratch);
        });
    }

    unsafe fn write_back(&self, evicted: &[WriteBack], rows: &mut [u8]) -> RoundingError {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(2 * self.layout.dim, 0.0);
            write_back(self, evicted, rows, scratch)
        })
    }
}

// The loops below are free functions because `dispatch!` makes them; each is only called from the method of its
// name, whose caller has promised to hold the locks.

dispatch! {
    fn gather(pool: &HostPool, slots: &[u32], to: &[u32], out: &mut [f32]) {
        let dim = pool.layout.dim;
        for i in 0..AHEAD {
            pool.prefetch(slots.get(i), dim);
        }
        for (i, (&slot, &to)) in slots.iter().zip(to).enumerate() {
            pool.prefetch(slots.get(i + AHEAD), dim);
            // SAFETY: the caller's locks, by the contract of `Pool`.
            let weights = unsafe { &pool.slot(slot)[..dim] };
            out[to as usize * dim..][..dim].copy_from_slice(weights);
        }
    }
}

dispatch! {
    fn gather_pooled(pool: &HostPool, slots: &[u32], bags: &[u32], scales: Option<&[f32]>, out: &mut [f32]) {
        let dim = pool.layout.dim;
        for (i, (&slot, &bag)) in slots.iter().zip(bags).enumerate() {
            pool.prefetch(slots.get(i + AHEAD), dim);
            // SAFETY: the caller's locks, by the contract of `Pool`.
            let weights = unsafe { &pool.slot(slot)[..dim] };
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
            pool.layout.decode(row, unsafe { pool.slot_mut(slot) });
        }
    }
}

dispatch! {
    fn update(pool: &HostPool, slots: &[u32], gradients: &Gradients<'_>, rule: &Rule, scratch: &mut [f32]) {
        let dim = pool.layout.dim;
        let (sum, changed) = scratch.split_at_mut(dim);
        for (i, &slot) in slots.iter().enumerate() {
            pool.prefetch(slots.get(i + AHEAD), pool.layout.slot_len());
            let gradient = gradients.of(i, sum);
            // SAFETY: the caller's exclusive locks, by the contract of `Pool`.
            rule.apply(unsafe { pool.slot_mut(slot) }, gradient, changed);
        }
    }
}

dispatch! {
    fn write_back(pool: &HostPool, evicted: &[WriteBack], rows: &mut [u8], scratch: &mut [f32]) -> RoundingError {
        let mut error = RoundingError::default();
        let decoded = &mut scratch[..pool.layout.dim];
        for (i, (leaving, row)) in evicted.iter().zip(rows.chunks_exact_mut(pool.layout.row_bytes())).enumerate() {
            pool.prefetch(evicted.get(i + AHEAD).map(|ahead| &ahead.slot), pool.layout.slot_len());
            // SAFETY: the caller's exclusive locks, by the contract of `Pool`.
            let slot = unsafe { pool.slot(leaving.slot) };
            let noise = Noise { seed: pool.seed, partition: leaving.partition, write_back: leaving.number };
            pool.layout.encode(slot, noise, row);
            if leaving.number % RoundingError::SAMPLE == 0 {
                pool.layout.decode_weights(row, decoded);
                error.add(RoundingError::between(slot, decoded));
            }
        }
        error
    }
}
