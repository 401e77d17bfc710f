//! Settings: where they come from, and what is refused.

use std::process::Output;

use crate::cluster::hotrow;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn refused(arguments: &[&str], fragments: &[&str]) {
    let Output { status, stderr, .. } = hotrow(arguments).output().unwrap();
    let stderr = text(&stderr);
    assert!(!status.success(), "{arguments:?} was accepted");
    for fragment in fragments {
        assert!(stderr.contains(fragment), "{arguments:?} says: {stderr}");
    }
}

#[test]
fn plain_text_beyond_this_host_must_be_accepted_by_name() {
    refused(
        &["serve", "--listen", "0.0.0.0:0", "--http", ""],
        &["0.0.0.0:0 can be reached from outside", "--tls-cert", "--allow-plaintext"],
    );
    let print = |arguments: &[&str], name: &str, value: &str| {
        let mut command = hotrow(&[&["serve", "--print-config", "--listen", "0.0.0.0:0"], arguments].concat());
        let Output { status, stdout, stderr } = command.env(name, value).output().unwrap();
        assert!(status.success(), "{name}={value}: {}", text(&stderr));
        text(&stdout)
    };
    assert!(print(&["--allow-plaintext"], "X", "").contains("allow_plaintext = true"));
    for (value, expected) in [("true", true), ("1", true), ("0", false), ("false", false)] {
        let config = print(&[], "HOTROW_ALLOW_PLAINTEXT", value);
        assert!(config.contains(&format!("allow_plaintext = {expected}")), "{value}: {config}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_that_was_accepted_is_served() {
    let port = crate::cluster::free_port();
    let shard = crate::cluster::Shard::start(&format!("0.0.0.0:{port}"), &["--allow-plaintext"]).await;
    hotrow::client::Client::connect(&format!("127.0.0.1:{port}")).await.unwrap();
    assert!(shard.log().contains("plain text is served beyond this host"), "{}", shard.log());
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hotrow.toml");
    let path = file.to_str().unwrap();
    let cases = [
        ("[server]\nmax_inflight = 3", "max_inflight"),
        ("[sever]\nmax_in_flight = 3", "sever"),
        ("max_in_flight = 3", "max_in_flight"),
        ("[server]\nmax_in_flight = 'many'", "max_in_flight"),
        ("[server]\nmax_in_flight = 0", "must be above zero"),
        ("[server]\nmax_request = '1 byte'", "server.max_request"),
        ("[server]\nhttp = 'here'", "server.http"),
        ("[tls]\ncert = 'c.pem'", "tls.cert and tls.key go together"),
        ("[tls]\nclient_ca = 'c.pem'", "tls.client_ca needs"),
        ("[auth]\ntokens = '/nowhere/tokens'", "/nowhere/tokens"),
        ("[engine]\npartitions = 100", "power of two"),
        ("[engine]\nmemory = 'lots'", "lots"),
        ("[cluster]\nshards = ['a:1', 'b:1']\nshard = '2'", "cluster.shard is 2"),
        ("[cluster]\nshards = ['a-{0..}:1']", "is not an address or a range"),
        ("[log]\nformat = 'xml'", "use text or json"),
        ("[[table]]\nname = 't'\ndim = 4\nprecision = 'int3'", "int3"),
        ("[[table]]\nname = 't'\ndim = 0", "table 't'"),
        ("[[table]]\nname = 't'\ndim = 4\nrow = 9", "row"),
        ("[server", "hotrow.toml"),
    ];
    for (config, fragment) in cases {
        std::fs::write(&file, config).unwrap();
        let listen = ["serve", "--listen", "127.0.0.1:0", "--http", "", "--config", path];
        // An http address in the file must not be hidden by the flag.
        let arguments = if config.contains("http =") { [&listen[..3], &listen[5..]].concat() } else { listen.to_vec() };
        refused(&arguments, &[fragment]);
    }
    refused(&["serve", "--config", "/nowhere/hotrow.toml"], &["/nowhere/hotrow.toml"]);
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hotrow.toml");
    let text_in = "[server]\nmax_in_flight = 1\nmax_connections = 2\ndrain_seconds = 3\n[engine]\nseed = 4\n\
                   [cluster]\nshards = ['a:1']\n[[table]]\nname = 't'\ndim = 4\ncache = '10%'\nrows = 100";
    std::fs::write(&file, text_in).unwrap();
    let print = |path: &std::path::Path| {
        let mut command = hotrow(&["serve", "--print-config", "--max-in-flight", "100"]);
        command.env("HOTROW_CONFIG", path).env("HOTROW_MAX_IN_FLIGHT", "50").env("HOTROW_MAX_CONNECTIONS", "60");
        command.env("HOTROW_SHARDS", "b:1,c:1");
        let Output { status, stdout, stderr } = command.output().unwrap();
        assert!(status.success(), "{}", text(&stderr));
        text(&stdout)
    };
    let printed = print(&file);
    let config: toml::Table = toml::from_str(&printed).unwrap();
    assert_eq!(config["server"]["max_in_flight"].as_integer(), Some(100), "the flag wins");
    assert_eq!(config["server"]["max_connections"].as_integer(), Some(60), "the environment comes second");
    assert_eq!(config["server"]["drain_seconds"].as_integer(), Some(3), "the file comes third");
    assert_eq!(config["engine"]["seed"].as_integer(), Some(4));
    assert_eq!(config["server"]["client_idle_seconds"].as_integer(), Some(86_400), "then the default");
    let shards: Vec<_> = config["cluster"]["shards"].as_array().unwrap().iter().filter_map(|s| s.as_str()).collect();
    assert_eq!(shards, ["b:1", "c:1"]);
    // What is printed is a configuration, and the same one.
    std::fs::write(&file, &printed).unwrap();
    assert_eq!(print(&file), printed);
}
