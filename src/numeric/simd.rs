//! Choosing vector instructions at run time, once.
//!
//! Kernels are plain loops that the compiler vectorises. `dispatch!` compiles a loop twice, for AVX2 and
//! for the build's baseline, and picks at run time. Both come from the same source and every operation is
//! elementwise IEEE arithmetic, so the results are the same bits; the tests compare them anyway. AVX-512 is used where
//! it is written out (`codes_avx512.rs`): the loops wait for memory, and its wide accesses cross more cache lines.
//!
//! `unsafe` lives here because calling a function compiled for an instruction set is only sound on a CPU that has it.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, Ordering};

/// The instruction set in use. Only made of what this CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(u8);

const UNKNOWN: u8 = 0;
const NAMES: [&str; 3] = ["portable", "avx2", "avx512"];

impl Level {
    const PORTABLE: Level = Level(1);
    const AVX2: Level = Level(2);
    const AVX512: Level = Level(3);

    /// Whether AVX2 and what comes with it may be used.
    #[inline(always)]
    pub fn has_avx2(self) -> bool {
        self >= Level::AVX2
    }

    /// Whether AVX-512 may be used, and AVX2.
    #[inline(always)]
    pub fn has_avx512(self) -> bool {
        self >= Level::AVX512
    }
}

static LEVEL: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The instruction set in use: the best there is, or what `HOTROW_SIMD` allows (`portable`, `avx2`, `avx512`), to compare
/// or to rule one out.
#[inline(always)]
pub fn level() -> Level {
    match LEVEL.load(Ordering::Relaxed) {
        UNKNOWN => detect(),
        level => Level(level),
    }
}

#[cold]
fn detect() -> Level {
    at_most(std::env::var("HOTROW_SIMD").ok().as_deref().unwrap_or_default())
}

/// Uses the best kernels that there are up to the named ones, for the whole process; or the best, if there is no such name.
#[doc(hidden)]
pub fn at_most(name: &str) -> Level {
    let most = NAMES.iter().position(|&known| known == name).map_or(Level::AVX512, |at| Level(at as u8 + 1));
    let level = most.min(best());
    LEVEL.store(level.0, Ordering::Relaxed);
    level
}

/// Asks for all that `dispatch!` and the kernels enable: a hypervisor may mask any of it.
fn best() -> Level {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = has!("avx") && has!("avx2") && has!("fma") && has!("f16c");
        let bits = has!("bmi1") && has!("bmi2") && has!("lzcnt") && has!("popcnt");
        if !(avx2 && bits) {
            return Level::PORTABLE;
        }
        match has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
            true => Level::AVX512,
            false => Level::AVX2,
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        Level::PORTABLE
    }
}

/// The name of the instruction set in use, for logs and reports.
pub fn name() -> &'static str {
    NAMES[level().0 as usize - 1]
}

/// Asks for the cache line at `address`. Any address will do, mapped or not.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults and changes no memory.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = address;
    }
}

/// Asks for the cache line at `address` in the second-level cache. Many more of these can be under way at a time than of
/// those for the first level, which keep the processor waiting when there are too many: ask with this early, and
/// with [`prefetch`] shortly before the line is needed.
#[inline(always)]
pub fn prefetch_early<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch never faults and changes no memory.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = address;
    }
}

/// Asks for cache lines from `start` on, all but the first `skip` of so many; as [`prefetch_early`] does if it is `EARLY`.
///
/// Written out for as many as most rows have: the compiler makes more of a loop whose length it does not know than there is to do.
#[inline(always)]
pub fn prefetch_lines<const EARLY: bool>(start: *const u8, skip: usize, lines: usize) {
    const MOST: usize = 5;
    for line in 0..MOST {
        if line >= skip && line < lines {
            prefetch_line::<EARLY>(start.wrapping_add(64 * line));
        }
    }
    for line in skip.max(MOST)..lines {
        prefetch_line::<EARLY>(start.wrapping_add(64 * line));
    }
}

#[inline(always)]
fn prefetch_line<const EARLY: bool>(address: *const u8) {
    match EARLY {
        true => prefetch_early(address),
        false => prefetch(address),
    }
}

/// Asks for the cache lines of `slice`. How often it asks depends on the length alone, not on where the slice starts:
/// the line before the last that is left out now and then costs less than a branch that cannot be predicted.
#[inline(always)]
pub fn prefetch_slice<T>(slice: &[T]) {
    let start = slice.as_ptr().cast::<u8>();
    let bytes = std::mem::size_of_val(slice);
    for line in 0..(bytes / 64).max(1) {
        prefetch(start.wrapping_add(64 * line));
    }
    prefetch(start.wrapping_add(bytes).wrapping_sub(1));
}

/// [`prefetch_slice`] with [`prefetch_early`].
#[inline(always)]
pub fn prefetch_slice_early<T>(slice: &[T]) {
    let start = slice.as_ptr().cast::<u8>();
    let bytes = std::mem::size_of_val(slice);
    for line in 0..(bytes / 64).max(1) {
        prefetch_early(start.wrapping_add(64 * line));
    }
    prefetch_early(start.wrapping_add(bytes).wrapping_sub(1));
}

/// A bit for each of at most 32 elements that equals `wanted`. A mask, because what it says cannot be predicted:
/// callers count with it rather than branch on it.
#[inline(always)]
pub fn matches(level: Level, elements: &[u32], wanted: u32) -> u32 {
    debug_assert!(elements.len() <= 32, "elements are counted in 32 bits");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if level.has_avx2() {
        // SAFETY: the CPU has AVX2, or there would be no such level.
        return unsafe {
            match elements.as_array::<32>() {
                Some(elements) => matches_32(elements, wanted),
                None => matches_fewer(elements, wanted),
            }
        };
    }
    let _ = level;
    elements.iter().rev().fold(0, |found, &element| found << 1 | u32::from(element == wanted))
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
#[inline]
fn matches_fewer(elements: &[u32], wanted: u32) -> u32 {
    use std::arch::x86_64::*;
    let each = _mm256_set1_epi32(wanted as i32);
    let (chunks, rest) = elements.as_chunks::<8>();
    let found = rest.iter().rev().fold(0, |found, &element| found << 1 | u32::from(element == wanted));
    chunks.iter().rev().fold(found, |found, chunk| {
        // SAFETY: 32 readable bytes, and the load asks for no alignment.
        let chunk = unsafe { _mm256_loadu_si256(chunk.as_ptr().cast()) };
        found << 8 | _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(chunk, each))) as u32
    })
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
#[inline]
fn matches_32(elements: &[u32; 32], wanted: u32) -> u32 {
    use std::arch::x86_64::*;
    let wanted = _mm256_set1_epi32(wanted as i32);
    let equal = |quarter: usize| {
        // SAFETY: elements 8 * quarter to 8 * quarter + 7 are readable, and the load asks for no alignment.
        let chunk = unsafe { _mm256_loadu_si256(elements.as_ptr().add(8 * quarter).cast()) };
        _mm256_cmpeq_epi32(chunk, wanted)
    };
    // A byte per element; packing works within halves of registers, so the order is put right at the end.
    let halves = (_mm256_packs_epi32(equal(0), equal(1)), _mm256_packs_epi32(equal(2), equal(3)));
    let bytes = _mm256_packs_epi16(halves.0, halves.1);
    let ordered = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_movemask_epi8(ordered) as u32
}

/// Defines a function whose body is compiled for AVX2 and for the baseline, chosen at run time.
/// What the body calls is only compiled along with it where it is `#[inline(always)]`.
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident <$(const $const:ident: $of:ty),+> ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name <$(const $const: $of),+> ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body <$(const $const: $of),+> ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(all(target_arch = "x86_64", not(miri)))]
            {
                #[target_feature(enable = "avx,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
                fn avx2 <$(const $const: $of),+> ($($arg: $ty),*) $(-> $ret)? { body::<$($const),+>($($arg),*) }

                if $crate::numeric::simd::level().has_avx2() {
                    // SAFETY: all of these features were found on this CPU.
                    #[allow(unsafe_code)]
                    return unsafe { avx2::<$($const),+>($($arg),*) };
                }
            }
            body::<$($const),+>($($arg),*)
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($life:lifetime),+>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$($life),+>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body $(<$($life),+>)? ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(all(target_arch = "x86_64", not(miri)))]
            {
                #[target_feature(enable = "avx,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
                #[allow(clippy::too_many_arguments)]
                fn avx2 $(<$($life),+>)? ($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }

                if $crate::numeric::simd::level().has_avx2() {
                    // SAFETY: all of these features were found on this CPU.
                    #[allow(unsafe_code)]
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use dispatch;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_are_found_in_sets_of_any_size() {
        for len in 0..=32usize {
            let elements: Vec<u32> = (0..len as u32).map(|i| 100 + i / 2).collect();
            for wanted in 99..102 + len as u32 {
                let expected = elements.iter().enumerate().map(|(i, &e)| u32::from(e == wanted) << i).sum::<u32>();
                for level in (1..=best().0).map(Level) {
                    assert_eq!(matches(level, &elements, wanted), expected, "{wanted} among {len}");
                }
            }
        }
    }
}
