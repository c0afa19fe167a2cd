//! Runs checked plans for real: one arena, kernels at addresses, three lanes, a host tier.
//!
//! A [`Session`] takes a [`Graph`](elbowroom_graph::Graph) and a [`CheckedPlan`](elbowroom_ir::check::CheckedPlan) for its trace and
//! runs iterations. Parameters, optimizer state, activations, gradients and workspaces all lie in one arena, whose size is the
//! limit; while an iteration runs nothing is allocated. The engine decides nothing: what happens when and where is the plan's business,
//! and the plan has been proved legal.
//!
//! Where there is no plan yet, iterations run on demand within the same arena ([`reactive`]), and whoever runs them decides what leaves.
//!
//! ```text
//! CheckedPlan ─▶ program ─▶ lanes ─▶ device ─▶ kernels        measured: peak, timeline, costs
//!                (addresses) (threads) (arena, host tier)
//! ```
//!
//! **One result.** An op's bits depend on its operands, the seed and the iteration, and on nothing else. So the same training gives the
//! same bits under every plan, with any number of threads, and under [`ChaosOptions`].
//!
//! `unsafe` stands in `arena`, `device` and [`kernels`] only. What makes it sound is one chain: a checked plan is legal; a program is
//! made from a checked plan only; lanes obey order and waits; so no two accesses conflict. Without a plan nothing runs beside anything
//! else, and every operand is a block of its own.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod arena;
mod chaos;
mod compare;
#[allow(unsafe_code)]
mod device;
mod error;
pub mod host;
pub mod interpreter;
#[allow(unsafe_code)]
pub mod kernels;
mod lanes;
mod persistent;
mod program;
pub mod reactive;
mod ready;
mod record;
mod session;
mod timing;

pub use chaos::ChaosOptions;
pub use compare::{Difference, Digest, first_difference};
pub use error::{EngineError, HostError};
pub use host::{HostOptions, HostPlace};
pub use interpreter::{InterpretError, Interpreter};
pub use record::MeasuredCosts;
pub use session::{IterationReport, Session, SessionOptions, trace};
pub use timing::Stopwatch;
