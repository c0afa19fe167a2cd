//! Offline placement: buffers with known lifetimes get offsets in one arena, as low as possible.
//!
//! The problem and its answer are [`Problem`](elbowroom_ir::packing::Problem) and [`Placement`](elbowroom_ir::packing::Placement); every algorithm is a
//! [`Packer`] in a file of its own, found by name with [`packer`]; [`validate`] judges them all.
//!
//! Every packer keeps to the same contract:
//! - lifetimes, gaps, alignments and fixed offsets are respected, whatever the method's paper says about them;
//! - without a capacity there is always a placement, unless two fixed blocks overlap, which is `Infeasible`;
//! - with a capacity, `best` is given only if it fits; else the outcome is `Infeasible`, with a proof and the blocks to blame, or
//!   `GaveUp` with the lowest height found;
//! - `Optimal` is said only where the height meets a proved lower bound;
//! - seed and evaluations reproduce the result on any number of threads.
//!
//! ## From buffers to offsets
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod beside;
mod best_fit;
pub mod csv;
mod eject;
mod exact;
mod greedy;
mod improve;
mod instance;
#[cfg(feature = "highs")]
mod mip;
mod neighbourhood;
mod parts;
mod pool;
mod portfolio;
mod preference;
mod random;
mod sharing;
mod shelf;
mod smart_pool;
mod squeaky;
mod tree;
mod validate;

pub use best_fit::BestFit;
pub use exact::Exact;
pub use greedy::{GreedyByConflict, GreedyBySize};
#[cfg(feature = "highs")]
pub use mip::Mip;
pub use pool::Pool;
pub use portfolio::Auto;
pub use sharing::Sharing;
pub use smart_pool::{SmartPoolBest, SmartPoolFirst};
pub use validate::{PlacementError, validate};

use elbowroom_ir::packing::Packer;

/// All packers, the default one first.
pub static PACKERS: &[&dyn Packer] = &[
    &Auto,
    &BestFit,
    &SmartPoolBest,
    &SmartPoolFirst,
    &GreedyBySize,
    &GreedyByConflict,
    &Exact,
    &Pool,
    &Sharing,
    #[cfg(feature = "highs")]
    &Mip,
];

/// The packer of a name, or `None`.
pub fn packer(name: &str) -> Option<&'static dyn Packer> {
    PACKERS.iter().copied().find(|packer| packer.name() == name)
}
