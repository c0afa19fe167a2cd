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
//!
//! # Example
//!
//! A plan that keeps both tensors of a one-op network, checked within 2 KiB of memory:
//!
//! ```
//! use std::sync::Arc;
//!
//! use elbowroom_ir::check::check;
//! use elbowroom_ir::text::File;
//!
//! let trace = r#"
//! elbowroom trace 1
//! name "an activation over its input"
//! s0 1024
//! s1 1024
//! t0 s0 "weights"
//! t1 s1 "output"
//! op0 relu "act" forward pure reads t0 makes t1
//! persistent t0->t0
//! "#;
//! let trace = trace.parse::<File>()?.into_trace()?.trace;
//! let plan = format!(
//!     r#"
//! elbowroom plan 1
//! trace {}
//! machine "tiny" memory 2048 align 64 host-memory 0 to-host 0 1 to-device 0 1 link separate flops-per-second 1 bytes-per-second 1 launch 0
//! height 2048
//! b0 1024 at 0
//! b1 1024 at 1024
//! home b0
//! a0 compute op0 reads b0 writes b1
//! a1 release b1
//! "#,
//!     trace.fingerprint()
//! );
//! let plan = plan.parse::<File>()?.into_plan()?;
//! let checked = check(Arc::new(trace), plan.machine, plan.plan)?;
//! assert_eq!(checked.plan().placement.height.get(), 2048);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
