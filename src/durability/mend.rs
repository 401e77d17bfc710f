//! Giving up the changes behind damage, because somebody has asked for it by name.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};

use super::folder::{DataFolder, Identity};
use super::group::segment_first;
use super::replay::{LogError, verify};
use crate::engine::Lsn;

/// Cuts a damaged log off before change `from`, which must be where the damage is. What is cut is kept beside the log,
/// in files that end in `.cut`; returns those.
pub fn cut(folder: &DataFolder, identity: &Identity, from: u64) -> Result<Vec<PathBuf>> {
    let log = folder.log()?;
    let (path, offset) = match verify(Arc::new(log), identity.tag(), Lsn(folder.base()?.lsn), &mut |_| {}) {
        Ok(verified) => bail!("the log is whole up to change {}: there is nothing to cut", verified.last.0),
        Err(LogError::Damaged { path, offset, lsn, .. }) if lsn == from => (path, offset),
        Err(LogError::Missing { path, expected, .. }) if expected == from => (path, 0),
        Err(LogError::Damaged { lsn, .. } | LogError::Missing { expected: lsn, .. }) => {
            bail!("the damage is at change {lsn}, not {from}: give --from {lsn}")
        }
        Err(other) => return Err(other).context("this is not mended by cutting"),
    };
    let name = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).and_then(segment_first);
    // A name that nothing has: what was cut earlier is kept too.
    let aside = |path: &PathBuf| {
        let names = (1..).map(|n| PathBuf::from(format!("{}.{n}.cut", path.display())));
        names.into_iter().find(|name| !name.exists()).expect("there is no end of names")
    };
    let dir = path.parent().context("the log has no folder")?;
    let mut kept = vec![aside(&path)];
    let mut rest = File::open(&path)?;
    rest.seek(SeekFrom::Start(offset))?;
    let mut copy = File::create_new(&kept[0])?;
    std::io::copy(&mut rest.by_ref(), &mut copy)?;
    copy.sync_all()?;
    // Later segments first: if this is cut short, the log is as damaged as before and not more.
    let mut later: Vec<PathBuf> =
        std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    later.retain(|other| name(other).is_some() && name(other) > name(&path));
    later.sort();
    for other in later.iter().rev() {
        kept.push(aside(other));
        std::fs::rename(other, &kept[kept.len() - 1])?;
    }
    File::open(dir)?.sync_all()?;
    if offset == 0 {
        std::fs::remove_file(&path)?;
    } else {
        let file = OpenOptions::new().write(true).open(&path)?;
        file.set_len(offset)?;
        file.sync_all()?;
    }
    File::open(dir)?.sync_all()?;
    Ok(kept)
}
