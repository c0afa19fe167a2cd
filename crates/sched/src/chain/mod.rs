//! The chain of Beaumont et al., section 3: layers 0..n−1, forward ops F_i and backward ops B_i, activations x_0..x_n and their
//! gradients y_0..y_n.
//!
//! ```text
//! x_0 ─F_0─▶ x_1 ─F_1─▶ … ─F_{n-1}─▶ x_n        F_i needs x_i, makes x_{i+1}
//!                                     │ loss
//! y_0 ◀─B_0─ y_1 ◀─B_1─ … ◀─B_{n-1}─ y_n        B_i needs x_i, x_{i+1} and y_{i+1}, makes y_i
//! ```

pub mod bound;
pub(crate) mod division;
pub mod linearize;
pub(crate) mod ordered;
pub mod pieces;
pub mod relaxation;
pub mod segments;

use elbowroom_ir::planning::{CostSource, Costs};
use elbowroom_ir::trace::{Again, Op, Phase, Storage, Tensor, Trace, TraceData, TraceError, Work};
use elbowroom_ir::{Bytes, Id, Nanos, OpId, TensorId};

/// One layer of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// Time of F_i.
    pub forward: Nanos,
    /// Time of B_i.
    pub backward: Nanos,
    /// Bytes that F_i needs in addition to x_i and x_{i+1}.
    pub forward_extra: Bytes,
    /// Bytes that B_i needs in addition to x_i, x_{i+1}, y_i and y_{i+1}.
    pub backward_extra: Bytes,
}

/// A chain: n layers, n + 1 activations, n + 1 gradients. Sizes may be zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The layers.
    pub layers: Vec<Layer>,
    /// Sizes of x_0..x_n.
    pub activations: Vec<Bytes>,
    /// Sizes of y_0..y_n.
    pub gradients: Vec<Bytes>,
}

impl Chain {
    /// Sum of all times.
    pub fn total(&self) -> Nanos {
        self.layers.iter().map(|layer| layer.forward + layer.backward).sum()
    }

    /// The live memory at every op if everything is kept: (F_i, B_i) per layer. Section 3.2: m_F and m_B.
    pub fn live_memory(&self) -> Vec<(Bytes, Bytes)> {
        let mut kept = Bytes::ZERO;
        let each = |i: usize| {
            kept += self.activations[i];
            let with_output = kept + self.activations[i + 1];
            let gradients = self.gradients[i] + self.gradients[i + 1];
            let layer = &self.layers[i];
            (with_output + layer.forward_extra, with_output + gradients + layer.backward_extra)
        };
        (0..self.layers.len()).map(each).collect()
    }

    /// The largest live memory if everything is kept: M_peak.
    pub fn peak(&self) -> Bytes {
        self.live_memory()
            .into_iter()
            .map(|(forward, backward)| forward.max(backward))
            .max()
            .unwrap_or_default()
    }

    /// The largest live memory of a single op with everything else off the device.
    pub fn floor(&self) -> Bytes {
        let each = |(i, layer): (usize, &Layer)| {
            let activations = self.activations[i] + self.activations[i + 1];
            let gradients = self.gradients[i] + self.gradients[i + 1];
            activations + layer.forward_extra.max(layer.backward_extra + gradients)
        };
        self.layers.iter().enumerate().map(each).max().unwrap_or_default()
    }

    /// The chain as a trace: x_0 is made by an input op that takes no time, y_n by a loss op that takes none, and y_0 is read by a final
    /// op that takes none and runs once. The extra bytes of an op are an output that no op reads, so that a copy may begin
    /// while the op runs; a workspace, being alive at one position only, would hold such a copy up until its end. Forward ops may be
    /// recomputed. Tensors of zero bytes are left out; the ops that would read them follow the ops that would write them.
    pub fn to_trace(&self, name: &str) -> Result<ChainTrace, TraceError> {
        let mut data = TraceData { name: name.to_owned(), ..TraceData::default() };
        let mut nanos = Vec::new();
        let value = |data: &mut TraceData, name: String, bytes: Bytes| {
            (!bytes.is_zero()).then(|| {
                let storage = data.storages.push(Storage { bytes });
                data.tensors.push(Tensor { name, storage })
            })
        };
        let n = self.layers.len();
        let x: Vec<Option<TensorId>> =
            (0..=n).map(|i| value(&mut data, format!("x{i}"), self.activations[i])).collect();
        let y: Vec<Option<TensorId>> =
            (0..=n).map(|i| value(&mut data, format!("y{i}"), self.gradients[i])).collect();
        let mut push = |data: &mut TraceData, op: Op, time: Nanos| {
            data.ops.push(op);
            nanos.push(time);
        };

        // The ops that make x_i and y_i.
        let forward_op = |i: usize| OpId::new(i);
        let backward_op = |i: usize| OpId::new(2 * n + 1 - i);
        push(&mut data, op("input", Phase::Forward, Again::Pure, [], [x[0]]), Nanos::ZERO);
        for (i, layer) in self.layers.iter().enumerate() {
            let extra = value(&mut data, format!("F{i}.extra"), layer.forward_extra);
            let mut forward = op(&format!("F{i}"), Phase::Forward, Again::Pure, [x[i]], [x[i + 1], extra]);
            forward.after = unwritten([(x[i], forward_op(i))]);
            push(&mut data, forward, layer.forward);
        }
        let mut loss = op("loss", Phase::Backward, Again::Pure, [x[n]], [y[n]]);
        loss.after = unwritten([(x[n], forward_op(n))]);
        push(&mut data, loss, Nanos::ZERO);
        for (i, layer) in self.layers.iter().enumerate().rev() {
            let extra = value(&mut data, format!("B{i}.extra"), layer.backward_extra);
            let reads = [x[i], x[i + 1], y[i + 1]];
            let mut backward = op(&format!("B{i}"), Phase::Backward, Again::Pure, reads, [y[i], extra]);
            let makers = [forward_op(i), forward_op(i + 1), backward_op(i + 1)];
            backward.after = unwritten(std::iter::zip(reads, makers));
            push(&mut data, backward, layer.backward);
        }
        let mut done = op("done", Phase::Backward, Again::Never, [y[0]], []);
        done.after = unwritten([(y[0], backward_op(0))]);
        push(&mut data, done, Nanos::ZERO);
        let costs = Costs { nanos: nanos.into(), source: CostSource::Recorded };
        Ok(ChainTrace { trace: Trace::new(data)?, costs, activations: x, gradients: y })
    }
}

/// A chain as a trace, with its durations and the tensors that stand for x_i and y_i.
#[derive(Clone, Debug)]
pub struct ChainTrace {
    /// Input op, F_0..F_{n−1}, loss op, B_{n−1}..B_0, final op.
    pub trace: Trace,
    /// Durations of the ops.
    pub costs: Costs,
    /// x_0..x_n; `None` where the size is zero.
    pub activations: Vec<Option<TensorId>>,
    /// y_0..y_n; `None` where the size is zero.
    pub gradients: Vec<Option<TensorId>>,
}

/// The ops that would write those tensors that are left out, for the op that would read them.
fn unwritten(reads: impl IntoIterator<Item = (Option<TensorId>, OpId)>) -> Vec<OpId> {
    reads.into_iter().filter(|(tensor, _)| tensor.is_none()).map(|(_, maker)| maker).collect()
}

fn op<const R: usize, const W: usize>(
    name: &str,
    phase: Phase,
    again: Again,
    reads: [Option<TensorId>; R],
    outputs: [Option<TensorId>; W],
) -> Op {
    Op {
        name: name.to_owned(),
        kind: String::new(),
        phase,
        again,
        reads: reads.into_iter().flatten().collect(),
        outputs: outputs.into_iter().flatten().collect(),
        mutates: Vec::new(),
        may_reuse: Vec::new(),
        after: Vec::new(),
        workspace: Bytes::ZERO,
        work: Work::default(),
        line: String::new(),
    }
}
