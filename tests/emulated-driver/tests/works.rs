//! What must work: copies, kernels, order, modules, what the device says of itself.
#![allow(clippy::undocumented_unsafe_blocks, reason = "the driver under test checks each call")]

mod support;

use cudarc::driver::{CudaContext, DriverError, result, sys};
use cudarc::nvrtc::Ptx;
use support::*;

#[test]
fn copies_make_the_round_trip() {
    let rig = Rig::new();
    let stream = rig.stream();
    let values: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let (first, second) = (device(1000), device(1000));
    upload(&stream, first, &values);
    unsafe { result::memcpy_dtod_async(second, first, 4000, stream.cu_stream()) }.unwrap();
    assert_eq!(download(&stream, second, 1000), values);
    // From the middle, to ordinary memory: done when the call returns.
    assert_eq!(download(&stream, second + 40, 5), values[10..15]);
    unsafe { result::memset_d8_async(second, 0, 2000, stream.cu_stream()) }.unwrap();
    assert_eq!(download(&stream, second, 501)[499..], [0.0, 500.0]);
    free(first);
    free(second);
}

#[test]
fn the_safe_interface_of_cudarc_works() {
    emulated_driver::preload();
    let context = CudaContext::new(0).unwrap();
    let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
    for turn in 0..50 {
        let values = vec![turn as f32; 300];
        let uploaded = streams[0].clone_htod(&values).unwrap();
        let mut other = streams[1].alloc_zeros::<f32>(300).unwrap();
        streams[1].memcpy_dtod(&uploaded, &mut other).unwrap();
        let mut pinned = unsafe { context.alloc_pinned::<f32>(300) }.unwrap();
        streams[0].memcpy_dtoh(&other, &mut pinned).unwrap();
        assert_eq!(pinned.as_slice().unwrap(), values);
        assert_eq!(streams[0].clone_dtoh(&other).unwrap(), values);
    }
    context.synchronize().unwrap();
}

#[test]
fn new_memory_is_poison() {
    let rig = Rig::new();
    let stream = rig.stream();
    let at = device(3);
    assert!(download(&stream, at, 3).iter().all(|value| value.is_nan()));
    free(at);
}

#[test]
fn kernels_run() {
    let rig = Rig::new();
    let stream = rig.stream();
    for count in [1_u32, 127, 128, 129, 1000] {
        let values: Vec<f32> = (0..count).map(|i| i as f32 / 2.0).collect();
        let (input, output) = (device_with(&values), device(count as usize));
        let launch = Launch { input, output, count, ..Default::default() };
        rig.launch(&stream, "planted_double", launch);
        assert_eq!(download(&stream, output, count as usize), values.iter().map(|v| v * 2.0).collect::<Vec<_>>());
        rig.launch(&stream, "planted_sum", launch);
        let blocks = count.div_ceil(128) as usize;
        let sums: Vec<f32> = values.chunks(128).map(|chunk| chunk.iter().sum()).collect();
        assert_eq!(download(&stream, output, blocks), sums);
        rig.launch(&stream, "planted_arithmetic", launch);
        let expected: Vec<u32> =
            values.iter().map(|v| ((v.sqrt() - (v / 3.0).floor()) + v.round_ties_even()).to_bits() ^ 1).collect();
        let bits: Vec<u32> = download(&stream, output, count as usize).iter().map(|v| v.to_bits()).collect();
        assert_eq!(bits, expected);
        rig.launch(&stream, "planted_copy_wide", Launch { count: count / 4, ..launch });
        rig.launch(&stream, "planted_copy_bytes", Launch { count: count * 4, ..launch });
        assert_eq!(download(&stream, output, count as usize), values);
        unsafe { result::memset_d8_async(output, 0xFF, count as usize * 4, stream.cu_stream()) }.unwrap();
        rig.launch(&stream, "planted_memcpy", launch);
        assert_eq!(download(&stream, output, count as usize), values);
        free(input);
        free(output);
    }
}

#[test]
fn the_order_of_threads_is_random() {
    let rig = Rig::new();
    let stream = rig.stream();
    let output = device(1);
    let mut last = std::collections::HashSet::new();
    for _ in 0..50 {
        rig.launch(&stream, "planted_order", Launch { input: output, output, count: 1, offset: 0 });
        last.insert(download(&stream, output, 1)[0].to_bits());
    }
    assert!(last.len() > 10, "only {last:?}");
    free(output);
}

#[test]
fn shared_memory_is_garbage_at_first() {
    let rig = Rig::new();
    let stream = rig.stream();
    let output = device(128);
    rig.launch(&stream, "planted_unwritten", Launch { input: output, output, count: 128, offset: 0 });
    assert!(download(&stream, output, 128).iter().all(|value| *value != 0.0));
    free(output);
}

#[test]
fn tables_of_constants_may_be_read() {
    let rig = Rig::new();
    let stream = rig.stream();
    let output = device(4);
    rig.launch(&stream, "planted_table", Launch { input: output, output, count: 4, offset: 0 });
    assert_eq!(download(&stream, output, 4), [2.0, 3.0, 5.0, 7.0]);
    free(output);
}

#[test]
fn functions_must_be_in_the_image_and_on_the_host() {
    let rig = Rig::new();
    let not_found = Some(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND));
    let load = |text: &str| rig.context.load_module(Ptx::from_src(text)).unwrap();
    let module = load(".entry planted_double(\n planted_increment2 on_no_host");
    assert!(module.load_function("planted_double").is_ok());
    for name in ["planted_increment", "planted_sum", "on_no_host", "planted"] {
        assert_eq!(module.load_function(name).err(), not_found, "{name}");
    }
}

#[test]
fn images_may_be_elf_files() {
    // This program is an ELF file in which the names of the kernels occur as text.
    let rig = Rig::new();
    let image = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let handle = unsafe { result::module::load_data(image.as_ptr().cast()) }.unwrap();
    assert!(unsafe { result::module::get_function(handle, c"planted_sum".into()) }.is_ok());
    assert!(unsafe { result::module::get_function(handle, c"surely_absent_name".into()) }.is_err());
    unsafe { result::module::unload(handle) }.unwrap();
    drop(rig);
}

#[test]
fn the_device_describes_itself() {
    let rig = Rig::new();
    assert_eq!(rig.context.name().unwrap(), "Emulated GPU");
    assert_eq!(rig.context.compute_capability().unwrap(), (8, 0));
    assert!(!rig.context.has_async_alloc());
    assert_eq!(rig.context.total_mem().unwrap(), 4 << 30);
    assert!(rig.context.uuid().is_ok());
    let mut version = 0;
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().unwrap();
    assert_eq!(version, 12090);
    let (least, greatest) = result::stream::get_priority_range().unwrap();
    assert!(greatest < least);
    assert!(rig.context.new_stream_with_priority(greatest).is_ok());
    assert_eq!(CudaContext::new(1).err(), Some(DriverError(sys::CUresult::CUDA_ERROR_INVALID_DEVICE)));
    let error = DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(error.error_name().unwrap(), c"CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(error.error_string().unwrap(), c"out of memory");
}

#[test]
fn events_and_queries_tell_the_truth() {
    let rig = Rig::new();
    let stream = rig.stream();
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let unrecorded = rig.context.new_event(timed).unwrap();
    assert!(unrecorded.is_complete());
    unrecorded.synchronize().unwrap();
    stream.wait(&unrecorded).unwrap();

    let at = device(1000);
    let start = stream.record_event(timed).unwrap();
    rig.launch(&stream, "planted_write_at", Launch { output: at, count: 1000, ..Default::default() });
    let end = stream.record_event(timed).unwrap();
    while !end.try_is_complete().unwrap() {}
    assert!(start.is_complete());
    assert!(start.elapsed_ms(&end).unwrap() >= 0.0);
    assert_eq!(download(&stream, at, 1)[0], 1.0);
    free(at);
}

#[test]
fn work_survives_its_stream_and_its_module() {
    let rig = Rig::new();
    let at = device(100);
    let (first, second) = (rig.stream(), rig.stream());
    rig.launch(&first, "planted_write_at", Launch { output: at, count: 100, ..Default::default() });
    let event = first.record_event(None).unwrap();
    drop(first);
    second.wait(&event).unwrap();
    drop(event);
    assert_eq!(download(&second, at, 100), vec![1.0; 100]);
    free(at);
}

#[test]
fn many_streams_may_come_and_go() {
    let rig = Rig::new();
    let at = device(1);
    for _ in 0..1000 {
        let stream = rig.stream();
        unsafe { result::memset_d8_async(at, 1, 4, stream.cu_stream()) }.unwrap();
        stream.synchronize().unwrap();
    }
    free(at);
}

#[test]
fn many_threads_may_call() {
    let rig = Rig::new();
    std::thread::scope(|scope| {
        for turn in 0..4 {
            let rig = &rig;
            scope.spawn(move || {
                rig.context.bind_to_thread().unwrap();
                let stream = rig.stream();
                let (input, output) = (device(500), device(500));
                for round in 0..100 {
                    let values = vec![(turn * 1000 + round) as f32; 500];
                    upload(&stream, input, &values);
                    rig.launch(&stream, "planted_increment", Launch { input, output, count: 500, offset: 0 });
                    assert_eq!(download(&stream, output, 500), vec![values[0] + 1.0; 500]);
                }
                free(input);
                free(output);
            });
        }
    });
}

#[test]
fn a_thread_needs_a_context() {
    let _rig = Rig::new();
    std::thread::spawn(|| {
        let refused = unsafe { result::malloc_sync(4) };
        assert_eq!(refused.err(), Some(DriverError(sys::CUresult::CUDA_ERROR_INVALID_CONTEXT)));
    })
    .join()
    .unwrap();
}

#[test]
fn pinned_memory_is_poison_until_the_host_waits() {
    let rig = Rig::new();
    let stream = rig.stream();
    let at = device_with(&[1.0; 64]);
    let mut pinned = Pinned::new(64);
    let mut early = 0;
    for _ in 0..500 {
        pinned.download(&stream, at);
        early += usize::from(pinned.values()[0].is_nan());
        stream.synchronize().unwrap();
        assert_eq!(pinned.values(), [1.0; 64]);
        // What the device is to read must be what was there, even with a write to come after it.
        pinned.values().fill(2.0);
        pinned.upload(&stream, at);
        pinned.download(&stream, at);
        stream.synchronize().unwrap();
        assert_eq!(pinned.values(), [2.0; 64]);
        pinned.values().fill(1.0);
        pinned.upload(&stream, at);
        stream.synchronize().unwrap();
    }
    assert!((1..500).contains(&early), "the host came too early {early} times of 500");
    drop(pinned);
    free(at);
}

#[test]
fn ordinary_memory_is_read_at_once() {
    let rig = Rig::new();
    let stream = rig.stream();
    let at = device(10);
    let mut values = vec![1.0_f32; 10];
    for _ in 0..50 {
        values.fill(1.0);
        upload(&stream, at, &values);
        values.fill(9.0);
        assert_eq!(download(&stream, at, 10), [1.0; 10]);
    }
    free(at);
}
