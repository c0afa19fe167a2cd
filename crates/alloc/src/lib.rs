//! An allocator for programs that repeat themselves: after one iteration has repeated, every request for memory is answered with an
//! address that was planned beforehand.
//!
//! # The model
//!
//! A [`Sequence`] is what one thread, or one queue of a device, asks for: [requests](Request) in order, each with a size and an
//! alignment. Time is counted in its requests. While no plan is known, requests go to a fallback and are [recorded](Record), with the
//! moments at which their blocks are freed. A [`Detector`] hears every request and says when the last of them were an iteration that has
//! just repeated (Zhang, section V). The iteration becomes a placement problem, which `elbowroom-pack` solves, and then a [`Layout`]: a
//! slot in one [`Arena`] for every request. From then on a [`Replay`] gives the λ-th request of each iteration the λ-th slot (Sekiyama,
//! section 4.2), with one comparison and a few loads; freeing a block is one atomic exchange, by any thread, found through the
//! [`Directory`] without a lock.
//!
//! # What may go wrong, and what happens then
//!
//! | the program | what happens |
//! | --- | --- |
//! | asks for less than expected | it gets the slot |
//! | asks for more | fallback; the iteration is planned again with what was observed (Sekiyama 4.3) |
//! | asks for something else, or leaves something out | fallback for at most a few requests, then the plan goes on |
//! | does something else altogether | the plan is left and the program recorded again; when a passage of a plan that was left comes back, so does the plan |
//! | frees later than expected | who would have got the bytes goes to the fallback; the iteration is planned again |
//! | frees twice, or an address that was never given out | [`Release::Nothing`], and nothing else happens |
//! | never repeats | everything goes to the fallback; the record is bounded and pauses ever longer |
//!
//! No two living blocks ever share a byte, whatever the program does; `replay` says why.
//!
//! # Faces
//!
//! - [`Planned`] is a global allocator for Rust programs: the large requests of each thread are a sequence, and the middle ones another.
//! - [`Pool`] serves programs that own a device's memory: a sequence for each of its queues. Memory comes through [`Backing`]: the host's
//!   ([`HostMemory`]), a CUDA device's ([`CudaMemory`]), or your own.
//! - [`device`] is for programs that can say what an operation touches: blocks may then also leave for the host and come back.
//! - The crate `elbowroom-capi` makes a C library of both: to be preloaded under an unchanged program, as PyTorch's pluggable allocator,
//!   or through a small header.
//!
//! ## How to use it
#![doc = include_str!("../README.md")]

mod arena;
mod caching;
mod detect;
pub mod device;
mod directory;
mod layout;
mod memory;
mod pool;
mod process;
mod record;
mod replay;
mod request;
mod sequence;
mod stats;

pub use arena::{Arena, Release};
pub use caching::CachingAllocator;
pub use detect::Detector;
pub use directory::{ArenaId, Directory};
pub use layout::{Layout, Planning, Slot};
pub use memory::{Backing, Cuda, CudaError, CudaMemory, HostMemory, OutOfMemory};
pub use pool::Pool;
pub use process::{DEFAULT_THRESHOLD, PROCESS, Planned, Process, ProcessStats};
pub use record::{ProfiledRequest, Record};
pub use replay::{Finished, Replay, Step};
pub use request::{Request, RequestTime, Ticket};
pub use sequence::{Answer, Sequence, Settings};
pub use stats::Stats;
