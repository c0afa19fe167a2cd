//! Small traces.

use ::arbitrary::{Result, Unstructured};

use crate::trace::{Again, Mutation, Op, Persistent, Phase, Reuse, Storage, Tensor, Trace, TraceData, Work};
use crate::{Bytes, Id, OpId, StorageId, Table, TensorId};

/// Draws a trace of up to eight ops and four persistent tensors.
pub fn trace(u: &mut Unstructured<'_>) -> Result<Trace> {
    let mut draft = TraceDraft {
        data: TraceData { name: "arbitrary".to_owned(), ..TraceData::default() },
        held: Table::new(),
    };
    let mut begins = Vec::new();
    for _ in 0..u.int_in_range(0..=4)? {
        let bytes = bytes(u)?;
        begins.push(draft.fresh(bytes));
    }
    let ops = u.int_in_range(1..=8)?;
    for index in 0..ops {
        let phase = match 3 * index / ops {
            0 => Phase::Forward,
            1 => Phase::Backward,
            _ => Phase::Update,
        };
        draft.op(u, index, phase)?;
    }
    let mut ends: Vec<TensorId> = Vec::new();
    for &begin in &begins {
        let size = draft.bytes(begin);
        let candidates: Vec<TensorId> =
            draft.alive().filter(|&t| draft.bytes(t) == size && !ends.contains(&t)).collect();
        let usual = draft.held[draft.data.tensors[begin].storage];
        let end = if !ends.contains(&usual) && u.ratio(3, 4)? {
            usual
        } else if candidates.is_empty() {
            // All tensors of this size are in use; another op writes a new one.
            draft.last_resort(begin)
        } else {
            *u.choose(&candidates)?
        };
        ends.push(end);
        draft.data.persistent.push(Persistent { begin, end });
    }
    Ok(Trace::new(draft.data).expect("the generator keeps the rules of a trace"))
}

/// A few bytes, from few choices, so that several tensors have the same size.
fn bytes(u: &mut Unstructured<'_>) -> Result<Bytes> {
    Ok(Bytes(*u.choose(&[8, 8, 8, 16, 16, 4, 12, 1])?))
}

struct TraceDraft {
    data: TraceData,
    /// The tensor in every storage at the current point.
    held: Table<StorageId, TensorId>,
}

impl TraceDraft {
    fn bytes(&self, tensor: TensorId) -> Bytes {
        self.data.storages[self.data.tensors[tensor].storage].bytes
    }

    /// Tensors that can be read at the current point.
    fn alive(&self) -> impl Iterator<Item = TensorId> {
        self.held.values().copied()
    }

    /// A tensor in a storage of its own.
    fn fresh(&mut self, bytes: Bytes) -> TensorId {
        let storage = self.data.storages.push(Storage { bytes });
        let name = format!("value {}", self.data.tensors.len());
        let tensor = self.data.tensors.push(Tensor { name, storage });
        self.held.push(tensor);
        tensor
    }

    /// A tensor over another, in its storage.
    fn over(&mut self, old: TensorId) -> TensorId {
        let storage = self.data.tensors[old].storage;
        let name = format!("value {}", self.data.tensors.len());
        let new = self.data.tensors.push(Tensor { name, storage });
        self.held[storage] = new;
        new
    }

    fn op(&mut self, u: &mut Unstructured<'_>, index: usize, phase: Phase) -> Result<()> {
        let alive: Vec<TensorId> = self.alive().collect();
        let mut reads = Vec::new();
        if !alive.is_empty() {
            for _ in 0..u.int_in_range(0..=3)? {
                reads.push(*u.choose(&alive)?);
            }
        }
        let again = match u.int_in_range(0..=5)? {
            0 => Again::Never,
            1 => Again::Rng { stream: u.int_in_range(0..=9)? },
            _ => Again::Pure,
        };
        let mut outputs = Vec::new();
        let mut mutates = Vec::new();
        for &old in &reads {
            if u.ratio(1, 5)? && !mutates.iter().any(|m: &Mutation| m.old == old) {
                let new = self.over(old);
                mutates.push(Mutation { old, new });
                outputs.push(new);
            }
        }
        let mut may_reuse = Vec::new();
        for _ in 0..u.int_in_range(u32::from(outputs.is_empty())..=2)? {
            let bytes = bytes(u)?;
            let output = self.fresh(bytes);
            outputs.push(output);
            for &input in &reads {
                let pair = Reuse { input, output };
                if self.bytes(input) >= bytes && !may_reuse.contains(&pair) && u.ratio(2, 3)? {
                    may_reuse.push(pair);
                }
            }
        }
        let workspace = if u.ratio(1, 3)? { bytes(u)? } else { Bytes::ZERO };
        let (flops, moved) = (u.int_in_range(0..=100)?, Bytes(u.int_in_range(0..=100)?));
        // From numbers that matter to nothing else, so that a fixed seed still draws the same ops.
        let work = Work { flops, half_flops: if flops % 5 == 3 { flops / 2 } else { 0 }, moved };
        let kind = (*u.choose(&["", "relu", "conv2d", "two words", "quoted \"\\ \n"])?).to_owned();
        let name = format!("op {index}");
        // From numbers that matter to nothing else, so that a fixed seed still draws the same ops.
        let mut after = Vec::new();
        if !self.data.ops.is_empty() && work.flops % 4 == 1 {
            after.push(OpId::new(work.moved.get() as usize % self.data.ops.len()));
        }
        let line = if work.flops % 3 == 2 { format!("\"a model\".py:{index}") } else { String::new() };
        self.data.ops.push(Op {
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
            line,
        });
        Ok(())
    }

    /// An op that writes another tensor of the same size.
    fn last_resort(&mut self, like: TensorId) -> TensorId {
        let output = self.fresh(self.bytes(like));
        self.data.ops.push(Op {
            name: "one more".to_owned(),
            kind: String::new(),
            phase: Phase::Update,
            again: Again::Pure,
            reads: Vec::new(),
            outputs: vec![output],
            mutates: Vec::new(),
            may_reuse: Vec::new(),
            after: Vec::new(),
            workspace: Bytes::ZERO,
            work: Work::default(),
            line: String::new(),
        });
        output
    }
}
