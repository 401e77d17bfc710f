//! Large zeroed memory, straight from the operating system.
//!
//! A row store or a cache pool can be hundreds of gigabytes. Anonymous mappings cost nothing until a
//! page is touched, read as zeros, and take huge pages. A [`Mapping`] is cut into [`Region`]s, each
//! owned by one partition, so that partitions can be locked one by one without sharing a `&mut`.
//!
//! `unsafe` lives here because a region is a pointer into a mapping that several regions keep alive.
//! It is sound because regions are only made by [`Mapping::take`], which never hands out a byte twice.
#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapOptions};

/// Below this size huge pages would waste more memory than they save time.
const HUGE_PAGE_THRESHOLD: usize = 4 << 20;
/// Regions start on a cache line, so that neighbours in different partitions share none.
const ALIGNMENT: usize = 64;

/// A zeroed anonymous mapping that is handed out front to back.
pub struct Mapping {
    pages: Arc<Pages>,
    taken: usize,
}

/// Keeps the memory mapped while any region lives.
struct Pages {
    start: NonNull<u8>,
    len: usize,
    _map: MmapMut,
}

// SAFETY: `Pages` only owns the mapping; the bytes are reached through `Region`s, which do not overlap.
unsafe impl Send for Pages {}
// SAFETY: as above; a shared `Pages` gives no access to the bytes.
unsafe impl Sync for Pages {}

impl Mapping {
    /// Maps `len` zeroed bytes without committing memory to them.
    pub fn new(len: usize) -> io::Result<Mapping> {
        let len = len.max(ALIGNMENT);
        let mut map = MmapOptions::new().len(len).no_reserve_swap().map_anon()?;
        if len >= HUGE_PAGE_THRESHOLD {
            // Advice only: kernels without transparent huge pages answer with an error, and all is well.
            let _ = map.advise(Advice::HugePage);
        }
        let start = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero");
        Ok(Mapping { pages: Arc::new(Pages { start, len, _map: map }), taken: 0 })
    }

    /// The next `len` bytes, or `None` where fewer are left.
    pub fn take(&mut self, len: usize) -> Option<Region> {
        let start = self.taken.next_multiple_of(ALIGNMENT);
        let end = start.checked_add(len)?;
        if end > self.pages.len {
            return None;
        }
        self.taken = end;
        // SAFETY: `start <= end <= len`, so the pointer stays inside (or one past) the mapping.
        let start = unsafe { self.pages.start.add(start) };
        Some(Region { start, len, _pages: Arc::clone(&self.pages) })
    }

    /// How many bytes to map so that `count` regions of `len` bytes can be taken.
    pub fn len_for(count: usize, len: usize) -> usize {
        len.next_multiple_of(ALIGNMENT).saturating_mul(count)
    }
}

/// A part of a mapping with one owner. Dereferences to its bytes.
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    _pages: Arc<Pages>,
}

// SAFETY: a region is the only way to its bytes, as a `Box<[u8]>` is to its own.
unsafe impl Send for Region {}
// SAFETY: shared access only reads, as with `Box<[u8]>`.
unsafe impl Sync for Region {}

impl Deref for Region {
    type Target = [u8];
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: `take` cut `len` bytes at `start` out of the mapping for this region alone, `_pages`
        // keeps them mapped, and they were zeroed by the kernel.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Region {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_zeroed_aligned_and_apart() {
        let mut mapping = Mapping::new(Mapping::len_for(3, 100)).unwrap();
        let mut regions: Vec<Region> = (0..3).map(|_| mapping.take(100).unwrap()).collect();
        assert!(mapping.take(100).is_none());
        drop(mapping);
        for (i, region) in regions.iter_mut().enumerate() {
            assert_eq!(region.as_ptr() as usize % ALIGNMENT, 0);
            assert!(region.iter().all(|&b| b == 0));
            region.fill(i as u8 + 1);
        }
        for (i, region) in regions.iter().enumerate() {
            assert!(region.iter().all(|&b| b == i as u8 + 1));
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(Mapping::new(usize::MAX / 2).is_err());
    }
}
