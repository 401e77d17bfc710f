//! What happens at a violation: one report on standard error, then the end of the process.

use std::fmt::Display;
use std::io::Write as _;

use crate::config;

/// Prints what went wrong and aborts. An error code could be ignored, or handled by code that is under test.
#[cold]
#[inline(never)]
pub fn report(what: impl Display) -> ! {
    let text = format!("emulated driver: {what}\n    seed: EMULATED_CUDA_SEED={}\n", config::seed());
    // In one write, so that what other threads print does not come in between. If even this fails, nothing can be said.
    let _ = std::io::stderr().write_all(text.as_bytes());
    std::process::abort()
}

/// Like `panic!`: formats, reports, aborts.
macro_rules! violation {
    ($($part:tt)*) => { $crate::report::report(format_args!($($part)*)) };
}
pub(crate) use violation;
