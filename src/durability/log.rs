//! The log while it is written: changes are copied into a group under the lock that orders them, and a thread of the
//! log's own seals the group, writes it and syncs it, while the next one fills. So one sync serves many changes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::watch;

use super::disk::{Disk, DiskFile};
use super::group::{FORMAT, GROUP_HEAD, GroupHead, SEGMENT_HEAD, SegmentHead, segment_name};
use super::record;
use super::replay::remove_segments;
use crate::engine::{LogHook, Lsn};
use crate::numeric::NUMERICS_VERSION;

/// When this much waits to be written, whoever asks is told to wait.
const WAITING: usize = 64 << 20;
/// When this much waits, changes are refused: a group's length has 32 bits.
const MOST_WAITING: usize = 1 << 30;
/// How often a full disk is tried again.
const FULL_AGAIN: Duration = Duration::from_millis(200);

/// When a change counts as safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// When it is synced: it survives a loss of power.
    Always,
    /// When it is written: it survives the process. Synced so often that a loss of power takes no more than this.
    Interval(Duration),
    /// At once. The system writes when it likes.
    Never,
}

impl SyncPolicy {
    /// What it is called in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            SyncPolicy::Always => "always",
            SyncPolicy::Interval(_) => "interval",
            SyncPolicy::Never => "never",
        }
    }
}

/// How a log is kept.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// When a change counts as safe.
    pub sync: SyncPolicy,
    /// A segment that is longer gets no more groups.
    pub segment_bytes: u64,
}

/// How far the log is.
#[derive(Clone, Debug, Default)]
struct Reached {
    written: Lsn,
    synced: Lsn,
    failed: Option<String>,
    /// Why nothing is written at the moment: the disk is full.
    full: Option<String>,
}

/// What the log has done, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes appended since the start.
    pub appended_bytes: u64,
    /// Groups appended since the start.
    pub groups: u64,
    /// Syncs since the start.
    pub syncs: u64,
    /// Bytes of all segments on disk.
    pub disk_bytes: u64,
    /// Bytes that wait to be written.
    pub waiting_bytes: u64,
    /// Changes that are ordered and not yet synced.
    pub unsynced_changes: u64,
    /// Whether the disk is full, so that changes are refused.
    pub full: bool,
}

/// Changes that wait to be written.
struct Waiting {
    /// Room for a head, and then records.
    group: Vec<u8>,
    count: u32,
    first: Lsn,
    last: Lsn,
    /// Why changes are refused, if they are.
    refusing: Option<String>,
    /// Whether somebody waits for a sync, whatever the policy is.
    sync_asked: bool,
    closing: bool,
}

struct Shared {
    waiting: Mutex<Waiting>,
    /// Something waits, or the log is closed.
    more: Condvar,
    reached: watch::Sender<Reached>,
    appended_bytes: AtomicU64,
    groups: AtomicU64,
    syncs: AtomicU64,
    disk_bytes: AtomicU64,
}

/// A shard's log. Dropping it writes and syncs what waits.
pub struct Log {
    shared: Arc<Shared>,
    options: LogOptions,
    disk: Arc<dyn Disk>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// Where a log goes on.
pub(super) struct End {
    pub(super) disk: Arc<dyn Disk>,
    /// The last segment, its length and its name; `None` where there is none yet.
    pub(super) segment: Option<(Box<dyn DiskFile>, u64, String)>,
    pub(super) identity: u64,
    /// The last change and the seal of its group.
    pub(super) last: Lsn,
    pub(super) seal: u64,
    /// Bytes of all segments.
    pub(super) disk_bytes: u64,
}

impl Log {
    /// Goes on where the log ends.
    pub(super) fn start(end: End, options: LogOptions) -> io::Result<Log> {
        let reached = Reached { written: end.last, synced: end.last, failed: None, full: None };
        let shared = Arc::new(Shared {
            waiting: Mutex::new(Waiting {
                group: vec![0; GROUP_HEAD],
                count: 0,
                first: end.last,
                last: end.last,
                refusing: None,
                sync_asked: false,
                closing: false,
            }),
            more: Condvar::new(),
            reached: watch::Sender::new(reached),
            appended_bytes: AtomicU64::new(0),
            groups: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            disk_bytes: AtomicU64::new(end.disk_bytes),
        });
        let disk = Arc::clone(&end.disk);
        let syncer = match options.sync {
            SyncPolicy::Interval(_) => Some(Syncer::start(Arc::clone(&shared), Arc::clone(&disk))?),
            _ => None,
        };
        let mut writer =
            Writer { shared: Arc::clone(&shared), end, options, syncer, unsynced: None, behind: Vec::new() };
        let run = move || {
            if let Err(error) = writer.run() {
                writer.shared.fail(&*writer.end.disk, &error);
            }
        };
        let writer = std::thread::Builder::new().name("hotrow-log".into()).spawn(run)?;
        Ok(Log { shared, options, disk, writer: Mutex::new(Some(writer)) })
    }

    /// What the engine hands its changes to.
    pub fn hook(&self) -> LogHook {
        let shared = Arc::clone(&self.shared);
        Box::new(move |lsn, change| {
            let mut waiting = shared.waiting.lock();
            if let Some(reason) = &waiting.refusing {
                return Err(reason.clone());
            }
            if waiting.group.len() > MOST_WAITING {
                return Err(
                    "the log's disk is too slow: a gigabyte waits to be written; push less, or use a faster disk"
                        .into(),
                );
            }
            if waiting.count == 0 {
                waiting.first = lsn;
            }
            let before = waiting.group.len();
            record::encode(change, &mut waiting.group);
            if waiting.group.len() - GROUP_HEAD > u32::MAX as usize {
                waiting.group.truncate(before);
                return Err("the change is too large for the log: send fewer rows at a time".into());
            }
            waiting.count += 1;
            waiting.last = lsn;
            if waiting.count == 1 {
                shared.more.notify_one();
            }
            Ok(())
        })
    }

    /// Waits while too much waits to be written, unless changes are refused anyway. Ask before a large change; nothing can
    /// be waited for once it has its place.
    pub async fn room(&self) {
        let mut reached = self.shared.reached.subscribe();
        loop {
            // Before looking: what is reached after that is not missed.
            reached.borrow_and_update();
            {
                let waiting = self.shared.waiting.lock();
                if waiting.group.len() <= WAITING || waiting.refusing.is_some() {
                    return;
                }
            }
            // Fails only if the sender is gone, and this holds it.
            let _ = reached.changed().await;
        }
    }

    /// Waits until a change is safe, as the policy understands it. An error means that it is applied here and not safe:
    /// the disk is full for now, or the log has failed for good.
    pub async fn safe(&self, lsn: Lsn) -> Result<(), String> {
        if self.options.sync == SyncPolicy::Never {
            return Ok(());
        }
        let mut reached = self.shared.reached.subscribe();
        let stuck = |reached: &Reached| reached.failed.is_some() || reached.full.is_some();
        let reached = reached.wait_for(|reached| stuck(reached) || self.is_safe(reached, lsn)).await;
        let reached = reached.map_err(|e| e.to_string())?;
        match reached.failed.as_ref().or(reached.full.as_ref()) {
            Some(reason) if !self.is_safe(&reached, lsn) => Err(reason.clone()),
            _ => Ok(()),
        }
    }

    /// Waits until a change is synced, whatever the policy is. A full disk is not waited for: what asks is a checkpoint, which
    /// makes room.
    pub async fn sync_up_to(&self, lsn: Lsn) -> Result<(), String> {
        {
            self.shared.waiting.lock().sync_asked = true;
            self.shared.more.notify_one();
        }
        let mut reached = self.shared.reached.subscribe();
        let done = |reached: &Reached| reached.synced >= lsn || reached.failed.is_some() || reached.full.is_some();
        let reached = reached.wait_for(done).await.map_err(|e| e.to_string())?;
        match &reached.failed {
            Some(reason) if reached.synced < lsn => Err(reason.clone()),
            _ => Ok(()),
        }
    }

    /// When a change counts as safe.
    pub fn sync(&self) -> SyncPolicy {
        self.options.sync
    }

    /// Whether it takes no more changes, for good: it has failed, or is closed.
    pub fn is_over(&self) -> bool {
        // One after the other: the writer tells what is reached while it holds what waits.
        let failed = self.shared.reached.borrow().failed.is_some();
        failed || self.shared.waiting.lock().closing
    }

    fn is_safe(&self, reached: &Reached, lsn: Lsn) -> bool {
        match self.options.sync {
            SyncPolicy::Always => reached.synced >= lsn,
            SyncPolicy::Interval(_) => reached.written >= lsn,
            SyncPolicy::Never => true,
        }
    }

    /// Resolves, with the reason, when the log has failed: a write or a sync that went wrong.
    pub async fn failed(&self) -> String {
        let mut reached = self.shared.reached.subscribe();
        match reached.wait_for(|reached| reached.failed.is_some()).await {
            Ok(reached) => reached.failed.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Writes and syncs what waits, and takes no more changes.
    pub fn close(&self) {
        {
            let mut waiting = self.shared.waiting.lock();
            waiting.closing = true;
            waiting.refusing.get_or_insert_with(|| "the log is closed".into());
            self.shared.more.notify_one();
        }
        if let Some(writer) = self.writer.lock().take() {
            // A writer that has panicked has nothing left to write.
            let _ = writer.join();
        }
    }

    /// Removes the segments that hold nothing after `lsn`: a checkpoint has it. The one that is written to stays; after
    /// [`Log::close`] it goes too, if it holds nothing else.
    pub fn forget(&self, lsn: Lsn) -> io::Result<()> {
        // Held to the end: one at a time.
        let writer = self.writer.lock();
        let open = writer.is_some();
        let last = self.shared.waiting.lock().last;
        let bytes = remove_segments(&*self.disk, |_, next| match next {
            Some(next) => next.0 <= lsn.0 + 1,
            None => !open && last <= lsn,
        })?;
        self.shared.disk_bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// What it has done.
    pub fn stats(&self) -> LogStats {
        let shared = &self.shared;
        let (waiting_bytes, last) = {
            let waiting = shared.waiting.lock();
            ((waiting.group.len() - GROUP_HEAD) as u64, waiting.last)
        };
        let reached = shared.reached.borrow();
        LogStats {
            appended_bytes: shared.appended_bytes.load(Ordering::Relaxed),
            groups: shared.groups.load(Ordering::Relaxed),
            syncs: shared.syncs.load(Ordering::Relaxed),
            disk_bytes: shared.disk_bytes.load(Ordering::Relaxed),
            waiting_bytes,
            unsynced_changes: last.0.saturating_sub(reached.synced.0),
            full: reached.full.is_some(),
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

/// What the log's thread works with.
struct Writer {
    shared: Arc<Shared>,
    end: End,
    options: LogOptions,
    /// With `interval`.
    syncer: Option<Syncer>,
    /// Since when something is written and not synced.
    unsynced: Option<Instant>,
    /// With `never`: earlier segments that were not synced when the next one began.
    behind: Vec<String>,
}

/// A group that was taken to be written.
struct Taken {
    group: Vec<u8>,
    count: u32,
    first: Lsn,
    last: Lsn,
}

impl Writer {
    /// Writes until the log is closed.
    fn run(&mut self) -> io::Result<()> {
        let mut spare = Vec::new();
        loop {
            let (mut taken, asked, closing) = self.take(spare);
            if taken.count > 0 {
                self.append(&mut taken)?;
            }
            let last = taken.last;
            if asked || closing || self.options.sync == SyncPolicy::Always && self.unsynced.is_some() {
                self.sync()?;
                self.shared.reached.send_modify(|reached| reached.synced = last);
            }
            self.shared.reached.send_modify(|reached| reached.written = last);
            if let SyncPolicy::Interval(interval) = self.options.sync
                && self.unsynced.is_some_and(|since| since.elapsed() >= interval)
                && let (Some(syncer), Some((_, _, name))) = (&self.syncer, &self.end.segment)
                && !syncer.is_busy()
            {
                match self.end.disk.open(name) {
                    Ok(file) => {
                        syncer.begin(file, last);
                        self.unsynced = None;
                    }
                    // No second handle can be had at the moment.
                    Err(_) => {
                        self.sync()?;
                        self.shared.reached.send_modify(|reached| reached.synced = last);
                    }
                }
            }
            if closing || self.shared.reached.borrow().failed.is_some() {
                return Ok(());
            }
            // One that has grown in a hard time is given back.
            spare = if taken.group.capacity() > WAITING { Vec::new() } else { taken.group };
        }
    }

    /// Waits for changes, for the time to sync, or for the end, and takes what waits.
    fn take(&self, spare: Vec<u8>) -> (Taken, bool, bool) {
        let mut waiting = self.shared.waiting.lock();
        while waiting.count == 0 && !waiting.closing && !waiting.sync_asked {
            let syncing = self.syncer.as_ref().is_some_and(Syncer::is_busy);
            match (self.options.sync, self.unsynced) {
                // The end of the sync that is under way is told like a change.
                (SyncPolicy::Interval(interval), Some(since)) if !syncing => {
                    if self.shared.more.wait_until(&mut waiting, since + interval).timed_out() {
                        break;
                    }
                }
                _ => self.shared.more.wait(&mut waiting),
            }
        }
        let mut next = spare;
        next.resize(GROUP_HEAD, 0);
        let taken = Taken {
            group: std::mem::replace(&mut waiting.group, next),
            count: std::mem::take(&mut waiting.count),
            first: waiting.first,
            last: waiting.last,
        };
        (taken, std::mem::take(&mut waiting.sync_asked), waiting.closing)
    }

    fn append(&mut self, taken: &mut Taken) -> io::Result<()> {
        let group = &mut taken.group[..];
        let seal = GroupHead::seal(group, taken.count, taken.first, self.end.seal);
        let full = |(_, len, _): &(_, u64, _)| *len >= self.options.segment_bytes;
        if self.end.segment.as_ref().is_none_or(full) {
            self.next_segment(taken.first)?;
        }
        let (mut file, len, name) = self.end.segment.take().expect("there is one now");
        self.while_full(|| file.write_at(len, group))?;
        self.end.segment = Some((file, len + group.len() as u64, name));
        self.end.seal = seal;
        self.unsynced.get_or_insert_with(Instant::now);
        let shared = &self.shared;
        shared.appended_bytes.fetch_add(group.len() as u64, Ordering::Relaxed);
        shared.disk_bytes.fetch_add(group.len() as u64, Ordering::Relaxed);
        shared.groups.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Begins a segment. The one before is safe by then: nothing in a later one may outlive what came before it.
    fn next_segment(&mut self, first: Lsn) -> io::Result<()> {
        match (self.options.sync, &self.end.segment) {
            // Until somebody asks for it.
            (SyncPolicy::Never, Some((_, _, name))) => self.behind.push(name.clone()),
            _ => self.sync()?,
        }
        let (identity, before) = (self.end.identity, self.end.seal);
        let head = SegmentHead { format: FORMAT, numerics: NUMERICS_VERSION, identity, first, before }.encode();
        let disk = Arc::clone(&self.end.disk);
        let name = segment_name(first);
        let mut file = self.while_full(|| disk.create(&name))?;
        self.while_full(|| file.write_at(0, &head))?;
        file.sync()?;
        disk.sync_names()?;
        self.end.segment = Some((file, SEGMENT_HEAD as u64, name));
        self.shared.disk_bytes.fetch_add(SEGMENT_HEAD as u64, Ordering::Relaxed);
        Ok(())
    }

    /// An error of a sync is final: nobody can tell any more what is on the disk, and a second sync would not either.
    fn sync(&mut self) -> io::Result<()> {
        if let Some(syncer) = &self.syncer {
            syncer.wait();
            if let Some(reason) = &self.shared.reached.borrow().failed {
                return Err(io::Error::other(reason.clone()));
            }
        }
        if self.unsynced.is_none() {
            return Ok(());
        }
        for name in self.behind.drain(..) {
            match self.end.disk.open(&name) {
                Ok(mut file) => file.sync()?,
                // A checkpoint covers it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        if let Some((file, ..)) = &mut self.end.segment {
            file.sync()?;
        }
        self.unsynced = None;
        self.shared.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Does something on the disk, again and again while that is full; changes are refused meanwhile.
    fn while_full<T>(&self, mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let mut was_full = false;
        loop {
            let mut waiting: MutexGuard<'_, Waiting> = match work() {
                Ok(done) => {
                    if was_full {
                        let mut waiting = self.shared.waiting.lock();
                        if !waiting.closing {
                            waiting.refusing = None;
                        }
                        drop(waiting);
                        self.shared.reached.send_modify(|reached| reached.full = None);
                        tracing::info!("the log's disk has room again: changes are taken");
                    }
                    return Ok(done);
                }
                Err(error) if is_full(&error) => self.shared.waiting.lock(),
                Err(error) => return Err(error),
            };
            let place = self.end.disk.path();
            if !was_full {
                was_full = true;
                tracing::warn!("the log's disk is full ({}): changes are refused until there is room", place.display());
            }
            if waiting.closing {
                return Err(io::Error::other("the disk is full, and what was not acknowledged is lost"));
            }
            let reason = format!("the log's disk is full ({}): make room there; pulls go on", place.display());
            waiting.refusing = Some(reason.clone());
            if self.shared.reached.borrow().full.is_none() {
                self.shared.reached.send_modify(|reached| reached.full = Some(reason));
            }
            self.shared.more.wait_for(&mut waiting, FULL_AGAIN);
        }
    }
}

impl Shared {
    /// Takes no more changes. The first reason is the one that counts.
    fn fail(&self, disk: &dyn Disk, error: &io::Error) {
        if self.reached.borrow().failed.is_some() {
            return;
        }
        let place = disk.path();
        let reason =
            format!("the log in {} cannot be written: {error}; this shard takes no more changes", place.display());
        tracing::error!("{reason}");
        self.waiting.lock().refusing = Some(reason.clone());
        self.reached.send_modify(|reached| reached.failed = Some(reason));
    }
}

/// Syncs beside the writer, which would otherwise let everybody wait for as long as the disk takes.
struct Syncer {
    busy: Arc<(Mutex<bool>, Condvar)>,
    /// Dropped before the thread is waited for.
    jobs: Option<mpsc::Sender<(Box<dyn DiskFile>, Lsn)>>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    fn start(shared: Arc<Shared>, disk: Arc<dyn Disk>) -> io::Result<Syncer> {
        let busy = Arc::new((Mutex::new(false), Condvar::new()));
        let (jobs, taken) = mpsc::channel::<(Box<dyn DiskFile>, Lsn)>();
        let done = Arc::clone(&busy);
        let run = move || {
            while let Ok((mut file, last)) = taken.recv() {
                match file.sync() {
                    Ok(()) => {
                        shared.syncs.fetch_add(1, Ordering::Relaxed);
                        shared.reached.send_modify(|reached| reached.synced = last);
                    }
                    Err(error) => shared.fail(&*disk, &error),
                }
                *done.0.lock() = false;
                done.1.notify_all();
                // Whoever waits for changes looks again whether it is time for the next.
                let _waiting = shared.waiting.lock();
                shared.more.notify_one();
            }
        };
        let thread = std::thread::Builder::new().name("hotrow-sync".into()).spawn(run)?;
        Ok(Syncer { busy, jobs: Some(jobs), thread: Some(thread) })
    }

    /// Begins to sync a segment, in which `last` is written. None is under way.
    fn begin(&self, file: Box<dyn DiskFile>, last: Lsn) {
        let mut busy = self.busy.0.lock();
        *busy = self.jobs.as_ref().is_some_and(|jobs| jobs.send((file, last)).is_ok());
    }

    fn is_busy(&self) -> bool {
        *self.busy.0.lock()
    }

    /// Waits for the sync that is under way.
    fn wait(&self) {
        let mut busy = self.busy.0.lock();
        while *busy {
            self.busy.1.wait(&mut busy);
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // One that has panicked has nothing left to sync.
            let _ = thread.join();
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
