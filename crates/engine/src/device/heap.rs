//! The heap of the process next to the arena.

/// Makes the C library return freed memory to the system early, for the whole process: a program calls this once, before it trains in little
/// memory.
///
/// By default glibc keeps up to 64 MiB of freed memory at the top of its heap, and serves blocks of up to 32 MiB from it, once a program has
/// freed a block of half that size (mallopt(3), `M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD`). Planning frees such blocks, so that its memory
/// would stay resident next to the arena. With other C libraries this does nothing.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        /// From `malloc.h`; the values are glibc's own before it adapts them, and setting them ends the adaptation.
        const THRESHOLDS: [c_int; 2] = [-1, -3];
        for parameter in THRESHOLDS {
            // SAFETY: the C library's function of this type; it takes the allocator's lock, and these parameters accept any size.
            unsafe { mallopt(parameter, 128 << 10) };
        }
    }
}
