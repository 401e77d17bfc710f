//! Specs in words: how flags, configuration files and reports write optimizers, initializers and budgets.

use std::fmt;
use std::str::FromStr;

use super::{CacheBudget, Initializer, Optimizer};

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Optimizer::Sgd => write!(f, "sgd"),
            Optimizer::Adagrad { eps } => write!(f, "adagrad:eps={eps:e}"),
            Optimizer::RowwiseAdagrad { eps } => write!(f, "rowwise_adagrad:eps={eps:e}"),
            Optimizer::Adam { beta1, beta2, eps } => write!(f, "adam:beta1={beta1},beta2={beta2},eps={eps:e}"),
            Optimizer::AdamW { beta1, beta2, eps } => write!(f, "adamw:beta1={beta1},beta2={beta2},eps={eps:e}"),
        }
    }
}

impl Optimizer {
    /// The optimizer of a name, with the numbers that differ from its defaults.
    pub fn named(name: &str, eps: Option<f32>, betas: [Option<f32>; 2]) -> Result<Optimizer, String> {
        let mut optimizer = match name {
            "sgd" => Optimizer::Sgd,
            "adagrad" => Optimizer::adagrad(),
            "rowwise_adagrad" => Optimizer::rowwise_adagrad(),
            "adam" => Optimizer::adam(),
            "adamw" => Optimizer::adamw(),
            _ => {
                let names = "sgd, adagrad, rowwise_adagrad, adam, adamw";
                return Err(format!("unknown optimizer '{name}': use one of {names}"));
            }
        };
        match &mut optimizer {
            Optimizer::Adam { beta1, beta2, .. } | Optimizer::AdamW { beta1, beta2, .. } => {
                *beta1 = betas[0].unwrap_or(*beta1);
                *beta2 = betas[1].unwrap_or(*beta2);
            }
            _ if betas != [None, None] => return Err(format!("{name} has no betas: they belong to adam and adamw")),
            _ => {}
        }
        match &mut optimizer {
            Optimizer::Sgd if eps.is_some() => return Err("sgd has no eps".into()),
            Optimizer::Sgd => {}
            Optimizer::Adagrad { eps: e }
            | Optimizer::RowwiseAdagrad { eps: e }
            | Optimizer::Adam { eps: e, .. }
            | Optimizer::AdamW { eps: e, .. } => *e = eps.unwrap_or(*e),
        }
        Ok(optimizer)
    }
}

impl FromStr for Optimizer {
    type Err = String;

    /// `adam`, or `adam:beta1=0.9,eps=1e-8`.
    fn from_str(s: &str) -> Result<Optimizer, String> {
        let (name, options) = s.split_once(':').unwrap_or((s, ""));
        let (mut eps, mut betas) = (None, [None, None]);
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').ok_or_else(|| format!("'{option}' is not like eps=1e-8"))?;
            let value = Some(number(value)?);
            match key.trim() {
                "eps" => eps = value,
                "beta1" => betas[0] = value,
                "beta2" => betas[1] = value,
                other => return Err(format!("unknown option '{other}': use eps, beta1 or beta2")),
            }
        }
        Optimizer::named(name, eps, betas)
    }
}

impl fmt::Display for Initializer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Initializer::Zeros => write!(f, "zeros"),
            Initializer::Constant(value) => write!(f, "constant:{value}"),
            Initializer::Uniform { low, high } => write!(f, "uniform:{low},{high}"),
            Initializer::Normal { mean, std } => write!(f, "normal:{mean},{std}"),
            Initializer::Dlrm => write!(f, "dlrm"),
        }
    }
}

impl FromStr for Initializer {
    type Err = String;

    fn from_str(s: &str) -> Result<Initializer, String> {
        let usage =
            || format!("'{s}' is not an initializer: use zeros, constant:0.1, uniform:-0.1,0.1, normal:0,0.01 or dlrm");
        let (name, numbers) = s.split_once(':').unwrap_or((s, ""));
        let numbers: Vec<f32> =
            numbers.split(',').filter(|n| !n.is_empty()).map(number).collect::<Result<_, _>>().map_err(|_| usage())?;
        match (name, numbers.as_slice()) {
            ("zeros", []) => Ok(Initializer::Zeros),
            ("constant", &[value]) => Ok(Initializer::Constant(value)),
            ("uniform", &[low, high]) => Ok(Initializer::Uniform { low, high }),
            ("normal", &[mean, std]) => Ok(Initializer::Normal { mean, std }),
            ("dlrm", []) => Ok(Initializer::Dlrm),
            _ => Err(usage()),
        }
    }
}

impl fmt::Display for CacheBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CacheBudget::Rows(rows) => write!(f, "{rows}rows"),
            CacheBudget::Bytes(bytes) => write!(f, "{bytes}B"),
            CacheBudget::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for CacheBudget {
    type Err = String;

    /// `5%`, `100000rows` or `2GiB`.
    fn from_str(s: &str) -> Result<CacheBudget, String> {
        let usage =
            || format!("'{s}' is not a cache budget: use a share like 5%, rows like 100000rows, or bytes like 2GiB");
        let s = s.trim();
        if let Some(percent) = s.strip_suffix('%') {
            return percent.trim().parse().map(CacheBudget::Percent).map_err(|_| usage());
        }
        if let Some(rows) = s.strip_suffix("rows") {
            return rows.trim().replace('_', "").parse().map(CacheBudget::Rows).map_err(|_| usage());
        }
        if s.chars().all(|c| c.is_ascii_digit()) {
            return Err(usage());
        }
        parse_bytes(s).map(CacheBudget::Bytes).map_err(|_| usage())
    }
}

/// Bytes in words: `2GiB`, `500MB`, `4096`.
pub fn parse_bytes(s: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 11] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("TB", 1_000_000_000_000),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("kB", 1_000),
        ("KB", 1_000),
        ("B", 1),
        ("", 1),
    ];
    let s = s.trim();
    let (digits, unit) = s.split_at(s.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(s.len()));
    let unit = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, bytes)| *bytes);
    let value: Option<f64> = digits.trim().replace('_', "").parse().ok();
    match (value, unit) {
        (Some(value), Some(unit)) if value >= 0.0 && value * unit as f64 <= (1u64 << 60) as f64 => {
            Ok((value * unit as f64) as u64)
        }
        _ => Err(format!("'{s}' is not a number of bytes: use something like 512MiB, 64GiB or 1.5TB")),
    }
}

/// Bytes for people: three digits and a decimal unit.
pub fn show_bytes(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 1000.0 {
            return if unit == "B" { format!("{value:.0} B") } else { format!("{value:.2} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.2} TB")
}

fn number(s: &str) -> Result<f32, String> {
    s.trim().parse().map_err(|_| format!("'{s}' is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for optimizer in [Optimizer::Sgd, Optimizer::adagrad(), Optimizer::rowwise_adagrad(), Optimizer::adamw()] {
            assert_eq!(optimizer.to_string().parse(), Ok(optimizer));
        }
        for initializer in [
            Initializer::Zeros,
            Initializer::Constant(-0.25),
            Initializer::Uniform { low: -0.1, high: 1e-7 },
            Initializer::Normal { mean: 0.0, std: 0.01 },
            Initializer::Dlrm,
        ] {
            assert_eq!(initializer.to_string().parse(), Ok(initializer));
        }
        for budget in [CacheBudget::Rows(12), CacheBudget::Bytes(1 << 33), CacheBudget::Percent(0.5)] {
            assert_eq!(budget.to_string().parse(), Ok(budget));
        }
        assert_eq!("1.5 GiB".parse(), Ok(CacheBudget::Bytes(3 << 29)));
    }

    #[test]
    fn wrong_words_say_what_is_right() {
        assert!("adan".parse::<Optimizer>().unwrap_err().contains("rowwise_adagrad"));
        assert!("sgd:eps=1".parse::<Optimizer>().unwrap_err().contains("no eps"));
        assert!("sgd:beta1=1".parse::<Optimizer>().unwrap_err().contains("adamw"));
        assert!("5".parse::<CacheBudget>().unwrap_err().contains("5%"));
        assert!("uniform:1".parse::<Initializer>().unwrap_err().contains("uniform:-0.1,0.1"));
        assert!(parse_bytes("5 apples").unwrap_err().contains("64GiB"));
    }
}
