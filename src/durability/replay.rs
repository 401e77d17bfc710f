//! The log when a shard starts: checked group by group, applied, and cut where its last group never got whole.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};

use super::disk::{Disk, DiskFile};
use super::group::{
    FORMAT, GROUP_HEAD, GROUP_MAGIC, GroupHead, SEGMENT_HEAD, SegmentHead, segment_first, segment_name,
};
use super::log::{End, Log, LogOptions};
use super::record;
use crate::engine::{Change, Lsn};
use crate::error::{Error, Result};
use crate::numeric::NUMERICS_VERSION;

/// Why a log is not replayed. Nothing that a checkpoint does not have was changed on disk.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The system says no.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What it says.
        error: io::Error,
    },
    /// A group in the middle is damaged.
    #[error(
        "{}: damaged at byte {offset} ({why}), and what follows it is not. Nothing was skipped or changed. Put the file back \
         from a copy; or, to give up change {lsn} and all after it: hotrow log cut --from {lsn} --data-dir DIR",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// The first change that cannot be read.
        lsn: u64,
        /// What is wrong.
        why: String,
    },
    /// Changes are missing.
    #[error(
        "{}: it begins with change {found}, but change {expected} is the next: what is between is missing. Put it \
         back; or, to give up change {expected} and all after it: hotrow log cut --from {expected} --data-dir DIR", path.display()
    )]
    Missing {
        /// The segment after the gap.
        path: PathBuf,
        /// The next change.
        expected: u64,
        /// Its first.
        found: u64,
    },
    /// Another version has written it.
    #[error(
        "{}: written with {what} {theirs}, this program has {ours}: replay would give other bits. Start the version that \
         wrote it and drain it, with --checkpoints: it ends with a checkpoint, and nothing is left to replay", path.display()
    )]
    Version {
        /// The segment.
        path: PathBuf,
        /// Format or numerics.
        what: &'static str,
        /// Its version.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// It belongs to another shard.
    #[error("{}: this log belongs to another shard or cluster: point --data-dir to this shard's own folder", path.display())]
    Foreign {
        /// The segment.
        path: PathBuf,
    },
    /// A change was refused that had been applied before.
    #[error(
        "{}: change {lsn} cannot be applied again: {error}. This log was not written by a shard that was set \
         up like this one", path.display()
    )]
    Refused {
        /// The segment.
        path: PathBuf,
        /// The change.
        lsn: u64,
        /// Why.
        error: Error,
    },
}

/// Bytes at the end of a log that were never a whole group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The file.
    pub path: PathBuf,
    /// From this byte.
    pub from: u64,
    /// To this one.
    pub to: u64,
}

/// How far a replay is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes read, of [`Progress::total_bytes`].
    pub bytes: u64,
    /// Bytes of all segments.
    pub total_bytes: u64,
    /// Changes applied.
    pub changes: u64,
}

/// A log that was replayed.
pub struct Recovered {
    /// The log, to go on with.
    pub log: Log,
    /// What was read.
    pub progress: Progress,
    /// What was cut off at its end.
    pub cut: Option<Cut>,
}

/// Reads a log, hands `apply` every change after `after`, and goes on where it ends. `apply` gives the place that the
/// change got, which must be the one it had.
pub fn recover(
    disk: Arc<dyn Disk>,
    identity: u64,
    options: LogOptions,
    after: Lsn,
    apply: &mut dyn FnMut(&Change<'_>) -> Result<Lsn>,
    watch: &mut dyn FnMut(Progress),
) -> std::result::Result<Recovered, LogError> {
    // A process that ended between its checkpoint and this has left them there.
    at(remove_segments(&*disk, |_, next| next.is_some_and(|next| next.0 <= after.0 + 1)), &disk.path())?;
    let mut replay = Replay::new(disk, identity, after);
    replay.mends = true;
    replay.run(apply, watch)?;
    let last = replay.next.map_or(after, |next| Lsn(next.0 - 1));
    let path = replay.disk.path();
    let disk_bytes = replay.progress.total_bytes - replay.cut.as_ref().map_or(0, |cut| cut.to - cut.from);
    let mut end = End { disk: replay.disk, segment: replay.last, identity, last, seal: replay.seal, disk_bytes };
    if last < after {
        // A loss of power took changes that the checkpoint has. The next segment begins behind the checkpoint.
        at(remove_segments(&*end.disk, |_, _| true), &path)?;
        end = End { segment: None, last: after, seal: 0, disk_bytes: 0, ..end };
    }
    let log = at(Log::start(end, options), &path)?;
    Ok(Recovered { log, progress: replay.progress, cut: replay.cut })
}

/// Removes the segments that `gone` picks by their first change and the first change after them, `None` for the last.
/// Returns the bytes that they had.
pub(super) fn remove_segments(disk: &dyn Disk, gone: impl Fn(Lsn, Option<Lsn>) -> bool) -> io::Result<u64> {
    let mut names: Vec<(Lsn, String)> =
        disk.list()?.into_iter().filter_map(|name| Some((segment_first(&name)?, name))).collect();
    names.sort_unstable();
    let mut bytes = 0;
    // The oldest first: what is left is a log without a gap, whenever this is cut short.
    for (i, (first, name)) in names.iter().enumerate() {
        if gone(*first, names.get(i + 1).map(|(next, _)| *next)) {
            bytes += disk.open(name)?.length()?;
            disk.remove(name)?;
        }
    }
    if bytes > 0 {
        disk.sync_names()?;
    }
    Ok(bytes)
}

/// What a log holds.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Bytes and changes.
    pub progress: Progress,
    /// The last change; 0 is none.
    pub last: Lsn,
    /// What the next start will cut off.
    pub torn: Option<Cut>,
}

/// Reads a log, which goes on after the change `after`, and changes nothing.
pub fn verify(
    disk: Arc<dyn Disk>,
    identity: u64,
    after: Lsn,
    watch: &mut dyn FnMut(Progress),
) -> std::result::Result<Verified, LogError> {
    let mut replay = Replay::new(disk, identity, after);
    let mut next = after;
    let mut count = |_: &Change<'_>| {
        next = Lsn(next.0 + 1);
        Ok(next)
    };
    replay.run(&mut count, watch)?;
    let last = replay.next.map_or(after, |next| Lsn(next.0 - 1));
    Ok(Verified { progress: replay.progress, last, torn: replay.cut })
}

fn at<T>(done: io::Result<T>, path: &std::path::Path) -> std::result::Result<T, LogError> {
    done.map_err(|error| LogError::Io { path: path.into(), error })
}

struct Replay {
    disk: Arc<dyn Disk>,
    identity: u64,
    /// The next change; `None` before the first segment.
    next: Option<Lsn>,
    /// The seal of the last group.
    seal: u64,
    after: Lsn,
    cut: Option<Cut>,
    last: Option<(Box<dyn DiskFile>, u64, String)>,
    progress: Progress,
    /// Whether a torn end is cut off; if not, it is only noted.
    mends: bool,
}

/// Why a group cannot be read.
struct Damage(String);

impl Replay {
    fn new(disk: Arc<dyn Disk>, identity: u64, after: Lsn) -> Replay {
        Replay {
            disk,
            identity,
            next: None,
            seal: 0,
            after,
            cut: None,
            last: None,
            progress: Progress::default(),
            mends: false,
        }
    }

    /// The segments, in order.
    fn segments(&self) -> std::result::Result<Vec<(Lsn, String)>, LogError> {
        let mut names: Vec<(Lsn, String)> = at(self.disk.list(), &self.disk.path())?
            .into_iter()
            .filter_map(|name| segment_first(&name).map(|first| (first, name)))
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn run(
        &mut self,
        apply: &mut dyn FnMut(&Change<'_>) -> Result<Lsn>,
        watch: &mut dyn FnMut(Progress),
    ) -> std::result::Result<(), LogError> {
        let mut names = self.segments()?;
        // What a checkpoint covers whole is not read: another version may have written it.
        let next: Vec<Lsn> = names.iter().skip(1).map(|(first, _)| *first).collect();
        let covered = next.iter().take_while(|first| first.0 <= self.after.0 + 1).count();
        names.drain(..covered);
        for (_, name) in &names {
            let file = self.open(name)?;
            self.progress.total_bytes += at(file.length(), &self.path(name))?;
        }
        for (i, (_, name)) in names.iter().enumerate() {
            self.segment(name, i + 1 == names.len(), apply, watch)?;
        }
        if self.mends && !names.is_empty() {
            at(self.disk.sync_names(), &self.disk.path())?;
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    fn open(&self, name: &str) -> std::result::Result<Box<dyn DiskFile>, LogError> {
        at(self.disk.open(name), &self.path(name))
    }

    fn segment(
        &mut self,
        name: &str,
        is_last: bool,
        apply: &mut dyn FnMut(&Change<'_>) -> Result<Lsn>,
        watch: &mut dyn FnMut(Progress),
    ) -> std::result::Result<(), LogError> {
        let path = self.path(name);
        let mut file = self.open(name)?;
        let len = at(file.length(), &path)?;
        let mut head = [0; SEGMENT_HEAD];
        let read = at(file.read_at(0, &mut head), &path)?;
        let Some(head) = SegmentHead::decode(&head[..read]) else {
            // A segment is synced, name and all, before its first group is written. So without a head there was none.
            let why = "its head is damaged";
            if !is_last || self.whole_group_after(&*file, 0, len, &path)?.is_some() {
                return Err(self.damaged(name, 0, why));
            }
            if self.mends {
                at(self.disk.remove(name), &path)?;
                at(self.disk.sync_names(), &self.disk.path())?;
            }
            self.cut = Some(Cut { path, from: 0, to: len });
            return Ok(());
        };
        self.check_head(name, &head)?;
        // What a killed process has written and not synced was read back from the system's memory, and after a sync that
        // failed the system may take it for written. A retry of it will be acknowledged as a duplicate, so it must be safe:
        // the last segment is written once more, as it is, and synced.
        if is_last && self.mends {
            at(file.write_at(0, &head.encode()), &path)?;
        }
        let mut offset = SEGMENT_HEAD as u64;
        while offset < len {
            match self.group(&*file, offset, len, &path)? {
                Ok((head, group)) => {
                    if is_last && self.mends {
                        at(file.write_at(offset, &group), &path)?;
                    }
                    self.apply_group(name, offset, &head, group.slice(GROUP_HEAD..), apply)?;
                    self.seal = head.seal;
                    offset += GROUP_HEAD as u64 + u64::from(head.len);
                    self.progress.bytes += GROUP_HEAD as u64 + u64::from(head.len);
                    watch(self.progress);
                }
                Err(Damage(why)) => {
                    let whole = self.whole_group_after(&*file, offset + 1, len, &path)?;
                    if !is_last || whole.is_some() {
                        return Err(self.damaged(name, offset, &why));
                    }
                    if self.mends {
                        at(file.truncate(offset), &path)?;
                        at(file.sync(), &path)?;
                    }
                    self.cut = Some(Cut { path: path.clone(), from: offset, to: len });
                    break;
                }
            }
        }
        if self.mends {
            at(file.sync(), &path)?;
        }
        self.last = Some((file, offset, name.into()));
        Ok(())
    }

    fn damaged(&self, name: &str, offset: u64, why: &str) -> LogError {
        let lsn = self.next.or(segment_first(name)).unwrap_or_default().0;
        LogError::Damaged { path: self.path(name), offset, lsn, why: why.into() }
    }

    fn check_head(&mut self, name: &str, head: &SegmentHead) -> std::result::Result<(), LogError> {
        let path = self.path(name);
        for (what, theirs, ours) in [("log format", head.format, FORMAT), ("numerics", head.numerics, NUMERICS_VERSION)]
        {
            if theirs != ours {
                return Err(LogError::Version { path, what, theirs, ours });
            }
        }
        if head.identity != self.identity {
            return Err(LogError::Foreign { path });
        }
        match self.next {
            None if head.first.0 > self.after.0 + 1 => {
                Err(LogError::Missing { path, expected: self.after.0 + 1, found: head.first.0 })
            }
            None => {
                (self.next, self.seal) = (Some(head.first), head.before);
                Ok(())
            }
            Some(next) if next != head.first => Err(LogError::Missing { path, expected: next.0, found: head.first.0 }),
            Some(_) if self.seal != head.before || segment_name(head.first) != name => {
                Err(self.damaged(name, 0, "it does not continue the segment before it"))
            }
            Some(_) => Ok(()),
        }
    }

    /// The group at `offset`, if it is whole and the next one.
    fn group(
        &self,
        file: &dyn DiskFile,
        offset: u64,
        len: u64,
        path: &std::path::Path,
    ) -> std::result::Result<std::result::Result<(GroupHead, Bytes), Damage>, LogError> {
        let mut bytes = [0; GROUP_HEAD];
        let read = at(file.read_at(offset, &mut bytes), path)?;
        let Some(head) = GroupHead::decode(&bytes[..read]) else {
            return Ok(Err(Damage("no group begins there".into())));
        };
        if u64::from(head.len) > len - offset - GROUP_HEAD as u64 {
            return Ok(Err(Damage("the group is longer than the file".into())));
        }
        let mut group = vec![0; GROUP_HEAD + head.len as usize];
        let read = at(file.read_at(offset, &mut group), path)?;
        if read < group.len() || !GroupHead::is_whole(&group[..GROUP_HEAD], &group[GROUP_HEAD..]) {
            return Ok(Err(Damage("the group's checksum is wrong".into())));
        }
        if head.before != self.seal || Some(head.first) != self.next {
            return Ok(Err(Damage("the group does not continue the one before it".into())));
        }
        Ok(Ok((head, Bytes::from(group))))
    }

    fn apply_group(
        &mut self,
        name: &str,
        offset: u64,
        head: &GroupHead,
        mut records: Bytes,
        apply: &mut dyn FnMut(&Change<'_>) -> Result<Lsn>,
    ) -> std::result::Result<(), LogError> {
        for lsn in (head.first.0..).take(head.count as usize).map(Lsn) {
            if records.len() < 4 || records.len() - 4 < (&records[..4]).get_u32_le() as usize {
                return Err(self.damaged(name, offset, "a record is longer than its group"));
            }
            let len = records.get_u32_le() as usize;
            let record = records.split_to(len);
            self.next = Some(Lsn(lsn.0 + 1));
            if lsn <= self.after {
                continue;
            }
            let refused = |error| LogError::Refused { path: self.path(name), lsn: lsn.0, error };
            let got = record::decode(record, &mut *apply).map_err(refused)?;
            if got != lsn {
                return Err(refused(Error::NotOrdered(format!("it got place {got}", got = got.0))));
            }
            self.progress.changes += 1;
        }
        match records.is_empty() {
            true => Ok(()),
            false => Err(self.damaged(name, offset, "the group has more bytes than records")),
        }
    }

    /// Where a whole group begins at or after `from`, whatever it continues. Only looked for behind damage.
    fn whole_group_after(
        &self,
        file: &dyn DiskFile,
        from: u64,
        len: u64,
        path: &std::path::Path,
    ) -> std::result::Result<Option<u64>, LogError> {
        let mut bytes = vec![0; len.saturating_sub(from) as usize];
        let read = at(file.read_at(from, &mut bytes), path)?;
        bytes.truncate(read);
        let mut begin = 0;
        while let Some(found) = bytes[begin..].windows(GROUP_MAGIC.len()).position(|window| window == GROUP_MAGIC) {
            let group = &bytes[begin + found..];
            if let Some(head) = GroupHead::decode(group)
                && let Some(records) = group.get(GROUP_HEAD..GROUP_HEAD + head.len as usize)
                && GroupHead::is_whole(&group[..GROUP_HEAD], records)
            {
                return Ok(Some(from + (begin + found) as u64));
            }
            begin += found + 1;
        }
        Ok(None)
    }
}
