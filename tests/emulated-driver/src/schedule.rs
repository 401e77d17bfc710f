//! Streams and events: work is kept until something waits for it, and done in an order that is random but for what
//! streams and events decide.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::clock::{Clock, STREAMS, Stamp};
use crate::codes::{self, Code};
use crate::memory::{Memory, Who};
use crate::report::violation;
use crate::work::{Tools, Work};

/// The handles of the two streams that are always there: the legacy one and one of each thread. There is only one of
/// the latter here, for all threads.
pub const LEGACY: usize = 1;
pub const PER_THREAD: usize = 2;

const HANDLES: usize = 0x57_0000_0000;

struct Stream {
    /// Zero where the slot is free.
    handle: usize,
    device: u32,
    queue: VecDeque<Task>,
    issued: u32,
    done: u32,
    /// What comes before whatever is enqueued next.
    clock: Clock,
}

struct Task {
    who: Who,
    work: Work,
}

struct Event {
    device: u32,
    timing: bool,
    recorded: Option<Recorded>,
}

struct Recorded {
    stamp: Stamp,
    clock: Clock,
    time: Option<Instant>,
}

/// All streams and events.
pub struct Schedule {
    streams: Vec<Stream>,
    /// Slots whose queues are not empty.
    busy: Vec<usize>,
    events: HashMap<usize, Event>,
    next_handle: usize,
    /// What the host has waited for.
    host: Clock,
    tools: Tools,
    /// Of eight calls that enqueue, how many run something at once. Changes now and then.
    eagerness: u32,
}

impl Schedule {
    pub fn new(tools: Tools) -> Self {
        Self {
            streams: Vec::new(),
            busy: Vec::new(),
            events: HashMap::new(),
            next_handle: 0,
            host: Clock::new(),
            tools,
            eagerness: 2,
        }
    }

    fn new_handle(&mut self) -> usize {
        self.next_handle += 1;
        // Looks like an address, ends in zeros, is none.
        HANDLES + self.next_handle * 0x100
    }

    // ---- streams ----

    /// Makes a stream; its slot.
    pub fn create_stream(&mut self, device: u32, memory: &mut Memory) -> usize {
        // The slot of a destroyed stream is free for another once the host has waited for all its work: what the new
        // one does comes after that in any case.
        let host = &self.host;
        let unused = |(slot, stream): (usize, &Stream)| stream.handle == 0 && host.get(slot) >= stream.issued;
        let slot = self.streams.iter().enumerate().position(unused).unwrap_or(self.streams.len());
        if slot == STREAMS {
            violation!("more than {STREAMS} streams that exist or whose work the host has not waited for");
        }
        let handle = self.new_handle() | slot;
        if slot == self.streams.len() {
            let queue = VecDeque::new();
            self.streams.push(Stream { handle, device, queue, issued: 0, done: 0, clock: Clock::new() });
        }
        let stream = &mut self.streams[slot];
        (stream.handle, stream.device, stream.clock) = (handle, device, self.host.clone());
        memory.history.name_stream(slot, handle);
        slot
    }

    pub fn handle(&self, slot: usize) -> usize {
        self.streams[slot].handle
    }

    /// The slot of a stream that was created; a report if there is none.
    pub fn stream(&self, handle: usize, call: &str) -> usize {
        let slot = handle & 0xFF;
        match self.streams.get(slot) {
            Some(stream) if stream.handle == handle => slot,
            _ => violation!("bad handle: {call} with {handle:#x}, which is no stream or one that was destroyed"),
        }
    }

    pub fn device_of(&self, slot: usize) -> u32 {
        self.streams[slot].device
    }

    /// The stream is gone for its owner; work that it still has will be done.
    pub fn destroy_stream(&mut self, slot: usize) {
        self.streams[slot].handle = 0;
    }

    /// Ends all streams and events of a device, whose work is done.
    pub fn destroy_all(&mut self, device: u32) {
        self.streams.iter_mut().filter(|stream| stream.device == device).for_each(|stream| stream.handle = 0);
        self.events.retain(|_, event| event.device != device);
    }

    // ---- work ----

    /// Adds work to a stream.
    pub fn enqueue(&mut self, slot: usize, work: Work, memory: &mut Memory) -> Stamp {
        let stream = &mut self.streams[slot];
        let Some(stamp) = Stamp::new(slot, stream.issued + 1) else {
            violation!("too much work on one stream for the check for races: {} pieces", stream.issued)
        };
        stream.issued += 1;
        stream.clock.join(&self.host);
        stream.clock.set(slot, stamp.epoch());
        memory.history.note(stamp, work.label());
        if stream.queue.is_empty() {
            self.busy.push(slot);
        }
        stream.queue.push_back(Task { who: Who { stamp, clock: stream.clock.clone(), device: stream.device }, work });
        stamp
    }

    /// Perhaps runs some work, as a device does while the host goes on.
    pub fn pass_time(&mut self, memory: &mut Memory) -> Result<(), Code> {
        let random = &mut self.tools.random;
        if random.below(64) == 0 {
            // Long spells of a device that is idle, or far ahead, find what a steady one does not.
            self.eagerness = [0, 1, 2, 4, 8][random.below(5) as usize];
        }
        if random.below(8) < self.eagerness {
            self.run_some(memory)?;
        }
        Ok(())
    }

    /// Runs a few pieces of work, if there are any.
    fn run_some(&mut self, memory: &mut Memory) -> Result<(), Code> {
        for _ in 0..=self.tools.random.below(3) {
            if !self.run_any(memory)? {
                break;
            }
        }
        Ok(())
    }

    /// Runs one piece of work that may run; whether there was one.
    fn run_any(&mut self, memory: &mut Memory) -> Result<bool, Code> {
        if self.busy.is_empty() {
            return Ok(false);
        }
        let first = self.tools.random.below(self.busy.len() as u32) as usize;
        for i in 0..self.busy.len() {
            let slot = self.busy[(first + i) % self.busy.len()];
            if self.waits_for(slot).is_none() {
                self.run_next(slot, memory)?;
                return Ok(true);
            }
        }
        // Waits are for work enqueued before them, so the oldest piece of all can always run.
        unreachable!("streams that wait for one another");
    }

    /// The stream that has to get on before this one can.
    fn waits_for(&self, slot: usize) -> Option<usize> {
        match self.streams[slot].queue.front()?.work {
            Work::Wait { until } if !self.is_done(until) => Some(until.slot()),
            _ => None,
        }
    }

    fn is_done(&self, stamp: Stamp) -> bool {
        self.streams[stamp.slot()].done >= stamp.epoch()
    }

    fn run_next(&mut self, slot: usize, memory: &mut Memory) -> Result<(), Code> {
        let Some(Task { who, work }) = self.streams[slot].queue.pop_front() else { return Ok(()) };
        if self.streams[slot].queue.is_empty() {
            self.busy.retain(|&busy| busy != slot);
        }
        let result = work.perform(&who, memory, &mut self.tools);
        work.retire(who.stamp, memory);
        self.streams[slot].done = who.stamp.epoch();
        if let Work::Record { event } = work
            && let Some(recorded) = self.events.get_mut(&event).and_then(|event| event.recorded.as_mut())
            && recorded.stamp == who.stamp
        {
            recorded.time = Some(Instant::now());
        }
        result
    }

    /// Runs work until this piece is done: only what it needs, or whatever comes.
    pub fn run_until(&mut self, stamp: Stamp, memory: &mut Memory) -> Result<(), Code> {
        let only_needed = self.tools.random.below(2) == 0;
        while !self.is_done(stamp) {
            if only_needed {
                let mut slot = stamp.slot();
                while let Some(other) = self.waits_for(slot) {
                    slot = other;
                }
                self.run_next(slot, memory)?;
            } else {
                self.run_any(memory)?;
            }
        }
        Ok(())
    }

    /// Runs all there is. The host may rely on nothing by that.
    pub fn drain(&mut self, memory: &mut Memory) -> Result<(), Code> {
        while self.run_any(memory)? {}
        Ok(())
    }

    /// Drops all work: the context is broken.
    pub fn drop_all(&mut self, memory: &mut Memory) {
        self.busy.clear();
        for stream in &mut self.streams {
            for task in stream.queue.drain(..) {
                task.work.retire(task.who.stamp, memory);
            }
            stream.done = stream.issued;
        }
    }

    // ---- the host waits ----

    /// Whether the host has waited for this work.
    /// What the host has waited for.
    pub fn host_clock(&self) -> &Clock {
        &self.host
    }

    pub fn host_knows(&self, stamp: Stamp) -> bool {
        self.host.covers(stamp)
    }

    /// Waits for one piece of work and so for all that comes before it.
    pub fn wait_for(&mut self, stamp: Stamp, memory: &mut Memory) -> Result<(), Code> {
        // Nothing can have been enqueued on the stream since: the driver's lock is held.
        let clock = self.streams[stamp.slot()].clock.clone();
        self.run_until(stamp, memory)?;
        self.host.join(&clock);
        Ok(())
    }

    /// Waits for all work of a stream.
    pub fn wait_for_stream(&mut self, slot: usize, memory: &mut Memory) -> Result<(), Code> {
        match self.streams[slot].issued {
            0 => Ok(()),
            last => self.wait_for(Stamp::new(slot, last).expect("it was issued with one"), memory),
        }
    }

    /// Waits for all streams of a device.
    pub fn wait_for_device(&mut self, device: u32, memory: &mut Memory) -> Result<(), Code> {
        for slot in 0..self.streams.len() {
            if self.streams[slot].device == device {
                self.wait_for_stream(slot, memory)?;
            }
        }
        Ok(())
    }

    /// Lets time pass; whether all work of the stream is done.
    pub fn query_stream(&mut self, slot: usize, memory: &mut Memory) -> Result<bool, Code> {
        self.run_sometimes(memory)?;
        let stream = &self.streams[slot];
        let ready = stream.done == stream.issued;
        if ready {
            self.host.join(&stream.clock);
        }
        Ok(ready)
    }

    /// Half of the queries find that something happened: a host that polls comes to an end, and sees "not ready".
    fn run_sometimes(&mut self, memory: &mut Memory) -> Result<(), Code> {
        if self.tools.random.below(2) == 0 { self.run_some(memory) } else { Ok(()) }
    }

    // ---- events ----

    pub fn create_event(&mut self, device: u32, timing: bool) -> usize {
        let handle = self.new_handle() | 0xE0;
        self.events.insert(handle, Event { device, timing, recorded: None });
        handle
    }

    fn event(&self, handle: usize, call: &str) -> &Event {
        let known = self.events.get(&handle);
        known.unwrap_or_else(|| violation!("bad handle: {call} with {handle:#x}, no event or one that was destroyed"))
    }

    pub fn destroy_event(&mut self, handle: usize) {
        self.event(handle, "cuEventDestroy");
        self.events.remove(&handle);
    }

    pub fn record(&mut self, handle: usize, slot: usize, memory: &mut Memory) {
        let device = self.event(handle, "cuEventRecord").device;
        if device != self.streams[slot].device {
            violation!("bad handle: cuEventRecord of an event of device {device} on a stream of another");
        }
        let stamp = self.enqueue(slot, Work::Record { event: handle }, memory);
        let clock = self.streams[slot].clock.clone();
        self.events.get_mut(&handle).expect("looked up above").recorded = Some(Recorded { stamp, clock, time: None });
    }

    /// The stream goes on only after what the event has recorded by now.
    pub fn wait_event(&mut self, slot: usize, handle: usize, memory: &mut Memory) {
        let recorded = self.event(handle, "cuStreamWaitEvent").recorded.as_ref();
        let Some((until, clock)) = recorded.map(|recorded| (recorded.stamp, recorded.clock.clone())) else { return };
        self.streams[slot].clock.join(&clock);
        self.enqueue(slot, Work::Wait { until }, memory);
    }

    pub fn wait_for_event(&mut self, handle: usize, memory: &mut Memory) -> Result<(), Code> {
        let recorded = self.event(handle, "cuEventSynchronize").recorded.as_ref();
        let Some((stamp, clock)) = recorded.map(|recorded| (recorded.stamp, recorded.clock.clone())) else {
            return Ok(());
        };
        self.run_until(stamp, memory)?;
        self.host.join(&clock);
        // A device does not stop where the host looks.
        self.pass_time(memory)
    }

    pub fn query_event(&mut self, handle: usize, memory: &mut Memory) -> Result<bool, Code> {
        self.event(handle, "cuEventQuery");
        self.run_sometimes(memory)?;
        let Some(recorded) = &self.event(handle, "cuEventQuery").recorded else { return Ok(true) };
        let ready = self.is_done(recorded.stamp);
        if ready {
            self.host.join(&self.events[&handle].recorded.as_ref().expect("just seen").clock);
        }
        Ok(ready)
    }

    /// Milliseconds from one event to another.
    pub fn elapsed(&self, start: usize, end: usize) -> Result<f32, Code> {
        let time = |handle| {
            let event = self.event(handle, "cuEventElapsedTime");
            let recorded = event.recorded.as_ref().filter(|_| event.timing).ok_or(codes::INVALID_HANDLE)?;
            recorded.time.ok_or(codes::NOT_READY)
        };
        let (start, end) = (time(start)?, time(end)?);
        Ok(end.saturating_duration_since(start).as_secs_f32() * 1000.0)
    }
}
