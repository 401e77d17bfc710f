//! A device with the planted kernels, and child processes for what ends in an abort.
#![allow(dead_code, reason = "no test uses all of it")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the driver under test checks each call")]

use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaModule, CudaStream, DriverError, LaunchConfig, PushKernelArg, result, sys};
use cudarc::nvrtc::Ptx;

pub const KERNELS: &str = "planted_double planted_increment planted_add_one planted_sum planted_read_at planted_write_at planted_order \
                           planted_shared_overrun planted_arithmetic planted_copy_wide planted_copy_bytes planted_unwritten planted_table planted_memcpy";

/// The argument of the planted kernels.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Launch {
    pub input: u64,
    pub output: u64,
    pub count: u32,
    pub offset: u32,
}

unsafe impl cudarc::driver::DeviceRepr for Launch {}

pub struct Rig {
    pub context: Arc<CudaContext>,
    pub module: Arc<CudaModule>,
}

impl Rig {
    pub fn new() -> Self {
        emulated_driver::preload();
        let context = CudaContext::new(0).expect("an emulated device");
        unsafe { context.disable_event_tracking() };
        let module = context.load_module(Ptx::from_src(KERNELS)).expect("a module");
        Self { context, module }
    }

    pub fn stream(&self) -> Arc<CudaStream> {
        self.context.new_stream().expect("a stream")
    }

    pub fn launch(&self, stream: &CudaStream, kernel: &str, launch: Launch) {
        self.try_launch(stream, kernel, launch).expect("a launch");
    }

    pub fn try_launch(&self, stream: &CudaStream, kernel: &str, launch: Launch) -> Result<(), DriverError> {
        self.launch_in(stream, kernel, launch, (launch.count.div_ceil(128).max(1), 1, 1), (128, 1, 1))
    }

    pub fn launch_in(
        &self,
        stream: &CudaStream,
        kernel: &str,
        launch: Launch,
        grid_dim: (u32, u32, u32),
        block_dim: (u32, u32, u32),
    ) -> Result<(), DriverError> {
        let function = self.module.load_function(kernel)?;
        let shape = LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 };
        unsafe { stream.launch_builder(&function).arg(&launch).launch(shape) }.map(drop)
    }
}

/// Device memory for so many floats.
pub fn device(floats: usize) -> u64 {
    unsafe { result::malloc_sync(floats * 4) }.expect("device memory")
}

pub fn free(at: u64) {
    unsafe { result::free_sync(at) }.expect("a free");
}

/// Device memory with these floats, there for all streams.
pub fn device_with(values: &[f32]) -> u64 {
    let at = device(values.len());
    unsafe { result::memcpy_htod_sync(at, values) }.expect("a copy");
    at
}

pub fn upload(stream: &CudaStream, to: u64, values: &[f32]) {
    unsafe { result::memcpy_htod_async(to, values, stream.cu_stream()) }.expect("a copy");
}

/// Reads by an ordinary copy on the stream, which waits.
pub fn download(stream: &CudaStream, from: u64, floats: usize) -> Vec<f32> {
    let mut values = vec![0.0; floats];
    unsafe { result::memcpy_dtoh_async(&mut values, from, stream.cu_stream()) }.expect("a copy");
    values
}

/// Pinned memory, freed when dropped.
pub struct Pinned {
    pub at: *mut f32,
    floats: usize,
}

impl Pinned {
    pub fn new(floats: usize) -> Self {
        let at = unsafe { result::malloc_host(floats * 4, 0) }.expect("pinned memory").cast();
        Self { at, floats }
    }

    pub fn values(&mut self) -> &mut [f32] {
        unsafe { std::slice::from_raw_parts_mut(self.at, self.floats) }
    }

    pub fn upload(&self, stream: &CudaStream, to: u64) {
        let from = self.at.cast::<c_void>();
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, self.floats * 4, stream.cu_stream()) }.result().expect("a copy");
    }

    pub fn download(&self, stream: &CudaStream, from: u64) {
        let to = self.at.cast::<c_void>();
        unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, self.floats * 4, stream.cu_stream()) }.result().expect("a copy");
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        unsafe { result::free_host(self.at.cast()) }.expect("a free");
    }
}

/// Runs one ignored test of the same file in a process of its own.
pub fn child(test: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("the path of the running test"));
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    for name in ["SEED", "FAIL", "BREAK", "DEVICES", "CAPABILITY", "VERSION", "MEMORY"] {
        command.env_remove(format!("EMULATED_CUDA_{name}"));
    }
    command.envs(environment.iter().copied()).output().expect("a child process")
}

/// The child must end well, and must have run a test at all.
pub fn passes(test: &str, environment: &[(&str, &str)]) {
    let output = child(test, environment);
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{test} with {environment:?}:\n{text}");
}

/// The child must abort with a report that has all of these words in it.
pub fn reports(test: &str, environment: &[(&str, &str)], words: &[&str]) -> String {
    let output = child(test, environment);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), Some(6), "{test} with {environment:?} was to abort:\n{text}");
    let report = text.split("emulated driver: ").nth(1).unwrap_or_else(|| panic!("no report in:\n{text}"));
    for word in words.iter().chain(&["seed: EMULATED_CUDA_SEED="]) {
        assert!(report.contains(word), "{test} with {environment:?}: no {word:?} in:\n{report}");
    }
    report.to_owned()
}

/// The same with many seeds: what is found must not depend on luck.
pub fn reports_always(test: &str, words: &[&str]) {
    for seed in 1..=20 {
        reports(test, &[("EMULATED_CUDA_SEED", &seed.to_string())], words);
    }
}

/// With many seeds nothing is found.
pub fn passes_always(test: &str) {
    for seed in 1..=20 {
        passes(test, &[("EMULATED_CUDA_SEED", &seed.to_string())]);
    }
}
