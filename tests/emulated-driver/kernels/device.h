// What the words of a kernel's source mean when it is compiled for the host. Included before the source by build.rs;
// the source defines the same words for the GPU where __CUDACC_RTC__ is defined.
#ifndef EMULATED_DEVICE_H
#define EMULATED_DEVICE_H

#ifdef __clang__
// clang calls its runtime by fixed names; see hooks.c.
#else
// gcc takes these names for the calls it inserts before each access. With names of our own the library can be loaded
// into a process that has a real AddressSanitizer, whose functions bear the original names.
#define EMULATED_HOOK(kind, size) \
    void __asan_##kind##size##_noabort(void *) __asm__("emulated_" #kind #size)
#define EMULATED_HOOKS(kind) \
    EMULATED_HOOK(kind, 1); EMULATED_HOOK(kind, 2); EMULATED_HOOK(kind, 4); EMULATED_HOOK(kind, 8); \
    EMULATED_HOOK(kind, 16); \
    void __asan_##kind##N_noabort(void *, unsigned long) __asm__("emulated_" #kind "N")
EMULATED_HOOKS(load);
EMULATED_HOOKS(store);
void __asan_handle_no_return(void) __asm__("emulated_no_return");
void __ubsan_handle_out_of_bounds(void *, void *) __asm__("emulated_out_of_bounds");
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

#define THREADS 128u

// One call runs one block. Its threads run one after the other, phase by phase, in the order that the driver gives
// (THREADS numbers and one more that is read and not used).
#define KERNEL(name) void kernel_##name(const struct Launch launch, unsigned BLOCK, unsigned GRID, const unsigned *order_)
#define EACH_THREAD for (unsigned turn_ = 0, THREAD = order_[0]; turn_ < THREADS; THREAD = order_[++turn_])
#define DEVICE static inline __attribute__((always_inline))
#define SHARED

DEVICE float add(float a, float b) { return a + b; }
DEVICE float sub(float a, float b) { return a - b; }
DEVICE float mul(float a, float b) { return a * b; }
DEVICE float divide(float a, float b) { return a / b; }
DEVICE float root(float a) { return __builtin_sqrtf(a); }
DEVICE float floor_(float a) { return __builtin_floorf(a); }
DEVICE float round_even(float a) { return __builtin_rintf(a); }

// Through a union in a register: no memory is touched, so nothing is checked.
DEVICE u32 bits_of(float a) {
    union { float f; u32 u; } both = {.f = a};
    return both.u;
}
DEVICE float float_of(u32 a) {
    union { u32 u; float f; } both = {.u = a};
    return both.f;
}

#endif
