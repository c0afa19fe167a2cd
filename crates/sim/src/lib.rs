//! What a memory plan costs: lifetimes, live memory, time on every stream, and lower bounds.
//!
//! [`liveness`] turns a schedule into a packing problem. [`live`] computes live memory at every position and the buffers alive at the peak.
//! [`simulate`](mod@simulate) runs the streams exactly as the model prescribes and returns a
//! [`Timeline`](elbowroom_ir::timeline::Timeline), as a measured run does. [`cost`] estimates durations for traces without measurements, on
//! the machines of [`presets`]. [`bound`] computes lower bounds of the iteration time.
//!
//! This crate makes no decisions and proves nothing: `elbowroom_ir::check` proves legality and shares no code with this crate.

#![forbid(unsafe_code)]

pub mod bound;
pub mod cost;
pub mod live;
pub mod liveness;
pub mod presets;
pub mod simulate;

pub use simulate::{SimulateError, simulate};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
