//! What every trace guarantees, checked once when it is made, and the errors where its parts do not fit.

use std::collections::BTreeSet;

use super::{Mutation, Op, Persistent, Reuse, TraceData};
use crate::{Bytes, Id, OpId, StorageId, Table, TensorId};

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
    /// A name or a kind that no file can hold.
    #[error("{0} is longer than {LONGEST_NAME} bytes; shorten it")]
    LongName(String),
    /// The sizes of all storages, workspaces and moved bytes add up to 2^60 or more.
    #[error("the sizes add up to 2^60 bytes or more; no device is that large")]
    TooLarge,
}

/// Bytes of the longest name of a trace, a tensor, an op or a machine, and of the longest kind of an op. A file with a longer one is refused.
pub const LONGEST_NAME: usize = 1 << 16;

/// What has a name that is too long.
fn long_name(data: &TraceData) -> Option<String> {
    let long = |name: &str| name.len() > LONGEST_NAME;
    let trace = long(&data.name).then(|| "the name of the trace".to_owned());
    let tensor = || data.tensors.iter().find(|(_, tensor)| long(&tensor.name));
    let op = || data.ops.iter().find(|(_, op)| long(&op.name) || long(&op.kind));
    trace
        .or_else(|| tensor().map(|(id, _)| format!("the name of {id}")))
        .or_else(|| op().map(|(id, _)| format!("the name or the kind of {id}")))
}

/// Checks all guarantees of [`Trace::new`](super::Trace::new) and returns the producer of every tensor.
pub(super) fn validate(data: &TraceData) -> Result<Table<TensorId, Option<OpId>>, TraceError> {
    known_ids(data)?;
    if let Some(what) = long_name(data) {
        return Err(TraceError::LongName(what));
    }
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
