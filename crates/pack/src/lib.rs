//! Offline placement of buffers with known lifetimes: finds an offset for each in one arena that is as small as possible.
//!
//! # The model
//!
//! A [`Problem`] is a list of *blocks* (buffers). A block has a size, the positions of a schedule at which it is
//! alive (one or more half-open intervals), an alignment, and possibly a fixed offset. A problem may have a *capacity*. A
//! [`Placement`] gives each block an offset; it is legal if blocks that are alive at the same position share
//! no bytes. Its *height* is the highest end of any block. No placement is lower than the peak of live memory; many reach it.
//!
//! A [`Packer`] is an algorithm that returns a placement. Each has a file of its own; [`PACKERS`] lists all, [`packer`] finds one by name, and
//! [`validate()`] checks their results. Every packer follows the same contract:
//! - lifetimes, gaps and their windows, alignments and fixed offsets are respected, also by methods whose papers do not consider them;
//! - without a capacity a placement is always returned, unless two fixed blocks overlap, which is `Infeasible`;
//! - with a capacity, `best` is a placement that fits; otherwise the outcome is `Infeasible`, with a proof and the conflicting blocks, or
//!   `GaveUp` with the lowest height found;
//! - `Optimal` means that the height meets a proved lower bound;
//! - seed and number of evaluations reproduce the result on any number of threads.
//!
//! # Inside
//!
//! `instance` compresses time to *sections* between which the set of live items changes; packers work on its *items*. `partial_placement`
//! inserts items into holes for the greedy packers, `best_fit` follows a skyline. `search` runs them for `auto` and `exact` and then the
//! `improver`: depth-first searches of the corners of a skyline (`corner_search`, where memory is nearly full also of items and `holes` joined by `composite`)
//! and of the `canonical_tree` for components of up to 1,500 items, and for larger ones `squeaky_wheel`
//! optimization with `large_neighbourhood` and `ejection_chain` moves. `windowed` packs problems in which some blocks have windows.
//!
//! ## From buffers to offsets
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod advance;
mod auto;
mod banks;
mod best_fit;
mod best_fit_paper;
mod branching_order;
mod canonical_tree;
mod choice;
mod clock;
mod component;
mod composite;
mod corner_search;
pub mod csv;
mod ejection_chain;
mod evaluation;
mod evaluation_line;
mod exact;
mod front;
mod greedy;
mod holes;
mod improver;
mod infeasibility;
mod instance;
mod large_neighbourhood;
#[cfg(feature = "highs")]
mod mip;
mod order_keys;
mod outwards;
mod overlap;
mod partial_placement;
mod pool;
mod random;
mod repack;
mod reserved;
mod search;
mod search_plan;
mod sharing;
mod smart_pool;
mod squeaky_wheel;
mod sweep;
mod validate;
mod window;
mod windowed;

pub use auto::Auto;
pub use banks::{
    Bank, BankedError, BankedPlacement, BankedPlacementError, BankedProblem, pack_banks, validate_banks,
};
pub use best_fit::BestFit;
pub use best_fit_paper::{BestFitPaper, BestFitPaperMerged};
pub use exact::Exact;
pub use greedy::{GreedyByConflict, GreedyBySize};
pub use instance::Missed;
#[cfg(feature = "highs")]
pub use mip::Mip;
pub use pool::Pool;
pub use repack::{Repacked, repack};
pub use sharing::Sharing;
pub use smart_pool::{SmartPoolBest, SmartPoolFirst};
pub use validate::{PlacementError, validate};

// What a caller needs of `elbowroom-ir`, so that one dependency is enough.
pub use elbowroom_ir::packing::{Block, Interval, Packer, Placement, Problem, ProblemError, Window};
pub use elbowroom_ir::search::{Budget, Infeasible, Observer, Outcome, Silent, StopReason};
pub use elbowroom_ir::{BufferId, Bytes, Id, Table};

/// All packers, the default packer first.
pub static PACKERS: &[&dyn Packer] = &[
    &Auto,
    &BestFit,
    &BestFitPaper,
    &BestFitPaperMerged,
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

/// The packer with this name, or `None`.
pub fn packer(name: &str) -> Option<&'static dyn Packer> {
    PACKERS.iter().copied().find(|packer| packer.name() == name)
}
