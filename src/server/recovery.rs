//! How a shard starts: from its checkpoint, and then from its log.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use super::config::Config;
use super::shard::{Recovering, Shard};
use crate::durability::checkpoint::{self, CheckpointStore, From, Plan};
use crate::durability::{self, Base, DataFolder, Identity, LogOptions, Progress};
use crate::engine::{Change, Lsn};
use crate::table::CacheBudget;

/// How often a long start says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Brings the shard's engine to where it was, and logs what comes after.
pub async fn recover(shard: &Arc<Shard>, config: &Config) -> Result<()> {
    let options = config.durability.log_options().map_err(|e| anyhow!(e))?;
    let identity = Identity {
        cluster: shard.topology.cluster.clone(),
        shard: shard.number,
        shards: shard.topology.shards.len() as u32,
        partitions: config.engine.partitions,
        seed: config.engine.seed,
    };
    *shard.recovering.lock() = Some(Recovering::default());
    match options {
        None => {
            load(shard, &identity, &From::Newest, &BTreeMap::new()).await?;
        }
        Some(options) => {
            let folder = DataFolder::lock(&config.durability.data_dir)?;
            let base = base(shard, &folder, &identity).await?;
            if !base.checkpoints.is_empty() {
                let at = load(shard, &identity, &From::These(base.checkpoints.clone()), &base.caches()?).await?;
                if at != Some(Lsn(base.lsn)) {
                    bail!("{} goes on after change {}, and the checkpoint does not", folder.path().display(), base.lsn);
                }
            }
            let with = Arc::clone(shard);
            tokio::task::spawn_blocking(move || replay(&with, folder, &identity, options, Lsn(base.lsn))).await??;
        }
    }
    // Whoever is remembered may be idle for as long as anybody.
    let now = Instant::now();
    for client in shard.engine.clients() {
        shard.heard_of.insert(client, now);
    }
    *shard.recovering.lock() = None;
    Ok(())
}

/// Where the folder's log goes on from. A fresh folder begins with the newest checkpoint; one of another number of shards
/// does too, if its log holds nothing that no checkpoint has.
async fn base(shard: &Shard, folder: &DataFolder, identity: &Identity) -> Result<Base> {
    match folder.identity()? {
        Some(found) if found == *identity => return base_of_ours(shard, folder, identity).await,
        Some(found) => {
            may_be_taken_over(shard, folder, &found, identity).await?;
            tracing::info!(
                "{} was of shard {} of {}: its log is in a checkpoint, and is removed",
                folder.path().display(),
                found.shard,
                found.shards
            );
        }
        None if folder.has_log()? => bail!(
            "{} holds a log and no identity.toml: put that back, or give this shard another --data-dir",
            folder.path().display()
        ),
        None => {}
    }
    let base = newest(shard, identity).await?.map_or(Base::default(), |plan| Base::of(plan.checkpoints(), plan.lsn.0));
    // The log goes first: a folder that is still another shard's without it is refused or taken over again.
    folder.empty_log()?;
    folder.claim(identity, &base)?;
    Ok(base)
}

async fn newest(shard: &Shard, identity: &Identity) -> Result<Option<Plan>> {
    let Some(checkpoints) = &shard.checkpoints else { return Ok(None) };
    let owned = shard.topology.owned_by(shard.number);
    checkpoint::plan(&checkpoints.store, &identity.cluster(), &owned, &From::Newest).await
}

/// Where this shard's own log goes on from: what is written down, or what it has saved since. Where others have saved its
/// partitions since, because there was another number of shards, that is the newer state.
async fn base_of_ours(shard: &Shard, folder: &DataFolder, identity: &Identity) -> Result<Base> {
    let base = folder.base()?;
    if base.chosen {
        return Ok(base);
    }
    let Some(plan) = newest(shard, identity).await? else { return Ok(base) };
    let newer = Base::of(plan.checkpoints(), plan.lsn.0);
    if newer.checkpoints == base.checkpoints || newer.checkpoints.last() < base.checkpoints.last() {
        return Ok(base);
    }
    if plan.is_by(identity.shard, identity.shards) {
        if newer.lsn < base.lsn {
            return Ok(base);
        }
        folder.set_base(&newer)?;
        return Ok(newer);
    }
    let log = Arc::new(folder.log()?);
    let last = durability::verify(log, identity.tag(), Lsn(base.lsn), &mut |_| {})?.last;
    if last.0 > base.lsn {
        bail!(
            "another number of shards has saved the partitions of {} in checkpoint {:?} of {}, after this folder's log had begun; \
             the log has changes {} to {} that the checkpoint does not have. To give those up and start from the checkpoint: \
             hotrow checkpoint restore {} --discard-log --checkpoints {} --data-dir {}",
            folder.path().display(),
            newer.checkpoints,
            shard.checkpoints.as_ref().map_or("", |checkpoints| checkpoints.store.url()),
            base.lsn + 1,
            last.0,
            newer.checkpoints.last().copied().unwrap_or_default(),
            shard.checkpoints.as_ref().map_or("", |checkpoints| checkpoints.store.url()),
            folder.path().display(),
        );
    }
    folder.empty_log()?;
    folder.set_base(&newer)?;
    Ok(newer)
}

/// Refuses a folder of another shard or cluster, unless only the number of shards differs and nothing would be lost.
async fn may_be_taken_over(shard: &Shard, folder: &DataFolder, found: &Identity, ours: &Identity) -> Result<()> {
    let path = folder.path().display();
    let whose = format!(
        "{path} belongs to shard {} of {} of cluster '{}' ({} partitions, seed {}), and this is shard {} of {} of '{}' ({} \
         partitions, seed {})",
        found.shard,
        found.shards,
        found.cluster,
        found.partitions,
        found.seed,
        ours.shard,
        ours.shards,
        ours.cluster,
        ours.partitions,
        ours.seed,
    );
    if found.cluster() != ours.cluster() || found.shards == ours.shards {
        bail!("{whose}: give each shard a --data-dir of its own, and keep cluster, partitions and seed as they were");
    }
    let Some(checkpoints) = &shard.checkpoints else {
        bail!("{whose}: another number of shards starts from a checkpoint; give --checkpoints");
    };
    let after = Lsn(folder.base()?.lsn);
    let last = durability::verify(Arc::new(folder.log()?), found.tag(), after, &mut |_| {})?.last;
    let has_it =
        |file: &checkpoint::FileEntry| (file.shard, file.shards) == (found.shard, found.shards) && file.lsn >= last.0;
    let mut manifests = checkpoints.store.list().await?.into_values();
    if last.0 == 0 || manifests.any(|manifest| manifest.is_ok_and(|manifest| manifest.files.iter().any(has_it))) {
        return Ok(());
    }
    bail!(
        "{whose}. Its log goes up to change {}, and no checkpoint in {} has that: it would be lost. Save it first, with the \
         folders of all {} shards and none of them running: hotrow checkpoint save --checkpoints {} {}",
        last.0,
        checkpoints.store.url(),
        found.shards,
        checkpoints.store.url(),
        (0..found.shards).map(|n| data_dir_flag(folder.path(), found.shard, n)).collect::<Vec<_>>().join(" "),
    )
}

/// A flag with the folder of shard `n`; only that of shard `known` is known here.
fn data_dir_flag(path: &Path, known: u32, n: u32) -> String {
    match n == known {
        true => format!("--data-dir {}", path.display()),
        false => format!("--data-dir FOLDER-OF-SHARD-{n}"),
    }
}

/// Fills the engine from checkpoints. Returns the last change in them; `None` if there are none.
async fn load(
    shard: &Arc<Shard>,
    identity: &Identity,
    from: &From,
    caches: &BTreeMap<String, CacheBudget>,
) -> Result<Option<Lsn>> {
    let Some(checkpoints) = &shard.checkpoints else {
        return match from {
            From::Newest => Ok(None),
            From::These(these) => {
                bail!("the log goes on from checkpoint {these:?}: say where that is with --checkpoints")
            }
        };
    };
    let store: &CheckpointStore = &checkpoints.store;
    let owned = shard.topology.owned_by(shard.number);
    let Some(plan) = checkpoint::plan(store, &identity.cluster(), &owned, from).await? else { return Ok(None) };
    let begun = Instant::now();
    let (mut said, total_bytes) = (begun, plan.bytes());
    let mut watch = |bytes: u64| {
        *shard.recovering.lock() = Some(Recovering { bytes, total_bytes, ..Recovering::default() });
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            tracing::info!("recovering: {} % of the checkpoint", 100 * bytes / total_bytes.max(1));
        }
    };
    let named = plan.checkpoints();
    checkpoint::load(store, &shard.engine, &plan, caches, &mut watch)
        .await
        .with_context(|| format!("checkpoint {named:?} in {} cannot be restored", store.url()))?;
    let seconds = begun.elapsed().as_secs_f64();
    tracing::info!(bytes = total_bytes, lsn = plan.lsn.0, seconds, "restored from checkpoint {named:?}");
    checkpoints.start_from(&plan).await;
    Ok(Some(plan.lsn))
}

fn replay(shard: &Shard, folder: DataFolder, identity: &Identity, options: LogOptions, after: Lsn) -> Result<()> {
    let begun = Instant::now();
    let mut said = begun;
    let mut watch = |progress: Progress| {
        let Progress { bytes, total_bytes, changes } = progress;
        *shard.recovering.lock() = Some(Recovering { log: true, bytes, total_bytes, changes });
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            tracing::info!(changes, "recovering: {} % of the log", 100 * bytes / total_bytes.max(1));
        }
    };
    let disk = Arc::new(folder.log()?);
    let mut apply = |change: &Change<'_>| shard.engine.apply(change);
    let recovered = durability::recover(disk, identity.tag(), options, after, &mut apply, &mut watch)?;
    if let Some(cut) = &recovered.cut {
        tracing::warn!(
            "bytes {} to {} of {} are cut off: the last group was never whole, so nothing in it was acknowledged as synced",
            cut.from,
            cut.to,
            cut.path.display()
        );
        shard.cut_bytes.store(cut.to - cut.from, Ordering::Relaxed);
    }
    let Progress { bytes, changes, .. } = recovered.progress;
    tracing::info!(changes, bytes, seconds = begun.elapsed().as_secs_f64(), "recovered from the log");
    shard.engine.set_log(recovered.log.hook());
    // Set once, here.
    let _ = shard.log.set(recovered.log);
    let _ = shard.data_folder.set(folder);
    Ok(())
}
