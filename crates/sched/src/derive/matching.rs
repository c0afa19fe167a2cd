//! Which op and which tensor of the part is which of the whole.

use std::collections::{HashMap, VecDeque};

use elbowroom_ir::trace::Trace;
use elbowroom_ir::{OpId, Table, TensorId};

use super::Underivable;

/// The ops and tensors of a part, by those of the whole.
pub(super) struct Matching {
    /// The same op in the part, if the part has it.
    pub op: Table<OpId, Option<OpId>>,
    /// The same tensor in the part, or the one that stands for it; `None` if the part has neither.
    pub tensor: Table<TensorId, Option<TensorId>>,
}

impl Matching {
    /// Ops are the same if name, kind and number of outputs are; ops that share all of these are matched in order. Persistent tensors are
    /// matched in order.
    pub fn new(whole: &Trace, part: &Trace) -> Result<Self, Underivable> {
        let mut named: HashMap<(&str, &str, usize), VecDeque<OpId>> = HashMap::new();
        for (id, op) in whole.ops().iter() {
            named.entry((&op.name, &op.kind, op.outputs.len())).or_default().push_back(id);
        }
        let mut this = Self {
            op: Table::filled(whole.ops().len(), None),
            tensor: Table::filled(whole.tensors().len(), None),
        };
        let mut pairs = Vec::with_capacity(part.ops().len());
        for (id, op) in part.ops().iter() {
            let same = named.get_mut(&(op.name.as_str(), op.kind.as_str(), op.outputs.len()));
            let same = same.and_then(VecDeque::pop_front).ok_or_else(|| Underivable::Op(op.name.clone()))?;
            this.op[same] = Some(id);
            for (&theirs, &ours) in whole.ops()[same].outputs.iter().zip(&op.outputs) {
                this.tensor[theirs] = Some(ours);
            }
            pairs.push((same, id));
        }
        this.match_persistent(whole, part)?;
        // What the part reads in place of a tensor that it lacks stands for that tensor.
        for (theirs, ours) in pairs {
            let reads = whole.ops()[theirs].reads.iter().zip(&part.ops()[ours].reads);
            for (&theirs, &ours) in reads {
                this.tensor[theirs].get_or_insert(ours);
            }
        }
        for (theirs, ours) in whole.persistent().iter().zip(part.persistent()) {
            this.tensor[theirs.end].get_or_insert(ours.end);
        }
        Ok(this)
    }

    fn match_persistent(&mut self, whole: &Trace, part: &Trace) -> Result<(), Underivable> {
        if whole.persistent().len() != part.persistent().len() {
            return Err(Underivable::Persistent);
        }
        for (theirs, ours) in whole.persistent().iter().zip(part.persistent()) {
            let name = |trace: &Trace, tensor| trace.tensors()[tensor].name.clone();
            if name(whole, theirs.begin) != name(part, ours.begin)
                || whole.bytes(theirs.begin) != part.bytes(ours.begin)
            {
                return Err(Underivable::Persistent);
            }
            self.tensor[theirs.begin] = Some(ours.begin);
        }
        Ok(())
    }
}
