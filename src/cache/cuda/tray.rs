//! Trays: what goes up to the GPU for one launch, and what comes down.
//!
//! A device has a few trays of a fixed size, made when it is opened, so that no request can run out of memory half-way:
//! one that needs more room takes more launches. While the GPU works on one tray, the next is filled.

use std::collections::VecDeque;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, CudaEvent};

use super::device::Device;
use super::launch::{Kernel, Launch, Operation};
use super::memory::{Buffer, Direction, Pinned};

/// Sections of a tray begin at multiples of this, so that four numbers are read at once.
const ALIGNMENT: usize = 16;

/// Room for one launch.
pub struct Tray {
    pub(super) up: Pinned,
    pub(super) up_device: Buffer,
    pub(super) down: Pinned,
    pub(super) down_device: Buffer,
    /// Bytes of `up` that are filled.
    pub(super) filled: usize,
    pub(super) events: Events,
    /// What it is out for; `None` while it is not.
    pub(super) out: Option<Operation>,
}

/// The moments of a launch.
pub(super) struct Events {
    /// The input is on the device.
    pub uploaded: CudaEvent,
    /// The kernel begins.
    pub started: CudaEvent,
    /// The kernel has ended.
    pub finished: CudaEvent,
    /// The output is on the host; without output, the kernel has ended.
    pub done: CudaEvent,
}

impl Tray {
    pub(super) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Tray, DriverError> {
        let timed = || context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let plain = || context.new_event(None);
        // Whoever waits for the end sleeps meanwhile: request threads have other things to do.
        let awaited = || context.new_event(Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC));
        Ok(Tray {
            up: Pinned::new(context, bytes, Direction::Up)?,
            up_device: Buffer::new(context, bytes)?,
            down: Pinned::new(context, bytes, Direction::Down)?,
            down_device: Buffer::new(context, bytes)?,
            filled: 0,
            events: Events { uploaded: plain()?, started: timed()?, finished: timed()?, done: awaited()? },
            out: None,
        })
    }

    /// Lets `fill` write `count` values that go up. Returns where they will be on the device.
    pub fn put<T: Pod>(&mut self, count: usize, fill: impl FnOnce(&mut [T])) -> u64 {
        let start = self.filled.next_multiple_of(ALIGNMENT);
        self.filled = start + count * size_of::<T>();
        fill(bytemuck::cast_slice_mut(&mut self.up.get_mut()[start..self.filled]));
        self.up_device.address() + start as u64
    }

    /// Writes values that go up. Returns where they will be on the device.
    pub fn put_all<T: Pod>(&mut self, values: impl ExactSizeIterator<Item = T>) -> u64 {
        self.put(values.len(), |places: &mut [T]| {
            places.iter_mut().zip(values).for_each(|(place, value)| *place = value)
        })
    }

    /// Where the output begins on the device.
    pub fn output(&self) -> u64 {
        self.down_device.address()
    }
}

impl Drop for Tray {
    fn drop(&mut self) {
        // Its memory must not be freed under a copy. If the wait fails the GPU is lost, and so are its copies.
        let context = self.events.done.context();
        context.record_err(context.synchronize());
    }
}

/// The launches of one request whose output is still to come, each with what is to be done with it.
pub struct Pipeline<'a, T> {
    device: &'a Device,
    out: VecDeque<(Tray, T)>,
}

impl<'a, T> Pipeline<'a, T> {
    /// No launches yet.
    pub fn new(device: &'a Device) -> Pipeline<'a, T> {
        Pipeline { device, out: VecDeque::new() }
    }

    /// The device.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// An empty tray. If there is none, the output of the oldest launch is landed first: whoever has trays out never waits
    /// for those of others, who might wait for these.
    pub fn tray(&mut self, land: &mut impl FnMut(T, &[u8])) -> Tray {
        match self.device.try_take() {
            Some(tray) => tray,
            None => match self.out.pop_front() {
                Some((tray, then)) => self.land_one(tray, then, land),
                None => self.device.take(),
            },
        }
    }

    /// Launches a kernel without output.
    pub fn send(&mut self, mut tray: Tray, kernel: Kernel, launch: &Launch) {
        self.device.launch(&mut tray, kernel, launch, 0);
        self.device.give_back(tray);
    }

    /// Launches a kernel whose output of so many bytes is to be landed with `then`.
    pub fn send_for(&mut self, mut tray: Tray, kernel: Kernel, launch: &Launch, bytes: usize, then: T) {
        self.device.launch(&mut tray, kernel, launch, bytes);
        self.out.push_back((tray, then));
    }

    /// Lands everything that is out, the oldest first.
    pub fn land(&mut self, land: &mut impl FnMut(T, &[u8])) {
        while let Some((tray, then)) = self.out.pop_front() {
            let tray = self.land_one(tray, then, land);
            self.device.give_back(tray);
        }
    }

    fn land_one(&self, mut tray: Tray, then: T, land: &mut impl FnMut(T, &[u8])) -> Tray {
        self.device.wait_for(&mut tray);
        land(then, tray.down.get());
        tray
    }
}

impl<T> Drop for Pipeline<'_, T> {
    fn drop(&mut self) {
        // Only where a panic has come in between: nobody wants the output any more, others want the trays.
        for (tray, _) in self.out.drain(..) {
            self.device.give_back(tray);
        }
    }
}
