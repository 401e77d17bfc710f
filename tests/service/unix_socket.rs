//! A trainer on the same host may use a Unix socket.

use hotrow::client::Client;
use hotrow::{Pull, Push, TableSpec};

use crate::cluster::{Shard, free_address, hotrow};

#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_a_unix_socket_works() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hotrow.sock");
    let path = path.to_str().unwrap();
    // A socket file that was left behind is replaced.
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    let mut shard = Shard::start(&free_address(), &["--unix", path]).await;
    let client = Client::connect(&format!("unix:{path}")).await.unwrap();
    client.create_table(&TableSpec::dense("t", 10, 2)).await.unwrap();
    let before = client.pull(&[Pull { table: "t", keys: &[3] }]).await.unwrap();
    client.push(&[Push { table: "t", keys: &[3], gradients: &[1.0, -1.0], ..Push::default() }]).await.unwrap();
    let after = client.pull(&[Pull { table: "t", keys: &[3] }]).await.unwrap();
    assert!(after[0] < before[0] && after[1] > before[1]);

    // The same rows over TCP, and from the command line.
    let other = Client::connect(&shard.address).await.unwrap();
    assert_eq!(other.pull(&[Pull { table: "t", keys: &[3] }]).await.unwrap(), after);
    let output = hotrow(&["table", "list", "--endpoint", &format!("unix:{path}")]).output().unwrap();
    assert!(output.status.success(), "{output:?}");

    // Another server does not take the socket away.
    let output = hotrow(&["serve", "--listen", "127.0.0.1:0", "--http", "", "--unix", path]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("another process listens there"), "{output:?}");

    drop((client, other));
    shard.terminate();
    assert!(shard.ended().await.success(), "{}", shard.log());
    assert!(!std::path::Path::new(path).exists(), "the socket file is gone");
}
