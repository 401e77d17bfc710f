//! What a row looks like: stored (weights rounded, then state) and in a slot (all of it f32).

use crate::numeric::float;
use crate::numeric::format::names;
use crate::numeric::philox::domain;
use crate::numeric::{Noise, Rounding, RowToRound, WeightFormat};

/// Rows that are rounded at a time.
const MANY: usize = 64;

/// How optimizer state is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatePrecision {
    /// Exactly.
    F32,
    /// Rounded when the row leaves the cache, like the weights.
    Bf16,
}

names!(StatePrecision, "state precision", F32 = "f32", Bf16 = "bf16");

/// The optimizer state of a row: `tensors` vectors of `len` numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateLayout {
    /// How many vectors (0, 1 or 2).
    pub tensors: usize,
    /// How many numbers in each.
    pub len: usize,
    /// How they are stored.
    pub precision: StatePrecision,
}

impl StateLayout {
    /// Numbers of state in a row.
    pub fn numbers(&self) -> usize {
        self.tensors * self.len
    }
}

/// How the rows of a table are laid out, in the row store and in a slot of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowLayout {
    /// Weights in a row.
    pub dim: usize,
    /// How the weights are stored.
    pub weights: WeightFormat,
    /// How they are rounded.
    pub rounding: Rounding,
    /// The optimizer state that travels with them.
    pub state: StateLayout,
}

impl RowLayout {
    /// The same, with the number of weights known to the compiler: `DIM`, or as it is where that is 0. Loops of a known length are unrolled.
    #[inline(always)]
    pub fn known<const DIM: usize>(&self) -> RowLayout {
        debug_assert!(DIM == 0 || DIM == self.dim);
        RowLayout { dim: if DIM > 0 { DIM } else { self.dim }, ..*self }
    }

    /// Bytes of a stored row.
    #[inline(always)]
    pub fn row_bytes(&self) -> usize {
        let state = match self.state.precision {
            StatePrecision::F32 => 4,
            StatePrecision::Bf16 => 2,
        };
        self.weights.bytes(self.dim) + state * self.state.numbers()
    }

    /// Numbers in a slot: weights, then state.
    #[inline(always)]
    pub fn slot_len(&self) -> usize {
        self.dim + self.state.numbers()
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        4 * self.slot_len()
    }

    /// Whether a stored row is the full-precision row: nothing to round, so nothing to cache.
    pub fn is_exact(&self) -> bool {
        self.weights == WeightFormat::F32 && (self.state.numbers() == 0 || self.state.precision == StatePrecision::F32)
    }

    /// Reads the weights of a stored row.
    #[inline(always)]
    pub fn decode_weights(&self, row: &[u8], out: &mut [f32]) {
        self.weights.decode(&row[..self.weights.bytes(self.dim)], &mut out[..self.dim]);
    }

    /// Reads a stored row.
    #[inline(always)]
    pub fn decode(&self, row: &[u8], weights: &mut [f32], state: &mut [f32]) {
        let (stored, stored_state) = row.split_at(self.weights.bytes(self.dim));
        self.weights.decode(stored, &mut weights[..self.dim]);
        match self.state.precision {
            StatePrecision::F32 => WeightFormat::F32.decode(stored_state, state),
            StatePrecision::Bf16 => float::decode_bf16(stored_state, state),
        }
    }

    /// Rounds a full-precision row into a stored one.
    #[inline(always)]
    pub fn encode(&self, weights: &[f32], state: &[f32], noise: &Noise, row: &mut [u8]) {
        let (stored, stored_state) = row.split_at_mut(self.weights.bytes(self.dim));
        self.weights.encode(weights, self.rounding, noise, stored);
        self.encode_state(state, noise, stored_state);
    }

    /// Rounds full-precision rows (weights and state, with the noise of each) into stored ones, one after the other in `stored`. That is
    /// faster than each by itself.
    #[inline(always)]
    pub fn encode_many<'a>(&self, rows: impl Iterator<Item = (&'a [f32], &'a [f32], Noise)>, stored: &mut [u8]) {
        let weight_bytes = self.weights.bytes(self.dim);
        let mut rows = rows.zip(stored.chunks_exact_mut(self.row_bytes()));
        loop {
            let mut many: [RowToRound<'_>; MANY] = std::array::from_fn(|_| RowToRound::default());
            let mut count = 0;
            for ((weights, state, noise), stored) in rows.by_ref().take(MANY) {
                let (to, stored_state) = stored.split_at_mut(weight_bytes);
                self.encode_state(state, &noise, stored_state);
                many[count] = RowToRound { x: weights, noise, to };
                count += 1;
            }
            if count == 0 {
                return;
            }
            self.weights.encode_many(self.dim, self.rounding, &mut many[..count]);
        }
    }

    #[inline(always)]
    fn encode_state(&self, state: &[f32], noise: &Noise, stored_state: &mut [u8]) {
        match self.state.precision {
            StatePrecision::F32 => WeightFormat::F32.encode(state, self.rounding, noise, stored_state),
            StatePrecision::Bf16 => {
                let tensors =
                    state.chunks(self.state.len.max(1)).zip(stored_state.chunks_mut(2 * self.state.len.max(1)));
                for (t, (tensor, stored)) in tensors.enumerate() {
                    float::encode_bf16(tensor, self.rounding, noise, domain::STATE + t as u32, stored);
                }
            }
        }
    }
}
