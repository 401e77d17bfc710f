//! Several clients at a time.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::Store;

/// What clients do.
#[derive(Clone, Copy, PartialEq)]
pub enum What {
    Pull,
    Push,
}

impl What {
    pub fn name(self) -> &'static str {
        match self {
            What::Pull => "pull",
            What::Push => "push",
        }
    }

    /// Does it once. `numbers` are the rows, or the gradients.
    pub fn run(self, store: &mut dyn Store, keys: &[u64], numbers: &mut [f32]) {
        match self {
            What::Pull => store.pull(keys, numbers),
            What::Push => store.push(keys, numbers),
        }
        .unwrap();
    }
}

/// Rows per second of clients that each do one request after the other for a while, a thread each. `numbers` are the
/// gradients of a push.
pub fn closed_loop<S: Store>(
    stores: &mut [S],
    what: What,
    batches: &[Vec<u64>],
    numbers: &[f32],
    time: Duration,
) -> f64 {
    let ready = Barrier::new(stores.len());
    let rates = std::thread::scope(|scope| {
        let threads: Vec<_> = stores
            .iter_mut()
            .enumerate()
            .map(|(n, store)| {
                let (ready, mut numbers) = (&ready, numbers.to_vec());
                scope.spawn(move || {
                    ready.wait();
                    let begun = Instant::now();
                    let mut rows = 0;
                    for keys in batches.iter().cycle().skip(n * 7 % batches.len()) {
                        if begun.elapsed() >= time {
                            break;
                        }
                        what.run(store, keys, &mut numbers);
                        rows += keys.len();
                    }
                    rows as f64 / begun.elapsed().as_secs_f64()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<f64>>()
    });
    rates.iter().sum()
}

/// Lets this thread's sleeps end when they should, instead of up to 50 microseconds later.
pub fn wake_in_time() {
    // SAFETY: sets a number of this thread and touches no memory.
    let set = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}
