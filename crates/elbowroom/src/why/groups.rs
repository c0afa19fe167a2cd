//! What is alive when: the tensors in each buffer of a schedule, by kind and module.

use std::collections::{BTreeMap, BTreeSet};

use elbowroom_ir::machine::Machine;
use elbowroom_ir::packing::Interval;
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::trace::{Phase, Trace};
use elbowroom_ir::{ActionId, BufferId, Bytes, Id, OpId, Table, TensorId};
use elbowroom_sim::live::LiveMemory;
use elbowroom_sim::liveness::lifetimes;
use serde::Serialize;

use super::{KindShare, Saving, next_op};

/// Components of a name that make a module, at most: `layer1.0.conv1` of `layer1.0.conv1.weight`.
const DEEPEST: usize = 3;

/// Modules at the peak from which on names are not divided further.
const ENOUGH: usize = 5;

/// A group that is small at the peak is listed if this share of the peak, 1/20, is alive of it elsewhere.
const WORTH_A_LINE: u64 = 20;

/// What a tensor is in the training iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// Outlives the iteration, and the forward or backward phase uses it.
    Parameter,
    /// Outlives the iteration, and only the update phase uses it.
    OptimizerState,
    /// Made in the forward phase, the batch included.
    Activation,
    /// Made in the backward phase.
    Gradient,
    /// Made in the update phase for the update alone.
    Update,
    /// Scratch memory of one op.
    Workspace,
    /// An allocation of which only the line that made it is known.
    Allocation,
}

impl Kind {
    /// All kinds, in the order of legends.
    pub const ALL: [Self; 7] = [
        Self::Parameter,
        Self::OptimizerState,
        Self::Activation,
        Self::Gradient,
        Self::Update,
        Self::Workspace,
        Self::Allocation,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::OptimizerState => "optimizer-state",
            Self::Activation => "activation",
            Self::Gradient => "gradient",
            Self::Update => "update",
            Self::Workspace => "workspace",
            Self::Allocation => "allocation",
        }
    }
}

/// A position of the iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Moment {
    /// The op that runs there.
    pub op: String,
    /// Its number in the trace.
    pub number: usize,
    /// Its phase.
    pub phase: Phase,
    /// The line of the user's program that calls it; empty when unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub line: String,
}

/// The op that runs at a position of a schedule, or next after it.
pub(super) fn moment(trace: &Trace, schedule: &Schedule, position: u64) -> Moment {
    match next_op(trace, schedule, position) {
        Some(op) => moment_of(trace, op),
        None => Moment {
            op: "the end".to_owned(),
            number: trace.ops().len(),
            phase: Phase::Update,
            line: String::new(),
        },
    }
}

/// The moment at which an op runs.
pub(super) fn moment_of(trace: &Trace, op: OpId) -> Moment {
    let row = &trace.ops()[op];
    Moment { op: row.name.clone(), number: op.index(), phase: row.phase, line: row.line.clone() }
}

/// Tensors of one kind and module.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Group {
    /// The kind.
    pub kind: Kind,
    /// The first components of the tensors' names, or the line that allocated them.
    pub module: String,
    /// Bytes alive at the peak.
    pub bytes: Bytes,
    /// Number of tensors alive at the peak.
    pub tensors: usize,
    /// The largest of them.
    pub largest: Option<String>,
    /// Bytes that the op at the peak reads or writes.
    pub in_use_bytes: Bytes,
    /// The most bytes of the group that are alive at one time.
    pub most_bytes: Bytes,
    /// Peak live memory if no tensor of the group existed: no treatment of the group leads to a lower peak.
    pub peak_without_bytes: Bytes,
    /// Where that peak is.
    pub next_peak: Moment,
    /// What offloading those of its tensors that are idle at the peak saves; `None` if no tensor can leave, and for plans.
    pub offload: Option<Saving>,
    /// What recomputing those of its activations that are idle at the peak saves; `None` if there is none, and for plans.
    pub recompute: Option<Saving>,
    /// Tensors alive at the peak that the op there does not access.
    #[serde(skip)]
    pub(super) idle: Vec<TensorId>,
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Content {
    Tensor(TensorId),
    Workspace(OpId),
}

/// A stretch of positions in which a buffer holds the same.
pub(crate) struct Residency {
    /// What it is.
    pub content: Content,
    /// The buffer that holds it.
    pub buffer: BufferId,
    /// Where it is alive, in positions.
    pub alive: Interval,
    /// Its size, a multiple of the alignment.
    bytes: u64,
}

/// How a residency began. The page's script knows the numbers.
#[derive(Clone, Copy)]
pub(crate) enum Origin {
    Boundary,
    Computed,
    Recomputed,
    Prefetched,
}

impl Residency {
    /// Its size, a multiple of the alignment.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }
}

/// Everything that a schedule holds on the device.
pub(crate) struct Residencies<'a> {
    trace: &'a Trace,
    schedule: &'a Schedule,
    residencies: Vec<Residency>,
    kinds: Table<TensorId, Kind>,
}

impl<'a> Residencies<'a> {
    /// Lists the residencies of a schedule, which is legal for the trace.
    pub(crate) fn of(
        trace: &'a Trace,
        schedule: &'a Schedule,
        machine: &Machine,
        allocations_only: bool,
    ) -> Self {
        let contents = contents(trace, schedule);
        let mut residencies = Vec::new();
        for (buffer, alive) in lifetimes(schedule).iter() {
            let bytes = schedule.buffers[buffer].bytes.align_up(machine.align).get();
            let contents = &contents[buffer];
            for interval in alive {
                // What was written last before the interval begins, then what is written within it.
                let first = contents.partition_point(|&(at, _)| at <= interval.start).saturating_sub(1);
                let within = contents[first..].iter().take_while(|&&(at, _)| at < interval.end);
                let starts: Vec<(u64, Content)> =
                    within.map(|&(at, content)| (at.max(interval.start), content)).collect();
                for (index, &(start, content)) in starts.iter().enumerate() {
                    let end = starts.get(index + 1).map_or(interval.end, |&(next, _)| next);
                    if start < end {
                        let alive = Interval::new(start, end);
                        residencies.push(Residency { content, buffer, alive, bytes });
                    }
                }
            }
        }
        Self { trace, schedule, residencies, kinds: kinds(trace, allocations_only) }
    }

    /// All of them, by buffer.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Residency> {
        self.residencies.iter()
    }

    /// How a residency began.
    pub(crate) fn origin(&self, residency: &Residency) -> Origin {
        let Content::Tensor(tensor) = residency.content else { return Origin::Computed };
        let start = residency.alive.start as usize;
        match self.schedule.steps.as_slice().get(start).map(|step| &step.action) {
            Some(Action::Compute(launch)) if self.trace.ops()[launch.op].outputs.contains(&tensor) => {
                Origin::Computed
            }
            Some(Action::Recompute(_)) => Origin::Recomputed,
            Some(Action::Prefetch { .. }) => Origin::Prefetched,
            _ => Origin::Boundary,
        }
    }

    /// The kind of a content.
    pub(crate) fn kind(&self, content: Content) -> Kind {
        match content {
            Content::Tensor(tensor) => self.kinds[tensor],
            Content::Workspace(_) => Kind::Workspace,
        }
    }

    fn name(&self, content: Content) -> &str {
        match content {
            Content::Tensor(tensor) => &self.trace.tensors()[tensor].name,
            Content::Workspace(op) => &self.trace.ops()[op].name,
        }
    }

    /// The name of the group of a content. A line of a program is not divided at its dots. A node of a captured graph, `blocks.0.fc/addmm_3`,
    /// belongs to its module; outside of modules it is named after its op.
    fn module(&self, content: Content, depth: usize) -> String {
        let name = self.name(content);
        if self.kind(content) == Kind::Allocation {
            return name.to_owned();
        }
        if let Some((module, _)) = name.split_once('/') {
            return module.split('.').take(depth).collect::<Vec<_>>().join(".");
        }
        if !name.contains('.') {
            let op = name.trim_end_matches(|c: char| c.is_ascii_digit());
            return op.strip_suffix('_').filter(|op| !op.is_empty()).unwrap_or(name).to_owned();
        }
        name.split('.').take(depth).collect::<Vec<_>>().join(".")
    }

    fn alive_at(&self, position: u64) -> impl Iterator<Item = &Residency> {
        self.residencies.iter().filter(move |r| r.alive.start <= position && position < r.alive.end)
    }

    /// The contents that the action at a position accesses.
    fn accessed(&self, position: u64) -> BTreeSet<Content> {
        let Some(step) = self.schedule.steps.as_slice().get(position as usize) else {
            return BTreeSet::new();
        };
        match &step.action {
            Action::Compute(launch) | Action::Recompute(launch) => {
                let op = &self.trace.ops()[launch.op];
                let operands = op.reads.iter().chain(&op.outputs).map(|&tensor| Content::Tensor(tensor));
                operands.chain([Content::Workspace(launch.op)]).collect()
            }
            Action::Offload { tensor, .. } | Action::Prefetch { tensor, .. } => {
                [Content::Tensor(*tensor)].into()
            }
            Action::Release { .. } | Action::HostRelease { .. } => BTreeSet::new(),
        }
    }

    /// Bytes alive at a position that the action there accesses.
    pub(super) fn in_use(&self, position: u64) -> Bytes {
        let accessed = self.accessed(position);
        let used = self.alive_at(position).filter(|residency| accessed.contains(&residency.content));
        Bytes(used.map(|residency| residency.bytes).sum())
    }

    /// What is alive at a position by kind, largest first.
    pub(super) fn kinds(&self, position: u64) -> Vec<KindShare> {
        let mut shares: BTreeMap<Kind, (u64, usize)> = BTreeMap::new();
        for residency in self.alive_at(position) {
            let share = shares.entry(self.kind(residency.content)).or_default();
            *share = (share.0 + residency.bytes, share.1 + 1);
        }
        let mut shares: Vec<KindShare> = shares
            .into_iter()
            .map(|(kind, (bytes, tensors))| KindShare { kind, bytes: Bytes(bytes), tensors })
            .collect();
        shares.sort_by_key(|share| (std::cmp::Reverse(share.bytes), share.kind));
        shares
    }

    /// The groups with most bytes at the peak, and some that are larger elsewhere; then the bytes at the peak of the groups left out.
    pub(super) fn groups(&self, live: &LiveMemory, listed: usize, elsewhere: usize) -> (Vec<Group>, Bytes) {
        let Some(at) = live.at.map(|action| action.index() as u64) else { return (Vec::new(), Bytes::ZERO) };
        let depth = self.depth(at);
        let mut members: BTreeMap<(Kind, String), Vec<&Residency>> = BTreeMap::new();
        for residency in &self.residencies {
            let key = (self.kind(residency.content), self.module(residency.content, depth));
            members.entry(key).or_default().push(residency);
        }
        let at_peak = |residencies: &[&Residency]| -> u64 {
            let alive = residencies.iter().filter(|r| r.alive.start <= at && at < r.alive.end);
            alive.map(|residency| residency.bytes).sum()
        };
        let mut sized: Vec<_> = members
            .into_iter()
            .map(|(key, residencies)| (at_peak(&residencies), most(&residencies), key, residencies))
            .collect();
        sized.sort_by(|a, b| (b.0, &a.2).cmp(&(a.0, &b.2)));
        let own: u64 = sized.iter().take(listed).map(|(bytes, ..)| bytes).sum();
        let others = live.peak.saturating_sub(Bytes(own));
        let mut rest = sized.split_off(listed.min(sized.len()));
        // A group that is large elsewhere is worth a line, and the line says that it does not count.
        rest.retain(|&(bytes, most, ..)| most > live.peak.get() / WORTH_A_LINE && most > 2 * bytes);
        rest.sort_by(|a, b| (b.1, &a.2).cmp(&(a.1, &b.2)));
        rest.truncate(elsewhere);
        let others = others.saturating_sub(Bytes(rest.iter().map(|(bytes, ..)| bytes).sum()));
        let accessed = self.accessed(at);
        let groups = sized.into_iter().chain(rest).map(|(bytes, most, (kind, module), residencies)| {
            let (without, next) = peak_without(live, &residencies);
            let alive: Vec<&Residency> =
                residencies.into_iter().filter(|r| r.alive.start <= at && at < r.alive.end).collect();
            let used = alive.iter().filter(|r| accessed.contains(&r.content)).map(|r| r.bytes).sum();
            let largest = alive.iter().max_by_key(|r| (r.bytes, std::cmp::Reverse(r.content)));
            let idle =
                alive.iter().filter(|r| !accessed.contains(&r.content)).filter_map(|r| match r.content {
                    Content::Tensor(tensor) => Some(tensor),
                    Content::Workspace(_) => None,
                });
            Group {
                kind,
                module,
                bytes: Bytes(bytes),
                tensors: alive.len(),
                largest: largest.map(|r| self.name(r.content).to_owned()),
                in_use_bytes: Bytes(used),
                most_bytes: Bytes(most),
                peak_without_bytes: without,
                next_peak: moment(self.trace, self.schedule, next),
                offload: None,
                recompute: None,
                idle: idle.collect(),
            }
        });
        (groups.collect(), others)
    }

    /// Components of a module's name, as few as divide what is alive at a position into [`ENOUGH`] modules.
    fn depth(&self, position: u64) -> usize {
        let modules = |depth: usize| {
            self.alive_at(position).map(|r| self.module(r.content, depth)).collect::<BTreeSet<_>>().len()
        };
        (1..DEEPEST).find(|&depth| modules(depth) >= ENOUGH).unwrap_or(DEEPEST)
    }
}

/// What every buffer holds from which position on, ascending.
fn contents(trace: &Trace, schedule: &Schedule) -> Table<BufferId, Vec<(u64, Content)>> {
    let mut contents: Table<BufferId, Vec<(u64, Content)>> =
        Table::filled(schedule.buffers.len(), Vec::new());
    for (pair, at_boundary) in trace.persistent().iter().zip(&schedule.boundary) {
        if let Some(buffer) = at_boundary.device {
            contents[buffer].push((0, Content::Tensor(pair.begin)));
        }
    }
    for (id, step) in schedule.steps.iter() {
        let position = id.index() as u64;
        match &step.action {
            Action::Compute(launch) | Action::Recompute(launch) => {
                for (&tensor, &buffer) in trace.ops()[launch.op].outputs.iter().zip(&launch.writes) {
                    contents[buffer].push((position, Content::Tensor(tensor)));
                }
                if let Some(buffer) = launch.workspace {
                    contents[buffer].push((position, Content::Workspace(launch.op)));
                }
            }
            Action::Prefetch { tensor, to } => contents[*to].push((position, Content::Tensor(*tensor))),
            Action::Offload { .. } | Action::Release { .. } | Action::HostRelease { .. } => {}
        }
    }
    contents
}

/// The kind of every tensor.
fn kinds(trace: &Trace, allocations_only: bool) -> Table<TensorId, Kind> {
    let mut kinds = Table::filled(trace.tensors().len(), Kind::Activation);
    if allocations_only {
        return Table::filled(trace.tensors().len(), Kind::Allocation);
    }
    for tensor in trace.tensors().ids() {
        kinds[tensor] = match trace.producer(tensor).map(|op| trace.ops()[op].phase) {
            Some(Phase::Backward) => Kind::Gradient,
            Some(Phase::Update) => Kind::Update,
            Some(Phase::Forward) | None => Kind::Activation,
        };
    }
    // All tensors of a storage that outlives the iteration are versions of one.
    let mut lasting: BTreeMap<_, Kind> = BTreeMap::new();
    for pair in trace.persistent() {
        let uses = trace.users(pair.begin).iter().map(|&op| trace.ops()[op].phase);
        let parameter = trace.users(pair.begin).is_empty() || { uses }.any(|phase| phase != Phase::Update);
        let kind = if parameter { Kind::Parameter } else { Kind::OptimizerState };
        for tensor in [pair.begin, pair.end] {
            let entry = lasting.entry(trace.storage(tensor)).or_insert(kind);
            *entry = kind.min(*entry);
        }
    }
    for tensor in trace.tensors().ids() {
        if let Some(&kind) = lasting.get(&trace.storage(tensor)) {
            kinds[tensor] = kind;
        }
    }
    kinds
}

/// The most bytes of these residencies that are alive at one time.
fn most(residencies: &[&Residency]) -> u64 {
    let mut changes: Vec<(u64, bool, u64)> = residencies
        .iter()
        .flat_map(|r| [(r.alive.start, true, r.bytes), (r.alive.end, false, r.bytes)])
        .collect();
    // At one position, ends come before beginnings.
    changes.sort_unstable();
    let (mut alive, mut most) = (0u64, 0);
    for (_, begins, bytes) in changes {
        alive = if begins { alive + bytes } else { alive - bytes };
        most = alive.max(most);
    }
    most
}

/// The peak if these residencies did not exist, and the first position at which it is reached.
fn peak_without(live: &LiveMemory, residencies: &[&Residency]) -> (Bytes, u64) {
    let (mut opened, mut closed) = (vec![0u64; live.curve.len() + 1], vec![0u64; live.curve.len() + 1]);
    for residency in residencies {
        opened[residency.alive.start as usize] += residency.bytes;
        closed[residency.alive.end as usize] += residency.bytes;
    }
    let (mut own, mut peak, mut at) = (0, Bytes::ZERO, 0);
    for (position, bytes) in live.curve.iter().map(|(id, &bytes): (ActionId, _)| (id.index(), bytes)) {
        own = own + opened[position] - closed[position];
        let rest = bytes.saturating_sub(Bytes(own));
        if rest > peak {
            (peak, at) = (rest, position as u64);
        }
    }
    (peak, at)
}
