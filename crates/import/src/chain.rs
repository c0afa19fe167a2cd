//! Chain profiles: times and sizes of the layers of a chain, and the trace of one iteration over it.
//!
//! Layers are 0..n. `F_i` reads `x_i` and writes `x_{i+1}`; `B_i` reads `x_i`, `x_{i+1}` and the gradient `y_{i+1}` and writes `y_i`
//! (Beaumont et al., with the indices of the model). `x̄_{i+1}` is everything that `B_i` needs of layer `i`, including its output; the part
//! beyond `x_{i+1}` is a second result of `F_i`. `exF_i` and `exB_i` are workspaces.

use elbowroom_ir::planning::CostSource;
use elbowroom_ir::trace::Phase;
use elbowroom_ir::{Bytes, Nanos};
use serde::Deserialize;

use crate::detect::Format;
use crate::error::ImportError;
use crate::finish::{ImportDraft, duration, finish};
use crate::notes::Notes;
use crate::op_graph::{OpGraph, OpNode, Value};
use crate::storage_log::{input_op, results_op};
use crate::{Imported, Options, Source};

/// The profile of a chain of `n` layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// For people.
    pub name: String,
    /// The operation of each layer; as many as `forward`.
    pub labels: Vec<String>,
    /// Duration of every `F_i`.
    pub forward: Vec<Nanos>,
    /// Duration of every `B_i`.
    pub backward: Vec<Nanos>,
    /// Size of every `x_i`; one more than there are layers.
    pub x: Vec<Bytes>,
    /// Size of every `x̄_i`, at least that of `x_i`.
    pub saved: Vec<Bytes>,
    /// Size of every `y_i`; one more than there are layers.
    pub y: Vec<Bytes>,
    /// Workspace of every `F_i`.
    pub forward_extra: Vec<Bytes>,
    /// Workspace of every `B_i`.
    pub backward_extra: Vec<Bytes>,
}

#[derive(Deserialize)]
struct ChainFile {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    source: Option<String>,
    n: usize,
    #[serde(rename = "uF")]
    forward: Vec<f64>,
    #[serde(rename = "uB")]
    backward: Vec<f64>,
    x: Vec<u64>,
    #[serde(default)]
    xbar: Option<Vec<u64>>,
    #[serde(default)]
    y: Option<Vec<u64>>,
    #[serde(default, rename = "exF")]
    forward_extra: Option<Vec<u64>>,
    #[serde(default, rename = "exB")]
    backward_extra: Option<Vec<u64>>,
    #[serde(default)]
    labels: Vec<serde_json::Value>,
    #[serde(default)]
    units: ChainUnits,
}

#[derive(Deserialize)]
struct ChainUnits {
    time: String,
}

impl Default for ChainUnits {
    fn default() -> Self {
        Self { time: "ms".to_owned() }
    }
}

impl Chain {
    /// Reads a chain profile. `file` is named in messages.
    ///
    /// ```
    /// let text = br#"{"n": 1, "uF": [1.5], "uB": [2], "x": [0, 64], "units": {"time": "ms", "mem": "bytes"}}"#;
    /// let chain = elbowroom_import::Chain::read(text, "small.json")?;
    /// assert_eq!(chain.forward[0].get(), 1_500_000);
    /// # Ok::<(), elbowroom_import::ImportError>(())
    /// ```
    pub fn read(bytes: &[u8], file: &str) -> Result<Self, ImportError> {
        let bytes = crate::gzip::inflate(bytes, file)?;
        read(&Source { bytes: &bytes, file }).map(|(chain, _)| chain)
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.forward.len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.forward.is_empty()
    }

    /// One iteration: an input op for `x_0` if it has bytes, every `F_i`, a `loss` without duration that computes `y_n` from `x_n`, every
    /// `B_i` from the last to the first, and an op that reads `y_0`, which stays until then. Where a size is zero there is no tensor, but
    /// the ops still follow one another.
    fn graph(&self, options: &Options) -> OpGraph {
        let n = self.len();
        let mut graph = OpGraph::default();
        graph.data.name.clone_from(&self.name);
        let value = |graph: &mut OpGraph, name: String, bytes: Bytes| {
            (!bytes.is_zero()).then(|| graph.value(name, bytes.get()))
        };
        let mut x: Vec<Value> = Vec::with_capacity(n + 1);
        let mut saved = vec![Value::default()];
        let first = value(&mut graph, "x0".to_owned(), self.x[0]);
        let maker = first.map(|first| graph.push(input_op("x0", first, options), Nanos::ZERO));
        x.push(Value { tensor: first, maker });
        for i in 0..n {
            let node = self.node(i, Phase::Forward);
            let output = value(&mut graph, format!("x{}", i + 1), self.x[i + 1]);
            let rest = self.saved[i + 1].saturating_sub(self.x[i + 1]);
            let rest = value(&mut graph, format!("saved{}", i + 1), rest);
            let maker = Some(graph.op(&node, &[x[i]], output.into_iter().chain(rest).collect()));
            x.push(Value { tensor: output, maker });
            saved.push(Value { tensor: rest, maker });
        }
        let gradient = value(&mut graph, format!("y{n}"), self.y[n]);
        let mut y = match gradient {
            Some(gradient) => {
                let loss = OpNode {
                    name: "loss".to_owned(),
                    kind: "loss".to_owned(),
                    workspace: 0,
                    nanos: Nanos::ZERO,
                    ..self.node(n - 1, Phase::Backward)
                };
                Value { tensor: Some(gradient), maker: Some(graph.op(&loss, &[x[n]], vec![gradient])) }
            }
            // There is no op for the loss, which depends on the last output.
            None => Value { tensor: None, maker: x[n].maker },
        };
        for i in (0..n).rev() {
            let inputs = [x[i], x[i + 1], saved[i + 1], y];
            let gradient = value(&mut graph, format!("y{i}"), self.y[i]);
            let maker = graph.op(&self.node(i, Phase::Backward), &inputs, gradient.into_iter().collect());
            y = Value { tensor: gradient, maker: Some(maker) };
        }
        if let Some(gradient) = y.tensor {
            graph.push(results_op(vec![gradient], Phase::Backward), Nanos::ZERO);
        }
        graph
    }

    fn node(&self, i: usize, phase: Phase) -> OpNode {
        let (letter, nanos, extra) = match phase {
            Phase::Forward => ("F", self.forward[i], self.forward_extra[i]),
            _ => ("B", self.backward[i], self.backward_extra[i]),
        };
        OpNode {
            name: format!("{letter}{i}"),
            kind: self.labels[i].clone(),
            phase,
            bytes: 0,
            workspace: extra.get(),
            nanos,
            reads: Vec::new(),
        }
    }
}

fn read(source: &Source<'_>) -> Result<(Chain, Option<String>), ImportError> {
    let file: ChainFile = source.json()?;
    let n = file.n;
    if n == 0 {
        return Err(source.wrong("the chain has no layers"));
    }
    // Checked before anything is allocated by `n`.
    if file.forward.len() != n {
        return Err(source.wrong(format!("`uF` has {} entries where `n` says {n}", file.forward.len())));
    }
    let per_nano = match file.units.time.as_str() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        other => return Err(source.wrong(format!("the unit of time `{other}` is none of ns, us, ms and s"))),
    };
    let times = |name: &str, list: &[f64]| {
        if list.len() != n {
            return Err(source.wrong(format!("`{name}` has {} entries where {n} belong", list.len())));
        }
        let read = |&t: &f64| {
            duration(t, per_nano)
                .ok_or_else(|| source.wrong(format!("`{name}` holds {t}, which is no duration")))
        };
        list.iter().map(read).collect::<Result<Vec<_>, _>>()
    };
    let sizes = |name: &str, list: Option<Vec<u64>>, len: usize, else_: &[u64]| {
        let list = list.unwrap_or_else(|| else_.to_vec());
        if list.len() != len {
            return Err(source.wrong(format!("`{name}` has {} entries where {len} belong", list.len())));
        }
        Ok(list.into_iter().map(Bytes).collect::<Vec<_>>())
    };
    let nothing = vec![0; n];
    let chain = Chain {
        name: file.name.unwrap_or_else(|| source.stem().to_owned()),
        labels: (0..n)
            .map(|i| match file.labels.get(i) {
                Some(serde_json::Value::String(label)) => label.clone(),
                Some(other) => other.to_string(),
                None => String::new(),
            })
            .collect(),
        forward: times("uF", &file.forward)?,
        backward: times("uB", &file.backward)?,
        saved: sizes("xbar", file.xbar, n + 1, &file.x)?,
        y: sizes("y", file.y, n + 1, &file.x)?,
        forward_extra: sizes("exF", file.forward_extra, n, &nothing)?,
        backward_extra: sizes("exB", file.backward_extra, n, &nothing)?,
        x: sizes("x", Some(file.x), n + 1, &[])?,
    };
    if let Some(i) = (0..=n).find(|&i| chain.saved[i] < chain.x[i]) {
        return Err(source.wrong(format!("`xbar[{i}]` is smaller than `x[{i}]`, which is part of it")));
    }
    Ok((chain, file.source))
}

pub(crate) fn import(source: &Source<'_>, options: &Options) -> Result<Imported, ImportError> {
    let (chain, origin) = read(source)?;
    let graph = chain.graph(options);
    let mut notes = Notes::new(Format::Chain);
    notes.origin = origin;
    finish(
        source,
        ImportDraft { data: graph.data, nanos: graph.nanos, costs_from: CostSource::Recorded, notes },
    )
}
