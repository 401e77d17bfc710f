//! A live table: what all its parts share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

use super::observe::Observer;
use crate::cache::cuda::CudaSlots;
use crate::cache::{Pool, RowLayout, Slots};
use crate::numeric::Rule;
use crate::table::{ChunkSource, Initial, KeySpace, Shape, TableSpec};

/// A live table. Its parts are in the partitions, under their locks, at index `id`.
pub struct Table {
    /// Where its parts are in every partition. Never reused.
    pub id: usize,
    /// The change that made it: tells it from another of the same name.
    pub born: AtomicU64,
    /// As its user described it when it was made.
    pub spec: TableSpec,
    /// What an alteration can change.
    pub hyper: RwLock<Hyper>,
    /// What follows from the spec.
    pub shape: Shape,
    /// What untrained rows read as.
    pub initial: Initial,
    /// Where cached rows are; `None` for a table without a cache.
    pub slots: Option<Slots>,
    /// Where hashed parts get memory from.
    pub chunks: ChunkSource,
    /// Bytes that its creation took from the budget.
    pub charged: u64,
    /// Set when a drop is put in order; no change of the table comes after that.
    pub dropped: AtomicBool,
    /// Keys that pulls found in the cache.
    pub pull_hits: AtomicU64,
    /// Keys that pulls did not find there.
    pub pull_misses: AtomicU64,
    /// How changes use its keys; `None` for an f32 table, which never has a cache.
    pub observer: Option<Observer>,
}

/// Hyper-parameters that can be changed while a table is in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Where a push brings none of its own.
    pub learning_rate: f32,
    /// L2 weight decay.
    pub weight_decay: f32,
    /// The largest L2 norm of a row's gradient.
    pub clip_norm: Option<f32>,
}

impl Hyper {
    /// Those of a spec.
    pub fn of(spec: &TableSpec) -> Hyper {
        Hyper { learning_rate: spec.learning_rate, weight_decay: spec.weight_decay, clip_norm: spec.clip_norm }
    }
}

impl Table {
    /// As it is now.
    pub fn current_spec(&self) -> TableSpec {
        let Hyper { learning_rate, weight_decay, clip_norm } = *self.hyper.read();
        TableSpec { learning_rate, weight_decay, clip_norm, ..self.spec.clone() }
    }

    /// The arithmetic of a push that was checked.
    pub fn rule(&self, learning_rate: Option<f32>, step: Option<u64>) -> Rule {
        let hyper = *self.hyper.read();
        let rate = learning_rate.unwrap_or(hyper.learning_rate);
        self.spec.optimizer.rule(rate, hyper.weight_decay, hyper.clip_norm, step.unwrap_or(0))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Weights in a row.
    pub fn dim(&self) -> usize {
        self.spec.dim
    }

    /// How rows are laid out.
    pub fn layout(&self) -> &RowLayout {
        &self.shape.layout
    }

    /// For what is done with a few cached rows.
    pub fn pool(&self) -> Option<&dyn Pool> {
        self.slots.as_ref().map(Slots::pool)
    }

    /// Cached rows on a GPU.
    pub fn cuda(&self) -> Option<&CudaSlots> {
        self.slots.as_ref().and_then(Slots::cuda)
    }

    /// Which keys it has.
    pub fn keys(&self) -> KeySpace {
        self.shape.keys
    }

    /// Counts the keys of a pull.
    pub fn count_pull(&self, hits: u64, misses: u64) {
        self.pull_hits.fetch_add(hits, Ordering::Relaxed);
        self.pull_misses.fetch_add(misses, Ordering::Relaxed);
    }
}
