//! Work that must not be in the way of requests.

use anyhow::{Context as _, Result};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// The least that a system gives a thread which others compete with.
const LEAST_PRIORITY: i32 = 19;
/// Threads that write side by side.
const WRITERS: usize = 4;

/// Runs a future on threads of its own, which only get what requests leave. It goes on if nobody waits for it any more.
pub async fn in_background<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let (done, result) = oneshot::channel();
    let run = move || {
        yield_to_others();
        let threads = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(WRITERS)
            .thread_name("hotrow-save")
            .on_thread_start(yield_to_others)
            .build();
        let finished = match threads {
            Ok(threads) => threads.block_on(work),
            Err(error) => Err(error.into()),
        };
        // Nobody may be waiting any more.
        let _ = done.send(finished);
    };
    std::thread::Builder::new().name("hotrow-save".into()).spawn(run)?;
    result.await.context("a thread has panicked")?
}

/// Where the system refuses, the work is done with the priority that it has.
fn yield_to_others() {
    if let Err(error) = rustix::process::setpriority_process(None, LEAST_PRIORITY) {
        tracing::debug!("saving keeps its priority: {error}");
    }
}
