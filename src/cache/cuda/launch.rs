//! What kernels are told: which of them there are, and the one argument that each takes.

use bytemuck::{Pod, Zeroable};

use crate::cache::{RowLayout, StatePrecision};
use crate::numeric::{Rounding, Rule, Step, WeightFormat};

/// The source of the kernels, which NVRTC compiles.
pub const SOURCE: &str = include_str!("kernels.cu");

/// Threads of a block, and rows that it works on where each takes 32 of them. As in the source.
pub const THREADS: u32 = 128;
const ROWS: u32 = THREADS / 32;

/// The argument of every kernel: `struct Launch` of the source, field by field. Addresses are of device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Launch {
    /// Where the addresses of the slots are.
    pub slots: u64,
    /// Write-back: where the numbers are.
    pub numbers: u64,
    /// Write-back: where the partitions are.
    pub partitions: u64,
    /// Pooled gather: where each bag ends.
    pub ends: u64,
    /// Load: rows; update: gradients; pooled gather: factors.
    pub values: u64,
    /// Pooled gather: what the first bag has so far.
    pub before: u64,
    /// Fill: stored rows.
    pub stored: u64,
    /// What comes back.
    pub out: u64,
    /// Write-back: the rounding error of sampled rows.
    pub errors: u64,
    /// Rows, or bags.
    pub count: u32,
    /// Weights in a row.
    pub dim: u32,
    pub(super) tensors: u32,
    pub(super) len: u32,
    pub(super) bf16_state: u32,
    pub(super) stochastic: u32,
    pub(super) seed: u32,
    pub(super) clips: u32,
    pub(super) clip_norm: f32,
    pub(super) weight_decay: f32,
    pub(super) lr: f32,
    pub(super) eps: f32,
    pub(super) rate1: f32,
    pub(super) rate2: f32,
    pub(super) decay: f32,
    pub(super) unused: u32,
}

impl Launch {
    /// Rows of a layout.
    pub fn rows(layout: &RowLayout, seed: u32) -> Launch {
        Launch {
            dim: layout.dim as u32,
            tensors: layout.state.tensors as u32,
            len: layout.state.len as u32,
            bf16_state: u32::from(layout.state.precision == StatePrecision::Bf16),
            stochastic: u32::from(layout.rounding == Rounding::Stochastic),
            seed,
            ..Launch::default()
        }
    }

    /// The same, to be stepped by a rule.
    pub fn stepped(self, rule: &Rule) -> Launch {
        let launch = Launch {
            clips: u32::from(rule.clip_norm.is_some()),
            clip_norm: rule.clip_norm.unwrap_or(0.0),
            weight_decay: rule.weight_decay,
            ..self
        };
        match rule.step {
            Step::Sgd { lr } => Launch { lr, ..launch },
            Step::Adagrad { lr, eps } | Step::RowwiseAdagrad { lr, eps } => Launch { lr, eps, ..launch },
            Step::Adam { scale, eps, rate1, rate2, decay } => Launch { lr: scale, eps, rate1, rate2, decay, ..launch },
        }
    }
}

/// A kind of work, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Rows are read.
    Gather,
    /// Bags are read.
    GatherPooled,
    /// Stored rows come in.
    Fill,
    /// Full-precision rows come in.
    Load,
    /// Rows are stepped.
    Update,
    /// Rows leave.
    WriteBack,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 6] = [
        Operation::Gather,
        Operation::GatherPooled,
        Operation::Fill,
        Operation::Load,
        Operation::Update,
        Operation::WriteBack,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Gather => "gather",
            Operation::GatherPooled => "gather_pooled",
            Operation::Fill => "fill",
            Operation::Load => "load",
            Operation::Update => "update",
            Operation::WriteBack => "write_back",
        }
    }
}

/// A kernel of the source, by its place in [`Kernel::NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(usize);

impl Kernel {
    /// All of them. Formats are in the order of [`WeightFormat`].
    pub const NAMES: [&str; 26] = [
        "gather_f32",
        "gather_f16",
        "gather_bf16",
        "gather_int8",
        "gather_pooled",
        "load",
        "update_sgd",
        "update_adagrad",
        "update_rowwise_adagrad",
        "update_adam",
        "fill_f32",
        "fill_f16",
        "fill_bf16",
        "fill_int8_symmetric",
        "fill_int4_symmetric",
        "fill_int8_affine",
        "fill_int4_affine",
        "fill_int2_affine",
        "write_back_f32",
        "write_back_f16",
        "write_back_bf16",
        "write_back_int8_symmetric",
        "write_back_int4_symmetric",
        "write_back_int8_affine",
        "write_back_int4_affine",
        "write_back_int2_affine",
    ];
    /// Bags of slots.
    pub const GATHER_POOLED: Kernel = Kernel(4);
    /// Full-precision rows come in.
    pub const LOAD: Kernel = Kernel(5);

    /// Reads rows in a format that answers can have.
    pub fn gather(format: WeightFormat) -> Kernel {
        match format {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 | WeightFormat::Int8Symmetric => {
                Kernel(format as usize)
            }
            other => unreachable!("no answer is sent as {other:?}"),
        }
    }

    /// Steps rows.
    pub fn update(step: &Step) -> Kernel {
        Kernel(match step {
            Step::Sgd { .. } => 6,
            Step::Adagrad { .. } => 7,
            Step::RowwiseAdagrad { .. } => 8,
            Step::Adam { .. } => 9,
        })
    }

    /// Decodes stored rows into slots.
    pub fn fill(format: WeightFormat) -> Kernel {
        Kernel(10 + format as usize)
    }

    /// Rounds slots into stored rows.
    pub fn write_back(format: WeightFormat) -> Kernel {
        Kernel(18 + format as usize)
    }

    /// Its place in [`Kernel::NAMES`].
    pub fn index(self) -> usize {
        self.0
    }

    /// What it does.
    pub fn operation(self) -> Operation {
        match self.0 {
            0..=3 => Operation::Gather,
            4 => Operation::GatherPooled,
            5 => Operation::Load,
            6..=9 => Operation::Update,
            10..=17 => Operation::Fill,
            _ => Operation::WriteBack,
        }
    }

    /// Blocks that a launch takes.
    pub fn blocks(self, launch: &Launch) -> u32 {
        let quads = |numbers: u32| numbers.div_ceil(4);
        let state = launch.tensors * launch.len;
        let in_quads = |quads: u32| (launch.count * quads).div_ceil(THREADS);
        match (self.operation(), self.0) {
            (Operation::Gather, 0..=2) | (Operation::GatherPooled, _) => in_quads(quads(launch.dim)),
            (Operation::Fill, _) => in_quads(quads(launch.dim) + quads(state)),
            (Operation::Load, _) => in_quads(quads(launch.dim + state)),
            _ => launch.count.div_ceil(ROWS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_the_source_is_named_and_no_other() {
        let mut in_source: Vec<&str> = SOURCE
            .lines()
            .filter_map(|line| line.strip_prefix("KERNEL("))
            .map(|rest| rest.split(')').next().unwrap())
            .collect();
        let mut named = Kernel::NAMES.to_vec();
        in_source.sort_unstable();
        named.sort_unstable();
        assert_eq!(in_source, named);
    }

    #[test]
    fn kernels_are_where_their_names_say() {
        let name = |kernel: Kernel| Kernel::NAMES[kernel.index()];
        assert_eq!(name(Kernel::gather(WeightFormat::Int8Symmetric)), "gather_int8");
        assert_eq!(name(Kernel::GATHER_POOLED), "gather_pooled");
        assert_eq!(name(Kernel::LOAD), "load");
        assert_eq!(name(Kernel::update(&Step::Sgd { lr: 0.0 })), "update_sgd");
        assert_eq!(name(Kernel::fill(WeightFormat::F32)), "fill_f32");
        assert_eq!(name(Kernel::fill(WeightFormat::Int2Affine)), "fill_int2_affine");
        assert_eq!(name(Kernel::write_back(WeightFormat::F32)), "write_back_f32");
        assert_eq!(name(Kernel::write_back(WeightFormat::Int8Affine)), "write_back_int8_affine");
        for (index, name) in Kernel::NAMES.iter().enumerate() {
            assert!(name.starts_with(Kernel(index).operation().name()), "{name}");
        }
    }

    #[test]
    fn the_argument_has_the_fields_of_the_source() {
        let fields = SOURCE.split("struct Launch {").nth(1).unwrap().split("};").next().unwrap();
        let bytes: usize =
            fields.lines().filter(|line| line.contains(';')).map(|line| if line.contains('*') { 8 } else { 4 }).sum();
        assert_eq!(bytes, size_of::<Launch>());
    }
}
