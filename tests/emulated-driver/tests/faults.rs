//! Planted faults: each must end the process with a report that says what it was.
#![allow(clippy::undocumented_unsafe_blocks, reason = "the faults are the point")]

mod support;

use cudarc::driver::{result, sys};
use support::*;

/// A fault, planted in an ignored test, and the test that looks for its report.
macro_rules! planted {
    ($(#[$doc:meta])* $test:ident, $plant:ident, $words:expr, $body:expr) => {
        #[test]
        #[ignore = "planted: run by the test of its report"]
        fn $plant() {
            let body: fn(&Rig) = $body;
            body(&Rig::new());
        }

        $(#[$doc])*
        #[test]
        fn $test() {
            reports(stringify!($plant), &[], &$words);
        }
    };
}

fn run(rig: &Rig, kernel: &str, launch: Launch) {
    let stream = rig.stream();
    rig.launch(&stream, kernel, launch);
    stream.synchronize().unwrap();
}

planted!(
    a_kernel_reads_one_past_the_end,
    plant_read_past_end,
    ["out of bounds: kernel planted_double", "reads", "0 bytes past the end of device allocation 0: 400 bytes"],
    |rig| run(rig, "planted_double", Launch { input: device(100), output: device(200), count: 101, offset: 0 })
);

planted!(
    a_kernel_writes_one_past_the_end,
    plant_write_past_end,
    ["out of bounds: kernel planted_write_at", "writes", "0 bytes past the end of device allocation 0: 400 bytes"],
    |rig| run(rig, "planted_write_at", Launch { input: 0, output: device(100), count: 1, offset: 100 })
);

planted!(
    a_kernel_reads_far_away,
    plant_read_far_away,
    ["out of bounds: kernel planted_read_at", "reads", "bytes past the end of"],
    |rig| run(rig, "planted_read_at", Launch { input: device(10), output: device(10), count: 1, offset: 1 << 30 })
);

planted!(
    a_kernel_writes_before_the_start,
    plant_write_before,
    ["out of bounds: kernel planted_write_at", "4 bytes before the start of device allocation 1"],
    |rig| {
        device(10);
        run(rig, "planted_write_at", Launch { input: 0, output: device(10) - 4, count: 1, offset: 0 })
    }
);

planted!(
    a_kernel_is_partly_out_of_bounds,
    plant_partly_out,
    ["out of bounds: kernel planted_copy_wide", "16 bytes", "at offset 96 of device allocation 0: 104 bytes"],
    |rig| run(rig, "planted_copy_wide", Launch { input: device(26), output: device(28), count: 7, offset: 0 })
);

planted!(
    a_kernel_goes_through_null,
    plant_null,
    ["mismatched pointer", "kernel planted_write_at", "writes", "0x0"],
    |rig| run(rig, "planted_write_at", Launch { count: 1, ..Default::default() })
);

planted!(
    a_kernel_is_given_host_memory,
    plant_kernel_host_pointer,
    ["mismatched pointer", "kernel planted_write_at", "writes"],
    |rig| {
        let mut host = vec![0.0_f32; 10];
        run(rig, "planted_write_at", Launch { input: 0, output: host.as_mut_ptr() as u64, count: 1, offset: 0 })
    }
);

planted!(
    a_kernel_is_given_pinned_memory,
    plant_kernel_pinned_pointer,
    ["mismatched pointer", "kernel planted_write_at", "pinned host allocation 0"],
    |rig| run(rig, "planted_write_at", Launch { input: 0, output: Pinned::new(10).at as u64, count: 1, offset: 0 })
);

planted!(
    a_kernel_uses_freed_memory,
    plant_kernel_after_free,
    ["use after free: kernel planted_write_at", "at offset 0 of device allocation 0: 40 bytes", "freed"],
    |rig| {
        let output = device(10);
        free(output);
        device(10);
        run(rig, "planted_write_at", Launch { input: 0, output, count: 1, offset: 0 })
    }
);

planted!(
    a_shared_array_is_overrun,
    plant_shared_overrun,
    ["out of bounds: kernel planted_shared_overrun", "index 128", "planted.c:"],
    |rig| {
        let input = device_with(&[1.0]);
        run(rig, "planted_shared_overrun", Launch { input, output: device(1), count: 0, offset: 1 })
    }
);

planted!(
    a_kernel_copies_past_the_end,
    plant_kernel_memcpy,
    ["out of bounds: kernel planted_memcpy", "writes 1 bytes", "0 bytes past the end of device allocation 1: 40 bytes"],
    |rig| run(rig, "planted_memcpy", Launch { input: device(11), output: device(10), count: 11, offset: 0 })
);

planted!(
    a_copy_uses_freed_memory,
    plant_copy_after_free,
    ["use after free: copy from host to device", "freed"],
    |rig| {
        let at = device(10);
        free(at);
        upload(&rig.stream(), at, &[1.0]);
    }
);

planted!(
    a_copy_is_longer_than_the_allocation,
    plant_copy_too_long,
    ["out of bounds: copy from device to host", "44 bytes of device memory", "device allocation 0: 40 bytes"],
    |rig| {
        let at = device(10);
        download(&rig.stream(), at, 11);
    }
);

planted!(a_memset_is_longer_than_the_allocation, plant_memset_too_long, ["out of bounds: memset", "41 bytes"], |rig| {
    let stream = rig.stream();
    unsafe { result::memset_d8_async(device(10), 0, 41, stream.cu_stream()) }.unwrap();
});

planted!(
    a_host_pointer_is_given_for_a_device_pointer,
    plant_host_for_device,
    ["mismatched pointer, not one of the device: copy from host to device"],
    |rig| {
        let mut host = vec![0.0_f32; 10];
        upload(&rig.stream(), host.as_mut_ptr() as u64, &[1.0]);
    }
);

planted!(
    a_device_pointer_is_given_for_a_host_pointer,
    plant_device_for_host,
    ["mismatched pointer, one of the device: copy from host to device", "at offset 4 of device allocation 0"],
    |rig| {
        let (from, to) = (device(10), device(10));
        let stream = rig.stream();
        _ = unsafe { sys::cuMemcpyHtoDAsync_v2(to, (from + 4) as *const _, 4, stream.cu_stream()) };
    }
);

planted!(
    a_copy_is_longer_than_the_pinned_memory,
    plant_pinned_too_long,
    ["out of bounds: copy from host to device", "8 bytes of host memory", "pinned host allocation 0: 4 bytes"],
    |rig| {
        let (pinned, to) = (Pinned::new(1), device(10));
        let stream = rig.stream();
        _ = unsafe { sys::cuMemcpyHtoDAsync_v2(to, pinned.at.cast(), 8, stream.cu_stream()) };
    }
);

planted!(
    memory_is_freed_twice,
    plant_double_free,
    ["double free: cuMemFree of", "device allocation 0: 40 bytes"],
    |_| {
        let at = device(10);
        free(at);
        free(at);
    }
);

planted!(
    memory_is_freed_by_a_pointer_into_it,
    plant_free_inside,
    ["bad pointer, not the start of an allocation: cuMemFree", "at offset 4"],
    |_| free(device(10) + 4)
);

#[test]
#[ignore = "planted: run by the test of its report"]
fn plant_free_in_use() {
    let rig = Rig::new();
    let (output, stream) = (device(10), rig.stream());
    rig.launch(&stream, "planted_write_at", Launch { input: 0, output, count: 10, offset: 0 });
    free(output);
}

#[test]
fn memory_is_freed_while_a_kernel_uses_it() {
    let words = ["memory freed that kernel planted_write_at", "may still use: cuMemFree of"];
    reports_always("plant_free_in_use", &words);
}

#[test]
#[ignore = "planted: run by the test of its report"]
fn plant_free_pinned_in_use() {
    let rig = Rig::new();
    let (at, stream) = (device_with(&[1.0; 10]), rig.stream());
    Pinned::new(10).download(&stream, at);
}

#[test]
fn pinned_memory_is_freed_while_a_copy_uses_it() {
    let words = ["pinned memory freed that copy from device to host", "may still use: cuMemFreeHost"];
    reports_always("plant_free_pinned_in_use", &words);
}

planted!(
    the_host_writes_past_the_end_of_pinned_memory,
    plant_pinned_overrun,
    ["the host wrote 4 bytes past the end of pinned memory"],
    |_| unsafe {
        let pinned = Pinned::new(10);
        *pinned.at.add(10) = 0.0;
    }
);

planted!(
    the_host_changes_what_a_copy_is_to_read,
    plant_host_write_early,
    ["host race: the host wrote to", "at offset 1", "of pinned host allocation 0", "was still to read it"],
    |rig| {
        let (at, stream, mut pinned) = (device(10), rig.stream(), Pinned::new(10));
        for turn in 0..1000 {
            pinned.upload(&stream, at);
            pinned.values()[3] = turn as f32;
        }
    }
);

planted!(
    the_host_writes_where_a_copy_is_to_write,
    plant_host_write_to_target,
    ["host race: the host wrote to", "at offset 1", "of pinned host allocation 0", "was still to write it"],
    |rig| {
        let (at, stream, mut pinned) = (device_with(&[0.0; 10]), rig.stream(), Pinned::new(10));
        for turn in 0..1000 {
            pinned.download(&stream, at);
            pinned.values()[3] = turn as f32;
            stream.synchronize().unwrap();
        }
    }
);

planted!(an_event_is_used_after_its_end, plant_dead_event, ["bad handle: cuEventRecord"], |rig| unsafe {
    let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
    result::event::destroy(event).unwrap();
    _ = result::event::record(event, rig.stream().cu_stream());
});

planted!(a_stream_is_used_after_its_end, plant_dead_stream, ["bad handle: cuStreamSynchronize"], |rig| unsafe {
    let stream = rig.stream().cu_stream();
    _ = result::stream::synchronize(stream);
});

planted!(a_function_outlives_its_module, plant_dead_function, ["bad handle: cuLaunchKernel"], |rig| unsafe {
    let module = result::module::load_data(c"planted_double".as_ptr().cast()).unwrap();
    let function = result::module::get_function(module, c"planted_double".into()).unwrap();
    result::module::unload(module).unwrap();
    let mut launch = Launch::default();
    let arguments = &mut [(&raw mut launch).cast()];
    _ = result::launch_kernel(function, (1, 1, 1), (128, 1, 1), 0, rig.stream().cu_stream(), arguments);
});

planted!(
    a_launch_has_the_wrong_block,
    plant_wrong_block,
    ["launch with the wrong shape: kernel planted_double", "[256, 1, 1]"],
    |rig| {
        let launch = Launch { input: device(1), output: device(1), count: 1, offset: 0 };
        _ = rig.launch_in(&rig.stream(), "planted_double", launch, (1, 1, 1), (256, 1, 1));
    }
);

planted!(a_context_is_used_after_its_end, plant_dead_context, ["bad handle: cuCtxSetCurrent"], |_| unsafe {
    _ = result::ctx::set_current(0xC1_0000_0000_usize as _)
});
