//! Planners that offload some tensors and recompute others: two by fixed rules, and a dynamic program.
//!
//! - [`pofo`]: an optimal combination for chains, under the assumptions of its paper.
//! - [`segments`]: the segments of [`sqrt`](crate::recompute::sqrt), with the tensors between them offloaded.
//! - [`supernn`]: the rules of SuperNeurons.

pub mod pofo;
pub mod segments;
pub mod supernn;
