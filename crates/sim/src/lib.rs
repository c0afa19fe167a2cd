//! What a memory plan costs: lifetimes, live memory, time on every stream, and lower bounds.
//!
//! [`liveness`] turns a schedule into a packing problem. [`live`] computes live memory at every position and the buffers alive at the peak.
//! [`simulate`](mod@simulate) runs the streams exactly as the model prescribes and returns a
//! [`Timeline`](elbowroom_ir::timeline::Timeline), as a measured run does. [`cost`] estimates durations for traces without measurements, on
//! the machines of [`presets`]. [`bound`] computes lower bounds of the iteration time.
//!
//! This crate makes no decisions and proves nothing: `elbowroom_ir::check` proves legality and shares no code with this crate.
//!
//! # Example
//!
//! The estimated duration of one matrix product on two machines:
//!
//! ```
//! use elbowroom_ir::planning::Costs;
//! use elbowroom_ir::text::File;
//! use elbowroom_sim::{cost::Roofline, presets};
//!
//! let text = r#"
//! elbowroom trace 1
//! name "one product"
//! s0 4194304
//! s1 4194304
//! t0 s0 "weights"
//! t1 s1 "output"
//! op0 matmul "fc" forward pure reads t0 makes t1 flops 2147483648 moved 12582912
//! persistent t0->t0
//! "#;
//! let trace = text.parse::<File>()?.into_trace()?.trace;
//! let v100 = presets::machine("v100").expect("a preset");
//! let p100 = presets::machine("p100").expect("a preset");
//! let estimate = |machine| Costs::estimate(&trace, &Roofline::new(machine)).total();
//! assert!(estimate(&v100) < estimate(&p100));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod bound;
pub mod cost;
pub mod live;
pub mod liveness;
pub mod presets;
pub mod simulate;

pub use simulate::{SimulateError, simulate};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
