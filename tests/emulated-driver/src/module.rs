//! Loaded modules: what is known of an image is its bytes, in which the names of its kernels occur.

use std::ffi::CStr;

use crate::kernels::{self, Kernel};

/// What an image of cuModuleLoadData holds.
pub struct Module {
    /// The kernels whose names stand somewhere in it, not as a part of a longer one, and that the host has.
    kernels: Vec<&'static Kernel>,
    /// The oldest architecture that PTX can be compiled for: `.target sm_80`.
    pub target: Option<i32>,
    pub device: u32,
}

impl Module {
    /// `None` where this is no image.
    ///
    /// # Safety
    ///
    /// `image` must point to an ELF file (a cubin) or to text that ends with a zero.
    pub unsafe fn load(image: *const u8, device: u32) -> Option<Self> {
        // SAFETY: both kinds are at least this long or end before; the comparison stops at the first difference.
        let is_elf = unsafe { (0..4).all(|i| *image.add(i) == b"\x7FELF"[i]) };
        // SAFETY: as promised by the caller.
        let len = unsafe { if is_elf { elf_len(image)? } else { CStr::from_ptr(image.cast()).count_bytes() } };
        // SAFETY: that many bytes belong to the image.
        let bytes = unsafe { std::slice::from_raw_parts(image, len) };
        let part_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let words = bytes.split(|byte| !part_of_name(byte)).filter(|word| word.len() > 2);
        let mut kernels: Vec<_> = words.filter_map(|word| kernels::find(std::str::from_utf8(word).ok()?)).collect();
        kernels.dedup_by_key(|kernel| kernel.name);
        (!bytes.is_empty()).then(|| Self { kernels, target: target(bytes), device })
    }

    /// The kernel of this name.
    pub fn function(&self, name: &str) -> Option<&'static Kernel> {
        self.kernels.iter().copied().find(|kernel| kernel.name == name)
    }
}

fn target(image: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(image).ok()?;
    let name = text.split(".target sm_").nth(1)?;
    name.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Where the last of a 64-bit ELF file's headers, segments and sections ends.
///
/// # Safety
///
/// `image` must point to a whole ELF file.
unsafe fn elf_len(image: *const u8) -> Option<usize> {
    // SAFETY: the fields asked for are in the file header or in tables that the file header names.
    let field = |at: usize, width: usize| unsafe {
        (0..width).rev().fold(0_usize, |value, i| value << 8 | usize::from(*image.add(at + i)))
    };
    if field(4, 1) != 2 || field(5, 1) != 1 {
        return None;
    }
    let (segments, segment_size, segment_count) = (field(32, 8), field(54, 2), field(56, 2));
    let (sections, section_size, section_count) = (field(40, 8), field(58, 2), field(60, 2));
    let mut end = 64.max(segments + segment_size * segment_count).max(sections + section_size * section_count);
    for segment in (0..segment_count).map(|i| segments + i * segment_size) {
        end = end.max(field(segment + 8, 8) + field(segment + 32, 8));
    }
    const NO_BITS: usize = 8;
    for section in (0..section_count).map(|i| sections + i * section_size).filter(|&at| field(at + 4, 4) != NO_BITS) {
        end = end.max(field(section + 24, 8) + field(section + 32, 8));
    }
    Some(end)
}
