//! A trace of keys from a file, and the hit rates that follow from it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::cache::{CachePlace, HitCurve, Sampler, Use, sample_hash};
use crate::engine::distinct::Distinct;

/// What is known of one table.
struct Watched {
    sampler: Sampler,
    /// Keys of the push that is being read.
    keys: Vec<u64>,
}

/// The curve of each table. A line has a key, or a table's name, a tab and a key; `table` is the name of the one
/// without. A blank line ends a push. Without any, every line is a push of its own.
pub fn read(path: &Path, table: &str, partitions: u32) -> Result<BTreeMap<String, HitCurve>> {
    let named = || format!("--trace {}", path.display());
    let has_pushes = has_blank_lines(path).with_context(named)?;
    let mut tables: BTreeMap<String, Watched> = BTreeMap::new();
    let mut distinct = Distinct::default();
    for (number, line) in open(path).with_context(named)?.lines().enumerate() {
        let line = line.with_context(named)?;
        let line = line.trim();
        if line.is_empty() {
            tables.values_mut().for_each(|table| table.push(&mut distinct));
            continue;
        }
        let (name, key) = line.split_once('\t').unwrap_or((table, line));
        let Ok(key) = key.trim().parse() else {
            bail!("{}, line {}: '{line}' is neither a key nor a table's name, a tab and a key", named(), number + 1);
        };
        if !tables.contains_key(name) {
            tables.insert(name.into(), Watched { sampler: Sampler::new(f64::MAX), keys: Vec::new() });
        }
        if let Some(table) = tables.get_mut(name) {
            table.keys.push(key);
            if !has_pushes {
                table.push(&mut distinct);
            }
        }
    }
    tables.values_mut().for_each(|table| table.push(&mut distinct));
    if tables.is_empty() {
        bail!("{}: there are no keys in it", named());
    }
    let place = CachePlace { partitions, rows: 0.0 };
    Ok(tables.into_iter().map(|(name, table)| (name, table.sampler.curve(place, false))).collect())
}

impl Watched {
    /// The push that was read is over.
    fn push(&mut self, distinct: &mut Distinct) {
        if self.keys.is_empty() {
            return;
        }
        distinct.find(self.keys.iter().copied());
        let mut times = vec![0; distinct.keys.len()];
        distinct.which.iter().for_each(|&which| times[which as usize] += 1);
        let limit = self.sampler.limit();
        let hashes = distinct.keys.iter().map(|&key| sample_hash(crate::numeric::hash::mix64(key)));
        let uses =
            hashes.zip(times).filter(|&(hash, _)| hash < limit).map(|(hash, times)| Use { hash, times, place: 0 });
        self.sampler.observe(self.keys.len() as u64, 0, &mut uses.collect());
        self.keys.clear();
    }
}

fn open(path: &Path) -> Result<BufReader<File>> {
    Ok(BufReader::with_capacity(1 << 20, File::open(path)?))
}

/// Whether a blank line separates keys from others.
fn has_blank_lines(path: &Path) -> Result<bool> {
    let (mut keys, mut blank) = (false, false);
    for line in open(path)?.lines() {
        match line?.trim().is_empty() {
            true => blank = keys,
            false if blank => return Ok(true),
            false => keys = true,
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves(text: &str) -> Result<BTreeMap<String, HitCurve>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path(), "t", 1)
    }

    #[test]
    fn every_line_is_a_push_or_blank_lines_end_them() {
        // One after the other: 1 is found with 2 in between, and the second 3 right away.
        let t = &curves("1\n2\n1\n3\n3\n\n").unwrap()["t"];
        assert_eq!((t.references(), t.hit_rate(1), t.hit_rate(2)), (5.0, Some(0.2), Some(0.4)));
        // In pushes: the keys of the first are hits in the second, if they fit.
        let t = &curves("1\n2\n1\n\n1\n2\n").unwrap()["t"];
        assert_eq!((t.references(), t.sampled_keys(), t.hit_rate(2)), (5.0, 2, Some(0.4)));
    }

    #[test]
    fn tables_are_named() {
        let curves = curves("a\t1\nb\t1\na\t1\n7\n").unwrap();
        assert_eq!(curves.keys().collect::<Vec<_>>(), ["a", "b", "t"]);
        assert_eq!((curves["a"].hit_rate(4), curves["b"].hit_rate(4)), (Some(0.5), Some(0.0)));
    }

    #[test]
    fn errors_name_the_line() {
        for (text, said) in [("1\nx\n", "line 2: 'x'"), ("a b\n", "line 1"), ("-5\n", "line 1"), ("\n\n", "no keys")] {
            let error = format!("{:#}", curves(text).unwrap_err());
            assert!(error.contains(said) && error.contains("--trace"), "{error}");
        }
    }
}
