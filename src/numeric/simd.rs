//! Choosing vector instructions at run time, once.
//!
//! Kernels are plain loops that the compiler vectorises. [`dispatch!`] compiles a loop twice, for AVX2 and
//! for the build's baseline, and picks at run time. Both come from the same source and every operation is
//! elementwise IEEE arithmetic, so the results are the same bits; the tests compare them anyway.
//!
//! `unsafe` lives here because calling a function compiled for AVX2 is only sound on a CPU that has it.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const PORTABLE: u8 = 1;
const AVX2: u8 = 2;

static LEVEL: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether the AVX2 kernels run. `HOTROW_SIMD=portable` turns them off, to compare or to rule them out.
#[inline(always)]
pub fn avx2() -> bool {
    match LEVEL.load(Ordering::Relaxed) {
        UNKNOWN => detect() == AVX2,
        level => level == AVX2,
    }
}

#[cold]
fn detect() -> u8 {
    let wanted = std::env::var_os("HOTROW_SIMD").is_none_or(|v| v != "portable");
    let level = if wanted && has_avx2() { AVX2 } else { PORTABLE };
    LEVEL.store(level, Ordering::Relaxed);
    level
}

fn has_avx2() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c")
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        false
    }
}

/// Runs the portable kernels (`true`) or the best there are (`false`), for the whole process.
#[doc(hidden)]
pub fn force_portable(portable: bool) {
    LEVEL.store(if portable { PORTABLE } else { UNKNOWN }, Ordering::Relaxed);
}

/// The name of the instruction set in use, for logs and reports.
pub fn name() -> &'static str {
    if avx2() { "avx2" } else { "portable" }
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

/// Asks for all cache lines of `slice`.
#[inline(always)]
pub fn prefetch_slice<T>(slice: &[T]) {
    let start = slice.as_ptr().cast::<u8>();
    let len = std::mem::size_of_val(slice);
    let mut offset = 0;
    while offset < len {
        prefetch(start.wrapping_add(offset));
        offset += 64;
    }
    if len > 0 {
        prefetch(start.wrapping_add(len - 1));
    }
}

/// Defines a function whose body is compiled for AVX2 and for the baseline, chosen at run time.
/// What the body calls is only compiled along with it where it is `#[inline(always)]`.
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($life:lifetime),+>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$($life),+>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body $(<$($life),+>)? ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(all(target_arch = "x86_64", not(miri)))]
            {
                #[target_feature(enable = "avx,avx2,f16c,bmi1,bmi2,lzcnt,popcnt")]
                #[allow(clippy::too_many_arguments)]
                fn avx2 $(<$($life),+>)? ($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }

                if $crate::numeric::simd::avx2() {
                    // SAFETY: `simd::avx2` has found the features on this CPU (bmi and lzcnt come with AVX2).
                    #[allow(unsafe_code)]
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use dispatch;
