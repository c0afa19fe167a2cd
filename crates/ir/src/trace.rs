//! One training iteration as the device executed it: ops in order, the tensors that they read and write, and which tensors persist.
//!
//! A [`Trace`] is immutable and always well formed: it can only be made from [`TraceData`] by [`Trace::new`], which checks it. Durations
//! are kept apart (see [`Costs`](crate::planning::Costs)), so that new measurements never invalidate a plan.
//!
//! **Tensors, storages, views.** A *tensor* is written once, by one op, or exists when the iteration begins (in compilers: an SSA value). A
//! *storage* is the bytes that hold it; successive tensors share one storage if an op [mutates](Mutation) it. A *view* is not a tensor of
//! the trace: the program that makes a trace replaces a view by the tensor whose bytes it shows.
//!
//! **Two facts about writing in place.** [`Op::mutates`]: the op must write this storage (an optimizer step on a weight, an accumulating
//! gradient). [`Op::may_reuse`]: the output is permitted to take over the buffer of an input that is not needed afterwards (ReLU). The
//! trace states both; a schedule decides about reuse.
//!
//! **Two kinds of dependencies.** An op runs after the ops that write the tensors it reads. Where one op depends on another although no
//! bytes pass between them, [`Op::after`] says so: a gradient of no bytes, a random generator that is advanced, an effect outside of the
//! trace. Tensors without bytes are therefore left out of a trace, but not the dependencies that they stand for.

mod fingerprint;
mod validate;

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

pub use self::fingerprint::Fingerprint;
pub use self::validate::{LONGEST_NAME, TraceError};
use crate::{Bytes, OpId, StorageId, Table, TensorId};

/// The phase of the iteration to which an op belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// From inputs to loss.
    Forward,
    /// From loss to gradients.
    Backward,
    /// From gradients to new parameters.
    Update,
}

/// Whether an op may be recomputed within the iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Again {
    /// A function of its inputs.
    Pure,
    /// A function of its inputs and a counter-based random state: recomputing it gives the same bits. The state consists of the stream, the
    /// run's seed and the iteration's number; the trace names the stream, so no plan can change it.
    Rng {
        /// The op's stream of random numbers; a backward op that needs the same numbers names the same stream.
        stream: u64,
    },
    /// May not be recomputed: it has an effect outside its outputs, or must happen once.
    Never,
}

/// The work of an op, for cost models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Work {
    /// Floating-point operations, but for those of `half_flops`.
    pub flops: u64,
    /// Floating-point operations of products of numbers of 16 bits, which many machines compute faster ([`Machine::half_flops_per_second`]).
    ///
    /// [`Machine::half_flops_per_second`]: crate::machine::Machine::half_flops_per_second
    #[serde(default, skip_serializing_if = "is_zero")]
    pub half_flops: u64,
    /// Bytes read and written in device memory.
    pub moved: Bytes,
}

/// Files of work in one type stay as they are without the other.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The op overwrites `old` with `new`, in the storage of both. Afterwards `old` cannot be read from this storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mutation {
    /// The tensor that is overwritten: one of the op's reads.
    pub old: TensorId,
    /// The tensor that overwrites it: one of the op's outputs.
    pub new: TensorId,
}

/// The op stays correct if `output` is written to the bytes of `input`, provided that `input` is not needed afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reuse {
    /// One of the op's reads, at least as large as the output.
    pub input: TensorId,
    /// One of the op's outputs, not the new tensor of a mutation.
    pub output: TensorId,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// For people: `layer1.0.conv1`, `layer1.0.conv1.grad_input`.
    pub name: String,
    /// For people and cost models: `conv2d`, `batch_norm`. Empty when unknown.
    #[serde(default)]
    pub kind: String,
    /// Forward, backward or update.
    pub phase: Phase,
    /// Whether it may be recomputed.
    pub again: Again,
    /// Tensors read, in the order of the op's arguments; a tensor may occur twice.
    pub reads: Vec<TensorId>,
    /// Tensors written, in the order of the op's results, including the new tensors of mutations.
    pub outputs: Vec<TensorId>,
    /// Storages overwritten.
    #[serde(default)]
    pub mutates: Vec<Mutation>,
    /// Reuse permitted.
    #[serde(default)]
    pub may_reuse: Vec<Reuse>,
    /// Earlier ops that must have been computed before it, in addition to those that write what it reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<OpId>,
    /// Workspace, in bytes, needed while it runs.
    #[serde(default)]
    pub workspace: Bytes,
    /// Its work.
    #[serde(default)]
    pub work: Work,
    /// For people: the line of the user's program that calls it, `model.py:120`. Empty when unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub line: String,
}

impl Op {
    /// The tensor that `output` overwrites in place, if the op writes it by mutation.
    pub fn overwrites(&self, output: TensorId) -> Option<TensorId> {
        self.mutates.iter().find(|m| m.new == output).map(|m| m.old)
    }

    /// The tensor that overwrites `input` in place, if the op does so.
    pub fn overwritten_by(&self, input: TensorId) -> Option<TensorId> {
        self.mutates.iter().find(|m| m.old == input).map(|m| m.new)
    }
}

impl Hash for Op {
    /// An empty `after` adds nothing, nor does work without products of 16-bit numbers, so that traces without them keep the fingerprints that
    /// older versions gave them. The line of code adds nothing: where a program lies says nothing of what it computes.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self {
            name,
            kind,
            phase,
            again,
            reads,
            outputs,
            mutates,
            may_reuse,
            after,
            workspace,
            work,
            line: _,
        } = self;
        (name, kind, phase, again).hash(state);
        let Work { flops, half_flops, moved } = work;
        (reads, outputs, mutates, may_reuse, workspace, flops, moved).hash(state);
        if *half_flops > 0 {
            half_flops.hash(state);
        }
        if !after.is_empty() {
            after.hash(state);
        }
    }
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tensor {
    /// For people.
    pub name: String,
    /// The bytes that hold it; the tensor occupies all of them.
    pub storage: StorageId,
}

/// The bytes of one or several successive tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Storage {
    /// Its size; not zero.
    pub bytes: Bytes,
}

/// A tensor that outlives the iteration: `end` of one iteration is `begin` of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Persistent {
    /// The tensor at the start of the iteration; no op writes it.
    pub begin: TensorId,
    /// The tensor at the end; `begin` itself if nothing changes it.
    pub end: TensorId,
}

/// The parts of a trace, unchecked, as readers and builders make them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TraceData {
    /// For people: `resnet18 batch 64`.
    pub name: String,
    /// Operations, in the order in which they ran.
    pub ops: Table<OpId, Op>,
    /// Tensors.
    pub tensors: Table<TensorId, Tensor>,
    /// Storages.
    pub storages: Table<StorageId, Storage>,
    /// Tensors that outlive the iteration, ascending by `begin`.
    pub persistent: Vec<Persistent>,
}

/// One training iteration, checked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "TraceData", into = "TraceData")]
pub struct Trace {
    data: TraceData,
    producers: Table<TensorId, Option<OpId>>,
    users: Table<TensorId, Vec<OpId>>,
    fingerprint: Fingerprint,
}

impl Trace {
    /// Checks the parts: every tensor is written once, before it is read, and read only while its storage holds it.
    ///
    /// # Errors
    /// The first rule that is broken, and where.
    pub fn new(data: TraceData) -> Result<Self, TraceError> {
        let producers = validate::validate(&data)?;
        let mut users = Table::filled(data.tensors.len(), Vec::new());
        for (id, op) in data.ops.iter() {
            for &tensor in &op.reads {
                let list: &mut Vec<OpId> = &mut users[tensor];
                if list.last() != Some(&id) {
                    list.push(id);
                }
            }
        }
        Ok(Self { producers, users, fingerprint: Fingerprint::of(&data), data })
    }

    /// For people.
    pub fn name(&self) -> &str {
        &self.data.name
    }

    /// Operations, in the order in which they ran.
    #[inline]
    pub fn ops(&self) -> &Table<OpId, Op> {
        &self.data.ops
    }

    /// Tensors.
    #[inline]
    pub fn tensors(&self) -> &Table<TensorId, Tensor> {
        &self.data.tensors
    }

    /// Storages.
    #[inline]
    pub fn storages(&self) -> &Table<StorageId, Storage> {
        &self.data.storages
    }

    /// Tensors that outlive the iteration.
    pub fn persistent(&self) -> &[Persistent] {
        &self.data.persistent
    }

    /// The parts, for printing and for deriving another trace.
    pub fn data(&self) -> &TraceData {
        &self.data
    }

    /// The op that writes a tensor; `None` for a tensor that exists when the iteration begins.
    pub fn producer(&self, tensor: TensorId) -> Option<OpId> {
        self.producers[tensor]
    }

    /// The ops that read a tensor, ascending, each once.
    pub fn users(&self, tensor: TensorId) -> &[OpId] {
        &self.users[tensor]
    }

    /// The storage of a tensor.
    #[inline]
    pub fn storage(&self, tensor: TensorId) -> StorageId {
        self.data.tensors[tensor].storage
    }

    /// The size of a tensor: that of its storage, in bytes.
    #[inline]
    pub fn bytes(&self, tensor: TensorId) -> Bytes {
        self.data.storages[self.storage(tensor)].bytes
    }

    /// The hash of everything in the trace but lines of code, names included; the same on every machine.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl PartialEq for Trace {
    fn eq(&self, other: &Self) -> bool {
        self.data == other.data
    }
}

impl TryFrom<TraceData> for Trace {
    type Error = TraceError;
    fn try_from(data: TraceData) -> Result<Self, TraceError> {
        Self::new(data)
    }
}

impl From<Trace> for TraceData {
    fn from(trace: Trace) -> Self {
        trace.data
    }
}
