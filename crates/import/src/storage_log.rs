//! Turns a log of ops over storages into a trace over tensors.
//!
//! PyTorch records which storages an op reads, allocates and overwrites, and when each is freed. A trace consists of tensors, each
//! written once. This is the one place that turns the former into the latter:
//!
//! ```text
//! log     conv: makes s5     relu_: writes over s5     sgd_: writes over s0 (a parameter), reads s9
//! trace   conv: makes t5     relu_: t5 → t6            sgd_: t0 → t7 in the storage of t0
//!                            t6 may reuse t5           never recomputed; t0, t7 a persistent pair
//! ```

use std::collections::{BTreeSet, HashSet};

use elbowroom_ir::trace::{Again, Mutation, Op, Persistent, Phase, Reuse, Storage, Tensor, TraceData, Work};
use elbowroom_ir::{Bytes, Id, Nanos, OpId, Table, TensorId};

use crate::Options;

/// The state of a storage at the start of the iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageRole {
    /// It exists, and the next iteration uses it.
    Persistent,
    /// It exists, and is provided anew in every iteration: the batch.
    Input,
    /// It does not exist: an op allocates it.
    Made,
}

/// A storage of the log.
#[derive(Clone, Debug)]
pub struct LogStorage {
    /// Its size, in bytes. Storages of size zero make no tensors, but order the ops that access them.
    pub bytes: u64,
    /// For people.
    pub name: String,
    /// Its state at the start of the iteration.
    pub role: StorageRole,
}

/// An op of the log. Storages are named by their index in [`StorageLog::storages`].
#[derive(Clone, Debug)]
pub struct LogOp {
    /// For people.
    pub name: String,
    /// The name of the operation.
    pub kind: String,
    /// Forward, backward or update.
    pub phase: Phase,
    /// Storages read.
    pub reads: Vec<usize>,
    /// Storages allocated and written.
    pub makes: Vec<usize>,
    /// Storages overwritten.
    pub mutates: Vec<usize>,
    /// Whether its results depend on the persistent storages that it overwrites; if not, those are written only for the next iteration.
    pub depends_on_state: bool,
    /// Whether it draws random numbers.
    pub random: bool,
    /// Whether it only makes a view.
    pub view: bool,
    /// Its duration.
    pub nanos: Nanos,
    /// Its work.
    pub work: Work,
    /// Storages freed after it.
    pub frees: Vec<usize>,
}

/// An iteration as a program recorded it.
#[derive(Clone, Debug, Default)]
pub struct StorageLog {
    /// All storages with bytes.
    pub storages: Vec<LogStorage>,
    /// Ops in the order in which they ran.
    pub ops: Vec<LogOp>,
    /// Storages made by ops that are results: they outlive the iteration.
    pub results: Vec<usize>,
    /// Persistent storages whose next tensor lies in a storage of its own: `(now, next)`.
    pub replaced: Vec<(usize, usize)>,
}

/// Why a log does not form a trace: the op, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct LogError {
    /// Index of the op; `None` if it is the log as a whole.
    pub op: Option<usize>,
    /// What is wrong.
    pub what: String,
}

impl StorageLog {
    /// The largest sum of live bytes at any op, with the log's own frees.
    pub fn recorded_peak(&self) -> Bytes {
        let bytes = |s: &usize| self.storages[*s].bytes;
        let there = self.storages.iter().filter(|s| s.role != StorageRole::Made);
        let mut live = there.fold(0u64, |sum, s| sum.saturating_add(s.bytes));
        let mut peak = live;
        for op in &self.ops {
            live = op.makes.iter().fold(live, |sum, s| sum.saturating_add(bytes(s)));
            peak = peak.max(live);
            live = op.frees.iter().fold(live, |sum, s| sum.saturating_sub(bytes(s)));
        }
        Bytes(peak)
    }

    /// Lets batch normalization in training mode write over its running statistics: `state` lists, for an op, the persistent storages
    /// that it reads as such. The op's first output is the result, the next two are the statistics of the batch.
    pub fn show_running_statistics(&mut self, state: impl Fn(&Self, &LogOp) -> Vec<usize>) -> usize {
        let mut shown = 0;
        for index in 0..self.ops.len() {
            let op = &self.ops[index];
            let saved = op.makes.iter().skip(1).filter(|&&s| self.storages[s].bytes > 0).count();
            if !is_batch_norm(&op.kind) || saved < 2 || !op.mutates.is_empty() {
                continue;
            }
            let state = state(self, op);
            if state.is_empty() || state.iter().any(|&s| self.storages[s].role != StorageRole::Persistent) {
                continue;
            }
            self.ops[index].mutates = state;
            self.ops[index].depends_on_state = false;
            shown += 1;
        }
        shown
    }

    /// Makes ops that compute the next tensor of a persistent storage write it in place, where no later op reads the old tensor.
    pub fn update_in_place(&mut self) {
        let mut renamed: Vec<usize> = (0..self.storages.len()).collect();
        let mut last_read = vec![None; self.storages.len()];
        let mut maker = vec![None; self.storages.len()];
        for (index, op) in self.ops.iter().enumerate() {
            op.reads.iter().filter(|_| !op.view).for_each(|&s| last_read[s] = Some(index));
            op.makes.iter().for_each(|&s| maker[s] = Some(index));
        }
        self.replaced.retain(|&(now, next)| {
            let Some(index) = maker[next] else { return true };
            let op = &mut self.ops[index];
            let fits = op.reads.contains(&now)
                && last_read[now] == Some(index)
                && !op.mutates.contains(&now)
                && self.storages[now].bytes == self.storages[next].bytes
                && renamed[next] == next;
            if fits {
                op.makes.retain(|&s| s != next);
                op.mutates.push(now);
                op.depends_on_state &= !is_batch_norm(&op.kind);
                renamed[next] = now;
            }
            !fits
        });
        for op in &mut self.ops {
            for list in [&mut op.reads, &mut op.mutates, &mut op.frees] {
                list.iter_mut().for_each(|s| *s = renamed[*s]);
            }
            op.frees.retain(|&s| self.storages[s].role == StorageRole::Made);
        }
        self.results.iter_mut().for_each(|s| *s = renamed[*s]);
    }

    /// The trace's parts and a duration for every op.
    pub fn resolve(&self, name: &str, options: &Options) -> Result<(TraceData, Vec<Nanos>), LogError> {
        let mut read = vec![false; self.storages.len()];
        for op in self.ops.iter().filter(|op| !op.view) {
            let made: HashSet<usize> = op.makes.iter().copied().collect();
            op.reads.iter().filter(|s| !made.contains(s)).for_each(|&s| read[s] = true);
        }
        let mut resolver = Resolver {
            log: self,
            options,
            data: TraceData { name: name.to_owned(), ..TraceData::default() },
            nanos: Vec::new(),
            now: vec![None; self.storages.len()],
            made: self.storages.iter().map(|s| s.role != StorageRole::Made).collect(),
            viewed: vec![false; self.storages.len()],
            carried: Nanos::ZERO,
            made_by: Table::new(),
            empty: read.into_iter().map(|read| EmptyStorage { read, ..EmptyStorage::default() }).collect(),
        };
        let begins = resolver.begin();
        for (index, op) in self.ops.iter().enumerate() {
            resolver.op(index, op).map_err(|what| LogError { op: Some(index), what })?;
        }
        resolver.end(begins).map_err(|what| LogError { op: None, what })
    }
}

fn is_batch_norm(kind: &str) -> bool {
    kind.contains("batch_norm") && !kind.contains("backward")
}

/// Elementwise operations whose first output may be written over an input of the same size, because every element of it is read before
/// the element of the output is written.
const ELEMENTWISE: [&str; 26] = [
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "relu",
    "hardtanh",
    "sigmoid",
    "tanh",
    "gelu",
    "silu",
    "hardswish",
    "exp",
    "sqrt",
    "rsqrt",
    "threshold_backward",
    "hardtanh_backward",
    "sigmoid_backward",
    "tanh_backward",
    "gelu_backward",
    "silu_backward",
    "hardswish_backward",
    "leaky_relu",
    "leaky_relu_backward",
    "where",
    "masked_fill",
];

/// Views that show the elements as they lie, and questions about a tensor.
const SAME_ELEMENTS: [&str; 5] = ["prim", "detach", "alias", "lift_fresh", "profiler"];

/// The accesses to a storage without bytes.
#[derive(Clone, Default)]
struct EmptyStorage {
    /// Whether an op reads what another one wrote.
    read: bool,
    /// The op that wrote it last.
    writer: Option<OpId>,
    /// The ops that have read it since.
    readers: Vec<OpId>,
}

struct Resolver<'a> {
    log: &'a StorageLog,
    options: &'a Options,
    data: TraceData,
    nanos: Vec<Nanos>,
    /// The tensor that each storage of the log holds.
    now: Vec<Option<TensorId>>,
    /// Whether the storage has been allocated.
    made: Vec<bool>,
    /// Whether something was made of the storage that shows its elements in another order or shape.
    viewed: Vec<bool>,
    /// Duration of views since the last op, which the next op carries.
    carried: Nanos,
    /// The op that makes each tensor.
    made_by: Table<TensorId, Option<OpId>>,
    /// What is known of each storage if it has no bytes.
    empty: Vec<EmptyStorage>,
}

impl Resolver<'_> {
    fn value(&mut self, name: String, bytes: u64) -> TensorId {
        let storage = self.data.storages.push(Storage { bytes: Bytes(bytes) });
        self.data.tensors.push(Tensor { name, storage })
    }

    fn push(&mut self, mut op: Op, nanos: Nanos) -> OpId {
        let makers: HashSet<OpId> =
            op.reads.iter().filter_map(|&tensor| *self.made_by.get(tensor)?).collect();
        op.after.retain(|other| !makers.contains(other));
        let id = self.data.ops.next_id();
        for &output in &op.outputs {
            while self.made_by.len() <= output.index() {
                self.made_by.push(None);
            }
            self.made_by[output] = Some(id);
        }
        self.nanos.push(nanos);
        self.data.ops.push(op)
    }

    /// The ops that an op has to follow because of storages without bytes: the writer of what it reads, and all earlier accesses to what it
    /// writes.
    fn after(&self, op: &LogOp) -> Vec<OpId> {
        let mut after = BTreeSet::new();
        for &storage in op.reads.iter().filter(|&&s| self.is_empty(s)) {
            after.extend(self.empty[storage].writer);
        }
        for &storage in op.makes.iter().chain(&op.mutates).filter(|&&s| self.is_empty(s)) {
            let EmptyStorage { writer, readers, .. } = &self.empty[storage];
            after.extend(writer.iter().chain(readers));
        }
        after.into_iter().collect()
    }

    /// Notes that an op of the trace, the last that was added, accesses the storages without bytes of an op of the log.
    fn access_empty(&mut self, op: &LogOp, id: OpId) {
        for &storage in op.reads.iter().filter(|&&s| self.log.storages[s].bytes == 0) {
            self.empty[storage].readers.push(id);
        }
        for &storage in op.makes.iter().chain(&op.mutates).filter(|&&s| self.log.storages[s].bytes == 0) {
            let EmptyStorage { writer, readers, .. } = &mut self.empty[storage];
            *writer = Some(id);
            readers.clear();
        }
    }

    fn is_empty(&self, storage: usize) -> bool {
        self.log.storages[storage].bytes == 0
    }

    /// Tensors that are there at the beginning: persistent ones, and the batch.
    fn begin(&mut self) -> Vec<(usize, TensorId)> {
        let log = self.log;
        let mut begins = Vec::new();
        for (index, storage) in log.storages.iter().enumerate().filter(|(_, s)| s.bytes > 0) {
            match storage.role {
                StorageRole::Made => continue,
                StorageRole::Persistent => {
                    let value = self.value(storage.name.clone(), storage.bytes);
                    begins.push((index, value));
                    self.now[index] = Some(value);
                }
                StorageRole::Input => {
                    let value = self.value(storage.name.clone(), storage.bytes);
                    self.push(input_op(&storage.name, value, self.options), Nanos::ZERO);
                    self.now[index] = Some(value);
                }
            }
        }
        begins
    }

    /// The tensor that a storage holds; `None` for a storage of no bytes.
    fn read(&self, storage: usize) -> Result<Option<TensorId>, String> {
        if self.log.storages[storage].bytes == 0 {
            return Ok(None);
        }
        if !self.made[storage] {
            return Err(format!(
                "it reads storage `{}` before anything is written to it",
                self.log.storages[storage].name
            ));
        }
        Ok(self.now[storage])
    }

    fn op(&mut self, index: usize, op: &LogOp) -> Result<(), String> {
        if op.view {
            if !op.makes.is_empty() || !op.mutates.is_empty() {
                return Err("it is said to be only a view, but allocates or writes".to_owned());
            }
            self.carried = Nanos(self.carried.get().saturating_add(op.nanos.get()));
            if !SAME_ELEMENTS.contains(&op.kind.as_str()) {
                op.reads.iter().for_each(|&s| self.viewed[s] = true);
            }
            return Ok(());
        }
        let log = self.log;
        let mut reads = Vec::with_capacity(op.reads.len());
        for &storage in op.reads.iter().chain(op.mutates.iter().filter(|m| !op.reads.contains(m))) {
            let is_state =
                op.mutates.contains(&storage) && log.storages[storage].role == StorageRole::Persistent;
            if op.depends_on_state || !is_state {
                reads.extend(self.read(storage)?);
            }
        }
        let (mut outputs, mut may_reuse) = (Vec::new(), Vec::new());
        for &storage in &op.makes {
            if std::mem::replace(&mut self.made[storage], true) {
                return Err(format!(
                    "it allocates storage `{}`, which was allocated before",
                    log.storages[storage].name
                ));
            }
            let LogStorage { bytes, name, .. } = &log.storages[storage];
            if *bytes > 0 {
                let value = self.value(name.clone(), *bytes);
                outputs.push(value);
                self.now[storage] = Some(value);
            }
        }
        if self.options.inplace && ELEMENTWISE.contains(&op.kind.as_str()) {
            may_reuse.extend(outputs.first().map(|&output| self.inplace(op, output)).unwrap_or_default());
        }
        let mut state = Vec::new();
        for &storage in &op.mutates {
            let Some(old) = self.read(storage)? else { continue };
            if log.storages[storage].role == StorageRole::Persistent {
                state.push((storage, old));
                continue;
            }
            let LogStorage { bytes, name, .. } = &log.storages[storage];
            let new = self.value(name.clone(), *bytes);
            outputs.push(new);
            may_reuse.push(Reuse { input: old, output: new });
            self.now[storage] = Some(new);
        }

        let nanos = Nanos(op.nanos.get().saturating_add(std::mem::take(&mut self.carried).get()));
        let again = if op.random { Again::Rng { stream: index as u64 } } else { Again::Pure };
        let whole = Op {
            name: op.name.clone(),
            kind: op.kind.clone(),
            phase: op.phase,
            again,
            reads,
            outputs,
            mutates: Vec::new(),
            may_reuse,
            after: self.after(op),
            workspace: Bytes::ZERO,
            work: op.work,
            line: String::new(),
        };
        let ops = self.data.ops.len();
        if state.is_empty() {
            // An op without any effect is only bookkeeping, unless it took time.
            let mut written = op.makes.iter().chain(&op.mutates);
            let orders = written.any(|&s| self.is_empty(s) && self.empty[s].read);
            if !whole.outputs.is_empty() || !nanos.is_zero() || orders {
                self.push(whole, nanos);
            }
        } else if whole.outputs.is_empty() || (op.depends_on_state && !whole.may_reuse.is_empty()) {
            // Nothing to keep apart, or nothing that could be: an update after the pure part would find its other inputs overwritten.
            self.update(whole, &state, nanos);
        } else {
            let mut update = Op {
                name: format!("{}.update", whole.name),
                kind: format!("{}_update", whole.kind),
                work: Work::default(),
                line: String::new(),
                may_reuse: Vec::new(),
                ..whole.clone()
            };
            update.outputs.clear();
            if !op.depends_on_state {
                // The statistics of the batch, which go into the running ones.
                update.reads = whole.outputs.iter().copied().skip(1).take(2).collect();
                update.reads.splice(0..0, state.iter().map(|&(_, old)| old));
            }
            self.push(whole, nanos);
            self.update(update, &state, Nanos::ZERO);
        }
        if self.data.ops.len() > ops {
            self.access_empty(op, OpId::new(self.data.ops.len() - 1));
        }
        Ok(())
    }

    /// Inputs whose bytes an elementwise output of the same size could take: neither persistent, nor read through a view, whose elements may
    /// lie in another order.
    fn inplace(&self, op: &LogOp, output: TensorId) -> Vec<Reuse> {
        let bytes = |t: TensorId| self.data.storages[self.data.tensors[t].storage].bytes;
        let mut inputs: Vec<TensorId> = op
            .reads
            .iter()
            .filter(|&&s| {
                self.log.storages[s].role != StorageRole::Persistent
                    && !self.viewed[s]
                    && !op.makes.contains(&s)
            })
            .filter_map(|&s| self.now[s])
            .filter(|&t| bytes(t) == bytes(output))
            .collect();
        let mut seen = HashSet::new();
        inputs.retain(|&t| seen.insert(t));
        inputs.into_iter().map(|input| Reuse { input, output }).collect()
    }

    /// Adds an op that writes over persistent state.
    fn update(&mut self, mut op: Op, state: &[(usize, TensorId)], nanos: Nanos) {
        op.again = Again::Never;
        for &(storage, old) in state {
            let row = self.data.tensors[old].clone();
            let new = self
                .data
                .tensors
                .push(Tensor { name: format!("{}'", row.name.trim_end_matches('\'')), storage: row.storage });
            op.outputs.push(new);
            op.mutates.push(Mutation { old, new });
            self.now[storage] = Some(new);
        }
        self.push(op, nanos);
    }

    /// Results are read once more at the end; persistent tensors are paired.
    fn end(mut self, begins: Vec<(usize, TensorId)>) -> Result<(TraceData, Vec<Nanos>), String> {
        let mut results = Vec::new();
        for &storage in &self.log.results {
            results.extend(self.read(storage)?);
        }
        results.sort_unstable();
        results.dedup();
        for (begin_storage, begin) in begins {
            let next = self
                .log
                .replaced
                .iter()
                .find(|&&(now, _)| now == begin_storage)
                .map_or(begin_storage, |&(_, next)| next);
            let end = self.read(next)?.unwrap_or(begin);
            self.data.persistent.push(Persistent { begin, end });
        }
        self.data.persistent.sort_by_key(|pair| pair.begin);
        if !results.is_empty() {
            let phase = self.data.ops.values().last().map_or(Phase::Forward, |op| op.phase);
            self.push(results_op(results, phase), Nanos::ZERO);
        }
        if let Some(last) = self.nanos.last_mut() {
            *last = Nanos(last.get().saturating_add(self.carried.get()));
        }
        Ok((self.data, self.nanos))
    }
}

/// The op that brings a tensor of the batch.
pub fn input_op(name: &str, value: TensorId, options: &Options) -> Op {
    Op {
        name: name.to_owned(),
        kind: "input".to_owned(),
        phase: Phase::Forward,
        again: if options.remake_inputs { Again::Pure } else { Again::Never },
        reads: Vec::new(),
        outputs: vec![value],
        mutates: Vec::new(),
        may_reuse: Vec::new(),
        after: Vec::new(),
        workspace: Bytes::ZERO,
        work: Work::default(),
        line: String::new(),
    }
}

/// The op at the end that reads what outlives the iteration.
pub fn results_op(results: Vec<TensorId>, phase: Phase) -> Op {
    Op {
        name: "results".to_owned(),
        kind: "output".to_owned(),
        phase,
        again: Again::Never,
        reads: results,
        outputs: Vec::new(),
        mutates: Vec::new(),
        may_reuse: Vec::new(),
        after: Vec::new(),
        workspace: Bytes::ZERO,
        work: Work::default(),
        line: String::new(),
    }
}
