//! A TCP proxy that drops, delays and cuts connections at random.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::random::Random;

/// A proxy before one shard.
pub struct Proxy {
    /// Where it is reached.
    pub address: String,
    wild: Arc<AtomicBool>,
    harm: Arc<AtomicUsize>,
    silent: Arc<AtomicBool>,
    cuts: watch::Sender<()>,
}

impl Proxy {
    /// Starts a proxy that is tame.
    pub async fn start(target: &str, seed: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (wild, harm, target) = (Arc::new(AtomicBool::new(false)), Arc::default(), target.to_string());
        let (silent, cuts) = (Arc::new(AtomicBool::new(false)), watch::Sender::new(()));
        let mut cut = cuts.subscribe();
        let proxy =
            Proxy { address, wild: Arc::clone(&wild), harm: Arc::clone(&harm), silent: Arc::clone(&silent), cuts };
        tokio::spawn(async move {
            let mut random = Random(seed);
            while let Ok((client, _)) = listener.accept().await {
                let moods = [0; 2].map(|_| Mood {
                    random: Random(random.bits()),
                    wild: Arc::clone(&wild),
                    harm: Arc::clone(&harm),
                    silent: None,
                });
                if moods[0].strikes(random.below(10)) {
                    continue;
                }
                let Ok(shard) = TcpStream::connect(&target).await else { continue };
                let _ = (client.set_nodelay(true), shard.set_nodelay(true));
                let ((from_client, to_client), (from_shard, to_shard)) = (client.into_split(), shard.into_split());
                let [there, mut back] = moods;
                back.silent = Some(Arc::clone(&silent));
                cut.mark_unchanged();
                let mut cut = cut.clone();
                tokio::spawn(async move {
                    // Whichever ends first ends both: the halves are dropped.
                    tokio::select! {
                        () = pump(from_client, to_shard, there) => {}
                        () = pump(from_shard, to_client, back) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        proxy
    }

    /// Lets it do harm, or not.
    pub fn set_wild(&self, wild: bool) {
        self.wild.store(wild, Ordering::Relaxed);
    }

    /// Holds back what the shard says, or not.
    pub fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        self.cuts.send_replace(());
    }

    /// How much harm it has done.
    pub fn harm(&self) -> usize {
        self.harm.load(Ordering::Relaxed)
    }
}

/// What happens to one direction of one connection.
struct Mood {
    random: Random,
    wild: Arc<AtomicBool>,
    harm: Arc<AtomicUsize>,
    /// For answers: whether they are held back.
    silent: Option<Arc<AtomicBool>>,
}

impl Mood {
    /// Whether harm is done, which it is if a die shows zero.
    fn strikes(&self, die: u64) -> bool {
        let strikes = die == 0 && self.wild.load(Ordering::Relaxed);
        self.harm.fetch_add(usize::from(strikes), Ordering::Relaxed);
        strikes
    }
}

/// Carries bytes until it is cut. Bytes arrive in order or not at all, as TCP promises.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut mood: Mood) {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let Ok(count @ 1..) = from.read(&mut bytes).await else { return };
        while mood.silent.as_ref().is_some_and(|silent| silent.load(Ordering::Relaxed)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (cut, loss, delay) = (mood.random.below(40), mood.random.below(60), mood.random.below(8));
        if mood.strikes(delay) {
            tokio::time::sleep(Duration::from_millis(mood.random.below(40))).await;
        }
        if mood.strikes(loss) {
            // What arrives from now on is lost, and nobody is told for a while.
            let _ = tokio::time::timeout(Duration::from_millis(300), async {
                while matches!(from.read(&mut bytes).await, Ok(1..)) {}
            })
            .await;
            return;
        }
        let part = mood.random.below(count as u64 + 1) as usize;
        let cut = mood.strikes(cut);
        if to.write_all(&bytes[..if cut { part } else { count }]).await.is_err() || cut {
            return;
        }
    }
}
