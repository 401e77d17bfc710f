//! The keys of rows, in a `.npy` file of their own or inside a file of rows.

use std::fs::File;
use std::io::BufWriter;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use npyz::{NpyWriter, WriterBuilder as _};

use super::{Target, npy};

/// Keys in a file.
pub struct KeysReader {
    name: String,
    file: File,
    at: u64,
    count: u64,
    signed: bool,
}

impl KeysReader {
    /// `count` keys from byte `at` of a file on; `signed` is whether they are i64.
    pub(super) fn new(name: String, file: File, at: u64, count: u64, signed: bool) -> KeysReader {
        KeysReader { name, file, at, count, signed }
    }

    /// The keys of a `.npy` file.
    pub fn open(path: &Path) -> Result<KeysReader> {
        npy::open_keys(path)
    }

    /// What errors call the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// `count` of them from `first` on.
    pub fn read(&self, first: u64, count: usize) -> Result<Vec<u64>> {
        let mut keys = vec![0u64; count];
        let at = self.at + 8 * first;
        self.file
            .read_exact_at(bytemuck::cast_slice_mut(&mut keys), at)
            .with_context(|| format!("cannot read {}", self.name))?;
        if self.signed
            && let Some(i) = keys.iter().position(|&key| key > i64::MAX as u64)
        {
            let (name, key, row) = (&self.name, keys[i] as i64, first + i as u64);
            bail!(
                "{name}: key {key} of row {row} is negative: keys are uint64; .view('uint64') if it is meant as such"
            );
        }
        Ok(keys)
    }
}

/// Keys on their way into a file.
pub enum KeysWriter {
    /// A `.npy` file of their own, whose header gets the count at the end.
    Npy(Box<NpyWriter<u64, BufWriter<File>>>, Target),
    /// A place in another file.
    Inside {
        /// The file.
        file: File,
        /// The place of the first.
        at: u64,
        /// How many there are.
        count: u64,
    },
}

impl KeysWriter {
    /// A `.npy` file.
    pub fn npy(target: Target) -> Result<KeysWriter> {
        let file = BufWriter::with_capacity(1 << 20, target.file().try_clone()?);
        let writer = npyz::WriteOptions::new().default_dtype().writer(file).begin_1d()?;
        Ok(KeysWriter::Npy(Box::new(writer), target))
    }

    /// Adds keys.
    pub fn append(&mut self, keys: &[u64]) -> Result<()> {
        match self {
            KeysWriter::Npy(writer, _) => writer.extend(keys.iter().copied()).context("cannot write the keys"),
            KeysWriter::Inside { file, at, count } => {
                file.write_all_at(bytemuck::cast_slice(keys), *at + 8 * *count).context("cannot write the keys")?;
                *count += keys.len() as u64;
                Ok(())
            }
        }
    }

    /// Ends the keys, and hands them back to be read; and their file, if it is one of their own.
    pub fn finish(self) -> Result<(KeysReader, Option<Target>)> {
        match self {
            KeysWriter::Npy(writer, target) => {
                writer.finish().context("cannot write the keys")?;
                Ok((npy::open_keys(target.temporary())?, Some(target)))
            }
            KeysWriter::Inside { file, at, count } => {
                Ok((KeysReader::new("the keys".into(), file, at, count, false), None))
            }
        }
    }
}
