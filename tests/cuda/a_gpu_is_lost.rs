//! When the GPU fails, the process ends and says so; what it had acknowledged is there after a restart. When the GPU has
//! no room, a table is refused and nothing else happens.

use std::path::Path;
use std::time::Duration;

use hotrow::client::{Client, Options};
use hotrow::{CacheBudget, Engine, EngineConfig, Optimizer, Precision, Pull, Push, TableSpec};
use tonic::Code;

use crate::cluster::{Shard, free_address, hotrow};
use crate::emulated;
use crate::support::bits;
use crate::support::random::Random;

const KEYS: u64 = 400;
const DIM: usize = 12;

fn table() -> TableSpec {
    TableSpec::hashed("t", DIM)
        .precision(Precision::Int4)
        .optimizer(Optimizer::adam(), 0.05)
        .cache(CacheBudget::Rows(100))
}

/// Push number `step`: the same for everybody.
fn push(step: u64) -> (Vec<u64>, Vec<f32>) {
    let mut random = Random(step);
    let keys: Vec<u64> = (0..30).map(|_| random.below(KEYS)).collect();
    let gradients = random.numbers(keys.len() * DIM);
    (keys, gradients)
}

async fn start(folder: &Path, fails: &str) -> Shard {
    let mut command = hotrow(&[]);
    emulated::give(&mut command).env("EMULATED_CUDA_FAIL", fails);
    Shard::start_as(command, &free_address(), &["--data-dir", folder.to_str().unwrap()]).await
}

async fn connect(shard: &Shard) -> Client {
    let options = Options { timeout: Duration::from_secs(2), ..Options::default() };
    Client::connect_with(&[&shard.address], options).await.unwrap()
}

async fn rows(client: &Client) -> Vec<u32> {
    let keys: Vec<u64> = (0..KEYS).collect();
    bits(&client.pull(&[Pull { table: "t", keys: &keys }]).await.unwrap())
}

/// What the rows are after so many pushes, in an engine that nothing happens to.
fn expected(pushes: u64) -> Vec<u32> {
    let engine = Engine::new(EngineConfig::default()).unwrap();
    engine.create(&table()).unwrap();
    for step in 1..=pushes {
        let (keys, gradients) = push(step);
        let push = Push { table: "t", keys: &keys, gradients: &gradients, learning_rate: None, step: Some(step) };
        engine.push(&[push]).unwrap();
    }
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut out = vec![0.0; keys.len() * DIM];
    engine.pull(&[Pull { table: "t", keys: &keys }], &mut out).unwrap();
    bits(&out)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_ends_the_process_and_loses_nothing() {
    for (fails, code) in [
        ("lost=500", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
        ("lost=501", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
        ("lost=502", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
        ("kernel=190", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("copy=350", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("launch=191", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut shard = start(folder.path(), fails).await;
        let client = connect(&shard).await;
        client.create_table(&table()).await.unwrap();
        let mut acknowledged = 0;
        loop {
            let (keys, gradients) = push(acknowledged + 1);
            let step = Some(acknowledged + 1);
            let push = Push { table: "t", keys: &keys, gradients: &gradients, learning_rate: None, step };
            match client.push(&[push]).await {
                Ok(_) => acknowledged += 1,
                Err(_) => break,
            }
            assert!(acknowledged < 1000, "{fails} never came:\n{}", shard.log());
        }
        assert!(acknowledged > 5, "{fails} came too early to say anything");
        let status = shard.ended().await;
        assert_eq!(status.code(), Some(1), "{fails}: {}", shard.log());
        let log = shard.log();
        assert!(log.contains("GPU 0 (Emulated GPU) is lost") && log.contains(code), "{fails}: {log}");
        assert!(log.contains("start it again to recover"), "{fails}: {log}");
        assert!(!log.contains("panicked") && !log.contains("emulated driver:"), "{fails}: {log}");

        let shard = start(folder.path(), "").await;
        let after = rows(&connect(&shard).await).await;
        // The push that was under way was logged or was not; nobody was told either way.
        let kept = (acknowledged..=acknowledged + 1).any(|pushes| expected(pushes) == after);
        assert!(kept, "{fails}: not the rows of {acknowledged} pushes, or of one more");
    }
}

/// A pull that meets the failure answers nothing rather than something old.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_served_after_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let mut shard = start(folder.path(), "kernel=140").await;
    let client = connect(&shard).await;
    client.create_table(&table()).await.unwrap();
    let (keys, gradients) = push(1);
    let push = Push { table: "t", keys: &keys, gradients: &gradients, learning_rate: None, step: Some(1) };
    client.push(&[push]).await.unwrap();
    let right = expected(1);
    let all: Vec<u64> = (0..KEYS).collect();
    let mut answers = 0;
    while let Ok(rows) = client.pull(&[Pull { table: "t", keys: &all }]).await {
        assert_eq!(bits(&rows), right);
        answers += 1;
        assert!(answers < 1000, "the failure never came");
    }
    assert!(answers > 5);
    assert_eq!(shard.ended().await.code(), Some(1));
    assert!(shard.log().contains("is lost"), "{}", shard.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_the_gpu_has_no_room_for_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    // Sixteen for the trays and eight to look at the kernels, then that of the first table.
    let mut shard = start(folder.path(), "alloc=25").await;
    let client = connect(&shard).await;
    let refused = |error: hotrow::client::Error| match error {
        hotrow::client::Error::Refused { code, message, .. } => {
            assert_eq!(code, Code::ResourceExhausted, "{message}");
            assert!(message.contains("out of memory on GPU 0") && message.contains("--pool host"), "{message}");
        }
        other => panic!("{other}"),
    };
    refused(client.create_table(&table()).await.unwrap_err());
    let error = client.pull(&[Pull { table: "t", keys: &[1] }]).await.unwrap_err();
    assert!(error.to_string().contains("unknown table"), "{error}");
    // The next one finds room, and one that is beyond the budget does not.
    client.create_table(&table()).await.unwrap();
    rows(&client).await;
    let huge = TableSpec::hashed("huge", 64).cache(CacheBudget::Rows(1 << 30));
    refused(client.create_table(&huge).await.unwrap_err());
    shard.check();
}
