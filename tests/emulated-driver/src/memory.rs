//! Memory of the device and pinned memory of the host: two arenas from which each allocation gets pages of its own,
//! and whose addresses are never given out twice.

use std::fmt;

use crate::clock::{Clock, STREAMS, Stamp};
use crate::mapping::{Mapping, PAGE};
use crate::report::violation;
use crate::shadow::{GRANULE, Shadow};

/// What memory holds that nobody has written: as floats, NaN.
pub const POISON: u8 = 0xFF;

/// Address space for all that is ever allocated; memory is taken only for what is live.
const DEVICE_SPACE: usize = 1 << 40;
const PINNED_SPACE: usize = 1 << 38;

/// Which of the two arenas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    Device,
    Pinned,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Device { "device" } else { "pinned host" })
    }
}

/// What was handed out. Those that are freed stay known, to tell use after free from mere nonsense.
pub struct Allocation {
    pub start: usize,
    pub size: usize,
    pub device: u32,
    pub freed: bool,
    /// Copies that are enqueued and not done (pinned memory only).
    pub pending: Vec<Pending>,
    /// The last copy of each stream that was ever to use it (pinned memory only).
    pub users: Vec<Stamp>,
}

/// An enqueued copy's claim on pinned memory.
pub struct Pending {
    pub by: Stamp,
    pub start: usize,
    pub len: usize,
    pub writes: bool,
}

impl Allocation {
    /// Whether all of the range lies in it.
    #[inline(always)]
    pub fn holds(&self, start: usize, len: usize) -> bool {
        let offset = start.wrapping_sub(self.start);
        offset <= self.size && len <= self.size - offset
    }

    /// Notes a copy that is to use it.
    pub fn claim(&mut self, pending: Pending) {
        match self.users.iter_mut().find(|user| user.slot() == pending.by.slot()) {
            Some(user) => *user = pending.by,
            None => self.users.push(pending.by),
        }
        self.pending.push(pending);
    }

    /// Enqueued copies that use part of the range.
    pub fn overlapping(&self, start: usize, len: usize) -> impl Iterator<Item = &Pending> {
        self.pending.iter().filter(move |other| other.start < start + len && start < other.start + other.len)
    }
}

/// Address space, what was allocated of it and who used it.
pub struct Arena {
    space: Space,
    pub mapping: Mapping,
    /// For each page one more than the index of its allocation, zero where there is none.
    owners: Mapping,
    shadow: Shadow,
    allocations: Vec<Allocation>,
    next: usize,
}

impl Arena {
    fn new(space: Space, length: usize) -> Self {
        Self {
            space,
            // The host may not touch pinned memory beyond what it has; kernels are checked access by access.
            mapping: Mapping::new(length, space == Space::Device),
            owners: Mapping::new(length / PAGE * size_of::<u32>(), true),
            shadow: Shadow::new(length),
            allocations: Vec::new(),
            next: 0,
        }
    }

    /// Pages of its own for an allocation, with an unused one after them, filled with poison.
    pub fn allocate(&mut self, size: usize, device: u32) -> usize {
        let pages = size.div_ceil(PAGE);
        let first = self.next / PAGE;
        if (pages + 1) * PAGE > self.mapping.length - self.next {
            violation!("more {} memory was allocated over time than there are addresses", self.space);
        }
        self.next += (pages + 1) * PAGE;
        let start = self.mapping.base + first * PAGE;
        if self.space == Space::Pinned {
            self.mapping.open(start, size, true);
        }
        // SAFETY: the pages were just taken from the mapping and belong to nobody else; they may be written.
        unsafe { (start as *mut u8).write_bytes(POISON, pages * PAGE) };
        self.allocations.push(Allocation { start, size, device, freed: false, pending: Vec::new(), users: Vec::new() });
        let owner = u32::try_from(self.allocations.len()).expect("fewer allocations than pages");
        for page in first..first + pages {
            // SAFETY: there is an entry for each page of the arena.
            unsafe { *(self.owners.base as *mut u32).add(page) = owner };
        }
        start
    }

    /// Ends an allocation. The pages go back to the system, the addresses do not.
    pub fn free(&mut self, index: usize) {
        let allocation = &mut self.allocations[index];
        allocation.freed = true;
        let (start, size) = (allocation.start, allocation.size);
        self.shadow.forget((start - self.mapping.base) / GRANULE, size.div_ceil(GRANULE));
        self.mapping.discard(start, size);
        if self.space == Space::Pinned {
            self.mapping.open(start, size, false);
        }
    }

    /// How far past its end an allocation was written, as far as its last page shows it.
    pub fn overrun(&self, index: usize) -> Option<usize> {
        let Allocation { start, size, .. } = self.allocations[index];
        let end = start + size;
        // SAFETY: a live allocation has whole pages.
        let rest = unsafe { std::slice::from_raw_parts(end as *const u8, end.next_multiple_of(PAGE) - end) };
        rest.iter().rposition(|&byte| byte != POISON).map(|last| last + 1)
    }

    /// The allocation that has the page of this address, live or freed.
    #[inline(always)]
    pub fn find(&self, at: usize) -> Option<usize> {
        if !self.mapping.contains(at) {
            return None;
        }
        // SAFETY: there is an entry for each page of the arena, and the address is in the arena.
        let owner = unsafe { *(self.owners.base as *const u32).add((at - self.mapping.base) / PAGE) };
        (owner as usize).checked_sub(1)
    }

    #[inline(always)]
    pub fn allocation(&self, index: usize) -> &Allocation {
        &self.allocations[index]
    }

    pub fn allocation_mut(&mut self, index: usize) -> &mut Allocation {
        &mut self.allocations[index]
    }

    /// All that were not freed.
    pub fn live(&self) -> impl Iterator<Item = usize> {
        (0..self.allocations.len()).filter(|&index| !self.allocations[index].freed)
    }

    /// Notes that work uses memory that lies in one allocation; ends with a report if it races.
    #[inline(always)]
    pub fn touch(&mut self, history: &History, who: &Who, start: usize, len: usize, write: bool) {
        let base = self.mapping.base;
        for granule in (start - base) / GRANULE..=(start + len - 1 - base) / GRANULE {
            if let Err(conflict) = self.shadow.touch(granule, who.stamp, &who.clock, write) {
                let at = start.max(base + granule * GRANULE);
                self.race(history, who, at, write, conflict.earlier, conflict.wrote);
            }
        }
    }

    /// The last work that used an allocation and does not come before a clock.
    pub fn user_after(&self, index: usize, clock: &Clock) -> Option<Stamp> {
        let allocation = &self.allocations[index];
        let first = (allocation.start - self.mapping.base) / GRANULE;
        let last = (allocation.start + allocation.size - 1 - self.mapping.base) / GRANULE;
        (first..=last).find_map(|granule| self.shadow.check(granule, clock).err()).map(|conflict| conflict.earlier)
    }

    #[cold]
    fn race(&self, history: &History, who: &Who, at: usize, write: bool, earlier: Stamp, wrote: bool) -> ! {
        let verb = if write { "writes" } else { "reads" };
        let earlier_verb = if wrote { "wrote" } else { "read" };
        violation!(
            "race: {} {verb} {},\n    which {} {earlier_verb}, and nothing orders the two: no event between the streams, \
             no wait of the host in between",
            history.describe(who.stamp),
            self.describe(at),
            history.describe(earlier),
        );
    }

    /// An address in the words of a report.
    pub fn describe(&self, at: usize) -> String {
        let after = self.allocations.partition_point(|allocation| allocation.start <= at);
        let before = after.checked_sub(1).map(|index| {
            let allocation = &self.allocations[index];
            (at.saturating_sub(allocation.start + allocation.size), index)
        });
        let following = self.allocations.get(after).map(|allocation| (allocation.start - at, after));
        let Some((_, index)) = before.into_iter().chain(following).min() else {
            return format!("{at:#x} ({} memory, of which nothing was ever allocated)", self.space);
        };
        let Allocation { start, size, device, freed, .. } = self.allocations[index];
        let place = if at < start {
            format!("{} bytes before the start of", start - at)
        } else if at < start + size {
            format!("at offset {} of", at - start)
        } else {
            format!("{} bytes past the end of", at - start - size)
        };
        let state = if freed { ", freed" } else { "" };
        format!(
            "{at:#x} ({place} {} allocation {index}: {size} bytes at {start:#x}, device {device}{state})",
            self.space
        )
    }
}

/// The work that is using memory.
pub struct Who {
    pub stamp: Stamp,
    pub clock: Clock,
    pub device: u32,
}

/// Both arenas, and what the reports need to know besides.
pub struct Memory {
    pub device: Arena,
    pub pinned: Arena,
    pub history: History,
}

impl Memory {
    pub fn new() -> Self {
        Self {
            device: Arena::new(Space::Device, DEVICE_SPACE),
            pinned: Arena::new(Space::Pinned, PINNED_SPACE),
            history: History::new(),
        }
    }

    /// An address in the words of a report, whatever it is.
    pub fn describe(&self, at: usize) -> String {
        for arena in [&self.device, &self.pinned] {
            if arena.mapping.contains(at) {
                return arena.describe(at);
            }
        }
        format!("{at:#x} (neither device memory nor pinned memory of this driver)")
    }

    /// The live device allocation that holds the range, for work of `device`; a report if there is none.
    pub fn device_range(&self, what: &dyn fmt::Display, start: usize, len: usize, device: u32) -> usize {
        let wrong = |problem: &str| -> ! {
            violation!("{problem}: {what} {len} bytes of device memory at {}", self.describe(start))
        };
        if !self.device.mapping.contains(start) {
            wrong("mismatched pointer, not one of the device");
        }
        let Some(index) = self.device.find(start) else { wrong("out of bounds") };
        let allocation = self.device.allocation(index);
        if allocation.freed {
            wrong("use after free");
        }
        if !allocation.holds(start, len) {
            wrong("out of bounds");
        }
        if allocation.device != device {
            wrong(&format!("memory of another device than {device}"));
        }
        index
    }

    /// The live pinned allocation that holds the range, or `None` for ordinary memory; a report for anything else.
    pub fn host_range(&self, what: &dyn fmt::Display, start: usize, len: usize) -> Option<usize> {
        let wrong = |problem: &str| -> ! {
            violation!("{problem}: {what} {len} bytes of host memory at {}", self.describe(start))
        };
        if self.device.mapping.touches(start, len) {
            wrong("mismatched pointer, one of the device");
        }
        if start == 0 {
            wrong("mismatched pointer, null");
        }
        if !self.pinned.mapping.touches(start, len) {
            return None;
        }
        let Some(index) = self.pinned.find(start) else { wrong("out of bounds") };
        let allocation = self.pinned.allocation(index);
        if allocation.freed {
            wrong("use after free");
        }
        if !allocation.holds(start, len) {
            wrong("out of bounds");
        }
        Some(index)
    }
}

/// What a piece of work is called.
#[derive(Clone, Copy)]
pub struct Label {
    pub kind: &'static str,
    pub name: &'static str,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.kind, if self.name.is_empty() { "" } else { " " }, self.name)
    }
}

/// The latest work of each stream, so that a report can say what the other side of a race was.
pub struct History {
    streams: Vec<Past>,
}

#[derive(Clone)]
struct Past {
    handle: usize,
    labels: Vec<(u32, Label)>,
}

impl History {
    const KEPT: u32 = 1024;

    fn new() -> Self {
        Self { streams: vec![Past { handle: 0, labels: Vec::new() }; STREAMS] }
    }

    pub fn name_stream(&mut self, slot: usize, handle: usize) {
        self.streams[slot].handle = handle;
    }

    pub fn note(&mut self, stamp: Stamp, label: Label) {
        let past = &mut self.streams[stamp.slot()];
        let place = (stamp.epoch() % Self::KEPT) as usize;
        if past.labels.len() <= place {
            past.labels.resize(place + 1, (0, Label { kind: "", name: "" }));
        }
        past.labels[place] = (stamp.epoch(), label);
    }

    pub fn describe(&self, stamp: Stamp) -> String {
        let past = &self.streams[stamp.slot()];
        let label = past.labels.get((stamp.epoch() % Self::KEPT) as usize).filter(|known| known.0 == stamp.epoch());
        self.describe_as(stamp, label.map_or(Label { kind: "earlier work", name: "" }, |known| known.1))
    }

    /// The same where the label is at hand.
    pub fn describe_as(&self, stamp: Stamp, label: Label) -> String {
        let handle = self.streams[stamp.slot()].handle;
        format!("{label} (stream {}, handle {handle:#x}, work {})", stamp.slot(), stamp.epoch())
    }
}
