//! Planners that offload tensors and recompute nothing.
//!
//! - [`greedy`], [`dynprog`], [`vdnn`]: published for chains of layers; they plan the chain of [`linearize`](crate::chain::linearize).
//! - [`eager`]: the same tensor by tensor, for activations that leave in part.
//! - [`tflms`]: large model support in TensorFlow, by distance in the order of ops.
//! - [`autoswap`]: SmartPool's AutoSwap by its four scores, and by scores that Bayesian optimization weighs.
//! - [`floor`]: offloads everything that can be offloaded, which gives the least live memory of any plan without recompute.

pub mod autoswap;
pub mod dynprog;
pub mod eager;
pub mod floor;
pub mod greedy;
pub mod tflms;
pub mod vdnn;
