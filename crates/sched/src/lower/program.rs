//! The result of the [analysis](super::analysis), as data: residencies, copies, and the residencies that every place uses.

use elbowroom_ir::schedule::Buffer;
use elbowroom_ir::{BufferId, Id, Table, TensorId};

use crate::policy::{Gap, SequenceIndex};

/// What ends a residency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// The op at a place used it last; `None`: no op does.
    After(Option<SequenceIndex>),
    /// An offload, and the op that used it last.
    Offload(u32),
    /// The boundary: it lives on into the next iteration.
    Never,
}

/// What begins a residency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    Boundary,
    Op(SequenceIndex),
    Prefetch(u32),
}

/// One stay of a storage in the arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Residency {
    /// The tensor that it was opened for.
    pub value: TensorId,
    pub buffer: BufferId,
    /// Rounded up to the alignment.
    pub bytes: u64,
    pub open: Open,
    pub close: Close,
    /// An earlier residency in the same buffer (a home that was left), which must be over first.
    pub follows: Option<u32>,
}

/// One copy to the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offload {
    pub gap: Gap,
    pub residency: u32,
    /// Where its tensor is made; `None` at the beginning.
    pub made: Option<SequenceIndex>,
    /// Whether the copy is prefetched later.
    pub wanted: bool,
    /// Whether the residency ends with it.
    pub closes: bool,
}

impl Offload {
    /// The place from which its tensor is idle.
    pub(crate) fn idle_from(&self) -> SequenceIndex {
        self.gap.after.map_or(0, |place| place + 1)
    }
}

/// One copy back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetch {
    pub gap: Gap,
    pub residency: u32,
    /// The place that needs it; the length of the sequence for the boundary.
    pub needed: SequenceIndex,
    /// The residency that the tensor left, if no other tensor took it over.
    pub left: Option<u32>,
    /// Whether the host copy is given up afterwards.
    pub last: bool,
}

/// Everything that follows from a policy. Lists per place are cut out of one vector by `starts`.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub residencies: Vec<Residency>,
    pub offloads: Vec<Offload>,
    pub prefetches: Vec<Prefetch>,
    pub buffers: Table<BufferId, Buffer>,
    /// Residencies of the operands of every place: reads, then outputs.
    pub operands: Vec<u32>,
    pub operand_starts: Vec<u32>,
    pub workspaces: Vec<Option<BufferId>>,
    /// Per persistent tensor: residency at the beginning, if on the device.
    pub at_boundaries: Vec<Option<u32>>,
    /// Host copies of the boundary that are never prefetched and that are not those of the end.
    pub stale: Vec<TensorId>,
}

impl Program {
    /// An empty program with capacity for a sequence of `places` ops that touches tensors `touches` times.
    pub(crate) fn with_capacity(places: usize, touches: usize) -> Self {
        Self {
            residencies: Vec::with_capacity(touches),
            operands: Vec::with_capacity(touches),
            operand_starts: Vec::with_capacity(places + 1),
            workspaces: Vec::with_capacity(places),
            ..Self::default()
        }
    }

    /// Renumbers buffers without those that gave way to a home.
    pub(crate) fn drop_unused_buffers(&mut self) {
        let mut used = vec![false; self.buffers.len()];
        let residencies = self.residencies.iter().map(|residency| residency.buffer);
        for buffer in residencies.chain(self.workspaces.iter().copied().flatten()) {
            used[buffer.index()] = true;
        }
        if used.iter().all(|&used| used) {
            return;
        }
        let mut buffers = Table::new();
        let renumbered: Vec<Option<BufferId>> = used
            .iter()
            .zip(self.buffers.values())
            .map(|(&used, &buffer)| used.then(|| buffers.push(buffer)))
            .collect();
        let places = self.residencies.iter_mut().map(|residency| &mut residency.buffer);
        for buffer in places.chain(self.workspaces.iter_mut().flatten()) {
            *buffer = renumbered[buffer.index()].unwrap_or(*buffer);
        }
        self.buffers = buffers;
    }

    /// Moves the end of every residency that an op ends to the last op, except where another tensor has to follow in the same buffer.
    pub(crate) fn close_at_the_end(&mut self, places: usize) {
        let Some(last) = places.checked_sub(1) else { return };
        let mut followed = vec![false; self.residencies.len()];
        for residency in self.residencies.iter().filter_map(|residency| residency.follows) {
            followed[residency as usize] = true;
        }
        for (residency, followed) in self.residencies.iter_mut().zip(followed) {
            if let (Close::After(Some(place)), false) = (&mut residency.close, followed) {
                *place = last as SequenceIndex;
            }
        }
    }

    /// Residencies of a place's operands: reads, then outputs.
    pub(crate) fn operands(&self, place: usize) -> &[u32] {
        &self.operands[self.operand_starts[place] as usize..self.operand_starts[place + 1] as usize]
    }

    /// The first place that needs a residency on the device.
    pub(crate) fn first_place(&self, residency: &Residency) -> SequenceIndex {
        match residency.open {
            Open::Boundary => 0,
            Open::Op(place) => place,
            Open::Prefetch(copy) => self.prefetches[copy as usize].needed,
        }
    }

    /// The last place that needs a residency on the device; `None` if it is over before the first, `end` for the boundary.
    pub(crate) fn last_place(&self, residency: &Residency, end: SequenceIndex) -> Option<SequenceIndex> {
        match residency.close {
            Close::Never => Some(end),
            Close::After(place) => place,
            Close::Offload(copy) => self.offloads[copy as usize].gap.after,
        }
    }

    /// The live memory at every place, and at the boundary, if every copy took no time and came as late, or left as early, as it may: no
    /// schedule of the policy can do with less.
    pub(crate) fn least_live(&self, end: SequenceIndex) -> Vec<u64> {
        let mut change = vec![0i64; end as usize + 2];
        for residency in &self.residencies {
            if let Some(last) = self.last_place(residency, end) {
                change[self.first_place(residency) as usize] += residency.bytes as i64;
                change[last as usize + 1] -= residency.bytes as i64;
            }
        }
        let mut live_bytes = 0i64;
        change[..=end as usize]
            .iter()
            .map(|&change| {
                live_bytes += change;
                live_bytes as u64
            })
            .collect()
    }
}
