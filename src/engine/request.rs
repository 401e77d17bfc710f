//! What can be asked of the engine.

use super::clients::{ClientId, Origin};
use crate::numeric::WeightFormat;
use crate::numeric::format::{decode_rows, names};
use crate::table::TableSpec;

/// The place of a change in the engine's one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// Rows of one table, to read.
#[derive(Clone, Copy, Debug)]
pub struct Pull<'a> {
    /// The table's name.
    pub table: &'a str,
    /// Its keys, in the order of the answer. Duplicates are fine.
    pub keys: &'a [u64],
}

/// How the rows of a bag become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Added up.
    Sum,
    /// Added up and divided by their number.
    Mean,
}

/// Bags of rows of one table, to read as one row each (as PyTorch's EmbeddingBag).
#[derive(Clone, Copy, Debug)]
pub struct PooledPull<'a> {
    /// The table's name.
    pub table: &'a str,
    /// The keys of all bags, one bag after the other.
    pub keys: &'a [u64],
    /// Where each bag starts in `keys`. The first is 0.
    pub offsets: &'a [u64],
    /// A factor for each key; for sums only.
    pub weights: Option<&'a [f32]>,
    /// How a bag becomes one row.
    pub pooling: Pooling,
}

/// How rows are handed out. Narrower ones are rounded to nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RowFormat {
    /// Four bytes a number.
    #[default]
    F32,
    /// Two bytes a number, IEEE half precision.
    F16,
    /// Two bytes a number, the upper half of an f32.
    Bf16,
    /// A bf16 scale, then a signed byte a number: value = byte * scale.
    Int8,
}

impl RowFormat {
    /// Bytes of a row of `dim` numbers.
    pub fn row_bytes(self, dim: usize) -> usize {
        self.weights().bytes(dim)
    }

    pub(super) fn weights(self) -> WeightFormat {
        match self {
            RowFormat::F32 => WeightFormat::F32,
            RowFormat::F16 => WeightFormat::F16,
            RowFormat::Bf16 => WeightFormat::Bf16,
            RowFormat::Int8 => WeightFormat::Int8Symmetric,
        }
    }

    /// Reads rows of `dim` numbers. `out` has as many rows as `bytes`.
    pub fn decode(self, bytes: &[u8], dim: usize, out: &mut [f32]) {
        match self {
            // Little-endian on both sides.
            RowFormat::F32 => bytemuck::cast_slice_mut(out).copy_from_slice(bytes),
            _ => decode_rows(self.weights(), dim, bytes, out),
        }
    }
}

names!(RowFormat, "wire precision", F32 = "f32", F16 = "f16", Bf16 = "bf16", Int8 = "int8");

/// Gradients for rows of one table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Push<'a> {
    /// The table's name.
    pub table: &'a str,
    /// The rows. Gradients of the same key are added up.
    pub keys: &'a [u64],
    /// The gradient of each key, `dim` numbers each.
    pub gradients: &'a [f32],
    /// Instead of the table's learning rate.
    pub learning_rate: Option<f32>,
    /// Which step this is, from 1; Adam needs it.
    pub step: Option<u64>,
}

/// Rows of one table, to bring into the cache ahead of a push.
#[derive(Clone, Copy, Debug)]
pub struct Touch<'a> {
    /// The table's name.
    pub table: &'a str,
    /// The rows.
    pub keys: &'a [u64],
}

/// Rows of one table, to set.
#[derive(Clone, Copy, Debug)]
pub struct Assign<'a> {
    /// The table's name.
    pub table: &'a str,
    /// The rows. Of a key given twice the last counts.
    pub keys: &'a [u64],
    /// Their weights, `dim` numbers each.
    pub weights: &'a [f32],
    /// Their optimizer state, tensor after tensor for each key; zeros where not given.
    pub state: Option<&'a [f32]>,
}

/// Rows of one table, to forget.
#[derive(Clone, Copy, Debug)]
pub struct Remove<'a> {
    /// The table's name.
    pub table: &'a str,
    /// The rows. One that is not there is fine.
    pub keys: &'a [u64],
}

/// What can be changed of a table while it is in use. `None` leaves it as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Alteration {
    /// The learning rate, where a push does not bring its own.
    pub learning_rate: Option<f32>,
    /// The weight decay.
    pub weight_decay: Option<f32>,
    /// The largest L2 norm of a row's gradient; `Some(None)` is no limit any more.
    pub clip_norm: Option<Option<f32>>,
}

/// Everything that alters state. The same changes in the same order give the same bits.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Make a table.
    Create(&'a TableSpec),
    /// Forget a table.
    Drop(&'a str),
    /// Apply gradients.
    Push(&'a [Push<'a>]),
    /// Apply gradients, unless they were applied already.
    PushOnce(Origin, &'a [Push<'a>]),
    /// Bring rows into the cache.
    Touch(&'a [Touch<'a>]),
    /// Set rows.
    Assign(&'a [Assign<'a>]),
    /// Forget rows.
    Remove(&'a [Remove<'a>]),
    /// Change a table's hyper-parameters.
    Alter(&'a str, Alteration),
    /// Remember the pushes of a client from now on.
    OpenClient(ClientId),
    /// Forget a client.
    CloseClient(ClientId),
}
