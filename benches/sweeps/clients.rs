//! 1 to 32 clients, each with a connection and a thread of its own and one request under way, beside as many of the bare
//! server's.

use std::time::Duration;

use hotrow::{Precision, RowFormat};
use serde_json::json;

use crate::common::bare::Bare;
use crate::common::load::{What, closed_loop};
use crate::common::process::Child;
use crate::common::remote::Remote;
use crate::common::workload::{Zipf, gradients, median};
use crate::point::Point;
use crate::service::{BATCH, DIM, ROWS, spec};

pub fn sweep(quick: bool) {
    let (counts, windows, time): (&[usize], _, _) = match quick {
        true => (&[1, 8], 5, Duration::from_millis(100)),
        false => (&[1, 2, 4, 8, 16, 32], 9, Duration::from_millis(400)),
    };
    let server = Child::hotrow(|_| ());
    let bare_server = Child::bare(ROWS, DIM, None);
    Remote::connect(&server.address, RowFormat::F32, "t").create(&spec(Precision::F32));
    let mut zipf = Zipf::new(ROWS, 1.05, 7);
    let batches: Vec<Vec<u64>> = (0..64).map(|_| zipf.unique_batch(BATCH)).collect();
    let numbers = gradients(BATCH * DIM, 3);
    for &count in counts {
        let mut ours: Vec<Remote> = (0..count).map(|_| Remote::connect(&server.address, RowFormat::F32, "t")).collect();
        let mut bare: Vec<Bare> = (0..count).map(|_| Bare::connect(&bare_server.address)).collect();
        for what in [What::Pull, What::Push] {
            let (mut rates, mut limits) = (Vec::new(), Vec::new());
            // The first window warms up.
            for window in 0..=windows {
                let limit = closed_loop(&mut bare, what, &batches, &numbers, time);
                let rate = closed_loop(&mut ours, what, &batches, &numbers, time);
                if window > 0 {
                    limits.push(limit);
                    rates.push(rate);
                }
            }
            Point {
                sweep: "clients",
                layer: "service",
                what: what.name(),
                x: json!(count),
                rows_per_s: median(rates),
                limit_rows_per_s: Some(median(limits)),
                settings: json!({
                    "rows": ROWS, "dim": DIM, "batch": BATCH, "zipf": 1.05, "clients": count, "precision": "f32", "wire": "f32",
                    "optimizer": "SGD", "limit": "bare TCP", "repetitions": windows,
                }),
            }
            .print();
        }
    }
}
