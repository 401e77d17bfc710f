//! Work that nothing orders is reported whatever the order in which it happens to run; ordered work never is.
#![allow(clippy::undocumented_unsafe_blocks, reason = "the faults are the point")]

mod support;

use cudarc::driver::CudaStream;
use cudarc::driver::result;
use support::*;

/// A program with a gap in which an order can be made, and tests of it with and without.
macro_rules! race {
    ($raced:ident, $ordered:ident, $plant_race:ident, $plant_ordered:ident, $words:expr, $body:expr) => {
        #[test]
        #[ignore = "planted: run by the test of its report"]
        fn $plant_race() {
            let body: fn(&Rig, Order) = $body;
            body(&Rig::new(), |_, _, _| {});
        }

        #[test]
        #[ignore = "the same in order: run by the test that nothing is reported"]
        fn $plant_ordered() {
            let body: fn(&Rig, Order) = $body;
            body(&Rig::new(), |_, before, after| after.join(before).unwrap());
        }

        #[test]
        fn $raced() {
            reports_always(stringify!($plant_race), &$words);
        }

        #[test]
        fn $ordered() {
            passes_always(stringify!($plant_ordered));
        }
    };
}

type Order = fn(&Rig, &CudaStream, &CudaStream);

race!(
    a_copy_and_a_kernel_race,
    a_copy_before_a_kernel_does_not,
    plant_copy_kernel,
    plant_copy_kernel_ordered,
    ["race: ", "kernel planted_double", "copy from host to device", "device allocation 0", "nothing orders the two"],
    |rig, order| {
        let (input, output) = (device(300), device(300));
        let (copies, kernels) = (rig.stream(), rig.stream());
        upload(&copies, input, &[3.0; 300]);
        order(rig, &copies, &kernels);
        rig.launch(&kernels, "planted_double", Launch { input, output, count: 300, offset: 0 });
        assert_eq!(download(&kernels, output, 300), [6.0; 300]);
        copies.synchronize().unwrap();
    }
);

race!(
    two_kernels_race,
    two_kernels_in_order_do_not,
    plant_kernels,
    plant_kernels_ordered,
    ["race: kernel planted_", "which kernel planted_"],
    |rig, order| {
        let (input, output) = (device_with(&[1.0; 10]), device_with(&[5.0; 10]));
        let (first, second) = (rig.stream(), rig.stream());
        rig.launch(&first, "planted_double", Launch { input, output, count: 10, offset: 0 });
        order(rig, &first, &second);
        rig.launch(&second, "planted_increment", Launch { input: output, output, count: 10, offset: 0 });
        rig.context.synchronize().unwrap();
        assert_eq!(download(&first, output, 10), [3.0; 10]);
    }
);

race!(
    a_kernel_that_reads_what_it_writes_races_with_a_download,
    a_download_after_such_a_kernel_does_not,
    plant_in_place,
    plant_in_place_ordered,
    ["race: ", "kernel planted_add_one", "copy from device to host"],
    |rig, order| {
        let output = device_with(&[1.0; 10]);
        let (kernels, downloads) = (rig.stream(), rig.stream());
        rig.launch(&kernels, "planted_add_one", Launch { input: 0, output, count: 10, offset: 0 });
        order(rig, &kernels, &downloads);
        assert_eq!(download(&downloads, output, 10), [2.0; 10]);
        kernels.synchronize().unwrap();
    }
);

race!(
    a_write_races_with_one_of_many_reads,
    a_write_after_all_reads_does_not,
    plant_reads,
    plant_reads_ordered,
    ["race: ", "planted_write_at", "planted_double"],
    |rig, order| {
        let input = device_with(&[1.0; 10]);
        let streams: Vec<_> = (0..20).map(|_| rig.stream()).collect();
        let writer = rig.stream();
        for (i, stream) in streams.iter().enumerate() {
            rig.launch(stream, "planted_double", Launch { input, output: device(10), count: 10, offset: 0 });
            if i == 13 {
                order(rig, stream, &writer);
            } else {
                writer.join(stream).unwrap();
            }
        }
        rig.launch(&writer, "planted_write_at", Launch { input: 0, output: input, count: 10, offset: 0 });
        rig.context.synchronize().unwrap();
    }
);

race!(
    two_copies_to_the_same_pinned_memory_race,
    two_copies_in_order_do_not,
    plant_pinned,
    plant_pinned_ordered,
    ["race: copy from", "pinned host allocation 0"],
    |rig, order| {
        let (from, to) = (device_with(&[1.0; 10]), device_with(&[2.0; 10]));
        let (first, second) = (rig.stream(), rig.stream());
        let pinned = Pinned::new(10);
        pinned.download(&first, from);
        order(rig, &first, &second);
        pinned.upload(&second, to);
        rig.context.synchronize().unwrap();
        assert_eq!(download(&second, to, 10), [1.0; 10]);
    }
);

race!(
    an_asynchronous_free_races,
    an_asynchronous_free_in_order_does_not,
    plant_free,
    plant_free_ordered,
    ["planted_write_at", "device allocation 0"],
    |rig, order| {
        let (first, second) = (rig.stream(), rig.stream());
        let output = unsafe { result::malloc_async(first.cu_stream(), 40) }.unwrap();
        second.join(&first).unwrap();
        rig.launch(&second, "planted_write_at", Launch { input: 0, output, count: 10, offset: 0 });
        order(rig, &second, &first);
        unsafe { result::free_async(output, first.cu_stream()) }.unwrap();
        rig.context.synchronize().unwrap();
    }
);

/// What orders two streams: the host, another stream in between, a query that says ready.
#[test]
#[ignore = "in order: run by the test that nothing is reported"]
fn orders() {
    let rig = Rig::new();
    let (first, second, third) = (rig.stream(), rig.stream(), rig.stream());
    let at = device(10);
    let write = |stream: &CudaStream| {
        rig.launch(stream, "planted_write_at", Launch { input: 0, output: at, count: 10, offset: 0 })
    };
    for _ in 0..20 {
        write(&first);
        first.synchronize().unwrap();
        write(&second);
        second.record_event(None).unwrap().synchronize().unwrap();
        write(&third);
        rig.context.synchronize().unwrap();
        write(&first);
        let event = first.record_event(None).unwrap();
        while !event.is_complete() {}
        write(&second);
        third.join(&second).unwrap();
        first.join(&third).unwrap();
        write(&first);
        download(&first, at, 10);
        write(&second);
        std::thread::scope(|scope| {
            scope.spawn(|| second.synchronize().unwrap());
        });
    }
    free(at);
}

#[test]
fn every_kind_of_order_counts() {
    passes_always("orders");
}

/// A wait is for the record at the time of the wait, not for a later one of the same event.
#[test]
#[ignore = "planted: run by the test of its report"]
fn plant_recorded_again() {
    let rig = Rig::new();
    let (first, second) = (rig.stream(), rig.stream());
    let (input, output) = (device_with(&[1.0]), device(1));
    let event = first.record_event(None).unwrap();
    second.wait(&event).unwrap();
    rig.launch(&first, "planted_double", Launch { input, output, count: 1, offset: 0 });
    event.record(&first).unwrap();
    rig.launch(&second, "planted_double", Launch { input, output, count: 1, offset: 0 });
    rig.context.synchronize().unwrap();
}

#[test]
fn a_wait_is_not_for_a_later_record() {
    reports_always("plant_recorded_again", &["race: kernel planted_double"]);
}

/// That a free waits is no order to build upon.
#[test]
#[ignore = "planted: run by the test of its report"]
fn plant_order_by_free() {
    let rig = Rig::new();
    let (first, second) = (rig.stream(), rig.stream());
    let (output, other) = (device(1), device(1));
    rig.launch(&first, "planted_write_at", Launch { input: 0, output, count: 1, offset: 0 });
    free(other);
    rig.launch(&second, "planted_write_at", Launch { input: 0, output, count: 1, offset: 0 });
    rig.context.synchronize().unwrap();
}

#[test]
fn a_free_is_no_order() {
    reports_always("plant_order_by_free", &["race: kernel planted_write_at"]);
}
