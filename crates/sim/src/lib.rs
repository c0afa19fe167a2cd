//! What a memory plan costs: lifetimes, load, time on every lane, and what no plan can beat.
//!
//! [`liveness`] turns a schedule into a packing problem; [`load`] says how many bytes are alive at every position and who is alive at the
//! peak; [`simulate`](mod@simulate) runs the lanes exactly as the model says and returns the [`Timeline`](elbowroom_ir::timeline::Timeline)
//! that a measured run returns too; [`cost`] estimates durations for traces without measured ones, on the machines of [`presets`];
//! [`bound`] says below which iteration time nothing can be.
//!
//! Nothing here decides anything, and nothing here is a proof: legality is `elbowroom_ir::check`, which shares no code with this crate.

#![forbid(unsafe_code)]

pub mod bound;
pub mod cost;
pub mod liveness;
pub mod load;
pub mod presets;
pub mod simulate;

pub use simulate::{SimulateError, simulate};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
