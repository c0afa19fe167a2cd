//! Runs checked plans: one arena, kernels at fixed addresses, three streams and a host tier.
//!
//! A [`Session`] takes a [`Graph`](elbowroom_graph::Graph) and a [`CheckedPlan`](elbowroom_ir::check::CheckedPlan) for its trace and runs
//! iterations. Parameters, optimizer state, activations, gradients and workspaces all lie in one arena, whose size is the limit. The engine
//! allocates no memory during an iteration. The engine makes no decisions: the plan fixes what runs, when, and at which address, and the
//! checker has proved it legal.
//!
//! Without a plan, a session runs *dynamic* iterations within the same arena ([`dynamic`]): whenever bytes are missing, the engine calls a
//! [`Decider`](dynamic::Decider), which chooses the tensor to evict or to offload.
//!
//! ```text
//! CheckedPlan ─▶ program ─▶ streams ─▶ device ─▶ kernels      measured: peak, timeline, costs
//!                (addresses) (threads)  (arena, host tier)
//! ```
//!
//! **One result.** An op's bits depend only on its operands, the seed and the iteration number. The same training therefore gives the same
//! bits under every plan, with any number of threads, and under [`ChaosOptions`].
//!
//! `unsafe` code is confined to `arena`, `device` and [`kernels`]. It is sound because a checked plan is legal, a program can only be made
//! from a checked plan, and streams obey order and waits: no two accesses conflict. In a dynamic iteration ops and copies run one at a
//! time, and every operand has a block of its own.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod arena;
mod chaos;
mod compare;
#[allow(unsafe_code)]
mod device;
pub mod dynamic;
mod error;
pub mod host;
pub mod interpreter;
#[allow(unsafe_code)]
pub mod kernels;
mod persistent;
mod prepared;
mod program;
mod record;
mod session;
mod streams;
mod system;
mod timing;

pub use chaos::ChaosOptions;
pub use compare::{Difference, Digest, first_difference};
pub use device::return_freed_memory;
pub use error::{EngineError, HostError};
pub use host::{HostOptions, HostPlace};
pub use interpreter::{InterpretError, Interpreter};
pub use record::MeasuredCosts;
pub use session::{IterationReport, Session, SessionOptions, reserved_host_bytes, trace};
pub use timing::Stopwatch;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
