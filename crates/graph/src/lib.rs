//! Networks as graphs of ops with shapes; their derivatives and traces.
//!
//! A [`Graph`] is one iteration of one network at fixed shapes: forward, backward and update. Its operations ([`OpKind`]) are
//! destination-passing: each reads whole tensors and writes whole tensors. Its kind alone determines how large they are ([`signature`]), which
//! outputs overwrite or may overwrite which inputs ([`OpKind::mutations`], [`OpKind::reusable`]), and how much work it is
//! ([`Graph::work`]). No tensor is a view: an op that reads a part of a tensor, or reads it at another shape, has that in its own extents.
//!
//! A [`Builder`] makes a graph operation by operation, or layer by layer ([`layers`]); [`Builder::finish_training`] adds derivatives
//! ([`autodiff`]) and updates. [`zoo`] has whole networks by name. [`Graph::trace`] gives planners what they need: the same operations
//! and tensors under the same numbers, without the mathematics.
//!
//! To add an operation: its kind and formula in [`op`], its operands in [`signature`], its derivative in [`autodiff`], its in-place facts in
//! [`inplace`] if it has any, its work in the file of [`Graph::work`].
//!
//! ```
//! use elbowroom_graph::layers::{ConvLayer, Part, WeightInit};
//! use elbowroom_graph::op::{Sgd, Window};
//! use elbowroom_graph::{Builder, Content, Mode, Optimizer};
//! use elbowroom_ir::Bytes;
//!
//! let mut b = Builder::new("tiny", Mode::Training);
//! let images = b.input("images", [8, 3, 32, 32], Content::Real);
//! let labels = b.input("labels", [8], Content::Class { classes: 10 });
//! let x = b.conv2d("conv", images, ConvLayer::plain(16, Window::square(3, 2, 1)))?;
//! let x = b.relu("relu", x)?;
//! let x = b.global_average_pool("pool", x)?.rows();
//! let weights = b.linear_weights("fc", [16, 10], true, WeightInit::FanInUniform);
//! let logits = b.linear("fc", x, weights)?;
//! let loss = b.cross_entropy("loss", [logits, labels], Part::ALL, 1.0 / 8.0)?;
//! let sgd = Optimizer::Sgd(Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0 });
//! let graph = b.finish_training(loss, sgd)?;
//! let trace = graph.trace(&|_, _| Bytes::ZERO)?;
//! assert_eq!(trace.ops().len(), graph.nodes.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod accumulate;
pub mod autodiff;
pub mod builder;
mod convolutions;
mod export;
mod extents;
pub mod graph;
mod groups;
pub mod init;
pub mod inplace;
pub mod layers;
mod mixed;
mod name;
mod normal;
pub mod op;
mod parameters;
pub mod philox;
mod precision;
mod recurrent;
pub mod shape;
pub mod signature;
mod tile;
mod work;
pub mod zoo;

pub use autodiff::Optimizer;
pub use builder::{BuildError, Builder, Mode, Var};
pub use convolutions::Convolutions;
pub use graph::{Content, Graph, GraphTensor, InputSpec, Node, OutputSpec, Parameter, Role, Tile, Whole};
pub use init::Init;
pub use mixed::Mixed;
pub use op::OpKind;
pub use precision::Precision;
pub use shape::{DType, Shape};
pub use tile::{Tileable, Tiling};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
