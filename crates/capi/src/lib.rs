//! `elbowroom-alloc` as a C library, `libelbowroom_capi.so`, usable three ways:
//!
//! - **Preloaded** under an unchanged program (`LD_PRELOAD=libelbowroom_capi.so program`): it takes the place of `malloc` and its family.
//!   Requests of 1 KiB or more are planned once the thread that makes them repeats itself; everything else goes to the next
//!   allocator, usually libc's.
//! - **As PyTorch's pluggable CUDA allocator**: `elbowroom_cuda_alloc` and `elbowroom_cuda_free`.
//! - **Through `include/elbowroom.h`**: marks and counts for the first way, and pools of any other memory.
//!
//! It is a crate of its own because a library that defines `malloc` must not be linked into ordinary programs of this workspace.

mod cuda;
mod malloc;
mod next;
mod pool;
mod process;
