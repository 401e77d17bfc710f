//! Making and dropping tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::observe::Observer;
use super::table::{Hyper, Table};
use parking_lot::RwLock;

use super::{Alteration, Change, Engine, Lsn};
use crate::cache::cuda::CudaSlots;
use crate::cache::{Directory, HostPool, Slots};
use crate::error::{Error, Result};
use crate::memory::Mapping;
use crate::numeric::hash;
use crate::table::{ChunkSource, Initial, Shape, TablePart, TableSpec};

/// What the parts take their memory from, and slots where there is a cache.
type TableMemory = (Mapping, Option<Slots>);

impl Engine {
    pub(super) fn apply_create(&self, change: &Change<'_>, spec: &TableSpec) -> Result<Lsn> {
        let shape = spec.shape(self.config.small_table_bytes)?;
        let partitions = self.config.partitions;
        if shape.rows_in(0, partitions) >= u64::from(u32::MAX) {
            let reason = format!("too many rows for {partitions} partitions: each holds at most 2^32 - 2");
            return Err(Error::InvalidSpec { table: spec.name.clone(), reason });
        }
        let mut turn = self.order.turn();
        if let Ok(existing) = self.table(&spec.name) {
            let same = existing.spec == *spec || existing.current_spec() == *spec;
            return if same { Ok(turn.last()) } else { Err(Error::TableExists(spec.name.clone())) };
        }
        let cache_rows: u64 = self.route.owned().iter().map(|&p| shape.cache_rows_in(p, partitions)).sum();
        if cache_rows > u64::from(u32::MAX) {
            let reason =
                format!("a cache of {cache_rows} rows is too large: one engine holds at most 2^32 - 1 of a table");
            return Err(Error::InvalidSpec { table: spec.name.clone(), reason });
        }
        let slots_in = |&p: &u32| Directory::slots_for(shape.cache_rows_in(p, partitions) as u32);
        let slots: Vec<u32> = self.route.owned().iter().map(slots_in).collect();
        let all_slots: u32 = slots.iter().sum();
        let rows: u64 = self.route.owned().iter().map(|&p| shape.rows_in(p, partitions)).sum();
        // Slots on a GPU have a budget of their own.
        let slot_bytes = if self.device.is_ok() { 0 } else { shape.layout.slot_bytes() as u64 };
        let slot_bytes = slot_bytes + Directory::BYTES_PER_SLOT;
        let row_bytes = rows.saturating_mul(shape.stride() as u64);
        let row_bytes = row_bytes.saturating_add(rows.saturating_mul(shape.bits_per_row()).div_ceil(8));
        let charged = row_bytes.saturating_add(u64::from(all_slots) * slot_bytes);
        self.budget.take(charged)?;
        // Everything that takes time is done before the change has its place and the partitions are held.
        let born = Lsn(turn.last().0 + 1);
        let made = self.make(spec, shape, charged, &slots, born).and_then(|made| Ok((made, turn.place(change)?)));
        let ((table, parts), lsn) = made.inspect_err(|_| self.budget.give_back(charged))?;
        self.tables.insert(spec.name.clone(), Arc::clone(&table));
        let partitions = turn.take_all(&self.partitions);
        drop(turn);
        for (mut partition, part) in partitions.into_iter().zip(parts) {
            partition.insert(table.id, part);
        }
        Ok(lsn)
    }

    /// A table, and its part for every owned partition. `slots` are those of each.
    fn make(
        &self,
        spec: &TableSpec,
        shape: Shape,
        charged: u64,
        slots: &[u32],
        born: Lsn,
    ) -> Result<(Arc<Table>, Vec<TablePart>)> {
        let (mut memory, slots_memory) = self.allocate(&shape, slots.iter().sum())?;
        let mut first_slot = 0;
        let mut parts = Vec::with_capacity(slots.len());
        for (&id, &slots) in self.route.owned().iter().zip(slots) {
            parts.push(TablePart::new(&shape, spec.policy, id, self.route.bits(), &mut memory, first_slot));
            first_slot += slots;
        }
        let table = Table {
            id: self.next_table.fetch_add(1, Ordering::Relaxed),
            born: AtomicU64::new(born.0),
            spec: spec.clone(),
            hyper: RwLock::new(Hyper::of(spec)),
            shape,
            initial: Initial::new(spec.initializer, spec.rows(), self.config.seed, hash::table_tag(&spec.name)),
            slots: slots_memory,
            chunks: ChunkSource::new(),
            charged,
            dropped: AtomicBool::new(false),
            pull_hits: AtomicU64::new(0),
            pull_misses: AtomicU64::new(0),
            observer: (!shape.layout.is_exact()).then(|| Observer::new(slots.iter().copied().map(u64::from).sum())),
        };
        Ok((Arc::new(table), parts))
    }

    /// The memory of a new table.
    fn allocate(&self, shape: &Shape, slots: u32) -> Result<TableMemory> {
        let system = |e: std::io::Error| Error::System(e.to_string());
        let mapped = |&p: &u32| TablePart::mapped(shape, p, self.config.partitions);
        let memory = Mapping::new(self.route.owned().iter().map(mapped).sum()).map_err(system)?;
        let slots = match (slots, &self.device) {
            (0, _) => None,
            (_, Ok(device)) => Some(Slots::Cuda(CudaSlots::new(device, shape.layout, slots)?)),
            (_, Err(_)) => Some(Slots::Host(HostPool::new(shape.layout, self.config.seed, slots).map_err(system)?)),
        };
        Ok((memory, slots))
    }

    pub(super) fn apply_drop(&self, change: &Change<'_>, name: &str) -> Result<Lsn> {
        let mut turn = self.order.turn();
        let table = self.table(name)?;
        let lsn = turn.place(change)?;
        table.dropped.store(true, Ordering::Relaxed);
        self.tables.remove(name);
        let partitions = turn.take_all(&self.partitions);
        drop(turn);
        let mut bytes = table.charged;
        let mut gone = Vec::new();
        for mut partition in partitions {
            bytes += partition.part(table.id).map_or(0, TablePart::grown_bytes);
            gone.extend(partition.drop_part(table.id));
        }
        // Giving memory back takes time; no partition is held any more.
        drop(gone);
        self.budget.give_back(bytes);
        Ok(lsn)
    }

    /// Changes hyper-parameters. Pushes that are ordered later use the new ones.
    pub(super) fn apply_alter(&self, change: &Change<'_>, name: &str, alteration: &Alteration) -> Result<Lsn> {
        let mut turn = self.order.turn();
        let table = self.table(name)?;
        let mut hyper = *table.hyper.read();
        hyper.learning_rate = alteration.learning_rate.unwrap_or(hyper.learning_rate);
        hyper.weight_decay = alteration.weight_decay.unwrap_or(hyper.weight_decay);
        hyper.clip_norm = alteration.clip_norm.unwrap_or(hyper.clip_norm);
        let Hyper { learning_rate, weight_decay, clip_norm } = hyper;
        TableSpec { learning_rate, weight_decay, clip_norm, ..table.spec.clone() }
            .shape(self.config.small_table_bytes)?;
        let lsn = turn.place(change)?;
        *table.hyper.write() = hyper;
        Ok(lsn)
    }
}
