//! Looking at rows from outside: one row with all that is known of it, rows as they are stored, and a fingerprint of all.
//!
//! `unsafe` lives here for the same reason as in `pull.rs`.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::partition::Partition;
use super::table::Table;
use crate::numeric::format::encode_nearest;
use crate::numeric::hash;
use crate::table::TablePart;

/// A whole row, and where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its weights.
    pub weights: Vec<f32>,
    /// Its optimizer state, tensor after tensor.
    pub state: Vec<f32>,
    /// Whether it is in the cache.
    pub cached: bool,
    /// Whether the cached row differs from the row store.
    pub dirty: bool,
    /// Whether a low-precision form of it was ever stored.
    pub stored: bool,
}

/// Reads everything about one row. Counts nothing.
pub fn inspect(partition: &Partition, table: &Table, key: u64) -> Option<Row> {
    let part = partition.part(table.id)?;
    let layout = table.layout();
    let mixed = hash::mix64(key);
    let mut slot = vec![0.0; layout.slot_len()];
    let row = part.find(key);
    let at = row.and_then(|row| part.directory.find(row, mixed));
    let stored = row.and_then(|row| part.stored(row));
    match (at, table.pool(), stored) {
        // SAFETY: `partition` is borrowed from its read guard, and the slot is of its part.
        (Some(at), Some(pool), _) => unsafe { pool.read(&[part.first_slot + at], &mut slot) },
        (_, _, Some(bytes)) => {
            let (weights, state) = slot.split_at_mut(layout.dim);
            layout.decode(bytes, weights, state);
        }
        _ => table.initial.row(key, layout.dim, &mut slot),
    }
    let state = slot.split_off(layout.dim);
    Some(Row {
        weights: slot,
        state,
        cached: at.is_some(),
        dirty: at.is_some_and(|at| part.directory.is_dirty(at)),
        stored: stored.is_some(),
    })
}

/// Reads the weights of rows in the form in which their table stores them, all but those of cached rows that have left it
/// behind: their slots are returned, with the places of their keys. A row that was never stored is rounded to the nearest.
/// Counts nothing.
pub fn stored<'a>(
    table: &Table,
    keys: &[u64],
    part: impl Fn(u64) -> Option<&'a TablePart>,
    out: &mut [u8],
) -> Vec<(u32, usize)> {
    let layout = table.layout();
    let bytes = layout.weights.bytes(layout.dim);
    let mut weights = vec![0.0; layout.dim];
    let mut dirty = Vec::new();
    for ((i, &key), out) in keys.iter().enumerate().zip(out.chunks_exact_mut(bytes)) {
        let Some(part) = part(key) else { continue };
        let row = part.find(key);
        let cached = row.and_then(|row| part.directory.find(row, hash::mix64(key)));
        match (cached.filter(|&at| part.directory.is_dirty(at)), row.and_then(|row| part.stored(row))) {
            (Some(at), _) => dirty.push((part.first_slot + at, i)),
            (None, Some(stored)) => out.copy_from_slice(&stored[..bytes]),
            (None, None) => {
                table.initial.weights(key, &mut weights);
                encode_nearest(layout.weights, &weights, out);
            }
        }
    }
    dirty
}

/// Reads the weights of cached rows that differ from their stored form, rounded to the nearest.
///
/// # Safety
/// The caller holds the partitions of these slots, and they are the table's.
pub unsafe fn stored_anew(table: &Table, dirty: &[(u32, usize)], out: &mut [u8]) {
    let Some(pool) = table.pool() else { return };
    let layout = table.layout();
    let (len, bytes) = (layout.slot_len(), layout.weights.bytes(layout.dim));
    let slots: Vec<u32> = dirty.iter().map(|&(slot, _)| slot).collect();
    let mut rows = vec![0.0; slots.len() * len];
    // SAFETY: the caller's promise.
    unsafe { pool.read(&slots, &mut rows) };
    for (&(_, i), row) in dirty.iter().zip(rows.chunks_exact(len)) {
        encode_nearest(layout.weights, &row[..layout.dim], &mut out[i * bytes..][..bytes]);
    }
}

/// Feeds the state of a partition, the cached rows of these tables included, to `write`.
pub fn digest(partition: &Partition, tables: &[Arc<Table>], mut write: impl FnMut(&[u8])) {
    write(&partition.write_backs.to_le_bytes());
    for table in tables {
        let Some(part) = partition.part(table.id) else { continue };
        write(table.name().as_bytes());
        part.digest(&mut write);
        let Some(pool) = table.pool() else { continue };
        let taken = |&at: &u32| part.directory.row_at(at).is_some();
        let slots: Vec<u32> = (0..part.directory.slots()).filter(taken).map(|at| part.first_slot + at).collect();
        let mut rows = vec![0.0; slots.len() * pool.slot_len()];
        // SAFETY: `partition` is borrowed from its read guard, and the slots are of its part.
        unsafe { pool.read(&slots, &mut rows) };
        write(bytemuck::cast_slice(&rows));
    }
}
