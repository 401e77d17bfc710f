//! `hotrow health`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::serve;

/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ask the server on this host whether it is ready: exit code 0 if it is, 1 if not.
///
/// For images and service managers, which have no other program at hand. It asks for /readyz on the HTTP port, which it takes
/// from the same file and variables as `hotrow serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  hotrow serve --data-dir hotrow-data &\n  until hotrow health; do sleep 1; done")]
pub struct Args {
    /// The server's configuration file.
    #[arg(long, short, env = "HOTROW_CONFIG")]
    config: Option<PathBuf>,
    /// The server's HTTP port [default: 127.0.0.1:7780].
    #[arg(long, env = "HOTROW_HTTP")]
    http: Option<String>,
}

/// Asks, and prints the answer.
pub fn run(args: Args) -> Result<()> {
    let http = match args.http {
        Some(http) => http,
        None => serve::read_config(args.config.as_deref())?.server.http,
    };
    ensure!(!http.is_empty(), "the server has no HTTP port (server.http is empty)");
    // A server that listens on every address is reached by that one too.
    let address: SocketAddr = http.parse().with_context(|| format!("'{http}' is not an address (--http)"))?;
    let answer = ask(address).with_context(|| format!("{address} does not answer"))?;
    let (head, text) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split_whitespace().nth(1) {
        Some("200") => print!("{text}"),
        Some("503") => bail!("not ready: {}", text.trim_end()),
        _ => bail!("{address} answers '{}': is it a hotrow server?", head.lines().next().unwrap_or_default()),
    }
    Ok(())
}

fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
