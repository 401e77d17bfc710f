//! The columns of a row, as both kinds of file name them.

use std::ops::RangeInclusive;

use crate::numeric::WeightFormat;

/// All forms that rows can have in a file.
pub const FORMATS: [WeightFormat; 8] = [
    WeightFormat::F32,
    WeightFormat::F16,
    WeightFormat::Bf16,
    WeightFormat::Int8Symmetric,
    WeightFormat::Int8Affine,
    WeightFormat::Int4Symmetric,
    WeightFormat::Int4Affine,
    WeightFormat::Int2Affine,
];

/// What a column's numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    F16,
    Bf16,
    I16,
    I8,
    U8,
}

/// One column of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The field of a NumPy record. It says how codes are packed, because a record has no other place for that.
    pub field: &'static str,
    /// The tensor in a safetensors file, whose metadata says how codes are packed.
    pub tensor: &'static str,
    /// Its numbers.
    pub kind: Kind,
    /// How many a row has; `None` is one, without an axis of its own.
    pub len: Option<usize>,
}

impl Column {
    /// Bytes in a row.
    pub fn bytes(&self) -> usize {
        let size = match self.kind {
            Kind::F32 => 4,
            Kind::F16 | Kind::Bf16 | Kind::I16 => 2,
            Kind::I8 | Kind::U8 => 1,
        };
        size * self.len.unwrap_or(1)
    }
}

/// The columns of a row, in the order of its bytes, which is that of falling alignment too.
pub fn columns(format: WeightFormat, dim: usize) -> Vec<Column> {
    let weights = |field, kind| vec![Column { field, tensor: "weights", kind, len: Some(dim) }];
    let scale = Column { field: "scale", tensor: "scales", kind: Kind::Bf16, len: None };
    let zero = Column { field: "zero", tensor: "zeros", kind: Kind::I16, len: None };
    let codes = |field, kind, len| Column { field, tensor: "codes", kind, len: Some(len) };
    match format {
        WeightFormat::F32 => weights("f32", Kind::F32),
        WeightFormat::F16 => weights("f16", Kind::F16),
        WeightFormat::Bf16 => weights("bf16", Kind::Bf16),
        WeightFormat::Int8Symmetric => vec![scale, codes("codes", Kind::I8, dim)],
        WeightFormat::Int8Affine => vec![scale, zero, codes("codes", Kind::U8, dim)],
        WeightFormat::Int4Symmetric => vec![scale, codes("codes4", Kind::U8, dim.div_ceil(2))],
        WeightFormat::Int4Affine => vec![scale, zero, codes("codes4", Kind::U8, dim.div_ceil(2))],
        WeightFormat::Int2Affine => vec![scale, zero, codes("codes2", Kind::U8, dim.div_ceil(4))],
    }
}

/// Which dims a row may have whose last column has `len` numbers: packed codes leave some of them unused.
pub fn dims(format: WeightFormat, len: usize) -> RangeInclusive<usize> {
    let per_byte = match format {
        WeightFormat::Int4Symmetric | WeightFormat::Int4Affine => 2,
        WeightFormat::Int2Affine => 4,
        _ => 1,
    };
    let most = len.saturating_mul(per_byte);
    most.saturating_sub(per_byte - 1)..=most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_the_bytes_of_a_stored_row() {
        for format in FORMATS {
            for dim in [1, 2, 3, 4, 5, 63, 64] {
                let columns = columns(format, dim);
                assert_eq!(columns.iter().map(Column::bytes).sum::<usize>(), format.bytes(dim), "{format:?} {dim}");
                let len = columns.last().and_then(|column| column.len).unwrap();
                assert!(dims(format, len).contains(&dim), "{format:?} {dim}");
            }
        }
    }
}
