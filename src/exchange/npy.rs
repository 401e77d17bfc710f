//! Headers of `.npy` files. npyz writes and parses them; rows are read and written by their place.

use std::fs::File;
use std::io::{BufReader, Seek as _};
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use npyz::{DType, Endianness, Field, NpyHeader, Order, TypeStr, WriterBuilder as _};

use super::columns::{Column, FORMATS, Kind, columns, dims};
use super::read::check_length;
use super::{KeysReader, Region, RowsReader};
use crate::numeric::WeightFormat;

/// A record of exactly the bytes of a stored row.
fn record(format: WeightFormat, dim: usize) -> DType {
    DType::Record(columns(format, dim).iter().map(field).collect())
}

fn field(column: &Column) -> Field {
    let number = plain(type_name(column.kind));
    let dtype = match column.len {
        None => number,
        Some(len) => DType::Array(len as u64, Box::new(number)),
    };
    Field { name: column.field.into(), dtype }
}

fn plain(name: &str) -> DType {
    DType::new_scalar(name.parse::<TypeStr>().expect("names of NumPy types are known"))
}

/// NumPy's name of a type; it has none for bf16, whose bits are handed out.
fn type_name(kind: Kind) -> &'static str {
    match kind {
        Kind::F32 => "<f4",
        Kind::F16 => "<f2",
        Kind::Bf16 => "<u2",
        Kind::I16 => "<i2",
        Kind::I8 => "|i1",
        Kind::U8 => "|u1",
    }
}

/// The header of a file of rows.
pub fn header(format: WeightFormat, dim: usize, rows: u64) -> Result<Vec<u8>> {
    // Plain numbers where NumPy has them.
    let (dtype, shape) = match format {
        WeightFormat::F32 => (plain(type_name(Kind::F32)), vec![rows, dim as u64]),
        WeightFormat::F16 => (plain(type_name(Kind::F16)), vec![rows, dim as u64]),
        _ => (record(format, dim), vec![rows]),
    };
    Ok(npyz::WriteOptions::new_header_only().dtype(dtype).shape(&shape).writer(Vec::new()).write_header_only()?)
}

/// A file, its header, and where its data begins.
fn open(path: &Path) -> Result<(File, NpyHeader, u64)> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let mut reader = BufReader::new(file);
    let header = NpyHeader::from_reader(&mut reader).with_context(|| format!("{name} is not a whole .npy file"))?;
    let at = reader.stream_position()?;
    if header.order() == Order::Fortran && header.shape().len() > 1 {
        bail!("{name} is in Fortran order: save np.ascontiguousarray(array)");
    }
    if is_big_endian(&header.dtype()) {
        bail!("{name} is big-endian ({}): convert it to little-endian numbers", header.dtype().descr());
    }
    Ok((reader.into_inner(), header, at))
}

fn is_big_endian(dtype: &DType) -> bool {
    match dtype {
        DType::Plain(name) => name.endianness() == Endianness::Big,
        DType::Array(_, inner) => is_big_endian(inner),
        DType::Record(fields) => fields.iter().any(|field| is_big_endian(&field.dtype)),
    }
}

/// The rows of a file.
pub fn open_rows(path: &Path) -> Result<RowsReader> {
    let (file, header, at) = open(path)?;
    let name = path.display().to_string();
    let (dtype, shape) = (header.dtype(), header.shape());
    let Some((format, dims)) = format_of(&dtype, shape) else {
        bail!(
            "{name} holds {} in shape {shape:?}: rows are float32 or float16 in two dimensions, or what `hotrow table \
             export --precision stored` writes",
            dtype.descr()
        );
    };
    let row_bytes = format.bytes(*dims.end());
    check_length(&name, &file, shape[0].checked_mul(row_bytes as u64).and_then(|bytes| bytes.checked_add(at)))?;
    let regions = vec![Region { at, from: 0, bytes: row_bytes }];
    Ok(RowsReader { name, file, format, dims, rows: shape[0], keys: None, regions, row_bytes })
}

/// The form of rows, and which dims they may have.
fn format_of(found: &DType, shape: &[u64]) -> Option<(WeightFormat, RangeInclusive<usize>)> {
    match (found, shape) {
        (DType::Plain(name), &[_, dim]) => {
            let format = match name.to_string().as_str() {
                "<f4" => WeightFormat::F32,
                "<f2" => WeightFormat::F16,
                // What NumPy makes of the bf16 of other libraries (ml_dtypes).
                "<V2" | "|V2" => WeightFormat::Bf16,
                _ => return None,
            };
            let dim = usize::try_from(dim).ok()?;
            Some((format, dim..=dim))
        }
        (DType::Record(fields), &[_]) => {
            let DType::Array(len, _) = &fields.last()?.dtype else { return None };
            let len = usize::try_from(*len).ok()?;
            // Names tell apart what is packed in different ways, the rest must then be the same.
            FORMATS.into_iter().find_map(|format| {
                let dims = dims(format, len);
                (*found == record(format, *dims.end())).then_some((format, dims))
            })
        }
        _ => None,
    }
}

/// The keys of a file.
pub fn open_keys(path: &Path) -> Result<KeysReader> {
    let (file, header, at) = open(path)?;
    let name = path.display().to_string();
    let signed = match header.dtype() {
        DType::Plain(found) if found.to_string() == "<u8" => false,
        DType::Plain(found) if found.to_string() == "<i8" => true,
        other => bail!("{name} holds {}: keys are uint64", other.descr()),
    };
    let &[count] = header.shape() else {
        bail!("{name} has shape {:?}: keys are in one dimension", header.shape());
    };
    check_length(&name, &file, count.checked_mul(8).and_then(|bytes| bytes.checked_add(at)))?;
    Ok(KeysReader::new(name, file, at, count, signed))
}
