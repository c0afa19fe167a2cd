//! What is computed: networks as graphs of operations with shapes, derivatives and traces.
#![forbid(unsafe_code)]

pub mod graph;
pub mod init;
pub mod op;
pub mod philox;
pub mod shape;

pub use graph::{Content, Graph, InputSpec, Node, OutputSpec, Parameter, Role, Value};
pub use init::Init;
pub use op::OpKind;
pub use shape::{DType, Shape};
