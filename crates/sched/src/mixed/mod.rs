//! Planners by fixed rules that offload some tensors and recompute others.
//!
//! - [`segments`]: the segments of [`sqrt`](crate::recompute::sqrt), with the tensors between them offloaded.
//! - [`supernn`]: the rules of SuperNeurons.

pub mod segments;
pub mod supernn;
