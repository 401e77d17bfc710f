//! Exactly once: which pushes of which clients a partition has applied.
//!
//! A partition remembers, per open client, the highest sequence and which of the 64 below it were applied. The windows
//! belong to the partitions' state; they are kept together, beside the order of changes, because a change is recognised
//! as a duplicate at the moment it would get its place, whole, before any partition sees it.

use std::collections::HashMap;

use crate::error::{Error, Result};

/// A client object: 128 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u128);

impl std::fmt::Display for ClientId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Where a push comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The client.
    pub client: ClientId,
    /// Which of its pushes this is, from 1. A retry has the same number.
    pub sequence: u64,
}

/// How many sequences below the highest are told apart.
const WINDOW: u64 = 64;

/// What one partition remembers of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The highest sequence applied; 0 is none.
    pub highest: u64,
    /// Bit i: whether `highest - 1 - i` was applied.
    pub below: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    New,
    Applied,
    /// Too far below to be told.
    Forgotten,
}

impl Window {
    fn seen(self, sequence: u64) -> Seen {
        match self.highest.checked_sub(sequence) {
            None => Seen::New,
            Some(0) => Seen::Applied,
            Some(distance) if distance > WINDOW => Seen::Forgotten,
            Some(distance) if self.below >> (distance - 1) & 1 == 1 => Seen::Applied,
            Some(_) => Seen::New,
        }
    }

    fn mark(&mut self, sequence: u64) {
        match sequence.checked_sub(self.highest) {
            None => self.below |= 1 << (self.highest - sequence - 1),
            Some(0) => {}
            Some(ahead) => {
                let shifted = if ahead >= WINDOW { 0 } else { self.below << ahead };
                // The highest so far becomes the one that is `ahead` below.
                let last = if self.highest > 0 && ahead <= WINDOW { 1 << (ahead - 1) } else { 0 };
                *self = Window { highest: sequence, below: shifted | last };
            }
        }
    }
}

/// The open clients, and a window for each of the owned partitions.
#[derive(Default)]
pub struct Clients {
    open: HashMap<ClientId, Vec<Window>>,
}

impl Clients {
    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Those that are open.
    pub fn ids(&self) -> Vec<ClientId> {
        self.open.keys().copied().collect()
    }

    /// Whether a client is open.
    pub fn is_open(&self, client: ClientId) -> bool {
        self.open.contains_key(&client)
    }

    /// Remembers a client from now on.
    pub fn open(&mut self, client: ClientId, partitions: usize) {
        self.open.entry(client).or_insert_with(|| vec![Window::default(); partitions]);
    }

    /// Forgets a client.
    pub fn close(&mut self, client: ClientId) {
        self.open.remove(&client);
    }

    /// Which of the partitions `to` have applied a push already.
    pub fn applied(&self, origin: Origin, to: &[usize]) -> Result<Vec<bool>> {
        let windows = self.open.get(&origin.client).ok_or(Error::UnknownClient(origin.client))?;
        if origin.sequence == 0 {
            return Err(Error::SequenceForgotten { sequence: 0, oldest: 1 });
        }
        let mut applied = vec![false; windows.len()];
        for &place in to {
            applied[place] = match windows[place].seen(origin.sequence) {
                Seen::New => false,
                Seen::Applied => true,
                Seen::Forgotten => {
                    let oldest = windows[place].highest - WINDOW;
                    return Err(Error::SequenceForgotten { sequence: origin.sequence, oldest });
                }
            };
        }
        Ok(applied)
    }

    /// Notes that the partitions `to` apply a push.
    pub fn mark(&mut self, origin: Origin, to: &[usize]) {
        if let Some(windows) = self.open.get_mut(&origin.client) {
            to.iter().for_each(|&place| windows[place].mark(origin.sequence));
        }
    }

    /// What each of the partitions remembers, by client. Everybody waits while this is copied.
    pub fn windows(&self, partitions: usize) -> Vec<Vec<(ClientId, Window)>> {
        let mut clients: Vec<(&ClientId, &Vec<Window>)> = self.open.iter().collect();
        clients.sort_unstable_by_key(|(client, _)| **client);
        let of = |place: usize| clients.iter().map(|(client, windows)| (**client, windows[place])).collect();
        (0..partitions).map(of).collect()
    }

    /// Takes over what the partition at `place` remembers.
    pub fn restore(&mut self, place: usize, partitions: usize, windows: &[(ClientId, Window)]) {
        for &(client, window) in windows {
            self.open(client, partitions);
            if let Some(windows) = self.open.get_mut(&client) {
                windows[place] = window;
            }
        }
    }

    /// Feeds what the partition at `place` remembers to `write`, for comparing copies.
    pub fn digest(&self, place: usize, mut write: impl FnMut(&[u8])) {
        let mut clients: Vec<_> = self.open.iter().map(|(client, windows)| (client.0, windows[place])).collect();
        clients.sort_unstable_by_key(|(client, _)| *client);
        for (client, window) in clients {
            write(&client.to_le_bytes());
            write(&window.highest.to_le_bytes());
            write(&window.below.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_window_is_a_set_that_forgets_what_is_far_below(sequences in prop::collection::vec(1u64..300, 1..200)) {
            let mut window = Window::default();
            let mut applied = std::collections::BTreeSet::new();
            for sequence in sequences {
                let highest = applied.last().copied().unwrap_or(0);
                let expected = match sequence {
                    _ if sequence + 64 < highest => Seen::Forgotten,
                    _ if applied.contains(&sequence) => Seen::Applied,
                    _ => Seen::New,
                };
                prop_assert_eq!(window.seen(sequence), expected);
                if expected == Seen::New {
                    window.mark(sequence);
                    applied.insert(sequence);
                }
            }
        }
    }
}
