//! Large reservations of address space that take memory only where they are touched.

use crate::report::violation;

/// The unit in which memory is handed out.
pub const PAGE: usize = 4096;

/// Reserved for the whole life of the process.
pub struct Mapping {
    pub base: usize,
    pub length: usize,
}

impl Mapping {
    /// Reserves `length` bytes, all zero. Without access, [`Mapping::open`] must come before the first use.
    pub fn new(length: usize, access: bool) -> Self {
        let protection = if access { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses touches nothing that exists.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            violation!("cannot reserve {length} bytes of address space: {}", std::io::Error::last_os_error());
        }
        // Huge pages would make each small allocation cost megabytes, and a core file need not hold any of this.
        for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTDUMP] {
            // SAFETY: the range is the mapping just made; neither advice changes what it holds.
            unsafe { libc::madvise(at, length, advice) };
        }
        Self { base: at as usize, length }
    }

    /// Whether any byte of the range lies in the mapping.
    pub fn touches(&self, start: usize, len: usize) -> bool {
        start < self.base + self.length && start.saturating_add(len.max(1)) > self.base
    }

    #[inline(always)]
    pub fn contains(&self, at: usize) -> bool {
        at.wrapping_sub(self.base) < self.length
    }

    /// Gives the pages back to the system; they read as zero again.
    pub fn discard(&self, start: usize, len: usize) {
        let (start, len) = self.pages(start, len);
        // SAFETY: the range lies in this mapping (`pages` checks), which only this crate uses, and is not needed.
        unsafe { libc::madvise(start as *mut _, len, libc::MADV_DONTNEED) };
    }

    /// Allows or forbids access to the pages that hold the range.
    pub fn open(&self, start: usize, len: usize, access: bool) {
        let (start, len) = self.pages(start, len);
        let protection = if access { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        // SAFETY: the range lies in this mapping (`pages` checks). To forbid access is the purpose: who still uses the
        // memory then ends with a fault.
        if unsafe { libc::mprotect(start as *mut _, len, protection) } != 0 {
            violation!("cannot change the protection of {len} bytes: {}", std::io::Error::last_os_error());
        }
    }

    fn pages(&self, start: usize, len: usize) -> (usize, usize) {
        let (from, to) = (start & !(PAGE - 1), (start + len).next_multiple_of(PAGE));
        assert!(from >= self.base && to <= self.base + self.length, "a range outside of its mapping");
        (from, to - from)
    }
}
