//! What a sweep prints.

use serde::Serialize;
use serde_json::Value;

use crate::common::workload::median;

/// One measured point.
#[derive(Serialize)]
pub struct Point {
    pub sweep: &'static str,
    pub layer: &'static str,
    pub what: &'static str,
    /// What changes: a number or a name.
    pub x: Value,
    pub rows_per_s: f64,
    /// The machine's limit on the same work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_rows_per_s: Option<f64>,
    pub settings: Value,
}

impl Point {
    pub fn print(&self) {
        let Point { sweep, layer, what, x, rows_per_s, .. } = self;
        let x = x.as_str().map_or_else(|| x.to_string(), String::from);
        let limit = self
            .limit_rows_per_s
            .map_or_else(String::new, |limit| format!(", limit {:.2} ({:.2} of it)", limit / 1e6, rows_per_s / limit));
        println!("# {sweep} {x}, {layer}, {what}: {:.2} Mrows/s{limit}", rows_per_s / 1e6);
        println!("point {}", serde_json::to_string(self).unwrap());
    }
}

/// Times of rounds, in which something was done beside its limit.
#[derive(Default)]
pub struct Times {
    pub limit: Vec<f64>,
    pub ours: Vec<f64>,
}

impl Times {
    /// Rows per second of ours and of the limit, if that was measured.
    pub fn rates(self, rows: usize) -> (f64, Option<f64>) {
        let rate = |times: Vec<f64>| rows as f64 / median(times);
        (rate(self.ours), (!self.limit.is_empty()).then(|| rate(self.limit)))
    }
}
