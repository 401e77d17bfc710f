//! A shard's data folder: whose it is, and that nobody else works in it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::disk::LocalFolder;

/// Whose data it is. All of it stays the same for the folder's whole life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The cluster's name.
    pub cluster: String,
    /// Which shard.
    pub shard: u32,
    /// Of how many.
    pub shards: u32,
    /// The cluster's partitions.
    pub partitions: u32,
    /// The seed of all randomness.
    pub seed: u32,
}

impl Identity {
    /// What stands in the log, so that a segment in the wrong folder is noticed.
    pub fn tag(&self) -> u64 {
        let text = format!("{}/{} of {}/{}/{}", self.cluster, self.shard, self.shards, self.partitions, self.seed);
        xxh3_64(text.as_bytes())
    }
}

/// A data folder that is locked while this lives.
pub struct DataFolder {
    path: PathBuf,
    _lock: File,
}

const IDENTITY: &str = "identity.toml";

impl DataFolder {
    /// Locks a folder, made where it does not exist, and makes sure that it is this shard's.
    pub fn open(path: &Path, identity: &Identity) -> Result<DataFolder> {
        std::fs::create_dir_all(path).with_context(|| format!("cannot make {} (--data-dir)", path.display()))?;
        let lock_path = path.join("LOCK");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.with_context(|| format!("cannot open {}", lock_path.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "{} is in use by another process: end that one first, or give this one a --data-dir of its own",
                path.display()
            ),
            Err(TryLockError::Error(error)) => bail!("cannot lock {}: {error}", lock_path.display()),
        }
        let folder = DataFolder { path: path.into(), _lock: lock };
        folder.check(identity)?;
        Ok(folder)
    }

    /// Locks a folder that exists, whoever's it is.
    pub fn existing(path: &Path) -> Result<(DataFolder, Identity)> {
        let file = path.join(IDENTITY);
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}: is {} a shard's data folder?", file.display(), path.display()))?;
        let identity = toml::from_str(&text).with_context(|| format!("{} cannot be read", file.display()))?;
        Ok((DataFolder::open(path, &identity)?, identity))
    }

    fn check(&self, identity: &Identity) -> Result<()> {
        let path = self.path.join(IDENTITY);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return self.write(identity),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let found: Identity = toml::from_str(&text).with_context(|| format!("{} cannot be read", path.display()))?;
        if found != *identity {
            bail!(
                "{} belongs to shard {} of {} of cluster '{}' ({} partitions, seed {}), and this is shard {} of {} \
                 of '{}' ({} partitions, seed {}): give each shard a --data-dir of its own, and keep partitions, \
                 seed and the list of shards as they were",
                self.path.display(),
                found.shard,
                found.shards,
                found.cluster,
                found.partitions,
                found.seed,
                identity.shard,
                identity.shards,
                identity.cluster,
                identity.partitions,
                identity.seed,
            );
        }
        Ok(())
    }

    /// Written aside, synced and renamed: it is there as a whole or not at all.
    fn write(&self, identity: &Identity) -> Result<()> {
        let (aside, path) = (self.path.join("identity.new"), self.path.join(IDENTITY));
        let written = || -> std::io::Result<()> {
            let mut file = File::create(&aside)?;
            file.write_all(toml::to_string(identity).map_err(std::io::Error::other)?.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&aside, &path)?;
            File::open(&self.path)?.sync_all()
        };
        written().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Where the log is.
    pub fn log(&self) -> Result<LocalFolder> {
        let path = self.path.join("log");
        let folder = LocalFolder::new(&path).with_context(|| format!("cannot make {}", path.display()))?;
        // The folder's own name must stay too.
        File::open(&self.path).and_then(|folder| folder.sync_all()).context("cannot sync the data folder")?;
        Ok(folder)
    }
}
