//! Changes of tables that store full-precision rows: there is no cache, and rows are stepped where they are.
//!
//! Hot path: nothing is allocated per row, and rows are asked for before they are needed. A push to one partition after the other
//! (`push`) is what any push can be; a large one of distinct keys is stepped in its own order (`push_in_order`), to the same effect.

use super::apply::{Visit, WORK, Work};
use super::table::Table;
use crate::cache::Gradients;
use crate::numeric::Rule;
use crate::numeric::simd::dispatch;
use crate::table::TablePart;

/// How many rows ahead to prefetch.
const AHEAD: usize = 24;

dispatch! {
    /// Applies a push or a touch to one part.
    pub fn push(part: &mut TablePart, visit: &Visit<'_>, work: &mut Work) {
        let Work { distinct, rows, picked, ends, scratch, .. } = work;
        distinct.fill(visit.keys, visit.positions);
        rows.clear();
        for i in 0..distinct.len() {
            rows.push(part.find_or_add(distinct.keys[i], distinct.mixed[i]));
        }
        let Some((values, rule)) = visit.update else {
            part.counts.touch_misses += visit.positions.len() as u64;
            return;
        };
        distinct.group(visit.positions, |_| true, picked, ends);
        let gradients = Gradients { values, picked, ends };
        match visit.table.dim() {
            16 => step_rows::<16>(part, visit.table, &distinct.keys, rows, &gradients, &rule, scratch),
            32 => step_rows::<32>(part, visit.table, &distinct.keys, rows, &gradients, &rule, scratch),
            64 => step_rows::<64>(part, visit.table, &distinct.keys, rows, &gradients, &rule, scratch),
            128 => step_rows::<128>(part, visit.table, &distinct.keys, rows, &gradients, &rule, scratch),
            _ => step_rows::<0>(part, visit.table, &distinct.keys, rows, &gradients, &rule, scratch),
        }
        part.counts.push_misses += visit.positions.len() as u64;
        part.counts.updated_rows += rows.len() as u64;
    }
}

/// Applies a push to all parts of a dense table that stores full-precision rows, in the order of the request: its gradients are then read
/// front to back, and rows are asked for without a break. No row depends on another, so it is as if each part had its turn. `false`
/// if a key is there twice, and nothing was done. `places` gives the place of a key's part.
pub fn push_in_order(
    parts: &mut [&mut TablePart],
    places: impl Fn(u64) -> usize,
    table: &Table,
    keys: &[u64],
    gradients: &[f32],
    rule: &Rule,
) -> bool {
    WORK.with_borrow_mut(|work| {
        work.distinct.find(keys.iter().copied());
        if work.distinct.len() < keys.len() {
            return false;
        }
        work.places.clear();
        work.places.extend(keys.iter().map(|&key| places(key) as u32));
        work.scratch.resize(table.dim(), 0.0);
        step_in_order(parts, &work.places, table, keys, gradients, rule, &mut work.scratch);
        true
    })
}

dispatch! {
    fn step_in_order(
        parts: &mut [&mut TablePart],
        places: &[u32],
        table: &Table,
        keys: &[u64],
        gradients: &[f32],
        rule: &Rule,
        scratch: &mut [f32],
    ) {
        match table.dim() {
            16 => step_all::<16>(parts, places, table, keys, gradients, rule, scratch),
            32 => step_all::<32>(parts, places, table, keys, gradients, rule, scratch),
            64 => step_all::<64>(parts, places, table, keys, gradients, rule, scratch),
            128 => step_all::<128>(parts, places, table, keys, gradients, rule, scratch),
            _ => step_all::<0>(parts, places, table, keys, gradients, rule, scratch),
        }
    }
}

/// `DIM` is as in [`step_rows`].
#[inline(always)]
fn step_all<const DIM: usize>(
    parts: &mut [&mut TablePart],
    places: &[u32],
    table: &Table,
    keys: &[u64],
    gradients: &[f32],
    rule: &Rule,
    scratch: &mut [f32],
) {
    let dim = if DIM > 0 { DIM } else { table.dim() };
    for (i, (&key, gradient)) in keys.iter().zip(gradients.chunks_exact(dim)).enumerate() {
        if let (Some(&place), Some(&key)) = (places.get(i + AHEAD), keys.get(i + AHEAD)) {
            let part = &parts[place as usize];
            part.prefetch_row(part.dense_row(key));
        }
        let part = &mut *parts[places[i] as usize];
        let row = part.exact_row(part.dense_row(key), key, &table.initial, dim);
        let (weights, state) = row.split_at_mut(dim);
        rule.apply(weights, state, gradient, &mut scratch[..dim]);
        part.counts.push_misses += 1;
        part.counts.updated_rows += 1;
    }
}

/// `DIM` is the number of weights, or 0 where it is not one of the usual ones: loops of a known length are unrolled.
#[inline(always)]
fn step_rows<const DIM: usize>(
    part: &mut TablePart,
    table: &Table,
    keys: &[u64],
    rows: &[u32],
    gradients: &Gradients<'_>,
    rule: &Rule,
    scratch: &mut [f32],
) {
    let dim = if DIM > 0 { DIM } else { table.dim() };
    let (sum, changed) = scratch.split_at_mut(dim);
    for (i, &row) in rows.iter().take(AHEAD).enumerate() {
        part.prefetch_row(row);
        gradients.prefetch(i, dim);
    }
    for i in 0..rows.len() {
        if let Some(&row) = rows.get(i + AHEAD) {
            part.prefetch_row(row);
        }
        gradients.prefetch(i + AHEAD, dim);
        let row = part.exact_row(rows[i], keys[i], &table.initial, dim);
        let (weights, state) = row.split_at_mut(dim);
        rule.apply(weights, state, &gradients.of(i, sum)[..dim], &mut changed[..dim]);
    }
}
