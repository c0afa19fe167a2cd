//! Which tensors an op finds needed: its own, and those that are needed before and after it.

use elbowroom_ir::trace::{Op, Phase, Trace};
use elbowroom_ir::{Bytes, Id, OpId, StorageId, TensorId};

/// Whether an op may run as soon as possible: update ops need not wait for their position in the trace.
pub(super) fn early(op: &Op) -> bool {
    op.phase == Phase::Update
}

/// What an op finds needed, in bytes.
pub(super) struct Demand {
    /// The op.
    pub op: OpId,
    /// Its operands, results and workspace, aligned.
    pub own: u64,
    /// Tensors of the iteration that are needed before and after it, but not by it.
    pub idle: u64,
    /// Persistent tensors needed throughout, but not by it.
    pub persistent: u64,
}

impl Demand {
    /// All of it together.
    pub fn total(&self) -> u64 {
        self.own + self.idle + self.persistent
    }
}

/// When each tensor is needed.
pub(super) struct Needs {
    /// For every tensor that the iteration computes and discards: its producer and its last reader, which run in any case. The tensor is
    /// needed at every op in between.
    spans: Vec<Option<(usize, usize)>>,
    /// Which storages outlive the iteration.
    persists: Vec<bool>,
    /// Persistent tensors that are needed throughout: the storages of their value at the start and at the end, and the value at the start.
    persistent: Vec<([StorageId; 2], TensorId)>,
}

impl Needs {
    pub(super) fn of(trace: &Trace) -> Self {
        let mut persists = vec![false; trace.storages().len()];
        for pair in trace.persistent() {
            persists[trace.storage(pair.begin).index()] = true;
            persists[trace.storage(pair.end).index()] = true;
        }
        let span = |value: TensorId| {
            let maker = trace.producer(value).filter(|_| !persists[trace.storage(value).index()])?;
            let last = trace.users(value).iter().rev().copied().find(|&op| !early(&trace.ops()[op]))?;
            (!early(&trace.ops()[maker]) && last > maker).then_some((maker.index(), last.index()))
        };
        let needed = trace.persistent().iter().filter(|pair| follows(trace, pair.end, pair.begin));
        let needed =
            needed.map(|pair| ([pair.begin, pair.end].map(|value| trace.storage(value)), pair.begin));
        let (spans, persistent) = (trace.tensors().ids().map(span).collect(), needed.collect());
        Self { spans, persists, persistent }
    }

    /// The demand of every op, in the trace's order. `size` states how many bytes count for a tensor that is needed before and after an op
    /// but not by it.
    pub(super) fn demands(&self, trace: &Trace, align: Bytes, size: &dyn Fn(TensorId) -> u64) -> Vec<Demand> {
        let mut made: Vec<Vec<TensorId>> = vec![Vec::new(); trace.ops().len()];
        let mut ends = made.clone();
        for (value, span) in trace.tensors().ids().zip(&self.spans) {
            if let Some((maker, last)) = *span {
                made[maker].push(value);
                ends[last].push(value);
            }
        }
        let mut by_storage = vec![Vec::new(); trace.storages().len()];
        for (index, (storages, _)) in self.persistent.iter().enumerate() {
            storages.iter().for_each(|storage| by_storage[storage.index()].push(index));
        }
        let all_persistent: u64 = self.persistent.iter().map(|&(_, value)| size(value)).sum();

        let mut live = 0u64;
        let demand = |(id, op): (OpId, &Op)| {
            let reads = distinct(&op.reads);
            let needed_later = |value: TensorId| {
                self.spans[value.index()].is_some_and(|(_, last)| last > id.index()) && !early(op)
            };
            let leaves = |value: &TensorId| needed_later(*value) && may_overwrite(op, *value);

            let mut touched: Vec<usize> = Vec::new();
            for &value in op.reads.iter().chain(&op.outputs) {
                touched.extend(&by_storage[trace.storage(value).index()]);
            }
            touched.sort_unstable();
            touched.dedup();
            let touched: u64 = touched.iter().map(|&index| size(self.persistent[index].1)).sum();
            let stays = |value: &&TensorId| {
                self.spans[value.index()].is_some_and(|(maker, _)| maker < id.index()) && !leaves(value)
            };
            let read: u64 = reads.iter().filter(stays).map(|&value| size(value)).sum();
            let demand = Demand {
                op: id,
                own: own_bytes(trace, op, align, &needed_later),
                // Tensors needed by regular ops may already have been discarded when an update op runs.
                idle: if early(op) { 0 } else { live - read },
                persistent: all_persistent - touched,
            };
            live += made[id.index()].iter().map(|&value| size(value)).sum::<u64>();
            live -= ends[id.index()].iter().map(|&value| size(value)).sum::<u64>();
            demand
        };
        trace.ops().iter().map(demand).collect()
    }

    /// What an op needs in any order of the ops.
    pub(super) fn in_any_order(&self, trace: &Trace, id: OpId) -> AnyOrder {
        let (before, after) = (ancestors(trace, id), descendants(trace, id));
        let made = |value: TensorId| self.spans[value.index()].is_some_and(|(maker, _)| before[maker]);
        let read = |value: TensorId| trace.users(value).iter().any(|user| after[user.index()]);
        let op = &trace.ops()[id];
        let away = |value: &TensorId| !op.reads.contains(value) || may_overwrite(op, *value);
        let idle = trace.tensors().ids().filter(|&value| made(value) && read(value)).filter(away).collect();
        AnyOrder { idle, before, after }
    }

    /// Whether a tensor lies in bytes that outlive the iteration.
    pub(super) fn persists(&self, trace: &Trace, value: TensorId) -> bool {
        self.persists[trace.storage(value).index()]
    }

    /// Persistent tensors needed throughout that an op does not touch.
    pub(super) fn untouched<'a>(&'a self, trace: &'a Trace, id: OpId) -> impl Iterator<Item = TensorId> + 'a {
        let op = &trace.ops()[id];
        let storages: Vec<StorageId> =
            op.reads.iter().chain(&op.outputs).map(|&value| trace.storage(value)).collect();
        let untouched = move |of: &[StorageId; 2]| of.iter().all(|storage| !storages.contains(storage));
        self.persistent.iter().filter(move |(of, _)| untouched(of)).map(|&(_, value)| value)
    }

    /// Tensors needed both before and after an op but not while it runs.
    pub(super) fn idle<'a>(&'a self, trace: &'a Trace, id: OpId) -> impl Iterator<Item = TensorId> + 'a {
        let (op, at) = (&trace.ops()[id], id.index());
        let between = move |value: &TensorId| {
            self.spans[value.index()].is_some_and(|(maker, last)| maker < at && at < last)
        };
        let away = move |value: &TensorId| !op.reads.contains(value) || may_overwrite(op, *value);
        trace.tensors().ids().filter(between).filter(away)
    }
}

/// What an op needs wherever in an order it runs.
pub(super) struct AnyOrder {
    /// Tensors needed both before and after the op but not while it runs.
    pub idle: Vec<TensorId>,
    /// Which ops run before it.
    pub before: Vec<bool>,
    /// Which ops run after it.
    pub after: Vec<bool>,
}

/// Ops on which an op depends, other than update ops.
fn ancestors(trace: &Trace, id: OpId) -> Vec<bool> {
    let mut found = vec![false; trace.ops().len()];
    let mut open = vec![id];
    while let Some(next) = open.pop() {
        let op = &trace.ops()[next];
        let makers = op.reads.iter().filter_map(|&value| trace.producer(value));
        for maker in makers.chain(op.after.iter().copied()) {
            if !found[maker.index()] && !early(&trace.ops()[maker]) {
                found[maker.index()] = true;
                open.push(maker);
            }
        }
    }
    found
}

/// Ops that depend on an op by what they read, other than update ops.
fn descendants(trace: &Trace, id: OpId) -> Vec<bool> {
    let mut found = vec![false; trace.ops().len()];
    let mut open = vec![id];
    while let Some(next) = open.pop() {
        for &user in trace.ops()[next].outputs.iter().flat_map(|&value| trace.users(value)) {
            if !found[user.index()] && !early(&trace.ops()[user]) {
                found[user.index()] = true;
                open.push(user);
            }
        }
    }
    found
}

/// The bytes of an op's operands, results and workspace, less those of operands that it may overwrite because they are not needed any more.
/// Operands that it may overwrite although they are needed later do not count: they may leave.
pub(super) fn own_bytes(
    trace: &Trace,
    op: &Op,
    align: Bytes,
    needed_later: &dyn Fn(TensorId) -> bool,
) -> u64 {
    let aligned = |value: TensorId| trace.bytes(value).align_up(align).get();
    let reads = distinct(&op.reads);
    let leaves = |value: TensorId| needed_later(value) && may_overwrite(op, value);
    let operands: u64 = reads.iter().filter(|&&value| !leaves(value)).map(|&value| aligned(value)).sum();
    let fresh = op.outputs.iter().copied().filter(|&value| op.overwrites(value).is_none());
    let results: u64 = fresh.clone().map(aligned).sum();
    let over_dying =
        |value: &TensorId| op.may_reuse.iter().any(|pair| pair.output == *value && !needed_later(pair.input));
    let saved: u64 = fresh.filter(over_dying).map(aligned).sum();
    let dying = reads.iter().filter(|&&value| may_overwrite(op, value) && !needed_later(value));
    let saved = saved.min(dying.map(|&value| aligned(value)).sum());
    operands + results - saved + op.workspace.align_up(align).get()
}

/// Whether a persistent tensor is needed from the start until its successor exists: an op reads it, and the successor is the tensor itself,
/// is computed from it, or lies in its storage.
fn follows(trace: &Trace, end: TensorId, begin: TensorId) -> bool {
    let mut value = end;
    loop {
        if value == begin {
            return !trace.users(begin).is_empty();
        }
        let Some(maker) = trace.producer(value).map(|op| &trace.ops()[op]) else { return false };
        if maker.reads.contains(&begin) {
            return true;
        }
        let Some(old) = maker.overwrites(value) else { return false };
        value = old;
    }
}

/// Whether an op may write a result over this operand.
pub(super) fn may_overwrite(op: &Op, input: TensorId) -> bool {
    op.may_reuse.iter().any(|pair| pair.input == input)
}

/// Every tensor once.
pub(super) fn distinct(values: &[TensorId]) -> Vec<TensorId> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}
