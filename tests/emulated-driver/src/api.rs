//! The functions that the library exports, by the names and with the arguments of the CUDA driver. They take pointers
//! apart and check whether there is any point in going on; the rest is [`crate::driver`]'s.
//!
//! What cudarc calls is here, and a little more. A pointer for a result must be one that can be written, as for the
//! real driver; null is refused.

#![allow(non_snake_case, reason = "the names are NVIDIA's")]
#![allow(clippy::missing_safety_doc, reason = "as for the real driver: pointers must point to what their names say")]
#![allow(missing_docs, reason = "NVIDIA documents them")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use crate::codes::{self, Code};
use crate::driver::{Driver, Launch, lock};

/// A handle: of a context, stream, event, module or function.
type Handle = usize;
type DevicePointer = u64;

fn code(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(codes::SUCCESS)
}

/// A call that needs a device and an intact context.
fn call(f: impl FnOnce(&mut Driver) -> Result<(), Code>) -> Code {
    let mut driver = lock();
    code(driver.check().and_then(|()| f(&mut driver)))
}

/// The same with a result for the caller.
///
/// # Safety
///
/// `out` must be null or a place for a `T`.
unsafe fn give<T>(out: *mut T, f: impl FnOnce(&mut Driver) -> Result<T, Code>) -> Code {
    call(|driver| {
        if out.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        let value = f(driver)?;
        // SAFETY: promised by the caller, and not null.
        unsafe { out.write(value) };
        Ok(())
    })
}

/// A question about a device, which a broken context does not prevent.
///
/// # Safety
///
/// `out` must be null or a place for a `T`.
unsafe fn ask<T>(out: *mut T, f: impl FnOnce(&Driver) -> Result<T, Code>) -> Code {
    let driver = lock();
    code(driver.check_device_is_there().and_then(|()| {
        let value = f(&driver)?;
        if out.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        // SAFETY: promised by the caller, and not null.
        unsafe { out.write(value) };
        Ok(())
    }))
}

// ---- the driver ----

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> Code {
    if flags != 0 { codes::INVALID_VALUE } else { code(lock().init()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    if version.is_null() {
        return codes::INVALID_VALUE;
    }
    // SAFETY: the caller's promise, and not null.
    unsafe { version.write(lock().config.version) };
    codes::SUCCESS
}

/// # Safety
///
/// `out` must be null or a place for a pointer.
unsafe fn give_text(
    error: Code,
    out: *mut *const c_char,
    choose: fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Code {
    let text = codes::describe(error).map(choose);
    if out.is_null() {
        return codes::INVALID_VALUE;
    }
    // SAFETY: promised by the caller, and not null.
    unsafe { out.write(text.map_or(ptr::null(), CStr::as_ptr)) };
    if text.is_some() { codes::SUCCESS } else { codes::INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: Code, out: *mut *const c_char) -> Code {
    // SAFETY: the caller's promise.
    unsafe { give_text(error, out, |(name, _)| name) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: Code, out: *mut *const c_char) -> Code {
    // SAFETY: the caller's promise.
    unsafe { give_text(error, out, |(_, text)| text) }
}

/// NVIDIA's own libraries ask for tables of private functions; there are none.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetExportTable(_table: *mut *const c_void, _id: *const c_void) -> Code {
    codes::NOT_FOUND
}

/// Functions are found by their names in the library, not by this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    _symbol: *const c_char,
    function: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
    status: *mut c_uint,
) -> Code {
    const SYMBOL_NOT_FOUND: c_uint = 1;
    // SAFETY: the caller's promise, where they are not null.
    unsafe {
        if !function.is_null() {
            function.write(ptr::null_mut());
        }
        if !status.is_null() {
            status.write(SYMBOL_NOT_FOUND);
        }
    }
    codes::NOT_FOUND
}

// ---- devices ----

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Code {
    // SAFETY: the caller's promise.
    unsafe { ask(device, |driver| driver.device(ordinal).map(|index| index as c_int)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    // SAFETY: the caller's promise.
    unsafe { ask(count, |driver| Ok(driver.config.devices as c_int)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> Code {
    const NAME: &CStr = c"Emulated GPU";
    let driver = lock();
    code(driver.check_device_is_there().and_then(|()| {
        driver.device(device)?;
        let bytes = NAME.to_bytes_with_nul();
        if name.is_null() || usize::try_from(len).is_ok_and(|len| len < bytes.len()) || len < 0 {
            return Err(codes::INVALID_VALUE);
        }
        // SAFETY: the caller promises `len` bytes, which are enough.
        unsafe { name.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) -> Code {
    let own = |driver: &Driver| {
        let mut uuid = *b"Emulated GPU 000";
        uuid[15] += driver.device(device)? as u8;
        Ok(uuid)
    };
    // SAFETY: the caller's promise.
    unsafe { ask(uuid, own) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> Code {
    // SAFETY: the caller's promise.
    unsafe { cuDeviceGetUuid(uuid, device) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> Code {
    // SAFETY: the caller's promise.
    unsafe { ask(bytes, |driver| driver.device(device).map(|_| driver.config.memory)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) -> Code {
    // SAFETY: the caller's promise.
    unsafe { ask(value, |driver| driver.attribute(attribute, driver.device(device)?)) }
}

// ---- contexts ----

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> Code {
    // SAFETY: the caller's promise.
    unsafe { give(context, |driver| driver.device(device).map(|device| driver.retain(device))) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    call(|driver| driver.device(device).and_then(|device| driver.release(device)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease(device: c_int) -> Code {
    cuDevicePrimaryCtxRelease_v2(device)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) -> Code {
    call(|driver| driver.device(device).map(drop))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> Code {
    // SAFETY: the caller's promise.
    unsafe { give(context, |_| Ok(Driver::current())) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> Code {
    call(|driver| {
        driver.set_current(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Code {
    call(Driver::synchronize)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetFlags(_flags: c_uint) -> Code {
    call(|_| Ok(()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Code {
    call(|_| {
        // SAFETY: the caller's promise, where they are not null.
        unsafe {
            if !least.is_null() {
                least.write(0);
            }
            if !greatest.is_null() {
                greatest.write(-5);
            }
        }
        Ok(())
    })
}

// ---- memory ----

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    call(|driver| {
        let (free_bytes, total_bytes) = driver.memory_info()?;
        if free.is_null() || total.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        // SAFETY: the caller's promise, and not null.
        unsafe {
            free.write(free_bytes);
            total.write(total_bytes);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(at: *mut DevicePointer, size: usize) -> Code {
    // SAFETY: the caller's promise.
    unsafe { give(at, |driver| driver.allocate(size).map(|at| at as DevicePointer)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(at: DevicePointer) -> Code {
    call(|driver| driver.free(at as usize))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(at: *mut DevicePointer, size: usize, stream: Handle) -> Code {
    // SAFETY: the caller's promise.
    unsafe { give(at, |driver| driver.allocate_async(size, stream).map(|at| at as DevicePointer)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(at: DevicePointer, stream: Handle) -> Code {
    call(|driver| driver.free_async(at as usize, stream))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(at: *mut *mut c_void, size: usize, _flags: c_uint) -> Code {
    // SAFETY: the caller's promise.
    unsafe { give(at, |driver| driver.allocate_pinned(size).map(|at| at as *mut c_void)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(at: *mut c_void) -> Code {
    call(|driver| driver.free_pinned(at as usize))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: DevicePointer,
    from: *const c_void,
    len: usize,
    stream: Handle,
) -> Code {
    call(|driver| driver.upload(to as usize, from as usize, len, stream, false))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: DevicePointer, from: *const c_void, len: usize) -> Code {
    call(|driver| driver.upload(to as usize, from as usize, len, 0, true))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: DevicePointer,
    len: usize,
    stream: Handle,
) -> Code {
    call(|driver| driver.download(to as usize, from as usize, len, stream, false))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: DevicePointer, len: usize) -> Code {
    call(|driver| driver.download(to as usize, from as usize, len, 0, true))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: DevicePointer, from: DevicePointer, len: usize, stream: Handle) -> Code {
    call(|driver| driver.copy_within(to as usize, from as usize, len, stream))
}

/// Within the device the host does not wait, here as in reality.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: DevicePointer, from: DevicePointer, len: usize) -> Code {
    cuMemcpyDtoDAsync_v2(to, from, len, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(at: DevicePointer, value: u8, len: usize, stream: Handle) -> Code {
    call(|driver| driver.fill(at as usize, value, len, stream))
}

/// As for a copy within the device, the host does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(at: DevicePointer, value: u8, len: usize) -> Code {
    cuMemsetD8Async(at, value, len, 0)
}

// ---- streams and events ----

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut Handle, _flags: c_uint) -> Code {
    // SAFETY: the caller's promise.
    unsafe { give(stream, Driver::create_stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, _priority: c_int) -> Code {
    // SAFETY: the caller's promise.
    unsafe { cuStreamCreate(stream, flags) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    call(|driver| driver.destroy_stream(stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Handle) -> Code {
    call(|driver| driver.synchronize_stream(stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Handle) -> Code {
    call(|driver| driver.query_stream(stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> Code {
    call(|driver| driver.wait_event(stream, event))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut Handle, flags: c_uint) -> Code {
    // SAFETY: the caller's promise.
    unsafe { give(event, |driver| driver.create_event(flags)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> Code {
    call(|driver| {
        driver.destroy_event(event);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Code {
    call(|driver| driver.record(event, stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> Code {
    call(|driver| driver.synchronize_event(event))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Handle) -> Code {
    call(|driver| driver.query_event(event))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) -> Code {
    // SAFETY: the caller's promise.
    unsafe { give(milliseconds, |driver| driver.elapsed(start, end)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) -> Code {
    // SAFETY: the caller's promise.
    unsafe { cuEventElapsedTime(milliseconds, start, end) }
}

// ---- modules and kernels ----

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> Code {
    if image.is_null() {
        return codes::INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { give(module, |driver| driver.load_module(image.cast())) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> Code {
    if name.is_null() {
        return codes::INVALID_VALUE;
    }
    // SAFETY: the caller's promise, and not null.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("");
    // SAFETY: the caller's promise.
    unsafe { give(function, |driver| driver.function(module, name)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> Code {
    call(|driver| driver.unload_module(module))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: Handle, _attribute: c_uint, _value: c_int) -> Code {
    call(|driver| {
        driver.check_function(function, "cuFuncSetAttribute");
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: Handle) -> Code {
    let answer = |driver: &mut Driver| {
        driver.check_function(function, "cuFuncGetAttribute");
        let (major, minor) = driver.config.capability;
        Ok(match attribute {
            0 => 1024,                   // threads of a block
            4 => 32,                     // registers
            5 | 6 => major * 10 + minor, // the capability it was compiled for
            _ => 0,
        })
    };
    // SAFETY: the caller's promise.
    unsafe { give(value, answer) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared_bytes: c_uint,
    stream: Handle,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    call(|driver| {
        if arguments.is_null() || !extra.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        // SAFETY: the caller promises a pointer for each argument, of which every kernel here has one.
        let argument = unsafe { *arguments }.cast::<u8>().cast_const();
        if argument.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        let launch = Launch { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], stream, argument };
        // SAFETY: the caller promises that the argument is there.
        unsafe { driver.launch(function, &launch) }
    })
}
