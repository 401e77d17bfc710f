//! How a shard starts from its data folder.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::config::Config;
use super::shard::Shard;
use crate::durability::{self, DataFolder, Identity, LogOptions, Progress};
use crate::engine::{Change, Lsn};

/// How often a long replay says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Replays the log into the shard's engine, and logs what comes after. Nothing happens where there is no log.
pub async fn recover(shard: &Arc<Shard>, config: &Config) -> Result<()> {
    let Some(options) = config.durability.log_options().map_err(|e| anyhow!(e))? else { return Ok(()) };
    let identity = Identity {
        cluster: shard.topology.cluster.clone(),
        shard: shard.number,
        shards: shard.topology.shards.len() as u32,
        partitions: config.engine.partitions,
        seed: config.engine.seed,
    };
    *shard.recovering.lock() = Some(Progress::default());
    let (data_dir, with) = (config.durability.data_dir.clone(), Arc::clone(shard));
    tokio::task::spawn_blocking(move || replay(&with, DataFolder::open(&data_dir, &identity)?, &identity, options))
        .await??;
    *shard.recovering.lock() = None;
    Ok(())
}

fn replay(shard: &Shard, folder: DataFolder, identity: &Identity, options: LogOptions) -> Result<()> {
    let begun = Instant::now();
    let mut said = begun;
    let mut watch = |progress: Progress| {
        *shard.recovering.lock() = Some(progress);
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            let percent = 100 * progress.bytes / progress.total_bytes.max(1);
            tracing::info!(changes = progress.changes, "recovering: {percent} % of the log");
        }
    };
    let disk = Arc::new(folder.log()?);
    let mut apply = |change: &Change<'_>| shard.engine.apply(change);
    let recovered = durability::recover(disk, identity.tag(), options, Lsn(0), &mut apply, &mut watch)?;
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
    // Whoever is remembered may be idle for as long as anybody.
    let now = Instant::now();
    for client in shard.engine.clients() {
        shard.heard_of.insert(client, now);
    }
    shard.engine.set_log(recovered.log.hook());
    // Set once, here.
    let _ = shard.log.set(recovered.log);
    let _ = shard.data_folder.set(folder);
    Ok(())
}
