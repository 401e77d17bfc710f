//! The memory budget: what tables may take together, counted before it is taken.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Bytes promised to tables, against a limit.
pub struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of `limit` bytes; `None` is no limit.
    pub fn new(limit: Option<u64>) -> Budget {
        Budget { limit: AtomicU64::new(limit.unwrap_or(u64::MAX)), used: AtomicU64::new(0) }
    }

    /// Takes bytes, or says how many are missing and takes none.
    pub fn take(&self, bytes: u64) -> Result<()> {
        let limit = self.limit.load(Ordering::Relaxed);
        let take = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(used) => Err(Error::OutOfMemory { needed: bytes, free: limit.saturating_sub(used), limit }),
        }
    }

    /// Another limit; what is taken stays taken.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.limit.store(limit.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Gives bytes back.
    pub fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes taken.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}
