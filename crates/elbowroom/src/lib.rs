//! Training neural networks in the memory you have.
//!
//! This crate orders the others: a network becomes a [trace](ir::trace), a trace becomes a proved [plan](pipeline::plan), a plan becomes a
//! [training run](train) that never uses a byte more than its limit. What each step means is said where it lives: [`ir`] for plans and
//! their legality, `elbowroom-sim` for their cost, `elbowroom-pack` and `elbowroom-sched` for how they are found, `elbowroom-engine` for
//! how they run.

#![forbid(unsafe_code)]

pub mod algorithms;
pub mod blocks;
pub mod checkpoint;
pub mod choices;
pub mod compare;
pub mod data;
pub mod explain;
pub mod files;
pub mod largest;
pub mod machine;
pub mod network;
pub mod observer;
pub mod picture;
pub mod pipeline;
pub mod plot;
pub mod registry;
pub mod report;
pub mod resident;
pub mod size;
pub mod train;

pub use elbowroom_alloc as alloc;
#[cfg(feature = "dqn")]
pub use elbowroom_dqn as dqn;
pub use elbowroom_engine as engine;
pub use elbowroom_graph as graph;
pub use elbowroom_import as import;
pub use elbowroom_ir as ir;
pub use elbowroom_pack as pack;
pub use elbowroom_sim as sim;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
