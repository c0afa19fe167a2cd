//! Planners: when tensors are kept, offloaded, prefetched, evicted and recomputed.
//!
//! ```text
//! planner ──▶ Policy ──▶ lower ──▶ Schedule ──▶ (pack) ──▶ waits::thin
//! decides     gaps,      positions,              where
//!             sequence   copies, waits
//! ```
//!
//! A planner implements [`Planner`]. It decides a [`Policy`](policy::Policy): the sequence of ops, and for each gap between two uses of a
//! tensor whether the tensor is kept, offloaded or evicted. [`lower`](lower::lower()) alone turns a policy into a schedule with copies, releases and
//! waits. The peak memory of the schedule stays within the request's limit. [`PLANNERS`] lists all planners; [`planner`] finds one by its
//! name.
//!
//! ```
//! use elbowroom_ir::planning::{Freedom, Request, Planner};
//! use elbowroom_ir::search::{Budget, Silent};
//! use elbowroom_ir::{Bytes, Nanos};
//! use elbowroom_sched::auto::Auto;
//! use elbowroom_sched::chain::{Chain, Layer};
//!
//! // Six equal layers, and a limit of 60 % of the memory that they take when everything is kept.
//! let layer = Layer { forward: Nanos(4_000), backward: Nanos(8_000), ..Layer::default() };
//! let mebibyte = Bytes(1 << 20);
//! let chain = Chain { layers: vec![layer; 6], activations: vec![mebibyte; 7], gradients: vec![mebibyte; 7] };
//! let traced = chain.to_trace("chain")?;
//! let machine = elbowroom_sim::presets::machine("v100").ok_or("unknown machine")?;
//! let request = Request {
//!     trace: &traced.trace,
//!     costs: &traced.costs,
//!     machine: &machine,
//!     live_limit: Bytes(chain.peak().get() * 6 / 10),
//!     freedom: Freedom::ALL,
//!     packer: None,
//!     pins: None,
//! };
//! let outcome = Auto.schedule(&request, &Budget::evaluations(1_000), &Silent);
//! assert!(outcome.best.is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`policy`], [`mod@lower`] | the core: decisions, and how they become a schedule |
//! | [`keep`], [`offload`], [`recompute`], [`mixed`], [`mod@auto`] | planners |
//! | [`chain`] | chains of layers, for the planners that were published for chains |
//! | [`portfolio`] | several planners on one request |
//! | [`retry`] | lower limits until a schedule can be packed |
//! | [`verdict`] | the answer when there is no schedule |
//! | [`mod@derive`] | the plan of a part from the plan of the whole |
//! | [`pins`] | decisions of the user that no plan may change |
//! | [`explain`] | what each decision of a schedule saves and costs |
//! | [`random`] | reproducible random numbers |

#![forbid(unsafe_code)]

pub mod auto;
pub mod chain;
pub mod deadline;
pub mod derive;
pub mod explain;
pub mod keep;
pub mod lower;
pub mod mixed;
pub mod offload;
pub mod pattern;
pub mod pins;
pub mod policy;
pub mod portfolio;
pub mod random;
pub mod recompute;
pub mod retry;
pub mod verdict;

mod search;

use elbowroom_ir::planning::Planner;
use offload::autoswap::{self, Score};

pub use lower::analysis::PolicyError;
pub use lower::{LowerError, Lowered, Shortfall, lower, waits};

/// All planners, in the order in which they are listed to users.
pub static PLANNERS: &[&dyn Planner] = &[
    &keep::Keep,
    &offload::greedy::Greedy,
    &offload::eager::Eager,
    &offload::dynprog::DynProg::DEFAULT,
    &offload::vdnn::Vdnn,
    &offload::tflms::Tflms,
    &autoswap::ByScore(Score::Doa),
    &autoswap::ByScore(Score::Aoa),
    &autoswap::ByScore(Score::Wdoa),
    &autoswap::ByScore(Score::Swdoa),
    &autoswap::BestScore,
    &autoswap::bo::Bo::PAPER,
    &autoswap::bo::Bo::DEFAULT,
    &recompute::sqrt::Sqrt,
    &mixed::segments::Mixed,
    &recompute::in_place::Separate,
    &recompute::in_place::InPlace,
    &recompute::in_place::Sharing,
    &recompute::marked::Marked::NONE,
    &recompute::drop_cheap::DropCheap,
    &recompute::drop_cheap_cost::DropCheapCost,
    &recompute::sublinear::Sublinear,
    &recompute::recursive::Recursive::DEFAULT,
    &recompute::rotor::Rotor::DEFAULT,
    &recompute::dtr::Dtr::DEFAULT,
    &mixed::supernn::SuperNn,
    &mixed::pofo::Pofo::DEFAULT,
    &auto::mincut::Mincut::DEFAULT,
    &auto::stream::Stream::DEFAULT,
    &offload::floor::Floor,
    &auto::Auto,
];

/// The planner of a name.
pub fn planner(name: &str) -> Option<&'static dyn Planner> {
    PLANNERS.iter().copied().find(|planner| planner.name() == name)
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
