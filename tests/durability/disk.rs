//! A disk in memory that can lose power, fill up and fail.
//!
//! What was not synced when the power goes is there, or not, or in part: of the writes to a file since its last sync any
//! may be missing, the last of those that are not may be cut short, and names may be those of before.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use hotrow::durability::{self, Disk, DiskFile, LogError, LogOptions, SyncPolicy};
use hotrow::{Change, Lsn};

use crate::support::random::Random;

/// What is done to a file.
#[derive(Clone, Debug)]
enum Write {
    At(u64, Vec<u8>),
    Truncate(u64),
}

#[derive(Clone, Debug, Default)]
struct Content {
    synced: Vec<u8>,
    now: Vec<u8>,
    /// Since the last sync.
    unsynced: Vec<Write>,
}

impl Write {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Write::At(at, data) => {
                let end = *at as usize + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*at as usize..end].copy_from_slice(data);
            }
            Write::Truncate(len) => bytes.resize(*len as usize, 0),
        }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Syncs do nothing, and say that all is well.
    pub syncs_lie: bool,
    /// This call (create, write, truncate, sync, remove or sync of names, counted from 0) fails, with half of a write done.
    pub fail_at: Option<u64>,
    /// The power goes at this call; if it is a write, that may or may not reach the disk.
    pub off_at: Option<u64>,
    /// Bytes that fit.
    pub room: Option<u64>,
}

#[derive(Clone, Default)]
struct State {
    files: BTreeMap<u64, Content>,
    /// Names as the system sees them, and as they survive.
    names: BTreeMap<String, u64>,
    synced_names: BTreeMap<String, u64>,
    next_file: u64,
    calls: u64,
    faults: Faults,
    /// No more calls are answered: the power is gone.
    off: bool,
}

/// The disk. Clones are the same disk.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

impl SimDisk {
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().unwrap().faults = faults;
    }

    /// Another disk in the same state, what is not synced included.
    pub fn copy(&self) -> SimDisk {
        SimDisk { state: Arc::new(Mutex::new(self.state.lock().unwrap().clone())) }
    }

    /// Whether the power is gone.
    pub fn is_off(&self) -> bool {
        self.state.lock().unwrap().off
    }

    /// How many calls changed something.
    pub fn calls(&self) -> u64 {
        self.state.lock().unwrap().calls
    }

    /// What is there when the power comes back. The old disk answers nothing any more.
    pub fn lose_power(&self, random: &mut Random) -> SimDisk {
        let mut state = self.state.lock().unwrap();
        state.off = true;
        let mut survived = State { next_file: state.next_file, ..State::default() };
        // A directory is one thing: it is as of its last sync, or each later change of it may have made it.
        survived.names = state.synced_names.clone();
        for (name, file) in &state.names {
            if survived.names.get(name) != Some(file) && random.below(2) == 0 {
                survived.names.insert(name.clone(), *file);
            }
        }
        for name in state.synced_names.keys().filter(|name| !state.names.contains_key(*name)) {
            if random.below(2) == 0 {
                survived.names.remove(name);
            }
        }
        survived.synced_names = survived.names.clone();
        for &file in survived.names.values() {
            let content = &state.files[&file];
            let mut bytes = content.synced.clone();
            for write in &content.unsynced {
                match (random.below(3), write) {
                    (0, _) => {}
                    (1, Write::At(at, data)) => {
                        let part = random.below(data.len() as u64 + 1) as usize;
                        // In either direction: pages reach the disk in any order.
                        match random.below(2) {
                            0 => Write::At(*at, data[..part].to_vec()).apply(&mut bytes),
                            _ => Write::At(*at + part as u64, data[part..].to_vec()).apply(&mut bytes),
                        }
                    }
                    _ => write.apply(&mut bytes),
                }
            }
            survived.files.insert(file, Content { synced: bytes.clone(), now: bytes, unsynced: Vec::new() });
        }
        SimDisk { state: Arc::new(Mutex::new(survived)) }
    }

    /// Gives a file another name, in one go; what had that name is gone.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.call()? {
            return Err(failed());
        }
        let file = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.into(), file);
        Ok(())
    }

    /// Every byte of every file.
    pub fn bytes(&self) -> Vec<(String, Vec<u8>)> {
        let state = self.state.lock().unwrap();
        state.names.iter().map(|(name, file)| (name.clone(), state.files[file].now.clone())).collect()
    }

    /// A disk with these files.
    pub fn of(files: &[(String, Vec<u8>)]) -> SimDisk {
        let mut state = State::default();
        for (number, (name, bytes)) in (0..).zip(files) {
            let content = Content { synced: bytes.clone(), now: bytes.clone(), unsynced: Vec::new() };
            state.files.insert(number, content);
            state.names.insert(name.clone(), number);
        }
        state.synced_names = state.names.clone();
        state.next_file = files.len() as u64;
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }
}

impl State {
    /// Counts a call that changes something. `Err(true)` is the call that fails.
    fn call(&mut self) -> io::Result<bool> {
        if self.off {
            return Err(power_gone());
        }
        self.calls += 1;
        if self.faults.off_at == Some(self.calls - 1) {
            self.off = true;
            return Err(power_gone());
        }
        Ok(self.faults.fail_at == Some(self.calls - 1))
    }

    fn used(&self) -> u64 {
        self.names.values().map(|file| self.files[file].now.len() as u64).sum()
    }
}

fn power_gone() -> io::Error {
    io::Error::other("the power is gone")
}

fn failed() -> io::Error {
    io::Error::other("injected")
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state.lock().unwrap().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state.lock().unwrap();
        if state.call()? {
            return Err(failed());
        }
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = state.next_file;
        state.next_file += 1;
        state.files.insert(file, Content::default());
        state.names.insert(name.into(), file);
        drop(state);
        Ok(Box::new(SimFile { disk: self.clone(), file }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = *self.state.lock().unwrap().names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(SimFile { disk: self.clone(), file }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.call()? {
            return Err(failed());
        }
        state.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.call()? {
            return Err(failed());
        }
        if !state.faults.syncs_lie {
            state.synced_names = state.names.clone();
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        "simulated".into()
    }
}

struct SimFile {
    disk: SimDisk,
    file: u64,
}

impl SimFile {
    fn write(&self, write: Write) -> io::Result<()> {
        let mut state = self.disk.state.lock().unwrap();
        let was_off = state.off;
        let fails = match state.call() {
            Ok(fails) => fails,
            Err(error) => {
                if !was_off {
                    state.files.get_mut(&self.file).unwrap().unsynced.push(write);
                }
                return Err(error);
            }
        };
        let used = state.used();
        let (room, content) = (state.faults.room, state.files.get_mut(&self.file).unwrap());
        let (write, result) = match write {
            Write::At(at, data) if fails => (Write::At(at, data[..data.len() / 2].to_vec()), Err(failed())),
            Write::Truncate(_) if fails => return Err(failed()),
            Write::At(at, mut data) => {
                let grows = (at + data.len() as u64).saturating_sub(content.now.len() as u64);
                let left = room.map_or(u64::MAX, |room| room.saturating_sub(used));
                match grows > left {
                    false => (Write::At(at, data), Ok(())),
                    true => {
                        data.truncate(data.len() - (grows - left) as usize);
                        (Write::At(at, data), Err(io::ErrorKind::StorageFull.into()))
                    }
                }
            }
            write => (write, Ok(())),
        };
        write.apply(&mut content.now);
        content.unsynced.push(write);
        result
    }
}

impl DiskFile for SimFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.state.lock().unwrap().files[&self.file].now.len() as u64)
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        let state = self.disk.state.lock().unwrap();
        let bytes = state.files[&self.file].now.get(at as usize..).unwrap_or(&[]);
        let count = bytes.len().min(buf.len());
        buf[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(Write::At(at, bytes.to_vec()))
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.write(Write::Truncate(len))
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.state.lock().unwrap();
        let (fails, lies) = (state.call()?, state.faults.syncs_lie);
        let content = state.files.get_mut(&self.file).unwrap();
        if fails {
            // As systems do: what did not reach the disk can still be read, and no later sync writes it.
            content.unsynced.clear();
            return Err(failed());
        }
        if !lies {
            for write in content.unsynced.drain(..) {
                write.apply(&mut content.synced);
            }
        }
        Ok(())
    }
}

/// Writes a file as a whole: aside, synced, renamed, and its name synced.
pub fn write_whole(disk: &SimDisk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let aside = format!("{name}.new");
    // One that an earlier attempt has left.
    if disk.list()?.contains(&aside) {
        disk.remove(&aside)?;
    }
    let mut file = disk.create(&aside)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    disk.rename(&aside, name)?;
    disk.sync_names()
}

/// A whole file.
pub fn read_whole(disk: &SimDisk, name: &str) -> Option<Vec<u8>> {
    disk.bytes().into_iter().find(|(other, _)| other == name).map(|(_, bytes)| bytes)
}

/// These files with one bit flipped, counted through all of them; and in which file and byte that is.
pub fn flip(files: &[(String, Vec<u8>)], bit: usize) -> (Vec<(String, Vec<u8>)>, usize, usize) {
    let mut flipped = files.to_vec();
    let (mut file, mut byte) = (0, bit / 8);
    while byte >= flipped[file].1.len() {
        byte -= flipped[file].1.len();
        file += 1;
    }
    flipped[file].1[byte] ^= 1 << (bit % 8);
    (flipped, file, byte)
}

/// An engine and its log.
pub struct Logged {
    pub engine: Arc<hotrow::Engine>,
    pub log: hotrow::durability::Log,
    pub cut: Option<hotrow::durability::Cut>,
    /// Changes that were applied again.
    pub replayed: u64,
}

/// Whose log it is.
pub const IDENTITY: u64 = 77;

/// Small segments, so that there are many.
pub const OPTIONS: LogOptions = LogOptions { sync: SyncPolicy::Always, segment_bytes: 2048 };

impl Logged {
    /// Starts from what the disk holds.
    pub fn start(disk: &SimDisk, options: LogOptions) -> Result<Logged, LogError> {
        Logged::start_after(disk, options, crate::support::changes::engine(4, 1), Lsn(0))
    }

    /// Starts from an engine that has the changes up to `after`, and what the disk holds.
    pub fn start_after(
        disk: &SimDisk,
        options: LogOptions,
        engine: hotrow::Engine,
        after: Lsn,
    ) -> Result<Logged, LogError> {
        let engine = Arc::new(engine);
        let mut apply = |change: &Change<'_>| engine.apply(change);
        let disk = Arc::new(disk.clone());
        let recovered = durability::recover(disk, IDENTITY, options, after, &mut apply, &mut |_| {})?;
        engine.set_log(recovered.log.hook());
        Ok(Logged { engine, log: recovered.log, cut: recovered.cut, replayed: recovered.progress.changes })
    }
}

/// Waits, on this thread.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
