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
pub mod autoswap;
pub mod bo;
pub mod chain;
pub mod dqn;
pub mod dynprog;
pub mod floor;
pub mod greedy;
pub mod keep;
pub mod linearize;
pub mod lower;
pub mod placed;
pub mod policy;
pub mod recompute;
pub mod relaxation;
pub mod segments;
pub mod sqrt;
pub mod supernn;
pub mod tflms;
pub mod vdnn;
pub mod verdict;
pub mod waits;

mod gate;
mod gaussian;
mod ordered;
mod program;
mod residences;
mod room;

use autoswap::Score;
use elbowroom_ir::planning::Scheduler;

pub use lower::{LowerError, Lowered, Shortfall, lower};
pub use residences::PolicyError;

/// All planners, in the order in which they are listed to users.
pub static SCHEDULERS: &[&dyn Scheduler] = &[
    &keep::Keep,
    &greedy::Greedy,
    &dynprog::DynProg::DEFAULT,
    &vdnn::Vdnn,
    &tflms::Tflms,
    &autoswap::ByScore(Score::Doa),
    &autoswap::ByScore(Score::Aoa),
    &autoswap::ByScore(Score::Wdoa),
    &autoswap::ByScore(Score::Swdoa),
    &autoswap::BestScore,
    &bo::Bo::DEFAULT,
    &sqrt::Sqrt,
    &sqrt::Mixed,
    &recompute::in_place::Separate,
    &recompute::in_place::InPlace,
    &recompute::in_place::Sharing,
    &recompute::drop_cheap::DropCheap,
    &recompute::sublinear::Sublinear,
    &recompute::recursive::Recursive::DEFAULT,
    &recompute::rotor::Rotor::DEFAULT,
    &recompute::dtr::Dtr,
    &supernn::SuperNn,
    &floor::Floor,
    &dqn::DQN,
    &auto::Auto,
];

/// The planner of a name.
pub fn scheduler(name: &str) -> Option<&'static dyn Scheduler> {
    SCHEDULERS.iter().copied().find(|scheduler| scheduler.name() == name)
}
