//! Hot rows on a GPU: an emulated one, that runs the kernels on the host and ends the process at every mistake that it
//! sees (`tests/emulated-driver`). The engine's own tests run on it too, with `HOTROW_TEST_POOL=cuda`.

#[path = "../reference/mod.rs"]
mod reference;
#[path = "../support/mod.rs"]
mod support;
use support::emulated;

#[path = "../service/cluster.rs"]
#[allow(dead_code)]
mod cluster;

mod a_gpu_is_lost;
mod pools_agree;
mod selftest;
mod which_pool;

/// How many times longer than usual a test works: `HOTROW_TEST_SCALE`.
fn scale() -> usize {
    std::env::var("HOTROW_TEST_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1)
}
