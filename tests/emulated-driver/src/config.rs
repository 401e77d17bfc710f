//! What the environment asks for, read once.

use std::env;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::report::violation;

/// The settings, all from variables that begin with `EMULATED_CUDA_`.
pub struct Config {
    /// `DEVICES`: how many there are.
    pub devices: u32,
    /// `CAPABILITY`: the compute capability of each.
    pub capability: (i32, i32),
    /// `VERSION`: what cuDriverGetVersion says.
    pub version: i32,
    /// `MEMORY`: bytes of each device.
    pub memory: usize,
    /// `BREAK`: the kernel whose results are to be wrong by one bit.
    pub broken_kernel: Option<String>,
    /// `FAIL`: what is to fail, and when.
    pub fail: Failures,
}

/// The failures asked for. Calls are counted from 1.
#[derive(Default)]
pub struct Failures {
    /// cuMemAlloc finds no memory.
    pub alloc: Trigger,
    /// cuMemHostAlloc finds no memory.
    pub host_alloc: Trigger,
    /// cuLaunchKernel is refused.
    pub launch: Trigger,
    /// A kernel fails while it runs.
    pub kernel: Trigger,
    /// A copy fails while it runs.
    pub copy: Trigger,
    /// The device goes away at a launch or copy.
    pub lost: Trigger,
    /// What cuInit returns.
    pub init: u32,
}

/// Counts calls of one kind and says which of them fails.
#[derive(Default)]
pub struct Trigger {
    /// Zero: none.
    at: u64,
    onwards: bool,
    seen: u64,
}

impl Trigger {
    /// Counts one more; whether it is the one to fail.
    pub fn fires(&mut self) -> bool {
        self.seen += 1;
        self.at != 0 && (self.seen == self.at || (self.onwards && self.seen > self.at))
    }
}

/// The seed of everything random. Apart from the rest, because each report names it.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let given = env::var("EMULATED_CUDA_SEED").ok().and_then(|text| text.trim().parse().ok());
        given.unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            now.as_nanos() as u64 % 1_000_000_007
        })
    })
}

impl Config {
    pub fn from_environment() -> Self {
        if let Ok(text) = env::var("EMULATED_CUDA_SEED")
            && text.trim().parse::<u64>().is_err()
        {
            violation!("EMULATED_CUDA_SEED: not a number: {text:?}");
        }
        Self {
            devices: number("EMULATED_CUDA_DEVICES", 1),
            capability: capability(),
            version: number("EMULATED_CUDA_VERSION", 12090),
            memory: number("EMULATED_CUDA_MEMORY", 4 << 30),
            broken_kernel: env::var("EMULATED_CUDA_BREAK").ok().filter(|name| !name.is_empty()),
            fail: env::var("EMULATED_CUDA_FAIL").map(|text| failures(&text)).unwrap_or_default(),
        }
    }
}

fn number<T: FromStr>(name: &str, default: T) -> T {
    match env::var(name) {
        Err(_) => default,
        Ok(text) => text.trim().parse().unwrap_or_else(|_| violation!("{name}: not a number that fits: {text:?}")),
    }
}

fn capability() -> (i32, i32) {
    let text = env::var("EMULATED_CUDA_CAPABILITY").unwrap_or_else(|_| "8.0".into());
    let parts = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parts.unwrap_or_else(|| violation!("EMULATED_CUDA_CAPABILITY: not like 8.0: {text:?}"))
}

fn failures(text: &str) -> Failures {
    let mut failures = Failures::default();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let wrong = || -> ! { violation!("EMULATED_CUDA_FAIL: not a failure that can be had: {item:?}") };
        let Some((what, when)) = item.split_once('=') else { wrong() };
        let (digits, onwards) = when.strip_suffix('+').map_or((when, false), |digits| (digits, true));
        let Ok(at) = digits.parse::<u64>() else { wrong() };
        if what == "init" {
            failures.init = u32::try_from(at).unwrap_or_else(|_| wrong());
            continue;
        }
        let trigger = match what {
            "alloc" => &mut failures.alloc,
            "host_alloc" => &mut failures.host_alloc,
            "launch" => &mut failures.launch,
            "kernel" => &mut failures.kernel,
            "copy" => &mut failures.copy,
            "lost" => &mut failures.lost,
            _ => wrong(),
        };
        *trigger = Trigger { at, onwards, seen: 0 };
    }
    failures
}
