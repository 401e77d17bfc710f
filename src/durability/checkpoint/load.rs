//! Reading checkpoints: which files a set of partitions comes from, and into an engine.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::BytesMut;
use futures_util::StreamExt as _;

use super::frame::Frames;
use super::manifest::{ClusterIdentity, FileEntry, Manifest, Section};
use super::store::CheckpointStore;
use crate::engine::{Engine, Lsn, Piece, SavedTable};
use crate::table::CacheBudget;

/// What some partitions are restored from.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For each partition its chain of checkpoints, the oldest first.
    chains: BTreeMap<u32, Vec<u64>>,
    manifests: BTreeMap<u64, Manifest>,
    /// Changes go on after this.
    pub lsn: Lsn,
    /// The checkpoint that later ones may differ from, and the links of its chain: it holds exactly these partitions.
    pub since: Option<(u64, u32)>,
}

impl Plan {
    /// The checkpoints whose state it is, without those that they differ from.
    pub fn checkpoints(&self) -> Vec<u64> {
        let newest: BTreeSet<u64> = self.chains.values().filter_map(|chain| chain.last().copied()).collect();
        newest.into_iter().collect()
    }

    /// Bytes to read.
    pub fn bytes(&self) -> u64 {
        self.links().map(|(_, _, section)| section.length).sum()
    }

    /// Whether it is a state that a history went through.
    pub fn is_of(&self, history: u64) -> bool {
        self.newest().all(|file| file.history == history)
    }

    /// Whether a table is in it.
    pub fn has_table(&self, name: &str) -> bool {
        self.newest().flat_map(|file| &file.tables).any(|table| table.spec.name == name)
    }

    /// Every file and section, in the order in which they are read; `true` for the last of a chain.
    fn links(&self) -> impl Iterator<Item = (bool, &FileEntry, &Section)> {
        self.chains.iter().flat_map(move |(&partition, chain)| self.links_of(partition, chain))
    }

    fn links_of(&self, partition: u32, chain: &[u64]) -> impl Iterator<Item = (bool, &FileEntry, &Section)> {
        chain.iter().enumerate().filter_map(move |(i, sequence)| {
            let (file, section) = self.manifests.get(sequence)?.section(partition)?;
            Some((i + 1 == chain.len(), file, section))
        })
    }

    /// The newest file of each partition.
    fn newest(&self) -> impl Iterator<Item = &FileEntry> {
        self.links().filter(|(last, ..)| *last).map(|(_, file, _)| file)
    }

    /// The tables. Where shards had different ones, because one was being made or dropped, all of them.
    fn tables(&self) -> Result<Vec<SavedTable>> {
        let mut tables: BTreeMap<&str, SavedTable> = BTreeMap::new();
        for entry in self.newest().flat_map(|file| &file.tables) {
            let table = entry.table()?;
            match tables.get(entry.spec.name.as_str()) {
                Some(other) if other.spec != table.spec => {
                    bail!("table '{}' differs between the shards' files", entry.spec.name)
                }
                _ => tables.insert(&entry.spec.name, table),
            };
        }
        Ok(tables.into_values().collect())
    }
}

/// Which checkpoints to start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// The newest for each partition.
    Newest,
    /// The newest of these for each partition.
    These(Vec<u64>),
}

/// Finds what these partitions are restored from. `None` if there is no checkpoint at all.
pub async fn plan(
    store: &CheckpointStore,
    cluster: &ClusterIdentity,
    partitions: &[u32],
    from: &From,
) -> Result<Option<Plan>> {
    let mut manifests = BTreeMap::new();
    let candidates: Vec<u64> = match from {
        From::These(these) => {
            for &sequence in these {
                manifests.insert(sequence, store.get(sequence).await?);
            }
            these.clone()
        }
        From::Newest => {
            for (sequence, manifest) in store.list().await? {
                // Silently taking an older one would lose what this one has.
                let unreadable =
                    || format!("checkpoint {sequence} cannot be read: put it back, or remove it to do without");
                manifests.insert(sequence, manifest.with_context(unreadable)?);
            }
            manifests.keys().copied().collect()
        }
    };
    if candidates.is_empty() {
        return Ok(None);
    }
    let mut chains = BTreeMap::new();
    for &partition in partitions {
        let newest =
            candidates.iter().copied().filter(|sequence| manifests[sequence].section(partition).is_some()).max();
        let Some(newest) = newest else {
            bail!(
                "no checkpoint in {} has partition {partition}: put back what is missing, or choose checkpoints that have all \
                 partitions (hotrow checkpoint list, hotrow checkpoint restore)",
                store.url()
            );
        };
        let mut chain = vec![newest];
        let mut next = newest;
        loop {
            if let std::collections::btree_map::Entry::Vacant(entry) = manifests.entry(next) {
                let found = store.get(next).await;
                entry.insert(found.with_context(|| format!("checkpoint {newest} differs from {next}"))?);
            }
            let manifest = &manifests[&next];
            manifest.check_cluster(cluster, store.url())?;
            let (file, _) = manifest.section(partition).with_context(|| {
                format!("checkpoint {next}, from which {newest} differs, has no partition {partition}")
            })?;
            let Some(base) = file.base else { break };
            ensure!(base < next, "checkpoint {next} differs from {base}, which is not an earlier one");
            chain.push(base);
            next = base;
        }
        chain.reverse();
        chains.insert(partition, chain);
    }
    let mut plan = Plan { chains, manifests, lsn: Lsn(0), since: None };
    plan.lsn = Lsn(plan.newest().map(|file| file.lsn).max().unwrap_or(0));
    let files: BTreeSet<&str> = plan.newest().map(|file| file.path.as_str()).collect();
    if let ([sequence], 1) = (&plan.checkpoints()[..], files.len()) {
        let file = plan.newest().next().context("there is one")?;
        if file.sections.len() == partitions.len() {
            plan.since = Some((*sequence, file.links));
        }
    }
    Ok(Some(plan))
}

/// Fills an engine without tables. `caches` are the sizes of caches that are to differ; `watch` is called with the bytes
/// read so far. Where it goes wrong the engine is of no more use.
pub async fn load(
    store: &CheckpointStore,
    engine: &Engine,
    plan: &Plan,
    caches: &BTreeMap<String, CacheBudget>,
    watch: &mut (dyn FnMut(u64) + Send),
) -> Result<()> {
    let mut tables = plan.tables()?;
    for (name, &cache) in caches {
        let table = tables.iter_mut().find(|table| table.spec.name == *name);
        let table = table.with_context(|| format!("there is no table '{name}' in the checkpoint (--cache)"))?;
        (table.spec.cache, table.current.cache) = (cache, cache);
    }
    let restore = engine.restore(&tables)?;
    let mut bytes = 0;
    for (&partition, chain) in &plan.chains {
        let newest = chain.last().and_then(|sequence| plan.manifests[sequence].section(partition));
        let (newest, _) = newest.context("a chain has a last link")?;
        for (last, file, section) in plan.links_of(partition, chain) {
            // A table that was dropped and made again meanwhile has nothing to do with its namesake.
            let same = |a: &super::manifest::TableEntry| {
                newest.tables.iter().any(|b| (&a.spec.name, a.born) == (&b.spec.name, b.born))
            };
            let names: Vec<Option<&str>> =
                file.tables.iter().map(|table| same(table).then_some(table.spec.name.as_str())).collect();
            let mut filled = restore.partition(partition, &names)?;
            read_section(store, file, section, |piece| Ok(filled.piece(piece, last)?)).await?;
            bytes += section.length;
            watch(bytes);
        }
    }
    restore.finish(plan.lsn, plan.since.is_some());
    Ok(())
}

/// Reads a section, checks every frame, and hands on what they hold.
async fn read_section(
    store: &CheckpointStore,
    file: &FileEntry,
    section: &Section,
    mut each: impl FnMut(Piece) -> Result<()>,
) -> Result<()> {
    let mut frames = Frames::new(section.partition);
    let mut bytes = BytesMut::new();
    let mut left = section.length;
    let place =
        |left: u64| format!("{}: damaged at byte {}", store.place(&file.path), section.offset + section.length - left);
    let end = section.offset.checked_add(section.length).with_context(|| place(left))?;
    let mut stream = store.read(&file.path, section.offset..end).await?;
    while let Some(more) = stream.next().await {
        bytes.extend_from_slice(&more?);
        loop {
            let before = bytes.len() as u64;
            let Some(piece) = frames.next(&mut bytes).with_context(|| place(left))? else { break };
            left -= before - bytes.len() as u64;
            each(piece)?;
        }
    }
    ensure!(bytes.is_empty() && frames.ended && left == 0, "{}: it ends too early", place(left));
    ensure!(frames.seal == section.seal, "{}: it is not what the manifest names", place(left));
    Ok(())
}

/// Reads every byte that a checkpoint consists of, those that it differs from included. Returns how many that were.
pub async fn verify(
    store: &CheckpointStore,
    manifest: &Manifest,
    watch: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<u64> {
    let partitions: Vec<u32> =
        manifest.files.iter().flat_map(|file| file.sections.iter().map(|section| section.partition)).collect();
    let from = From::These(vec![manifest.sequence]);
    let plan = plan(store, &manifest.cluster, &partitions, &from).await?.context("it has no partitions")?;
    plan.tables()?;
    let (mut read, all) = (0, plan.bytes());
    for (_, file, section) in plan.links() {
        read_section(store, file, section, |_| Ok(())).await?;
        read += section.length;
        watch(read, all);
    }
    Ok(read)
}
