//! The threads that serve connections.
//!
//! Each has a runtime of its own, and connections are dealt out to them: all that happens to a request happens on one thread. On one
//! runtime of several threads, whoever is woken wakes the next to look for more work, and that one takes the processor that a client
//! on the same host has need of.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

use super::listen::{Arrival, Connection};
use crate::awake;

/// Connections as a thread serves them.
pub type Connections = ReceiverStream<io::Result<Connection>>;

/// Deals out connections to threads.
pub struct Dealer {
    lanes: Vec<Lane>,
}

/// With its thread, among whose connections it counts while it holds that.
type Dealt = (Arrival, Arc<awake::Server>);

/// The way to a thread.
struct Lane {
    arrivals: mpsc::UnboundedSender<Dealt>,
    /// A reference to it for each connection, and some more that all threads have.
    thread: Arc<awake::Server>,
}

impl Dealer {
    /// Hands a connection to the thread that has the fewest.
    pub fn deal(&self, arrival: Arrival) {
        let lane = self.lanes.iter().min_by_key(|lane| Arc::strong_count(&lane.thread)).expect("there is a thread");
        // A thread that takes no more is ending, and so is the server.
        let _ = lane.arrivals.send((arrival, Arc::clone(&lane.thread)));
    }

    /// Resolves when no thread takes connections any more.
    pub async fn closed(&self) {
        future::join_all(self.lanes.iter().map(|lane| lane.arrivals.closed())).await;
    }
}

/// Threads that serve until they are done, or until this is dropped.
pub struct Threads {
    threads: Vec<Thread>,
}

struct Thread {
    /// Ends it when it is dropped.
    stop: Option<oneshot::Sender<()>>,
    done: Option<oneshot::Receiver<Result<()>>>,
    handle: Option<JoinHandle<()>>,
}

impl Threads {
    /// Starts so many threads, each of which runs what `serve` makes of its connections, and does not go to sleep for a while after
    /// something came or went on them.
    pub fn start<F>(
        count: usize,
        awake_for: Duration,
        serve: impl Fn(Connections) -> F + Clone + Send + 'static,
    ) -> Result<(Threads, Dealer)>
    where
        F: Future<Output = Result<()>>,
    {
        let (mut threads, mut lanes) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (arrivals, arrived) = mpsc::unbounded_channel();
            let (stop, stopped) = oneshot::channel();
            let (said, done) = oneshot::channel();
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let serve = serve.clone();
            let thread = Arc::<awake::Server>::default();
            let this = Arc::clone(&thread);
            let run = move || {
                let (accepted, connections) = mpsc::channel(16);
                let ended = runtime.block_on(async {
                    tokio::spawn(take(arrived, accepted));
                    tokio::spawn(async move { this.stay_awake(awake_for).await });
                    tokio::select! {
                        ended = serve(ReceiverStream::new(connections)) => ended,
                        // Nothing is ever sent: the other end is gone.
                        _ = stopped => Ok(()),
                    }
                });
                // What has not ended by now is not waited for.
                runtime.shutdown_background();
                // Nobody may be there to hear it.
                let _ = said.send(ended);
            };
            let handle = std::thread::Builder::new().name("hotrow-serve".into()).spawn(run)?;
            threads.push(Thread { stop: Some(stop), done: Some(done), handle: Some(handle) });
            lanes.push(Lane { arrivals, thread });
        }
        Ok((Threads { threads }, Dealer { lanes }))
    }

    /// Resolves when all threads are done, or one has failed.
    pub async fn done(mut self) -> Result<()> {
        let done = self.threads.iter_mut().filter_map(|thread| thread.done.take());
        let done = done.map(async |done| done.await.context("a thread that serves connections has panicked")?);
        future::try_join_all(done).await.map(drop)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.threads.iter_mut().for_each(|thread| drop(thread.stop.take()));
        for handle in self.threads.iter_mut().filter_map(|thread| thread.handle.take()) {
            // One that has panicked has said so.
            let _ = handle.join();
        }
    }
}

/// Makes connections of what arrives, until nobody takes them.
async fn take(mut arrived: mpsc::UnboundedReceiver<Dealt>, accepted: mpsc::Sender<io::Result<Connection>>) {
    loop {
        let arrival = tokio::select! {
            arrival = arrived.recv() => arrival,
            () = accepted.closed() => return,
        };
        let Some((arrival, thread)) = arrival else { return };
        let accepted = accepted.clone();
        // A slow handshake must not keep others waiting.
        tokio::spawn(async move {
            if let Some(connection) = arrival.connect(thread).await {
                let _ = accepted.send(Ok(connection)).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_fails_on_one_thread_is_told_at_once() {
        let (threads, _dealer) = Threads::start(3, Duration::ZERO, |connections| async {
            // The others wait for connections.
            match std::thread::current().id() {
                id if FAILS.get_or_init(|| id) == &id => Err(anyhow::anyhow!("no more")),
                _ => {
                    let _connections = connections;
                    future::pending().await
                }
            }
        })
        .unwrap();
        static FAILS: std::sync::OnceLock<std::thread::ThreadId> = std::sync::OnceLock::new();
        let done =
            tokio::time::timeout(Duration::from_secs(10), threads.done()).await.expect("the others are waited for");
        assert_eq!(done.unwrap_err().to_string(), "no more");
    }

    #[tokio::test]
    async fn threads_end_when_they_are_dropped() {
        let alive = Arc::new(());
        let (threads, dealer) = Threads::start(2, Duration::ZERO, {
            let alive = Arc::clone(&alive);
            move |connections| {
                let alive = Arc::clone(&alive);
                async move {
                    let _held = (alive, connections);
                    future::pending().await
                }
            }
        })
        .unwrap();
        drop(threads);
        assert_eq!(Arc::strong_count(&alive), 1, "a thread still has what it served");
        tokio::time::timeout(Duration::from_secs(10), dealer.closed()).await.expect("they still take connections");
    }
}
