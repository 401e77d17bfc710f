//! What a data folder starts from, and what it must not start from.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};

use super::load::{From, Plan, plan};
use super::manifest::FileEntry;
use super::store::CheckpointStore;
use crate::durability::{Base, DataFolder, Identity, new_history, verify};
use crate::engine::Lsn;

/// Where the folder's log goes on from. A fresh folder begins with the newest checkpoint; one of another number of shards
/// does too, if its log holds nothing that no checkpoint has. `owned` are the shard's partitions.
pub async fn base(
    store: Option<&CheckpointStore>,
    folder: &DataFolder,
    identity: &Identity,
    owned: &[u32],
) -> Result<Base> {
    let found = folder.identity()?;
    let chosen = found.as_ref() == Some(identity) && folder.base()?.chosen;
    let newest = match store.filter(|_| !chosen) {
        Some(store) => plan(store, &identity.cluster(), owned, &From::Newest).await?,
        None => None,
    };
    let (path, place) = (folder.path().display(), store.map_or("", CheckpointStore::url));
    match found {
        Some(found) if found == *identity => return base_of_ours(folder, identity, newest, place),
        Some(found) => {
            may_be_taken_over(store, folder, &found, identity).await?;
            let Identity { shard, shards, .. } = found;
            tracing::info!("{path} was of shard {shard} of {shards}: its log is in a checkpoint, and is removed");
        }
        None if folder.has_log()? => {
            bail!("{path} holds a log and no identity.toml: put that back, or give this shard another --data-dir")
        }
        None => {}
    }
    let base = newest.map_or_else(|| Base::of(Vec::new(), 0), |plan| Base::of(plan.checkpoints(), plan.lsn.0));
    // The log goes first: a folder that is still another shard's without it is refused or taken over again.
    folder.empty_log()?;
    folder.claim(identity, &base)?;
    Ok(base)
}

/// The last change that a folder has.
pub(super) fn last_change(folder: &DataFolder, identity: &Identity, base: &Base) -> Result<Lsn> {
    Ok(verify(Arc::new(folder.log()?), identity.tag(), Lsn(base.lsn), &mut |_| {})?.last)
}

/// Where a shard's own log goes on from: what is written down, or what it has saved since. A newer checkpoint that does not
/// come from this log, because others have saved the partitions since, is the newer state.
fn base_of_ours(folder: &DataFolder, identity: &Identity, newest: Option<Plan>, place: &str) -> Result<Base> {
    let mut base = folder.base()?;
    if base.history == 0 {
        base.history = new_history();
        folder.set_base(&base)?;
    }
    let Some(plan) = newest else { return Ok(base) };
    let newer = Base::of(plan.checkpoints(), plan.lsn.0);
    if newer.checkpoints == base.checkpoints || newer.checkpoints.last() < base.checkpoints.last() {
        return Ok(base);
    }
    if plan.is_of(base.history) {
        if newer.lsn < base.lsn {
            return Ok(base);
        }
        let newer = Base { history: base.history, ..newer };
        folder.set_base(&newer)?;
        return Ok(newer);
    }
    let last = last_change(folder, identity, &base)?;
    if last.0 > base.lsn {
        let (path, newest) = (folder.path().display(), newer.checkpoints.last().copied().unwrap_or_default());
        bail!(
            "checkpoint {newest} in {place} has the partitions of {path} and does not come from the log there: another number of \
             shards has saved them since, or another life of the cluster. The log has changes {} to {} that the checkpoint does not \
             have. To give those up and start from the checkpoint: hotrow checkpoint restore --discard-log --checkpoints {place} \
             --data-dir {path}; to keep them, give the cluster another place for its checkpoints",
            base.lsn + 1,
            last.0,
        );
    }
    folder.empty_log()?;
    folder.set_base(&newer)?;
    Ok(newer)
}

/// Refuses a folder of another shard or cluster, unless only the number of shards differs and nothing would be lost.
async fn may_be_taken_over(
    store: Option<&CheckpointStore>,
    folder: &DataFolder,
    found: &Identity,
    ours: &Identity,
) -> Result<()> {
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
    let Some(store) = store else {
        bail!("{whose}: another number of shards starts from a checkpoint; give --checkpoints");
    };
    let base = folder.base()?;
    let place = store.url();
    let last = last_change(folder, found, &base)?;
    if last.0 <= base.lsn && !base.chosen {
        return Ok(());
    }
    let has_it = |file: &FileEntry| file.history == base.history && file.lsn >= last.0;
    for (_, manifest) in store.list().await? {
        if manifest?.files.iter().any(has_it) {
            return Ok(());
        }
    }
    if last.0 <= base.lsn {
        bail!(
            "{whose}. It was told to start from checkpoint {:?}. Tell it again, for this number of shards: hotrow checkpoint restore \
             {} --shard {} --shards {} --checkpoints {place} --data-dir {path}",
            base.checkpoints,
            base.checkpoints.last().copied().unwrap_or_default(),
            ours.shard,
            ours.shards,
        );
    }
    bail!(
        "{whose}. Its log goes up to change {}, and no checkpoint in {place} has that: it would be lost. Save it first, with the \
         folders of all {} shards and none of them running: hotrow checkpoint save --checkpoints {place} {}",
        last.0,
        found.shards,
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
