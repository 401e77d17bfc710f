//! The pool: where the full-precision rows are, and the batched work done on them there.
//!
//! `unsafe` only stands in declarations here; what it asks of callers is in [`Pool`]'s safety section.
#![allow(unsafe_code)]

use super::HostPool;
use super::cuda::CudaSlots;
use crate::numeric::{hash, simd, sum};

/// Full-precision rows in numbered slots, on the host or on a GPU: what is done with a few of them.
///
/// A slot holds weights and optimizer state, all f32. What is in which slot is the directory's business. The work of
/// pulls and pushes is not here, because it is cut differently: [`HostPool`] does it in batches that
/// stay in the first-level cache, a GPU does it for a whole request at once ([`super::cuda`]).
///
/// # Safety
///
/// The operations take `&self` because partitions work on their own slots side by side. A caller must hold the
/// lock of the partition that each named slot belongs to: shared for `read`, exclusive for the others. Every slot must
/// be one of the pool's, and a slot must not be named twice in one call of an operation that writes slots.
pub trait Pool: Send + Sync {
    /// Numbers in a slot: weights, then state.
    fn slot_len(&self) -> usize;

    /// Decodes stored rows, one after the other in `rows`, into slots.
    ///
    /// # Safety
    /// See [`Pool`].
    unsafe fn fill(&self, slots: &[u32], rows: &[u8]);

    /// Puts full-precision rows (weights and state, one after the other in `rows`) into slots.
    ///
    /// # Safety
    /// See [`Pool`].
    unsafe fn load(&self, slots: &[u32], rows: &[f32]);

    /// Copies whole slots (weights and state) out, one after the other.
    ///
    /// # Safety
    /// See [`Pool`].
    unsafe fn read(&self, slots: &[u32], rows: &mut [f32]);
}

/// The slots of one table, wherever they are.
pub enum Slots {
    /// In host memory.
    Host(HostPool),
    /// On a GPU.
    Cuda(CudaSlots),
}

impl Slots {
    /// For what is done with a few of them, it does not matter where.
    pub fn pool(&self) -> &dyn Pool {
        match self {
            Slots::Host(pool) => pool,
            Slots::Cuda(slots) => slots,
        }
    }

    /// Those on a GPU.
    pub fn cuda(&self) -> Option<&CudaSlots> {
        match self {
            Slots::Host(_) => None,
            Slots::Cuda(slots) => Some(slots),
        }
    }
}

/// Which gradients belong to which row of a batch. A row's gradients are added in the order given.
#[derive(Clone, Copy)]
pub struct Gradients<'a> {
    /// The push's gradients, one after the other.
    pub values: &'a [f32],
    /// Which of them belong to the batch, grouped by row.
    pub picked: &'a [u32],
    /// Where the group of each row ends in `picked`; it starts where the one before ends.
    pub ends: &'a [u32],
}

impl<'a> Gradients<'a> {
    /// The sum of the gradients of row `i`; `sum` is used only where there are several.
    #[inline(always)]
    pub fn of<'b>(&self, i: usize, sum: &'b mut [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        let dim = sum.len();
        let picked = self.picked_of(i);
        let first = self.at(picked[0], dim);
        if picked.len() == 1 {
            return first;
        }
        sum.copy_from_slice(first);
        for &more in &picked[1..] {
            for (sum, g) in sum.iter_mut().zip(self.at(more, dim)) {
                *sum += g;
            }
        }
        sum
    }

    /// The numbers of the gradients of row `i`.
    #[inline(always)]
    pub fn picked_of(&self, i: usize) -> &'a [u32] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.picked[start..self.ends[i] as usize]
    }

    /// Asks for the first gradient of row `i`, if there is one.
    #[inline(always)]
    pub fn prefetch(&self, i: usize, dim: usize) {
        let start = if i == 0 { Some(&0) } else { self.ends.get(i - 1) };
        if let Some(&first) = start.and_then(|&start| self.picked.get(start as usize)) {
            simd::prefetch_slice(self.at(first, dim));
        }
    }

    /// Gradient number `i` of the push.
    #[inline(always)]
    pub fn at(&self, i: u32, dim: usize) -> &'a [f32] {
        &self.values[i as usize * dim..][..dim]
    }
}

/// One row on its way out of the cache.
#[derive(Clone, Copy, Debug)]
pub struct WriteBack {
    /// Where it is.
    pub slot: u32,
    /// Whose write-back it is.
    pub partition: u32,
    /// The partition's write-back number.
    pub number: u64,
}

/// What rounding did to a sample of the written-back weights: about one row in sixteen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoundingError {
    /// Sum of the squared differences.
    pub squares: f64,
    /// How many weights were compared.
    pub weights: u64,
}

impl RoundingError {
    /// Whether the row with this write-back number is in the sample. Tables take numbers in turns, so a plain remainder
    /// would pick the same tables again and again.
    #[inline(always)]
    pub fn samples(number: u64) -> bool {
        hash::mix64(number).is_multiple_of(16)
    }

    /// The difference of one row's weights before and after rounding. `rounded` is used up.
    #[inline(always)]
    pub fn between(exact: &[f32], rounded: &mut [f32]) -> RoundingError {
        rounded.iter_mut().zip(exact).for_each(|(r, x)| *r -= x);
        RoundingError { squares: f64::from(sum::of_squares(rounded)), weights: rounded.len() as u64 }
    }

    /// Adds what another batch measured.
    pub fn add(&mut self, other: RoundingError) {
        self.squares += other.squares;
        self.weights += other.weights;
    }
}
