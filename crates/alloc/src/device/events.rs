//! The events of a program on a device, and the iteration built from them: a trace for a planner.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use elbowroom_ir::planning::{CostSource, Costs};
use elbowroom_ir::trace::{Again, Mutation, Op, Persistent, Phase, Storage, Tensor, Trace, TraceData, Work};
use elbowroom_ir::{Bytes, Nanos, TensorId};

use super::BlockHandle;

/// An event of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeviceEvent {
    /// A new block of this many bytes.
    Malloc(BlockHandle, usize),
    Free(BlockHandle),
    /// An operation with the blocks that it only reads and the blocks that it writes.
    Exec(Vec<BlockHandle>, Vec<BlockHandle>),
}

impl DeviceEvent {
    /// The blocks of the event.
    pub fn blocks(&self) -> impl Iterator<Item = BlockHandle> {
        let (one, reads, writes): (_, &[BlockHandle], &[BlockHandle]) = match self {
            Self::Malloc(block, _) | Self::Free(block) => (Some(*block), &[], &[]),
            Self::Exec(reads, writes) => (None, reads, writes),
        };
        one.into_iter().chain(reads.iter().chain(writes).copied())
    }

    /// A number that is the same for the corresponding event of the next iteration: a block is identified by the time since it was last
    /// used.
    pub fn token(&self, ago: impl Fn(BlockHandle) -> usize) -> u64 {
        let mut hasher = DefaultHasher::new();
        match self {
            Self::Malloc(_, bytes) => (0, bytes).hash(&mut hasher),
            Self::Free(block) => (1, ago(*block)).hash(&mut hasher),
            Self::Exec(reads, _) => {
                (2, reads.len()).hash(&mut hasher);
                self.blocks().for_each(|block| ago(block).hash(&mut hasher));
            }
        }
        hasher.finish()
    }

    /// The same event with other blocks.
    fn map(&self, to: impl Fn(BlockHandle) -> Option<BlockHandle>) -> Option<Self> {
        let all = |blocks: &[BlockHandle]| blocks.iter().map(|&block| to(block)).collect::<Option<Vec<_>>>();
        Some(match self {
            Self::Malloc(block, bytes) => Self::Malloc(to(*block)?, *bytes),
            Self::Free(block) => Self::Free(to(*block)?),
            Self::Exec(reads, writes) => Self::Exec(all(reads)?, all(writes)?),
        })
    }
}

/// An event whose blocks are numbered within the iteration: first the blocks alive at its start, then those created in it, in order.
#[derive(Clone, Debug)]
pub(super) enum ExpectedEvent {
    Malloc(usize),
    Free(usize),
    Exec(Vec<usize>, Vec<usize>),
}

/// One iteration as a trace, and its connection to the program's blocks.
pub(super) struct DeviceIteration {
    pub trace: Arc<Trace>,
    pub costs: Costs,
    pub events: Vec<ExpectedEvent>,
    /// The blocks that hold the trace's persistent tensors at the start of the next iteration, in the trace's order.
    pub blocks: Vec<BlockHandle>,
    /// For each of them, the number of the block that takes its role at the end of the iteration.
    pub successors: Vec<usize>,
}

/// How the blocks of one period correspond to those of the next.
pub(super) struct Succession {
    /// The event that created each block, and the reverse.
    made: BTreeMap<BlockHandle, usize>,
    at: BTreeMap<usize, BlockHandle>,
    /// Blocks created or freed within the two periods: another block takes their role one period later. All other blocks keep theirs.
    passing: BTreeSet<BlockHandle>,
    period: usize,
}

impl Succession {
    /// Compares the last two periods. Returns their correspondence if the second period equals the first with every block replaced by its
    /// successor. Otherwise returns the smallest longer period that is still possible, or 0. (A loop over a ring of blocks looks the same
    /// each time until it returns to the first block.)
    pub fn new(events: &[(DeviceEvent, Nanos)], period: usize) -> Result<Self, usize> {
        let Some(first) = events.len().checked_sub(2 * period) else { return Err(0) };
        let mut succession =
            Self { made: BTreeMap::new(), at: BTreeMap::new(), passing: BTreeSet::new(), period };
        for (at, (event, _)) in events.iter().enumerate() {
            if let DeviceEvent::Malloc(block, _) = event {
                succession.made.insert(*block, at);
                succession.at.insert(at, *block);
            }
            if let (DeviceEvent::Malloc(block, _) | DeviceEvent::Free(block), true) = (event, at >= first) {
                succession.passing.insert(*block);
            }
        }
        for at in first + period..events.len() {
            let (new, old) = (&events[at].0, &events[at - period].0);
            if old.map(|block| succession.successor(block)).as_ref() == Some(new) {
                continue;
            }
            let stays = |block: &BlockHandle| !succession.passing.contains(block);
            let blocks: Vec<BlockHandle> = new.blocks().filter(stays).collect();
            let same = |(event, _): &(DeviceEvent, _)| {
                blocks.iter().all(|block| event.blocks().any(|b| b == *block))
            };
            let before = events[..at].iter().rposition(same).filter(|_| !blocks.is_empty());
            return Err(before.map_or(0, |before| at - before));
        }
        Ok(succession)
    }

    /// The block that takes a block's role one period later; `None` if it is unknown.
    fn successor(&self, block: BlockHandle) -> Option<BlockHandle> {
        if !self.passing.contains(&block) {
            return Some(block);
        }
        self.at.get(&(self.made.get(&block)? + self.period)).copied()
    }
}

impl DeviceIteration {
    /// Builds the last period as an iteration, if it leaves the device in the state in which it found it.
    pub fn new(
        events: &[(DeviceEvent, Nanos)],
        succession: &Succession,
        size: impl Fn(BlockHandle) -> Option<usize>,
    ) -> Option<Self> {
        let start = events.len().checked_sub(succession.period)?;
        let now = &events[start..];
        // Blocks that no event uses stay in place, or are offloaded if a planned block needs their bytes.
        let touched: BTreeSet<BlockHandle> = now.iter().flat_map(|(event, _)| event.blocks()).collect();
        let old = |block: &BlockHandle| succession.made.get(block).is_none_or(|&at| at < start);
        let mut found: BTreeSet<BlockHandle> = touched.into_iter().filter(old).collect();
        // A successor of an old block may itself be old and unused.
        let mut next: Vec<BlockHandle> = found.iter().copied().collect();
        while let Some(block) = next.pop() {
            let successor = succession.successor(block)?;
            if old(&successor) && found.insert(successor) {
                next.push(successor);
            }
        }
        let found: Vec<BlockHandle> = found.into_iter().collect();
        let mut numbers: BTreeMap<BlockHandle, usize> =
            found.iter().enumerate().map(|(number, &block)| (block, number)).collect();

        let sizes: BTreeMap<BlockHandle, usize> = events
            .iter()
            .filter_map(|(event, _)| match event {
                DeviceEvent::Malloc(block, bytes) => Some((*block, *bytes)),
                _ => None,
            })
            .collect();
        let size = |block: BlockHandle| sizes.get(&block).copied().or_else(|| size(block));
        let mut builder = TraceBuilder::default();
        for &block in &found {
            let value = builder.tensor(size(block)?);
            builder.now.insert(block, value);
        }
        let begins: Vec<TensorId> = found.iter().map(|block| builder.now[block]).collect();
        let mut expected = Vec::with_capacity(now.len());
        let mut nanos = Vec::new();
        for (event, time) in now {
            let number = |block: &BlockHandle| numbers.get(block).copied();
            expected.push(match event {
                DeviceEvent::Malloc(block, bytes) => {
                    let number = numbers.len();
                    numbers.insert(*block, number);
                    ExpectedEvent::Malloc(*bytes)
                }
                DeviceEvent::Free(block) => ExpectedEvent::Free(number(block)?),
                DeviceEvent::Exec(reads, writes) => {
                    builder.exec(reads, writes, &size)?;
                    nanos.push(*time);
                    let all = |blocks: &[BlockHandle]| blocks.iter().map(number).collect::<Option<Vec<_>>>();
                    ExpectedEvent::Exec(all(reads)?, all(writes)?)
                }
            });
        }
        let ends = found.iter().map(|&block| succession.successor(block)).collect::<Option<Vec<_>>>()?;
        let pairs = begins.iter().zip(&ends);
        builder.data.persistent = pairs
            .map(|(&begin, end)| Some(Persistent { begin, end: *builder.now.get(end)? }))
            .collect::<Option<Vec<_>>>()?;
        builder.data.name = "blocks".to_owned();
        let trace = Arc::new(Trace::new(builder.data).ok()?);
        let costs = Costs { nanos: nanos.into(), source: CostSource::Measured };
        let successors = ends.iter().map(|end| numbers.get(end).copied()).collect::<Option<Vec<_>>>()?;
        Some(Self { trace, costs, events: expected, blocks: ends, successors })
    }
}

/// The trace under construction.
#[derive(Default)]
struct TraceBuilder {
    data: TraceData,
    /// The tensor that each block holds.
    now: BTreeMap<BlockHandle, TensorId>,
}

impl TraceBuilder {
    /// A tensor in a storage of its own.
    fn tensor(&mut self, bytes: usize) -> TensorId {
        let storage = self.data.storages.push(Storage { bytes: Bytes(bytes as u64) });
        self.data.tensors.push(Tensor { name: String::new(), storage })
    }

    /// Adds an operation. It may leave part of a written block unchanged, so the old contents count as read.
    fn exec(
        &mut self,
        reads: &[BlockHandle],
        writes: &[BlockHandle],
        size: &impl Fn(BlockHandle) -> Option<usize>,
    ) -> Option<()> {
        let mut op = Op {
            name: format!("op {}", self.data.ops.len()),
            kind: String::new(),
            phase: Phase::Forward,
            again: Again::Never,
            reads: Vec::new(),
            outputs: Vec::new(),
            mutates: Vec::new(),
            may_reuse: Vec::new(),
            after: Vec::new(),
            workspace: Bytes::ZERO,
            work: Work::default(),
            line: String::new(),
        };
        for &block in reads {
            // A block that was created in the iteration and not yet written holds zeros, which no operation has produced.
            op.reads.push(*self.now.get(&block)?);
            op.work.moved += Bytes(size(block)? as u64);
        }
        for &block in writes {
            let bytes = size(block)?;
            op.work.moved += Bytes(bytes as u64);
            let new = match self.now.get(&block) {
                Some(&old) => {
                    let storage = self.data.tensors[old].storage;
                    let new = self.data.tensors.push(Tensor { name: String::new(), storage });
                    op.reads.push(old);
                    op.mutates.push(Mutation { old, new });
                    new
                }
                None => self.tensor(bytes),
            };
            op.outputs.push(new);
            self.now.insert(block, new);
        }
        self.data.ops.push(op);
        Some(())
    }
}
