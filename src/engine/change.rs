//! The engine's changing methods: from a checked request to its order and its application.

use std::sync::atomic::Ordering;

use parking_lot::RwLockWriteGuard;

use super::apply::{self, Numbering, Visit};
use super::exact;
use super::gpu_change::{self, Collected};
use super::observe::{Observer, Seen};
use super::order::Turn;
use super::partition::Partition;
use super::route::{Groups, Route};
use super::table::Table;
use super::{Alteration, Assign, Change, ClientId, Engine, Lsn, Origin, Push, Remove, Touch};
use crate::error::{Error, Result};
use crate::numeric::Rule;
use crate::table::{KeySpace, TableSpec};

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Its place in the order; of a duplicate, the place of the last change.
    pub lsn: Lsn,
    /// Whether it had been applied before, and was not applied again.
    pub duplicate: bool,
}

impl Engine {
    /// Checks a change, puts it in order, and applies it. An error means that nothing was changed.
    pub fn apply(&self, change: &Change<'_>) -> Result<Lsn> {
        Ok(self.apply_once(change)?.lsn)
    }

    fn apply_once(&self, change: &Change<'_>) -> Result<Pushed> {
        let applied = |lsn| Pushed { lsn, duplicate: false };
        match *change {
            Change::Create(spec) => self.apply_create(change, spec).map(applied),
            Change::Drop(name) => self.apply_drop(change, name).map(applied),
            Change::Alter(name, alteration) => self.apply_alter(change, name, &alteration).map(applied),
            Change::OpenClient(client) => self.apply_open(change, client).map(applied),
            Change::CloseClient(client) => self.apply_close(change, client).map(applied),
            Change::Push(pushes) | Change::PushOnce(_, pushes) => {
                let tables = self.resolve(pushes.iter().map(|push| push.table))?;
                let mut parts = Vec::with_capacity(pushes.len());
                for (table, push) in tables.iter().zip(pushes) {
                    self.check_push(table, push)?;
                    let action = Action::Push { push, rule: table.rule(push.learning_rate, push.step) };
                    parts.push(Part::new(self, table, push.keys, action));
                }
                self.apply_parts(change, parts)
            }
            Change::Touch(touches) => {
                let tables = self.resolve(touches.iter().map(|touch| touch.table))?;
                let mut parts = Vec::with_capacity(touches.len());
                for (table, touch) in tables.iter().zip(touches) {
                    self.check_keys(table, touch.keys)?;
                    parts.push(Part::new(self, table, touch.keys, Action::Touch));
                }
                self.apply_parts(change, parts)
            }
            Change::Assign(assigns) => {
                let tables = self.resolve(assigns.iter().map(|assign| assign.table))?;
                let mut parts = Vec::with_capacity(assigns.len());
                for (table, assign) in tables.iter().zip(assigns) {
                    self.check_assign(table, assign)?;
                    parts.push(Part::new(self, table, assign.keys, Action::Assign(assign)));
                }
                self.apply_parts(change, parts)
            }
            Change::Remove(removes) => {
                let tables = self.resolve(removes.iter().map(|remove| remove.table))?;
                let mut parts = Vec::with_capacity(removes.len());
                for (table, remove) in tables.iter().zip(removes) {
                    self.check_keys(table, remove.keys)?;
                    parts.push(Part::new(self, table, remove.keys, Action::Remove));
                }
                self.apply_parts(change, parts)
            }
        }
    }

    /// Makes a table. Making the same one again is fine and changes nothing.
    pub fn create(&self, spec: &TableSpec) -> Result<Lsn> {
        self.apply(&Change::Create(spec))
    }

    /// Forgets a table with all its rows.
    pub fn drop_table(&self, name: &str) -> Result<Lsn> {
        self.apply(&Change::Drop(name))
    }

    /// Applies gradients: each distinct key is stepped once.
    pub fn push(&self, pushes: &[Push<'_>]) -> Result<Lsn> {
        self.apply(&Change::Push(pushes))
    }

    /// Applies gradients, unless this push of this client was applied already. The client must be open.
    pub fn push_once(&self, origin: Origin, pushes: &[Push<'_>]) -> Result<Pushed> {
        self.apply_once(&Change::PushOnce(origin, pushes))
    }

    /// Remembers the pushes of a client from now on. Opening it again changes nothing.
    pub fn open_client(&self, client: ClientId) -> Result<Lsn> {
        self.apply(&Change::OpenClient(client))
    }

    /// Forgets a client. One that is not open is fine.
    pub fn close_client(&self, client: ClientId) -> Result<Lsn> {
        self.apply(&Change::CloseClient(client))
    }

    /// Changes hyper-parameters of a table.
    pub fn alter(&self, table: &str, alteration: Alteration) -> Result<Lsn> {
        self.apply(&Change::Alter(table, alteration))
    }

    /// Waits until every change that has its place is applied. Returns the place of the last.
    pub fn flush(&self) -> Lsn {
        let turn = self.order.turn();
        let last = turn.last();
        turn.walk(&self.partitions, |_, _| {});
        last
    }

    fn apply_open(&self, change: &Change<'_>, client: ClientId) -> Result<Lsn> {
        let mut turn = self.order.turn();
        if turn.clients().is_open(client) {
            return Ok(turn.last());
        }
        if turn.clients().len() >= self.config.max_clients {
            return Err(Error::TooManyClients(self.config.max_clients));
        }
        let lsn = turn.place(change)?;
        turn.clients().open(client, self.partitions.len());
        Ok(lsn)
    }

    fn apply_close(&self, change: &Change<'_>, client: ClientId) -> Result<Lsn> {
        let mut turn = self.order.turn();
        if !turn.clients().is_open(client) {
            return Ok(turn.last());
        }
        let lsn = turn.place(change)?;
        turn.clients().close(client);
        Ok(lsn)
    }

    /// Brings rows into the cache, ahead of a push.
    pub fn touch(&self, touches: &[Touch<'_>]) -> Result<Lsn> {
        self.apply(&Change::Touch(touches))
    }

    /// Sets rows.
    pub fn assign(&self, assigns: &[Assign<'_>]) -> Result<Lsn> {
        self.apply(&Change::Assign(assigns))
    }

    /// Forgets rows: they read as their initial values again.
    pub fn remove(&self, removes: &[Remove<'_>]) -> Result<Lsn> {
        self.apply(&Change::Remove(removes))
    }

    /// Orders and applies a change of rows that was checked.
    fn apply_parts(&self, change: &Change<'_>, mut parts: Vec<Part<'_>>) -> Result<Pushed> {
        if !self.promise_room(&mut parts)? {
            return self.apply_growing(change, parts);
        }
        let mut turn = self.order.turn();
        let lsn = match self.recognise(change, &mut turn, &mut parts) {
            Ok(Recognised::New(to)) => match self.place(change, &mut turn, &mut parts, &to) {
                Ok(lsn) => lsn,
                Err(error) => {
                    drop(turn);
                    self.release_room(&mut parts);
                    return Err(error);
                }
            },
            Ok(Recognised::Duplicate) => {
                drop(turn);
                self.release_room(&mut parts);
                return Ok(Pushed { lsn: self.flush(), duplicate: true });
            }
            Err(error) => {
                drop(turn);
                self.release_room(&mut parts);
                return Err(error);
            }
        };
        let unfinished = Unfinished(lsn);
        let rows: usize = parts.iter().map(|part| part.keys.len()).sum();
        // A GPU is given the work of all partitions at once.
        match rows >= LARGE || parts.iter().any(|part| part.table.cuda().is_some()) {
            true => {
                let mut held = turn.take_all(&self.partitions);
                drop(turn);
                self.apply_to_all(&parts, &mut held);
            }
            false => turn.walk(&self.partitions, |place, partition| {
                parts.iter().for_each(|part| part.apply(place, partition, self.config.seed, &mut Collected::default()));
            }),
        }
        unfinished.done();
        parts.into_iter().for_each(Part::end);
        Ok(Pushed { lsn, duplicate: false })
    }

    /// Whether a change is new, under the lock that orders changes: nothing can come between this and its place.
    fn recognise(&self, change: &Change<'_>, turn: &mut Turn<'_>, parts: &mut [Part<'_>]) -> Result<Recognised> {
        still_there(parts)?;
        let Change::PushOnce(origin, _) = *change else { return Ok(Recognised::New(Vec::new())) };
        let has_keys = |&place: &usize| parts.iter().any(|part| !part.groups.of(place).is_empty());
        let to: Vec<usize> = (0..self.partitions.len()).filter(has_keys).collect();
        let applied = turn.clients().applied(origin, &to)?;
        if !to.is_empty() && to.iter().all(|&place| applied[place]) {
            return Ok(Recognised::Duplicate);
        }
        for part in parts {
            part.applied = applied.clone();
        }
        Ok(Recognised::New(to))
    }

    /// Gives a new change its place, and what it needs to know of the changes before it.
    fn place(&self, change: &Change<'_>, turn: &mut Turn<'_>, parts: &mut [Part<'_>], to: &[usize]) -> Result<Lsn> {
        let lsn = turn.place(change)?;
        if let Change::PushOnce(origin, _) = *change {
            turn.clients().mark(origin, to);
        }
        for part in parts {
            // An alteration may have come between the check and this.
            if let Action::Push { push, rule } = &mut part.action {
                *rule = part.table.rule(push.learning_rate, push.step);
            }
        }
        Ok(lsn)
    }

    /// Promises room for the keys of hashed tables as if all were new, so that applying cannot fail. `false` if memory
    /// must be taken for that; then nothing is promised.
    fn promise_room(&self, parts: &mut [Part<'_>]) -> Result<bool> {
        for p in 0..parts.len() {
            if !parts[p].may_add_keys() {
                continue;
            }
            parts[p].promised = vec![0; self.partitions.len()];
            for (place, partition) in self.partitions.iter().enumerate() {
                let part = &mut parts[p];
                let keys = part.groups.of(place).len() as u32;
                if keys == 0 {
                    continue;
                }
                let held = partition.write().part_mut(part.table.id).map(|part| part.promise(keys));
                match held {
                    Some(true) => part.promised[place] = keys,
                    Some(false) => {
                        self.release_room(parts);
                        return Ok(false);
                    }
                    None => {
                        let gone = Error::UnknownTable(part.table.name().into());
                        self.release_room(parts);
                        return Err(gone);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Takes back what [`Engine::promise_room`] promised to a change that will not come.
    fn release_room(&self, parts: &mut [Part<'_>]) {
        for part in parts {
            for (place, promised) in part.promised.drain(..).enumerate().filter(|&(_, promised)| promised > 0) {
                if let Some(part) = self.partitions[place].write().part_mut(part.table.id) {
                    part.release(promised);
                }
            }
        }
    }

    /// Orders and applies a change that needs more memory. How much depends on which of its keys are new, and that is
    /// only certain when no other change can come between: everything waits until this one is applied.
    fn apply_growing(&self, change: &Change<'_>, mut parts: Vec<Part<'_>>) -> Result<Pushed> {
        let mut turn = self.order.turn();
        let to = match self.recognise(change, &mut turn, &mut parts)? {
            Recognised::New(to) => to,
            Recognised::Duplicate => {
                drop(turn);
                return Ok(Pushed { lsn: self.flush(), duplicate: true });
            }
        };
        let mut held = turn.take_all(&self.partitions);
        match self.grow(&mut parts, &mut held, false) {
            Err(Error::OutOfMemory { .. }) => self.grow(&mut parts, &mut held, true)?,
            other => other?,
        }
        let lsn = self.place(change, &mut turn, &mut parts, &to)?;
        drop(turn);
        let unfinished = Unfinished(lsn);
        self.apply_to_all(&parts, &mut held);
        unfinished.done();
        drop(held);
        parts.into_iter().for_each(Part::end);
        Ok(Pushed { lsn, duplicate: false })
    }

    /// Makes room for the keys that are new. The whole need is charged at once, so that a refusal leaves nothing behind.
    fn grow(&self, parts: &mut [Part<'_>], held: &mut [Guard<'_>], frugal: bool) -> Result<()> {
        let mut wanted = Vec::new();
        for part in parts.iter().filter(|part| part.may_add_keys()) {
            for (place, partition) in held.iter().enumerate() {
                let keys = part.groups.of(place).iter().map(|&position| part.keys[position as usize]);
                if let Some(table_part) = partition.part(part.table.id).filter(|_| keys.len() > 0) {
                    let sent = keys.len();
                    let growth = table_part.growth(table_part.count_new(keys), sent, frugal)?;
                    wanted.push((part.table, place, growth));
                }
            }
        }
        let mut left = wanted.iter().map(|(_, _, growth)| growth.bytes).sum();
        self.budget.take(left)?;
        for (table, place, growth) in &wanted {
            left -= growth.bytes;
            if let Some(part) = held[*place].part_mut(table.id) {
                part.grow(&table.chunks, &self.budget, growth).inspect_err(|_| self.budget.give_back(left))?;
            }
        }
        Ok(())
    }

    /// Applies a change to all partitions, on the compute threads where there are enough rows.
    fn apply_to_all(&self, parts: &[Part<'_>], held: &mut [Guard<'_>]) {
        let seed = self.config.seed;
        let rows = parts.iter().map(|part| part.keys.len()).sum();
        if parts.iter().any(|part| part.table.cuda().is_some()) {
            return self.apply_with_gpu(parts, held, rows);
        }
        // What is not shared out by partition is best done in order, where the order makes no difference.
        let alone = !self.compute.helps(rows);
        let left: Vec<&Part<'_>> =
            parts.iter().filter(|part| !(alone && part.apply_in_order(&self.route, held))).collect();
        // The guards stay on this thread; the compute threads borrow what they guard.
        let partitions = held.iter_mut().map(|guard| &mut **guard).enumerate().collect();
        self.compute.each(rows, partitions, |(place, partition): (usize, &mut Partition)| {
            left.iter().for_each(|part| part.apply(place, partition, seed, &mut Collected::default()));
        });
    }

    /// The same, where a GPU has hot rows: it is given the work of all partitions at once.
    fn apply_with_gpu(&self, parts: &[Part<'_>], held: &mut [Guard<'_>], rows: usize) {
        let seed = self.config.seed;
        // Rows that are laid out alike and stepped alike are one piece of work, whatever their table.
        let mut groups = gpu_change::Groups::default();
        let group_of: Vec<usize> = parts.iter().map(|part| groups.of(part.table, part.rule())).collect();
        let mut partitions: Vec<&mut Partition> = held.iter_mut().map(|guard| &mut **guard).collect();
        let some = partitions.len().div_ceil(GPU_JOBS);
        let jobs: Vec<_> = (0..).step_by(some).zip(partitions.chunks_mut(some)).collect();
        let mut collected: Vec<Vec<Collected<'_>>> = jobs.iter().map(|_| groups.collectors()).collect();
        let jobs = jobs.into_iter().zip(&mut collected).collect();
        self.compute.each(rows, jobs, |((first, partitions), collected): ((usize, &mut [&mut Partition]), _)| {
            let collected: &mut Vec<Collected<'_>> = collected;
            for (place, partition) in (first..).zip(partitions) {
                for (part, &group) in parts.iter().zip(&group_of) {
                    part.apply(place, partition, seed, &mut collected[group]);
                }
            }
        });
        groups.run(seed, collected, &mut partitions);
    }
}

/// Whether a change was seen before.
enum Recognised {
    /// It was not; for a push of a client, with the places of the partitions that it goes to.
    New(Vec<usize>),
    /// All its partitions have applied it.
    Duplicate,
}

/// Changes of so many rows take all partitions at once; smaller ones walk through them, several at a time.
const LARGE: usize = 1024;

/// Why a change finds its table in every partition.
const NOT_DROPPED: &str = "a drop is ordered after every change of its table";

/// Pieces of the partitions that a change is planned in, where a GPU waits for all of them.
const GPU_JOBS: usize = 16;

type Guard<'a> = RwLockWriteGuard<'a, Partition>;

/// A change that has its place and is being applied. If that fails half-way the partitions are not what the log says,
/// and nothing must be read from them any more.
struct Unfinished(Lsn);

impl Unfinished {
    fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        eprintln!("hotrow: change {} could not be applied after it was ordered: ending the process", self.0.0);
        std::process::abort();
    }
}

/// A drop may have come between the check of a change and its turn.
fn still_there(parts: &[Part<'_>]) -> Result<()> {
    match parts.iter().find(|part| part.table.dropped.load(Ordering::Relaxed)) {
        Some(part) => Err(Error::UnknownTable(part.table.name().into())),
        None => Ok(()),
    }
}

/// One table's part of a change, ready to be applied partition by partition.
struct Part<'a> {
    table: &'a Table,
    keys: &'a [u64],
    groups: Groups,
    action: Action<'a>,
    /// By place: the room promised to new keys of a hashed table.
    promised: Vec<u32>,
    /// By place: whether the partition has applied this push already. Empty is no.
    applied: Vec<bool>,
    /// How a push or touch uses keys, if somebody watches.
    seen: Option<Seen>,
}

enum Action<'a> {
    Push { push: &'a Push<'a>, rule: Rule },
    Touch,
    Assign(&'a Assign<'a>),
    Remove,
}

impl<'a> Part<'a> {
    fn new(engine: &Engine, table: &'a Table, keys: &'a [u64], action: Action<'a>) -> Part<'a> {
        let mut groups = Groups::default();
        groups.fill(&engine.route, table.keys(), keys);
        let uses = matches!(action, Action::Push { .. } | Action::Touch);
        let seen = table.observer.as_ref().filter(|_| uses).and_then(Observer::begin);
        Part { table, keys, groups, action, promised: Vec::new(), applied: Vec::new(), seen }
    }

    fn may_add_keys(&self) -> bool {
        self.table.keys() == KeySpace::Hashed && !matches!(self.action, Action::Remove)
    }

    /// By what it steps rows.
    fn rule(&self) -> Option<Rule> {
        match self.action {
            Action::Push { rule, .. } => Some(rule),
            _ => None,
        }
    }

    /// Applies a push to a dense table of full-precision rows, whose parts do not depend on each other, in the order of the request.
    /// `false` if it is not such a push, and nothing was done.
    fn apply_in_order(&self, route: &Route, held: &mut [Guard<'_>]) -> bool {
        let KeySpace::Dense { .. } = self.table.keys() else { return false };
        let Action::Push { push, rule } = self.action else { return false };
        if !self.table.layout().is_exact() || self.applied.contains(&true) {
            return false;
        }
        let parts = held.iter_mut().map(|partition| partition.part_mut(self.table.id));
        let mut parts: Vec<_> = parts.map(|part| part.expect(NOT_DROPPED)).collect();
        parts
            .iter_mut()
            .enumerate()
            .filter(|(place, _)| !self.groups.of(*place).is_empty())
            .for_each(|(_, part)| part.before_change());
        exact::push_in_order(&mut parts, &self.groups, route, self.table, self.keys, push.gradients, &rule)
    }

    fn apply<'p>(&'p self, place: usize, partition: &mut Partition, seed: u32, gpu: &mut Collected<'p>) {
        let positions = self.groups.of(place);
        if positions.is_empty() {
            return;
        }
        let Partition { id, write_backs, parts, .. } = partition;
        let part = parts[self.table.id].as_mut().expect(NOT_DROPPED);
        let numbering = Numbering { seed, partition: *id, next: write_backs };
        let visit = |update| Visit { table: self.table, keys: self.keys, positions, update, seen: self.seen.as_ref() };
        part.before_change();
        gpu.visit(place, self.table.id);
        match self.action {
            _ if self.applied.get(place).is_some_and(|&applied| applied) => {}
            Action::Push { push, rule } => apply::push(part, &visit(Some((push.gradients, rule))), numbering, gpu),
            Action::Touch => apply::push(part, &visit(None), numbering, gpu),
            Action::Assign(assign) => apply::assign(part, self.table, assign, positions, numbering, gpu),
            Action::Remove => apply::remove(part, self.keys, positions),
        }
        if let Some(&promised) = self.promised.get(place) {
            part.release(promised);
        }
    }

    /// All partitions have applied it.
    fn end(self) {
        let sent = match self.applied.iter().any(|&applied| applied) {
            false => self.keys.len(),
            true => {
                let new = self.applied.iter().enumerate().filter(|(_, applied)| !**applied);
                new.map(|(place, _)| self.groups.of(place).len()).sum()
            }
        };
        if let (Some(observer), Action::Push { .. } | Action::Touch) = (&self.table.observer, &self.action) {
            observer.end(self.seen, sent as u64);
        }
    }
}
