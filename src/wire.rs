//! Between the wire and the domain: packed bytes as numbers, and specs in both forms. Used by server and client alike.

use std::borrow::Cow;

use bytes::Bytes;

use crate::cache::{HitCurve, HitPoint};
use crate::engine::{Push, RowFormat, TableStats};
use crate::error::{Error, Result};
use crate::proto;
use crate::table::{CacheBudget, Footprint, Initializer, KeySpace, Optimizer, TableSpec};

/// Packed little-endian numbers. Borrowed where they happen to be aligned.
pub fn numbers<'a, T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
    table: &str,
    what: &'static str,
    bytes: &'a [u8],
) -> Result<Cow<'a, [T]>> {
    if !bytes.len().is_multiple_of(size_of::<T>()) {
        let reason =
            format!("{what} has {} bytes, which is not a multiple of {}: it is packed", bytes.len(), size_of::<T>());
        return Err(Error::InvalidRequest { table: table.into(), reason });
    }
    Ok(match bytemuck::try_cast_slice(bytes) {
        Ok(numbers) => Cow::Borrowed(numbers),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    })
}

/// Numbers as packed little-endian bytes.
pub fn packed<T: bytemuck::NoUninit>(numbers: &[T]) -> Bytes {
    Bytes::copy_from_slice(bytemuck::cast_slice(numbers))
}

/// The pushes of a message, with the numbers that its bytes stand for.
pub fn pushes<'a>(tables: &'a [proto::TablePush], numbers: &'a [PushNumbers<'_>]) -> Vec<Push<'a>> {
    let of_table = |(push, (keys, gradients)): (&'a proto::TablePush, &'a PushNumbers<'_>)| Push {
        table: &push.table,
        keys,
        gradients,
        learning_rate: push.learning_rate,
        step: push.step,
    };
    tables.iter().zip(numbers).map(of_table).collect()
}

/// The keys and gradients of one table.
pub type PushNumbers<'a> = (Cow<'a, [u64]>, Cow<'a, [f32]>);

/// A row format by its number on the wire.
pub fn row_format(format: i32) -> Result<RowFormat> {
    Ok(match proto::WireFormat::try_from(format) {
        Ok(proto::WireFormat::Unspecified | proto::WireFormat::F32) => RowFormat::F32,
        Ok(proto::WireFormat::F16) => RowFormat::F16,
        Ok(proto::WireFormat::Bf16) => RowFormat::Bf16,
        Ok(proto::WireFormat::Int8) => RowFormat::Int8,
        Err(_) => {
            return Err(invalid("", format!("unknown wire format {format}: this server is older than its client")));
        }
    })
}

/// A row format's number on the wire.
pub fn wire_format(format: RowFormat) -> proto::WireFormat {
    match format {
        RowFormat::F32 => proto::WireFormat::F32,
        RowFormat::F16 => proto::WireFormat::F16,
        RowFormat::Bf16 => proto::WireFormat::Bf16,
        RowFormat::Int8 => proto::WireFormat::Int8,
    }
}

fn invalid(table: &str, reason: impl Into<String>) -> Error {
    Error::InvalidSpec { table: table.into(), reason: reason.into() }
}

/// A spec as a client wrote it, with the defaults filled in.
pub fn spec_from(spec: &proto::TableSpec) -> Result<TableSpec> {
    let name = spec.name.as_str();
    let mut made = match spec.rows {
        0 => TableSpec::hashed(name, spec.dim as usize),
        rows => TableSpec::dense(name, rows, spec.dim as usize),
    };
    let word = |text: &str| (!text.is_empty()).then(|| text.to_string());
    if let Some(precision) = word(&spec.precision) {
        made = made.precision(precision.parse().map_err(|e: String| invalid(name, e))?);
    }
    if let Some(quantizer) = word(&spec.quantizer) {
        made.quantizer = quantizer.parse().map_err(|e: String| invalid(name, e))?;
    }
    if let Some(rounding) = word(&spec.rounding) {
        made.rounding = rounding.parse().map_err(|e: String| invalid(name, e))?;
    }
    if let Some(state) = word(&spec.state_precision) {
        made.state_precision = state.parse().map_err(|e: String| invalid(name, e))?;
    }
    if let Some(policy) = word(&spec.policy) {
        made.policy = policy.parse().map_err(|e: String| invalid(name, e))?;
    }
    if let Some(optimizer) = &spec.optimizer {
        made.optimizer = Optimizer::named(&optimizer.name, optimizer.eps, [optimizer.beta1, optimizer.beta2])
            .map_err(|e| invalid(name, e))?;
    }
    made.learning_rate = spec.learning_rate.unwrap_or(made.learning_rate);
    made.weight_decay = spec.weight_decay;
    made.clip_norm = spec.clip_norm;
    use proto::initializer::Kind;
    match spec.initializer.as_ref().and_then(|initializer| initializer.kind.as_ref()) {
        None => {}
        Some(Kind::Zeros(_)) => made.initializer = Initializer::Zeros,
        Some(Kind::Constant(value)) => made.initializer = Initializer::Constant(*value),
        Some(Kind::Uniform(u)) => made.initializer = Initializer::Uniform { low: u.low, high: u.high },
        Some(Kind::Normal(n)) => made.initializer = Initializer::Normal { mean: n.mean, std: n.std },
        Some(Kind::Dlrm(_)) => made.initializer = Initializer::Dlrm,
    }
    use proto::cache_budget::Budget;
    match spec.cache.as_ref().and_then(|cache| cache.budget.as_ref()) {
        None => {}
        Some(Budget::Rows(rows)) => made.cache = CacheBudget::Rows(*rows),
        Some(Budget::Bytes(bytes)) => made.cache = CacheBudget::Bytes(*bytes),
        Some(Budget::Percent(percent)) => made.cache = CacheBudget::Percent(*percent),
    }
    Ok(made)
}

/// A spec for the wire, everything written out.
pub fn spec_to(spec: &TableSpec) -> proto::TableSpec {
    use proto::initializer::{Dlrm, Kind, Normal, Uniform, Zeros};
    let initializer = match spec.initializer {
        Initializer::Zeros => Kind::Zeros(Zeros {}),
        Initializer::Constant(value) => Kind::Constant(value),
        Initializer::Uniform { low, high } => Kind::Uniform(Uniform { low, high }),
        Initializer::Normal { mean, std } => Kind::Normal(Normal { mean, std }),
        Initializer::Dlrm => Kind::Dlrm(Dlrm {}),
    };
    use proto::cache_budget::Budget;
    let cache = match spec.cache {
        CacheBudget::Rows(rows) => Budget::Rows(rows),
        CacheBudget::Bytes(bytes) => Budget::Bytes(bytes),
        CacheBudget::Percent(percent) => Budget::Percent(percent),
    };
    let optimizer = |name: &str, eps, beta1, beta2| proto::Optimizer { name: name.into(), eps, beta1, beta2 };
    let optimizer = match spec.optimizer {
        Optimizer::Sgd => optimizer("sgd", None, None, None),
        Optimizer::Adagrad { eps } => optimizer("adagrad", Some(eps), None, None),
        Optimizer::RowwiseAdagrad { eps } => optimizer("rowwise_adagrad", Some(eps), None, None),
        Optimizer::Adam { beta1, beta2, eps } => optimizer("adam", Some(eps), Some(beta1), Some(beta2)),
        Optimizer::AdamW { beta1, beta2, eps } => optimizer("adamw", Some(eps), Some(beta1), Some(beta2)),
    };
    proto::TableSpec {
        name: spec.name.clone(),
        dim: spec.dim as u32,
        rows: match spec.keys {
            KeySpace::Dense { rows } => rows,
            KeySpace::Hashed => 0,
        },
        precision: spec.precision.to_string(),
        quantizer: spec.quantizer.to_string(),
        rounding: spec.rounding.to_string(),
        optimizer: Some(optimizer),
        learning_rate: Some(spec.learning_rate),
        weight_decay: spec.weight_decay,
        clip_norm: spec.clip_norm,
        state_precision: spec.state_precision.to_string(),
        initializer: Some(proto::Initializer { kind: Some(initializer) }),
        cache: Some(proto::CacheBudget { budget: Some(cache) }),
        policy: spec.policy.to_string(),
    }
}

/// A footprint for the wire.
pub fn footprint_to(footprint: &Footprint) -> proto::Footprint {
    proto::Footprint {
        row_bytes: footprint.row_bytes,
        cache_slot_bytes: footprint.cache_slot_bytes,
        cache_bytes: footprint.cache_bytes,
        bytes_per_row: footprint.bytes_per_row,
        total_bytes: footprint.total_bytes,
    }
}

/// Statistics for the wire.
pub fn stats_to(stats: &TableStats) -> proto::TableStats {
    let changes = &stats.changes;
    proto::TableStats {
        table: stats.table.clone(),
        rows: stats.rows,
        stored_rows: stats.stored_rows,
        cached_rows: stats.cached_rows,
        cache_slots: stats.cache_slots,
        row_bytes: stats.row_bytes,
        cache_bytes: stats.cache_bytes,
        directory_bytes: stats.directory_bytes,
        pull_hits: stats.pull_hits,
        pull_misses: stats.pull_misses,
        push_hits: changes.push_hits,
        push_misses: changes.push_misses,
        touch_hits: changes.touch_hits,
        touch_misses: changes.touch_misses,
        updated_rows: changes.updated_rows,
        conflicts: changes.conflicts,
        clean_evictions: changes.clean_evictions,
        write_backs: changes.write_backs,
        rounding_rms: stats.rounding_rms(),
        policy: stats.policy.to_string(),
        curve: stats.curve.as_ref().map(curve_to),
    }
}

/// A curve for the wire.
pub fn curve_to(curve: &HitCurve) -> proto::HitCurve {
    let point = |HitPoint { size, rows, hit_rate }| proto::HitCurvePoint { size, rows, hit_rate };
    proto::HitCurve {
        references: curve.references(),
        sampled_keys: curve.sampled_keys(),
        sampling_rate: curve.sampling_rate(),
        points: curve.points().into_iter().map(point).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Policy;
    use crate::numeric::Precision;

    #[test]
    fn specs_survive_the_wire() {
        let plain = TableSpec::dense("a", 10, 4);
        let full = TableSpec::hashed("b/c", 7)
            .precision(Precision::Int2)
            .optimizer(Optimizer::adamw(), 0.5)
            .weight_decay(0.1)
            .clip_norm(3.0)
            .initializer(Initializer::Normal { mean: 0.0, std: 1.0 })
            .cache(CacheBudget::Bytes(1 << 20))
            .policy(Policy::Lfu);
        for spec in [plain, full] {
            assert_eq!(spec_from(&spec_to(&spec)), Ok(spec));
        }
        // What a hand-written client would send.
        let least = proto::TableSpec { name: "t".into(), dim: 8, rows: 100, ..Default::default() };
        assert_eq!(spec_from(&least), Ok(TableSpec::dense("t", 100, 8)));
    }
}
