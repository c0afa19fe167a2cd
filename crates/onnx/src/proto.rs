//! The messages of an ONNX file, with the fields that are read here: numbers and types as in `onnx.proto` of the ONNX project.

use prost::Message;
use prost::bytes::Bytes;

/// A whole file.
#[derive(Clone, PartialEq, Message)]
pub struct Model {
    #[prost(message, optional, tag = "7")]
    pub graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub opsets: Vec<Opset>,
}

/// Which version of which set of operations is used.
#[derive(Clone, PartialEq, Message)]
pub struct Opset {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// The operations in an order in which they can run.
#[derive(Clone, PartialEq, Message)]
pub struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<Node>,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub initializers: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub inputs: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub outputs: Vec<ValueInfo>,
    /// What the exporter says of other tensors.
    #[prost(message, repeated, tag = "13")]
    pub others: Vec<ValueInfo>,
}

/// One operation.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    #[prost(string, repeated, tag = "1")]
    pub inputs: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub outputs: Vec<String>,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub kind: String,
    #[prost(message, repeated, tag = "5")]
    pub attributes: Vec<Attribute>,
    #[prost(string, tag = "7")]
    pub domain: String,
    /// What the exporter says of it.
    #[prost(message, repeated, tag = "9")]
    pub metadata: Vec<Entry>,
}

/// A parameter of an operation.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(float, optional, tag = "2")]
    pub float: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub int: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub string: Option<Bytes>,
    #[prost(message, optional, tag = "5")]
    pub tensor: Option<Tensor>,
    #[prost(float, repeated, tag = "7")]
    pub floats: Vec<f32>,
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
}

/// A tensor with its elements, in one of several fields.
#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    #[prost(float, repeated, tag = "4")]
    pub floats: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub ints: Vec<i32>,
    #[prost(int64, repeated, tag = "7")]
    pub longs: Vec<i64>,
    #[prost(string, tag = "8")]
    pub name: String,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw: Option<Bytes>,
    #[prost(double, repeated, tag = "10")]
    pub doubles: Vec<f64>,
    #[prost(message, repeated, tag = "13")]
    pub external: Vec<Entry>,
    /// 1 where the elements lie in another file.
    #[prost(int32, tag = "14")]
    pub location: i32,
}

/// A key with its value.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A tensor of the graph.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<Type>,
    #[prost(message, repeated, tag = "4")]
    pub metadata: Vec<Entry>,
}

/// The type of an input or an output.
#[derive(Clone, PartialEq, Message)]
pub struct Type {
    #[prost(message, optional, tag = "1")]
    pub tensor: Option<TensorType>,
}

/// The type of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    #[prost(int32, tag = "1")]
    pub element: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<Shape>,
}

/// Extents.
#[derive(Clone, PartialEq, Message)]
pub struct Shape {
    #[prost(message, repeated, tag = "1")]
    pub dims: Vec<Dimension>,
}

/// One extent: a number or a name.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    #[prost(int64, optional, tag = "1")]
    pub value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// Numbers of element types.
pub mod element {
    pub const FLOAT: i32 = 1;
    pub const INT32: i32 = 6;
    pub const INT64: i32 = 7;
    pub const BOOL: i32 = 9;
    pub const DOUBLE: i32 = 11;

    /// Bytes of an element of a type of numbers that is read.
    pub const fn size(number: i32) -> usize {
        match number {
            BOOL => 1,
            FLOAT | INT32 => 4,
            _ => 8,
        }
    }

    /// The name of a type.
    pub fn name(number: i32) -> &'static str {
        const NAMES: [&str; 17] = [
            "undefined",
            "float",
            "uint8",
            "int8",
            "uint16",
            "int16",
            "int32",
            "int64",
            "string",
            "bool",
            "float16",
            "double",
            "uint32",
            "uint64",
            "complex64",
            "complex128",
            "bfloat16",
        ];
        usize::try_from(number).ok().and_then(|number| NAMES.get(number)).copied().unwrap_or("a newer type")
    }
}
