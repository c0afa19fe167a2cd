//! Weights alone, in safetensors files whose names PyTorch's modules use: read to begin a training from, written for a module to load.
//!
//! The networks ResNet, VGG, DenseNet, Inception-v3, MobileNet-v2, EfficientNet-B0, ConvNeXt-Tiny and ViT-B/16 have the names and shapes of
//! torchvision's modules, LLaMA those of Hugging Face's `LlamaForCausalLM`, GPT those of its `GPT2LMHeadModel`, whose dense layers are
//! transposed and whose names begin with `transformer.`. A file that this crate saved, a checkpoint included, is read as well. What a module has
//! in addition is written too, so that `load_state_dict(…, strict=True)` accepts the file: the counters of batch normalizations and the tied
//! output layer of GPT.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use elbowroom_graph::{Graph, Node, OpKind, Role};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::{Map, Value, json};

use crate::checkpoint::{Entry, UnusedRows};
use crate::safetensors_head::{HeadError, SafetensorsHead};

/// What Hugging Face's names begin with.
const PREFIX: &str = "transformer.";
/// Dense layers that Hugging Face stores as `[inputs, outputs]`.
const TRANSPOSED: [&str; 4] =
    ["attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"];

/// Networks of the zoo that are another architecture than torchvision's of the same name: a tensor of torchvision's, and the difference.
const TORCHVISION: [(&str, &str, &str); 2] = [
    (
        "alexnet",
        "features.0.weight",
        "it has torchvision's AlexNet, which is that of 2014 (64, 192, 384, 256 and 256 channels, no response normalization); alexnet here is that of \
         2012 (96, 256, 384, 384, 256, with it), so no weights can be shared",
    ),
    (
        "googlenet",
        "inception3a.branch1.conv.weight",
        "it has torchvision's GoogLeNet, which normalizes by batches and has 3x3 convolutions for 5x5; googlenet here is that of the paper (response \
         normalization, biases, 5x5), so no weights can be shared",
    ),
];
/// What the first layers of Inception begin with here, and not there.
const STEM: &str = "stem.";

/// Why weights cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file cannot be read.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot save weights to {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is no safetensors file.
    #[error("{} is not a whole safetensors file: {why}; write one with safetensors.torch.save_file", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The file belongs to another network.
    #[error("{} does not fit the network: {why}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What differs, and what to do.
        why: String,
    },
}

/// How a tensor of a file becomes one of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Element by element; of a longer table the first rows.
    Plain,
    /// From columns to rows: `[inputs, outputs]`.
    Transposed,
}

/// An open file of weights, compared with a network.
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    file: File,
    data_start: u64,
    /// For each persistent tensor of the network its tensor in the file; `None` if it keeps its initial value.
    found: Vec<Option<(TensorInfo, Form)>>,
    /// Parameters that keep their initial values because the file has them for another number of classes.
    pub kept: Vec<String>,
    /// Rows of tables that the network does not use.
    pub unused: Vec<UnusedRows>,
}

/// Whether a network is of GPT's family.
fn is_gpt(graph: &Graph) -> bool {
    graph.persistent.iter().any(|parameter| parameter.name == "wte.weight")
}

/// How torchvision's network of the same name differs, if these are the names of its tensors.
fn torchvision(graph: &Graph, metadata: &Metadata) -> Option<&'static str> {
    let name = graph.name.split(' ').next().unwrap_or_default();
    TORCHVISION
        .iter()
        .find(|(network, tensor, _)| *network == name && metadata.info(tensor).is_some())
        .map(|(_, _, difference)| *difference)
}

/// The layers that give logits, auxiliary classifiers included: what the names of their weights begin with.
fn heads(graph: &Graph) -> Vec<&str> {
    let last = graph.persistent.iter().rfind(|parameter| parameter.role == Role::Weight);
    let losses = graph.nodes.values().filter(|node| matches!(node.kind.formula(), OpKind::CrossEntropy(_)));
    let weight = |loss: &Node| {
        let logits = loss.inputs.first()?;
        let layer = graph.nodes.values().find(|node| node.outputs.contains(logits))?;
        graph.persistent.iter().find(|parameter| Some(&parameter.begin) == layer.inputs.get(1))
    };
    let weights = losses.filter_map(weight).chain(last);
    weights.filter_map(|weight| Some(weight.name.rsplit_once('.')?.0)).collect()
}

impl Weights {
    /// Opens a file and finds the weights and statistics of a network in it. The layers that give logits keep their initial values if the file
    /// has them for another number of classes.
    ///
    /// # Errors
    ///
    /// [`WeightsError::Io`] or [`WeightsError::Format`] if the file cannot be read, [`WeightsError::Mismatch`] if a tensor is missing or has another
    /// shape or type.
    pub fn open(path: &Path, graph: &Graph) -> Result<Self, WeightsError> {
        let head = SafetensorsHead::open(path).map_err(|error| match error {
            HeadError::Io(source) => WeightsError::Io { path: path.to_owned(), source },
            HeadError::Format(why) => WeightsError::Format { path: path.to_owned(), why },
        })?;
        let SafetensorsHead { file, metadata, data_start, .. } = head;
        let (path, found) = (path.to_owned(), Vec::new());
        let mut weights = Self { path, file, data_start, found, kept: Vec::new(), unused: Vec::new() };
        weights.find(graph, &metadata)?;
        Ok(weights)
    }

    fn find(&mut self, graph: &Graph, metadata: &Metadata) -> Result<(), WeightsError> {
        let (gpt, heads) = (is_gpt(graph), heads(graph));
        let info = |name: &str| {
            let prefixed = || metadata.info(&format!("{PREFIX}{name}")).filter(|_| gpt);
            let bare = || name.strip_prefix(STEM).and_then(|bare| metadata.info(bare));
            metadata.info(name).or_else(prefixed).or_else(bare).cloned()
        };
        // Square layers have the same shape in both forms; the first layer of attention has three times as many outputs as inputs.
        let columns =
            info("h.0.attn.c_attn.weight").is_some_and(|info| info.shape.first() < info.shape.get(1));
        let path = self.path.clone();
        for (position, parameter) in graph.persistent.iter().enumerate() {
            if parameter.role == Role::Optimizer {
                self.found.push(None);
                continue;
            }
            let (name, shape) = (&parameter.name, graph.tensors[parameter.begin].shape.dims());
            let mismatch = |why| Err(WeightsError::Mismatch { path: path.clone(), why });
            let Some(info) = info(name) else {
                return mismatch(match torchvision(graph, metadata) {
                    Some(difference) => difference.to_owned(),
                    None => format!("it has no {name}; is it of another network, or of another size?"),
                });
            };
            if info.dtype != Dtype::F32 {
                return mismatch(format!("{name} is of type {:?}; convert it to 32-bit floats", info.dtype));
            }
            let layer = TRANSPOSED.iter().any(|end| gpt && name.ends_with(end));
            let form = match layer && columns {
                true => Form::Transposed,
                false => Form::Plain,
            };
            let theirs = info.shape.clone();
            let fits = match form {
                Form::Transposed => theirs.iter().rev().eq(shape),
                // Positions beyond the sequence are not used.
                Form::Plain if gpt && name == "wpe.weight" => {
                    theirs.len() == 2 && theirs[1] == shape[1] && theirs[0] >= shape[0]
                }
                Form::Plain => theirs == shape,
            };
            let classes = name.rsplit_once('.').is_some_and(|(layer, _)| heads.contains(&layer))
                && theirs.len() == shape.len()
                && theirs.get(1..) == shape.get(1..);
            match (fits, classes && !gpt) {
                (true, _) => {
                    if form == Form::Plain {
                        let used = Entry { name: name.clone(), dtype: info.dtype, shape: shape.to_vec() };
                        let rows =
                            UnusedRows::find(position, &used, (metadata, self.data_start), &info, &self.file);
                        let unreadable = |source| WeightsError::Io { path: path.clone(), source };
                        self.unused.extend(rows.map_err(unreadable)?);
                    }
                    self.found.push(Some((info, form)));
                }
                (false, true) => {
                    self.kept.push(name.clone());
                    self.found.push(None);
                }
                (false, false) => {
                    return mismatch(format!("{name} has shape {theirs:?} there and {shape:?} here"));
                }
            }
        }
        Ok(())
    }

    /// Reads the persistent tensor at this position of the network's list, of this shape, into a buffer of its size. `false` if it keeps its
    /// initial value.
    ///
    /// # Errors
    ///
    /// [`WeightsError::Io`] if the file cannot be read, [`WeightsError::Mismatch`] if a value is not finite.
    pub fn read(&self, position: usize, shape: &[usize], value: &mut [u8]) -> Result<bool, WeightsError> {
        let Some((info, form)) = self.found.get(position).and_then(Option::as_ref) else { return Ok(false) };
        let at = self.data_start + info.data_offsets.0 as u64;
        let unreadable = |source| WeightsError::Io { path: self.path.clone(), source };
        match form {
            Form::Plain => self.file.read_exact_at(value, at).map_err(unreadable)?,
            Form::Transposed => {
                let mut columns = vec![0; value.len()];
                self.file.read_exact_at(&mut columns, at).map_err(unreadable)?;
                transpose(&columns, value, [shape[1], shape[0]]);
            }
        }
        let floats =
            value.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        match floats.into_iter().find(|value| !value.is_finite()) {
            Some(found) => {
                Err(WeightsError::Mismatch { path: self.path.clone(), why: format!("it contains {found}") })
            }
            None => Ok(true),
        }
    }
}

/// Writes a matrix of `[rows, columns]` floats with rows and columns exchanged.
fn transpose(from: &[u8], to: &mut [u8], [rows, columns]: [usize; 2]) {
    for row in 0..rows {
        for column in 0..columns {
            let (source, target) = (4 * (row * columns + column), 4 * (column * rows + row));
            to[target..target + 4].copy_from_slice(&from[source..source + 4]);
        }
    }
}

/// One tensor of a file that PyTorch loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Its name in the module.
    pub name: String,
    /// Its shape in the module.
    pub shape: Vec<usize>,
    /// Where its values come from.
    content: Content,
}

/// Where the values of a tensor come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// The persistent tensor at this position.
    Persistent(usize, Form),
    /// The persistent tensor at this position, and behind it rows that the training does not use: those at this position of their list.
    Extended(usize, usize),
    /// The number of iterations, as a 64-bit integer.
    Iterations,
}

impl Saved {
    /// Its type: a 32-bit float, or a 64-bit integer for the counters of batch normalizations.
    pub fn dtype(&self) -> Dtype {
        if self.content == Content::Iterations { Dtype::I64 } else { Dtype::F32 }
    }
}

/// The tensors that a file of a network's weights has, sorted by name.
pub fn layout(graph: &Graph) -> Vec<Saved> {
    let gpt = is_gpt(graph);
    let mut tensors = Vec::new();
    for (position, parameter) in graph.persistent.iter().enumerate() {
        if parameter.role == Role::Optimizer {
            continue;
        }
        let mut shape = graph.tensors[parameter.begin].shape.dims().to_vec();
        let (mut name, mut form) = (parameter.name.clone(), Form::Plain);
        if gpt && TRANSPOSED.iter().any(|end| name.ends_with(end)) {
            form = Form::Transposed;
            shape.reverse();
        }
        let content = Content::Persistent(position, form);
        if gpt {
            if name == "wte.weight" {
                tensors.push(Saved { name: "lm_head.weight".to_owned(), shape: shape.clone(), content });
            }
            name.insert_str(0, PREFIX);
        }
        if let Some(bare) = name.strip_prefix(STEM) {
            name = bare.to_owned();
        }
        if let Some(norm) = name.strip_suffix(".running_var") {
            let name = format!("{norm}.num_batches_tracked");
            tensors.push(Saved { name, shape: Vec::new(), content: Content::Iterations });
        }
        tensors.push(Saved { name, shape, content });
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

/// Writes the weights and statistics of a network, and behind its tables the rows that it does not use. `read` fills a buffer with the
/// persistent tensor at a position; `iterations` is what the counters of batch normalizations show. An earlier file is replaced whole or not at
/// all.
///
/// # Errors
///
/// [`WeightsError::Write`] if the file cannot be written or `read` fails.
pub fn save(
    path: &Path,
    graph: &Graph,
    iterations: u64,
    unused: &[UnusedRows],
    mut read: impl FnMut(usize, &mut [u8]) -> io::Result<()>,
) -> Result<(), WeightsError> {
    let mut tensors = layout(graph);
    for tensor in &mut tensors {
        if let Content::Persistent(position, Form::Plain) = tensor.content
            && let Some(index) = unused.iter().position(|rows| rows.table == position)
        {
            tensor.shape[0] += unused[index].entry.shape[0];
            tensor.content = Content::Extended(position, index);
        }
    }
    let size = |tensor: &Saved| tensor.shape.iter().product::<usize>() * tensor.dtype().bitsize() / 8;
    // Integers of eight bytes come first, as the format's own writer orders them.
    let (counters, floats): (Vec<_>, Vec<_>) =
        tensors.iter().partition(|tensor| tensor.dtype() == Dtype::I64);
    let ordered: Vec<&Saved> = counters.into_iter().chain(floats).collect();
    let mut head = Map::new();
    head.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut offset = 0;
    for tensor in &ordered {
        let end = offset + size(tensor);
        let info =
            TensorInfo { dtype: tensor.dtype(), shape: tensor.shape.clone(), data_offsets: (offset, end) };
        head.insert(tensor.name.clone(), serde_json::to_value(info).unwrap_or(Value::Null));
        offset = end;
    }
    let failed = |source| WeightsError::Write { path: path.to_owned(), source };
    let mut head = serde_json::to_vec(&head).map_err(|error| failed(error.into()))?;
    head.resize(head.len().next_multiple_of(8), b' ');
    crate::files::write_whole(path, |out| {
        out.write_all(&(head.len() as u64).to_le_bytes())?;
        out.write_all(&head)?;
        for tensor in &ordered {
            let mut value = vec![0; size(tensor)];
            match tensor.content {
                Content::Iterations => value.copy_from_slice(&iterations.to_le_bytes()),
                Content::Persistent(position, Form::Plain) => read(position, &mut value)?,
                Content::Extended(position, index) => {
                    let own = value.len() - unused[index].entry.bytes();
                    read(position, &mut value[..own])?;
                    unused[index].read(&mut value[own..])?;
                }
                Content::Persistent(position, Form::Transposed) => {
                    let mut rows = vec![0; value.len()];
                    read(position, &mut rows)?;
                    let columns = tensor.shape.first().copied().unwrap_or(1);
                    transpose(&rows, &mut value, [rows.len() / 4 / columns.max(1), columns]);
                }
            }
            out.write_all(&value)?;
        }
        Ok(())
    })
    .map_err(failed)
}
