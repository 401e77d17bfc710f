//! The driver's state and what its functions do, with handles as plain numbers. [`crate::api`] has the functions
//! themselves.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::codes::{self, Code};
use crate::config::{self, Config};
use crate::kernels::{self, Kernel, THREADS};
use crate::memory::{Memory, POISON, Pending};
use crate::module::Module;
use crate::random::Random;
use crate::report::violation;
use crate::schedule::{LEGACY, PER_THREAD, Schedule};
use crate::work::{Expect, Place, Tools, Work};

/// The first handles of contexts, modules and functions: numbers that are no addresses.
const CONTEXTS: usize = 0xC0_0000_0000;
const MODULES: usize = 0x30_0000_0000;
const FUNCTIONS: usize = 0xF0_0000_0000;

thread_local! {
    /// The context that cuCtxSetCurrent has set, as its handle.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// All there is. One lock for everything: calls are short, and kernels run within them.
pub struct Driver {
    pub config: Config,
    memory: Memory,
    schedule: Schedule,
    devices: Vec<Device>,
    modules: HashMap<usize, Module>,
    functions: HashMap<usize, Function>,
    next_handle: usize,
    initialised: bool,
    /// What every call returns once something has gone wrong for good.
    broken: Option<Code>,
}

#[derive(Default, Clone)]
struct Device {
    /// How often the primary context is retained.
    retained: u32,
    used: usize,
    /// The slots of the legacy stream and of the one for each thread, once they were used.
    streams: [Option<usize>; 2],
}

struct Function {
    kernel: &'static Kernel,
    module: usize,
    device: u32,
}

/// What a launch asks for.
pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub stream: usize,
    /// Where the one argument is.
    pub argument: *const u8,
}

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| Mutex::new(Driver::new()));

/// The driver, for as long as the result lives.
pub fn lock() -> MutexGuard<'static, Driver> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    fn new() -> Self {
        let config = Config::from_environment();
        if let Some(name) = &config.broken_kernel
            && kernels::find(name).is_none()
        {
            violation!("EMULATED_CUDA_BREAK: there is no kernel {name:?}");
        }
        let random = Random::new(config::seed());
        let tools = Tools { random, broken_kernel: config.broken_kernel.clone(), blocks: Vec::new() };
        Self {
            memory: Memory::new(),
            schedule: Schedule::new(tools),
            devices: vec![Device::default(); config.devices as usize],
            modules: HashMap::new(),
            functions: HashMap::new(),
            next_handle: 0,
            initialised: false,
            broken: None,
            config,
        }
    }

    fn new_handle(&mut self, first: usize) -> usize {
        self.next_handle += 1;
        first + self.next_handle * 16
    }

    // ---- the driver and its devices ----

    pub fn init(&mut self) -> Result<(), Code> {
        match self.config.fail.init {
            0 if self.devices.is_empty() => Err(codes::NO_DEVICE),
            0 => {
                self.initialised = true;
                self.check_device_is_there()
            }
            code => Err(code),
        }
    }

    /// Whether there is any point in going on.
    pub fn check(&self) -> Result<(), Code> {
        match self.broken {
            Some(code) => Err(code),
            None if self.initialised => Ok(()),
            None => Err(codes::NOT_INITIALIZED),
        }
    }

    /// A broken context does not keep one from asking about the device. A lost device does.
    pub fn check_device_is_there(&self) -> Result<(), Code> {
        if !self.initialised {
            return Err(codes::NOT_INITIALIZED);
        }
        self.broken.filter(|&code| code == codes::DEVICE_UNAVAILABLE).map_or(Ok(()), Err)
    }

    /// The index of a device, which is its handle, too.
    pub fn device(&self, device: i32) -> Result<usize, Code> {
        usize::try_from(device).ok().filter(|&index| index < self.devices.len()).ok_or(codes::INVALID_DEVICE)
    }

    pub fn attribute(&self, attribute: u32, device: usize) -> Result<i32, Code> {
        Ok(match attribute {
            1..=3 => 1024,           // threads of a block, and its first two sides
            4 => 64,                 // its third
            5 => i32::MAX,           // blocks of a grid, by its three sides
            6 | 7 => 65535,          //
            8 | 97 => 48 << 10,      // shared memory of a block
            9 => 64 << 10,           // constant memory
            10 => 32,                // threads of a warp
            12 | 82 => 64 << 10,     // registers of a block, of a multiprocessor
            13 | 36 => 1_000_000,    // clock rates in kHz
            14 => 512,               // alignment of textures
            16 => 16,                // multiprocessors
            31 | 41 | 78 => 1,       // concurrent kernels, unified addressing, stream priorities
            33 => device as i32 + 1, // PCI bus
            37 => 256,               // bits of the memory bus
            38 => 4 << 20,           // second-level cache
            39 => 2048,              // threads of a multiprocessor
            40 => 2,                 // copy engines
            75 => self.config.capability.0,
            76 => self.config.capability.1,
            81 => 100 << 10, // shared memory of a multiprocessor
            0 | 201.. => return Err(codes::INVALID_VALUE),
            _ => 0, // among them memory pools (115): allocations are not ordered by streams
        })
    }

    // ---- contexts ----

    pub fn retain(&mut self, device: usize) -> usize {
        self.devices[device].retained += 1;
        CONTEXTS + device * 16
    }

    pub fn release(&mut self, device: usize) -> Result<(), Code> {
        let retained = &mut self.devices[device].retained;
        *retained = retained.checked_sub(1).ok_or(codes::INVALID_CONTEXT)?;
        if *retained > 0 {
            return Ok(());
        }
        // The context ends, and all that is in it.
        self.run(|schedule, memory| schedule.drain(memory))?;
        let device_number = device as u32;
        for arena in [&mut self.memory.device, &mut self.memory.pinned] {
            let own: Vec<usize> = arena.live().filter(|&at| arena.allocation(at).device == device_number).collect();
            own.into_iter().for_each(|index| arena.free(index));
        }
        self.schedule.destroy_all(device_number);
        self.modules.retain(|_, module| module.device != device_number);
        self.functions.retain(|_, function| function.device != device_number);
        self.devices[device] = Device::default();
        Ok(())
    }

    pub fn current() -> usize {
        CURRENT.get()
    }

    pub fn set_current(&self, context: usize) {
        if context != 0 {
            self.context_device(context, "cuCtxSetCurrent");
        }
        CURRENT.set(context);
    }

    fn context_device(&self, context: usize, call: &str) -> u32 {
        let device = context.wrapping_sub(CONTEXTS) / 16;
        if !context.is_multiple_of(16) || self.devices.get(device).is_none_or(|device| device.retained == 0) {
            violation!("bad handle: {call} with {context:#x}, no context or one that was released");
        }
        device as u32
    }

    /// The device of the calling thread's context.
    fn current_device(&self) -> Result<u32, Code> {
        let device = CURRENT.get().checked_sub(CONTEXTS).ok_or(codes::INVALID_CONTEXT)? / 16;
        // A context that was current when it ended stays so, and is of no use.
        let alive = self.devices.get(device).is_some_and(|device| device.retained > 0);
        if alive { Ok(device as u32) } else { Err(codes::INVALID_CONTEXT) }
    }

    pub fn synchronize(&mut self) -> Result<(), Code> {
        let device = self.current_device()?;
        self.run(|schedule, memory| schedule.wait_for_device(device, memory))
    }

    /// Does something that may run work. If the work fails, so does everything from then on.
    fn run<T>(&mut self, f: impl FnOnce(&mut Schedule, &mut Memory) -> Result<T, Code>) -> Result<T, Code> {
        let result = f(&mut self.schedule, &mut self.memory);
        if let Err(code @ codes::ILLEGAL_ADDRESS) = result {
            self.break_down(code);
        }
        result
    }

    fn break_down(&mut self, code: Code) {
        self.broken = Some(code);
        self.schedule.drop_all(&mut self.memory);
    }

    // ---- memory ----

    /// Free and total bytes.
    pub fn memory_info(&self) -> Result<(usize, usize), Code> {
        let used = self.devices[self.current_device()? as usize].used;
        Ok((self.config.memory - used, self.config.memory))
    }

    pub fn allocate(&mut self, size: usize) -> Result<usize, Code> {
        let device = self.current_device()?;
        if size == 0 {
            return Err(codes::INVALID_VALUE);
        }
        let used = &mut self.devices[device as usize].used;
        if self.config.fail.alloc.fires() || size > self.config.memory - *used {
            return Err(codes::OUT_OF_MEMORY);
        }
        *used += size;
        Ok(self.memory.device.allocate(size, device))
    }

    /// The allocation that starts at the address.
    fn to_free(&self, at: usize, call: &str) -> usize {
        let wrong = |problem: &str| -> ! { violation!("{problem}: {call} of {}", self.memory.describe(at)) };
        let Some(index) = self.memory.device.find(at) else { wrong("bad pointer") };
        let allocation = self.memory.device.allocation(index);
        if allocation.freed {
            wrong("double free");
        }
        if allocation.start != at {
            wrong("bad pointer, not the start of an allocation");
        }
        index
    }

    pub fn free(&mut self, at: usize) -> Result<(), Code> {
        self.current_device()?;
        if at == 0 {
            return Ok(());
        }
        self.to_free(at, "cuMemFree");
        // The real one often waits for all work, but does not promise to. Here it does, to know what would use the memory
        // after it is freed: whatever the host has not waited for itself.
        self.run(|schedule, memory| schedule.drain(memory))?;
        let index = self.to_free(at, "cuMemFree");
        if let Some(user) = self.memory.device.user_after(index, self.schedule.host_clock()) {
            let (user, memory) = (self.memory.history.describe(user), self.memory.describe(at));
            violation!("memory freed that {user} may still use: cuMemFree of {memory}");
        }
        self.give_back(index);
        self.memory.device.free(index);
        Ok(())
    }

    fn give_back(&mut self, index: usize) {
        let allocation = self.memory.device.allocation(index);
        self.devices[allocation.device as usize].used -= allocation.size;
    }

    /// cuMemAllocAsync: the memory is there for what the stream does from now on.
    pub fn allocate_async(&mut self, size: usize, stream: usize) -> Result<usize, Code> {
        let slot = self.stream(stream, "cuMemAllocAsync")?;
        let at = self.allocate(size)?;
        // A write by the stream: whoever else uses the memory has to come after it.
        self.enqueue(slot, Work::Fill { at, len: size, value: POISON })?;
        Ok(at)
    }

    pub fn free_async(&mut self, at: usize, stream: usize) -> Result<(), Code> {
        let slot = self.stream(stream, "cuMemFreeAsync")?;
        let allocation = self.to_free(at, "cuMemFreeAsync");
        self.give_back(allocation);
        self.enqueue(slot, Work::Free { allocation })
    }

    pub fn allocate_pinned(&mut self, size: usize) -> Result<usize, Code> {
        let device = self.current_device()?;
        if size == 0 {
            return Err(codes::INVALID_VALUE);
        }
        if self.config.fail.host_alloc.fires() {
            return Err(codes::OUT_OF_MEMORY);
        }
        Ok(self.memory.pinned.allocate(size, device))
    }

    pub fn free_pinned(&mut self, at: usize) -> Result<(), Code> {
        self.current_device()?;
        let memory = &self.memory;
        let wrong = |problem: &str| -> ! { violation!("{problem}: cuMemFreeHost of {}", memory.describe(at)) };
        let Some(index) = memory.pinned.find(at) else { wrong("bad pointer") };
        let allocation = memory.pinned.allocation(index);
        if allocation.freed {
            wrong("double free");
        }
        if allocation.start != at {
            wrong("bad pointer, not the start of an allocation");
        }
        // Whether it happens to be done does not count: the host has not waited, so it cannot know.
        if let Some(&user) = allocation.users.iter().find(|&&user| !self.schedule.host_knows(user)) {
            wrong(&format!("pinned memory freed that {} may still use", memory.history.describe(user)));
        }
        if let Some(past) = memory.pinned.overrun(index) {
            wrong(&format!("the host wrote {past} bytes past the end of pinned memory"));
        }
        self.memory.pinned.free(index);
        Ok(())
    }

    // ---- streams and events ----

    pub fn create_stream(&mut self) -> Result<usize, Code> {
        let slot = self.schedule.create_stream(self.current_device()?, &mut self.memory);
        Ok(self.schedule.handle(slot))
    }

    /// The slot of a stream, the default one included.
    fn stream(&mut self, handle: usize, call: &str) -> Result<usize, Code> {
        if handle > PER_THREAD {
            return Ok(self.schedule.stream(handle, call));
        }
        let device = self.current_device()?;
        let own = usize::from(handle > LEGACY);
        if let Some(slot) = self.devices[device as usize].streams[own] {
            return Ok(slot);
        }
        let slot = self.schedule.create_stream(device, &mut self.memory);
        self.devices[device as usize].streams[own] = Some(slot);
        Ok(slot)
    }

    pub fn destroy_stream(&mut self, handle: usize) -> Result<(), Code> {
        if handle <= PER_THREAD {
            violation!("bad handle: cuStreamDestroy of a stream that is always there ({handle:#x})");
        }
        let slot = self.schedule.stream(handle, "cuStreamDestroy");
        self.schedule.destroy_stream(slot);
        Ok(())
    }

    pub fn synchronize_stream(&mut self, handle: usize) -> Result<(), Code> {
        let slot = self.stream(handle, "cuStreamSynchronize")?;
        self.run(|schedule, memory| schedule.wait_for_stream(slot, memory))
    }

    pub fn query_stream(&mut self, handle: usize) -> Result<(), Code> {
        let slot = self.stream(handle, "cuStreamQuery")?;
        let ready = self.run(|schedule, memory| schedule.query_stream(slot, memory))?;
        if ready { Ok(()) } else { Err(codes::NOT_READY) }
    }

    pub fn wait_event(&mut self, stream: usize, event: usize) -> Result<(), Code> {
        let slot = self.stream(stream, "cuStreamWaitEvent")?;
        self.schedule.wait_event(slot, event, &mut self.memory);
        Ok(())
    }

    pub fn create_event(&mut self, flags: u32) -> Result<usize, Code> {
        const DISABLE_TIMING: u32 = 2;
        Ok(self.schedule.create_event(self.current_device()?, flags & DISABLE_TIMING == 0))
    }

    pub fn destroy_event(&mut self, event: usize) {
        self.schedule.destroy_event(event);
    }

    pub fn record(&mut self, event: usize, stream: usize) -> Result<(), Code> {
        let slot = self.stream(stream, "cuEventRecord")?;
        self.schedule.record(event, slot, &mut self.memory);
        self.run(|schedule, memory| schedule.pass_time(memory))
    }

    pub fn synchronize_event(&mut self, event: usize) -> Result<(), Code> {
        self.run(|schedule, memory| schedule.wait_for_event(event, memory))
    }

    pub fn query_event(&mut self, event: usize) -> Result<(), Code> {
        let ready = self.run(|schedule, memory| schedule.query_event(event, memory))?;
        if ready { Ok(()) } else { Err(codes::NOT_READY) }
    }

    pub fn elapsed(&self, start: usize, end: usize) -> Result<f32, Code> {
        self.schedule.elapsed(start, end)
    }

    // ---- work ----

    fn enqueue(&mut self, slot: usize, work: Work) -> Result<(), Code> {
        self.schedule.enqueue(slot, work, &mut self.memory);
        self.run(|schedule, memory| schedule.pass_time(memory))
    }

    /// Counts launches and copies for the one at which the device is to go away.
    fn check_lost(&mut self) -> Result<(), Code> {
        if self.config.fail.lost.fires() {
            self.break_down(codes::DEVICE_UNAVAILABLE);
            return Err(codes::DEVICE_UNAVAILABLE);
        }
        Ok(())
    }

    pub fn fill(&mut self, at: usize, value: u8, len: usize, stream: usize) -> Result<(), Code> {
        let slot = self.stream(stream, "cuMemsetD8")?;
        self.current_device()?;
        if len == 0 {
            return Ok(());
        }
        let work = Work::Fill { at, len, value };
        self.memory.device_range(&format_args!("{},", work.label()), at, len, self.schedule.device_of(slot));
        self.enqueue(slot, work)
    }

    pub fn copy_within(&mut self, to: usize, from: usize, len: usize, stream: usize) -> Result<(), Code> {
        self.copy(Place::Device(to), Place::Device(from), len, stream, false)
    }

    /// From the host to the device.
    pub fn upload(&mut self, to: usize, from: usize, len: usize, stream: usize, wait: bool) -> Result<(), Code> {
        self.copy(Place::Device(to), Place::Pageable(from), len, stream, wait)
    }

    /// From the device to the host.
    pub fn download(&mut self, to: usize, from: usize, len: usize, stream: usize, wait: bool) -> Result<(), Code> {
        self.copy(Place::Pageable(to), Place::Device(from), len, stream, wait)
    }

    fn copy(&mut self, to: Place, from: Place, len: usize, stream: usize, wait: bool) -> Result<(), Code> {
        let slot = self.stream(stream, "a copy")?;
        self.current_device()?;
        self.check_lost()?;
        let fails = self.config.fail.copy.fires();
        if len == 0 {
            return Ok(());
        }
        let mut work = Work::Copy { from, to, len, fails };
        let label = work.label();
        let device = self.schedule.device_of(slot);
        let Work::Copy { from, to, .. } = &mut work else { unreachable!("just made") };
        let mut claim = None;
        for (place, writes) in [(from, false), (to, true)] {
            match *place {
                Place::Device(at) => _ = self.memory.device_range(&format_args!("{label},"), at, len, device),
                Place::Pageable(at) => {
                    if let Some(allocation) = self.memory.host_range(&format_args!("{label},"), at, len) {
                        claim = Some((at, allocation, writes));
                        *place = self.pinned_place(at, allocation, len, writes);
                    } else if !writes {
                        // SAFETY: the caller of the driver promises `len` bytes at `at`.
                        let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
                        *place = Place::Snapshot(bytes.into());
                    }
                }
                Place::Pinned { .. } | Place::Snapshot(_) => unreachable!("callers give addresses"),
            }
        }
        // Into ordinary memory a copy is done when the call returns, whichever function it is.
        let wait = wait || matches!(&work, Work::Copy { to: Place::Pageable(_), .. });
        let stamp = self.schedule.enqueue(slot, work, &mut self.memory);
        if let Some((at, allocation, writes)) = claim {
            let pending = Pending { by: stamp, start: at, len, writes };
            self.memory.pinned.allocation_mut(allocation).claim(pending);
        }
        if wait {
            return self.run(|schedule, memory| schedule.wait_for(stamp, memory));
        }
        self.run(|schedule, memory| schedule.pass_time(memory))
    }

    /// Pinned memory as one end of a copy that is about to be enqueued: what it holds until then is known, so that a
    /// host that does not wait is found out.
    fn pinned_place(&self, at: usize, allocation: usize, len: usize, writes: bool) -> Place {
        let known = self.memory.pinned.allocation(allocation);
        let mut before = known.overlapping(at, len);
        let expect = if !writes {
            if before.any(|pending| pending.writes) {
                Expect::Anything
            } else {
                // SAFETY: the range lies in a live allocation.
                Expect::Bytes(unsafe { std::slice::from_raw_parts(at as *const u8, len) }.into())
            }
        } else if known.overlapping(at, len).any(|pending| !pending.writes) {
            // What another copy is to read before this one writes must stay.
            Expect::Anything
        } else {
            // SAFETY: the range lies in a live allocation, and from now on it is the device's to write.
            unsafe { (at as *mut u8).write_bytes(POISON, len) };
            if before.next().is_none() { Expect::Poison } else { Expect::Anything }
        };
        Place::Pinned { at, allocation, expect }
    }

    // ---- modules and kernels ----

    /// # Safety
    ///
    /// As for [`Module::load`].
    pub unsafe fn load_module(&mut self, image: *const u8) -> Result<usize, Code> {
        let device = self.current_device()?;
        // SAFETY: promised by the caller.
        let module = unsafe { Module::load(image, device) }.ok_or(codes::INVALID_IMAGE)?;
        let (major, minor) = self.config.capability;
        if module.target.is_some_and(|target| target > 10 * major + minor) {
            return Err(codes::INVALID_PTX);
        }
        let handle = self.new_handle(MODULES);
        self.modules.insert(handle, module);
        Ok(handle)
    }

    pub fn unload_module(&mut self, handle: usize) -> Result<(), Code> {
        self.module(handle, "cuModuleUnload");
        // Work keeps its kernel, so nothing has to be waited for.
        self.modules.remove(&handle);
        self.functions.retain(|_, function| function.module != handle);
        Ok(())
    }

    fn module(&self, handle: usize, call: &str) -> &Module {
        let known = self.modules.get(&handle);
        known.unwrap_or_else(|| violation!("bad handle: {call} with {handle:#x}, no module or one that was unloaded"))
    }

    pub fn function(&mut self, module: usize, name: &str) -> Result<usize, Code> {
        let known = self.module(module, "cuModuleGetFunction");
        let function = Function { kernel: known.function(name).ok_or(codes::NOT_FOUND)?, module, device: known.device };
        let handle = self.new_handle(FUNCTIONS);
        self.functions.insert(handle, function);
        Ok(handle)
    }

    fn known_function(&self, handle: usize, call: &str) -> &Function {
        let known = self.functions.get(&handle);
        known.unwrap_or_else(|| violation!("bad handle: {call} with {handle:#x}, no function of a loaded module"))
    }

    pub fn check_function(&self, handle: usize, call: &str) {
        self.known_function(handle, call);
    }

    /// # Safety
    ///
    /// `launch.argument` must point to as many bytes as the kernel's argument has.
    pub unsafe fn launch(&mut self, function: usize, launch: &Launch) -> Result<(), Code> {
        let slot = self.stream(launch.stream, "cuLaunchKernel")?;
        self.current_device()?;
        let &Function { kernel, device, .. } = self.known_function(function, "cuLaunchKernel");
        if self.config.fail.launch.fires() {
            return Err(codes::LAUNCH_OUT_OF_RESOURCES);
        }
        self.check_lost()?;
        let [grid, ..] = launch.grid;
        if launch.block != [THREADS as u32, 1, 1] || launch.grid[1..] != [1, 1] {
            violation!(
                "launch with the wrong shape: kernel {} with blocks of {:?} threads in a grid of {:?}; it is written \
                 for ({THREADS}, 1, 1) in (n, 1, 1)",
                kernel.name,
                launch.block,
                launch.grid
            );
        }
        if grid == 0 || grid > i32::MAX as u32 {
            return Err(codes::INVALID_VALUE);
        }
        if device != self.schedule.device_of(slot) {
            violation!("bad handle: kernel {} of device {device} on a stream of another", kernel.name);
        }
        let mut argument = vec![0_u128; kernel.launch_size.div_ceil(size_of::<u128>())].into_boxed_slice();
        // SAFETY: the caller promises that many bytes, and there is room for them.
        unsafe { argument.as_mut_ptr().cast::<u8>().copy_from(launch.argument, kernel.launch_size) };
        let fails = self.config.fail.kernel.fires();
        self.enqueue(slot, Work::Kernel { kernel, launch: argument, grid, fails })
    }
}
