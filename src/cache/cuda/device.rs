//! A GPU that holds cached rows: its streams, its kernels, its budget, and what becomes of the process when it is lost.
//!
//! There are three streams: uploads, kernels, downloads. Kernels run in the order in which they are launched, which is
//! what makes the partitions' locks enough: whoever holds the lock of a slot launches, and later work comes later. Copies
//! are tied to their kernel by events, so copies of one launch overlap with the kernel of another.
//!
//! `unsafe` lives here because a launch runs foreign code on addresses. It is sound because all of them come from live
//! trays and live slots, which outlast the launch: a tray is used again after its events, slots are freed when the
//! kernels are done.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use parking_lot::{Condvar, Mutex};

use super::check;
use super::compile::{Compiler, default_folder};
use super::launch::{Kernel, Launch, Operation, THREADS};
use super::memory::Buffer;
use super::tray::Tray;
use crate::budget::Budget;
use crate::error::{Error, Result};

/// The oldest driver: of CUDA 12.0.
const OLDEST_DRIVER: i32 = 12_000;
/// How many launches of all requests can be prepared or under way.
const TRAYS: usize = 8;
/// The smallest tray: the widest row, with all its state, fits.
const SMALLEST_TRAY: usize = 64 << 10;
const LARGEST_TRAY: usize = 64 << 20;

/// How to use a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaConfig {
    /// Which GPU, as the driver counts them.
    pub device: usize,
    /// Bytes that cached rows may take on it; `None` is nine tenths of what is free at the start.
    pub memory: Option<u64>,
    /// The NVRTC library; `None` looks where libraries are.
    pub nvrtc: Option<PathBuf>,
    /// Where compiled kernels are kept; `None` is the user's cache folder.
    pub kernels: Option<PathBuf>,
    /// Bytes that go up to the GPU, or come down, in one launch. Larger requests take several.
    pub tray_bytes: usize,
    /// Whether each kernel is compared with the host before the GPU is used.
    pub checked: bool,
}

impl Default for CudaConfig {
    fn default() -> CudaConfig {
        CudaConfig { device: 0, memory: None, nvrtc: None, kernels: None, tray_bytes: 4 << 20, checked: true }
    }
}

/// What is known of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Which one, as the driver counts them.
    pub device: usize,
    /// What its maker calls it.
    pub name: String,
    /// Its compute capability.
    pub capability: (i32, i32),
    /// The CUDA version of the driver, such as 12040.
    pub driver: i32,
}

/// What a GPU has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceStats {
    /// Bytes that went up.
    pub bytes_up: u64,
    /// Bytes that came down.
    pub bytes_down: u64,
    /// Bytes that cached rows take.
    pub memory_used: u64,
    /// Bytes that they may take.
    pub memory_budget: u64,
    /// By kind of work: its name, how often, and for how many seconds.
    pub operations: Vec<(&'static str, u64, f64)>,
}

/// A GPU that is in use.
pub struct Device {
    context: Arc<CudaContext>,
    up: Arc<CudaStream>,
    compute: Arc<CudaStream>,
    down: Arc<CudaStream>,
    functions: Vec<CudaFunction>,
    /// Held while a launch is put into the streams, so that nothing of another comes between its kernel and its clock.
    enqueueing: Mutex<()>,
    /// Whether rows depend on it; before that, a failure is no more than a reason not to use it.
    in_use: AtomicBool,
    trays: Mutex<VecDeque<Tray>>,
    returned: Condvar,
    tray_bytes: usize,
    budget: Budget,
    limit: u64,
    info: DeviceInfo,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    up: AtomicU64,
    down: AtomicU64,
    launches: [AtomicU64; Operation::ALL.len()],
    nanoseconds: [AtomicU64; Operation::ALL.len()],
}

// SAFETY: plain numbers, laid out as in the source of the kernels.
unsafe impl DeviceRepr for Launch {}

/// An error in words. The driver's own: it may be newer than the names that we know.
fn words(error: DriverError) -> String {
    let number = error.0 as u32;
    match (error.error_name(), error.error_string()) {
        (Ok(name), Ok(text)) => format!("{} ({number}): {}", name.to_string_lossy(), text.to_string_lossy()),
        _ => format!("error {number} of the NVIDIA driver"),
    }
}

impl Device {
    /// Opens a GPU, or says why it cannot be used.
    pub fn open(config: &CudaConfig) -> std::result::Result<Arc<Device>, String> {
        // SAFETY: the driver's initialisers do nothing beyond the library.
        if !unsafe { sys::is_culib_present() } {
            return Err("there is no NVIDIA driver here (libcuda.so.1 was not found)".into());
        }
        // A driver that lacks a function makes cudarc panic, and a GPU that fails unwinds as long as it is not in use.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let device = Arc::new(Device::open_present(config)?);
            let differs =
                if config.checked { check::differs(&device).map_err(|error| error.to_string())? } else { None };
            match differs {
                None => Ok(device),
                Some(what) => Err(format!(
                    "GPU {} ({}) computes other bits than the host: {what}; hotrow selftest --cuda tells more",
                    device.info.device, device.info.name
                )),
            }
        }));
        let device = opened.unwrap_or_else(|panic| match panic.downcast::<String>() {
            Ok(text) => Err(format!("the GPU cannot be used: {text}")),
            Err(_) => Err("the NVIDIA driver lacks a function: update it".into()),
        })?;
        device.in_use.store(true, Ordering::Relaxed);
        Ok(device)
    }

    fn open_present(config: &CudaConfig) -> std::result::Result<Device, String> {
        let failed = |what: &'static str| move |error| format!("{what}: {}", words(error));
        let mut driver = 0;
        // SAFETY: the pointer is to a number.
        unsafe { sys::cuDriverGetVersion(&mut driver) }
            .result()
            .map_err(failed("the driver does not tell its version"))?;
        if driver < OLDEST_DRIVER {
            return Err(format!(
                "the NVIDIA driver is of CUDA {}.{}, and 12.0 (driver 525) is the oldest that will do: update the driver",
                driver / 1000,
                driver % 1000 / 10
            ));
        }
        let count = CudaContext::device_count().map_err(failed("the NVIDIA driver does not start"))?;
        if config.device >= count.max(0) as usize {
            return Err(format!(
                "there is no GPU {}: the driver has {count}, counted from 0 (--device)",
                config.device
            ));
        }
        let context = CudaContext::new(config.device).map_err(failed("the GPU cannot be opened"))?;
        // SAFETY: nothing here uses the slices that it would track; order is kept by our own events.
        unsafe { context.disable_event_tracking() };
        let capability = context.compute_capability().map_err(failed("the GPU does not tell what it is"))?;
        let info = DeviceInfo {
            device: config.device,
            name: context.name().map_err(failed("the GPU does not tell its name"))?,
            capability,
            driver,
        };
        let folder = config.kernels.clone().or_else(default_folder);
        let (nvrtc, folder) = (config.nvrtc.as_deref(), folder.as_deref());
        let compiler = Compiler { nvrtc, folder, capability, driver };
        // What was kept may have been made for another driver.
        let kept = compiler.kept().and_then(|image| context.load_module(Ptx::from_binary(image)).ok());
        let module = match kept {
            Some(module) => module,
            None => context
                .load_module(Ptx::from_binary(compiler.compiled()?))
                .map_err(failed("the GPU does not take the kernels that NVRTC made"))?,
        };
        let function = |name: &&str| module.load_function(name);
        let functions = Kernel::NAMES.iter().map(function).collect::<std::result::Result<_, _>>();
        let tray_bytes = config.tray_bytes.clamp(SMALLEST_TRAY, LARGEST_TRAY);
        let trays = (0..TRAYS).map(|_| Tray::new(&context, tray_bytes)).collect::<std::result::Result<_, _>>();
        let trays = trays.map_err(failed("there is no room for the buffers between host and GPU"))?;
        let (free, _) = context.mem_get_info().map_err(failed("the GPU does not tell how much memory is free"))?;
        let limit = config.memory.unwrap_or(free as u64 / 10 * 9);
        let stream = || context.new_stream().map_err(failed("there is no stream"));
        Ok(Device {
            up: stream()?,
            compute: stream()?,
            down: stream()?,
            functions: functions.map_err(failed("a kernel is missing"))?,
            enqueueing: Mutex::new(()),
            in_use: AtomicBool::new(false),
            trays: Mutex::new(trays),
            returned: Condvar::new(),
            tray_bytes,
            budget: Budget::new(Some(limit)),
            limit,
            info,
            counts: Counts::default(),
            context,
        })
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// What it has done.
    pub fn stats(&self) -> DeviceStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let operation = |&op: &Operation| {
            let seconds = get(&self.counts.nanoseconds[op as usize]) as f64 / 1e9;
            (op.name(), get(&self.counts.launches[op as usize]), seconds)
        };
        DeviceStats {
            bytes_up: get(&self.counts.up),
            bytes_down: get(&self.counts.down),
            memory_used: self.budget.used(),
            memory_budget: self.limit,
            operations: Operation::ALL.iter().map(operation).collect(),
        }
    }

    /// Memory for cached rows.
    pub(super) fn allocate(&self, bytes: u64) -> Result<Buffer> {
        let short =
            |free: u64| Error::OutOfDeviceMemory { device: self.info.device, needed: bytes, free, limit: self.limit };
        self.budget.take(bytes).map_err(|_| short(self.limit.saturating_sub(self.budget.used())))?;
        match Buffer::new(&self.context, bytes as usize) {
            Ok(buffer) => Ok(buffer),
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                self.budget.give_back(bytes);
                Err(short(self.must("asking for free memory", self.context.mem_get_info()).0 as u64))
            }
            Err(error) => self.lost("allocating memory", error),
        }
    }

    /// Frees memory of cached rows, when no kernel uses it any more: the driver does not promise to wait.
    pub(super) fn free(&self, memory: Buffer, bytes: u64) {
        match self.compute.synchronize() {
            // Nothing to unwind from here: this may be an unwinding already.
            result if !self.in_use.load(Ordering::Relaxed) => self.context.record_err(result),
            result => self.must("waiting for its work", result),
        }
        drop(memory);
        self.budget.give_back(bytes);
    }

    /// How many rows fit in a tray, of which each takes so many bytes up and down.
    pub(super) fn rows_in_tray(&self, up: usize, down: usize) -> usize {
        // Sections are aligned, and there are at most four beside the rows themselves.
        let room = self.tray_bytes - 128;
        (room / up).min(room / down.max(1)).max(1)
    }

    /// An empty tray, once there is one.
    pub(super) fn take(&self) -> Tray {
        let mut trays = self.trays.lock();
        loop {
            match trays.pop_front() {
                Some(tray) => {
                    drop(trays);
                    return self.emptied(tray);
                }
                None => self.returned.wait(&mut trays),
            }
        }
    }

    /// An empty tray, if there is one.
    pub(super) fn try_take(&self) -> Option<Tray> {
        let tray = self.trays.lock().pop_front()?;
        Some(self.emptied(tray))
    }

    fn emptied(&self, mut tray: Tray) -> Tray {
        self.wait_for(&mut tray);
        tray
    }

    /// Takes a tray back; the launch that it is out for may still be under way.
    pub(super) fn give_back(&self, tray: Tray) {
        self.trays.lock().push_back(tray);
        self.returned.notify_one();
    }

    /// Sends a tray up, runs a kernel on it, and has `bytes` of output sent down.
    pub(super) fn launch(&self, tray: &mut Tray, kernel: Kernel, launch: &Launch, bytes: usize) {
        self.must("starting work", self.enqueue(tray, kernel, launch, bytes));
        let operation = kernel.operation();
        self.counts.up.fetch_add(tray.filled as u64, Ordering::Relaxed);
        self.counts.down.fetch_add(bytes as u64, Ordering::Relaxed);
        self.counts.launches[operation as usize].fetch_add(1, Ordering::Relaxed);
        tray.out = Some(operation);
    }

    fn enqueue(
        &self,
        tray: &mut Tray,
        kernel: Kernel,
        launch: &Launch,
        bytes: usize,
    ) -> std::result::Result<(), DriverError> {
        self.context.bind_to_thread()?;
        let _alone = self.enqueueing.lock();
        let events = &tray.events;
        let filled = &tray.up.get()[..tray.filled];
        // SAFETY: both sides are the tray's, which nobody touches before its last event.
        unsafe { result::memcpy_htod_async(tray.up_device.address(), filled, self.up.cu_stream()) }?;
        events.uploaded.record(&self.up)?;
        self.compute.wait(&events.uploaded)?;
        events.started.record(&self.compute)?;
        let blocks = LaunchConfig {
            grid_dim: (kernel.blocks(launch).max(1), 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the kernel takes a `Launch`, whose addresses are of this tray and of slots that are alive.
        unsafe { self.compute.launch_builder(&self.functions[kernel.index()]).arg(launch).launch(blocks) }?;
        events.finished.record(&self.compute)?;
        if bytes == 0 {
            return events.done.record(&self.compute);
        }
        self.down.wait(&events.finished)?;
        let (from, to) = (tray.down_device.address(), &mut tray.down.get_mut()[..bytes]);
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_async(to, from, self.down.cu_stream()) }?;
        events.done.record(&self.down)
    }

    /// Waits until a tray is back from the GPU. It is empty then.
    pub(super) fn wait_for(&self, tray: &mut Tray) {
        if let Some(operation) = tray.out.take() {
            self.must("waiting for its work", tray.events.done.synchronize());
            let elapsed = self.must("asking for a time", tray.events.started.elapsed_ms(&tray.events.finished));
            let nanoseconds = (f64::from(elapsed) * 1e6) as u64;
            self.counts.nanoseconds[operation as usize].fetch_add(nanoseconds, Ordering::Relaxed);
        }
        tray.filled = 0;
    }

    fn must<T>(&self, what: &str, result: std::result::Result<T, DriverError>) -> T {
        result.unwrap_or_else(|error| self.lost(what, error))
    }

    /// Ends the process. The rows on the GPU are gone, and what the host has of them is out of date: nothing may be
    /// served any more. A start from checkpoint and log has them again.
    fn lost(&self, what: &str, error: DriverError) -> ! {
        let DeviceInfo { device, name, .. } = &self.info;
        if !self.in_use.load(Ordering::Relaxed) {
            // `open` catches it. No panic: nothing is wrong with the program.
            resume_unwind(Box::new(format!("{what}: {}", words(error))));
        }
        if error.0 == CUresult::CUDA_ERROR_DEINITIALIZED {
            // The process is ending by itself.
            loop {
                std::thread::park();
            }
        }
        eprintln!(
            "hotrow: GPU {device} ({name}) is lost: {what}: {}: ending the process, because the rows in its memory are gone; \
             start it again to recover them from checkpoint and log, or with --pool host to do without the GPU",
            words(error)
        );
        // SAFETY: it ends the process and nothing else. The driver's own exit handlers may wait for the GPU for ever.
        unsafe { libc::_exit(1) }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Streams go before trays, and should have nothing left to do.
        self.context.record_err(self.context.synchronize());
    }
}
