//! Failures asked for by the environment come where they were asked for, with the right codes.
#![allow(clippy::undocumented_unsafe_blocks, reason = "the driver under test checks each call")]

mod support;

use cudarc::driver::sys::CUresult::*;
use cudarc::driver::{CudaContext, DriverError, result, sys};
use support::*;

type Code = sys::CUresult;

fn code<T>(result: Result<T, DriverError>) -> Code {
    result.err().map_or(CUDA_SUCCESS, |error| error.0)
}

macro_rules! in_child {
    ($test:ident, $child:ident, [$(($name:literal, $value:literal)),*], $body:expr) => {
        #[test]
        #[ignore = "run with the environment it needs"]
        fn $child() {
            let body: fn() = $body;
            body();
        }

        #[test]
        fn $test() {
            passes(stringify!($child), &[$((concat!("EMULATED_CUDA_", $name), $value)),*]);
        }
    };
}

fn alloc() -> Code {
    code(unsafe { result::malloc_sync(4) })
}

fn host_alloc() -> Code {
    code(unsafe { result::malloc_host(4, 0) })
}

in_child!(memory_is_limited, child_memory, [("MEMORY", "1000")], || {
    let rig = Rig::new();
    let first = unsafe { result::malloc_sync(600) }.unwrap();
    assert_eq!(rig.context.mem_get_info().unwrap(), (400, 1000));
    assert_eq!(code(unsafe { result::malloc_sync(401) }), CUDA_ERROR_OUT_OF_MEMORY);
    free(first);
    assert_eq!(code(unsafe { result::malloc_sync(1000) }), CUDA_SUCCESS);
    assert_eq!(alloc(), CUDA_ERROR_OUT_OF_MEMORY);
});

in_child!(one_allocation_fails, child_alloc, [("FAIL", "alloc=2,host_alloc=3")], || {
    let _rig = Rig::new();
    assert_eq!([alloc(), alloc(), alloc()], [CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS]);
    assert_eq!([host_alloc(), host_alloc(), host_alloc()], [CUDA_SUCCESS, CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY]);
    assert_eq!(host_alloc(), CUDA_SUCCESS);
});

in_child!(allocations_fail_from_then_on, child_alloc_on, [("FAIL", "alloc=2+")], || {
    let _rig = Rig::new();
    assert_eq!([alloc(), alloc(), alloc()], [CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY]);
});

in_child!(a_launch_is_refused, child_launch, [("FAIL", "launch=2")], || {
    let rig = Rig::new();
    let stream = rig.stream();
    let launch = Launch { input: 0, output: device(1), count: 1, offset: 0 };
    let launched: Vec<Code> = (0..3).map(|_| code(rig.try_launch(&stream, "planted_write_at", launch))).collect();
    assert_eq!(launched, [CUDA_SUCCESS, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, CUDA_SUCCESS]);
    assert_eq!(code(stream.synchronize()), CUDA_SUCCESS);
});

in_child!(a_kernel_fails_and_breaks_the_context, child_kernel, [("FAIL", "kernel=2")], || {
    let rig = Rig::new();
    let stream = rig.stream();
    let (at, pinned) = (device(1), Pinned::new(1));
    let launch = Launch { input: 0, output: at, count: 1, offset: 0 };
    rig.launch(&stream, "planted_write_at", launch);
    assert_eq!(download(&stream, at, 1), [1.0]);
    // The failure shows at once or later, as for a real device, and then it stays.
    _ = rig.try_launch(&stream, "planted_write_at", launch);
    assert_eq!(code(stream.synchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(code(stream.synchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(alloc(), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(code(unsafe { result::free_sync(at) }), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(code(rig.context.new_event(None)), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(code(rig.context.mem_get_info()), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(code(rig.context.name()), CUDA_SUCCESS);
    std::mem::forget(pinned);
});

in_child!(a_copy_fails_and_breaks_the_context, child_copy, [("FAIL", "copy=2")], || {
    let rig = Rig::new();
    let stream = rig.stream();
    let at = device(1);
    upload(&stream, at, &[1.0]);
    let mut values = [7.0_f32];
    let copied = unsafe { result::memcpy_dtoh_async(&mut values, at, stream.cu_stream()) };
    assert_eq!((code(copied), values), (CUDA_ERROR_ILLEGAL_ADDRESS, [7.0]));
    assert_eq!(alloc(), CUDA_ERROR_ILLEGAL_ADDRESS);
});

in_child!(the_device_is_lost, child_lost, [("FAIL", "lost=3")], || {
    let rig = Rig::new();
    let stream = rig.stream();
    let at = device(1);
    upload(&stream, at, &[1.0]);
    let launch = Launch { input: 0, output: at, count: 1, offset: 0 };
    rig.launch(&stream, "planted_write_at", launch);
    assert_eq!(code(rig.try_launch(&stream, "planted_write_at", launch)), CUDA_ERROR_DEVICE_UNAVAILABLE);
    assert_eq!(code(rig.context.name()), CUDA_ERROR_DEVICE_UNAVAILABLE);
    assert_eq!(code(CudaContext::new(0)), CUDA_ERROR_DEVICE_UNAVAILABLE);
    assert_eq!(code(rig.context.synchronize()), CUDA_ERROR_DEVICE_UNAVAILABLE);
});

in_child!(the_driver_does_not_start, child_init, [("FAIL", "init=803")], || {
    emulated_driver::preload();
    assert_eq!(code(result::init()), CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    assert_eq!(code(CudaContext::device_count()), CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    assert_eq!(code(result::device::get_count()), CUDA_ERROR_NOT_INITIALIZED);
});

in_child!(ptx_for_a_newer_device_is_refused, child_ptx, [("CAPABILITY", "9.0")], || {
    let rig = Rig::new();
    let ptx = |target: &str| cudarc::nvrtc::Ptx::from_src(format!(".target {target}\nplanted_double"));
    assert!(rig.context.load_module(ptx("sm_90")).is_ok());
    assert_eq!(code(rig.context.load_module(ptx("sm_100"))), CUDA_ERROR_INVALID_PTX);
});

in_child!(there_is_no_device, child_no_device, [("DEVICES", "0")], || {
    emulated_driver::preload();
    assert_eq!(code(CudaContext::new(0)), CUDA_ERROR_NO_DEVICE);
});

in_child!(
    the_device_is_as_described,
    child_described,
    [("DEVICES", "2"), ("CAPABILITY", "9.0"), ("VERSION", "11080"), ("MEMORY", "12345")],
    || {
        let rig = Rig::new();
        assert_eq!(CudaContext::device_count().unwrap(), 2);
        let other = CudaContext::new(1).unwrap();
        assert_eq!(other.compute_capability().unwrap(), (9, 0));
        assert_ne!(other.uuid().unwrap().bytes, rig.context.uuid().unwrap().bytes);
        assert_eq!(other.total_mem().unwrap(), 12345);
        let mut version = 0;
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().unwrap();
        assert_eq!(version, 11080);
    }
);

in_child!(one_bit_is_broken, child_broken_bit, [("BREAK", "planted_double")], || {
    let rig = Rig::new();
    let stream = rig.stream();
    let (input, output) = (device_with(&[1.0; 500]), device(500));
    let wrong = |kernel, expected: f32| {
        rig.launch(&stream, kernel, Launch { input, output, count: 500, offset: 0 });
        let values = download(&stream, output, 500);
        let wrong: Vec<u32> = values.iter().map(|v| v.to_bits()).filter(|bits| *bits != expected.to_bits()).collect();
        assert!(wrong.iter().all(|bits| *bits == expected.to_bits() ^ 1));
        wrong.len()
    };
    assert_eq!(wrong("planted_double", 2.0), 1);
    assert_eq!(wrong("planted_increment", 2.0), 0);
});

#[test]
fn nonsense_in_the_environment_is_refused() {
    for (name, value) in [
        ("FAIL", "alloc"),
        ("FAIL", "nothing=1"),
        ("SEED", "x"),
        ("CAPABILITY", "8"),
        ("MEMORY", "-1"),
        ("BREAK", "no_kernel"),
    ] {
        let name = format!("EMULATED_CUDA_{name}");
        reports("child_no_device", &[(&name, value)], &[&name]);
    }
}

#[test]
#[ignore = "run with LD_LIBRARY_PATH"]
fn child_as_driver() {
    // No preload: the library is found by its name.
    assert_eq!(CudaContext::new(0).unwrap().name().unwrap(), "Emulated GPU");
}

#[test]
fn another_process_finds_it_by_name() {
    let folder = std::env::temp_dir().join(format!("emulated-driver-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    emulated_driver::as_driver(&folder);
    passes("child_as_driver", &[("LD_LIBRARY_PATH", folder.to_str().unwrap())]);
    std::fs::remove_dir_all(&folder).unwrap();
}
