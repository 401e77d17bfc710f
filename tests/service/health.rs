//! `hotrow health` says what /readyz says, as an exit code: images and service managers have nothing else to ask with.

use crate::cluster::{Shard, free_address, hotrow};

/// Whether it says that the server is ready, and what it says.
fn health(arguments: &[&str], variable: Option<(&str, &str)>) -> (bool, String) {
    let output = hotrow(&[&["health"], arguments].concat()).envs(variable).output().unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_says_whether_the_server_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hotrow.toml");
    let path = file.to_str().unwrap();
    let shard = Shard::start(&free_address(), &[]).await;
    let ready = (true, "ready\n".to_string());
    assert_eq!(health(&["--http", &shard.http], None), ready);
    // Where the server takes its port from, this does too.
    assert_eq!(health(&[], Some(("HOTROW_HTTP", &shard.http))), ready);
    std::fs::write(&file, format!("[server]\nhttp = '{}'", shard.http)).unwrap();
    assert_eq!(health(&["--config", path], None), ready);
    assert_eq!(health(&[], Some(("HOTROW_CONFIG", path))), ready);
    // One that listens everywhere.
    let everywhere = format!("0.0.0.0:{}", shard.http.rsplit(':').next().unwrap());
    assert_eq!(health(&["--http", &everywhere], None), ready);

    let refused = |arguments: &[&str], fragment: &str| {
        let (ready, text) = health(arguments, None);
        assert!(!ready && text.contains(fragment), "{arguments:?} says: {text}");
    };
    refused(&["--http", &free_address()], "does not answer");
    refused(&["--http", &shard.address], "does not answer");
    refused(&["--http", "here"], "--http");
    refused(&["--config", "/nowhere/hotrow.toml"], "/nowhere/hotrow.toml");
    std::fs::write(&file, "[server]\nhttp = ''").unwrap();
    refused(&["--config", path], "no HTTP port");
}
