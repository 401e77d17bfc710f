//! How a shard starts: from its checkpoint, and then from its log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use super::config::Config;
use super::shard::{Recovering, Shard};
use crate::durability::checkpoint::{self, CheckpointStore, From};
use crate::durability::{self, DataFolder, Identity, LogOptions, Progress, new_history};
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
            let _ = shard.history.set(new_history());
            load(shard, &identity, &From::Newest, &BTreeMap::new()).await?;
        }
        Some(options) => {
            let folder = DataFolder::lock(&config.durability.data_dir)?;
            let store = shard.checkpoints.as_ref().map(|checkpoints| &checkpoints.store);
            let owned = shard.topology.owned_by(shard.number);
            let base = checkpoint::base(store, &folder, &identity, &owned).await?;
            // Set once, here.
            let _ = shard.history.set(base.history);
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
