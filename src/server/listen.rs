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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::reload::Reloaded;
use crate::tcp::Tcp;

/// A peer that does not finish its handshake in this time is let go.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection, counted while it lives.
pub struct Connection {
    io: Io,
    _counted: OwnedSemaphorePermit,
}

enum Io {
    Tcp(Tcp),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// Accepts connections until the receiver is gone.
pub struct Listeners {
    /// Where connections arrive.
    pub connections: ReceiverStream<io::Result<Connection>>,
    accepted: mpsc::Sender<io::Result<Connection>>,
    room: Arc<Semaphore>,
}

impl Listeners {
    /// None yet; at most `max` connections at a time.
    pub fn new(max: usize) -> Listeners {
        let (accepted, connections) = mpsc::channel(16);
        Listeners { connections: ReceiverStream::new(connections), accepted, room: Arc::new(Semaphore::new(max)) }
    }

    /// Accepts on TCP, with TLS where it is set up.
    pub fn tcp(&self, listener: TcpListener, tls: Option<Arc<Reloaded<ServerConfig>>>) {
        let (accepted, room) = (self.accepted.clone(), Arc::clone(&self.room));
        tokio::spawn(async move {
            loop {
                let counted = Arc::clone(&room).acquire_owned().await.expect("the semaphore is never closed");
                let (stream, peer) = tokio::select! {
                    connection = listener.accept() => match connection {
                        Ok(connection) => connection,
                        Err(error) => {
                            // Out of file descriptors, mostly: wait for some to be given back.
                            tracing::warn!("cannot accept a connection: {error}");
                            tokio::time::sleep(Duration::from_millis(100)).await;
                            continue;
                        }
                    },
                    () = accepted.closed() => return,
                };
                let Some(tls) = &tls else {
                    let io = Io::Tcp(Tcp::accepted(stream));
                    let _ = accepted.send(Ok(Connection { io, _counted: counted })).await;
                    continue;
                };
                let _ = stream.set_nodelay(true);
                // A slow handshake must not keep others waiting.
                let (acceptor, accepted) = (TlsAcceptor::from(tls.get()), accepted.clone());
                tokio::spawn(async move {
                    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => {
                            let io = Io::Tls(Box::new(stream));
                            let _ = accepted.send(Ok(Connection { io, _counted: counted })).await;
                        }
                        Ok(Err(error)) => tracing::debug!("TLS handshake with {peer} failed: {error}"),
                        Err(_) => tracing::debug!("TLS handshake with {peer} took too long"),
                    }
                });
            }
        });
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
        let (accepted, room) = (self.accepted.clone(), Arc::clone(&self.room));
        let path = path.to_path_buf();
        tokio::spawn(async move {
            loop {
                let counted = Arc::clone(&room).acquire_owned().await.expect("the semaphore is never closed");
                tokio::select! {
                    connection = listener.accept() => match connection {
                        Ok((stream, _)) => {
                            let _ = accepted.send(Ok(Connection { io: Io::Unix(stream), _counted: counted })).await;
                        }
                        Err(error) => {
                            tracing::warn!("cannot accept a connection on {}: {error}", path.display());
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                    },
                    () = accepted.closed() => return,
                }
            }
        });
        Ok(())
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Tcp(io) => Pin::new(io).poll_read(cx, buf),
            Io::Tls(io) => Pin::new(io).poll_read(cx, buf),
            Io::Unix(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            Io::Tcp(io) => Pin::new(io).poll_write(cx, buf),
            Io::Tls(io) => Pin::new(io).poll_write(cx, buf),
            Io::Unix(io) => Pin::new(io).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            Io::Tcp(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Io::Tls(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Io::Unix(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Tcp(io) => io.is_write_vectored(),
            Io::Tls(io) => io.is_write_vectored(),
            Io::Unix(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Tcp(io) => Pin::new(io).poll_flush(cx),
            Io::Tls(io) => Pin::new(io).poll_flush(cx),
            Io::Unix(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Tcp(io) => Pin::new(io).poll_shutdown(cx),
            Io::Tls(io) => Pin::new(io).poll_shutdown(cx),
            Io::Unix(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
