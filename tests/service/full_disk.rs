//! The log's disk is full: changes are refused, pulls go on, nothing is acknowledged that does not fit, and room that is made
//! is used without a restart.

use std::process::Command;
use std::time::{Duration, Instant};

use hotrow::client::{Client, Error, Options};
use hotrow::{Initializer, Optimizer, Precision, Pull, Push, TableSpec};
use tonic::Code;

use crate::cluster::{HOTROW, Shard, free_address};

const DIM: usize = 64;
const KEYS: u64 = 200;

/// A server whose data folder is a disk of 1 MiB of its own, half full of something else.
async fn on_a_small_disk(folder: &std::path::Path) -> Shard {
    let mut command = Command::new("unshare");
    // A mount that only this process sees. Who is not root becomes it, for that.
    let root = std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    command.arg(if root { "-m" } else { "-Urm" }).args(["sh", "-c"]);
    command.arg(
        "mount -t tmpfs -o size=1m tmpfs \"$1\" && head -c 524288 /dev/zero > \"$1/filler\" && shift && exec \"$0\" \"$@\"",
    );
    command.arg(HOTROW).arg(folder);
    let data_dir = folder.join("data");
    Shard::start_as(command, &free_address(), &["--data-dir", data_dir.to_str().unwrap()]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_refused_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let mut shard = on_a_small_disk(folder.path()).await;
    let options = Options { timeout: Duration::from_secs(2), ..Options::default() };
    let client = Client::connect_with(&[&shard.address], options).await.unwrap();
    let spec = TableSpec::dense("t", KEYS, DIM).precision(Precision::F32).optimizer(Optimizer::Sgd, 1.0);
    client.create_table(&spec.initializer(Initializer::Zeros)).await.unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    let gradients = vec![-1.0; keys.len() * DIM];
    let pushes = [Push { table: "t", keys: &keys, gradients: &gradients, ..Push::default() }];

    let mut applied = 0.0;
    let (sequence, error) = loop {
        match client.push(&pushes).await {
            Ok(()) => applied += 1.0,
            Err(Error::Push { sequence, cause }) => break (sequence, cause),
            Err(other) => panic!("{other}"),
        }
        assert!(applied < 100.0, "the disk never got full");
    };
    assert!(error.to_string().contains("disk is full"), "what does not fit is not acknowledged: {error}");
    let begun = Instant::now();
    match client.push(&pushes).await {
        Err(Error::Push { cause, .. }) => match *cause {
            Error::Refused { code, message, .. } => {
                assert_eq!(code, Code::ResourceExhausted);
                assert!(message.contains("make room"), "{message}");
            }
            other => panic!("{other}"),
        },
        other => panic!("{other:?}"),
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "a refusal is not waited for");
    let rows = client.pull(&[Pull { table: "t", keys: &keys }]).await.expect("pulls go on");
    assert!(rows.iter().all(|&row| row == applied || row == applied + 1.0), "{}", rows[0]);
    assert!(shard.get("/metrics").unwrap().1.contains("\nhotrow_log_full 1\n"));
    assert_eq!(shard.get("/readyz").unwrap().0, 200);

    std::fs::remove_file(shard.seen_from_inside(&folder.path().join("filler"))).unwrap();
    let begun = Instant::now();
    // The one whose outcome was not known: applied once, whether it was before or not.
    while let Err(error) = client.push_again(sequence, &pushes).await {
        assert!(begun.elapsed().as_secs() < 20, "the room was not noticed: {error}");
    }
    client.push(&pushes).await.expect("there is room again");
    let rows = client.pull(&[Pull { table: "t", keys: &keys }]).await.unwrap();
    assert!(rows.iter().all(|&row| row == applied + 2.0), "{} after {applied}", rows[0]);
    shard.check();
}
