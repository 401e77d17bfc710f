//! The memory budget: what tables may take together, counted before it is taken.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Bytes promised to tables, against a limit.
pub struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of `limit` bytes; `None` is no limit.
    pub fn new(limit: Option<u64>) -> Budget {
        Budget { limit: limit.unwrap_or(u64::MAX), used: AtomicU64::new(0) }
    }

    /// Takes bytes, or says how many are missing and takes none.
    pub fn take(&self, bytes: u64) -> Result<()> {
        let take = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(used) => Err(Error::OutOfMemory { needed: bytes, free: self.limit - used, limit: self.limit }),
        }
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
