//! An allocator for programs that repeat themselves: once an iteration has repeated, every request is served at an address planned
//! beforehand.
//!
//! # The model
//!
//! A [`Sequence`] holds the [requests](Request) of one thread, or of one queue of a device, in order, each with a size and an alignment.
//! Time is counted in requests. Without a plan, requests go to a fallback and are recorded, together with the times at which
//! their blocks are freed. A [`Detector`] observes every request and reports when the last ones form an iteration that has just repeated
//! (Zhang, section V). The iteration becomes a placement problem, which `elbowroom-pack` solves, and then a layout: a slot in one
//! arena for every request. From then on a replay gives the λ-th slot to the λ-th request of each iteration (Sekiyama, section
//! 4.2), with one comparison and a few loads. Freeing a block is one atomic exchange, from any thread; the [`Directory`] finds its arena
//! without a lock.
//!
//! What may go wrong, and how it is handled
//!
//! | the program | handling |
//! | --- | --- |
//! | requests less than expected | it gets the slot |
//! | requests more | fallback; the iteration is planned again with the new size (Sekiyama 4.3) |
//! | makes an extra request, or omits one | fallback for at most a few requests, then the plan continues |
//! | varies the length or the sizes of its iterations | planned as the longest one, with or without marks; the module `varying` |
//! | changes its behaviour | the plan is abandoned and the program recorded again; if requests of an abandoned plan recur, that plan is resumed |
//! | frees a block later than expected | the next request for those bytes goes to the fallback; the iteration is planned again |
//! | frees a block twice, or an address that was never allocated | [`Release::Nothing`]; no other effect |
//! | never repeats | all requests go to the fallback; the record is bounded, and its pauses grow |
//!
//! No two live blocks ever share a byte, whatever the program does; the module `replay` proves this.
//!
//! # Interfaces
//!
//! - [`Planned`] is a global allocator for Rust programs. The large requests of each thread form one sequence, the middle ones another.
//! - [`Pool`] serves programs that manage a device's memory: one sequence per queue. The memory comes from a [`Backing`]: the host
//!   ([`HostMemory`]), a CUDA device ([`CudaMemory`]), or your own.
//! - [`device`] serves programs that declare which blocks an operation reads and writes; blocks can then also be offloaded and prefetched.
//! - The crate `elbowroom-capi` offers all this as a C library: preloaded under an unchanged program, as PyTorch's pluggable allocator, or
//!   through a small header.
//!
//! ## How to use it
#![doc = include_str!("../README.md")]

mod arena;
mod caching;
mod detect;
pub mod device;
mod directory;
mod gram;
mod layout;
mod memory;
mod pages;
mod pool;
mod process;
mod record;
mod rehearsal;
mod replay;
mod request;
mod sequence;
mod stats;
mod varying;
mod watch;

pub use arena::Release;
pub use caching::CachingAllocator;
pub use detect::Detector;
pub use directory::{Directory, SharedDirectory};
pub use memory::{Backing, Cuda, CudaError, CudaMemory, HostMemory, OutOfMemory};
pub use pool::Pool;
pub use process::{DEFAULT_THRESHOLD, PROCESS, Planned, Process, ProcessStats, is_single_threaded};
pub use rehearsal::Rehearsal;
pub use request::{Request, RequestTime, Ticket};
pub use sequence::{Answer, Sequence, Settings};
pub use stats::Stats;
