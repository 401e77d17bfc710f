//! Real `hotrow serve` processes on loopback, and clients for them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use hotrow::client::{Client, Credentials, Options, connect_shard};
use hotrow::proto::admin_client::AdminClient;
use hotrow::proto::data_client::DataClient;
use hotrow::proto::tables_client::TablesClient;
use tempfile::TempDir;
use tonic::transport::Channel;

/// The program under test.
pub const HOTROW: &str = env!("CARGO_BIN_EXE_hotrow");

/// A free port, below those that the system gives to outgoing connections, and no other test's.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        // None is given out twice: a shard that was killed comes back to its own.
        let first = (std::process::id() as u16 % 60) * 200;
        let port = 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// An address with a free port.
pub fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// The program with arguments, and nothing from the environment but, with `HOTROW_TEST_POOL=cuda`, an emulated GPU.
pub fn hotrow(arguments: &[&str]) -> Command {
    let mut command = Command::new(HOTROW);
    command.env_clear().args(arguments);
    if crate::emulated::wanted() {
        crate::emulated::give(&mut command);
    }
    command
}

/// One server process. It is killed when this is dropped.
pub struct Shard {
    child: Child,
    /// Where it listens.
    pub address: String,
    /// Where its HTTP port is.
    pub http: String,
    folder: TempDir,
}

impl Shard {
    /// Starts a process that listens on `address`, and waits until it is ready.
    pub async fn start(address: &str, flags: &[&str]) -> Shard {
        Shard::start_as(hotrow(&[]), address, flags).await
    }

    /// The same for a command that ends up as `hotrow` with the arguments it is given.
    pub async fn start_as(mut command: Command, address: &str, flags: &[&str]) -> Shard {
        let (folder, http) = (tempfile::tempdir().unwrap(), free_address());
        let log = File::create(folder.path().join("log")).unwrap();
        command.args(["serve", "--listen", address, "--http", &http, "--log", "info,hotrow=debug"]);
        let child = command.args(flags).stderr(log).spawn().unwrap();
        let mut shard = Shard { child, address: address.into(), http, folder };
        let begun = Instant::now();
        while shard.get("/readyz").is_none_or(|(code, _)| code != 200) {
            assert!(shard.is_alive(), "the server has ended:\n{}", shard.log());
            assert!(begun.elapsed().as_secs() < 30, "the server is not ready:\n{}", shard.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        shard
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Whether the process runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Fails if the process has ended, or something in it panicked.
    pub fn check(&mut self) {
        assert!(self.is_alive(), "the server has ended:\n{}", self.log());
        let log = self.log();
        assert!(!log.contains("panicked"), "something panicked in the server:\n{log}");
    }

    /// Ends it at once, as `kill -9` does.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A path as the process sees it.
    pub fn seen_from_inside(&self, path: &std::path::Path) -> std::path::PathBuf {
        let root = std::path::PathBuf::from(format!("/proc/{}/root", self.child.id()));
        root.join(path.strip_prefix("/").expect("the path is absolute"))
    }

    /// Tells it to end.
    pub fn terminate(&self) {
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until it has ended.
    pub async fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed().as_secs() < 60, "the server does not end:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Bytes of memory that it has in use.
    pub fn resident(&self) -> u64 {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    /// Code and text of a page on its HTTP port.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(&self.http).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let code = answer.split_whitespace().nth(1)?.parse().ok()?;
        Some((code, answer))
    }

    /// A connection of its own.
    pub fn channel(&self) -> Channel {
        connect_shard(&self.address, &Credentials::default()).unwrap()
    }

    /// The data service, as generated.
    pub fn data(&self) -> DataClient<Channel> {
        DataClient::new(self.channel()).max_decoding_message_size(1 << 30)
    }

    /// The admin service, as generated.
    pub fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.channel())
    }

    /// The table service, as generated.
    pub fn tables(&self) -> TablesClient<Channel> {
        TablesClient::new(self.channel())
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            eprintln!("the last of the log of {}:\n{}", self.address, tail.join("\n"));
        }
    }
}

/// The shards of a cluster.
pub struct Cluster {
    /// By number.
    pub shards: Vec<Shard>,
}

impl Cluster {
    /// Starts so many shards with these flags.
    pub async fn start(shards: usize, flags: &[&str]) -> Cluster {
        let addresses: Vec<String> = (0..shards).map(|_| free_address()).collect();
        Cluster::announced(&addresses, &addresses, flags).await
    }

    /// Starts shards that are reached by other addresses than those they listen on.
    pub async fn announced(listen: &[String], announced: &[String], flags: &[&str]) -> Cluster {
        let list = announced.join(",");
        let mut shards = Vec::new();
        for (number, address) in listen.iter().enumerate() {
            let number = number.to_string();
            let flags = [&["--shards", &list, "--shard", &number], flags].concat();
            shards.push(Shard::start(address, &flags).await);
        }
        Cluster { shards }
    }

    /// A client.
    pub async fn client(&self) -> Client {
        self.client_with(Options::default()).await
    }

    /// A client with options.
    pub async fn client_with(&self, options: Options) -> Client {
        Client::connect_with(&[&self.shards[0].address], options).await.unwrap()
    }

    /// Fails if a process has ended, or something in it panicked.
    pub fn check(&mut self) {
        self.shards.iter_mut().for_each(Shard::check);
    }
}

/// Numbers as they travel.
pub fn packed<T: bytemuck::NoUninit>(numbers: &[T]) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(bytemuck::cast_slice(numbers))
}
