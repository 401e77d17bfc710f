//! The service as its users meet it: real server processes, real connections. One promise per file.

#[path = "../support/random.rs"]
#[allow(dead_code)]
mod random;

#[path = "../support/emulated.rs"]
mod emulated;

mod cluster;
mod proxy;
mod raw;

mod bad_input_is_refused;
mod certificates;
mod changing_sizes;
mod checkpoints;
mod console;
mod dead_shard;
mod drain;
mod exactly_once;
mod full_disk;
mod health;
mod hit_curves;
mod killed_shards;
mod overload;
mod random_bytes;
mod remembered_pushes;
mod rolling_restart;
mod settings;
mod shards_agree;
mod tables_made_again;
mod unix_socket;

/// How many times longer than usual a test works: `HOTROW_TEST_SCALE`.
fn scale() -> u32 {
    std::env::var("HOTROW_TEST_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1)
}

/// A new seed for every run, or that of `HOTROW_TEST_SEED`. It is printed, so a failure shows it.
fn seed() -> u64 {
    let given = std::env::var("HOTROW_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || std::time::UNIX_EPOCH.elapsed().expect("the clock is set").as_nanos() as u64;
    let seed = given.unwrap_or_else(now);
    println!("HOTROW_TEST_SEED={seed} draws the same again");
    seed
}

/// Waits until something holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds().await {
        assert!(begun.elapsed().as_secs() < 30, "waited in vain until {what}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
