//! What can be enqueued on a stream, and how it is done when its time comes.

use crate::clock::Stamp;
use crate::codes::{self, Code};
use crate::kernels::{self, Kernel};
use crate::memory::{Label, Memory, POISON, Who};
use crate::random::Random;
use crate::report::violation;

/// One piece of work.
pub enum Work {
    Kernel {
        kernel: &'static Kernel,
        /// A copy of the argument; of wide integers for their alignment.
        launch: Box<[u128]>,
        grid: u32,
        fails: bool,
    },
    Copy {
        from: Place,
        to: Place,
        len: usize,
        fails: bool,
    },
    Fill {
        at: usize,
        len: usize,
        value: u8,
    },
    /// Frees a device allocation (cuMemFreeAsync).
    Free {
        allocation: usize,
    },
    /// The time is noted for this event.
    Record {
        event: usize,
    },
    /// Nothing of this stream runs before that other work is done.
    Wait {
        until: Stamp,
    },
}

/// One end of a copy.
pub enum Place {
    Device(usize),
    Pinned {
        at: usize,
        allocation: usize,
        expect: Expect,
    },
    Pageable(usize),
    /// The bytes as they were when the copy was enqueued.
    Snapshot(Box<[u8]>),
}

/// What pinned memory must hold when the copy runs, or else the host wrote to it too early.
pub enum Expect {
    Anything,
    Poison,
    Bytes(Box<[u8]>),
}

impl Work {
    pub fn label(&self) -> Label {
        let (kind, name) = match self {
            Self::Kernel { kernel, .. } => ("kernel", kernel.name),
            Self::Copy { from: Place::Device(_), to: Place::Device(_), .. } => ("copy", "within the device"),
            Self::Copy { from: Place::Device(_), .. } => ("copy", "from device to host"),
            Self::Copy { .. } => ("copy", "from host to device"),
            Self::Fill { .. } => ("memset", ""),
            Self::Free { .. } => ("cuMemFreeAsync", ""),
            Self::Record { .. } => ("event record", ""),
            Self::Wait { .. } => ("event wait", ""),
        };
        Label { kind, name }
    }

    /// Does the work. The error is what every later call returns.
    pub fn perform(&self, who: &Who, memory: &mut Memory, tools: &mut Tools) -> Result<(), Code> {
        match self {
            Self::Kernel { fails: true, .. } | Self::Copy { fails: true, .. } => return Err(codes::ILLEGAL_ADDRESS),
            Self::Kernel { kernel, launch, grid, .. } => {
                let written = kernels::run(kernel, launch, *grid, who, memory, &mut tools.random, &mut tools.blocks);
                if written != 0 && tools.broken_kernel.as_deref() == Some(kernel.name) {
                    // SAFETY: the kernel has just written there, and allocations have whole pages.
                    unsafe { *((written & !3) as *mut u32) ^= 1 };
                }
            }
            Self::Copy { from, to, len, .. } => {
                let source = from.take_up(self, who, memory, *len, false);
                let target = to.take_up(self, who, memory, *len, true);
                // SAFETY: both ranges were found to be live, or are the caller's, who says so. They may overlap.
                unsafe { std::ptr::copy(source as *const u8, target as *mut u8, *len) };
            }
            Self::Fill { at, len, value } => {
                Place::Device(*at).take_up(self, who, memory, *len, true);
                // SAFETY: the range was just found to be in a live allocation.
                unsafe { (*at as *mut u8).write_bytes(*value, *len) };
            }
            Self::Free { allocation } => {
                let (start, size) = {
                    let known = memory.device.allocation(*allocation);
                    (known.start, known.size)
                };
                // To free is to write: whoever uses the memory must be ordered with it.
                memory.device.touch(&memory.history, who, start, size, true);
                memory.device.free(*allocation);
            }
            Self::Record { .. } | Self::Wait { .. } => {}
        }
        Ok(())
    }

    /// Gives up the claims on pinned memory, after the work is done or when it never will be.
    pub fn retire(&self, stamp: Stamp, memory: &mut Memory) {
        if let Self::Copy { from, to, .. } = self {
            for place in [from, to] {
                if let Place::Pinned { allocation, .. } = place {
                    memory.pinned.allocation_mut(*allocation).pending.retain(|pending| pending.by != stamp);
                }
            }
        }
    }
}

impl Place {
    /// Checks one end of a copy as it runs and notes the access; where the bytes are.
    fn take_up(&self, work: &Work, who: &Who, memory: &mut Memory, len: usize, write: bool) -> usize {
        match self {
            Self::Device(at) => {
                memory.device_range(&format_args!("{},", work.label()), *at, len, who.device);
                memory.device.touch(&memory.history, who, *at, len, write);
                *at
            }
            Self::Pinned { at, expect, .. } => {
                // SAFETY: cuMemFreeHost reports memory that a copy is still to use, so the allocation is live.
                let bytes = unsafe { std::slice::from_raw_parts(*at as *const u8, len) };
                let changed = match expect {
                    Expect::Anything => None,
                    Expect::Poison => bytes.iter().position(|&byte| byte != POISON),
                    Expect::Bytes(expected) if bytes == &expected[..] => None,
                    Expect::Bytes(expected) => bytes.iter().zip(expected).position(|(now, then)| now != then),
                };
                if let Some(offset) = changed {
                    violation!(
                        "host race: the host wrote to {} while {} was still to {} it",
                        memory.describe(at + offset),
                        memory.history.describe(who.stamp),
                        if write { "write" } else { "read" }
                    );
                }
                memory.pinned.touch(&memory.history, who, *at, len, write);
                *at
            }
            Self::Pageable(at) => *at,
            Self::Snapshot(bytes) => bytes.as_ptr() as usize,
        }
    }
}

/// What the running of work needs besides memory.
pub struct Tools {
    pub random: Random,
    pub broken_kernel: Option<String>,
    /// Scratch for the order of blocks.
    pub blocks: Vec<u32>,
}
