//! TLS both ways, and files that are renewed without a restart.

use std::path::PathBuf;
use std::time::Duration;

use hotrow::TableSpec;
use hotrow::client::{Client, Credentials, Options, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use crate::cluster::{Cluster, Shard, free_address};

/// An authority that signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, PEM.
struct Signed {
    cert: String,
    key: String,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn sign(&self, names: &[&str]) -> Signed {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &self.0).unwrap();
        Signed { cert: cert.pem(), key: key.serialize_pem() }
    }
}

/// Files for a server.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// As a careful administrator does it: the new file takes the old one's place in one step.
    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path("new"), text).unwrap();
        std::fs::rename(self.path("new"), self.path(name)).unwrap();
        self.path(name).to_str().unwrap().to_string()
    }

    fn write_signed(&self, signed: &Signed) -> [String; 2] {
        [self.write("cert.pem", &signed.cert), self.write("key.pem", &signed.key)]
    }
}

async fn connect(address: &str, credentials: Credentials) -> Result<Client> {
    let options = Options { credentials, timeout: Duration::from_millis(700), connections: 1, ..Options::default() };
    Client::connect_with(&[address], options).await
}

async fn works(address: &str, credentials: Credentials) -> bool {
    match connect(address, credentials).await {
        Ok(client) => client.list_tables().await.is_ok(),
        Err(_) => false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_right_authority_is_believed() {
    let (ours, theirs, files) = (Authority::new("ours"), Authority::new("theirs"), Files::new());
    let [cert, key] = files.write_signed(&ours.sign(&["localhost", "127.0.0.1"]));
    let mut shard = Shard::start(&free_address(), &["--tls-cert", &cert, "--tls-key", &key]).await;

    let client = connect(&shard.address, Credentials::default().ca(ours.pem())).await.unwrap();
    client.create_table(&TableSpec::dense("t", 10, 2)).await.unwrap();
    let error = connect(&shard.address, Credentials::default().ca(theirs.pem())).await.err().unwrap().to_string();
    assert!(error.contains("certificate"), "{error}");
    let elsewhere = Credentials::default().ca(ours.pem()).domain("elsewhere.test");
    let error = connect(&shard.address, elsewhere).await.err().unwrap().to_string();
    assert!(error.contains("certificate"), "{error}");
    // Plain text gets nowhere, and does no harm.
    assert!(connect(&shard.address, Credentials::default()).await.is_err());
    assert!(client.list_tables().await.is_ok());
    shard.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_must_show_a_certificate_of_the_right_authority() {
    let (servers, clients, files) = (Authority::new("servers"), Authority::new("clients"), Files::new());
    let ca = files.write("client-ca.pem", &clients.pem());
    let server = servers.sign(&["127.0.0.1"]);
    let [cert, key] = files.write_signed(&server);
    let mut shard =
        Shard::start(&free_address(), &["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca]).await;
    let ca = || Credentials::default().ca(servers.pem());
    let of = |authority: &Authority| authority.sign(&["trainer"]);

    let right = of(&clients);
    let client = connect(&shard.address, ca().identity(&right.cert, &right.key)).await.unwrap();
    client.create_table(&TableSpec::dense("t", 10, 2)).await.unwrap();
    assert!(!works(&shard.address, ca()).await, "no certificate");
    for wrong in [of(&servers), of(&Authority::new("clients")), server] {
        assert!(!works(&shard.address, ca().identity(&wrong.cert, &wrong.key)).await, "another authority's");
    }
    assert!(!works(&shard.address, Credentials::default()).await, "plain text");
    assert!(client.list_tables().await.is_ok());
    shard.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_reach_each_other_over_tls() {
    let (authority, files) = (Authority::new("ours"), Files::new());
    let ca = files.write("ca.pem", &authority.pem());
    let [cert, key] = files.write_signed(&authority.sign(&["127.0.0.1"]));
    let (tokens, token) = (files.write("tokens", "admin boss\n"), files.write("token", "boss\n"));
    let flags = [
        ["--tls-cert", &cert],
        ["--tls-key", &key],
        ["--tls-client-ca", &ca],
        ["--cluster-ca", &ca],
        ["--tokens", &tokens],
        ["--cluster-token-file", &token],
    ]
    .concat();
    let mut cluster = Cluster::start(2, &flags).await;
    let own = authority.sign(&["trainer"]);
    let credentials = Credentials::default().ca(authority.pem()).identity(own.cert, own.key).token("boss").unwrap();
    let options = Options { credentials, timeout: Duration::from_secs(10), ..Options::default() };
    let client = cluster.client_with(options).await;
    client.create_table(&TableSpec::dense("t", 200, 1)).await.unwrap();
    // Keys of both shards.
    client
        .push(&[hotrow::Push { table: "t", keys: &[1, 100], gradients: &[1.0; 2], ..Default::default() }])
        .await
        .unwrap();
    client.drop_table("t").await.unwrap();
    cluster.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificates_are_taken_without_a_restart() {
    let (authority, files) = (Authority::new("ours"), Files::new());
    let [cert, key] = files.write_signed(&authority.sign(&["old.test"]));
    let mut shard = Shard::start(&free_address(), &["--tls-cert", &cert, "--tls-key", &key]).await;
    let named = |name: &str| Credentials::default().ca(authority.pem()).domain(name);
    let earlier = connect(&shard.address, named("old.test")).await.unwrap();
    earlier.stats().await.unwrap();
    assert!(!works(&shard.address, named("new.test")).await);

    files.write_signed(&authority.sign(&["new.test"]));
    crate::until("the new certificate is shown", async || works(&shard.address, named("new.test")).await).await;
    assert!(!works(&shard.address, named("old.test")).await);
    assert!(earlier.stats().await.is_ok(), "connections that were open stay open");

    // Files that cannot be used leave those in use that can.
    for (broken, reason) in [(Some("nonsense"), "no certificate in it"), (None, "os error 2")] {
        match broken {
            Some(text) => drop(files.write("cert.pem", text)),
            None => std::fs::remove_file(files.path("cert.pem")).unwrap(),
        }
        let complaint = |line: &str| line.contains("the old ones stay") && line.contains(reason);
        let log = async || shard.log().lines().any(complaint);
        crate::until("the server complains", log).await;
        assert!(works(&shard.address, named("new.test")).await);
    }
    // A key that does not belong to the certificate is no better.
    let complaints = || shard.log().lines().filter(|line| line.contains("the old ones stay")).count();
    let before = complaints();
    files.write("cert.pem", &authority.sign(&["mixed.test"]).cert);
    crate::until("the server complains", async || complaints() > before).await;
    assert!(works(&shard.address, named("new.test")).await);

    files.write_signed(&authority.sign(&["newest.test"]));
    crate::until("the newest certificate is shown", async || works(&shard.address, named("newest.test")).await).await;
    shard.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_tokens_are_taken_without_a_restart() {
    let files = Files::new();
    let tokens = files.write("tokens", "admin first\n");
    let mut shard = Shard::start(&free_address(), &["--tokens", &tokens]).await;
    let token = |token: &str| Credentials::default().token(token).unwrap();
    assert!(works(&shard.address, token("first")).await && !works(&shard.address, token("second")).await);
    let earlier = connect(&shard.address, token("first")).await.unwrap();

    files.write("tokens", "admin second\n");
    crate::until("the new token is taken", async || works(&shard.address, token("second")).await).await;
    assert!(!works(&shard.address, token("first")).await);
    let error = earlier.list_tables().await.unwrap_err().to_string();
    assert!(error.contains("unknown token"), "open connections give no right: {error}");

    for (broken, reason) in [("admin\n", "a line is a role"), ("# nobody\n", "nobody could get in")] {
        files.write("tokens", broken);
        let complaint = |line: &str| line.contains("the old ones stay") && line.contains(reason);
        crate::until("the server complains", async || shard.log().lines().any(complaint)).await;
        assert!(works(&shard.address, token("second")).await && !works(&shard.address, token("first")).await);
    }
    files.write("tokens", "admin third\n");
    crate::until("the third token is taken", async || works(&shard.address, token("third")).await).await;
    shard.check();
}
