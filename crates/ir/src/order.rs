//! An order in which the ops of an iteration can run, and what follows from it: the last use of every tensor, and which tensors can be
//! recomputed.
//!
//! A tensor that is evicted before its last use can be recomputed only if its op may run more than once and all operands of that op are available
//! whenever the tensor may be missing: either present or recomputable in turn. A tensor that has been overwritten is not available any
//! more.

use crate::trace::{Again, Fingerprint, Trace};
use crate::{Id, OpId, StorageId, Table, TensorId};

/// An index in an order.
pub type OrderIndex = u32;

/// Why ops cannot run in an order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// Not every op of the trace exactly once.
    #[error(
        "an order names every op of its trace once, but this one has {found} ops for {ops}, or names one twice"
    )]
    Incomplete {
        /// Ops of the trace.
        ops: usize,
        /// Ops of the order.
        found: usize,
    },
    /// An op reads a tensor that does not exist at that point.
    #[error("{op} would read {tensor} before it is made or after it was written over")]
    NotThere {
        /// The op.
        op: OpId,
        /// The tensor.
        tensor: TensorId,
    },
    /// An op runs before one that it has to follow.
    #[error("{op} would run before {other}, which it has to follow")]
    TooEarly {
        /// The op.
        op: OpId,
        /// The op that it has to follow.
        other: OpId,
    },
}

/// Every op of a trace once, each after the producers of its inputs and the ops that it has to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    trace: Fingerprint,
    ops: Vec<OpId>,
    last_use: Table<TensorId, OrderIndex>,
    again: Table<TensorId, bool>,
}

impl Order {
    /// Checks an order and derives last uses and recomputability.
    ///
    /// # Errors
    /// The order does not name every op once, an op reads a tensor that does not exist at that point, or it runs before one that it has to
    /// follow.
    pub fn new(trace: &Trace, ops: Vec<OpId>) -> Result<Self, OrderError> {
        replay(trace, &ops)?;
        let values = trace.tensors().len();
        let mut last_use: Table<TensorId, OrderIndex> = Table::filled(values, 0);
        let mut overwritten: Table<TensorId, OrderIndex> = Table::filled(values, OrderIndex::MAX);
        for (place, &op) in (0..).zip(&ops) {
            let op = &trace.ops()[op];
            op.reads.iter().chain(&op.outputs).for_each(|&value| last_use[value] = place);
            op.mutates.iter().for_each(|mutation| overwritten[mutation.old] = place);
        }
        for pair in trace.persistent() {
            last_use[pair.end] = OrderIndex::MAX;
            if overwritten[pair.begin] == OrderIndex::MAX {
                last_use[pair.begin] = OrderIndex::MAX;
            }
        }
        // Until when each tensor is available: as long as all operands of its op are, if it can be recomputed; otherwise while it is
        // present.
        let mut until: Table<TensorId, OrderIndex> =
            trace.tensors().ids().map(|value| overwritten[value].min(last_use[value])).collect();
        for pair in trace.persistent() {
            until[pair.begin] = overwritten[pair.begin];
        }
        let once = runs_once(trace);
        let mut again = Table::filled(values, false);
        for &op in ops.iter().filter(|&&op| !once[op]) {
            let row = &trace.ops()[op];
            let inputs = row.reads.iter().map(|&read| until[read]).min().unwrap_or(OrderIndex::MAX);
            for &output in &row.outputs {
                if overwritten[output] == OrderIndex::MAX && inputs >= last_use[output] {
                    again[output] = true;
                    until[output] = inputs;
                }
            }
        }
        Ok(Self { trace: trace.fingerprint(), ops, last_use, again })
    }

    /// The trace whose ops these are.
    pub fn trace(&self) -> Fingerprint {
        self.trace
    }

    /// The ops, first to last.
    pub fn ops(&self) -> &[OpId] {
        &self.ops
    }

    /// The index of the last op that reads the tensor, or of its producer if none does. [`OrderIndex::MAX`] for a tensor that the next
    /// iteration reads, and for one that exists at the start of this one and is never overwritten.
    pub fn last_use(&self, value: TensorId) -> OrderIndex {
        self.last_use[value]
    }

    /// Whether the tensor can be recomputed whenever it is missing before its last use, and also afterwards in order to recompute other
    /// such tensors.
    pub fn can_recompute(&self, value: TensorId) -> bool {
        self.again[value]
    }
}

/// The ops that may run only once: those with side effects, those that overwrite a tensor, and the producers of persistent tensors.
pub fn runs_once(trace: &Trace) -> Table<OpId, bool> {
    let mut once: Table<OpId, bool> =
        trace.ops().values().map(|op| op.again == Again::Never || !op.mutates.is_empty()).collect();
    for op in trace.persistent().iter().filter_map(|pair| trace.producer(pair.end)) {
        once[op] = true;
    }
    once
}

/// Replays the ops on the contents of the storages.
fn replay(trace: &Trace, ops: &[OpId]) -> Result<(), OrderError> {
    let incomplete = OrderError::Incomplete { ops: trace.ops().len(), found: ops.len() };
    if ops.len() != trace.ops().len() {
        return Err(incomplete);
    }
    let mut holds: Table<StorageId, Option<TensorId>> = Table::filled(trace.storages().len(), None);
    for pair in trace.persistent() {
        holds[trace.storage(pair.begin)] = Some(pair.begin);
    }
    let mut seen = vec![false; ops.len()];
    for &op in ops {
        let Some(row) = trace.ops().get(op) else { return Err(incomplete) };
        if std::mem::replace(&mut seen[op.index()], true) {
            return Err(incomplete);
        }
        if let Some(&tensor) = row.reads.iter().find(|&&read| holds[trace.storage(read)] != Some(read)) {
            return Err(OrderError::NotThere { op, tensor });
        }
        if let Some(&other) = row.after.iter().find(|other| !seen[other.index()]) {
            return Err(OrderError::TooEarly { op, other });
        }
        row.outputs.iter().for_each(|&output| holds[trace.storage(output)] = Some(output));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bytes;
    use crate::trace::{Mutation, Op, Persistent, Phase, Storage, Tensor, TraceData};

    /// A weight t0 becomes t3 in place; t1 is made of it before, t2 of t1 before, t4 of t1 and t2 after.
    fn trace() -> Trace {
        let op = |reads: &[u32], outputs: &[u32]| Op {
            name: String::new(),
            kind: String::new(),
            phase: Phase::Forward,
            again: Again::Pure,
            reads: reads.iter().copied().map(TensorId).collect(),
            outputs: outputs.iter().copied().map(TensorId).collect(),
            mutates: Vec::new(),
            may_reuse: Vec::new(),
            after: Vec::new(),
            workspace: Bytes::ZERO,
            work: Default::default(),
            line: String::new(),
        };
        let mut update = op(&[0], &[3]);
        update.mutates.push(Mutation { old: TensorId(0), new: TensorId(3) });
        let storages = [0, 1, 2, 0, 3];
        Trace::new(TraceData {
            name: "five".into(),
            ops: [op(&[0], &[1]), op(&[1], &[2]), update, op(&[1, 2], &[4])].into_iter().collect(),
            tensors: storages
                .map(|s| Tensor { name: String::new(), storage: StorageId(s) })
                .into_iter()
                .collect(),
            storages: vec![Storage { bytes: Bytes(8) }; 4].into_iter().collect(),
            persistent: vec![Persistent { begin: TensorId(0), end: TensorId(3) }],
        })
        .unwrap()
    }

    #[test]
    fn what_is_written_over_ends_what_is_made_of_it() {
        let trace = trace();
        let ids = |ops: &[u32]| ops.iter().copied().map(OpId).collect::<Vec<_>>();
        let order = Order::new(&trace, ids(&[0, 1, 2, 3])).unwrap();
        assert_eq!([0, 1, 2, 3, 4].map(|v| order.last_use(TensorId(v))), [2, 3, 3, OrderIndex::MAX, 3]);
        // t1 is read after the weight it was made of is gone; t2 is made of t1, which is there until then.
        assert_eq!(
            [0, 1, 2, 3, 4].map(|v| order.can_recompute(TensorId(v))),
            [false, false, true, false, true]
        );
        let late = Order::new(&trace, ids(&[0, 1, 3, 2])).unwrap();
        assert!([1, 2, 4].iter().all(|&v| late.can_recompute(TensorId(v))));
        assert_eq!(
            Order::new(&trace, ids(&[2, 0, 1, 3])),
            Err(OrderError::NotThere { op: OpId(0), tensor: TensorId(0) })
        );
        for wrong in [vec![0, 1, 2], vec![0, 1, 2, 2], vec![0, 1, 2, 9]] {
            assert!(matches!(Order::new(&trace, ids(&wrong)), Err(OrderError::Incomplete { ops: 4, .. })));
        }
    }
}
