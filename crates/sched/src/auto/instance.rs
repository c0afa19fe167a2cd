//! The request as the search uses it: small integers in flat tables.

use elbowroom_ir::planning::Request;
use elbowroom_ir::trace::Again;
use elbowroom_ir::{Id, OpId, TensorId};

/// No op, or no tensor.
pub(crate) const NONE: u32 = u32::MAX;

/// One tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    /// Size rounded up to the alignment, in units.
    pub size: i32,
    /// The op that makes it, or [`NONE`].
    pub maker: u32,
    /// Whether it is there when the iteration begins.
    pub begins: bool,
    /// Whether it must be there when the iteration ends.
    pub ends: bool,
    /// If it is there at the beginning and may be on the host instead: the tensor, perhaps itself, with which it ends. Otherwise [`NONE`].
    pub becomes: u32,
    /// If it is the end of such a tensor: that tensor. Otherwise [`NONE`].
    pub began: u32,
    /// Whether the user wants it to stay on the device.
    pub pinned: bool,
}

impl Value {
    /// Whether it is there when the iteration begins and may be on the host instead.
    pub fn may_begin_on_host(&self) -> bool {
        self.becomes != NONE
    }
}

/// A permitted reuse whose sizes are equal: the only kind that [`Reuses::Every`](crate::policy::Reuses::Every) takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takeover {
    pub input: u32,
    pub size: i32,
}

/// One op.
#[derive(Clone, Debug)]
pub(crate) struct OpRow {
    /// Duration.
    pub time: u64,
    /// Units that it reserves for outputs and workspace if it reuses nothing.
    pub fresh: i32,
    /// Tensors read, each once, without those that are always on the device.
    pub reads: Vec<u32>,
    /// Tensors made.
    pub outputs: Vec<u32>,
    /// Reuse that may be taken, one list per output, in the order in which it is tried.
    pub takeovers: Vec<Vec<Takeover>>,
    /// The last stage in which it may be recomputed; 0 if it may not.
    pub latest: u32,
}

/// A request as the search sees it. *Stage* t is op t of the trace with everything that is recomputed just before it.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// The ops of the trace in the order in which they run first. Ops are numbered by their place in it.
    pub order: Vec<OpId>,
    pub ops: Vec<OpRow>,
    pub values: Vec<Value>,
    /// Limit on the live memory in units, without tensors that are always on the device.
    pub limit: i32,
    /// Sum of durations.
    pub total: u64,
    /// Bytes of a unit.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests compare bytes"))]
    pub unit: u64,
    /// Excess is counted in 2^shift units, so that its sum over a sequence stays small.
    pub shift: u32,
}

impl Instance {
    /// Tables for a request whose ops run first in some order. Sizes are rounded up and the limit down to a unit in which sums of live memory
    /// are 31-bit numbers; for aligned sizes that is exact.
    pub(crate) fn new(request: &Request<'_>, order: Vec<OpId>) -> Self {
        let trace = request.trace;
        let align = request.machine.align;
        let bytes = |value: TensorId| trace.bytes(value).align_up(align).get();
        let mut begins = vec![false; trace.tensors().len()];
        let mut ends = begins.clone();
        let mut stays = begins.clone();
        let mut overwriter = vec![NONE; trace.tensors().len()];
        let mut number = vec![NONE; trace.ops().len()];
        for (index, id) in (0u32..).zip(&order) {
            number[id.index()] = index;
            for mutation in &trace.ops()[*id].mutates {
                overwriter[mutation.old.index()] = index;
            }
        }
        let pinned = |value: TensorId| request.pins.is_some_and(|pins| pins.kept.contains(&value));
        let mut resident = 0;
        let (mut becomes, mut began) = (vec![NONE; trace.tensors().len()], vec![NONE; trace.tensors().len()]);
        for pair in trace.persistent() {
            // A tensor that never changes matters to the search only if it can be offloaded.
            let leaves = request.freedom.offload
                && trace.storage(pair.begin) == trace.storage(pair.end)
                && !trace.users(pair.begin).is_empty()
                && !pinned(pair.begin)
                && !pinned(pair.end);
            if leaves {
                (becomes[pair.begin.index()], began[pair.end.index()]) = (pair.end.0, pair.begin.0);
            }
            if pair.begin == pair.end && !leaves {
                stays[pair.begin.index()] = true;
                resident += bytes(pair.begin);
            } else {
                begins[pair.begin.index()] = true;
                ends[pair.end.index()] = true;
            }
        }
        let all: u64 = trace.tensors().ids().map(bytes).sum::<u64>()
            + trace.ops().values().map(|op| op.workspace.align_up(align).get()).max().unwrap_or(0);
        let common = common_unit(request);
        let mut unit = common;
        while all / unit >= 1 << 30 {
            unit *= 2;
        }
        let size = |bytes: u64| i32::try_from(bytes.div_ceil(unit)).unwrap_or(i32::MAX);
        let values = trace
            .tensors()
            .ids()
            .map(|id| Value {
                size: size(bytes(id)),
                maker: trace.producer(id).map_or(NONE, |op| number[op.index()]),
                begins: begins[id.index()],
                ends: ends[id.index()],
                becomes: becomes[id.index()],
                began: began[id.index()],
                pinned: pinned(id),
            })
            .collect();
        let ops = order.iter().map(|&id| {
            let op = &trace.ops()[id];
            let mut reads: Vec<u32> = op.reads.iter().filter(|v| !stays[v.index()]).map(|v| v.0).collect();
            reads.sort_unstable();
            reads.dedup();
            let fresh = op.outputs.iter().filter(|&&v| op.overwrites(v).is_none());
            let fresh =
                fresh.map(|&v| size(bytes(v))).sum::<i32>() + size(op.workspace.align_up(align).get());
            let takeovers = op.outputs.iter().filter(|&&output| op.overwrites(output).is_none());
            let takeovers = takeovers.map(|&output| {
                let pairs = op.may_reuse.iter().filter(|pair| {
                    pair.output == output
                        && bytes(pair.input) == bytes(output)
                        && !stays[pair.input.index()]
                        && !begins[pair.input.index()]
                        && !ends[pair.input.index()]
                        && op.overwritten_by(pair.input).is_none()
                        && !op.outputs.contains(&pair.input)
                });
                pairs.map(|pair| Takeover { input: pair.input.0, size: size(bytes(output)) }).collect()
            });
            let pure = op.again != Again::Never && op.mutates.is_empty() && request.freedom.recompute;
            let latest = op.reads.iter().map(|v| overwriter[v.index()]).min().unwrap_or(NONE);
            OpRow {
                time: request.costs.nanos.get(id).map_or(0, |time| time.get()),
                fresh,
                reads,
                outputs: op.outputs.iter().map(|v| v.0).collect(),
                takeovers: takeovers.filter(|list: &Vec<Takeover>| !list.is_empty()).collect(),
                latest: if pure { latest } else { 0 },
            }
        });
        let ops: Vec<OpRow> = ops.collect();
        let limit = (request.live_limit.get() / unit).min(1 << 30) as i64 - resident.div_ceil(unit) as i64;
        let places = ops.len().max(1) as u64 * 4;
        let most = all.div_ceil(unit).max(1);
        Self {
            total: ops.iter().map(|op| op.time).sum(),
            ops,
            order,
            values,
            unit,
            limit: limit.clamp(-(1 << 30), 1 << 30) as i32,
            shift: ((places * most) >> 30).checked_ilog2().map_or(0, |log| log + 1),
        }
    }

    /// Whether an op may be recomputed in a stage.
    pub(crate) fn can_repeat(&self, stage: u32, op: u32) -> bool {
        op < stage && stage <= self.ops[op as usize].latest
    }

    /// When an op starts if nothing is recomputed and nothing waits; behind the last op, the end.
    pub(crate) fn start(&self, op: usize) -> u64 {
        self.ops.iter().take(op).map(|op| op.time).sum()
    }

    /// Whether a tensor may begin on the host and never changes, like a parameter that is not updated: the host has it already, so that an offload
    /// is no copy.
    pub(crate) fn is_constant(&self, value: u32) -> bool {
        self.values[value as usize].becomes == value
    }
}

/// The largest number that divides all aligned sizes and workspaces.
fn common_unit(request: &Request<'_>) -> u64 {
    let align = request.machine.align;
    let sizes = request.trace.storages().values().map(|s| s.bytes);
    let scratch = request.trace.ops().values().map(|op| op.workspace);
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    sizes.chain(scratch).map(|bytes| bytes.align_up(align).get()).fold(0, gcd).max(1)
}
