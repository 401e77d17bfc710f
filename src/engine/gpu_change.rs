//! A change's work for a GPU: collected while the partitions are visited, then done for all of them at once.
//!
//! The caller holds all partitions until the rows that leave are in the row store. What else the GPU has been given may
//! still be under way then: it does things in the order in which it was given them.

use std::ops::Range;

use super::partition::Partition;
use super::table::Table;
use crate::cache::cuda::{self, Address, CudaSlots, Device, Pipeline, Rounded};
use crate::cache::{RoundingError, RowLayout, WriteBack};
use crate::numeric::{Rule, WeightFormat};
use crate::table::TablePart;

/// What a change has to do on a GPU, of rows that are laid out alike.
#[derive(Default)]
pub struct Collected<'a> {
    /// The part that is being visited.
    part: PartAt,
    leaving: Vec<Leaving>,
    fill_slots: Vec<Address>,
    fill_bytes: Vec<u8>,
    load_slots: Vec<Address>,
    load_rows: Vec<f32>,
    updates: Vec<(Address, Gradient<'a>)>,
    /// Sums of several gradients.
    sums: Vec<f32>,
    /// Slots that are put aside, because their part is being saved.
    aside_slots: Vec<Address>,
    asides: Vec<(PartAt, Vec<u32>)>,
}

/// Where a part is: the place of its partition, and the id of its table.
#[derive(Clone, Copy, Default, PartialEq)]
struct PartAt {
    place: usize,
    table: usize,
}

impl PartAt {
    fn of<'p>(&self, partitions: &'p mut [&mut Partition]) -> &'p mut TablePart {
        partitions[self.place].part_mut(self.table).expect("its partition is held")
    }
}

/// A row that leaves.
struct Leaving {
    part: PartAt,
    address: Address,
    write_back: WriteBack,
    row: u32,
}

/// Where the gradient of a row is.
#[derive(Clone, Copy)]
pub enum Gradient<'a> {
    /// In the push.
    Sent(&'a [f32]),
    /// Among the sums, from this number on.
    Summed(usize),
}

impl<'a> Collected<'a> {
    /// What follows is of this part.
    pub fn visit(&mut self, place: usize, table: usize) {
        self.part = PartAt { place, table };
    }

    /// A row leaves.
    pub fn leave(&mut self, address: Address, write_back: WriteBack, row: u32) {
        self.leaving.push(Leaving { part: self.part, address, write_back, row });
    }

    /// Stored rows come in.
    pub fn fill(&mut self, slots: impl Iterator<Item = Address>, bytes: &[u8]) {
        self.fill_slots.extend(slots);
        self.fill_bytes.extend_from_slice(bytes);
    }

    /// Full-precision rows come in.
    pub fn load(&mut self, slots: impl Iterator<Item = Address>, rows: &[f32]) {
        self.load_slots.extend(slots);
        self.load_rows.extend_from_slice(rows);
    }

    /// Keeps the sum of several gradients.
    pub fn sum(&mut self, sum: &[f32]) -> Gradient<'a> {
        self.sums.extend_from_slice(sum);
        Gradient::Summed(self.sums.len() - sum.len())
    }

    /// A row is stepped.
    pub fn update(&mut self, address: Address, gradient: Gradient<'a>) {
        self.updates.push((address, gradient));
    }

    /// Has slots put aside before they change, if the part is being saved.
    pub fn put_aside(&mut self, at: &CudaSlots, part: &mut TablePart, slots: impl Iterator<Item = u32>) {
        let first_slot = part.first_slot;
        let Some(saving) = part.saving_mut() else { return };
        let unsaved = saving.unsaved_slots(slots);
        if !unsaved.is_empty() {
            self.aside_slots.extend(unsaved.iter().map(|slot| at.address(first_slot + slot)));
            self.asides.push((self.part, unsaved));
        }
    }

    fn append(&mut self, mut other: Collected<'a>) {
        let before = self.sums.len();
        self.leaving.append(&mut other.leaving);
        self.fill_slots.append(&mut other.fill_slots);
        self.fill_bytes.append(&mut other.fill_bytes);
        self.load_slots.append(&mut other.load_slots);
        self.load_rows.append(&mut other.load_rows);
        self.sums.append(&mut other.sums);
        self.updates.extend(other.updates.into_iter().map(|(address, gradient)| match gradient {
            Gradient::Summed(at) => (address, Gradient::Summed(before + at)),
            sent => (address, sent),
        }));
        self.aside_slots.append(&mut other.aside_slots);
        self.asides.append(&mut other.asides);
    }
}

/// The groups of a change's tables: rows of a group are laid out alike, and stepped alike.
#[derive(Default)]
pub struct Groups<'t> {
    groups: Vec<(RowLayout, Option<Rule>)>,
    device: Option<&'t Device>,
}

/// What to do with what comes down.
enum Then {
    /// Slots of a group that are put aside.
    Aside(usize, Range<usize>),
    /// Rows of a group that leave.
    Leave(usize, Range<usize>),
}

impl<'t> Groups<'t> {
    /// The group of a table; of one that has no slots on a GPU, and so nothing to collect, any.
    pub fn of(&mut self, table: &'t Table, rule: Option<Rule>) -> usize {
        let Some(slots) = table.cuda() else { return 0 };
        self.device = Some(slots.device());
        let wanted = (*table.layout(), rule);
        self.groups.iter().position(|group| *group == wanted).unwrap_or_else(|| {
            self.groups.push(wanted);
            self.groups.len() - 1
        })
    }

    /// One that collects for each group.
    pub fn collectors<'a>(&self) -> Vec<Collected<'a>> {
        (0..self.groups.len()).map(|_| Collected::default()).collect()
    }

    /// Does what was collected, by job and group.
    pub fn run(self, seed: u32, jobs: Vec<Vec<Collected<'_>>>, partitions: &mut [&mut Partition]) {
        let Some(device) = self.device else { return };
        let mut all = self.collectors();
        for job in jobs {
            all.iter_mut().zip(job).for_each(|(all, collected)| all.append(collected));
        }
        let mut aside: Vec<Vec<f32>> = Vec::new();
        let mut errors: Vec<Vec<f32>> = Vec::new();
        for ((layout, _), collected) in self.groups.iter().zip(&all) {
            aside.push(vec![0.0; collected.aside_slots.len() * layout.slot_len()]);
            errors.push(vec![0.0; collected.leaving.len()]);
        }
        let mut land = |then: Then, bytes: &[u8]| match then {
            Then::Aside(group, range) => {
                let len = self.groups[group].0.slot_len();
                let values = &mut aside[group][range.start * len..range.end * len];
                values.copy_from_slice(bytemuck::cast_slice(&bytes[..size_of_val(values)]));
            }
            Then::Leave(group, range) => {
                let rounded = Rounded::new(&self.groups[group].0, range.len());
                let leaving = all[group].leaving[range.clone()].iter().zip(&mut errors[group][range]);
                for ((leaving, kept), (row, error)) in leaving.zip(rounded.rows(bytes)) {
                    leaving.part.of(partitions).store(leaving.row).copy_from_slice(row);
                    *kept = error;
                }
            }
        };
        let mut pipeline = Pipeline::new(device);
        let (out, land) = (&mut pipeline, &mut land);
        for (group, ((layout, rule), work)) in self.groups.iter().zip(&all).enumerate() {
            let (slots, len) = (&work.aside_slots, layout.slot_len());
            cuda::gather(out, land, WeightFormat::F32, len, slots, |&slot| slot, |range| Then::Aside(group, range));
            let leaving = |row: &Leaving| (row.address, row.write_back);
            cuda::write_back(out, land, layout, seed, &work.leaving, leaving, |range| Then::Leave(group, range));
            cuda::fill(out, land, layout, &work.fill_slots, &work.fill_bytes);
            cuda::load(out, land, layout, &work.load_slots, &work.load_rows);
            if let Some(rule) = rule {
                let gradient = |i: usize| match work.updates[i].1 {
                    Gradient::Sent(gradient) => gradient,
                    Gradient::Summed(at) => &work.sums[at..at + layout.dim],
                };
                cuda::update(out, land, layout, rule, work.updates.len(), |i| work.updates[i].0, gradient);
            }
        }
        out.land(land);
        for (group, (layout, _)) in self.groups.iter().enumerate() {
            count_errors(layout.dim, &all[group].leaving, &errors[group], partitions);
            let mut values = &aside[group][..];
            for (part, slots) in &all[group].asides {
                let (mine, others) = values.split_at(slots.len() * layout.slot_len());
                values = others;
                let saving = part.of(partitions).saving_mut().expect("it is being saved while it is held");
                saving.keep_slots(slots, layout.slot_len()).copy_from_slice(mine);
            }
        }
    }
}

/// Counts what rounding did to the rows of each part: added up in the order of the host.
fn count_errors(dim: usize, leaving: &[Leaving], errors: &[f32], partitions: &mut [&mut Partition]) {
    let mut errors = errors.iter();
    for of_part in leaving.chunk_by(|a, b| a.part == b.part) {
        let mut sum = RoundingError::default();
        for (leaving, &squares) in of_part.iter().zip(&mut errors) {
            if RoundingError::samples(leaving.write_back.number) {
                sum.add(RoundingError { squares: f64::from(squares), weights: dim as u64 });
            }
        }
        of_part[0].part.of(partitions).counts.rounding_error.add(sum);
    }
}
