//! When things happen: a total order of actions on three lanes.
//!
//! **Order, not time, carries safety.** An action's number is its position. A buffer lives from the action that first writes it to its
//! [`Release`](Action::Release); lifetimes are half-open intervals of positions, never of predicted time, so a copy slower than predicted
//! cannot corrupt anything. When the schedule runs, each lane executes its actions in order, and an action starts when its lane is free
//! and every action in its [`waits`](Step::waits) has finished. Nothing else orders anything.
//!
//! ```text
//! position    0        1        2         3        4        5         6
//! compute     F0       F1                 F2                          B2
//! to-host              └─▶ offload t1
//! to-device                                                 prefetch t1 ─┘
//! (no lane)                               release b1
//! b1 lives    [──────────────────────────)                            t1 comes back to another buffer
//! ```
//!
//! `Release` and `HostRelease` run on no lane and take no time: they are the positions from which bytes may be used again. The action
//! that uses them again waits for the last access of the buffer that had them before.
//!
//! **The boundary.** Where each persistent value is when the iteration begins is where it must be when it ends. There is no separate list
//! of actions to establish that state: the prologue is the [`Schedule::boundary`], read once as instructions (*write the initial bytes to
//! this buffer; keep a host copy*).

use serde::{Deserialize, Serialize};

use crate::{ActionId, BufferId, Bytes, OpId, Table, TensorId};

/// Where an action runs. Each lane does one thing at a time, in order of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lane {
    /// Ops.
    Compute,
    /// Copies from the device to the host.
    ToHost,
    /// Copies from the host to the device.
    ToDevice,
}

impl Lane {
    /// All lanes, in the order of [`Lane::index`].
    pub const ALL: [Self; 3] = [Self::Compute, Self::ToHost, Self::ToDevice];

    /// 0, 1 or 2.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name in files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::ToHost => "to-host",
            Self::ToDevice => "to-device",
        }
    }
}

/// One run of an op: which buffer it finds each input in, and which buffer it writes each output to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Launch {
    /// The op.
    pub op: OpId,
    /// A buffer for each of the op's reads, in their order.
    pub reads: Vec<BufferId>,
    /// A buffer for each of the op's outputs, in their order. The same buffer as an input's means writing in place: required where
    /// the op mutates, a choice where it may reuse.
    pub writes: Vec<BufferId>,
    /// The buffer for the op's workspace, alive at this position only; `None` if the op needs none.
    pub workspace: Option<BufferId>,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Runs an op for the first time.
    Compute(Launch),
    /// Runs an op again, to have its outputs again.
    Recompute(Launch),
    /// Copies a value to the host. The host copy is finished when the action is, and stays until its `HostRelease`.
    Offload {
        /// The value.
        value: TensorId,
        /// The buffer that holds it.
        from: BufferId,
    },
    /// Copies a value back from its host copy.
    Prefetch {
        /// The value.
        value: TensorId,
        /// The buffer that will hold it; reserved from this position on.
        to: BufferId,
    },
    /// Ends a buffer's residence. Its bytes may be used by later actions that wait for its last access.
    Release {
        /// The buffer.
        buffer: BufferId,
    },
    /// Ends a host copy.
    HostRelease {
        /// The value whose host copy is given up.
        value: TensorId,
    },
}

impl Action {
    /// The lane it runs on; `None` for releases.
    pub const fn lane(&self) -> Option<Lane> {
        match self {
            Self::Compute(_) | Self::Recompute(_) => Some(Lane::Compute),
            Self::Offload { .. } => Some(Lane::ToHost),
            Self::Prefetch { .. } => Some(Lane::ToDevice),
            Self::Release { .. } | Self::HostRelease { .. } => None,
        }
    }

    /// The run of an op, first or repeated.
    pub const fn launch(&self) -> Option<&Launch> {
        match self {
            Self::Compute(launch) | Self::Recompute(launch) => Some(launch),
            _ => None,
        }
    }
}

/// One action with what it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Step {
    /// What happens.
    pub action: Action,
    /// Earlier actions on other lanes that must have finished before it starts.
    #[serde(default)]
    pub waits: Vec<ActionId>,
}

/// One residence of a storage in the arena, or one action's workspace. It may hold successive values, by mutation or chosen reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Buffer {
    /// Its size: at least that of every value it holds.
    pub bytes: Bytes,
}

/// Where a persistent value is between two iterations: in a device buffer, in a host copy, or in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Home {
    /// The device buffer. It is alive when the iteration begins and when it ends, at one offset; in between it may be released and
    /// taken again (a residence that wraps over the iteration's end).
    pub device: Option<BufferId>,
    /// Whether there is a host copy.
    pub host: bool,
}

impl Home {
    /// In a device buffer only.
    pub const fn device(buffer: BufferId) -> Self {
        Self { device: Some(buffer), host: false }
    }
    /// In a host copy only.
    pub const HOST: Self = Self { device: None, host: true };
}

/// What one iteration does, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// Residences and workspaces.
    pub buffers: Table<BufferId, Buffer>,
    /// Actions, by position.
    pub steps: Table<ActionId, Step>,
    /// A home for each persistent value of the trace, in the trace's order.
    pub boundary: Vec<Home>,
}
