//! Encode and decode, per precision and dim.

mod common;

use std::hint::black_box;

use common::workload::gradients;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hotrow::numeric::format::{decode_rows, encode_rows};
use hotrow::numeric::{Noise, Rounding, WeightFormat};

const ROWS: usize = 1024;

fn codec(c: &mut Criterion) {
    let formats = [
        ("f16", WeightFormat::F16),
        ("bf16", WeightFormat::Bf16),
        ("int8_symmetric", WeightFormat::Int8Symmetric),
        ("int8_affine", WeightFormat::Int8Affine),
        ("int4_symmetric", WeightFormat::Int4Symmetric),
        ("int4_affine", WeightFormat::Int4Affine),
        ("int2_affine", WeightFormat::Int2Affine),
    ];
    let noise = Noise { seed: 1, partition: 2, write_back: 3 };
    for dim in [16, 64, 128] {
        let x = gradients(ROWS * dim, 5);
        let mut out = vec![0.0; x.len()];
        for (name, format) in formats {
            let mut rows = vec![0; ROWS * format.bytes(dim)];
            let mut group = c.benchmark_group(format!("codec/{name}/dim{dim}"));
            group.throughput(Throughput::Elements(ROWS as u64));
            for rounding in [Rounding::Stochastic, Rounding::Nearest] {
                group.bench_function(format!("encode_{rounding}"), |b| {
                    b.iter(|| encode_rows(format, dim, black_box(&x), rounding, noise, black_box(&mut rows)));
                });
            }
            group.bench_function("decode", |b| {
                b.iter(|| decode_rows(format, dim, black_box(&rows), black_box(&mut out)));
            });
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_millis(400))
        .warm_up_time(std::time::Duration::from_millis(100));
    targets = codec
}
criterion_main!(benches);
