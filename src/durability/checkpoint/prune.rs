//! Removing checkpoints that are not needed any more.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use super::manifest::Manifest;
use super::store::CheckpointStore;

/// Removes all but the `keep` newest complete checkpoints, what is newer, and what any of those differ from. Returns what
/// was removed; `dry` only says so.
pub async fn prune(store: &CheckpointStore, keep: usize, dry: bool) -> Result<Vec<u64>> {
    ensure!(keep > 0, "the last good checkpoint is never removed: keep 1 or more");
    let mut manifests = BTreeMap::new();
    for (sequence, manifest) in store.list().await? {
        // One that cannot be read may be what another differs from: somebody has to look first.
        manifests.insert(sequence, manifest?);
    }
    if let Some(first) = manifests.values().next() {
        manifests.values().try_for_each(|manifest| manifest.check_cluster(&first.cluster, store.url()))?;
    }
    let complete: Vec<u64> = manifests.values().filter(|m| m.is_complete()).map(|m| m.sequence).collect();
    let Some(&oldest) = complete.iter().rev().take(keep).next_back() else { return Ok(Vec::new()) };
    let mut needed: BTreeSet<u64> = manifests.range(oldest..).map(|(&sequence, _)| sequence).collect();
    let mut more: Vec<u64> = needed.iter().copied().collect();
    while let Some(sequence) = more.pop() {
        let bases = manifests.get(&sequence).into_iter().flat_map(Manifest::bases);
        more.extend(bases.filter(|&base| needed.insert(base)));
    }
    let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
        manifests.into_iter().partition(|(sequence, _)| needed.contains(sequence));
    if !dry {
        let named: BTreeSet<&str> = kept.values().flat_map(|m| m.files.iter().map(|file| file.path.as_str())).collect();
        // The newest first: one that differs from another goes before that.
        for manifest in gone.values().rev() {
            // First what makes it a checkpoint: half of one is never seen.
            store.remove(&manifest.path()).await?;
            for file in manifest.files.iter().filter(|file| !named.contains(file.path.as_str())) {
                store.remove(&file.path).await?;
            }
        }
        for path in store.left_over(&kept).await? {
            store.remove(&path).await?;
        }
        store.remove_unnamed()?;
    }
    Ok(gone.into_keys().collect())
}
