//! The manifest of a checkpoint (docs/CHECKPOINT.md): what it holds, and in which files. It is written last; without
//! one there is no checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::{Lsn, SavedTable};
use crate::numeric::NUMERICS_VERSION;
use crate::table::TableConfig;

/// The version of the files' format.
const FORMAT: u32 = 1;

/// What a cluster is, for its whole life: a checkpoint of one cannot be taken over by another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterIdentity {
    /// Its name.
    pub name: String,
    /// Its partitions.
    pub partitions: u32,
    /// The seed of all randomness.
    pub seed: u32,
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the files' format.
    pub format: u32,
    /// The version of the numerics that its state was made with.
    pub numerics: u32,
    /// Later checkpoints have higher numbers.
    pub sequence: u64,
    /// What its user calls it.
    pub label: String,
    /// When it was made, in seconds since 1970.
    pub made: u64,
    /// Whose state it is.
    pub cluster: ClusterIdentity,
    /// The files, one for each shard that took part.
    pub files: Vec<FileEntry>,
}

/// A shard's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Where it is, below the place of all checkpoints.
    pub path: String,
    /// The shard that wrote it.
    pub shard: u32,
    /// Of how many.
    pub shards: u32,
    /// The shard's last change in it.
    pub lsn: u64,
    /// The history that this change belongs to: places are only compared within one.
    pub history: u64,
    /// The checkpoint that it differs from; none where it has all rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
    /// How many checkpoints come before it in its chain.
    pub links: u32,
    /// Its length.
    pub bytes: u64,
    /// Its tables; pieces name them by their place here.
    pub tables: Vec<TableEntry>,
    /// Its partitions.
    pub sections: Vec<Section>,
}

/// A table in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableEntry {
    /// As it was made.
    pub spec: TableConfig,
    /// As it was then: hyper-parameters may have been altered.
    pub current: TableConfig,
    /// The change that made it, which tells it from another of the same name.
    pub born: u64,
}

/// Where a partition is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// The partition.
    pub partition: u32,
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// The seal of its last frame.
    pub seal: u64,
}

/// What stands around a manifest: JSON itself, and always the same bytes.
const BEFORE_CHECKSUM: &str = "{\"checksum\":\"";
const BEFORE_MANIFEST: &str = "\",\"manifest\":";
const AFTER_MANIFEST: &str = "}\n";

impl TableEntry {
    /// A table at a cut.
    pub fn of(table: &SavedTable) -> TableEntry {
        let (spec, current) = (TableConfig::of(&table.spec), TableConfig::of(&table.current));
        TableEntry { spec, current, born: table.born.0 }
    }

    /// The table.
    pub fn table(&self) -> Result<SavedTable> {
        let spec = |words: &TableConfig| words.spec().map_err(|e| anyhow::anyhow!(e));
        Ok(SavedTable { spec: spec(&self.spec)?, current: spec(&self.current)?, born: Lsn(self.born) })
    }
}

impl Manifest {
    /// A manifest of now.
    pub fn new(sequence: u64, label: &str, cluster: ClusterIdentity, files: Vec<FileEntry>) -> Manifest {
        let made = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let (format, numerics) = (FORMAT, NUMERICS_VERSION);
        Manifest { format, numerics, sequence, label: label.into(), made, cluster, files }
    }

    /// As text. The checksum covers the bytes of the manifest, as they stand there.
    pub fn encode(&self) -> Result<String> {
        let manifest = serde_json::to_string(self)?;
        let checksum = xxh3_64(manifest.as_bytes());
        Ok(format!("{BEFORE_CHECKSUM}{checksum:016x}{BEFORE_MANIFEST}{manifest}{AFTER_MANIFEST}"))
    }

    /// From text.
    pub fn decode(text: &[u8]) -> Result<Manifest> {
        let parts = || {
            let text = std::str::from_utf8(text).ok()?.strip_prefix(BEFORE_CHECKSUM)?.strip_suffix(AFTER_MANIFEST)?;
            text.split_once(BEFORE_MANIFEST)
        };
        let (checksum, manifest) = parts().context("it is damaged: it does not begin and end as a manifest")?;
        let sum = format!("{:016x}", xxh3_64(manifest.as_bytes()));
        ensure!(sum == checksum, "it is damaged: its checksum is wrong");
        #[derive(Deserialize)]
        struct Versions {
            format: u32,
            numerics: u32,
        }
        let versions: Versions = serde_json::from_str(manifest)?;
        for (what, theirs, ours) in
            [("format", versions.format, FORMAT), ("numerics", versions.numerics, NUMERICS_VERSION)]
        {
            if theirs != ours {
                bail!("it was written with {what} {theirs}, this program has {ours}: use the version that wrote it");
            }
        }
        Ok(serde_json::from_str(manifest)?)
    }

    /// The file and section of a partition.
    pub fn section(&self, partition: u32) -> Option<(&FileEntry, &Section)> {
        self.files.iter().find_map(|file| {
            let at = file.sections.binary_search_by_key(&partition, |section| section.partition).ok()?;
            Some((file, &file.sections[at]))
        })
    }

    /// Refuses the checkpoint of another cluster.
    pub fn check_cluster(&self, ours: &ClusterIdentity, place: &str) -> Result<()> {
        let theirs = &self.cluster;
        ensure!(
            theirs == ours,
            "{place} holds checkpoints of cluster '{}' ({} partitions, seed {}), and this is '{}' ({} partitions, seed {}): \
             give each cluster a place of its own, and keep partitions and seed as they were",
            theirs.name,
            theirs.partitions,
            theirs.seed,
            ours.name,
            ours.partitions,
            ours.seed,
        );
        Ok(())
    }

    /// Refuses to be followed by a checkpoint with an older state of one of its shards: the later number would win.
    pub fn check_not_newer(&self, next: &Manifest) -> Result<()> {
        for file in &next.files {
            let newer = |other: &FileEntry| other.history == file.history && other.lsn > file.lsn;
            ensure!(
                !self.files.iter().any(newer),
                "shard {} has saved itself meanwhile, in checkpoint {}: try again",
                file.shard,
                self.sequence
            );
        }
        Ok(())
    }

    /// Refuses tables that are not the same in all files: no other number of shards could take over.
    pub fn check_tables(&self) -> Result<()> {
        let mut known = BTreeMap::new();
        for file in &self.files {
            for table in &file.tables {
                let (shard, spec) = *known.entry(&table.spec.name).or_insert((file.shard, &table.spec));
                ensure!(
                    *spec == table.spec,
                    "table '{}' is not the same on shards {shard} and {}: if its cache was changed by hotrow checkpoint restore \
                     --cache, change it on all shards",
                    table.spec.name,
                    file.shard
                );
            }
        }
        Ok(())
    }

    /// Whether every partition is in it.
    pub fn is_complete(&self) -> bool {
        let sections = self.files.iter().flat_map(|file| &file.sections);
        let covered: BTreeSet<u32> = sections.map(|section| section.partition).collect();
        covered.len() as u32 == self.cluster.partitions
    }

    /// Bytes of all its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The checkpoints that it differs from.
    pub fn bases(&self) -> impl Iterator<Item = u64> + '_ {
        self.files.iter().filter_map(|file| file.base)
    }

    /// Where it is.
    pub fn path(&self) -> String {
        format!("{}/{MANIFEST}", folder(self.sequence))
    }
}

/// The name of every manifest.
pub const MANIFEST: &str = "manifest.json";

/// The folder of a checkpoint.
pub fn folder(sequence: u64) -> String {
    format!("{sequence:08}")
}

/// The checkpoint of a folder.
pub fn sequence_of(folder: &str) -> Option<u64> {
    Some(folder).filter(|name| name.len() >= 8)?.parse().ok()
}
