//! Servers in processes of their own: the benchmark's program starts itself again. A child ends when its parent does, however
//! that ends: its standard input is then closed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use hotrow::server::Server;
use hotrow::server::config::Config;
use serde::{Deserialize, Serialize};

use super::bare;

const FLAG: &str = "--serve";

/// What a child serves.
#[derive(Serialize, Deserialize)]
pub enum Serve {
    /// What `hotrow serve` does.
    Hotrow(Box<Config>),
    /// See [`bare`].
    Bare { rows: usize, dim: usize, unix: Option<PathBuf> },
}

/// In a child: serves, and never returns. Comes first in `main`.
pub fn serve_if_child() {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() != Some(FLAG) {
        return;
    }
    std::thread::spawn(|| {
        // Nothing ever comes but the end.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let started = |address: &str| println!("{address}");
    match serde_json::from_str(&args.next().unwrap()).unwrap() {
        Serve::Bare { rows, dim, unix } => bare::serve(rows, dim, unix.as_deref(), started).unwrap(),
        Serve::Hotrow(config) => {
            tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
                let server = Server::start(&config).await.unwrap();
                started(&server.address().to_string());
                panic!("the server cannot go on: {}", server.failed().await);
            });
        }
    }
    std::process::exit(0);
}

/// A server that ends when this is dropped.
pub struct Child {
    process: std::process::Child,
    /// Where it listens: `host:port`, or `unix:path` for a bare server on one.
    pub address: String,
}

impl Child {
    pub fn start(serve: &Serve) -> Child {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([FLAG, &serde_json::to_string(serve).unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let child = Child { process, address: address.trim().into() };
        assert!(!child.address.is_empty(), "a server did not start");
        child
    }

    /// A bare server.
    pub fn bare(rows: usize, dim: usize, unix: Option<PathBuf>) -> Child {
        Child::start(&Serve::Bare { rows, dim, unix })
    }

    /// A hotrow server on loopback with the defaults, but for what `set` changes.
    pub fn hotrow(set: impl FnOnce(&mut Config)) -> Child {
        let mut config = Config::default();
        config.server.listen = "127.0.0.1:0".parse().unwrap();
        config.server.http = String::new();
        set(&mut config);
        Child::start(&Serve::Hotrow(Box::new(config)))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // One that has ended by itself is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
