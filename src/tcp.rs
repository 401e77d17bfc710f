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

/// What a client sends before its first frame.
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// A connection that speaks HTTP/2 without TLS.
pub struct Tcp {
    stream: TcpStream,
    frames: Frames,
    /// How many bytes must have come before it is woken.
    woken_for: usize,
}

/// Where in the frames that it reads a connection is. What the reader asks for does not tell: its buffer may have room for more than the
/// frame, and whoever waited for that would wait for ever.
struct Frames {
    /// What has come of a frame's head: its length in three bytes, then six others.
    head: [u8; 9],
    head_len: usize,
    /// What has not come of the frame.
    left: usize,
}

impl Frames {
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let here = match self.left {
                0 => bytes.len().min(self.head.len() - self.head_len),
                left => bytes.len().min(left),
            };
            let (passed, rest) = bytes.split_at(here);
            bytes = rest;
            if self.left > 0 {
                self.left -= here;
                continue;
            }
            self.head[self.head_len..][..here].copy_from_slice(passed);
            self.head_len = (self.head_len + here) % self.head.len();
            if self.head_len == 0 {
                self.left = u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]]) as usize;
            }
        }
    }
}

impl Tcp {
    /// One that a client has opened.
    pub fn accepted(stream: TcpStream) -> Tcp {
        Tcp::new(stream, PREFACE)
    }

    /// One to a server.
    pub fn connected(stream: TcpStream) -> Tcp {
        Tcp::new(stream, 0)
    }

    fn new(stream: TcpStream, before_frames: usize) -> Tcp {
        // What is small is sent at once, too. A connection that does not do so works.
        let _ = stream.set_nodelay(true);
        Tcp { stream, frames: Frames { head: [0; 9], head_len: 0, left: before_frames }, woken_for: 1 }
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
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.frames.pass(&buf.filled()[before..]);
        // Where the rest of the frame has come by now, this wakes the task.
        this.wake_for(this.frames.left.max(1));
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
        (sender, Tcp::connected(listener.accept().await.unwrap().0))
    }

    /// A frame with this many bytes behind its head.
    fn frame(len: usize) -> Vec<u8> {
        let mut frame = (len as u32).to_be_bytes()[1..].to_vec();
        frame.extend([0; 6]);
        frame.extend((0..len).map(|i| (i % 251) as u8));
        frame
    }

    /// Frames of many lengths come in pieces with pauses between them, into a buffer that has room for more than any of them, and all
    /// arrive without one behind it.
    #[tokio::test]
    async fn nothing_that_comes_is_missed() {
        let (mut sender, mut receiver) = pair().await;
        let mut buffer = vec![0; 2 << 20];
        for len in [0, 1, 9, 100_000, 700_000, 64, 1 << 20, 65_536, 300_000] {
            let sent = frame(len);
            let to_send = sent.clone();
            let sending = tokio::spawn(async move {
                for piece in to_send.chunks(170_001) {
                    sender.write_all(piece).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                sender
            });
            let mut came = 0;
            while came < sent.len() {
                let read = tokio::time::timeout(Duration::from_secs(10), receiver.read(&mut buffer[came..])).await;
                came += read.unwrap_or_else(|_| panic!("{came} of {} bytes came", sent.len())).unwrap();
            }
            assert!(buffer[..came] == sent, "{len} bytes came as others");
            sender = sending.await.unwrap();
        }
    }

    #[test]
    fn frames_are_followed_however_they_come() {
        let mut stream = vec![7; PREFACE];
        let lens = [0, 5, 300, 0, 0, 70_000, 1];
        lens.iter().for_each(|&len| stream.extend(frame(len)));
        for piece in [1, 2, 8, 9, 10, 33, 1000, stream.len()] {
            let mut frames = Frames { head: [0; 9], head_len: 0, left: PREFACE };
            for (i, bytes) in stream.chunks(piece).enumerate() {
                frames.pass(bytes);
                let came = i * piece + bytes.len();
                // The frame that `came` is in, if it is behind its head.
                let mut end = PREFACE;
                let mut left = end.saturating_sub(came);
                for len in lens {
                    let start = end + 9;
                    end = start + len;
                    left = if came >= start { end.saturating_sub(came) } else { left };
                }
                assert_eq!(frames.left, left, "after {came} bytes in pieces of {piece}");
            }
        }
    }

    /// The end of a stream in the middle of a frame is seen, though the rest of the frame will never come.
    #[tokio::test]
    async fn an_end_is_seen() {
        let (mut sender, mut receiver) = pair().await;
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0; 1 << 20];
            receiver.read_exact(&mut buffer).await.map(drop)
        });
        sender.write_all(&frame(1 << 20)[..100_000]).await.unwrap();
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
        let sent = frame(80_000);
        let mut buffer = vec![0; 1 << 20];
        sender.write_all(&sent[..10_000]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(receiver.read(&mut buffer).await.unwrap(), 10_000);
        sender.write_all(&sent[10_000..20_000]).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(50), receiver.read(&mut buffer)).await;
        assert!(early.is_err(), "woken by {early:?} of what it waits for");
        sender.write_all(&sent[20_000..]).await.unwrap();
        let whole = tokio::time::timeout(Duration::from_secs(10), receiver.read(&mut buffer)).await;
        assert_eq!(whole.expect("it waits for ever").unwrap(), sent.len() - 10_000);
    }
}
