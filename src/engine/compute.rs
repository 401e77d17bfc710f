//! Work that is shared between the thread that brings it and the compute threads.

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Requests of fewer rows are left to the thread that brings them: it is done with them in about the time that it takes to wake another,
/// which takes a processor from whoever has it.
const PARALLEL_ROWS: usize = 16_384;

/// Threads that help with large requests.
pub struct Compute {
    /// One thread fewer than may work at a time: whoever brings a request works too. `None` where nobody helps.
    helpers: Option<rayon::ThreadPool>,
}

impl Compute {
    /// Up to `threads` at work on a request; 0 is as many as the machine has.
    pub fn new(threads: usize) -> Result<Compute> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let build = |helpers| {
            let name = |i| format!("hotrow-compute-{i}");
            rayon::ThreadPoolBuilder::new().num_threads(helpers).thread_name(name).build()
        };
        let helpers = (threads > 1).then(|| build(threads - 1)).transpose();
        Ok(Compute { helpers: helpers.map_err(|e| Error::System(e.to_string()))? })
    }

    /// Whether others help with a request of this many rows. They do not help a thread that is itself one of rayon's:
    /// while it waited for them it would be lent to other work, which might wait for the locks that it holds.
    pub fn helps(&self, rows: usize) -> bool {
        self.helpers.is_some() && rows >= PARALLEL_ROWS && rayon::current_thread_index().is_none()
    }

    /// Runs the jobs of a request of this many rows. The caller begins at once and the helpers join when they are awake:
    /// to wake a thread takes as long as thousands of rows.
    pub fn each<J: Send>(&self, rows: usize, jobs: Vec<J>, run: impl Fn(J) + Sync) {
        let Some(helpers) = self.helpers.as_ref().filter(|_| self.helps(rows) && jobs.len() > 1) else {
            return jobs.into_iter().for_each(run);
        };
        let wanted = helpers.current_num_threads().min(jobs.len() - 1);
        let jobs = Mutex::new(jobs.into_iter());
        let work = || {
            // The lock must not be held while a job runs, as it would be in the head of a `while let`.
            let next = || jobs.lock().next();
            while let Some(job) = next() {
                run(job);
            }
        };
        helpers.in_place_scope(|scope| {
            (0..wanted).for_each(|_| scope.spawn(|_| work()));
            work();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_run_once_whoever_runs_it() {
        for threads in [1, 2, 5] {
            let compute = Compute::new(threads).unwrap();
            for count in [0, 1, 2, 7, 1000] {
                let mut runs = vec![0; count];
                compute.each(PARALLEL_ROWS, runs.iter_mut().collect(), |run| *run += 1);
                assert_eq!(runs, vec![1; count]);
            }
        }
    }

    #[test]
    fn a_panic_of_a_helper_reaches_the_caller() {
        let compute = Compute::new(2).unwrap();
        let caller = std::thread::current().id();
        let run = |_| {
            // The caller leaves jobs to the helper, which fails at its first.
            match std::thread::current().id() == caller {
                true => std::thread::sleep(std::time::Duration::from_millis(1)),
                false => panic!("a job that fails"),
            }
        };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            compute.each(PARALLEL_ROWS, (0..10_000).collect(), run);
        }));
        assert!(caught.is_err());
    }
}
