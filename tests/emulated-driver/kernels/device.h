// What the words of a kernel's source mean when it is compiled for the host. Included before the source by build.rs;
// the source defines the same words for the GPU where __CUDACC_RTC__ is defined.
#ifndef EMULATED_DEVICE_H
#define EMULATED_DEVICE_H

// gcc takes these names for the calls it inserts before each access: those of ThreadSanitizer, which tells writes from
// reads and leaves none out. (AddressSanitizer's leave out a write to what was just read.) With names of our own the
// library can be loaded into a process that has a real sanitizer, whose functions bear the original names.
#define EMULATED_HOOK(tsan, kind, size) void __tsan_##tsan##size(void *) __asm__("emulated_" #kind #size)
#define EMULATED_HOOKS(tsan, kind) \
    EMULATED_HOOK(tsan, kind, 1); EMULATED_HOOK(tsan, kind, 2); EMULATED_HOOK(tsan, kind, 4); \
    EMULATED_HOOK(tsan, kind, 8); EMULATED_HOOK(tsan, kind, 16); \
    EMULATED_HOOK(unaligned_##tsan, kind, 2); EMULATED_HOOK(unaligned_##tsan, kind, 4); \
    EMULATED_HOOK(unaligned_##tsan, kind, 8); EMULATED_HOOK(unaligned_##tsan, kind, 16); \
    void __tsan_##tsan##_range(void *, unsigned long) __asm__("emulated_" #kind "N")
EMULATED_HOOKS(read, load);
EMULATED_HOOKS(write, store);
void __tsan_init(void) __asm__("emulated_nothing");
void __ubsan_handle_out_of_bounds(void *, void *) __asm__("emulated_out_of_bounds");

// The compiler does not check calls of these, so they are loops, which it does.
static inline void *emulated_copy(void *to, const void *from, unsigned long size) {
    for (unsigned long i = 0; i < size; i++) ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
    return to;
}
static inline void *emulated_set(void *at, int value, unsigned long size) {
    for (unsigned long i = 0; i < size; i++) ((unsigned char *)at)[i] = (unsigned char)value;
    return at;
}
#define memcpy emulated_copy
#define memset emulated_set

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
// A table of constants, `TABLE float powers[] = {...};` at file scope (on a GPU: __constant__). In a section of its own,
// so that the driver knows these reads from stray ones.
#define TABLE static const __attribute__((section("emulated_tables")))

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
