//! Operations of ONNX, and the ops that they become.

mod attention;
mod batched;
mod choice;
mod convolution;
mod dense;
mod dropout;
mod einsum;
mod elementwise;
mod functions;
mod joined;
mod matrix;
mod normalization;
mod parts;
mod pooling;
mod resize;
mod shape;

use crate::error::Refusal;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Pending, Tensor, Value};

/// The operations that are read, as a refusal of another one lists them.
const NAMES: &str = "Abs, Add, Attention, AveragePool, BatchNormalization, Celu, Clip, Concat, Conv, ConvTranspose, DepthToSpace, Div, Dropout (also in parts), \
    Einsum (of two tensors), Elu, Erf (in GELU), Exp, Expand, Flatten, Gather, GatherND, Gelu, Gemm, GlobalAveragePool, GlobalMaxPool, Greater and Less \
    (than a number), GroupNormalization, HardSigmoid, HardSwish, InstanceNormalization, LayerNormalization, LeakyRelu, Log, LRN, MatMul, Max and Min \
    (with a number), MaxPool, Mish, Mul, Neg, Pad, Pow (2, 3, ½, −½, −1), PRelu, Reciprocal, ReduceL1, ReduceL2, ReduceMax, ReduceMean, ReduceSum, \
    ReduceSumSquare, Relu, Reshape, Resize, RMSNormalization, ScatterND (of known numbers), Selu, Sigmoid, Slice, Softmax, Softplus, SpaceToDepth, Split, \
    SplitToSequence, Sqrt, Squeeze, Sub, Swish, Tanh, Tile, Transpose, Unsqueeze, Upsample, Where (by known truths or a comparison), and computations \
    of shapes";

/// The results of a node.
pub fn add(import: &mut Import<'_>, node: &Node<'_>) -> Result<Vec<Value>, Refusal> {
    let value = match node.kind() {
        "Constant" => constant(node)?,
        "Identity" | "Cast" | "CastLike" => cast(import, node)?,
        "Dropout" => dropout::dropout(import, node)?,
        "RandomUniformLike" => dropout::random(import, node)?,
        "Less" if dropout::is_mask(import, node)? => dropout::mask(import, node)?,
        "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" => choice::comparison(import, node)?,
        "ScatterND" => choice::scattered(import, node)?,
        "Relu" | "Tanh" | "Gelu" | "Swish" | "Erf" | "Sigmoid" | "Clip" | "Neg" | "HardSigmoid"
        | "HardSwish" | "LeakyRelu" | "Elu" | "Abs" | "Exp" | "Log" | "Reciprocal" | "Softplus" | "Sqrt" => {
            functions::function(import, node)?
        }
        "Selu" | "Celu" | "Mish" => functions::compound(import, node)?,
        "Max" | "Min" => functions::bounded(import, node)?,
        "PRelu" => functions::parametric_relu(import, node)?,
        "Add" | "Sub" => elementwise::sum(import, node)?,
        "Mul" | "Div" => elementwise::product(import, node)?,
        "Conv" => convolution::conv(import, node)?,
        "ConvTranspose" => convolution::transposed(import, node)?,
        "MaxPool" | "AveragePool" | "GlobalMaxPool" | "GlobalAveragePool" => pooling::pool(import, node)?,
        "ReduceMean" | "ReduceSum" | "ReduceMax" | "ReduceL1" | "ReduceL2" | "ReduceSumSquare" => {
            pooling::reduced(import, node)?
        }
        "BatchNormalization" => normalization::batch(import, node)?,
        "LayerNormalization" | "RMSNormalization" => normalization::rows(import, node)?,
        "InstanceNormalization" | "GroupNormalization" => normalization::groups(import, node)?,
        "LRN" => normalization::response(import, node)?,
        "Gemm" => dense::gemm(import, node)?,
        "MatMul" => dense::matmul(import, node)?,
        "Einsum" => einsum::einsum(import, node)?,
        "Softmax" => attention::softmax(import, node)?,
        "Attention" => attention::whole(import, node)?,
        "Pow" => functions::power(import, node)?,
        "IsNaN" => attention::is_nan(import, node)?,
        "Where" => choice::choice(import, node)?,
        "Shape" | "Size" => shape::shape(import, node)?,
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => shape::reshape(import, node)?,
        "DepthToSpace" | "SpaceToDepth" => shape::blocks(import, node)?,
        "Transpose" => shape::transpose(import, node)?,
        "Gather" => parts::gather(import, node)?,
        "GatherND" => parts::gather_nd(import, node)?,
        "Slice" => parts::slice(import, node)?,
        "Split" => return parts::split(import, node),
        "SplitToSequence" => parts::sequence(import, node)?,
        "SequenceAt" => parts::sequence_at(import, node)?,
        "Pad" => joined::pad(import, node)?,
        "Resize" | "Upsample" => resize::resize(import, node)?,
        "Concat" => joined::concat(import, node)?,
        "Expand" => joined::expand(import, node)?,
        "Tile" => joined::tile(import, node)?,
        kind => return Err(missing(kind)),
    };
    Ok(vec![value])
}

/// The sentence about an operation that is not read.
fn missing(kind: &str) -> Refusal {
    let advice = match kind {
        "If" | "Loop" | "Scan" => {
            "export with fixed sizes other than the batch, so that nothing depends on a condition; "
        }
        "LSTM" | "GRU" | "RNN" => "the networks lstm and seq2seq have recurrent layers; ",
        kind if kind.contains("Quant") || kind.contains("Integer") => {
            "export the network before it is quantized; "
        }
        _ => "",
    };
    format!("it is not supported; {advice}supported are {NAMES}. A network with another operation can be written with elbowroom::nn").into()
}

/// The ops of an expression that nothing was added to.
pub fn realize(import: &mut Import<'_>, name: &str, pending: Pending) -> Result<Tensor, Refusal> {
    match pending {
        Pending::Product { x, weight } => dense::product(import, name, x, &weight, None),
        Pending::Scores(scores) => attention::realize(import, name, scores),
        other => functions::realize(import, name, other),
    }
}

fn constant(node: &Node<'_>) -> Result<Value, Refusal> {
    node.constant().map(Value::Constant).ok_or_else(|| {
        "it holds no numbers of a type that is read (float, double, int32, int64, bool)".into()
    })
}

/// The same tensor: floats stay floats, and whole numbers whole.
fn cast(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let value = import.value(node.required(0)?)?;
    let classes = matches!(&value, Value::Tensor(tensor) if tensor.classes);
    let whole = match node.kind() {
        "Cast" => match node.int("to") {
            Some(1) => Some(false),
            Some(6 | 7) => Some(true),
            _ => return Err("only casts to 32-bit floats and to whole numbers are supported; export the network as float32".into()),
        },
        _ => None,
    };
    match whole.is_none_or(|whole| whole == classes) {
        true => Ok(value),
        false => Err("it casts between floats and whole numbers".into()),
    }
}
