//! A shard's data folder: whose it is, and that nobody else works in it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::checkpoint::ClusterIdentity;
use super::disk::{Disk as _, LocalFolder};
use super::replay::remove_segments;
use crate::table::CacheBudget;

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
    /// The cluster that it belongs to.
    pub fn cluster(&self) -> ClusterIdentity {
        ClusterIdentity { name: self.cluster.clone(), partitions: self.partitions, seed: self.seed }
    }

    /// What stands in the log, so that a segment in the wrong folder is noticed.
    pub fn tag(&self) -> u64 {
        let text = format!("{}/{} of {}/{}/{}", self.cluster, self.shard, self.shards, self.partitions, self.seed);
        xxh3_64(text.as_bytes())
    }
}

/// A data folder that is locked while this lives, or until it is unlocked.
pub struct DataFolder {
    path: PathBuf,
    lock: File,
}

/// Where a shard's log goes on from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// The checkpoints that hold the state before the log; of several the newest for each partition. None: it began empty.
    pub checkpoints: Vec<u64>,
    /// The last change in them.
    pub lsn: u64,
    /// Whether somebody has chosen them, so that later ones do not count.
    #[serde(default)]
    pub chosen: bool,
    /// Tells the changes of this folder from others with the same places: those that were given up, or of another life.
    #[serde(default)]
    pub history: u64,
    /// Caches whose size is to differ from the one in the checkpoint.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub caches: BTreeMap<String, String>,
}

impl Base {
    /// The state up to a change is in these checkpoints; a new history begins.
    pub fn of(checkpoints: Vec<u64>, lsn: u64) -> Base {
        Base { checkpoints, lsn, history: new_history(), ..Base::default() }
    }

    /// The sizes of caches that are to differ.
    pub fn caches(&self) -> Result<BTreeMap<String, CacheBudget>> {
        let parsed = |(table, size): (&String, &String)| {
            let cache = size.parse().map_err(|e| anyhow!("the cache of '{table}' in {BASE}: {e}"))?;
            Ok((table.clone(), cache))
        };
        self.caches.iter().map(parsed).collect()
    }
}

/// A history that nobody else has. It fits what TOML calls an integer.
pub fn new_history() -> u64 {
    rand::random::<u64>() >> 1 | 1
}

const IDENTITY: &str = "identity.toml";
const BASE: &str = "base.toml";

impl DataFolder {
    /// Locks a folder, made where it does not exist, whoever's it is.
    pub fn lock(path: &Path) -> Result<DataFolder> {
        std::fs::create_dir_all(path).with_context(|| format!("cannot make {} (--data-dir)", path.display()))?;
        let lock_path = path.join("LOCK");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.with_context(|| format!("cannot open {}", lock_path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(DataFolder { path: path.into(), lock }),
            Err(TryLockError::WouldBlock) => bail!(
                "{} is in use by another process: end that one first, or give this one a --data-dir of its own",
                path.display()
            ),
            Err(TryLockError::Error(error)) => bail!("cannot lock {}: {error}", lock_path.display()),
        }
    }

    /// Lets others have the folder, while requests that came late may still hold this.
    pub fn unlock(&self) {
        // It fails only where locks do not work, and then it was never locked.
        let _ = self.lock.unlock();
    }

    /// Locks a folder that a shard has worked in.
    pub fn existing(path: &Path) -> Result<(DataFolder, Identity)> {
        let none = || format!("{} is not a shard's data folder: there is no {IDENTITY} in it", path.display());
        if !path.join(IDENTITY).exists() {
            bail!(none());
        }
        let folder = DataFolder::lock(path)?;
        let identity = folder.identity()?.with_context(none)?;
        Ok((folder, identity))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is; `None` for a fresh one.
    pub fn identity(&self) -> Result<Option<Identity>> {
        self.read(IDENTITY)
    }

    /// Makes it a shard's. One that was claimed half-way has its old identity, and is claimed again by the next start.
    pub fn claim(&self, identity: &Identity, base: &Base) -> Result<()> {
        self.set_base(base)?;
        self.write(IDENTITY, &toml::to_string(identity)?)
    }

    /// Where its log goes on from.
    pub fn base(&self) -> Result<Base> {
        Ok(self.read(BASE)?.unwrap_or_default())
    }

    /// Its log goes on from these checkpoints.
    pub fn set_base(&self, base: &Base) -> Result<()> {
        self.write(BASE, &toml::to_string(base)?)
    }

    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.path.join(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(toml::from_str(&text).with_context(|| format!("{} cannot be read", path.display()))?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Written aside, synced and renamed: it is there as a whole or not at all.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        let (aside, path) = (self.path.join(format!("{name}.new")), self.path.join(name));
        let written = || -> std::io::Result<()> {
            let mut file = File::create(&aside)?;
            file.write_all(text.as_bytes())?;
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

    /// Whether there is anything in the log's folder.
    pub fn has_log(&self) -> Result<bool> {
        Ok(!self.log()?.list().context("cannot list the log")?.is_empty())
    }

    /// Takes the log out of use and keeps it. Returns where.
    pub fn set_log_aside(&self) -> Result<PathBuf> {
        let names = (1..).map(|n| self.path.join(format!("log.{n}.discarded")));
        let aside = names.into_iter().find(|path| !path.exists()).context("there is no end of names")?;
        let moved = std::fs::rename(self.path.join("log"), &aside).and_then(|()| File::open(&self.path)?.sync_all());
        moved.with_context(|| format!("cannot move the log to {}", aside.display()))?;
        Ok(aside)
    }

    /// Removes every segment of the log, because a checkpoint has it all.
    pub fn empty_log(&self) -> Result<()> {
        remove_segments(&self.log()?, |_, _| true)
            .map(drop)
            .with_context(|| format!("cannot empty the log in {}", self.path.display()))
    }
}
