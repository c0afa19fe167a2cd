//! When things happen: a total order of actions on three streams.
//!
//! **Order, not time, carries safety.** An action's number is its position. A buffer lives from the action that first writes it to its
//! [`Release`](Action::Release); lifetimes are half-open intervals of positions, never of predicted time, so a copy slower than predicted
//! cannot corrupt anything. When the schedule runs, each stream executes its actions in order, and an action starts when its stream is free
//! and every action in its [`waits`](Step::waits) has finished. Nothing else orders anything.
//!
//! ```text
//! position    0        1        2         3        4        5         6
//! compute     F0       F1                 F2                          B2
//! to-host              └─▶ offload t1
//! to-device                                                 prefetch t1 ─┘
//! (no stream)                               release b1
//! b1 lives    [──────────────────────────)                            t1 comes back to another buffer
//! ```
//!
//! `Release` and `HostRelease` run on no stream and take no time: they are the positions from which bytes may be reused. The action that
//! reuses them waits for the last access to the buffer that occupied them.
//!
//! **The boundary.** Where each persistent tensor is at the start of the iteration is where it must be at the end. There is no separate
//! list of actions that establishes this state: [`Schedule::boundary`] is the prologue, read once as instructions (*write the initial bytes
//! to this buffer; keep a host copy*).

use serde::{Deserialize, Serialize};

use crate::{ActionId, BufferId, Bytes, OpId, Table, TensorId};

/// Where an action runs. A stream runs one action at a time, in order of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    /// Ops.
    Compute,
    /// Copies from the device to the host.
    ToHost,
    /// Copies from the host to the device.
    ToDevice,
}

impl Stream {
    /// All streams, in the order of [`Stream::index`].
    pub const ALL: [Self; 3] = [Self::Compute, Self::ToHost, Self::ToDevice];

    /// 0, 1 or 2.
    #[inline]
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

/// One run of an op: the buffer of each input and of each output.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Launch {
    /// The op.
    pub op: OpId,
    /// A buffer for each of the op's reads, in their order.
    pub reads: Vec<BufferId>,
    /// A buffer for each of the op's outputs, in order. The same buffer as an input's means writing in place: required if the op mutates, a
    /// choice if it may reuse.
    pub writes: Vec<BufferId>,
    /// The buffer for the op's workspace, alive at this position only; `None` if the op needs none.
    pub workspace: Option<BufferId>,
}

/// An action of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Runs an op for the first time.
    Compute(Launch),
    /// Runs an op again, because its outputs were evicted.
    Recompute(Launch),
    /// Copies a tensor to the host. The host copy is complete when the action is, and exists until its `HostRelease`.
    Offload {
        /// The tensor.
        #[serde(rename = "value")]
        tensor: TensorId,
        /// The buffer that holds it.
        from: BufferId,
    },
    /// Copies a tensor back from its host copy.
    Prefetch {
        /// The tensor.
        #[serde(rename = "value")]
        tensor: TensorId,
        /// The buffer that receives it; reserved from this position on.
        to: BufferId,
    },
    /// Ends a buffer's residency. Later actions that wait for its last access may reuse its bytes.
    Release {
        /// The buffer.
        buffer: BufferId,
    },
    /// Discards a host copy.
    HostRelease {
        /// The tensor whose host copy is discarded.
        #[serde(rename = "value")]
        tensor: TensorId,
    },
}

impl Action {
    /// The stream it runs on; `None` for releases.
    pub const fn stream(&self) -> Option<Stream> {
        match self {
            Self::Compute(_) | Self::Recompute(_) => Some(Stream::Compute),
            Self::Offload { .. } => Some(Stream::ToHost),
            Self::Prefetch { .. } => Some(Stream::ToDevice),
            Self::Release { .. } | Self::HostRelease { .. } => None,
        }
    }

    /// The run of an op, first or repeated; `None` for other actions.
    pub const fn launch(&self) -> Option<&Launch> {
        match self {
            Self::Compute(launch) | Self::Recompute(launch) => Some(launch),
            _ => None,
        }
    }
}

/// One action with its waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// Earlier actions on other streams that must finish before it starts.
    #[serde(default)]
    pub waits: Vec<ActionId>,
}

/// One residency of a storage in the arena, or one action's workspace. It may hold successive tensors, by mutation or chosen reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Buffer {
    /// Its size: at least that of every tensor in it.
    pub bytes: Bytes,
}

/// Where a persistent tensor is between two iterations: in a device buffer, in a host copy, or in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BoundaryState {
    /// The device buffer. It is alive at the start and at the end of the iteration, at one offset; in between it may be released and taken
    /// again (a residency that wraps around the end of the iteration).
    pub device: Option<BufferId>,
    /// Whether there is a host copy.
    pub host: bool,
}

impl BoundaryState {
    /// In a device buffer only.
    pub const fn device(buffer: BufferId) -> Self {
        Self { device: Some(buffer), host: false }
    }
    /// In a host copy only.
    pub const HOST: Self = Self { device: None, host: true };
}

/// The actions of one iteration, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// Residencies and workspaces.
    pub buffers: Table<BufferId, Buffer>,
    /// Actions, by position.
    pub steps: Table<ActionId, Step>,
    /// The boundary state of each persistent tensor of the trace, in the trace's order.
    pub boundary: Vec<BoundaryState>,
}
