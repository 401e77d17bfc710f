//! A whole table in words: what configuration files and checkpoints say.

use serde::{Deserialize, Serialize};

use super::{CacheBudget, TableSpec};

/// A table in words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableConfig {
    /// Its name.
    pub name: String,
    /// Numbers in a row.
    pub dim: usize,
    /// Rows of a dense table; absent for a hashed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// f32, f16, bf16, int8, int4 or int2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// symmetric or affine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantizer: Option<String>,
    /// stochastic or nearest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<String>,
    /// Such as `rowwise_adagrad` or `adam:beta1=0.9`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<String>,
    /// The learning rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f32>,
    /// The weight decay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f32>,
    /// The largest norm of a row's gradient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f32>,
    /// f32 or bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_precision: Option<String>,
    /// Such as `uniform:-0.1,0.1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initializer: Option<String>,
    /// Such as `5%`, `100000rows` or `2GiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// lru or lfu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

impl TableConfig {
    /// The spec that it describes.
    pub fn spec(&self) -> Result<TableSpec, String> {
        let parsed = || -> Result<TableSpec, String> {
            let mut spec = match self.rows {
                Some(rows) => TableSpec::dense(&self.name, rows, self.dim),
                None => TableSpec::hashed(&self.name, self.dim),
            };
            if let Some(precision) = &self.precision {
                spec = spec.precision(precision.parse()?);
            }
            if let Some(word) = &self.quantizer {
                spec.quantizer = word.parse()?;
            }
            if let Some(word) = &self.rounding {
                spec.rounding = word.parse()?;
            }
            if let Some(word) = &self.optimizer {
                spec.optimizer = word.parse()?;
            }
            if let Some(word) = &self.state_precision {
                spec.state_precision = word.parse()?;
            }
            if let Some(word) = &self.initializer {
                spec.initializer = word.parse()?;
            }
            if let Some(word) = &self.cache {
                spec.cache = word.parse::<CacheBudget>()?;
            }
            if let Some(word) = &self.policy {
                spec.policy = word.parse()?;
            }
            spec.learning_rate = self.learning_rate.unwrap_or(spec.learning_rate);
            spec.weight_decay = self.weight_decay.unwrap_or(spec.weight_decay);
            spec.clip_norm = self.clip_norm;
            Ok(spec)
        };
        let spec = parsed().map_err(|reason| format!("table '{}': {reason}", self.name))?;
        spec.footprint().map_err(|e| e.to_string())?;
        Ok(spec)
    }

    /// A spec in words, everything written out.
    pub fn of(spec: &TableSpec) -> TableConfig {
        TableConfig {
            name: spec.name.clone(),
            dim: spec.dim,
            rows: spec.rows(),
            precision: Some(spec.precision.to_string()),
            quantizer: Some(spec.quantizer.to_string()),
            rounding: Some(spec.rounding.to_string()),
            optimizer: Some(spec.optimizer.to_string()),
            learning_rate: Some(spec.learning_rate),
            weight_decay: Some(spec.weight_decay),
            clip_norm: spec.clip_norm,
            state_precision: Some(spec.state_precision.to_string()),
            initializer: Some(spec.initializer.to_string()),
            cache: Some(spec.cache.to_string()),
            policy: Some(spec.policy.to_string()),
        }
    }
}
