//! Files that are read again when they change: certificates and tokens.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;

/// How often files are looked at. Renewed certificates are good for days before they are needed.
const EVERY: Duration = Duration::from_secs(1);

/// What was made from files, the newest that could be made.
pub struct Reloaded<T> {
    current: ArcSwap<T>,
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Makes it now, and again whenever one of `files` changes. Files that cannot be used leave the old one in place.
    pub fn new(
        what: &'static str,
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, String> + Send + 'static,
    ) -> Result<Arc<Reloaded<T>>, String> {
        let mut seen = stamps(&files);
        let reloaded = Arc::new(Reloaded { current: ArcSwap::from_pointee(make()?) });
        let weak = Arc::downgrade(&reloaded);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(EVERY).await;
                let Some(reloaded) = weak.upgrade() else { return };
                let now = stamps(&files);
                if now == seen {
                    continue;
                }
                seen = now;
                match make() {
                    Ok(new) => {
                        reloaded.current.store(Arc::new(new));
                        tracing::info!("{what} changed and were read again");
                    }
                    Err(error) => tracing::error!("{what} changed but cannot be used, the old ones stay: {error}"),
                }
            }
        });
        Ok(reloaded)
    }

    /// The newest.
    pub fn get(&self) -> Arc<T> {
        self.current.load_full()
    }
}

/// When files changed and how long they are.
fn stamps(files: &[PathBuf]) -> Vec<Option<(SystemTime, u64)>> {
    files
        .iter()
        .map(|file| std::fs::metadata(file).ok().and_then(|meta| Some((meta.modified().ok()?, meta.len()))))
        .collect()
}
