//! Waiting longer and longer, by chance, so that clients do not come back all at once.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// How long to wait before the next attempt.
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { next: FIRST }
    }
}

impl Backoff {
    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.next = FIRST;
    }

    /// Waits between half and all of a time that doubles.
    pub async fn wait(&mut self) {
        let mut byte = [0u8];
        // Without randomness it waits the same time as others; that is all.
        let _ = getrandom::fill(&mut byte);
        tokio::time::sleep(self.next / 2 + self.next / 2 * u32::from(byte[0]) / 255).await;
        self.next = (self.next * 2).min(LONGEST);
    }
}
