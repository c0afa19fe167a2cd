//! What follows from a policy, as data: residences, copies, and which of them every place needs.

use elbowroom_ir::schedule::Buffer;
use elbowroom_ir::{BufferId, Id, Table, TensorId};

use crate::policy::{Gap, Place};

/// What ends a residence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// The op at a place used it last; `None`: nobody does.
    After(Option<Place>),
    /// An offload, and the op that used it last.
    Offload(u32),
    /// The boundary: it lives on into the next iteration.
    Never,
}

/// What begins a residence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    Boundary,
    Op(Place),
    Fetch(u32),
}

/// One stay of a storage in the arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Residence {
    /// Who opened it.
    pub value: TensorId,
    pub buffer: BufferId,
    /// Rounded up to the alignment.
    pub bytes: u64,
    pub open: Open,
    pub close: Close,
    /// An earlier residence in the same buffer (a home that was left), which must be over first.
    pub follows: Option<u32>,
}

/// One copy to the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offload {
    pub gap: Gap,
    pub residence: u32,
    /// Where its value is made; `None` at the beginning.
    pub made: Option<Place>,
    /// Whether anybody needs the copy.
    pub wanted: bool,
    /// Whether the residence ends with it.
    pub closes: bool,
}

/// One copy back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    pub gap: Gap,
    pub residence: u32,
    /// The place that needs it; the length of the sequence for the boundary.
    pub needed: Place,
    /// The residence that the value left, if nobody took it over.
    pub left: Option<u32>,
    /// Whether the host copy is given up afterwards.
    pub last: bool,
}

/// Everything that follows from a policy. Lists per place are cut out of one vector by `starts`.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub residences: Vec<Residence>,
    pub offloads: Vec<Offload>,
    pub fetches: Vec<Fetch>,
    pub buffers: Table<BufferId, Buffer>,
    /// Residences of the operands of every place: reads, then outputs.
    pub operands: Vec<u32>,
    pub operand_starts: Vec<u32>,
    pub workspaces: Vec<Option<BufferId>>,
    /// Per persistent value: residence at the beginning, if on the device.
    pub homes: Vec<Option<u32>>,
    /// Host copies of the boundary that nobody fetches and that are not those of the end.
    pub stale: Vec<TensorId>,
}

impl Program {
    /// Renumbers buffers without those that gave way to a home.
    pub(crate) fn drop_unused_buffers(&mut self) {
        let mut used = vec![false; self.buffers.len()];
        let residences = self.residences.iter().map(|residence| residence.buffer);
        for buffer in residences.chain(self.workspaces.iter().copied().flatten()) {
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
        let places = self.residences.iter_mut().map(|residence| &mut residence.buffer);
        for buffer in places.chain(self.workspaces.iter_mut().flatten()) {
            *buffer = renumbered[buffer.index()].unwrap_or(*buffer);
        }
        self.buffers = buffers;
    }

    /// Residences of a place's operands: reads, then outputs.
    pub(crate) fn operands(&self, place: usize) -> &[u32] {
        &self.operands[self.operand_starts[place] as usize..self.operand_starts[place + 1] as usize]
    }

    /// The first place that needs a residence on the device.
    pub(crate) fn first_place(&self, residence: &Residence) -> Place {
        match residence.open {
            Open::Boundary => 0,
            Open::Op(place) => place,
            Open::Fetch(copy) => self.fetches[copy as usize].needed,
        }
    }

    /// The last place that needs a residence on the device; `None` if it is over before the first, `end` for the boundary.
    pub(crate) fn last_place(&self, residence: &Residence, end: Place) -> Option<Place> {
        match residence.close {
            Close::Never => Some(end),
            Close::After(place) => place,
            Close::Offload(copy) => self.offloads[copy as usize].gap.after,
        }
    }

    /// The load at every place, and at the boundary, if every copy took no time and came as late, or left as early, as it may: no
    /// schedule of the policy can do with less.
    pub(crate) fn least_load(&self, end: Place) -> Vec<u64> {
        let mut change = vec![0i64; end as usize + 2];
        for residence in &self.residences {
            if let Some(last) = self.last_place(residence, end) {
                change[self.first_place(residence) as usize] += residence.bytes as i64;
                change[last as usize + 1] -= residence.bytes as i64;
            }
        }
        let mut load = 0i64;
        change[..=end as usize]
            .iter()
            .map(|&change| {
                load += change;
                load as u64
            })
            .collect()
    }
}
