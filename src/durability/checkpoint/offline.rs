//! Checkpoints without a server: made from the data folders of shards that do not run, and data folders made to start from
//! one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};

use super::load::{From, load, plan};
use super::manifest::{FileEntry, Manifest};
use super::save::{PartOf, save_part};
use super::store::CheckpointStore;
use crate::cluster::even_share;
use crate::durability::{Base, DataFolder, Identity, LogOptions, SyncPolicy, recover, verify};
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
        let engine = Arc::new(engine_of(store, folder, identity).await?);
        let part = PartOf { sequence, shard: identity.shard, shards, base: None };
        say(format!("shard {}: saving change {} and all before it", identity.shard, engine.last_lsn().0));
        files.push(save_part(store, &engine, part, |_| {}, |_| {}).await?.0);
    }
    let manifest = Manifest::new(sequence, label, cluster, files);
    manifest.check_tables()?;
    ensure!(store.put(&manifest).await?, "another checkpoint has taken the number {sequence}: try again");
    for (folder, identity) in &folders {
        let file = manifest.files.iter().find(|file| file.shard == identity.shard).context("every shard has a file")?;
        folder.set_base(&Base::of(vec![sequence], file.lsn))?;
        folder.empty_log()?;
    }
    Ok(manifest)
}

/// The state that a folder holds: its checkpoint, and its log after that.
async fn engine_of(store: &CheckpointStore, folder: &DataFolder, identity: &Identity) -> Result<Engine> {
    let owned = even_share(identity.partitions, identity.shards, identity.shard);
    let (partitions, seed) = (identity.partitions, identity.seed);
    let engine = Engine::new(EngineConfig { partitions, seed, owned: Some(owned.clone()), ..EngineConfig::default() })?;
    let base = folder.base()?;
    if !base.checkpoints.is_empty() {
        let from = From::These(base.checkpoints.clone());
        let plan = plan(store, &identity.cluster(), &owned, &from).await?.context("it names checkpoints")?;
        load(store, &engine, &plan, &base.caches()?, &mut |_| {}).await?;
    }
    let mut apply = |change: &Change<'_>| engine.apply(change);
    // Ends at once: nothing is appended.
    drop(recover(Arc::new(folder.log()?), identity.tag(), READ, Lsn(base.lsn), &mut apply, &mut |_| {})?);
    Ok(engine)
}

/// Which shard a folder is for.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The shard.
    pub shard: u32,
    /// Of how many.
    pub shards: u32,
}

/// Makes a data folder start from a checkpoint. A fresh one becomes that of shard `share`. If the folder's log has changes
/// that this would give up, it is refused, unless `discard`: then the log is kept beside it. Returns where.
pub async fn restore_folder(
    store: &CheckpointStore,
    manifest: &Manifest,
    path: &Path,
    share: Option<Share>,
    caches: BTreeMap<String, CacheBudget>,
    discard: bool,
) -> Result<(Identity, Option<PathBuf>)> {
    let folder = DataFolder::lock(path)?;
    let found = folder.identity()?;
    let share = match (share, &found) {
        (Some(share), _) => share,
        (None, Some(found)) => Share { shard: found.shard, shards: found.shards },
        (None, None) => bail!("{} is new: say which shard it is for with --shard and --shards", path.display()),
    };
    let Share { shard, shards } = share;
    let cluster = &manifest.cluster;
    ensure!(shard < shards && shards <= cluster.partitions, "there is no shard {shard} of {shards}");
    let identity =
        Identity { cluster: cluster.name.clone(), shard, shards, partitions: cluster.partitions, seed: cluster.seed };
    if let Some(found) = &found {
        ensure!(
            found.cluster() == *cluster,
            "{} belongs to cluster '{}', the checkpoint to '{}'",
            path.display(),
            found.cluster,
            cluster.name
        );
    }
    let owned = even_share(cluster.partitions, shards, shard);
    let plan = plan(store, cluster, &owned, &From::These(vec![manifest.sequence])).await?.context("it is named")?;
    for name in caches.keys() {
        ensure!(plan.has_table(name), "there is no table '{name}' in checkpoint {} (--cache)", manifest.sequence);
    }
    let mut kept = None;
    if folder.has_log()? {
        if !discard {
            let found = found.as_ref().context("there is a log and no identity.toml: give --discard-log")?;
            let after = Lsn(folder.base()?.lsn);
            let last = verify(Arc::new(folder.log()?), found.tag(), after, &mut |_| {})?.last;
            let has_it = manifest
                .files
                .iter()
                .any(|file| (file.shard, file.shards) == (found.shard, found.shards) && file.lsn >= last.0);
            ensure!(
                has_it || last.0 == 0,
                "the log in {} goes up to change {}, and checkpoint {} does not have all of that: give --discard-log to give \
                 up what it does not have (the log is kept beside it), or save first with hotrow checkpoint save",
                path.display(),
                last.0,
                manifest.sequence
            );
        }
        kept = Some(folder.set_log_aside()?);
    }
    let caches = caches.into_iter().map(|(table, cache)| (table, cache.to_string())).collect();
    folder.claim(&identity, &Base { caches, chosen: true, ..Base::of(vec![manifest.sequence], plan.lsn.0) })?;
    Ok((identity, kept))
}
