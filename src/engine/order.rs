//! The one order of changes.
//!
//! Every change takes its LSN under one lock, is handed to the log there, and then visits the partitions from the
//! first to the last without letting anyone overtake: it takes the next partition's lock before it gives the
//! last one back. So each partition applies its part of every change in the order of LSNs, while a long row of
//! small changes still works on many partitions at once.

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

use super::clients::Clients;
use super::partition::Partition;
use super::request::{Change, Lsn};
use crate::error::{Error, Result};

/// Takes each change before it is applied; an error refuses the change, with the reason.
///
/// It is called under the lock that orders changes, and sometimes with every partition held: it should only copy the
/// change into a buffer. It must not call the engine, which would wait for itself, and it must not wait for a disk.
pub type LogHook = Box<dyn FnMut(Lsn, &Change<'_>) -> std::result::Result<(), String> + Send>;

/// Where changes get their place.
pub struct Order {
    state: Mutex<State>,
}

struct State {
    last: Lsn,
    log: Option<LogHook>,
    clients: Clients,
}

/// The right to put one change in order.
pub struct Turn<'a> {
    state: MutexGuard<'a, State>,
}

impl Order {
    /// No change yet.
    pub fn new() -> Order {
        Order { state: Mutex::new(State { last: Lsn(0), log: None, clients: Clients::default() }) }
    }

    /// Hands every change from now on to `log` before it is applied.
    pub fn set_log(&self, log: LogHook) {
        self.state.lock().log = Some(log);
    }

    /// The place of the last change.
    pub fn last(&self) -> Lsn {
        self.state.lock().last
    }

    /// How many clients are open.
    pub fn open_clients(&self) -> usize {
        self.state.lock().clients.len()
    }

    /// Waits for the right to put a change in order.
    pub fn turn(&self) -> Turn<'_> {
        Turn { state: self.state.lock() }
    }
}

impl Turn<'_> {
    /// The place of the last change.
    pub fn last(&self) -> Lsn {
        self.state.last
    }

    /// Whose pushes are remembered.
    pub fn clients(&mut self) -> &mut Clients {
        &mut self.state.clients
    }

    /// Goes on behind the place that a restored state had.
    pub fn go_on_after(&mut self, last: Lsn) {
        self.state.last = last;
    }

    /// Gives the change its place, or refuses it.
    pub fn place(&mut self, change: &Change<'_>) -> Result<Lsn> {
        let lsn = Lsn(self.state.last.0 + 1);
        if let Some(log) = &mut self.state.log {
            log(lsn, change).map_err(Error::NotOrdered)?;
        }
        self.state.last = lsn;
        Ok(lsn)
    }

    /// Visits the partitions one after the other; the next change follows one partition behind.
    pub fn walk(self, partitions: &[RwLock<Partition>], mut visit: impl FnMut(usize, &mut Partition)) {
        let mut turn = Some(self);
        let mut held: Option<RwLockWriteGuard<'_, Partition>> = None;
        for (place, partition) in partitions.iter().enumerate() {
            let mut guard = partition.write();
            drop(held.take());
            drop(turn.take());
            visit(place, &mut guard);
            held = Some(guard);
        }
    }

    /// Takes all partitions at once, when all earlier changes have left them. Later changes wait for this turn to be
    /// given back, and then for the partitions.
    pub fn take_all<'a>(&self, partitions: &'a [RwLock<Partition>]) -> Vec<RwLockWriteGuard<'a, Partition>> {
        partitions.iter().map(RwLock::write).collect()
    }
}
