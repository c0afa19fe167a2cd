//! When values stay, leave, come back or are computed again.
//!
//! ```text
//! planner ──▶ Policy ──▶ lower ──▶ Schedule ──▶ (pack) ──▶ waits::thin
//! decides     gaps,      positions,              where
//!             sequence   copies, waits
//! ```
//!
//! A planner implements `elbowroom_ir::planning::Scheduler`. It decides a [`Policy`](policy::Policy); [`lower`](lower::lower) makes the
//! schedule, and it alone inserts copies and releases. All planners are in [`SCHEDULERS`]; [`scheduler`] finds one by its name.

#![forbid(unsafe_code)]

pub mod auto;
pub mod chain;
pub mod explain;
pub mod keep;
pub mod lower;
pub mod mixed;
pub mod offload;
pub mod policy;
pub mod portfolio;
pub mod random;
pub mod recompute;
pub mod retry;
pub mod verdict;

mod search;

use elbowroom_ir::planning::Scheduler;
use offload::autoswap::{self, Score};

pub use lower::analysis::PolicyError;
pub use lower::{LowerError, Lowered, Shortfall, lower, waits};

/// All planners, in the order in which they are listed to users.
pub static SCHEDULERS: &[&dyn Scheduler] = &[
    &keep::Keep,
    &offload::greedy::Greedy,
    &offload::dynprog::DynProg::DEFAULT,
    &offload::vdnn::Vdnn,
    &offload::tflms::Tflms,
    &autoswap::ByScore(Score::Doa),
    &autoswap::ByScore(Score::Aoa),
    &autoswap::ByScore(Score::Wdoa),
    &autoswap::ByScore(Score::Swdoa),
    &autoswap::BestScore,
    &autoswap::bo::Bo::DEFAULT,
    &recompute::sqrt::Sqrt,
    &mixed::segments::Mixed,
    &recompute::in_place::Separate,
    &recompute::in_place::InPlace,
    &recompute::in_place::Sharing,
    &recompute::drop_cheap::DropCheap,
    &recompute::sublinear::Sublinear,
    &recompute::recursive::Recursive::DEFAULT,
    &recompute::rotor::Rotor::DEFAULT,
    &recompute::dtr::Dtr,
    &mixed::supernn::SuperNn,
    &offload::floor::Floor,
    &auto::Auto,
];

/// The planner of a name.
pub fn scheduler(name: &str) -> Option<&'static dyn Scheduler> {
    SCHEDULERS.iter().copied().find(|scheduler| scheduler.name() == name)
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
