//! The row store: a table's low-precision rows in one partition.
//!
//! Rows lie side by side without padding: no allocation per row, no pointer per row. Dense parts are one range
//! of the table's mapping; hashed parts grow by chunks. A bit per row says whether it was ever stored; a row
//! that was not reads as its initial value and its bytes mean nothing.

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::memory::{Mapping, Region};

/// Chunks of a growing part take about this much memory.
const CHUNK_BYTES: usize = 16 << 10;
/// Chunks are cut from mappings of this size; untouched memory costs nothing.
const EXTENT_BYTES: usize = 256 << 20;

/// Where the growing parts of a table get their chunks from.
pub struct ChunkSource {
    extent: Mutex<Option<Mapping>>,
}

impl ChunkSource {
    /// A source that has mapped nothing yet.
    pub fn new() -> ChunkSource {
        ChunkSource { extent: Mutex::new(None) }
    }

    fn take(&self, len: usize) -> Result<Region> {
        let mut extent = self.extent.lock();
        if let Some(region) = extent.as_mut().and_then(|extent| extent.take(len)) {
            return Ok(region);
        }
        let mut fresh =
            Mapping::new(EXTENT_BYTES.max(Mapping::len_for(1, len))).map_err(|e| Error::System(e.to_string()))?;
        let region = fresh.take(len).expect("the extent holds at least one chunk");
        *extent = Some(fresh);
        Ok(region)
    }
}

impl Default for ChunkSource {
    fn default() -> ChunkSource {
        ChunkSource::new()
    }
}

/// The rows of one table in one partition.
pub struct Rows {
    stride: usize,
    memory: Memory,
    /// A bit per row: was it ever stored?
    stored: Vec<u64>,
    stored_count: u64,
    /// A bit per row: has it changed since the last checkpoint? `None` where there was none.
    changed: Option<Vec<u64>>,
}

enum Memory {
    Range(Region),
    Chunks { chunks: Vec<Region>, shift: u32 },
}

impl Rows {
    /// A fixed number of rows in `memory`.
    pub fn fixed(memory: Region, stride: usize, rows: u64) -> Rows {
        debug_assert!(memory.len() as u64 >= rows * stride as u64);
        let stored = vec![0; rows.div_ceil(64) as usize];
        Rows { stride, memory: Memory::Range(memory), stored, stored_count: 0, changed: None }
    }

    /// No rows yet.
    pub fn growing(stride: usize) -> Rows {
        let shift = (CHUNK_BYTES / stride).max(1).ilog2();
        let memory = Memory::Chunks { chunks: Vec::new(), shift };
        Rows { stride, memory, stored: Vec::new(), stored_count: 0, changed: None }
    }

    /// How many more rows [`Rows::grow`] makes room for, and the bytes it takes.
    pub fn chunk(&self) -> (usize, u64) {
        match self.memory {
            Memory::Range(_) => (0, 0),
            Memory::Chunks { shift, .. } => {
                (1 << shift, ((self.stride << shift) + (1usize << shift).div_ceil(8)) as u64)
            }
        }
    }

    /// How many rows there is room for in a growing part.
    pub fn capacity(&self) -> usize {
        match &self.memory {
            Memory::Range(_) => 0,
            Memory::Chunks { chunks, shift } => chunks.len() << shift,
        }
    }

    /// Makes room for one more chunk of rows.
    pub fn grow(&mut self, source: &ChunkSource) -> Result<()> {
        if let Memory::Chunks { chunks, shift } = &mut self.memory {
            chunks.push(source.take(self.stride << *shift)?);
            self.stored.resize((chunks.len() << *shift).div_ceil(64), 0);
            if let Some(changed) = &mut self.changed {
                changed.resize(self.stored.len(), 0);
            }
        }
        Ok(())
    }

    /// A row's bytes.
    #[inline(always)]
    pub fn row(&self, row: u32) -> &[u8] {
        match &self.memory {
            Memory::Range(memory) => &memory[row as usize * self.stride..][..self.stride],
            Memory::Chunks { chunks, shift } => {
                let within = (row & ((1 << shift) - 1)) as usize;
                &chunks[(row >> shift) as usize][within * self.stride..][..self.stride]
            }
        }
    }

    /// A row's bytes, to write.
    #[inline(always)]
    pub fn row_mut(&mut self, row: u32) -> &mut [u8] {
        match &mut self.memory {
            Memory::Range(memory) => &mut memory[row as usize * self.stride..][..self.stride],
            Memory::Chunks { chunks, shift } => {
                let within = (row & ((1 << *shift) - 1)) as usize;
                &mut chunks[(row >> *shift) as usize][within * self.stride..][..self.stride]
            }
        }
    }

    /// Whether a row was ever stored.
    #[inline(always)]
    pub fn is_stored(&self, row: u32) -> bool {
        self.stored[(row / 64) as usize] >> (row % 64) & 1 != 0
    }

    /// A fixed number of rows: all their bytes, and the bits that say which were ever stored.
    pub fn range(&self) -> Option<(&[u8], &[u64])> {
        match &self.memory {
            Memory::Range(memory) => Some((memory, &self.stored)),
            Memory::Chunks { .. } => None,
        }
    }

    /// All bytes of a fixed number of rows.
    pub fn range_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Range(memory) => memory,
            Memory::Chunks { .. } => &mut [],
        }
    }

    /// Whether there is nothing to note when one of `rows` rows changes: all are stored, and nobody asks which have changed.
    pub fn notes_nothing(&self, rows: u64) -> bool {
        self.stored_count == rows && self.changed.is_none()
    }

    /// Notes that a row's bytes are valid.
    #[inline(always)]
    pub fn set_stored(&mut self, row: u32) {
        let word = &mut self.stored[(row / 64) as usize];
        self.stored_count += !*word >> (row % 64) & 1;
        *word |= 1 << (row % 64);
        self.note_change(row);
    }

    /// Forgets a row: it reads as its initial value again.
    pub fn clear_stored(&mut self, row: u32) {
        let word = &mut self.stored[(row / 64) as usize];
        self.stored_count -= *word >> (row % 64) & 1;
        *word &= !(1 << (row % 64));
        self.note_change(row);
    }

    #[inline(always)]
    fn note_change(&mut self, row: u32) {
        if let Some(changed) = &mut self.changed {
            changed[(row / 64) as usize] |= 1 << (row % 64);
        }
    }

    /// Which rows have changed since this was last asked; `None` the first time. Changes are noted from now on.
    pub fn take_changes(&mut self) -> Option<Vec<u64>> {
        let changed = self.changed.take();
        self.note_changes();
        changed
    }

    /// Forgets what has changed so far, and notes changes from now on.
    pub fn note_changes(&mut self) {
        self.changed = Some(vec![0; self.stored.len()]);
    }

    /// Takes back what [`Rows::take_changes`] gave.
    pub fn put_changes_back(&mut self, changes: Option<Vec<u64>>) {
        match (&mut self.changed, changes) {
            (Some(changed), Some(before)) => changed.iter_mut().zip(before).for_each(|(word, more)| *word |= more),
            (changed, _) => *changed = None,
        }
    }

    /// Which of the 64 rows from `64 * word` on were ever stored, a bit each.
    pub fn stored_word(&self, word: usize) -> u64 {
        self.stored[word]
    }

    /// How many rows were ever stored.
    pub fn stored_count(&self) -> u64 {
        self.stored_count
    }
}
