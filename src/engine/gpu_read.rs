//! Pulls of rows that are cached on a GPU.
//!
//! The keys of a request are looked up; the GPU is asked for all cached rows of one width at once, whatever their tables;
//! the host reads the other rows meanwhile. Then the locks can go: what the GPU was asked for comes before anything that
//! it is told later. The answer is put together when the rows are there.

use std::ops::Range;

use super::bags::{self, Bags, Found, FoundBags};
use super::compute::Compute;
use super::held::Held;
use super::read::JobRows;
use crate::cache::cuda::{self, Address, Device, Pipeline};
use crate::numeric::WeightFormat;

/// Rows of one width that the GPU was asked for.
struct Wanted {
    dim: usize,
    /// Where each is, and where it goes among the bytes of the answer.
    rows: Vec<(Address, usize)>,
}

/// Rows that are on their way.
pub struct Coming<'d> {
    format: WeightFormat,
    wanted: Vec<Wanted>,
    pipeline: Pipeline<'d, (usize, Range<usize>)>,
}

/// Asks for cached rows, and reads the others into `out`.
pub fn rows<'d>(
    device: &'d Device,
    compute: &Compute,
    format: WeightFormat,
    jobs: &[JobRows<'_>],
    out: &mut [u8],
) -> Coming<'d> {
    let mut found: Vec<Found> = jobs.iter().map(|_| Found::default()).collect();
    let keys = jobs.iter().map(|job| job.keys.len()).sum();
    compute.each(keys, jobs.iter().zip(&mut found).collect(), |(job, found)| *found = bags::find(job.held, job.keys));

    let mut coming = Coming { format, wanted: Vec::new(), pipeline: Pipeline::new(device) };
    let mut start = 0;
    for (job, found) in jobs.iter().zip(&found) {
        let dim = job.held.table.dim();
        let row_bytes = format.bytes(dim);
        if let Some(slots) = job.held.table.cuda() {
            let place = |&(slot, to): &(u32, u32)| (slots.address(slot), start + to as usize * row_bytes);
            group(&mut coming.wanted, dim).rows.extend(found.cached.iter().map(place));
        }
        let hits = found.cached.len();
        if job.counted {
            job.held.table.count_pull(hits as u64, (job.keys.len() - hits) as u64);
        }
        start += job.keys.len() * row_bytes;
    }
    let Coming { wanted, pipeline, .. } = &mut coming;
    for (group, Wanted { dim, rows }) in wanted.iter().enumerate() {
        let land = &mut |then, bytes: &[u8]| put(wanted, format, then, bytes, out);
        cuda::gather(pipeline, land, format, *dim, rows, |&(address, _)| address, |range| (group, range));
    }

    let mut rest = out;
    let mut reads = Vec::with_capacity(jobs.len());
    for (job, found) in jobs.iter().zip(&found) {
        let (mine, others) = rest.split_at_mut(job.keys.len() * format.bytes(job.held.table.dim()));
        rest = others;
        reads.push((job, found, mine));
    }
    compute.each(keys, reads, |(job, found, out)| bags::read_found(format, job.held, job.keys, found, out));
    coming
}

fn group(wanted: &mut Vec<Wanted>, dim: usize) -> &mut Wanted {
    let at = wanted.iter().position(|wanted| wanted.dim == dim).unwrap_or_else(|| {
        wanted.push(Wanted { dim, rows: Vec::new() });
        wanted.len() - 1
    });
    &mut wanted[at]
}

/// Puts rows of a group in their places.
fn put(wanted: &[Wanted], format: WeightFormat, then: (usize, Range<usize>), bytes: &[u8], out: &mut [u8]) {
    let Wanted { dim, rows } = &wanted[then.0];
    let row_bytes = format.bytes(*dim);
    for (&(_, place), row) in rows[then.1].iter().zip(bytes.chunks_exact(row_bytes)) {
        out[place..][..row_bytes].copy_from_slice(row);
    }
}

impl Coming<'_> {
    /// Waits for the rows, and puts them into the answer.
    pub fn arrive(mut self, out: &mut [u8]) {
        self.pipeline.land(&mut |then, bytes: &[u8]| put(&self.wanted, self.format, then, bytes, out));
    }
}

/// Bags whose rows have one width, as far as they are cached.
struct WantedBags {
    dim: usize,
    bags: cuda::Bags,
    /// Where each goes among the numbers of the answer.
    places: Vec<usize>,
}

/// Bags that are on their way.
pub struct ComingBags<'d, 'j> {
    wanted: Vec<WantedBags>,
    pipeline: Pipeline<'d, (usize, Range<usize>)>,
    /// By job: the bags, their width, what was found of them, and the rows that are not cached.
    jobs: Vec<(Bags<'j>, usize, FoundBags, Vec<f32>)>,
}

/// Asks for cached rows, added up by bag, and reads the others. `out` has a row for each bag.
pub fn bags<'d, 'j>(
    device: &'d Device,
    compute: &Compute,
    jobs: &[(&Held<'_>, Bags<'j>)],
    out: &mut [f32],
) -> ComingBags<'d, 'j> {
    out.fill(0.0);
    let mut found: Vec<_> =
        jobs.iter().map(|&(held, bags)| (bags, held.table.dim(), FoundBags::default(), Vec::new())).collect();
    let keys = jobs.iter().map(|(_, bags)| bags.keys.len()).sum();
    compute.each(keys, jobs.iter().zip(&mut found).collect(), |((held, bags), (_, _, found, _))| {
        bags::find_bags(held, bags, found);
    });

    let mut coming = ComingBags { wanted: Vec::new(), pipeline: Pipeline::new(device), jobs: Vec::new() };
    let mut start = 0;
    for ((held, bags), (_, dim, found, _)) in jobs.iter().zip(&found) {
        if let Some(slots) = held.table.cuda() {
            want(&mut coming.wanted, *dim, found, start, |slot| slots.address(slot));
        }
        let hits = found.slots.len();
        held.table.count_pull(hits as u64, (bags.keys.len() - hits) as u64);
        start += bags.offsets.len() * dim;
    }
    let ComingBags { wanted, pipeline, .. } = &mut coming;
    for (group, WantedBags { dim, bags, .. }) in wanted.iter().enumerate() {
        let land = &mut |then, bytes: &[u8]| put_bags(wanted, then, bytes, out);
        cuda::gather_pooled(pipeline, land, *dim, bags, |range| (group, range));
    }

    compute.each(keys, jobs.iter().zip(&mut found).collect(), |((held, bags), (_, _, found, rows))| {
        bags::read_found_in_bags(held, bags, found, rows);
    });
    coming.jobs = found;
    coming
}

/// Adds the cached rows of some bags to what is asked for. The first of them goes to number `start` of the answer.
fn want(wanted: &mut Vec<WantedBags>, dim: usize, found: &FoundBags, start: usize, address: impl Fn(u32) -> Address) {
    let at = wanted.iter().position(|wanted| wanted.dim == dim).unwrap_or_else(|| {
        wanted.push(WantedBags { dim, bags: cuda::Bags::default(), places: Vec::new() });
        wanted.len() - 1
    });
    let WantedBags { bags, places, .. } = &mut wanted[at];
    let mut last = None;
    for (i, (&slot, &bag)) in found.slots.iter().zip(&found.slot_bags).enumerate() {
        if last.replace(bag) != Some(bag) {
            places.push(start + bag as usize * dim);
            bags.ends.push(0);
        }
        bags.slots.push(address(slot));
        bags.factors.push(found.slot_factors.get(i).copied().unwrap_or(1.0));
        *bags.ends.last_mut().expect("pushed with the bag's first slot") = bags.slots.len() as u32;
    }
}

/// Puts bags of a group in their places.
fn put_bags(wanted: &[WantedBags], then: (usize, Range<usize>), bytes: &[u8], out: &mut [f32]) {
    let WantedBags { dim, places, .. } = &wanted[then.0];
    let numbers: &[f32] = bytemuck::cast_slice(bytes);
    for (&place, row) in places[then.1].iter().zip(numbers.chunks_exact(*dim)) {
        out[place..][..*dim].copy_from_slice(row);
    }
}

impl ComingBags<'_, '_> {
    /// Waits for the bags, and adds the rows that are not cached.
    pub fn arrive(mut self, compute: &Compute, out: &mut [f32]) {
        self.pipeline.land(&mut |then, bytes: &[u8]| put_bags(&self.wanted, then, bytes, out));
        let keys = self.jobs.iter().map(|(bags, ..)| bags.keys.len()).sum();
        let mut rest = out;
        let mut finishes = Vec::with_capacity(self.jobs.len());
        for job in &self.jobs {
            let (mine, others) = rest.split_at_mut(job.0.offsets.len() * job.1);
            rest = others;
            finishes.push((job, mine));
        }
        compute.each(
            keys,
            finishes,
            |((bags, dim, found, rows), out): (&(Bags<'_>, usize, FoundBags, Vec<f32>), _)| {
                bags::finish_bags(bags, found, rows, *dim, out);
            },
        );
    }
}
