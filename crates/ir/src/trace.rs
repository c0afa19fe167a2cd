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

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::{Bytes, Id, OpId, StorageId, Table, TensorId};

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
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written in device memory.
    pub moved: Bytes,
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
    /// An empty `after` adds nothing, so that traces without it keep the fingerprints that older versions gave them.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { name, kind, phase, again, reads, outputs, mutates, may_reuse, after, workspace, work } =
            self;
        (name, kind, phase, again).hash(state);
        (reads, outputs, mutates, may_reuse, workspace, work).hash(state);
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

/// A 64-bit hash of a trace. Plans refer to their trace by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u64);

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

// As text in JSON: many readers cannot represent 64-bit numbers exactly.
impl Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Why parts do not form a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// An id past the end of its table.
    #[error("{place} names {id}, but there are only {len} of its kind")]
    UnknownId {
        /// The place that names it.
        place: String,
        /// The id, printed.
        id: String,
        /// Entries in the table.
        len: usize,
    },
    /// Two ops make one tensor, or an op makes it twice.
    #[error("{tensor} is made by {first} and again by {second}; a tensor is made once")]
    MadeTwice {
        /// The tensor.
        tensor: TensorId,
        /// Its first producer.
        first: OpId,
        /// Its second producer.
        second: OpId,
    },
    /// A tensor that no op writes and that does not persist.
    #[error("{0} is made by no op and is not the beginning of a persistent tensor")]
    NeverMade(TensorId),
    /// A tensor read where its storage does not hold it.
    #[error("{op} reads {tensor}, but at that point its storage {storage} holds {holds}")]
    NotThere {
        /// The op.
        op: OpId,
        /// The tensor it reads.
        tensor: TensorId,
        /// The tensor's storage.
        storage: StorageId,
        /// What it holds instead.
        holds: String,
    },
    /// A new tensor in a storage that already holds another one, without a mutation.
    #[error(
        "{op} makes {tensor} in {storage}, which holds {holds}; list the pair under `mutates` if the op writes in place"
    )]
    Occupied {
        /// The op.
        op: OpId,
        /// The tensor it makes.
        tensor: TensorId,
        /// The tensor's storage.
        storage: StorageId,
        /// What is there.
        holds: TensorId,
    },
    /// A mutation whose parts do not fit together.
    #[error("{op} is said to overwrite {old} with {new}, but {why}")]
    BadMutation {
        /// The op.
        op: OpId,
        /// The tensor overwritten.
        old: TensorId,
        /// The new tensor.
        new: TensorId,
        /// What is wrong.
        why: &'static str,
    },
    /// A permitted reuse whose parts do not fit together.
    #[error("{op} is said to be able to write {output} over {input}, but {why}")]
    BadReuse {
        /// The op.
        op: OpId,
        /// The dying input.
        input: TensorId,
        /// The output.
        output: TensorId,
        /// What is wrong.
        why: &'static str,
    },
    /// A persistent pair whose parts do not fit together.
    #[error("the persistent pair {begin} -> {end} is wrong: {why}")]
    BadPersistent {
        /// The tensor at the beginning.
        begin: TensorId,
        /// The tensor at the end.
        end: TensorId,
        /// What is wrong.
        why: &'static str,
    },
    /// An op that has to follow itself or a later one.
    #[error("{op} is said to follow {other}, which does not come before it")]
    BadAfter {
        /// The op.
        op: OpId,
        /// The op that it names.
        other: OpId,
    },
    /// A storage of zero bytes.
    #[error(
        "{0} has no bytes; leave out its tensors, and list the ops that write them under `after` of the ops that read them"
    )]
    EmptyStorage(StorageId),
    /// The sizes of all storages, workspaces and moved bytes add up to 2^60 or more.
    #[error("the sizes add up to 2^60 bytes or more; no device is that large")]
    TooLarge,
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
        let producers = validate(&data)?;
        let mut users = Table::filled(data.tensors.len(), Vec::new());
        for (id, op) in data.ops.iter() {
            for &tensor in &op.reads {
                let list: &mut Vec<OpId> = &mut users[tensor];
                if list.last() != Some(&id) {
                    list.push(id);
                }
            }
        }
        let mut hasher = Fnv(FNV_OFFSET);
        data.hash(&mut hasher);
        Ok(Self { producers, users, fingerprint: Fingerprint(hasher.finish()), data })
    }

    /// For people.
    pub fn name(&self) -> &str {
        &self.data.name
    }

    /// Operations, in the order in which they ran.
    pub fn ops(&self) -> &Table<OpId, Op> {
        &self.data.ops
    }

    /// Tensors.
    pub fn tensors(&self) -> &Table<TensorId, Tensor> {
        &self.data.tensors
    }

    /// Storages.
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
    pub fn storage(&self, tensor: TensorId) -> StorageId {
        self.data.tensors[tensor].storage
    }

    /// The size of a tensor: that of its storage, in bytes.
    pub fn bytes(&self, tensor: TensorId) -> Bytes {
        self.data.storages[self.storage(tensor)].bytes
    }

    /// The hash of everything in the trace, including names; the same on every machine.
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

/// Checks all guarantees of [`Trace::new`] and returns the producer of every tensor.
fn validate(data: &TraceData) -> Result<Table<TensorId, Option<OpId>>, TraceError> {
    known_ids(data)?;
    let sizes = data.storages.values().map(|s| s.bytes);
    let scratch = data.ops.values().map(|op| op.workspace);
    let moved = data.ops.values().map(|op| op.work.moved);
    sizes
        .chain(scratch)
        .chain(moved)
        .try_fold(Bytes::ZERO, |sum, bytes| sum.checked_add(bytes))
        .filter(|sum| sum.get() < 1 << 60)
        .ok_or(TraceError::TooLarge)?;
    if let Some((id, _)) = data.storages.iter().find(|(_, s)| s.bytes.is_zero()) {
        return Err(TraceError::EmptyStorage(id));
    }

    let mut producers: Table<TensorId, Option<OpId>> = Table::filled(data.tensors.len(), None);
    for (id, op) in data.ops.iter() {
        for &tensor in &op.outputs {
            if let Some(first) = producers[tensor].replace(id) {
                return Err(TraceError::MadeTwice { tensor, first, second: id });
            }
        }
    }

    // The tensor in every storage, replayed in the order of the ops.
    let mut holds: Table<StorageId, Option<TensorId>> = Table::filled(data.storages.len(), None);
    let mut begins = vec![false; data.tensors.len()];
    for &Persistent { begin, end } in &data.persistent {
        let wrong = |why| Err(TraceError::BadPersistent { begin, end, why });
        if producers[begin].is_some() {
            return wrong("an op makes the tensor that should exist at the beginning");
        }
        if std::mem::replace(&mut begins[begin.index()], true) {
            return wrong("two pairs begin with it");
        }
        if holds[data.tensors[begin].storage].replace(begin).is_some() {
            return wrong("another persistent tensor begins in the same storage");
        }
    }
    if let Some(tensor) = data.tensors.ids().find(|&t| producers[t].is_none() && !begins[t.index()]) {
        return Err(TraceError::NeverMade(tensor));
    }
    for (id, op) in data.ops.iter() {
        run(data, &mut holds, id, op)?;
        if let Some(&other) = op.after.iter().find(|&&other| other >= id) {
            return Err(TraceError::BadAfter { op: id, other });
        }
    }

    let mut ends = vec![false; data.tensors.len()];
    for &Persistent { begin, end } in &data.persistent {
        let wrong = |why| Err(TraceError::BadPersistent { begin, end, why });
        if holds[data.tensors[end].storage] != Some(end) {
            return wrong("the tensor that should be left at the end was overwritten");
        }
        if data.storages[data.tensors[begin].storage].bytes != data.storages[data.tensors[end].storage].bytes
        {
            return wrong("the two differ in size");
        }
        if std::mem::replace(&mut ends[end.index()], true) {
            return wrong("two pairs end with it");
        }
    }
    Ok(producers)
}

/// Replays one op over what the storages hold.
fn run(
    data: &TraceData,
    holds: &mut Table<StorageId, Option<TensorId>>,
    id: OpId,
    op: &Op,
) -> Result<(), TraceError> {
    for &tensor in &op.reads {
        let storage = data.tensors[tensor].storage;
        if holds[storage] != Some(tensor) {
            let holds = holds[storage].map_or("nothing yet".to_owned(), |other| other.to_string());
            return Err(TraceError::NotThere { op: id, tensor, storage, holds });
        }
    }
    // Sets, because one op may read and write as many tensors as the whole trace.
    let reads: BTreeSet<TensorId> = op.reads.iter().copied().collect();
    let outputs: BTreeSet<TensorId> = op.outputs.iter().copied().collect();
    let mut mutated = BTreeSet::new();
    for &Mutation { old, new } in &op.mutates {
        let wrong = |why| Err(TraceError::BadMutation { op: id, old, new, why });
        if !reads.contains(&old) {
            return wrong("does not read the old tensor");
        }
        if !outputs.contains(&new) {
            return wrong("does not make the new tensor");
        }
        if data.tensors[old].storage != data.tensors[new].storage {
            return wrong("they lie in different storages");
        }
        if holds[data.tensors[old].storage] != Some(old) {
            return wrong("the storage is overwritten twice");
        }
        holds[data.tensors[old].storage] = Some(new);
        mutated.insert(new);
    }
    for &tensor in op.outputs.iter().filter(|output| !mutated.contains(output)) {
        let storage = data.tensors[tensor].storage;
        if let Some(holds) = holds[storage].replace(tensor) {
            return Err(TraceError::Occupied { op: id, tensor, storage, holds });
        }
    }
    for &Reuse { input, output } in &op.may_reuse {
        let wrong = |why| Err(TraceError::BadReuse { op: id, input, output, why });
        if !reads.contains(&input) {
            return wrong("does not read the input");
        }
        if !outputs.contains(&output) || mutated.contains(&output) {
            return wrong("does not make the output in fresh bytes");
        }
        if data.storages[data.tensors[input].storage].bytes
            < data.storages[data.tensors[output].storage].bytes
        {
            return wrong("the input is smaller than the output");
        }
    }
    Ok(())
}

/// Checks that every id refers to an entry of its table.
fn known_ids(data: &TraceData) -> Result<(), TraceError> {
    let tensor = |place: &dyn Fn() -> String, id: TensorId| {
        let len = data.tensors.len();
        if id.index() < len {
            Ok(())
        } else {
            Err(TraceError::UnknownId { place: place(), id: id.to_string(), len })
        }
    };
    for (id, op) in data.ops.iter() {
        let mutated = op.mutates.iter().flat_map(|m| [m.old, m.new]);
        let reused = op.may_reuse.iter().flat_map(|r| [r.input, r.output]);
        for named in op.reads.iter().chain(&op.outputs).copied().chain(mutated).chain(reused) {
            tensor(&|| id.to_string(), named)?;
        }
    }
    for pair in &data.persistent {
        tensor(&|| "a persistent pair".to_owned(), pair.begin)?;
        tensor(&|| "a persistent pair".to_owned(), pair.end)?;
    }
    for (id, row) in data.tensors.iter() {
        let len = data.storages.len();
        if row.storage.index() >= len {
            return Err(TraceError::UnknownId { place: id.to_string(), id: row.storage.to_string(), len });
        }
    }
    Ok(())
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a over little-endian bytes of fixed width, so that a fingerprint is the same on every machine. The standard library does not
/// guarantee that for its hashers.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
    }
    fn write_u32(&mut self, number: u32) {
        self.write(&number.to_le_bytes());
    }
    fn write_u64(&mut self, number: u64) {
        self.write(&number.to_le_bytes());
    }
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
