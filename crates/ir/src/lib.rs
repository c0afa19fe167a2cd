//! What a memory plan for one training iteration is, and when it is legal.
//!
//! # The model
//!
//! A [`Trace`](trace::Trace) is one iteration, in the order in which a device executed it: [ops](trace::Op) that read and write
//! [tensors](trace::Tensor), the [storages](trace::Storage) that hold the tensors, and which tensors [persist](trace::Persistent) into the
//! next iteration. It states what must be computed and never changes.
//!
//! A [`Machine`](machine::Machine) has memory, an alignment and a link to the host. [`Costs`](planning::Costs) are the durations of the
//! ops.
//!
//! A [`Schedule`](schedule::Schedule) decides *when*: a total order of actions (compute, recompute, offload, prefetch, release) on three
//! streams, over [buffers](schedule::Buffer) whose lifetimes are intervals of positions in that order. A [`Placement`](packing::Placement)
//! decides *where*: an offset in one arena for every buffer. Together they are a [`Plan`](plan::Plan).
//!
//! A plan is unproved data. [`check`](check::check) proves it against its trace and machine, by rules that are numbered there and share no
//! code with the planners; only the [`CheckedPlan`](check::CheckedPlan) that it returns can be run.
//!
//! Other crates compute what a plan costs (`elbowroom-sim`) and find plans (`elbowroom-sched`, `elbowroom-pack`).
//!
//! # Conventions
//!
//! Ids are dense and typed ([`entity`]), quantities are typed ([`units`]), intervals are half-open. Everything that leaves the process can
//! be printed and parsed ([`text`]) and serialized.

#![forbid(unsafe_code)]

#[cfg(feature = "arbitrary")]
pub mod arbitrary;
pub mod check;
pub mod entity;
pub mod machine;
pub mod order;
pub mod packing;
pub mod plan;
pub mod planning;
pub mod schedule;
pub mod search;
pub mod text;
pub mod timeline;
pub mod trace;
pub mod units;

pub use entity::{ActionId, BufferId, Id, OpId, StorageId, Table, TensorId};
pub use units::{Bytes, Nanos};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
