//! Mirror counts: Chen et al., Algorithm 2. A tensor with count m is not kept for the backward phase; m copies of it are made instead,
//! one after another, the last of which the backward phase reads. A tensor with count 0 is kept.
//!
//! Copy j of a tensor is made of copy min(j, m(u)) of every tensor u that its op reads. So with counts of 0 and 1 every evicted tensor is
//! recomputed once, from what is kept; with higher counts some of the tensors recomputed are evicted again, which is the recursion of
//! section 4.3. A copy is made just before it is needed first, after what it needs itself. A copy that no op needs is not made, nor is
//! any that can no longer be made because something it reads was overwritten: such a tensor is kept.
//!
//! ```
//! # use elbowroom_sched::{chain::{Chain, Layer}, recompute::mirror::Mirrors};
//! # use elbowroom_ir::{Bytes, Nanos};
//! let layer = Layer { forward: Nanos(1), backward: Nanos(2), ..Layer::default() };
//! let chain = Chain { layers: vec![layer; 4], activations: vec![Bytes(8); 5], gradients: vec![Bytes(8); 5] };
//! let chain = chain.to_trace("chain")?;
//! let mut mirrors = Mirrors::none(&chain.trace);
//! for tensor in [1, 3].into_iter().filter_map(|i| chain.activations[i]) {
//!     mirrors.mark(tensor, 1);
//! }
//! // F_2 and F_0 run once more.
//! assert_eq!(mirrors.sequence(&chain.trace).len(), chain.trace.ops().len() + 2);
//! # Ok::<(), elbowroom_ir::trace::TraceError>(())
//! ```

use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Id, OpId, Table, TensorId};

use crate::policy::Policy;
use crate::recompute::repeats::{self, Writer, base, fixed_ops, settle};

/// How many copies of every tensor are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrors {
    counts: Table<TensorId, u32>,
}

impl Mirrors {
    /// Every tensor is kept.
    pub fn none(trace: &Trace) -> Self {
        Self { counts: Table::filled(trace.tensors().len(), 0) }
    }

    /// Sets the count of a tensor. A tensor that no forward op makes is kept whatever its count, and one that the trace does not have is
    /// ignored.
    pub fn mark(&mut self, value: TensorId, count: u32) {
        if value.index() < self.counts.len() {
            self.counts[value] = count;
        }
    }

    /// The count of a tensor.
    pub fn count(&self, value: TensorId) -> u32 {
        self.counts.get(value).copied().unwrap_or(0)
    }

    /// The ops in order, with repeats.
    pub fn sequence(&self, trace: &Trace) -> Vec<OpId> {
        let (order, backward_start) = base(trace);
        let mut fixed = fixed_ops(trace);
        settle(trace, &mut fixed, &|writer| {
            let mut copies = Copies {
                trace,
                mirrors: self,
                backward_start: OpId(backward_start),
                made: vec![0; trace.ops().len()],
            };
            for (place, &op) in order.iter().enumerate() {
                if place >= backward_start as usize {
                    for &value in &trace.ops()[op].reads {
                        copies.need(writer, value);
                    }
                }
                writer.run(op);
            }
        })
    }

    /// The policy of [`sequence`](Self::sequence).
    pub fn policy(&self, trace: &Trace) -> Policy {
        repeats::policy(trace, self.sequence(trace))
    }
}

/// Makes copies when they are first needed.
struct Copies<'a> {
    trace: &'a Trace,
    mirrors: &'a Mirrors,
    backward_start: OpId,
    /// The highest copy that every op has made.
    made: Vec<u32>,
}

impl Copies<'_> {
    /// The op that must run for a copy of a tensor, if it has not.
    fn missing(&self, writer: &Writer<'_>, value: TensorId, copy: u32) -> Option<OpId> {
        let op = self.trace.producer(value).filter(|&op| op < self.backward_start)?;
        (self.made[op.index()] < copy && !writer.is_fixed(op)).then_some(op)
    }

    /// Makes the last copy of a tensor, and before it those that it is made of.
    fn need(&mut self, writer: &mut Writer<'_>, value: TensorId) {
        let copy = self.mirrors.count(value);
        let mut todo: Vec<(OpId, u32, usize)> =
            self.missing(writer, value, copy).map(|op| (op, copy, 0)).into_iter().collect();
        while let Some((op, copy, next)) = todo.last_mut() {
            let (op, copy) = (*op, *copy);
            let reads = &self.trace.ops()[op].reads;
            if let Some(&read) = reads.get(*next) {
                *next += 1;
                let of = copy.min(self.mirrors.count(read));
                todo.extend(self.missing(writer, read, of).map(|op| (op, of, 0)));
            } else {
                todo.pop();
                if self.made[op.index()] < copy {
                    self.made[op.index()] = copy;
                    writer.recompute(op);
                }
            }
        }
    }
}
