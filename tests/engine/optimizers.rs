//! The optimizers are those of PyTorch (and of FBGEMM, for row-wise Adagrad): recorded runs come out the same, and
//! rows in the cache are stepped exactly like rows of f32 tables.

use crate::support;
use crate::support::bits;
use crate::support::changes::engine_with;
use hotrow::{Assign, CacheBudget, Engine, Optimizer, Precision, Push, Quantizer, TableSpec, Touch};
use serde_json::Value;

fn number(value: &Value) -> Option<f32> {
    value.as_f64().map(|x| x as f32)
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| number(x).unwrap()).collect()
}

/// A recorded run; see tests/vectors/README.md.
struct Case(Value);

impl Case {
    fn all() -> Vec<Case> {
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/optimizers.json")).unwrap();
        let Value::Array(cases) = serde_json::from_str(&text).unwrap() else { panic!("a list is expected") };
        cases.into_iter().map(Case).collect()
    }

    fn name(&self) -> &str {
        self.0["name"].as_str().unwrap()
    }

    fn rows(&self) -> u64 {
        self.0["rows"].as_u64().unwrap()
    }

    fn spec(&self, format: (Precision, Quantizer)) -> TableSpec {
        let case = &self.0;
        let part = |name: &str| number(&case[name]).unwrap();
        let optimizer = match case["optimizer"].as_str().unwrap() {
            "sgd" => Optimizer::Sgd,
            "adagrad" => Optimizer::Adagrad { eps: part("eps") },
            "rowwise_adagrad" => Optimizer::RowwiseAdagrad { eps: part("eps") },
            "adam" => Optimizer::Adam { beta1: part("beta1"), beta2: part("beta2"), eps: part("eps") },
            "adamw" => Optimizer::AdamW { beta1: part("beta1"), beta2: part("beta2"), eps: part("eps") },
            other => panic!("unknown optimizer {other}"),
        };
        let spec = TableSpec::dense("t", self.rows(), case["dim"].as_u64().unwrap() as usize)
            .precision(format.0)
            .quantizer(format.1)
            .optimizer(optimizer, part("learning_rate"))
            .weight_decay(part("weight_decay"))
            .cache(CacheBudget::Rows(self.rows()));
        TableSpec { clip_norm: number(&case["clip_norm"]), ..spec }
    }

    /// Runs it. The rows are brought into the cache before they are set, so they stay at full precision.
    fn run(&self, format: (Precision, Quantizer)) -> Engine {
        let engine = engine_with(&[self.spec(format)], 1, 1);
        let keys: Vec<u64> = (0..self.rows()).collect();
        engine.touch(&[Touch { table: "t", keys: &keys }]).unwrap();
        let weights = numbers(&self.0["initial"]);
        engine.assign(&[Assign { table: "t", keys: &keys, weights: &weights, state: None }]).unwrap();
        for (i, step) in self.0["steps"].as_array().unwrap().iter().enumerate() {
            let keys: Vec<u64> = step["keys"].as_array().unwrap().iter().map(|key| key.as_u64().unwrap()).collect();
            let gradients = numbers(&step["gradients"]);
            let learning_rate = number(&step["learning_rate"]);
            let step = Some(i as u64 + 1);
            engine.push(&[Push { table: "t", keys: &keys, gradients: &gradients, learning_rate, step }]).unwrap();
        }
        engine
    }
}

#[test]
fn recorded_runs_come_out_the_same() {
    for case in Case::all() {
        let engine = case.run((Precision::F32, Quantizer::Symmetric));
        let rows: Vec<_> = (0..case.rows()).map(|key| engine.inspect("t", key).unwrap()).collect();
        let weights: Vec<f32> = rows.iter().flat_map(|row| row.weights.clone()).collect();
        for (i, (actual, expected)) in weights.iter().zip(numbers(&case.0["final"])).enumerate() {
            let tolerance = 2e-6 * expected.abs().max(1.0);
            assert!((actual - expected).abs() <= tolerance, "{}, weight {i}: {actual}, not {expected}", case.name());
        }
        let tensors: Vec<Vec<f32>> = case.0["state"].as_array().into_iter().flatten().map(numbers).collect();
        assert_eq!(tensors.len(), case.spec((Precision::F32, Quantizer::Symmetric)).optimizer.state(1).0);
        for (t, tensor) in tensors.iter().enumerate() {
            let len = tensor.len() / rows.len();
            let largest = tensor.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            for (i, &expected) in tensor.iter().enumerate() {
                let actual = rows[i / len].state[t * len + i % len];
                let tolerance = (5e-5 * expected.abs()).max(1e-6 * largest);
                let place = format!("{}, state {t}, element {i}", case.name());
                assert!((actual - expected).abs() <= tolerance, "{place}: {actual}, not {expected}");
            }
        }
    }
}

#[test]
fn cached_rows_are_stepped_like_f32_rows() {
    for case in Case::all() {
        let exact = case.run((Precision::F32, Quantizer::Symmetric));
        for format in support::formats().into_iter().filter(|format| format.0 != Precision::F32) {
            let engine = case.run(format);
            assert_eq!(engine.write_backs(0), Some(0), "{}: nothing leaves the cache", case.name());
            for key in 0..case.rows() {
                let (row, expected) = (engine.inspect("t", key).unwrap(), exact.inspect("t", key).unwrap());
                assert!(row.cached && row.dirty, "{} {format:?}", case.name());
                assert_eq!(bits(&row.weights), bits(&expected.weights), "{} {format:?}, key {key}", case.name());
                assert_eq!(bits(&row.state), bits(&expected.state), "{} {format:?}, key {key}", case.name());
            }
        }
    }
}
