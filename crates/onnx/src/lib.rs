//! Reads networks from ONNX files and makes graphs of them that can be trained.
//!
//! A [`Model`] is a file. [`Model::build`] goes through the nodes that the first output needs, in order, and adds ops to a graph; a loss, derivatives and
//! updates follow. Nothing here computes with weights: a [`Weight`] says where the values of a parameter lie, and a training reads them.
//!
//! ```text
//! file ─▶ nodes ─▶ known numbers           shapes, scales, masks: computed here
//!               ─▶ tensors with views      transpositions and reshapes move nothing until an op needs another order
//!               ─▶ pending expressions     GELU, SiLU, dense layers with a bias, attention: one op of several nodes
//! ```
#![forbid(unsafe_code)]

mod constant;
mod error;
mod fold;
mod import;
mod merged;
mod node;
mod normalized;
mod ops;
mod proto;
mod selection;
mod value;
mod view;
mod weights;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use elbowroom_graph::Graph;
use elbowroom_graph::zoo::{Options, ZooError};
use prost::Message;
use prost::bytes::Bytes;

pub use error::OnnxError;
pub use weights::{Form, Place, Weight};

use weights::{Initializer, Kind};

/// Versions of the set of operations that are read.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=26;

/// Under this key PyTorch's exporter says whether a tensor of the file is a parameter or a buffer of its module.
const KIND: &str = "pkg.torch.export.graph_signature.InputSpec.kind";

/// What a network learns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The mean cross entropy of the output, taken as logits, with labels. A softmax at the end is a part of it.
    #[default]
    CrossEntropy,
    /// The mean squared difference between the output and targets of its extents.
    SquaredError,
}

impl Loss {
    /// The name from which it is parsed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CrossEntropy => "cross-entropy",
            Self::SquaredError => "mse",
        }
    }
}

impl FromStr for Loss {
    type Err = ZooError;

    fn from_str(name: &str) -> Result<Self, ZooError> {
        [Self::CrossEntropy, Self::SquaredError].into_iter().find(|loss| loss.name() == name).ok_or_else(
            || ZooError::Option {
                what: "loss",
                value: name.to_owned(),
                range: "cross-entropy or mse".to_owned(),
            },
        )
    }
}

/// A network in a file. It can be built for any batch that the file leaves open.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    graph: proto::Graph,
    opset: i64,
    initializers: HashMap<String, Initializer>,
}

/// A graph with the values that its parameters begin with.
#[derive(Debug)]
pub struct Built {
    /// The graph. Its weights and statistics have the names of the file's initializers.
    pub graph: Graph,
    /// Where the values of weights and statistics lie.
    pub weights: Vec<Weight>,
}

impl Model {
    /// Whether a name of a network means a file of this kind.
    pub fn is_named(name: &str) -> bool {
        Path::new(name).extension().is_some_and(|end| end.eq_ignore_ascii_case("onnx"))
    }

    /// Reads the network of a file. Weights are left in the file.
    ///
    /// # Errors
    /// [`OnnxError::Io`] if the file cannot be read, [`OnnxError::Format`] if it is no ONNX file, [`OnnxError::Network`] if it uses a version that
    /// is not read.
    pub fn open(path: &Path) -> Result<Self, OnnxError> {
        let unreadable = |source| OnnxError::Io { path: path.to_owned(), source };
        // A device or a pipe may have no end.
        if !fs::metadata(path).map_err(unreadable)?.is_file() {
            let why = "it is no file; name the file that torch.onnx.export wrote".to_owned();
            return Err(OnnxError::Format { path: path.to_owned(), why });
        }
        let bytes = fs::read(path).map_err(unreadable)?;
        let bytes = Bytes::from(bytes);
        let format = |why: String| OnnxError::Format { path: path.to_owned(), why };
        let refuse = |why: String| OnnxError::Network { path: path.to_owned(), why };
        let model = proto::Model::decode(bytes.clone())
            .map_err(|error| format(format!("{error}; export the network again with torch.onnx.export")))?;
        let Some(mut graph) = model.graph else {
            return Err(format("it holds no network; export it with torch.onnx.export".to_owned()));
        };
        let opset = model.opsets.iter().find(|opset| opset.domain.is_empty() || opset.domain == "ai.onnx");
        let Some(opset) = opset.map(|opset| opset.version) else {
            return Err(format("it states no version of ONNX's set of operations".to_owned()));
        };
        if !OPSETS.contains(&opset) {
            let (first, last) = (OPSETS.start(), OPSETS.end());
            return Err(refuse(format!(
                "it uses opset {opset}, and {first} to {last} are read; export it with opset_version=17"
            )));
        }
        let kind = |other: proto::ValueInfo| {
            let kind = other.metadata.iter().find(|entry| entry.key == KIND)?;
            Some((other.name, Kind::named(&kind.value)))
        };
        let kinds: HashMap<String, Kind> =
            std::mem::take(&mut graph.others).into_iter().filter_map(kind).collect();
        let mut initializers = HashMap::new();
        for tensor in std::mem::take(&mut graph.initializers) {
            let name = tensor.name.clone();
            let kind = kinds.get(&name).copied().unwrap_or(Kind::Unknown);
            let initializer = Initializer::of(tensor, kind, &bytes, path)?;
            if initializers.insert(name.clone(), initializer).is_some() {
                return Err(format(format!("two initializers are called `{name}`")));
            }
        }
        merged::separate(&mut graph, &mut initializers);
        normalized::join(&mut graph, &initializers);
        Ok(Self { path: path.to_owned(), graph, opset, initializers })
    }

    /// The graph of an iteration: of `options` the batch, the mode, the optimizer with its rate and decay (by default plain SGD of momentum 0.9
    /// with a rate of 0.01), and sizes that the file leaves open: the image size and the length of sequences.
    ///
    /// # Errors
    /// [`OnnxError::Op`] names the first operation that does not exist here or not in this form; [`OnnxError::Network`] and
    /// [`OnnxError::Build`] if the network as a whole does not fit together.
    pub fn build(&self, options: &Options, loss: Loss) -> Result<Built, OnnxError> {
        import::build(self, options, loss)
    }

    /// The options with what is used where they leave something open; `None` where the network has no such option.
    ///
    /// # Errors
    /// Those of [`build`](Self::build).
    pub fn resolved(&self, options: &Options) -> Result<Options, OnnxError> {
        selection::resolved(self, options)
    }

    /// The batch of its first input, if the file fixes it.
    pub fn batch(&self) -> Option<usize> {
        let inputs = self.graph.inputs.iter().filter(|input| !self.initializers.contains_key(&input.name));
        let first = inputs
            .flat_map(|input| input.r#type.as_ref()?.tensor.as_ref()?.shape.as_ref()?.dims.first())
            .next()?;
        usize::try_from(first.value?).ok().filter(|&batch| batch > 0)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the file without its end.
    pub fn name(&self) -> String {
        self.path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    fn refuse(&self, why: String) -> OnnxError {
        OnnxError::Network { path: self.path.clone(), why }
    }
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

impl Model {
    /// The version of the set of operations that the file uses.
    pub fn opset(&self) -> i64 {
        self.opset
    }
}
