//! A part that is being saved while changes go on.
//!
//! A cut copies nothing. From then on, whatever is about to change and is not saved yet is first put aside as it was at
//! the cut: a row or a slot by itself, directory and free rows as a whole. Whoever saves goes through the part in
//! pieces, each copied under the partition's shared lock, and takes what was put aside instead of what is there now.

use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashTable;

use super::part::TablePart;
use super::rows::Rows;
use crate::cache::DirectoryImage;
use crate::numeric::hash;

/// Bytes of rows or slots that are copied under one lock, about.
pub const PIECE_BYTES: usize = 256 << 10;
/// Rows that one piece reaches over, at most.
const PIECE_ROWS: u32 = 1 << 16;

/// Rows of a part, from `first` on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowsPiece {
    /// The first row.
    pub first: u32,
    /// How many rows it reaches over.
    pub count: u32,
    /// A bit per row: is it in the piece? `None` is all.
    pub listed: Option<Vec<u64>>,
    /// A bit per row: is it listed and stored? One that is listed and not stored has no stored form.
    pub stored: Vec<u64>,
    /// The key of each listed row, in a hashed table.
    pub keys: Vec<u64>,
    /// The stored rows, one after the other.
    pub bytes: Vec<u8>,
}

impl RowsPiece {
    /// Whether row `first + i` is listed.
    pub fn is_listed(&self, i: u32) -> bool {
        self.listed.as_ref().is_none_or(|listed| bit(listed, i))
    }

    /// Whether row `first + i` is stored.
    pub fn is_stored(&self, i: u32) -> bool {
        bit(&self.stored, i)
    }
}

fn bit(words: &[u64], i: u32) -> bool {
    words[(i / 64) as usize] >> (i % 64) & 1 != 0
}

/// What does not fit into pieces: copied whole.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The part has rows 0 to this: all of a dense part, those ever handed out in a hashed one.
    pub rows: u32,
    /// Rows of a hashed part that are to be reused, the last first.
    pub free: Vec<u32>,
    /// A bit per row: is it in `free`?
    free_bits: Vec<u64>,
    /// The directory.
    pub directory: DirectoryImage,
}

/// What a part keeps while it is being saved.
pub struct Saving {
    /// Rows that changed since the checkpoint before; `None` where there was none.
    since: Option<Vec<u64>>,
    /// Whether all rows are saved, and not only those.
    whole: bool,
    frame: Option<Frame>,
    /// Rows and slots below these are saved. Changed under the shared lock, by whoever saves.
    rows_done: AtomicU32,
    slots_done: AtomicU32,
    rows: Aside<u8>,
    slots: Aside<f32>,
}

/// Things put aside: all of the same length, found by a number.
struct Aside<T> {
    places: HashTable<(u32, u32)>,
    /// Whether the row was stored.
    stored: Vec<bool>,
    values: Vec<T>,
}

impl<T: Copy + Default> Aside<T> {
    fn new() -> Aside<T> {
        Aside { places: HashTable::new(), stored: Vec::new(), values: Vec::new() }
    }

    fn place(&self, number: u32) -> Option<usize> {
        let found = self.places.find(hash::mix64(u64::from(number)), |&(other, _)| other == number);
        found.map(|&(_, place)| place as usize)
    }

    /// Room for one more at the end, to be filled.
    fn add(&mut self, number: u32, stored: bool, len: usize) -> &mut [T] {
        let place = self.stored.len() as u32;
        let rehash = |&(number, _): &(u32, u32)| hash::mix64(u64::from(number));
        self.places.insert_unique(hash::mix64(u64::from(number)), (number, place), rehash);
        self.stored.push(stored);
        let start = self.values.len();
        self.values.resize(start + len, T::default());
        &mut self.values[start..]
    }
}

impl Saving {
    /// What is only saved as a whole, as it was at the cut. [`TablePart::before_change`] has made it.
    pub fn frame(&self) -> &Frame {
        self.frame.as_ref().expect("made before anything changes or is saved")
    }

    fn is_listed(&self, row: u32) -> bool {
        match &self.since {
            Some(since) if !self.whole => since.get((row / 64) as usize).is_some_and(|_| bit(since, row)),
            _ => true,
        }
    }

    /// Which of the 64 rows from `64 * word` on are listed.
    fn listed_word(&self, word: usize) -> u64 {
        match &self.since {
            Some(since) if !self.whole => since.get(word).copied().unwrap_or(0),
            _ => !0,
        }
    }

    #[cold]
    fn keep_row(&mut self, rows: &Rows, row: u32) {
        let done = row < self.rows_done.load(Ordering::Relaxed) || row >= self.frame().rows;
        if done || !self.is_listed(row) || self.rows.place(row).is_some() {
            return;
        }
        let bytes = rows.row(row);
        self.rows.add(row, rows.is_stored(row), bytes.len()).copy_from_slice(bytes);
    }

    /// Those of `slots` that must be put aside before they change.
    pub fn unsaved_slots(&self, slots: impl Iterator<Item = u32>) -> Vec<u32> {
        let done = self.slots_done.load(Ordering::Relaxed);
        let frame = self.frame();
        slots
            .filter(|&slot| slot >= done && frame.directory.is_dirty(slot) && self.slots.place(slot).is_none())
            .collect()
    }

    /// Room for slots, to be filled with what is in them.
    pub fn keep_slots(&mut self, slots: &[u32], len: usize) -> &mut [f32] {
        let start = self.slots.values.len();
        slots.iter().for_each(|&slot| _ = self.slots.add(slot, true, len));
        &mut self.slots.values[start..]
    }

    /// A slot that was put aside.
    pub fn kept_slot(&self, slot: u32, len: usize) -> Option<&[f32]> {
        self.slots.place(slot).map(|place| &self.slots.values[place * len..][..len])
    }

    /// The next dirty slots from `from` on, at most `limit`.
    pub fn dirty_slots(&self, from: u32, limit: usize) -> Vec<u32> {
        let directory = &self.frame().directory;
        (from..directory.tags.len() as u32).filter(|&slot| directory.is_dirty(slot)).take(limit).collect()
    }

    /// Notes that slots below `end` are saved.
    pub fn slots_saved(&self, end: u32) {
        self.slots_done.store(end, Ordering::Relaxed);
    }
}

impl TablePart {
    /// From now on the part is saved as it is now; all of it, or what changed since it was last saved.
    pub fn cut(&mut self, whole: bool) {
        let since = self.rows.take_changes();
        self.saving = Some(Box::new(Saving {
            since,
            whole,
            frame: None,
            rows_done: AtomicU32::new(0),
            slots_done: AtomicU32::new(0),
            rows: Aside::new(),
            slots: Aside::new(),
        }));
    }

    /// To be called before anything changes or is saved: puts aside what is only saved as a whole.
    #[inline(always)]
    pub fn before_change(&mut self) {
        if self.saving.as_ref().is_some_and(|saving| saving.frame.is_none()) {
            self.keep_frame();
        }
    }

    #[cold]
    fn keep_frame(&mut self) {
        let (rows, free) = self.handed_out();
        let mut free_bits = vec![0u64; (rows as usize).div_ceil(64)];
        free.iter().for_each(|&row| free_bits[(row / 64) as usize] |= 1 << (row % 64));
        let frame = Frame { rows, free: free.to_vec(), free_bits, directory: self.directory.image() };
        if let Some(saving) = &mut self.saving {
            saving.frame = Some(frame);
        }
    }

    /// Puts a row aside that is about to change.
    #[inline(always)]
    pub(super) fn keep_row(&mut self, row: u32) {
        if let Some(saving) = &mut self.saving {
            saving.keep_row(&self.rows, row);
        }
    }

    /// Whether it is being saved whole.
    fn is_saved_whole(&self) -> bool {
        self.saving.as_ref().is_some_and(|saving| saving.whole || saving.since.is_none())
    }

    /// Ends the saving of this part. Returns what changed between the checkpoint before and this one, in case that this
    /// one comes to nothing.
    pub fn end_saving(&mut self) -> Option<Vec<u64>> {
        self.saving.take()?.since
    }

    /// The checkpoint came to nothing: what had changed before it still has.
    pub fn put_changes_back(&mut self, since: Option<Vec<u64>>) {
        self.rows.put_changes_back(since);
    }

    /// What changes from now on has changed since the last checkpoint.
    pub fn note_changes(&mut self) {
        self.rows.note_changes();
    }

    /// There is no checkpoint that the next could differ from.
    pub fn forget_changes(&mut self) {
        self.rows.put_changes_back(None);
    }

    /// Copies the next rows, as they were at the cut, that are to be saved from `from` on. `None` where there are none.
    pub fn save_rows(&self, from: u32) -> Option<RowsPiece> {
        let saving = self.saving.as_ref()?;
        let frame = saving.frame();
        let mut first = from;
        // To where the next row is that has to be listed; `from` is a multiple of 64. A dense part begins without stored rows,
        // so those that never were need not be told, as long as nothing was put aside.
        let untold = self.is_saved_whole() && self.key_bytes == 0 && saving.rows.stored.is_empty();
        let is_needed = |word: usize| saving.listed_word(word) != 0 && !(untold && self.rows.stored_word(word) == 0);
        while first < frame.rows && !is_needed((first / 64) as usize) {
            first += 64;
        }
        if first >= frame.rows {
            return None;
        }
        let end = frame.rows.min(first.saturating_add(PIECE_ROWS));
        // Never moved while it grows: a word's rows may come on top of the limit.
        let stride = self.rows.row(first).len();
        let bytes = Vec::with_capacity((PIECE_BYTES + 64 * stride).min((end - first) as usize * stride));
        let mut piece = RowsPiece { first, bytes, ..RowsPiece::default() };
        let mut listed = Vec::new();
        let mut row = first;
        while row < end && piece.bytes.len() + 8 * piece.keys.len() < PIECE_BYTES {
            let here = (end - row).min(64);
            let mask = if here == 64 { !0 } else { (1 << here) - 1 };
            let word = saving.listed_word((row / 64) as usize) & mask;
            listed.push(word);
            piece.stored.push(self.save_word(saving, row, word, &mut piece.keys, &mut piece.bytes));
            row += here;
        }
        piece.count = row - first;
        if !self.is_saved_whole() {
            piece.listed = Some(listed);
        }
        saving.rows_done.store(row, Ordering::Relaxed);
        Some(piece)
    }

    /// Copies those of the 64 rows from `first` on that `listed` has a bit for. Returns which of them are stored.
    fn save_word(&self, saving: &Saving, first: u32, listed: u64, keys: &mut Vec<u64>, bytes: &mut Vec<u8>) -> u64 {
        let frame = saving.frame();
        let stored_now = self.rows.stored_word((first / 64) as usize);
        if self.key_bytes == 0 && listed == !0 && stored_now == !0 && saving.rows.stored.is_empty() {
            // All of them, as they are, side by side.
            let stride = self.rows.row(first).len();
            if let Some((rows, _)) = self.rows.range() {
                bytes.extend_from_slice(&rows[first as usize * stride..][..64 * stride]);
                return !0;
            }
        }
        let free = frame.free_bits[(first / 64) as usize];
        let mut stored = 0;
        let mut left = listed;
        while left != 0 {
            let i = left.trailing_zeros();
            left &= left - 1;
            let row = first + i;
            let (is_stored, now) = match saving.rows.place(row) {
                Some(place) => {
                    let len = self.rows.row(row).len();
                    (saving.rows.stored[place], &saving.rows.values[place * len..][..len])
                }
                None => (stored_now >> i & 1 != 0, self.rows.row(row)),
            };
            let is_free = free >> i & 1 != 0;
            if self.key_bytes > 0 {
                let key = now.first_chunk().map_or(0, |key| u64::from_le_bytes(*key));
                keys.push(if is_free { 0 } else { key });
            }
            if is_stored && !is_free {
                stored |= 1 << i;
                bytes.extend_from_slice(&now[self.key_bytes..]);
            }
        }
        stored
    }

    /// What is put aside and dirty at the cut; `None` where the part is not being saved.
    pub fn saving(&self) -> Option<&Saving> {
        self.saving.as_deref()
    }

    /// [`TablePart::saving`], to put slots aside.
    pub fn saving_mut(&mut self) -> Option<&mut Saving> {
        self.saving.as_deref_mut()
    }
}
