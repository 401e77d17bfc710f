//! The kernels compiled for the host: which there are, how one runs, and the check before each of its accesses.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_ulong, c_void};
use std::fmt;
use std::ptr;
use std::sync::OnceLock;

use crate::memory::{Label, Memory, Who};
use crate::random::Random;
use crate::report::violation;

/// Threads of a block; `THREADS` in device.h.
pub const THREADS: usize = 128;

/// How far below the frame that calls a kernel its own stack may reach: shared arrays are at most 48 KiB.
const STACK: usize = 512 << 10;

type Run = unsafe extern "C" fn(*const c_void, u32, u32, *const u32);

/// A line of the tables that build.rs writes.
#[repr(C)]
struct Entry {
    name: *const c_char,
    run: Option<Run>,
    launch_size: c_ulong,
}

unsafe extern "C" {
    /// In call.c.
    fn emulated_call(run: Run, launch: *const c_void, block: u32, grid: u32, order: *const u32, stack_top: *mut usize);
    static emulated_project_kernels: Entry;
    static emulated_planted_kernels: Entry;
    /// The linker's names for the bounds of the section in which device.h puts tables of constants.
    static __start_emulated_tables: u8;
    static __stop_emulated_tables: u8;
}

/// A kernel of the source, compiled for the host.
pub struct Kernel {
    pub name: &'static str,
    run: Run,
    /// Bytes of its one argument.
    pub launch_size: usize,
}

/// The kernel of this name.
pub fn find(name: &str) -> Option<&'static Kernel> {
    static TABLE: OnceLock<Vec<Kernel>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut kernels = Vec::new();
        for mut entry in [&raw const emulated_project_kernels, &raw const emulated_planted_kernels] {
            // SAFETY: build.rs ends each table with an entry without a function, and the names are literals.
            unsafe {
                while let Some(run) = (*entry).run {
                    let name = CStr::from_ptr((*entry).name).to_str().expect("build.rs takes only ASCII names");
                    kernels.push(Kernel { name, run, launch_size: (*entry).launch_size as usize });
                    entry = entry.add(1);
                }
            }
        }
        kernels
    });
    table.iter().find(|kernel| kernel.name == name)
}

/// What the hooks need to know of the kernel that runs. There is one at a time, under the driver's lock, so this is a
/// plain static: thread-local storage would cost more than all the rest of a check.
struct Running {
    /// The kernel's stack ends here.
    stack_top: usize,
    /// The allocations of the last read and of the last write: most accesses are to the same ones as before.
    last: [(usize, usize); 2],
    first_written: usize,
    memory: *mut Memory,
    who: *const Who,
    label: Label,
}

struct Cell(UnsafeCell<Running>);

// SAFETY: only used while the driver's lock is held: `run` sets it and the hooks run within `run`.
unsafe impl Sync for Cell {}

const NOTHING: Running = Running {
    stack_top: 0,
    last: [(0, 0); 2],
    first_written: 0,
    memory: ptr::null_mut(),
    who: ptr::null(),
    label: Label { kind: "", name: "" },
};

static RUNNING: Cell = Cell(UnsafeCell::new(NOTHING));

/// Runs all blocks of a launch, they and their threads in random orders. Returns the first address written, or zero.
pub fn run(
    kernel: &'static Kernel,
    launch: &[u128],
    grid: u32,
    who: &Who,
    memory: &mut Memory,
    random: &mut Random,
    blocks: &mut Vec<u32>,
) -> usize {
    assert!(size_of_val(launch) >= kernel.launch_size, "the launch was copied whole");
    blocks.clear();
    blocks.extend(0..grid);
    random.shuffle(blocks);

    // One more than there are threads: the loop reads on.
    let mut order: [u32; THREADS + 1] = std::array::from_fn(|i| i as u32);
    random.shuffle(&mut order[..THREADS]);

    let running = RUNNING.0.get();
    // SAFETY: the caller has the driver, so its lock is held and no other kernel runs.
    unsafe {
        *running = Running { memory, who, label: Label { kind: "kernel", name: kernel.name }, ..NOTHING };
    }
    for &block in blocks.iter() {
        // SAFETY: `launch` holds the kernel's argument, `order` as many numbers as call.c copies, and the hooks check
        // each access before it is made.
        unsafe {
            let stack_top = &raw mut (*running).stack_top;
            emulated_call(kernel.run, launch.as_ptr().cast(), block, grid, order.as_ptr(), stack_top);
        }
    }
    // SAFETY: as above; the kernel is done.
    let done = unsafe { ptr::replace(running, NOTHING) };
    done.first_written
}

/// The check before each access.
#[inline(always)]
fn access(at: usize, len: usize, write: bool) {
    // SAFETY: hooks are called by kernels only, which run within `run`, under the driver's lock.
    let running = unsafe { &mut *RUNNING.0.get() };
    if running.stack_top.wrapping_sub(at) < STACK {
        return;
    }
    let (start, size) = running.last[usize::from(write)];
    let offset = at.wrapping_sub(start);
    if offset >= size || len > size - offset {
        if !write && is_table(at, len) {
            return;
        }
        running.last[usize::from(write)] = allocation_of(running, at, len, write);
    }
    if write && running.first_written == 0 {
        running.first_written = at;
    }
    // SAFETY: `run` has set both from references that it does not use before the kernel is done.
    let (memory, who) = unsafe { (&mut *running.memory, &*running.who) };
    memory.device.touch(&memory.history, who, at, len, write);
}

/// Whether this is a constant that belongs to the kernels.
fn is_table(at: usize, len: usize) -> bool {
    let (start, end) = (&raw const __start_emulated_tables as usize, &raw const __stop_emulated_tables as usize);
    at >= start && at < end && len <= end - at
}

/// The allocation that is accessed, by its start and size.
fn allocation_of(running: &Running, at: usize, len: usize, write: bool) -> (usize, usize) {
    // SAFETY: as in `access`.
    let (memory, who) = unsafe { (&*running.memory, &*running.who) };
    if let Some(index) = memory.device.find(at) {
        let allocation = memory.device.allocation(index);
        if !allocation.freed && allocation.device == who.device && allocation.holds(at, len) {
            return (allocation.start, allocation.size);
        }
    }
    let verb = if write { "writes" } else { "reads" };
    memory.device_range(&What(memory, who, running.label, verb), at, len, who.device);
    unreachable!("there is no such allocation, and that was reported");
}

macro_rules! hooks {
    ($($name:ident: $len:literal, $write:literal;)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name(at: usize) {
            access(at, $len, $write);
        })*
    };
}

hooks! {
    emulated_load1: 1, false;
    emulated_load2: 2, false;
    emulated_load4: 4, false;
    emulated_load8: 8, false;
    emulated_load16: 16, false;
    emulated_store1: 1, true;
    emulated_store2: 2, true;
    emulated_store4: 4, true;
    emulated_store8: 8, true;
    emulated_store16: 16, true;
}

#[unsafe(no_mangle)]
extern "C" fn emulated_loadN(at: usize, len: usize) {
    if len > 0 {
        access(at, len, false);
    }
}

#[unsafe(no_mangle)]
extern "C" fn emulated_storeN(at: usize, len: usize) {
    if len > 0 {
        access(at, len, true);
    }
}

#[unsafe(no_mangle)]
extern "C" fn emulated_nothing() {}

/// Where the compiler says an index is wrong; the first fields of its `ubsan_out_of_bounds_data`.
#[repr(C)]
struct Location {
    file: *const c_char,
    line: u32,
    column: u32,
}

/// An index beyond the end of an array of known size: a shared one, which is on the stack here.
#[unsafe(no_mangle)]
extern "C" fn emulated_out_of_bounds(location: *const Location, index: usize) {
    // SAFETY: gcc passes a static with these fields first; the file is a literal. A kernel runs, as for `access`.
    let (file, line, label) = unsafe { (CStr::from_ptr((*location).file), (*location).line, (*RUNNING.0.get()).label) };
    let file = file.to_string_lossy();
    let name = file.rsplit('/').next().unwrap_or_default();
    violation!("out of bounds: {label} uses index {} of a local or shared array at {name}:{line}", index as isize);
}

/// An access in the words of a report, put together only if there is one.
struct What<'a>(&'a Memory, &'a Who, Label, &'static str);

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(memory, who, label, verb) = self;
        write!(f, "{} {verb}", memory.history.describe_as(who.stamp, *label))
    }
}
