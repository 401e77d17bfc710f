//! Changes of tables that store full-precision rows: there is no cache, and rows are stepped where they are.
//!
//! Hot path: nothing is allocated per row, and rows are asked for before they are needed. A push to one partition after the other
//! (`push`) is what any push can be; a large one of distinct keys is stepped in its own order (`push_in_order`), to the same effect.

use super::apply::{Visit, WORK, Work};
use super::route::{Groups, Route};
use super::table::Table;
use crate::cache::Gradients;
use crate::numeric::Rule;
use crate::numeric::simd::{self, dispatch};
use crate::table::TablePart;

/// How many rows ahead to prefetch.
const AHEAD: usize = 32;

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
/// if a key is there twice, and nothing was done. `parts` are those of the owned partitions, and `groups` their keys.
pub fn push_in_order(
    parts: &mut [&mut TablePart],
    groups: &Groups,
    route: &Route,
    table: &Table,
    keys: &[u64],
    gradients: &[f32],
    rule: &Rule,
) -> bool {
    WORK.with_borrow_mut(|work| {
        if !work.distinct.none_repeats(keys) {
            return false;
        }
        // By partition. All that is to be noted of a row is noted before: what is left is to step it.
        let mut rows: Vec<&mut [f32]> = (0..1 << route.bits()).map(|_| Default::default()).collect();
        for (place, part) in parts.iter_mut().enumerate() {
            let positions = groups.of(place);
            part.counts.push_misses += positions.len() as u64;
            part.counts.updated_rows += positions.len() as u64;
            let keys = positions.iter().map(|&position| keys[position as usize]);
            rows[route.owned()[place] as usize] = part.exact_rows(keys, &table.initial, table.dim());
        }
        work.scratch.resize(table.dim(), 0.0);
        step_in_order(&mut rows, route, table, keys, gradients, rule, &mut work.scratch);
        true
    })
}

dispatch! {
    fn step_in_order(
        rows: &mut [&mut [f32]],
        route: &Route,
        table: &Table,
        keys: &[u64],
        gradients: &[f32],
        rule: &Rule,
        scratch: &mut [f32],
    ) {
        match table.dim() {
            16 => step_all::<16>(rows, route, table, keys, gradients, rule, scratch),
            32 => step_all::<32>(rows, route, table, keys, gradients, rule, scratch),
            64 => step_all::<64>(rows, route, table, keys, gradients, rule, scratch),
            128 => step_all::<128>(rows, route, table, keys, gradients, rule, scratch),
            _ => step_all::<0>(rows, route, table, keys, gradients, rule, scratch),
        }
    }
}

/// `DIM` is as in [`step_rows`].
#[inline(always)]
fn step_all<const DIM: usize>(
    rows: &mut [&mut [f32]],
    route: &Route,
    table: &Table,
    keys: &[u64],
    gradients: &[f32],
    rule: &Rule,
    scratch: &mut [f32],
) {
    let dim = if DIM > 0 { DIM } else { table.dim() };
    let stride = dim + table.layout().state.numbers();
    let lines = if stride.is_multiple_of(16) { stride / 16 } else { stride / 16 + 1 };
    // There are rows for every partition, and their number is a power of two.
    let last = rows.len() - 1;
    for (i, (&key, gradient)) in keys.iter().zip(gradients.chunks_exact(dim)).enumerate() {
        if let Some(&key) = keys.get(i + AHEAD) {
            let (rows, at) = (&rows[route.dense(key) as usize & last], (key >> route.bits()) as usize * stride);
            simd::prefetch_lines::<false>(rows.as_ptr().wrapping_add(at).cast(), 0, lines);
        }
        let (rows, at) = (&mut rows[route.dense(key) as usize & last], (key >> route.bits()) as usize * stride);
        let (weights, state) = rows[at..][..stride].split_at_mut(dim);
        rule.apply(weights, state, gradient, &mut scratch[..dim]);
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
