//! Does the cost per row stay flat as tables grow? 10^5 to 10^8 rows of dim 16, int4 with a 1 % cache, row-wise Adagrad, the
//! engine with one thread, batches of 8192 unique keys of a Zipf 1.05 draw.
//!
//! All tables are there at once, and every round goes through all of them. The limits of all sizes share the largest
//! arrays.

use hotrow::numeric::WeightFormat;
use hotrow::{CacheBudget, Optimizer, Precision, TableSpec};
use serde_json::json;

use crate::common::workload::{Zipf, ratio};
use crate::engine::{Buffers, LEARNING_RATE, Limits, Trained};
use crate::point::{Point, Times};

const DIM: usize = 16;
const BATCH: usize = 8192;

/// A size of table, and what was measured of it.
struct Size {
    rows: usize,
    zipf: Zipf,
    table: Trained,
    pull: Times,
    push: Times,
}

pub fn sweep(quick: bool) {
    let (sizes, rounds): (&[usize], _) =
        if quick { (&[100_000, 1_000_000], 5) } else { (&[100_000, 1_000_000, 10_000_000, 100_000_000], 61) };
    let mut sizes: Vec<Size> = sizes.iter().map(|&rows| Size::new(rows)).collect();
    let largest = sizes.iter().map(|size| size.rows).max().unwrap_or_default();
    let mut limits = Limits::new(largest, DIM, WeightFormat::Int4Affine);
    let mut buffers = Buffers::new(BATCH, DIM);
    for _ in 0..rounds {
        for Size { zipf, table, pull, push, .. } in &mut sizes {
            table.pull_round(&limits, &[zipf.unique_batch(BATCH)], &mut buffers, pull);
            table.push_round(&mut limits, &[zipf.unique_batch(BATCH)], &mut buffers, push);
        }
    }
    let timed = |rows: usize| sizes.iter().find(|size| size.rows == rows);
    if let (Some(many), Some(few)) = (timed(100_000_000), timed(1_000_000)) {
        println!("ratio engine.pull.cost_1e8_over_1e6 {:.3}", ratio(&many.pull.ours, &few.pull.ours));
        println!("ratio engine.push.cost_1e8_over_1e6 {:.3}", ratio(&many.push.ours, &few.push.ours));
        println!(
            "# the limits' own: pull {:.3}, push {:.3}",
            ratio(&many.pull.limit, &few.pull.limit),
            ratio(&many.push.limit, &few.push.limit)
        );
    }
    for Size { rows, table, pull, push, .. } in sizes {
        let stats = table.engine.stats("t").unwrap();
        let settings = json!({
            "rows": rows, "dim": DIM, "batch": BATCH, "zipf": 1.05, "threads": 1, "optimizer": "row-wise Adagrad",
            "precision": "int4", "cache_percent": 1, "policy": stats.policy.to_string(),
            "pull_hit_rate": stats.pull_hit_rate(), "repetitions": rounds,
        });
        for (what, times) in [("pull", pull), ("push", push)] {
            let (rows_per_s, limit_rows_per_s) = times.rates(BATCH);
            let (x, settings) = (json!(rows), settings.clone());
            Point { sweep: "rows", layer: "engine", what, x, rows_per_s, limit_rows_per_s, settings }.print();
        }
    }
}

impl Size {
    fn new(rows: usize) -> Size {
        eprintln!("rows: training a table of {rows}");
        let spec = TableSpec::dense("t", rows as u64, DIM)
            .precision(Precision::Int4)
            .cache(CacheBudget::Percent(1.0))
            .optimizer(Optimizer::rowwise_adagrad(), LEARNING_RATE);
        let mut zipf = Zipf::new(rows, 1.05, 7);
        let table = Trained::new(&spec, &mut zipf, BATCH);
        Size { rows, zipf, table, pull: Times::default(), push: Times::default() }
    }
}
