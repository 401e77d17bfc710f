//! A connection whose small writes leave together.
//!
//! HTTP/2 writes the headers of a request, and its message once the stream is open; the rows of an answer, and then its
//! status. Each is a write of its own that wakes the other side, which costs more than the bytes do. So what is small
//! waits for one turn of the runtime, in which others may add to it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Up to so many bytes are copied to leave together; more go as they are.
const SMALL: usize = 32 << 10;
/// Slices that are written at a time.
const SLICES: usize = 8;

/// A connection whose small writes leave together.
pub struct Cork<T> {
    io: T,
    waiting: BytesMut,
    /// Whether what waits has had its turn.
    had_turn: bool,
}

impl<T> Cork<T> {
    /// Around `io`, which sends what it is given at once.
    pub fn new(io: T) -> Cork<T> {
        Cork { io, waiting: BytesMut::new(), had_turn: false }
    }
}

impl<T: AsyncWrite + Unpin> Cork<T> {
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.waiting))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.waiting.advance(written);
        }
        self.had_turn = false;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Cork<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Cork<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let more: usize = bufs.iter().map(|buf| buf.len()).sum();
        if this.waiting.len() + more <= SMALL {
            bufs.iter().for_each(|buf| this.waiting.extend_from_slice(buf));
            return Poll::Ready(Ok(more));
        }
        loop {
            let mut slices = [IoSlice::new(&[]); SLICES];
            slices[0] = IoSlice::new(&this.waiting);
            let count = bufs.len().min(SLICES - 1);
            slices[1..=count].copy_from_slice(&bufs[..count]);
            let first = usize::from(this.waiting.is_empty());
            let written = ready!(Pin::new(&mut this.io).poll_write_vectored(cx, &slices[first..=count]))?;
            let waited = written.min(this.waiting.len());
            this.waiting.advance(waited);
            if written > waited || written == 0 {
                this.had_turn = false;
                return Poll::Ready(Ok(written - waited));
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.waiting.is_empty() && !this.had_turn {
            this.had_turn = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(this.send(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.send(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Keeps what it is given, a write each, and takes no more than so much at a time.
    struct Writes {
        most: usize,
        writes: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl AsyncWrite for Writes {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(buf)])
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let written: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).take(self.most).collect();
            let len = written.len();
            self.writes.lock().unwrap().push(written);
            Poll::Ready(Ok(len))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn corked(most: usize) -> (Cork<Writes>, Arc<Mutex<Vec<Vec<u8>>>>) {
        let writes = Arc::default();
        (Cork::new(Writes { most, writes: Arc::clone(&writes) }), writes)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_added_in_the_same_turn_leaves_in_one_write() {
        let (mut cork, writes) = corked(usize::MAX);
        cork.write_all(b"headers ").await.unwrap();
        assert!(futures_util::poll!(std::pin::pin!(cork.flush())).is_pending());
        cork.write_all(b"message").await.unwrap();
        cork.flush().await.unwrap();
        assert_eq!(*writes.lock().unwrap(), [b"headers message"]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_nobody_adds_to_leaves_after_one_turn() {
        let (mut cork, writes) = corked(usize::MAX);
        cork.write_all(b"alone").await.unwrap();
        cork.flush().await.unwrap();
        assert_eq!(*writes.lock().unwrap(), [b"alone"]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_large_takes_along_what_waits() {
        let (mut cork, writes) = corked(usize::MAX);
        cork.write_all(b"head").await.unwrap();
        cork.write_all(&[7; SMALL]).await.unwrap();
        assert_eq!(writes.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>(), [4 + SMALL]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_that_takes_nothing_is_an_error() {
        let (mut cork, _) = corked(0);
        cork.write_all(b"lost").await.unwrap();
        assert_eq!(cork.flush().await.unwrap_err().kind(), io::ErrorKind::WriteZero);
        assert_eq!(cork.write_all(&[7; SMALL]).await.unwrap_err().kind(), io::ErrorKind::WriteZero);
    }

    proptest! {
        #[test]
        fn every_byte_leaves_once_and_in_order(
            lens in prop::collection::vec((0usize..2 * SMALL, any::<bool>()), 0..8),
            most in 1000usize..3 * SMALL,
        ) {
            let (mut cork, writes) = corked(most);
            let mut sent: Vec<u8> = Vec::new();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                for (n, (len, flush)) in lens.into_iter().enumerate() {
                    let bytes: Vec<u8> = (0..len).map(|i| (i + n) as u8).collect();
                    cork.write_all(&bytes).await.unwrap();
                    sent.extend(bytes);
                    if flush {
                        cork.flush().await.unwrap();
                        assert_eq!(writes.lock().unwrap().concat(), sent);
                    }
                }
                cork.shutdown().await.unwrap();
            });
            prop_assert_eq!(writes.lock().unwrap().concat(), sent);
        }
    }
}
