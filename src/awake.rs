//! Waiting awake: for a while, whoever waits for a peer asks again and again whether something has come, instead of going to sleep.
//!
//! Who sleeps must be woken. That takes the peer some of the time that it has for sending, and on virtual machines the sleeper may need a hundred
//! microseconds to come back, which is as long as a shard takes to read the rows of a large pull. Whoever waits awake gives way to other tasks
//! and threads at every turn, so that what has work to do on the same processor does it.

use std::pin::pin;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use tokio::runtime::{Handle, RuntimeFlavor};

/// On one processor whoever waits awake only keeps the peer from working.
static SEVERAL_PROCESSORS: LazyLock<bool> =
    LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|count| count.get() > 1));

/// Whoever gave way and was without the processor for so long shares it with somebody who has much to do. Staying awake is bad then: who sleeps
/// and is woken gets the processor at once, and who only gave way comes last.
const CROWDED: Duration = Duration::from_millis(1);
/// For how long everybody in this process then sleeps where they would stay awake.
const CROWDED_FOR: Duration = Duration::from_secs(1);
/// Until when that is, in microseconds since `EPOCH`.
static CROWDED_UNTIL: AtomicU64 = AtomicU64::new(0);
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Whether nobody was in the way lately.
fn is_quiet() -> bool {
    EPOCH.elapsed().as_micros() as u64 >= CROWDED_UNTIL.load(Ordering::Relaxed)
}

/// Gives way to other threads of this processor, and says how long they had it.
fn give_way() -> Duration {
    let begun = Instant::now();
    std::thread::yield_now();
    let given = begun.elapsed();
    if given >= CROWDED {
        CROWDED_UNTIL.store((EPOCH.elapsed() + CROWDED_FOR).as_micros() as u64, Ordering::Relaxed);
    }
    given
}

/// A caller, who waits for answers.
pub struct Caller {
    most: Duration,
    /// Whether the last answer took longer than that: so may the next.
    slow: AtomicBool,
}

impl Caller {
    /// One that stays awake for at most so long.
    pub fn new(most: Duration) -> Caller {
        Caller { most, slow: AtomicBool::new(false) }
    }

    /// Waits for an answer: awake, if the thread has nothing else to do and the answer before came soon.
    pub async fn wait<F: Future>(&self, answer: F) -> F::Output {
        // On a runtime of several threads another one has the sockets, and is the one that sleeps.
        let only_thread =
            Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::CurrentThread);
        let awake = *SEVERAL_PROCESSORS && only_thread && !self.slow.load(Ordering::Relaxed);
        let begun = Instant::now();
        let mut answer = pin!(answer);
        let mut turn = pin!(None);
        let answer = std::future::poll_fn(|cx| {
            let answer = answer.as_mut().poll(cx);
            if awake && answer.is_pending() && begun.elapsed() < self.most && is_quiet() {
                give_way();
                turn.set(Some(tokio::task::yield_now()));
                let polled = turn.as_mut().as_pin_mut().map(|turn| turn.poll(cx));
                debug_assert!(polled.is_some_and(|turn| turn.is_pending()), "the task comes back after the others");
            }
            answer
        })
        .await;
        self.slow.store(begun.elapsed() >= self.most, Ordering::Relaxed);
        answer
    }
}

/// A thread that serves connections.
#[derive(Default)]
pub struct Server {
    /// How often something came or went.
    stirs: AtomicU64,
    /// Whether what did so last went: an answer, after which the next request begins.
    answered: AtomicBool,
    asleep: AtomicWaker,
}

impl Server {
    /// Something came on a connection. `true` if it is the first after an answer.
    pub fn came(&self) -> bool {
        self.stir();
        self.answered.swap(false, Ordering::Relaxed)
    }

    /// Something went.
    pub fn went(&self) {
        self.stir();
        self.answered.store(true, Ordering::Relaxed);
    }

    fn stir(&self) {
        self.stirs.fetch_add(1, Ordering::Relaxed);
        self.asleep.wake();
    }

    /// Keeps the thread that polls this awake after each time that something came or went, for so much of the processor's time.
    pub async fn stay_awake(&self, most: Duration) {
        if most.is_zero() || !*SEVERAL_PROCESSORS {
            return;
        }
        let mut seen = 0;
        loop {
            std::future::poll_fn(|cx| {
                self.asleep.register(cx.waker());
                match self.stirs.load(Ordering::Relaxed) == seen {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                }
            })
            .await;
            // Of the processor's time: what others had of it does not count.
            let mut until = Instant::now();
            loop {
                let stirs = self.stirs.load(Ordering::Relaxed);
                if stirs != seen {
                    seen = stirs;
                    until = Instant::now() + most;
                }
                if !is_quiet() || Instant::now() >= until {
                    break;
                }
                until += give_way();
                tokio::task::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A future that is never ready, and how often it was asked.
    async fn never(polls: &AtomicUsize) {
        std::future::poll_fn(|_| {
            polls.fetch_add(1, Ordering::Relaxed);
            Poll::<()>::Pending
        })
        .await;
    }

    /// How often it is asked in two stretches of 50 ms.
    async fn polls_of_a_wait(caller: &Caller) -> (usize, usize) {
        let polls = AtomicUsize::new(0);
        let first = tokio::time::timeout(Duration::from_millis(100), async {
            tokio::join!(caller.wait(never(&polls)), async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let first = polls.load(Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
                assert!(polls.load(Ordering::Relaxed) <= first + 2, "it goes on asking after its time");
            })
        });
        assert!(first.await.is_err());
        let first = polls.load(Ordering::Relaxed);
        // The wait was given up, so that nobody knows yet that it was long.
        let again = AtomicUsize::new(0);
        let long = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        caller.wait(long).await;
        let _ = tokio::time::timeout(Duration::from_millis(20), caller.wait(never(&again))).await;
        (first, again.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_caller_asks_again_and_again_for_a_while_unless_the_last_answer_took_long() {
        let (first, after_a_long_one) = polls_of_a_wait(&Caller::new(Duration::from_millis(5))).await;
        // Where others need the processors it sleeps.
        assert!(!*SEVERAL_PROCESSORS || first > 10 || !is_quiet(), "{first} times in its time");
        assert!(after_a_long_one <= 3, "{after_a_long_one} times after a long one");
        let (first, _) = polls_of_a_wait(&Caller::new(Duration::ZERO)).await;
        assert!(first <= 4, "{first} times without any time");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn on_a_runtime_of_several_threads_a_caller_sleeps() {
        let (first, _) = polls_of_a_wait(&Caller::new(Duration::from_millis(5))).await;
        assert!(first <= 4, "{first} times");
    }

    /// Sockets and other tasks get their turn while a caller waits awake for longer than all of it takes.
    #[tokio::test]
    async fn others_go_on_while_a_caller_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut stream = listener.accept().await.unwrap().0;
            while let Ok(byte) = stream.read_u8().await {
                stream.write_u8(byte + 1).await.unwrap();
            }
        });
        let mut stream = TcpStream::connect(address).await.unwrap();
        let caller = Caller::new(Duration::from_secs(60));
        for byte in 0..100 {
            stream.write_u8(byte).await.unwrap();
            assert_eq!(caller.wait(stream.read_u8()).await.unwrap(), byte + 1);
        }
    }

    /// A thread that stays awake serves as others do, and sleeps when nothing comes: its runtime then waits for the next.
    #[tokio::test]
    async fn a_thread_stays_awake_and_goes_to_sleep() {
        let begun = Instant::now();
        let thread = std::sync::Arc::new(Server::default());
        let staying = std::sync::Arc::clone(&thread);
        let task = tokio::spawn(async move { staying.stay_awake(Duration::from_millis(2)).await });
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!thread.came(), "nothing was answered before");
            thread.went();
            assert!(thread.came(), "the first after an answer");
            assert!(!thread.came(), "the second");
        }
        // It registers its waker again only when it goes to sleep.
        while *SEVERAL_PROCESSORS && thread.asleep.take().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not sleep");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        task.abort();
    }
}
