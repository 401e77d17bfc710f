//! Connections: TCP with or without TLS, and Unix sockets, as one stream.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

#[cfg(target_os = "linux")]
use super::aside;
use super::reload::Reloaded;
use super::threads::Dealer;
use crate::awake;
use crate::tcp;

/// A peer that does not finish its handshake in this time is let go.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long to wait where there is no room for another: out of file descriptors, mostly, until some are given back.
const NO_ROOM: Duration = Duration::from_millis(100);

/// A connection, counted while it lives.
pub struct Connection {
    io: Io,
    /// Its thread. It is counted among the thread's connections while it holds this.
    thread: Arc<awake::Server>,
    _room: OwnedSemaphorePermit,
}

enum Io {
    /// Whether the client is on this host.
    Tcp(TcpStream, bool),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// A connection that is on no thread's runtime yet.
pub struct Arrival {
    socket: Socket,
    room: OwnedSemaphorePermit,
}

enum Socket {
    Tcp(std::net::TcpStream, Option<TlsAcceptor>),
    Unix(std::os::unix::net::UnixStream),
}

impl Arrival {
    /// Goes on on the runtime of this thread, and is counted among its connections. `None` if it is no good.
    pub async fn connect(self, thread: Arc<awake::Server>) -> Option<Connection> {
        match self.socket.connect().await {
            Ok(io) => Some(Connection { io, thread, _room: self.room }),
            Err(reason) => {
                tracing::debug!("a connection was given up: {reason}");
                None
            }
        }
    }
}

impl Socket {
    async fn connect(self) -> io::Result<Io> {
        match self {
            Socket::Unix(socket) => Ok(Io::Unix(UnixStream::from_std(socket)?)),
            Socket::Tcp(socket, tls) => {
                let socket = TcpStream::from_std(socket)?;
                tcp::set_up(&socket);
                let Some(tls) = tls else {
                    let near = tcp::stays_on_this_host(&socket);
                    return Ok(Io::Tcp(socket, near));
                };
                let peer = socket.peer_addr()?;
                match tokio::time::timeout(HANDSHAKE, tls.accept(socket)).await {
                    Ok(Ok(stream)) => Ok(Io::Tls(Box::new(stream))),
                    Ok(Err(error)) => Err(io::Error::other(format!("TLS handshake with {peer} failed: {error}"))),
                    Err(_) => Err(io::Error::other(format!("TLS handshake with {peer} took too long"))),
                }
            }
        }
    }
}

/// Accepts connections for as long as they are taken.
pub struct Listeners {
    dealer: Arc<Dealer>,
    room: Arc<Semaphore>,
}

impl Listeners {
    /// None yet; at most `max` connections at a time.
    pub fn new(dealer: Dealer, max: usize) -> Listeners {
        Listeners { dealer: Arc::new(dealer), room: Arc::new(Semaphore::new(max)) }
    }

    /// Accepts on TCP, with TLS where it is set up.
    pub fn tcp(&self, listener: TcpListener, tls: Option<Arc<Reloaded<ServerConfig>>>) {
        self.accept_on(Listener::Tcp(listener, tls));
    }

    /// Accepts on a Unix socket. A socket file that nobody listens on is replaced.
    pub async fn unix(&self, path: &Path) -> Result<(), String> {
        if path.exists() {
            if UnixStream::connect(path).await.is_ok() {
                return Err(format!("{}: another process listens there", path.display()));
            }
            std::fs::remove_file(path).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        let listener = UnixListener::bind(path).map_err(|e| format!("{}: {e}", path.display()))?;
        self.accept_on(Listener::Unix(listener));
        Ok(())
    }

    fn accept_on(&self, listener: Listener) {
        let (dealer, room) = (Arc::clone(&self.dealer), Arc::clone(&self.room));
        tokio::spawn(async move {
            loop {
                let room = Arc::clone(&room).acquire_owned().await.expect("the semaphore is never closed");
                tokio::select! {
                    socket = listener.accept() => match socket {
                        Ok(socket) => dealer.deal(Arrival { socket, room }),
                        Err(error) => {
                            tracing::warn!("cannot accept a connection: {error}");
                            tokio::time::sleep(NO_ROOM).await;
                        }
                    },
                    () = dealer.closed() => return,
                }
            }
        });
    }
}

enum Listener {
    Tcp(TcpListener, Option<Arc<Reloaded<ServerConfig>>>),
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener, tls) => {
                let stream = listener.accept().await?.0.into_std()?;
                Ok(Socket::Tcp(stream, tls.as_ref().map(|tls| TlsAcceptor::from(tls.get()))))
            }
            Listener::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0.into_std()?)),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = match &mut this.io {
            Io::Tcp(io, _) => Pin::new(io).poll_read(cx, buf),
            Io::Tls(io) => Pin::new(io).poll_read(cx, buf),
            Io::Unix(io) => Pin::new(io).poll_read(cx, buf),
        };
        if read.is_ready() {
            let begins = this.thread.came();
            #[cfg(target_os = "linux")]
            if begins && let Io::Tcp(io, true) = &this.io {
                aside::step(io);
            }
            #[cfg(not(target_os = "linux"))]
            let _ = begins;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.io {
            Io::Tcp(io, _) => Pin::new(io).poll_write(cx, buf),
            Io::Tls(io) => Pin::new(io).poll_write(cx, buf),
            Io::Unix(io) => Pin::new(io).poll_write(cx, buf),
        };
        if written.is_ready() {
            this.thread.went();
        }
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.io {
            Io::Tcp(io, _) => Pin::new(io).poll_write_vectored(cx, bufs),
            Io::Tls(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Io::Unix(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        };
        if written.is_ready() {
            this.thread.went();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Tcp(io, _) => io.is_write_vectored(),
            Io::Tls(io) => io.is_write_vectored(),
            Io::Unix(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Tcp(io, _) => Pin::new(io).poll_flush(cx),
            Io::Tls(io) => Pin::new(io).poll_flush(cx),
            Io::Unix(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Tcp(io, _) => Pin::new(io).poll_shutdown(cx),
            Io::Tls(io) => Pin::new(io).poll_shutdown(cx),
            Io::Unix(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
