//! Random programs on many streams, each piece of work ordered after what it depends on and no more: the values must be
//! those of the same program run one piece after the other, and nothing may be reported.
#![allow(clippy::undocumented_unsafe_blocks, reason = "the driver under test checks each call")]

mod support;

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream, result};
use support::*;

const FLOATS: usize = 200;

/// A buffer, what it should hold, and the events after which it may be used.
struct Buffer {
    at: u64,
    model: Vec<f32>,
    written: Option<Arc<CudaEvent>>,
    read: Vec<Arc<CudaEvent>>,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % bound) as usize
    }
}

fn before_read(stream: &CudaStream, buffer: &Buffer) {
    buffer.written.iter().for_each(|event| stream.wait(event).unwrap());
}

fn before_write(stream: &CudaStream, buffer: &Buffer) {
    before_read(stream, buffer);
    buffer.read.iter().for_each(|event| stream.wait(event).unwrap());
}

fn after(stream: &CudaStream) -> Arc<CudaEvent> {
    Arc::new(stream.record_event(None).unwrap())
}

#[test]
fn random_programs_give_the_right_values() {
    let rig = Rig::new();
    let streams: Vec<_> = (0..6).map(|_| rig.stream()).collect();
    for seed in 0..30 {
        let mut random = Random(seed);
        let mut buffers: Vec<Buffer> = (0..5)
            .map(|i| {
                let model = vec![i as f32; FLOATS];
                Buffer { at: device_with(&model), model, written: None, read: Vec::new() }
            })
            .collect();
        for _ in 0..200 {
            let stream = &streams[random.below(6)];
            let (from, to) = (random.below(5), random.below(5));
            match random.below(10) {
                0 => {
                    let values = vec![random.below(100) as f32; FLOATS];
                    before_write(stream, &buffers[to]);
                    upload(stream, buffers[to].at, &values);
                    buffers[to].model = values;
                }
                1 => {
                    before_read(stream, &buffers[to]);
                    assert_eq!(download(stream, buffers[to].at, FLOATS), buffers[to].model, "seed {seed}");
                    buffers[to].read.push(after(stream));
                    continue;
                }
                2 if from != to => {
                    before_read(stream, &buffers[from]);
                    before_write(stream, &buffers[to]);
                    let (source, target) = (buffers[from].at, buffers[to].at);
                    unsafe { result::memcpy_dtod_async(target, source, FLOATS * 4, stream.cu_stream()) }.unwrap();
                    buffers[to].model = buffers[from].model.clone();
                    buffers[from].read.push(after(stream));
                }
                kind => {
                    before_read(stream, &buffers[from]);
                    before_write(stream, &buffers[to]);
                    let kernel = if kind % 2 == 0 { "planted_double" } else { "planted_increment" };
                    let (input, output) = (buffers[from].at, buffers[to].at);
                    rig.launch(stream, kernel, Launch { input, output, count: FLOATS as u32, offset: 0 });
                    let change = |value: &f32| if kind % 2 == 0 { value * 2.0 } else { value + 1.0 };
                    buffers[to].model = buffers[from].model.iter().map(change).collect();
                    buffers[from].read.push(after(stream));
                }
            }
            buffers[to].read.clear();
            buffers[to].written = Some(after(stream));
        }
        for buffer in buffers {
            before_write(&streams[0], &buffer);
            assert_eq!(download(&streams[0], buffer.at, FLOATS), buffer.model, "seed {seed}");
            free(buffer.at);
        }
    }
}
