// clang calls the functions of AddressSanitizer by their own names: here they lead to the driver's. Hidden, so that
// they are never taken for the real ones of a process that has them.
#define HOOK(kind, size) \
    void emulated_##kind##size(void *); \
    __attribute__((visibility("hidden"))) void __asan_##kind##size##_noabort(void *at) { emulated_##kind##size(at); }
#define HOOKS(kind) \
    HOOK(kind, 1) HOOK(kind, 2) HOOK(kind, 4) HOOK(kind, 8) HOOK(kind, 16) \
    void emulated_##kind##N(void *, unsigned long); \
    __attribute__((visibility("hidden"))) void __asan_##kind##N_noabort(void *at, unsigned long size) { \
        emulated_##kind##N(at, size); \
    }
HOOKS(load)
HOOKS(store)
__attribute__((visibility("hidden"))) void __asan_handle_no_return(void) {}
