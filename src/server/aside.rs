//! A thread that serves a client on the same host steps aside where both run on one processor.
//!
//! Who wakes a thread tends to get it onto its own processor. On hosts of few processors the scheduler does not look for an idle one once
//! these are half busy, and server and client, which work at the same time on what is on its way, take turns instead until it balances.

use std::ops::RangeInclusive;
use std::os::fd::AsRawFd as _;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use socket2::SockRef;
use tokio::net::TcpStream;

/// How long a connection must have been the only one on which something came. Where there are several clients, each has a processor that
/// some thread runs on, and nothing is gained.
const ALONE: u64 = 10_000;
/// When a thread may move again, at the earliest and at the latest. To move takes some tens of microseconds, and caches are left behind.
const AGAIN: RangeInclusive<u64> = 1_000..=1_000_000;

/// The connection on which something came last, and since when.
static LAST: AtomicI32 = AtomicI32::new(-1);
static SINCE: AtomicU64 = AtomicU64::new(0);
/// When a thread moved, and how long it then stays where it is. It doubles as long as moving does not help.
static MOVED: AtomicU64 = AtomicU64::new(0);
static STAYS: AtomicU64 = AtomicU64::new(*AGAIN.start());
/// All times are in microseconds since then.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Moves this thread if the client, which is the only one, has just sent a request from its processor. Of two threads that do this at once one may
/// be forgotten, which is no harm.
pub fn step(stream: &TcpStream) {
    let now = EPOCH.elapsed().as_micros() as u64;
    let past = |since: &AtomicU64| now.saturating_sub(since.load(Ordering::Relaxed));
    let connection = stream.as_raw_fd();
    if LAST.swap(connection, Ordering::Relaxed) != connection {
        SINCE.store(now, Ordering::Relaxed);
    }
    if past(&SINCE) < ALONE {
        return;
    }
    // Where what came was taken in, which on one host is where it was sent.
    let Ok(client) = SockRef::from(stream).cpu_affinity() else { return };
    if client != sched_getcpu() {
        STAYS.store(*AGAIN.start(), Ordering::Relaxed);
        return;
    }
    let stays = STAYS.load(Ordering::Relaxed);
    if past(&MOVED) >= stays {
        MOVED.store(now, Ordering::Relaxed);
        STAYS.store((2 * stays).min(*AGAIN.end()), Ordering::Relaxed);
        // A thread that cannot move stays, as it would without this.
        let _ = move_away();
    }
}

fn move_away() -> rustix::io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut others: CpuSet = allowed;
    others.unset(sched_getcpu());
    if others.count() > 0 {
        sched_setaffinity(None, &others)?;
        sched_setaffinity(None, &allowed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Both ends are on this thread here, and so on one processor: it moves, and may run wherever it could before.
    #[tokio::test]
    async fn a_thread_leaves_the_processor_of_its_only_client() {
        let allowed = sched_getaffinity(None).unwrap();
        if allowed.count() < 2 {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut served = listener.accept().await.unwrap().0;
        // The system may move the thread between sending and looking.
        for _ in 0..100 {
            client.write_u8(1).await.unwrap();
            served.read_u8().await.unwrap();
            let before = sched_getcpu();
            step(&served);
            let moved = sched_getcpu() != before;
            assert_eq!(sched_getaffinity(None).unwrap(), allowed, "where it may run");
            if moved {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it stayed");
    }
}
