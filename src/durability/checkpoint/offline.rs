//! Checkpoints without a server: made from the data folders of shards that do not run, and data folders made to start from
//! one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};

use super::load::{From, load, plan};
use super::manifest::{ClusterIdentity, FileEntry, Manifest};
use super::save::{PartOf, save_part};
use super::start::{base, last_change};
use super::store::CheckpointStore;
use crate::cluster::even_share;
use crate::durability::{Base, DataFolder, Identity, LogOptions, SyncPolicy, recover};
use crate::engine::{Change, Engine, EngineConfig, Lsn};
use crate::table::CacheBudget;

/// The log is only read here, and nothing is appended.
const READ: LogOptions = LogOptions { sync: SyncPolicy::Always, segment_bytes: 256 << 20 };

/// Makes a checkpoint of a whole cluster from the data folders of all its shards, and lets their logs go. `say` is told
/// what happens.
pub async fn save_folders(
    store: &CheckpointStore,
    paths: &[PathBuf],
    label: &str,
    say: &mut (dyn FnMut(String) + Send),
) -> Result<Manifest> {
    let mut folders = Vec::new();
    for path in paths {
        folders.push(DataFolder::existing(path)?);
    }
    let first = &folders.first().context("no data folder is given")?.1;
    let shards = first.shards;
    let cluster = first.cluster();
    let mut numbers: Vec<u32> = folders.iter().map(|(_, identity)| identity.shard).collect();
    numbers.sort_unstable();
    for (folder, identity) in &folders {
        ensure!(
            (identity.cluster(), identity.shards) == (cluster.clone(), shards),
            "{} and {} are not of the same cluster",
            paths[0].display(),
            folder.path().display()
        );
    }
    ensure!(
        numbers == (0..shards).collect::<Vec<_>>(),
        "these are the folders of shards {numbers:?}, and the cluster has {shards}: give a --data-dir for each of 0 to {}",
        shards - 1
    );
    store.check_cluster(&cluster).await?;
    let sequence = store.next_sequence().await?;
    let mut files: Vec<FileEntry> = Vec::new();
    for (folder, identity) in &folders {
        say(format!("shard {}: reading {}", identity.shard, folder.path().display()));
        let (engine, history) = engine_of(store, folder, identity).await?;
        let part = PartOf { sequence, shard: identity.shard, shards, history, base: None };
        say(format!("shard {}: saving change {} and all before it", identity.shard, engine.last_lsn().0));
        files.push(save_part(store, &engine, part, |_| {}, |_| {}).await?.0);
    }
    let manifest = Manifest::new(sequence, label, cluster, files);
    manifest.check_tables()?;
    ensure!(store.put(&manifest).await?, "another checkpoint has taken the number {sequence}: try again");
    for (folder, identity) in &folders {
        let file = manifest.files.iter().find(|file| file.shard == identity.shard).context("every shard has a file")?;
        folder.set_base(&Base { history: file.history, ..Base::of(vec![sequence], file.lsn) })?;
        folder.empty_log()?;
    }
    Ok(manifest)
}

/// The state that a folder holds: its checkpoint, and its log after that; and its history.
async fn engine_of(store: &CheckpointStore, folder: &DataFolder, identity: &Identity) -> Result<(Arc<Engine>, u64)> {
    let owned = even_share(identity.partitions, identity.shards, identity.shard);
    let (partitions, seed) = (identity.partitions, identity.seed);
    let engine = Arc::new(Engine::new(EngineConfig {
        partitions,
        seed,
        owned: Some(owned.clone()),
        ..EngineConfig::default()
    })?);
    let base = base(Some(store), folder, identity, &owned).await?;
    if !base.checkpoints.is_empty() {
        let from = From::These(base.checkpoints.clone());
        let plan = plan(store, &identity.cluster(), &owned, &from).await?.context("it names checkpoints")?;
        ensure!(plan.lsn.0 == base.lsn, "{} goes on after another change than its checkpoint", folder.path().display());
        load(store, &engine, &plan, &base.caches()?, &mut |_| {}).await?;
    }
    let (log, tag) = (Arc::new(folder.log()?), identity.tag());
    let filled = Arc::clone(&engine);
    let replay = move || {
        let mut apply = |change: &Change<'_>| filled.apply(change);
        // The log ends at once: nothing is appended.
        recover(log, tag, READ, Lsn(base.lsn), &mut apply, &mut |_| {}).map(drop)
    };
    tokio::task::spawn_blocking(replay).await??;
    Ok((engine, base.history))
}

/// Which shard a folder is for.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The shard.
    pub shard: u32,
    /// Of how many.
    pub shards: u32,
}

/// Makes a data folder start from a checkpoint, or from the newest for each of its partitions. A fresh folder becomes that of
/// shard `share`. If it has changes that this would give up, it is refused, unless `discard`: then the log is kept beside
/// it. Returns whose the folder is, what it starts from, and where the log is kept.
pub async fn restore_folder(
    store: &CheckpointStore,
    manifest: Option<&Manifest>,
    path: &Path,
    share: Option<Share>,
    caches: BTreeMap<String, CacheBudget>,
    discard: bool,
) -> Result<(Identity, Vec<u64>, Option<PathBuf>)> {
    let folder = DataFolder::lock(path)?;
    let found = folder.identity()?;
    let Share { shard, shards } = match (share, &found) {
        (Some(share), _) => share,
        (None, Some(found)) => Share { shard: found.shard, shards: found.shards },
        (None, None) => bail!("{} is new: say which shard it is for with --shard and --shards", path.display()),
    };
    let cluster = match (manifest, &found) {
        (Some(manifest), _) => manifest.cluster.clone(),
        (None, Some(found)) => found.cluster(),
        (None, None) => bail!("{} is new: name a checkpoint, by its number or --label", path.display()),
    };
    ensure!(shard < shards && shards <= cluster.partitions, "there is no shard {shard} of {shards}");
    let other = found.as_ref().map(Identity::cluster).filter(|other| *other != cluster);
    if let Some(other) = other {
        bail!("{} belongs to cluster '{}', the checkpoint to '{}'", path.display(), other.name, cluster.name);
    }
    let owned = even_share(cluster.partitions, shards, shard);
    let from = manifest.map_or(From::Newest, |manifest| From::These(vec![manifest.sequence]));
    let plan = plan(store, &cluster, &owned, &from).await?.context("there are no checkpoints")?;
    for name in caches.keys() {
        ensure!(plan.has_table(name), "there is no table '{name}' in checkpoint {:?} (--cache)", plan.checkpoints());
    }
    if let Some(found) = found.as_ref().filter(|_| !discard) {
        let base = folder.base()?;
        let last = last_change(&folder, found, &base)?;
        ensure!(
            last.0 == 0 || plan.is_of(base.history) && plan.lsn >= last || last.0 == base.lsn && base.lsn == plan.lsn.0,
            "{} has changes up to {}, and checkpoint {:?} does not have all of that: give --discard-log to give up what it does not \
             have (the log is kept beside it), or save first with hotrow checkpoint save",
            path.display(),
            last.0,
            plan.checkpoints()
        );
    }
    let kept = if folder.has_log()? { Some(folder.set_log_aside()?) } else { None };
    let caches = caches.into_iter().map(|(table, cache)| (table, cache.to_string())).collect();
    let ClusterIdentity { name, partitions, seed } = cluster;
    let identity = Identity { cluster: name, shard, shards, partitions, seed };
    let base = Base { caches, chosen: true, ..Base::of(plan.checkpoints(), plan.lsn.0) };
    folder.claim(&identity, &base)?;
    Ok((identity, base.checkpoints, kept))
}
