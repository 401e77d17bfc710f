//! Headers of safetensors files. The crate of that name writes, parses and checks them; rows are read and written by
//! their place.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::columns::{Column, Kind, columns, dims};
use super::read::check_length;
use super::{KeysReader, KeysWriter, Region, RowsReader, Target};
use crate::numeric::{Precision, WeightFormat};

/// The version of the layout, in the metadata.
const FORMAT_VERSION: &str = "1";
/// More rows than any table has. The header leaves room for the digits of so many, so that keys can be written before
/// anybody has counted them.
const MOST_ROWS: u64 = 1 << 44;
/// The largest header that the format allows.
const MOST_HEADER: u64 = 100_000_000;

/// What a file is to hold.
pub struct Layout<'a> {
    /// The table's name.
    pub table: &'a str,
    /// The form of its rows.
    pub format: WeightFormat,
    /// Numbers in a row.
    pub dim: usize,
    /// Whether their keys are in the file, before the rows.
    pub keys: bool,
}

impl Layout<'_> {
    /// The first bytes of a file with so many rows, and where its columns are.
    pub(super) fn header(&self, rows: u64) -> Result<(Vec<u8>, Vec<Region>)> {
        let room = self.text(MOST_ROWS)?.len().next_multiple_of(8);
        let mut text = self.text(rows)?;
        text.resize(room, b' ');
        let mut at = 8 + room as u64 + if self.keys { 8 * rows } else { 0 };
        let (mut regions, mut from) = (Vec::new(), 0);
        for bytes in columns(self.format, self.dim).iter().map(Column::bytes) {
            regions.push(Region { at, from, bytes });
            at += rows * bytes as u64;
            from += bytes;
        }
        Ok(([&(room as u64).to_le_bytes(), &text[..]].concat(), regions))
    }

    /// The place for keys in a file that is begun.
    pub fn keys_writer(&self, target: &Target) -> Result<KeysWriter> {
        let at = self.header(0)?.0.len() as u64;
        Ok(KeysWriter::Inside { file: target.file().try_clone()?, at, count: 0 })
    }

    fn text(&self, rows: u64) -> Result<Vec<u8>> {
        ensure!(rows <= MOST_ROWS, "{rows} rows are too many for a safetensors file");
        let rows = rows as usize;
        let mut at = 0;
        let mut tensor = |name: &str, dtype: Dtype, shape: Vec<usize>, bytes: usize| {
            at += bytes;
            (name.to_string(), TensorInfo { dtype, shape, data_offsets: (at - bytes, at) })
        };
        let mut tensors = Vec::new();
        if self.keys {
            tensors.push(tensor("keys", Dtype::U64, vec![rows], 8 * rows));
        }
        for column in columns(self.format, self.dim) {
            let shape = [rows].into_iter().chain(column.len).collect();
            tensors.push(tensor(column.tensor, dtype_of(column.kind), shape, column.bytes() * rows));
        }
        let metadata = self.metadata().into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        // By way of a value, whose names are in order, so that the same table gives the same bytes.
        let header = serde_json::to_value(Metadata::new(Some(metadata), tensors)?)?;
        Ok(serde_json::to_vec(&header)?)
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        let (precision, quantizer) = self.format.parts();
        let mut metadata = vec![
            ("hotrow_format", FORMAT_VERSION.into()),
            ("table", self.table.into()),
            ("dim", self.dim.to_string()),
            ("precision", precision.to_string()),
        ];
        metadata.extend(quantizer.map(|quantizer| ("quantizer", quantizer.to_string())));
        let packing = match precision {
            Precision::Int4 => Some("two per byte, element 2i in the lower half of byte i"),
            Precision::Int2 => Some("four per byte, element 4i+j in bits 2j and 2j+1 of byte i"),
            _ => None,
        };
        metadata.extend(packing.map(|packing| ("packing", packing.into())));
        metadata
    }
}

fn dtype_of(kind: Kind) -> Dtype {
    match kind {
        Kind::F32 => Dtype::F32,
        Kind::F16 => Dtype::F16,
        Kind::Bf16 => Dtype::BF16,
        Kind::I16 => Dtype::I16,
        Kind::I8 => Dtype::I8,
        Kind::U8 => Dtype::U8,
    }
}

/// The rows of a file.
pub fn open_rows(path: &Path) -> Result<RowsReader> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let (header, data) = read_header(&name, &file)?;
    check_length(&name, &file, (header.data_len() as u64).checked_add(data))?;
    let format = format_of(&name, &header)?;
    let last = columns(format, 1).last().map_or("weights", |column| column.tensor);
    let Some(&[rows, len]) = header.info(last).map(|info| info.shape.as_slice()) else {
        bail!("{name}: the tensor '{last}' must have two dimensions, a row for each key");
    };
    let mut dims = dims(format, len);
    if let Some(dim) = metadata(&header, "dim") {
        match dim.parse() {
            Ok(dim) if dims.contains(&dim) => dims = dim..=dim,
            _ => bail!("{name}: its metadata says dim {dim}, but '{last}' has {len} numbers in a row"),
        }
    }
    let (mut regions, mut from) = (Vec::new(), 0);
    for column in columns(format, *dims.end()) {
        let at = data + check_tensor(&name, &header, &column, rows)?;
        regions.push(Region { at, from, bytes: column.bytes() });
        from += column.bytes();
    }
    let keys = match header.info("keys") {
        None => None,
        Some(info) if matches!(info.dtype, Dtype::U64 | Dtype::I64) && info.shape == [rows] => {
            let (file, at) = (file.try_clone()?, data + info.data_offsets.0 as u64);
            Some(KeysReader::new(name.clone(), file, at, rows as u64, info.dtype == Dtype::I64))
        }
        Some(info) => {
            bail!(
                "{name}: the tensor 'keys' is {} {:?}: it must be U64 [{rows}], one for each row",
                info.dtype,
                info.shape
            )
        }
    };
    Ok(RowsReader { name, file, format, dims, rows: rows as u64, keys, regions, row_bytes: from })
}

/// The header, and where the data begins.
fn read_header(name: &str, file: &File) -> Result<(Metadata, u64)> {
    let broken = || format!("{name} is not a whole safetensors file");
    let mut length = [0; 8];
    file.read_exact_at(&mut length, 0).with_context(broken)?;
    let length = u64::from_le_bytes(length);
    ensure!(length <= MOST_HEADER, "{}: its header would have {length} bytes", broken());
    let mut text = vec![0; length as usize];
    file.read_exact_at(&mut text, 8).with_context(broken)?;
    Ok((serde_json::from_slice(&text).with_context(broken)?, 8 + length))
}

fn metadata<'a>(header: &'a Metadata, name: &str) -> Option<&'a str> {
    header.metadata().as_ref()?.get(name).map(String::as_str)
}

/// The form of the rows: by the type of `weights`; or by the metadata, without which codes are bytes with a scale.
fn format_of(name: &str, header: &Metadata) -> Result<WeightFormat> {
    if let Some(info) = header.info("weights") {
        return match info.dtype {
            Dtype::F32 => Ok(WeightFormat::F32),
            Dtype::F16 => Ok(WeightFormat::F16),
            Dtype::BF16 => Ok(WeightFormat::Bf16),
            other => bail!("{name}: the tensor 'weights' is {other}: it must be F32, F16 or BF16"),
        };
    }
    let Some(codes) = header.info("codes") else {
        let names = header.offset_keys().join(", ");
        bail!("{name} has neither a tensor 'weights' nor 'codes', only: {names}");
    };
    match metadata(header, "precision") {
        Some(precision) => {
            let quantizer = metadata(header, "quantizer").unwrap_or_default();
            let format = WeightFormat::named(precision, quantizer).filter(|format| format.parts().1.is_some());
            format
                .with_context(|| format!("{name}: its metadata says precision '{precision}', quantizer '{quantizer}'"))
        }
        None if codes.dtype == Dtype::I8 => Ok(WeightFormat::Int8Symmetric),
        None => bail!("{name}: codes that are not I8 need 'precision' and 'quantizer' in the metadata"),
    }
}

/// Checks the tensor of a column. Returns where it begins in the data.
fn check_tensor(name: &str, header: &Metadata, column: &Column, rows: usize) -> Result<u64> {
    let (tensor, dtype) = (column.tensor, dtype_of(column.kind));
    let shape: Vec<usize> = [rows].into_iter().chain(column.len).collect();
    match header.info(tensor) {
        Some(info) if info.dtype == dtype && info.shape == shape => Ok(info.data_offsets.0 as u64),
        Some(info) => {
            bail!("{name}: the tensor '{tensor}' is {} {:?}: it must be {dtype} {shape:?}", info.dtype, info.shape)
        }
        None => bail!("{name}: there is no tensor '{tensor}', {dtype} {shape:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::FORMATS;
    use super::*;

    #[test]
    fn rows_begin_where_they_do_whatever_their_number() {
        for format in FORMATS {
            let layout = Layout { table: "t", format, dim: 7, keys: true };
            let length = |rows| layout.header(rows).unwrap().0.len();
            assert_eq!(length(0), length(MOST_ROWS));
            let (header, regions) = layout.header(1000).unwrap();
            assert_eq!(regions[0].at, header.len() as u64 + 8 * 1000);
            assert!(header.len().is_multiple_of(8));
        }
    }
}
