//! What is computed: networks as graphs of operations with shapes, derivatives and traces.
#![forbid(unsafe_code)]

pub mod autodiff;
pub mod builder;
mod export;
pub mod graph;
pub mod init;
pub mod inplace;
pub mod layers;
pub mod op;
pub mod philox;
pub mod shape;
pub mod signature;
mod work;
pub mod zoo;

pub use autodiff::Optimizer;
pub use builder::{BuildError, Builder, Mode, Var};
pub use graph::{Content, Graph, InputSpec, Node, OutputSpec, Parameter, Role, Value};
pub use init::Init;
pub use op::OpKind;
pub use shape::{DType, Shape};
