//! Checking a request whole before any of it is applied.

use std::sync::Arc;

use super::table::Table;
use super::{Assign, Engine, PooledPull, Pooling, Push};
use crate::error::{Error, Result};
use crate::numeric::float::all_finite;

impl Engine {
    /// The tables that a change names, each once.
    pub(super) fn resolve<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Result<Vec<Arc<Table>>> {
        let tables = names.clone().map(|name| self.table(name)).collect::<Result<Vec<_>>>()?;
        let mut ids: Vec<usize> = tables.iter().map(|table| table.id).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            let table = tables.iter().find(|table| table.id == twice[0]).expect("its id was taken from here");
            return Err(Error::TableTwice(table.name().into()));
        }
        Ok(tables)
    }

    /// Checks keys against a table and this engine's partitions.
    pub(super) fn check_keys(&self, table: &Table, keys: &[u64]) -> Result<()> {
        if keys.len() > u32::MAX as usize {
            let reason = "a request has at most 2^32 - 1 keys".into();
            return Err(Error::InvalidRequest { table: table.name().into(), reason });
        }
        self.route.check(table.name(), table.keys(), keys)
    }

    /// Checks a push.
    pub(super) fn check_push(&self, table: &Table, push: &Push<'_>) -> Result<()> {
        expect_len(table.name(), "gradients", push.keys.len() * table.dim(), push.gradients.len())?;
        self.check_keys(table, push.keys)?;
        let invalid = |reason: &str| Err(Error::InvalidRequest { table: table.name().into(), reason: reason.into() });
        if push.learning_rate.is_some_and(|lr| !(lr.is_finite() && lr >= 0.0)) {
            return invalid("the learning rate must be finite and not negative");
        }
        if table.spec.optimizer.needs_step() && push.step.unwrap_or(0) == 0 {
            return invalid("this optimizer needs the push's step number, counted from 1");
        }
        if !all_finite(push.gradients) {
            return Err(Error::NotFinite { table: table.name().into(), what: "gradients" });
        }
        Ok(())
    }

    /// Checks an assignment.
    pub(super) fn check_assign(&self, table: &Table, assign: &Assign<'_>) -> Result<()> {
        expect_len(table.name(), "weights", assign.keys.len() * table.dim(), assign.weights.len())?;
        let state = assign.state.unwrap_or(&[]);
        if assign.state.is_some() {
            expect_len(table.name(), "state", assign.keys.len() * table.layout().state.numbers(), state.len())?;
        }
        self.check_keys(table, assign.keys)?;
        for (what, numbers) in [("weights", assign.weights), ("state", state)] {
            if !all_finite(numbers) {
                return Err(Error::NotFinite { table: table.name().into(), what });
            }
        }
        Ok(())
    }

    /// Checks a pooled pull.
    pub(super) fn check_pooled(&self, table: &Table, pull: &PooledPull<'_>) -> Result<()> {
        check_bags(table.name(), pull.keys.len(), pull.offsets, pull.weights, pull.pooling)?;
        self.check_keys(table, pull.keys)
    }
}

/// Checks how `keys` keys are put in bags.
pub fn check_bags(table: &str, keys: usize, offsets: &[u64], weights: Option<&[f32]>, pooling: Pooling) -> Result<()> {
    let invalid = |reason: String| Err(Error::InvalidRequest { table: table.into(), reason });
    if let Some(weights) = weights {
        if pooling != Pooling::Sum {
            return invalid("weights go with sum pooling only".into());
        }
        expect_len(table, "weights", keys, weights.len())?;
        if !all_finite(weights) {
            return Err(Error::NotFinite { table: table.into(), what: "weights" });
        }
    }
    match offsets {
        [] if keys == 0 => {}
        [0, ..] => {}
        _ => return invalid("offsets must start with 0".into()),
    }
    if !offsets.is_sorted() || offsets.last().is_some_and(|&last| last > keys as u64) {
        return invalid(format!("offsets must not decrease and not exceed the number of keys, {keys}"));
    }
    Ok(())
}

pub(super) fn expect_len(table: &str, what: &'static str, expected: usize, actual: usize) -> Result<()> {
    if expected == actual {
        return Ok(());
    }
    Err(Error::WrongLength { table: table.into(), what, expected, actual })
}
