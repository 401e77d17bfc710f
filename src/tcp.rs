//! TCP connections of server and client, which are woken when the rest of a frame has come and not for each piece of it.
//!
//! A large HTTP/2 frame comes in a dozen pieces, and nothing can be done with any but the last. To be woken for each costs the reader
//! little, but the sender, who must wake it, a good part of the time that it has for sending: on virtual machines half of it.
//!
//! `unsafe` lives here because the standard library does not have this option of sockets.
#![allow(unsafe_code)]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Who asks for more than this is in the middle of a frame: frames' heads are read into a smaller buffer.
const LARGE: usize = 64 << 10;

/// A connection.
pub struct Tcp {
    stream: TcpStream,
    /// How many bytes must have come before it is woken.
    woken_for: usize,
}

impl Tcp {
    /// Sends what is small at once, too.
    pub fn new(stream: TcpStream) -> Tcp {
        // A connection without it works.
        let _ = stream.set_nodelay(true);
        Tcp { stream, woken_for: 1 }
    }

    /// Asks to be woken for so many bytes, or at the end of the stream. The kernel sees to it that they fit, and wakes for fewer where
    /// they do not; so it is no harm if it knows no such thing.
    #[cfg(target_os = "linux")]
    fn wake_for(&mut self, bytes: usize) {
        use std::os::fd::AsRawFd as _;
        if bytes == self.woken_for {
            return;
        }
        self.woken_for = bytes;
        let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        let size = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the descriptor is open as long as the stream lives, and the kernel reads `size` bytes of `value`.
        unsafe {
            let value = (&raw const value).cast();
            libc::setsockopt(self.stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, size);
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn wake_for(&mut self, bytes: usize) {
        self.woken_for = bytes;
    }
}

impl AsyncRead for Tcp {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let wanted = buf.remaining();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        // Whoever reads asks for what is left of the frame. Where that has come by now, this wakes the task.
        this.wake_for(if wanted > LARGE { buf.remaining().max(1) } else { 1 });
        read
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, Tcp) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        sender.set_nodelay(true).unwrap();
        (sender, Tcp::new(listener.accept().await.unwrap().0))
    }

    /// Bytes come in pieces with pauses between them, large reads and small ones in turn, and all of them arrive.
    #[tokio::test]
    async fn nothing_that_comes_is_missed() {
        let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let (mut sender, mut receiver) = pair().await;
        let to_send = sent.clone();
        let sending = tokio::spawn(async move {
            for piece in to_send.chunks(170_001) {
                sender.write_all(piece).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let mut came = vec![0; sent.len()];
        let mut rest = came.as_mut_slice();
        for len in [9, 1 << 20, 9, 100_000, 64, 1 << 20].into_iter().cycle() {
            let (now, later) = rest.split_at_mut(len.min(rest.len()));
            receiver.read_exact(now).await.unwrap();
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        sending.await.unwrap();
        assert_eq!(came, sent);
    }

    /// The end of a stream in the middle of a frame is seen, though the rest of the frame will never come.
    #[tokio::test]
    async fn an_end_is_seen() {
        let (mut sender, mut receiver) = pair().await;
        let reading = tokio::spawn(async move {
            let mut frame = vec![0; 1 << 20];
            receiver.read_exact(&mut frame).await.map(drop)
        });
        sender.write_all(&[1; 100_000]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(sender);
        let read = tokio::time::timeout(Duration::from_secs(10), reading).await.expect("it waits for ever").unwrap();
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    /// A reader that waits for a frame sleeps until the whole of it has come.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_frame_wakes_once() {
        let (mut sender, mut receiver) = pair().await;
        // Small enough for the socket's buffers, whatever they are.
        let mut frame = vec![0; LARGE + 20_000];
        sender.write_all(&[1; 10_000]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let first = receiver.read(&mut frame).await.unwrap();
        assert_eq!(first, 10_000);
        let mut rest = vec![0; frame.len() - first];
        assert!(rest.len() > LARGE);
        // Polled once, so that it knows what is wanted.
        assert!(futures_util::poll!(std::pin::pin!(receiver.read(&mut rest))).is_pending());
        sender.write_all(&[2; 10_000]).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(50), receiver.read(&mut rest)).await;
        assert!(early.is_err(), "woken by {early:?} of what it waits for");
        sender.write_all(&vec![3; rest.len() - 10_000]).await.unwrap();
        let whole = tokio::time::timeout(Duration::from_secs(10), receiver.read(&mut rest)).await;
        assert_eq!(whole.expect("it waits for ever").unwrap(), rest.len());
    }
}
