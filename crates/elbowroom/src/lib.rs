//! Train neural networks in the memory you have.
//!
//! You name a limit in bytes. A [`Training`](train::Training) traces one iteration of a [`Network`](network::Network), decides which
//! tensors to keep, offload or recompute, assigns every buffer an offset in one arena, proves the plan legal, and trains under it. The
//! results equal those of an unlimited run to the bit, and no iteration uses a byte more than the limit.
//!
//! ```text
//! network ─▶ graph ─▶ trace ─▶ schedule ─▶ placement ─▶ checked plan ─▶ iterations ─▶ report
//! network    graph    ir       sched       pack         ir              engine        report
//! ```
//!
//! | module | purpose |
//! | --- | --- |
//! | [`train`] | train a network under a limit |
//! | [`network`], [`data`] | what is trained: your own graph or a model of the zoo, your own samples or files |
//! | [`nn`] | networks of your own from layers, whose shapes follow from one another |
//! | [`pipeline`] | plan a trace under a limit: schedule, pack, check, and lower the limit on live memory until the placement fits |
//! | [`compare`], [`choices`], [`explain`] | compare planners, list the decisions of a plan, explain why there is none |
//! | [`why`], [`page`], [`picture`], [`export`] | explain the peak, and show plans: as a page, as a picture, in other programs' viewers |
//! | [`registry`], [`size`], [`machine`] | names of planners and packers, sizes and links as users write them |
//!
//! # Example
//!
//! A network of your own on data of your own, in 6 MiB instead of 11:
//!
//! ```
#![doc = include_str!("../examples/train_your_own.rs")]
//! ```

#![forbid(unsafe_code)]

pub mod algorithms;
pub mod blocks;
pub mod checkpoint;
pub mod choices;
pub mod compare;
pub mod data;
pub mod explain;
pub mod export;
pub mod files;
pub mod largest;
pub mod layout;
pub mod machine;
pub mod network;
pub mod nn;
pub mod observer;
pub mod page;
pub mod picture;
pub mod pins;
pub mod pipeline;
pub mod plot;
mod positions;
pub mod registry;
pub mod report;
pub mod resident;
pub mod run;
mod safetensors_head;
pub mod size;
pub mod table;
pub mod tiles;
pub mod tradeoff;
pub mod train;
pub mod weights;
pub mod why;

pub use elbowroom_alloc as alloc;
#[cfg(feature = "dqn")]
pub use elbowroom_dqn as dqn;
pub use elbowroom_engine as engine;
pub use elbowroom_graph as graph;
pub use elbowroom_import as import;
pub use elbowroom_ir as ir;
pub use elbowroom_onnx as onnx;
pub use elbowroom_pack as pack;
pub use elbowroom_sched as sched;
pub use elbowroom_sim as sim;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The Rust blocks of the book are tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../docs/extending.md")]
    struct Extending;

    #[doc = include_str!("../../../docs/formats.md")]
    struct Formats;

    #[doc = include_str!("../../../docs/library.md")]
    struct Library;
}
