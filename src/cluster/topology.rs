//! The topology: an array of shard numbers, one for each partition, with a version.

use xxhash_rust::xxh3::Xxh3Default;

/// Which shard owns which partition, and where shards are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The name of the cluster.
    pub cluster: String,
    /// Where each shard is reached: `host:port` or `unix:path`.
    pub shards: Vec<String>,
    /// The shard of each partition.
    pub partition_shards: Vec<u32>,
    /// Follows from the rest, so that shards with the same configuration agree on it. Never 0.
    pub version: u64,
}

impl Topology {
    /// Partitions dealt out to shards in ranges of even size.
    pub fn even(cluster: &str, shards: Vec<String>, partitions: u32) -> Result<Topology, String> {
        if shards.is_empty() || shards.len() > partitions as usize {
            return Err(format!("{} shards cannot share {partitions} partitions: use 1 to {partitions}", shards.len()));
        }
        let count = shards.len() as u32;
        let shards_of = (0..partitions).map(|p| even_shard(p, partitions, count)).collect();
        Ok(Topology::new(cluster, shards, shards_of))
    }

    /// A topology with the version that belongs to it.
    pub fn new(cluster: &str, shards: Vec<String>, partition_shards: Vec<u32>) -> Topology {
        let mut hasher = Xxh3Default::new();
        for text in std::iter::once(cluster).chain(shards.iter().map(String::as_str)) {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        partition_shards.iter().for_each(|shard| hasher.update(&shard.to_le_bytes()));
        Topology { cluster: cluster.into(), shards, partition_shards, version: hasher.digest().max(1) }
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> u32 {
        self.partition_shards.len() as u32
    }

    /// The partitions of a shard.
    pub fn owned_by(&self, shard: u32) -> Vec<u32> {
        (0..self.partitions()).filter(|&p| self.partition_shards[p as usize] == shard).collect()
    }

    /// Writes out `host-{0..3}:7700` as four addresses.
    pub fn expand(pattern: &str) -> Result<Vec<String>, String> {
        let Some((before, rest)) = pattern.split_once('{') else { return Ok(vec![pattern.into()]) };
        let bad = || format!("'{pattern}' is not an address or a range of them like host-{{0..3}}:7700");
        let (range, after) = rest.split_once('}').ok_or_else(bad)?;
        let (first, last) = range.split_once("..").ok_or_else(bad)?;
        let (first, last): (u32, u32) = (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
        if first > last || last - first > 65_535 {
            return Err(bad());
        }
        Ok((first..=last).map(|n| format!("{before}{n}{after}")).collect())
    }
}

/// The shard of a partition, where shards have ranges of even size.
fn even_shard(partition: u32, partitions: u32, shards: u32) -> u32 {
    (u64::from(partition) * u64::from(shards) / u64::from(partitions)) as u32
}

/// The partitions of a shard, where shards have ranges of even size.
pub fn even_share(partitions: u32, shards: u32, shard: u32) -> Vec<u32> {
    (0..partitions).filter(|&p| even_shard(p, partitions, shards) == shard).collect()
}

/// The ordinal at the end of a StatefulSet pod's name: 3 of `hotrow-3`.
pub fn ordinal_of(host: &str) -> Option<u32> {
    host.split('.').next()?.rsplit_once('-')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_has_one_shard_and_shards_are_even() {
        for shards in 1..=7u32 {
            let names = (0..shards).map(|n| format!("h{n}:1")).collect();
            let topology = Topology::even("c", names, 128).unwrap();
            let owned: Vec<Vec<u32>> = (0..shards).map(|shard| topology.owned_by(shard)).collect();
            assert_eq!(owned.concat(), (0..128).collect::<Vec<_>>());
            assert!(owned.iter().all(|owned| owned.len().abs_diff(128 / shards as usize) <= 1));
        }
        assert!(Topology::even("c", vec![], 128).is_err());
        assert!(Topology::even("c", vec!["a".into(); 5], 4).is_err());
    }

    #[test]
    fn the_version_follows_from_everything() {
        let shards = |a: &str, b: &str| vec![a.to_string(), b.to_string()];
        let version = |topology: Topology| topology.version;
        let base = version(Topology::new("c", shards("a", "b"), vec![0, 1]));
        assert_eq!(base, version(Topology::new("c", shards("a", "b"), vec![0, 1])));
        assert_ne!(base, version(Topology::new("d", shards("a", "b"), vec![0, 1])));
        assert_ne!(base, version(Topology::new("c", shards("ab", ""), vec![0, 1])));
        assert_ne!(base, version(Topology::new("c", shards("a", "b"), vec![1, 0])));
    }

    #[test]
    fn patterns_and_ordinals() {
        assert_eq!(Topology::expand("h-{0..2}.svc:7700").unwrap(), ["h-0.svc:7700", "h-1.svc:7700", "h-2.svc:7700"]);
        assert_eq!(Topology::expand("h:1").unwrap(), ["h:1"]);
        assert!(Topology::expand("h-{2..1}:1").is_err());
        assert_eq!(ordinal_of("hotrow-12.hotrow.svc"), Some(12));
        assert_eq!(ordinal_of("laptop"), None);
    }
}
