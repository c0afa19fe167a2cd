//! The algorithm of each convolution: workspace against speed, decided under the limit.
//!
//! An algorithm is part of an op's kind, in the graph and therefore in its trace. A choice makes another graph, and planners, checker,
//! engine and the unlimited run of a verification see the chosen workspaces and nothing else: a plan for one choice is no plan for
//! another, because their traces differ. By default only bit-exact algorithms are considered
//! ([`has_usual_bits`](elbowroom_graph::op::Algorithm::has_usual_bits)), so that a choice never changes the results.

use std::collections::BTreeMap;
use std::sync::Arc;

use elbowroom_engine::kernels::algorithms;
use elbowroom_engine::{EngineError, Stopwatch};
use elbowroom_graph::op::Algorithm;
use elbowroom_graph::{Graph, OpKind};
use elbowroom_ir::machine::Machine;
use elbowroom_ir::packing::Interval;
use elbowroom_ir::planning::{CostSource, Costs, Freedom};
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::search::Observer;
use elbowroom_ir::{Bytes, Id, Nanos, OpId, Table};

use crate::observer::TrainObserver;
use crate::pipeline::{self, Method, PlanError, Planned, Task, Untraceable};
use crate::size::MemorySpec;

/// Another algorithm must be faster than the default by this share of its time: less is noise.
const NOISE: f64 = 0.03;
/// Iterations from which timing the ops pays even where little can be gained.
const WORTH_TIMING: u64 = 100;
/// Selections that are planned at most.
const SELECTIONS: u32 = 4;
/// A limit of this many times the bytes that smaller workspaces save is not worth saving them.
const TIGHT: u64 = 50;

/// One way to compute an op.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The op with its algorithm.
    pub kind: OpKind,
    /// Workspace that it needs.
    pub workspace: Bytes,
    /// Its measured duration.
    pub time: Nanos,
}

/// The measured candidates of every op of a graph.
pub struct Candidates {
    graph: Arc<Graph>,
    /// The default algorithm first.
    by_op: Table<OpId, Vec<Candidate>>,
}

/// A graph with its algorithms chosen, and the durations of its ops.
#[derive(Clone)]
pub struct Selection {
    /// The graph.
    pub graph: Arc<Graph>,
    costs: Costs,
}

impl Selection {
    /// Whether both give every op the same algorithm.
    fn is(&self, other: &Self) -> bool {
        let [kinds, others] =
            [self, other].map(|selection| selection.graph.nodes.values().map(|node| &node.kind));
        kinds.eq(others)
    }
}

/// Which algorithms a training may choose for its ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AlgorithmChoice {
    /// Those that the graph was built with.
    AsBuilt,
    /// Bit-exact ones.
    #[default]
    BitExact,
    /// Also numerically different ones (Winograd's).
    NumericChanges,
}

/// The conditions under which a graph is to be trained.
#[derive(Clone)]
pub struct Conditions<'a> {
    /// The limit.
    pub memory: MemorySpec,
    /// The machine; its memory is replaced by the limit.
    pub machine: &'a Machine,
    /// How to plan.
    pub method: &'a Method<'a>,
    /// What may be decided.
    pub freedom: Freedom,
    /// Number of iterations.
    pub iterations: u64,
    /// Threads that compute.
    pub threads: usize,
    /// Which algorithms may be chosen.
    pub algorithms: AlgorithmChoice,
}

/// Why no algorithms could be chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AlgorithmError {
    /// The graph cannot be traced.
    #[error(transparent)]
    Untraceable(#[from] Untraceable),
    /// An illegal plan: a fault in this project.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An op could not be timed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Candidates {
    /// Runs every op of a graph, each kind twice with every algorithm. Takes memory for one op at a time and never more than `limit`:
    /// what does not fit is no candidate.
    ///
    /// # Errors
    ///
    /// An [`EngineError`] if the threads cannot be started.
    pub fn measure(
        graph: &Arc<Graph>,
        threads: usize,
        limit: Bytes,
        numeric_changes: bool,
        observer: &dyn Observer,
    ) -> Result<Self, EngineError> {
        let stopwatch = Stopwatch::new(threads)?;
        let mut known: Vec<Vec<Candidate>> = Vec::new();
        let mut by_op = Table::default();
        for node in graph.nodes.values() {
            let found = match known.iter().find(|candidates| candidates[0].kind == node.kind) {
                Some(measured) => measured.clone(),
                None => {
                    let timed = kinds(&node.kind, numeric_changes).map(|kind| {
                        let fits = Stopwatch::bytes(&kind) <= limit && !observer.interrupted();
                        let time = if fits { Some(stopwatch.time(&kind)) } else { None };
                        (kind, time)
                    });
                    let mut measured: Vec<Candidate> = timed
                        .enumerate()
                        // The default algorithm is always a candidate.
                        .filter(|(index, (_, time))| *index == 0 || time.is_some())
                        .map(|(_, (kind, time))| {
                            let workspace = elbowroom_engine::kernels::workspace(&kind);
                            Candidate { kind, workspace, time: time.unwrap_or_default() }
                        })
                        .collect();
                    if measured[0].time.is_zero() {
                        measured.truncate(1);
                    }
                    known.push(measured.clone());
                    measured
                }
            };
            by_op.push(found);
        }
        Ok(Self { graph: graph.clone(), by_op })
    }

    /// The candidates of an op, its default algorithm first.
    pub fn of(&self, op: OpId) -> &[Candidate] {
        &self.by_op[op]
    }

    /// Every op with each of its bit-exact algorithms, all as fast as the default is estimated to be: what differs is their workspace.
    fn estimate(graph: &Arc<Graph>, costs: &Costs) -> Self {
        let of = |op: OpId| -> Vec<Candidate> {
            let candidate = |kind: OpKind| {
                let workspace = elbowroom_engine::kernels::workspace(&kind);
                Candidate { kind, workspace, time: costs.nanos[op] }
            };
            kinds(&graph.nodes[op].kind, false).map(candidate).collect()
        };
        Self { graph: graph.clone(), by_op: graph.nodes.ids().map(of).collect() }
    }

    /// The default algorithm for every op.
    pub fn defaults(&self) -> Selection {
        self.select(|_, candidates| &candidates[0])
    }

    /// The fastest algorithm for every op, whatever its workspace.
    pub fn fastest(&self) -> Selection {
        self.select(|_, candidates| fastest(candidates, Bytes(u64::MAX)))
    }

    /// The smallest workspace for every op.
    fn smallest(&self) -> Selection {
        let workspace = |candidate: &&Candidate| candidate.workspace;
        self.select(|_, candidates| candidates.iter().min_by_key(workspace).unwrap_or(&candidates[0]))
    }

    /// For every op the fastest algorithm whose workspace fits its free bytes, or the one with the smallest workspace if none does.
    fn within(&self, free: &Table<OpId, Bytes>) -> Selection {
        self.select(|op, candidates| fastest(candidates, free[op]))
    }

    fn select<'m>(&'m self, choose: impl Fn(OpId, &'m [Candidate]) -> &'m Candidate) -> Selection {
        let mut graph = Graph::clone(&self.graph);
        let mut nanos = Table::default();
        for (op, candidates) in self.by_op.iter() {
            let candidate = choose(op, candidates);
            graph.nodes[op].kind = candidate.kind.clone();
            nanos.push(candidate.time);
        }
        Selection { graph: Arc::new(graph), costs: Costs { nanos, source: CostSource::Measured } }
    }
}

/// An op with each of its algorithms, its own first: those with its bits, or all.
fn kinds(kind: &OpKind, numeric_changes: bool) -> impl Iterator<Item = OpKind> {
    // Products of pairs of bf16 numbers take small ones as zero; direct convolutions in bf16 multiply widened ones.
    let differs =
        move |algorithm: Algorithm| matches!(kind, OpKind::Mixed(_)) && algorithm == Algorithm::Direct;
    let own = kind.conv().map_or_else(Algorithm::default, |conv| conv.algorithm);
    let others = algorithms(kind)
        .filter(move |&algorithm| algorithm != own)
        .filter(move |&algorithm| numeric_changes || (algorithm.has_bits_of(own) && !differs(algorithm)))
        .filter_map(|algorithm| kind.computed_by(algorithm));
    std::iter::once(kind.clone()).chain(others)
}

/// The fastest candidate whose workspace fits the free bytes, the default unless another is clearly faster; the smallest if none fits.
fn fastest(candidates: &[Candidate], free: Bytes) -> &Candidate {
    let time = |(index, candidate): &(usize, &Candidate)| {
        let handicap = if *index == 0 { 1.0 } else { 1.0 + NOISE };
        (candidate.time.get() as f64 * handicap) as u64
    };
    let fitting = candidates.iter().enumerate().filter(|(_, candidate)| candidate.workspace <= free);
    let smallest = || candidates.iter().min_by_key(|candidate| candidate.workspace);
    fitting.min_by_key(time).map(|(_, candidate)| candidate).or_else(smallest).unwrap_or(&candidates[0])
}

/// The number of ops by algorithm, of those that have a choice.
pub fn counts(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for conv in graph.nodes.values().filter_map(|node| node.kind.conv()) {
        *counts.entry(conv.algorithm.name()).or_insert(0) += 1;
    }
    counts
}

/// A graph with its algorithms chosen, and what the choice has planned on the way.
pub struct Chosen {
    /// The graph.
    pub graph: Arc<Graph>,
    /// The limit: a share of the unconstrained peak is resolved with the default algorithms.
    pub memory: MemorySpec,
    /// The plan that keeps every tensor on the device, with the default algorithms, if it was found.
    pub unconstrained: Option<Planned>,
}

/// Chooses the algorithms of a graph.
///
/// Ops are timed one by one, unless too little can be gained: bit-exact algorithms differ by some hundredths of their time, which counts
/// in long trainings, and by their workspace, which counts under tight limits. Then three selections are planned: the default, the
/// fastest, and one that gives every op the fastest algorithm that fits next to what a plan with small workspaces keeps at its launch.
///
/// # Errors
///
/// An [`AlgorithmError`] if the graph cannot be traced or its ops cannot be timed.
pub fn choose(
    graph: &Arc<Graph>,
    conditions: &Conditions<'_>,
    observer: &dyn TrainObserver,
) -> Result<Chosen, AlgorithmError> {
    let (chosen, open) = choose_at_once(graph, conditions, observer)?;
    let Some(limit) = open else { return Ok(chosen) };
    let best = best(graph, conditions, limit, observer)?;
    Ok(Chosen { graph: best.map_or_else(|| graph.clone(), |best| best.graph), ..chosen })
}

/// As [`choose`], but leaves a choice that takes long to [`best`], for the limit that is returned: the graph has its own algorithms then.
///
/// # Errors
///
/// As for [`choose`].
pub(crate) fn choose_at_once(
    graph: &Arc<Graph>,
    conditions: &Conditions<'_>,
    observer: &dyn TrainObserver,
) -> Result<(Chosen, Option<Bytes>), AlgorithmError> {
    let Conditions { memory, machine, method, freedom, algorithms, .. } = *conditions;
    let as_built = |unconstrained| Chosen { graph: graph.clone(), memory, unconstrained };
    if algorithms == AlgorithmChoice::AsBuilt {
        return Ok((as_built(None), None));
    }
    let task = Task::estimate(graph, machine, freedom)?;
    let Ok(unconstrained) = pipeline::unconstrained(&task, method.packer, observer) else {
        return Ok((as_built(None), None));
    };
    let numeric_changes = algorithms == AlgorithmChoice::NumericChanges;
    Ok(match memory.resolve(unconstrained.height()) {
        None => (Chosen { graph: smallest(graph), memory, unconstrained: Some(unconstrained) }, None),
        Some(limit) if !numeric_changes && !is_worth_choosing(conditions, graph, limit) => {
            (as_built(Some(unconstrained)), None)
        }
        Some(limit) => {
            let memory = MemorySpec::Absolute(limit);
            (Chosen { memory, ..as_built(Some(unconstrained)) }, Some(limit))
        }
    })
}

/// The best selection of algorithms for a limit.
pub(crate) struct Best {
    /// The graph with the algorithms.
    pub graph: Arc<Graph>,
    /// A plan for it.
    pub planned: Planned,
    /// Durations of the ops with the algorithms of the graph that was given, and with these.
    pub costs: [Costs; 2],
}

/// The best selection for a limit; `None` if no selection was planned. In trainings of few iterations ops are not timed, because that takes as
/// long as some iterations: workspaces alone decide.
///
/// # Errors
///
/// As for [`choose`].
pub(crate) fn best(
    graph: &Arc<Graph>,
    conditions: &Conditions<'_>,
    limit: Bytes,
    observer: &dyn TrainObserver,
) -> Result<Option<Best>, AlgorithmError> {
    let numeric_changes = conditions.algorithms == AlgorithmChoice::NumericChanges;
    let timed = numeric_changes || conditions.iterations >= WORTH_TIMING;
    let candidates = if timed {
        observer.stage("timing algorithms");
        Candidates::measure(graph, conditions.threads, limit, numeric_changes, observer)?
    } else {
        let task = Task::estimate(graph, conditions.machine, conditions.freedom)?;
        Candidates::estimate(graph, &task.costs)
    };
    observer.stage("choosing algorithms");
    let mut tried = Tried { conditions, limit, observer, selections: Vec::new() };
    let defaults = candidates.defaults();
    tried.planned(defaults.clone())?;
    // Without durations the default is the fastest.
    let optimal = timed && {
        let fastest = candidates.fastest();
        // No iteration is shorter than the sum of its fastest ops.
        let bound = fastest.costs.total();
        tried.planned(fastest)?.is_some_and(|planned| planned.predicted.iteration <= bound)
    };
    if !optimal {
        let smallest = candidates.smallest();
        if let Some(planned) = tried.planned(smallest.clone())? {
            let free = free_bytes(&smallest.graph, planned.plan.schedule(), conditions.machine, limit);
            tried.planned(candidates.within(&free))?;
        }
    }
    Ok(tried.best().map(|(Selection { graph, costs }, planned)| Best {
        graph,
        planned,
        costs: [defaults.costs, costs],
    }))
}

/// Selections and the plans that short searches found for them. Selections are often the same, and are planned once.
struct Tried<'a> {
    conditions: &'a Conditions<'a>,
    limit: Bytes,
    observer: &'a dyn Observer,
    selections: Vec<(Selection, Option<Planned>)>,
}

impl Tried<'_> {
    /// The plan for a selection, if a short search finds one.
    fn planned(&mut self, selection: Selection) -> Result<Option<&Planned>, AlgorithmError> {
        let index = match self.selections.iter().position(|(other, _)| other.is(&selection)) {
            Some(index) => index,
            None => {
                let planned = self.search(&selection)?;
                self.selections.push((selection, planned));
                self.selections.len() - 1
            }
        };
        Ok(self.selections[index].1.as_ref())
    }

    /// A short search. All of them together are worth no more than the plan that follows them.
    fn search(&self, selection: &Selection) -> Result<Option<Planned>, AlgorithmError> {
        let Conditions { machine, method, freedom, iterations, .. } = *self.conditions;
        let task = Task::estimate(&selection.graph, machine, freedom)?;
        let task = Task { costs: selection.costs.clone(), ..task }.with_memory(self.limit);
        let share = pipeline::planning_share(task.costs.total(), iterations) / SELECTIONS;
        Ok(pipeline::plan_at_once(&task, &method.clone().within(share), self.observer)?.ok())
    }

    /// The selection with the fastest plan, the first of equal ones.
    fn best(self) -> Option<(Selection, Planned)> {
        let planned = |(selection, planned): (_, Option<_>)| Some((selection, planned?));
        self.selections.into_iter().filter_map(planned).min_by_key(|(_, planned)| planned.predicted.iteration)
    }
}

/// Workspace that every op could have in a schedule: the bytes that are free at its launch, the fewest if there are several launches, plus
/// its own workspace.
fn free_bytes(graph: &Graph, schedule: &Schedule, machine: &Machine, limit: Bytes) -> Table<OpId, Bytes> {
    let problem = elbowroom_sim::liveness::problem(schedule, machine);
    let mut changes = vec![0i128; schedule.steps.len() + 1];
    for block in problem.blocks.values() {
        for &Interval { start, end } in &block.alive {
            changes[start as usize] += i128::from(block.size.get());
            changes[end as usize] -= i128::from(block.size.get());
        }
    }
    let mut free = Table::filled(graph.nodes.len(), Bytes(u64::MAX));
    let mut live = 0;
    for (id, step) in schedule.steps.iter() {
        live += changes[id.index()];
        if let Action::Compute(launch) | Action::Recompute(launch) = &step.action {
            let own = launch.workspace.map_or(Bytes::ZERO, |buffer| problem.blocks[buffer].size);
            let others = Bytes(u64::try_from(live).unwrap_or(0)) - own;
            let available = Bytes(limit.get().saturating_sub(others.get()));
            free[launch.op] = free[launch.op].min(available);
        }
    }
    free
}

/// Whether bit-exact algorithms can gain enough in a training of this graph under this limit to be timed.
pub(crate) fn is_worth_choosing(conditions: &Conditions<'_>, graph: &Graph, limit: Bytes) -> bool {
    conditions.algorithms != AlgorithmChoice::AsBuilt
        && (conditions.iterations >= WORTH_TIMING || saving(graph).get().saturating_mul(TIGHT) >= limit.get())
}

/// The graph with the smallest workspaces of bit-exact algorithms.
pub(crate) fn smallest(graph: &Arc<Graph>) -> Arc<Graph> {
    let mut graph = Graph::clone(graph);
    for op in graph.nodes.ids() {
        let smallest = kinds(&graph.nodes[op].kind, false).min_by_key(elbowroom_engine::kernels::workspace);
        if let Some(kind) = smallest {
            graph.nodes[op].kind = kind;
        }
    }
    Arc::new(graph)
}

/// The most bytes by which a bit-exact algorithm makes a workspace smaller.
fn saving(graph: &Graph) -> Bytes {
    let most = graph.nodes.values().map(|node| {
        let workspace = elbowroom_engine::kernels::workspace;
        let least = kinds(&node.kind, false).map(|kind| workspace(&kind)).min().unwrap_or_default();
        workspace(&node.kind).saturating_sub(least)
    });
    most.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::op::Algorithm;
    use elbowroom_graph::zoo::{self, Options};

    use super::*;

    /// Candidates with these workspaces and times for every convolution, the default first.
    fn candidates(rows: &[(Algorithm, u64, u64)]) -> Candidates {
        let options = Options::new(1).width(8);
        let graph = Arc::new(zoo::build("resnet18", &options).expect("the network can be built"));
        let candidate = |kind: OpKind, (workspace, time)| Candidate {
            kind,
            workspace: Bytes(workspace),
            time: Nanos(time),
        };
        let by_op = graph.nodes.values().map(|node| {
            let made = rows.iter().filter_map(|&(algorithm, workspace, time)| {
                Some(candidate(node.kind.computed_by(algorithm)?, (workspace, time)))
            });
            let made: Vec<Candidate> = made.collect();
            if made.is_empty() { vec![candidate(node.kind.clone(), (0, 1))] } else { made }
        });
        Candidates { by_op: by_op.collect(), graph }
    }

    #[test]
    fn every_op_gets_the_fastest_algorithm_that_fits_at_its_launch() {
        let candidates = candidates(&[
            (Algorithm::Tiled, 100, 10),
            (Algorithm::Lean, 10, 12),
            (Algorithm::Winograd, 1000, 5),
        ]);
        let sizes = [5, 10, 99, 100, 999, 1000];
        let free: Table<OpId, Bytes> =
            candidates.graph.nodes.ids().map(|op| Bytes(sizes[op.index() % sizes.len()])).collect();
        let chosen = candidates.within(&free);
        let mut seen = 0;
        for (op, node) in chosen.graph.nodes.iter() {
            let Some(conv) = node.kind.conv() else { continue };
            let expected = match free[op].get() {
                0..100 => Algorithm::Lean,
                100..1000 => Algorithm::Tiled,
                _ => Algorithm::Winograd,
            };
            assert_eq!(conv.algorithm, expected, "{} has {} free", node.name, free[op]);
            seen += 1;
        }
        assert!(seen > 30);
        assert_eq!(counts(&candidates.fastest().graph).keys().copied().collect::<Vec<_>>(), ["winograd"]);
        assert_eq!(counts(&candidates.smallest().graph).keys().copied().collect::<Vec<_>>(), ["lean"]);
    }

    #[test]
    fn a_difference_within_noise_changes_nothing() {
        let candidates = candidates(&[(Algorithm::Tiled, 100, 1000), (Algorithm::Lean, 10, 980)]);
        assert_eq!(counts(&candidates.fastest().graph).keys().copied().collect::<Vec<_>>(), ["tiled"]);
    }
}
