//! Graphs of Chainer networks: variables with exact bytes, functions with unit times (convolutions 10, all others 1).
//!
//! One JSON object: `vars` (`id`, `bytes`, `name` of a parameter or null) and `functions` (`dir`, `op`, `ins` as pairs of a variable and
//! the part of it that is read, `outs`, `t`), in no particular order. A backward function reads `gradient`s, `input`s and `output`s of its
//! forward function and writes a gradient for each of its `outs`.
//!
//! Variables without a producing function are parameters (persistent) if they have a name; otherwise they are the batch, which has no
//! gradients. Functions run branch by branch, as in the program that built the graph; backward functions in the reverse order. If several
//! backward functions write a gradient of one variable, each one after the first adds to it and may do so in place.

use elbowroom_ir::planning::CostSource;
use elbowroom_ir::trace::{Again, Op, Persistent, Phase, Reuse, Work};
use elbowroom_ir::{Bytes, Nanos, OpId, TensorId};
use serde::Deserialize;

use crate::detect::Format;
use crate::error::ImportError;
use crate::finish::{ImportDraft, duration, finish};
use crate::notes::Notes;
use crate::op_graph::{OpGraph, Value, after};
use crate::storage_log::{input_op, results_op};
use crate::{Imported, Options, Source};

#[derive(Deserialize)]
struct ChainerFile {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    source: Option<String>,
    vars: Vec<Variable>,
    functions: Vec<ChainerFunction>,
}

#[derive(Deserialize)]
struct Variable {
    id: usize,
    bytes: u64,
    #[serde(default)]
    name: Option<String>,
}

#[derive(Deserialize)]
struct ChainerFunction {
    dir: Direction,
    op: String,
    ins: Vec<(usize, VariablePart)>,
    outs: Vec<usize>,
    t: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Forward,
    Backward,
}

/// The part of a variable that a function reads.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
enum VariablePart {
    #[serde(rename = "gradient")]
    Gradient,
    #[serde(rename = "input", alias = "output", alias = "_")]
    Value,
}

pub fn import(source: &Source<'_>, options: &Options) -> Result<Imported, ImportError> {
    let mut file: ChainerFile = source.json()?;
    if file.vars.iter().enumerate().any(|(index, variable)| variable.id != index) {
        return Err(source.wrong("the ids of `vars` must count up from 0"));
    }
    let count = file.vars.len();
    for (index, function) in file.functions.iter().enumerate() {
        let named = function.ins.iter().map(|&(variable, _)| variable).chain(function.outs.iter().copied());
        if let Some(variable) = named.into_iter().find(|&v| v >= count) {
            return Err(source.wrong(format!(
                "function {index} ({}) names variable {variable}, which is not there",
                function.op
            )));
        }
        if function.dir == Direction::Forward
            && function.ins.iter().any(|&(_, part)| part == VariablePart::Gradient)
        {
            return Err(source
                .wrong(format!("function {index} ({}) is a forward one and reads a gradient", function.op)));
        }
    }
    let name = file.name.take().unwrap_or_else(|| source.stem().to_owned());
    let mut notes = Notes::new(Format::ChainerGraph);
    notes.origin = file.source.take();
    notes.remarks.push(format!(
        "Times are units (convolutions 10, all others 1), read as {} each.",
        options.time_unit
    ));
    let mut builder = ChainerBuilder::new(&file, options).map_err(|what| source.wrong(what))?;
    builder.graph.data.name = name;
    builder.run().map_err(|what| source.wrong(what))?;
    let OpGraph { data, nanos } = builder.graph;
    finish(source, ImportDraft { data, nanos, costs_from: CostSource::Recorded, notes })
}

struct ChainerBuilder<'a> {
    file: &'a ChainerFile,
    options: &'a Options,
    graph: OpGraph,
    /// The forward function that produces a variable.
    maker: Vec<Option<usize>>,
    /// Each variable, and its current gradient.
    values: Vec<Value>,
    gradients: Vec<Value>,
}

impl<'a> ChainerBuilder<'a> {
    fn new(file: &'a ChainerFile, options: &'a Options) -> Result<Self, String> {
        let mut maker = vec![None; file.vars.len()];
        for (index, function) in
            file.functions.iter().enumerate().filter(|(_, f)| f.dir == Direction::Forward)
        {
            for &out in &function.outs {
                if let Some(other) = maker[out].replace(index) {
                    return Err(format!("variable {out} is made by functions {other} and {index}"));
                }
            }
        }
        let (values, gradients) =
            (vec![Value::default(); file.vars.len()], vec![Value::default(); file.vars.len()]);
        Ok(Self { file, options, graph: OpGraph::default(), maker, values, gradients })
    }

    fn run(&mut self) -> Result<(), String> {
        let order = self.forward_order()?;
        let mut place = vec![0; self.file.functions.len()];
        order.iter().enumerate().for_each(|(p, &function)| place[function] = p);
        self.leaves();
        for &function in &order {
            self.forward(function)?;
        }
        let mut backward = Vec::new();
        for (index, function) in
            self.file.functions.iter().enumerate().filter(|(_, f)| f.dir == Direction::Backward)
        {
            let of = function
                .ins
                .iter()
                .filter(|(_, part)| *part == VariablePart::Gradient)
                .find_map(|&(v, _)| self.maker[v]);
            let of = of.ok_or_else(|| {
                format!("function {index} ({}) reads no gradient of a variable that is made", function.op)
            })?;
            backward.push((place[of], of, index));
        }
        backward.sort_unstable_by(|a, b| b.cmp(a));
        for (_, of, index) in backward {
            self.backward(index, of)?;
        }
        let parameters = (0..self.file.vars.len()).filter(|&v| self.maker[v].is_none());
        let results: Vec<TensorId> = parameters.filter_map(|v| self.gradients[v].tensor).collect();
        if !results.is_empty() {
            self.graph.push(results_op(results, Phase::Backward), Nanos::ZERO);
        }
        Ok(())
    }

    /// Forward functions in data-flow order, otherwise one branch after the other.
    fn forward_order(&self) -> Result<Vec<usize>, String> {
        #[derive(Clone, Copy, PartialEq)]
        enum Seen {
            No,
            Open,
            Done,
        }
        let functions = &self.file.functions;
        let mut read = vec![false; self.file.vars.len()];
        let forward = || functions.iter().enumerate().filter(|(_, f)| f.dir == Direction::Forward);
        forward().flat_map(|(_, f)| &f.ins).for_each(|&(v, _)| read[v] = true);
        // From the ends of the network backwards; the rest follows.
        let ends = forward().filter(|(_, f)| f.outs.iter().all(|&v| !read[v])).map(|(index, _)| index);
        let mut seen = vec![Seen::No; functions.len()];
        let mut order = Vec::new();
        for start in ends.chain(forward().map(|(index, _)| index)) {
            let mut stack = vec![(start, 0)];
            while let Some((function, next)) = stack.pop() {
                if next == 0 {
                    match seen[function] {
                        Seen::Done => continue,
                        Seen::Open => {
                            return Err(format!(
                                "function {function} ({}) reads, by some way round, its own result",
                                functions[function].op
                            ));
                        }
                        Seen::No => seen[function] = Seen::Open,
                    }
                }
                match functions[function].ins.get(next) {
                    Some(&(variable, _)) => {
                        stack.push((function, next + 1));
                        if let Some(maker) = self.maker[variable] {
                            stack.push((maker, 0));
                        }
                    }
                    None => {
                        seen[function] = Seen::Done;
                        order.push(function);
                    }
                }
            }
        }
        Ok(order)
    }

    /// Tensors without a producing function: parameters and the batch.
    fn leaves(&mut self) {
        let file = self.file;
        for (index, variable) in file.vars.iter().enumerate() {
            if self.maker[index].is_some() || variable.bytes == 0 {
                continue;
            }
            let name = variable.name.clone().unwrap_or_else(|| format!("input {index}"));
            let value = self.graph.value(name.clone(), variable.bytes);
            self.values[index] = Value::of(value);
            if variable.name.is_some() {
                self.graph.data.persistent.push(Persistent { begin: value, end: value });
            } else {
                self.graph.push(input_op(&name, value, self.options), Nanos::ZERO);
            }
        }
    }

    fn forward(&mut self, index: usize) -> Result<(), String> {
        let file = self.file;
        let function = &file.functions[index];
        let inputs: Vec<Value> = function.ins.iter().map(|&(v, _)| self.values[v]).collect();
        let mut outputs = Vec::new();
        for &out in &function.outs {
            let bytes = file.vars[out].bytes;
            let tensor = (bytes > 0).then(|| self.graph.value(format!("v{out}"), bytes));
            self.values[out].tensor = tensor;
            outputs.extend(tensor);
        }
        let op = self.push(index, index, Phase::Forward, &inputs, outputs, Vec::new())?;
        function.outs.iter().for_each(|&out| self.values[out].maker = Some(op));
        Ok(())
    }

    fn backward(&mut self, index: usize, of: usize) -> Result<(), String> {
        let file = self.file;
        let function = &file.functions[index];
        let mut inputs = Vec::new();
        for &(variable, part) in &function.ins {
            inputs.push(match part {
                VariablePart::Value => self.values[variable],
                VariablePart::Gradient => self.gradient(variable),
            });
        }
        let (mut outputs, mut may_reuse) = (Vec::new(), Vec::new());
        let data_input = |v: usize| self.maker[v].is_none() && file.vars[v].name.is_none();
        let wanted: Vec<usize> = function.outs.iter().copied().filter(|&v| !data_input(v)).collect();
        for &variable in &wanted {
            let bytes = file.vars[variable].bytes;
            let sum = (bytes > 0).then(|| self.graph.value(format!("v{variable}.gradient"), bytes));
            let so_far = std::mem::replace(&mut self.gradients[variable].tensor, sum);
            inputs.push(Value { tensor: so_far, ..self.gradients[variable] });
            may_reuse.extend(so_far.zip(sum).map(|(input, output)| Reuse { input, output }));
            outputs.extend(sum);
        }
        let op = self.push(index, of, Phase::Backward, &inputs, outputs, may_reuse)?;
        wanted.iter().for_each(|&variable| self.gradients[variable].maker = Some(op));
        Ok(())
    }

    /// The gradient of a variable. If no function produces it, it is the gradient of the loss, which is given.
    fn gradient(&mut self, variable: usize) -> Value {
        let row = &self.file.vars[variable];
        if self.gradients[variable].tensor.is_none() && row.bytes > 0 {
            let value = self.graph.value(format!("v{variable}.gradient"), row.bytes);
            let mut seed = input_op(&format!("v{variable}.gradient"), value, self.options);
            "fill".clone_into(&mut seed.kind);
            seed.phase = Phase::Backward;
            seed.again = Again::Pure;
            let maker = Some(self.graph.push(seed, Nanos::ZERO));
            self.gradients[variable] = Value { tensor: Some(value), maker };
        } else if row.bytes == 0 && self.gradients[variable].maker.is_none() {
            // A gradient that is given has no op if it has no bytes. It depends on the variable.
            self.gradients[variable] = self.values[variable];
        }
        self.gradients[variable]
    }

    /// Adds an op; `layer` is the forward function whose random numbers it draws, if any.
    fn push(
        &mut self,
        index: usize,
        layer: usize,
        phase: Phase,
        inputs: &[Value],
        outputs: Vec<TensorId>,
        may_reuse: Vec<Reuse>,
    ) -> Result<OpId, String> {
        let function = &self.file.functions[index];
        let nanos = duration(function.t, self.options.time_unit.get() as f64).ok_or_else(|| {
            format!("function {index} ({}) takes {}, which is no duration", function.op, function.t)
        })?;
        let direction = if phase == Phase::Forward { "" } else { ".backward" };
        Ok(self.graph.push(
            Op {
                name: format!("{}{direction}@{index}", function.op),
                kind: format!("{}{direction}", function.op),
                phase,
                // The file lists no mask, so dropout's backward function draws the same numbers again.
                again: if function.op == "Dropout" {
                    Again::Rng { stream: layer as u64 }
                } else {
                    Again::Pure
                },
                reads: inputs.iter().filter_map(|value| value.tensor).collect(),
                outputs,
                mutates: Vec::new(),
                may_reuse,
                after: after(inputs),
                workspace: Bytes::ZERO,
                work: Work::default(),
                line: String::new(),
            },
            nanos,
        ))
    }
}
