//! `elbowroom-alloc` as a C library, `libelbowroom_capi.so`, usable three ways:
//!
//! - **Preloaded** under an unchanged program (`LD_PRELOAD=libelbowroom_capi.so program`): it replaces `malloc` and its family. Requests of
//!   1 KiB or more are planned once the thread that makes them repeats itself; all others go to the next allocator, usually libc's.
//! - **As PyTorch's pluggable CUDA allocator**: `elbowroom_cuda_alloc` and `elbowroom_cuda_free`.
//! - **Through `include/elbowroom.h`**: marks and counters for a preloaded program, and pools of any other memory.
//!
//! # Example
//!
//! ```sh
//! cargo build --release -p elbowroom-capi
//! LD_PRELOAD=target/release/libelbowroom_capi.so python train.py
//! ```
//!
//! This is a crate of its own because a library that defines `malloc` must not be linked into the ordinary programs of this workspace.

mod cuda;
mod heap_end;
mod libm;
mod logarithm;
mod malloc;
mod next;
mod own;
mod pool;
mod process;
mod watch;
