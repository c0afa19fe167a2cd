//! Which algorithm computes each convolution: workspace against speed, decided under the limit.
//!
//! An algorithm is part of an operation's kind, in the graph and so in its trace. Choosing makes another graph, and everything behind
//! it (planners, checker, engine, the unlimited run that a limited one is compared with) sees the chosen workspaces and nothing else: a
//! plan for one choice is no plan for another, because their traces differ. By default only algorithms come into question that give the
//! same bits ([`has_usual_bits`](elbowroom_graph::op::Algorithm::has_usual_bits)), so that a choice never shows in the results.

use std::collections::BTreeMap;
use std::sync::Arc;

use elbowroom_engine::kernels::algorithms;
use elbowroom_engine::{EngineError, Stopwatch};
use elbowroom_graph::{Graph, OpKind};
use elbowroom_ir::machine::Machine;
use elbowroom_ir::packing::Interval;
use elbowroom_ir::planning::{CostSource, Costs};
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::search::Observer;
use elbowroom_ir::{Bytes, Id, Nanos, OpId, Table};

use crate::pipeline::{self, Planned, Task};
use crate::size::MemorySpec;
use crate::train::{self, TrainError, TrainObserver, Training};

/// Another algorithm must be faster than the usual one by this share of its time: less is noise.
const NOISE: f64 = 0.03;
/// Iterations for which timing operations pays even where only little can be gained.
const WORTH_TIMING: u64 = 100;
/// A limit of so many times what smaller workspaces save is not worth saving them.
const TIGHT: u64 = 50;

/// A way to compute an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The operation, computed this way.
    pub kind: OpKind,
    /// Scratch that it needs.
    pub workspace: Bytes,
    /// How long it takes.
    pub time: Nanos,
}

/// What every operation of a graph can be computed by, and how long it takes.
pub struct Menu {
    graph: Arc<Graph>,
    /// The usual way first.
    offers: Table<OpId, Vec<Offer>>,
}

/// A graph with its algorithms chosen, and how long its operations take.
#[derive(Clone)]
pub struct Chosen {
    /// The graph.
    pub graph: Arc<Graph>,
    costs: Costs,
}

impl Menu {
    /// Runs every operation of a graph, each kind twice in every way that there is. Memory is taken for one operation at a time, and
    /// never more than `limit`: what does not fit is not offered.
    pub fn measure(
        graph: &Arc<Graph>,
        threads: usize,
        limit: Bytes,
        other_bits: bool,
        observer: &dyn Observer,
    ) -> Result<Self, EngineError> {
        let stopwatch = Stopwatch::new(threads)?;
        let mut known: Vec<Vec<Offer>> = Vec::new();
        let mut offers = Table::default();
        for node in graph.nodes.values() {
            let met = known.iter().find(|offers| offers[0].kind == node.kind);
            let found = match met {
                Some(met) => met.clone(),
                None => {
                    let made = ways(&node.kind, other_bits).map(|kind| {
                        let fits = Stopwatch::bytes(&kind) <= limit && !observer.interrupted();
                        let time = if fits { Some(stopwatch.time(&kind)) } else { None };
                        (kind, time)
                    });
                    let mut made: Vec<Offer> = made
                        .enumerate()
                        // The usual way is offered always.
                        .filter(|(index, (_, time))| *index == 0 || time.is_some())
                        .map(|(_, (kind, time))| {
                            let workspace = elbowroom_engine::kernels::workspace(&kind);
                            Offer { kind, workspace, time: time.unwrap_or_default() }
                        })
                        .collect();
                    if made[0].time.is_zero() {
                        made.truncate(1);
                    }
                    known.push(made.clone());
                    made
                }
            };
            offers.push(found);
        }
        Ok(Self { graph: graph.clone(), offers })
    }

    /// The ways to compute an operation, the usual one first.
    pub fn offers(&self, op: OpId) -> &[Offer] {
        &self.offers[op]
    }

    /// Everything in the usual way.
    pub fn usual(&self) -> Chosen {
        self.pick(|_, offers| &offers[0])
    }

    /// Everything in the fastest way, whatever its workspace.
    pub fn fastest(&self) -> Chosen {
        self.pick(|_, offers| fastest(offers, Bytes(u64::MAX)))
    }

    /// Everything with the smallest workspace.
    fn leanest(&self) -> Chosen {
        self.pick(|_, offers| offers.iter().min_by_key(|offer| offer.workspace).unwrap_or(&offers[0]))
    }

    /// Every operation in the fastest way whose workspace fits into so many bytes, or with the smallest workspace if none does.
    fn within(&self, room: &Table<OpId, Bytes>) -> Chosen {
        self.pick(|op, offers| fastest(offers, room[op]))
    }

    fn pick<'m>(&'m self, choose: impl Fn(OpId, &'m [Offer]) -> &'m Offer) -> Chosen {
        let mut graph = Graph::clone(&self.graph);
        let mut nanos = Table::default();
        for (op, offers) in self.offers.iter() {
            let offer = choose(op, offers);
            graph.nodes[op].kind = offer.kind.clone();
            nanos.push(offer.time);
        }
        Chosen { graph: Arc::new(graph), costs: Costs { nanos, source: CostSource::Measured } }
    }
}

/// The ways to compute an operation, the usual one first.
fn ways(kind: &OpKind, other_bits: bool) -> impl Iterator<Item = OpKind> {
    let others = algorithms(kind)
        .skip(1)
        .filter(move |algorithm| other_bits || algorithm.has_usual_bits())
        .filter_map(|algorithm| kind.computed_by(algorithm));
    std::iter::once(kind.clone()).chain(others)
}

/// The fastest offer within some bytes of workspace, the usual one unless another is clearly faster; the smallest where none fits.
fn fastest(offers: &[Offer], room: Bytes) -> &Offer {
    let time = |(index, offer): &(usize, &Offer)| {
        let handicap = if *index == 0 { 1.0 } else { 1.0 + NOISE };
        (offer.time.get() as f64 * handicap) as u64
    };
    let fitting = offers.iter().enumerate().filter(|(_, offer)| offer.workspace <= room);
    let smallest = || offers.iter().min_by_key(|offer| offer.workspace);
    fitting.min_by_key(time).map(|(_, offer)| offer).or_else(smallest).unwrap_or(&offers[0])
}

/// How many operations of a graph are computed by which algorithm, of those that have a choice.
pub fn counts(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for conv in graph.nodes.values().filter_map(|node| node.kind.conv()) {
        *counts.entry(conv.algorithm.name()).or_insert(0) += 1;
    }
    counts
}

/// A training's graph with its algorithms chosen.
pub struct Choice {
    /// The graph.
    pub graph: Arc<Graph>,
    /// The limit: a share of the natural peak means the peak with the usual algorithms.
    pub memory: MemorySpec,
    /// The plan that keeps everything with the usual algorithms, if there is one: of use for [`train_after`](train::train_after).
    pub natural: Option<Planned>,
}

/// Chooses the algorithms of a training's graph.
///
/// Operations are timed one by one, unless too little can be gained: with equal bits, algorithms differ by some hundredths of their time,
/// which counts in long trainings, and by their workspace, which counts under tight limits. Then three choices are planned: the usual
/// one, the fastest, and one that gives every operation the fastest way that fits beside what a lean plan keeps at its moment.
pub fn choose(
    training: &Training<'_>,
    other_bits: bool,
    observer: &dyn TrainObserver,
) -> Result<Choice, TrainError> {
    let task = train::estimate(&training.graph, &training.machine, training.freedom)?;
    let natural = pipeline::natural(&task, training.method.packer, observer).ok();
    let (graph, memory) = match &natural {
        None => (training.graph.clone(), training.memory),
        Some(natural) => match training.memory.resolve(natural.height()) {
            None => (smallest(&training.graph), training.memory),
            Some(limit) if !other_bits && !is_worth_choosing(training, &training.graph, limit) => {
                (training.graph.clone(), training.memory)
            }
            Some(limit) => (within(training, limit, other_bits, observer)?, MemorySpec::Absolute(limit)),
        },
    };
    Ok(Choice { graph, memory, natural })
}

/// The choice for a limit.
fn within(
    training: &Training<'_>,
    limit: Bytes,
    other_bits: bool,
    observer: &dyn TrainObserver,
) -> Result<Arc<Graph>, TrainError> {
    observer.stage("timing algorithms");
    let menu = Menu::measure(&training.graph, training.threads, limit, other_bits, observer)?;
    observer.stage("choosing algorithms");
    let plan = |chosen: &Chosen| planned(training, chosen, limit, observer);
    let mut best: Option<(Nanos, Chosen)> = None;
    let mut consider = |chosen: Chosen, planned: &Planned| {
        let time = planned.predicted.iteration;
        if best.as_ref().is_none_or(|(fastest, _)| time < *fastest) {
            best = Some((time, chosen));
        }
    };
    let chosen = menu.usual();
    if let Some(planned) = plan(&chosen)? {
        consider(chosen, &planned);
    }
    let chosen = menu.fastest();
    let free = match plan(&chosen)? {
        // Nothing is longer than its operations: no other choice is better.
        Some(planned) if planned.predicted.iteration <= chosen.costs.total() => {
            consider(chosen, &planned);
            true
        }
        Some(planned) => {
            consider(chosen, &planned);
            false
        }
        None => false,
    };
    let chosen = menu.leanest();
    if !free && let Some(planned) = plan(&chosen)? {
        let room = room(&chosen.graph, planned.plan.schedule(), &training.machine, limit);
        consider(chosen, &planned);
        let chosen = menu.within(&room);
        if let Some(planned) = plan(&chosen)? {
            consider(chosen, &planned);
        }
    }
    Ok(best.map_or_else(|| training.graph.clone(), |(_, chosen)| chosen.graph))
}

/// A plan for a choice, if one is found at once.
fn planned(
    training: &Training<'_>,
    chosen: &Chosen,
    limit: Bytes,
    observer: &dyn Observer,
) -> Result<Option<Planned>, TrainError> {
    let task = train::estimate(&chosen.graph, &training.machine, training.freedom)?;
    let task = Task { costs: chosen.costs.clone(), ..task }.with_memory(limit);
    Ok(train::plan_at_once(training, &task, observer)?.ok())
}

/// Workspace that every operation could have in a schedule: what is free at its launch, at each of them if there are several, and its own.
fn room(graph: &Graph, schedule: &Schedule, machine: &Machine, limit: Bytes) -> Table<OpId, Bytes> {
    let problem = elbowroom_sim::liveness::problem(schedule, machine);
    let mut changes = vec![0i128; schedule.steps.len() + 1];
    for block in problem.blocks.values() {
        for &Interval { start, end } in &block.alive {
            changes[start as usize] += i128::from(block.size.get());
            changes[end as usize] -= i128::from(block.size.get());
        }
    }
    let mut room = Table::filled(graph.nodes.len(), Bytes(u64::MAX));
    let mut load = 0;
    for (id, step) in schedule.steps.iter() {
        load += changes[id.index()];
        if let Action::Compute(launch) | Action::Recompute(launch) = &step.action {
            let own = launch.workspace.map_or(Bytes::ZERO, |buffer| problem.blocks[buffer].size);
            let others = Bytes(u64::try_from(load).unwrap_or(0)) - own;
            let free = Bytes(limit.get().saturating_sub(others.get()));
            room[launch.op] = room[launch.op].min(free);
        }
    }
    room
}

/// Whether algorithms of equal bits can gain enough in a training of this graph under this limit to be timed.
pub(crate) fn is_worth_choosing(training: &Training<'_>, graph: &Graph, limit: Bytes) -> bool {
    training.iterations >= WORTH_TIMING || saving(graph).get().saturating_mul(TIGHT) >= limit.get()
}

/// The graph with the smallest workspaces of equal bits.
pub(crate) fn smallest(graph: &Arc<Graph>) -> Arc<Graph> {
    let mut graph = Graph::clone(graph);
    for op in graph.nodes.ids() {
        let lean = ways(&graph.nodes[op].kind, false).min_by_key(elbowroom_engine::kernels::workspace);
        if let Some(lean) = lean {
            graph.nodes[op].kind = lean;
        }
    }
    Arc::new(graph)
}

/// The most bytes by which a workspace can be smaller with equal bits.
fn saving(graph: &Graph) -> Bytes {
    let most = graph.nodes.values().map(|node| {
        let workspace = elbowroom_engine::kernels::workspace;
        let least = ways(&node.kind, false).map(|kind| workspace(&kind)).min().unwrap_or_default();
        workspace(&node.kind).saturating_sub(least)
    });
    most.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::op::Algorithm;
    use elbowroom_graph::zoo::{self, Options};

    use super::*;

    /// A menu with these workspaces and times for every convolution, the usual one first.
    fn menu(rows: &[(Algorithm, u64, u64)]) -> Menu {
        let options = Options { width: Some(8), ..Options::new(1) };
        let graph = Arc::new(zoo::build("resnet18", &options).expect("the network can be built"));
        let offer =
            |kind: OpKind, (workspace, time)| Offer { kind, workspace: Bytes(workspace), time: Nanos(time) };
        let offers = graph.nodes.values().map(|node| {
            let made = rows.iter().filter_map(|&(algorithm, workspace, time)| {
                Some(offer(node.kind.computed_by(algorithm)?, (workspace, time)))
            });
            let made: Vec<Offer> = made.collect();
            if made.is_empty() { vec![offer(node.kind.clone(), (0, 1))] } else { made }
        });
        Menu { offers: offers.collect(), graph }
    }

    #[test]
    fn every_operation_gets_the_fastest_way_that_fits_at_its_moment() {
        let menu =
            menu(&[(Algorithm::Tiled, 100, 10), (Algorithm::Lean, 10, 12), (Algorithm::Winograd, 1000, 5)]);
        let rooms = [5, 10, 99, 100, 999, 1000];
        let room: Table<OpId, Bytes> =
            menu.graph.nodes.ids().map(|op| Bytes(rooms[op.index() % rooms.len()])).collect();
        let chosen = menu.within(&room);
        let mut seen = 0;
        for (op, node) in chosen.graph.nodes.iter() {
            let Some(conv) = node.kind.conv() else { continue };
            let expected = match room[op].get() {
                0..100 => Algorithm::Lean,
                100..1000 => Algorithm::Tiled,
                _ => Algorithm::Winograd,
            };
            assert_eq!(conv.algorithm, expected, "{} has room for {}", node.name, room[op]);
            seen += 1;
        }
        assert!(seen > 30);
        assert_eq!(counts(&menu.fastest().graph).keys().copied().collect::<Vec<_>>(), ["winograd"]);
        assert_eq!(counts(&menu.leanest().graph).keys().copied().collect::<Vec<_>>(), ["lean"]);
    }

    #[test]
    fn a_difference_within_noise_changes_nothing() {
        let menu = menu(&[(Algorithm::Tiled, 100, 1000), (Algorithm::Lean, 10, 980)]);
        assert_eq!(counts(&menu.fastest().graph).keys().copied().collect::<Vec<_>>(), ["tiled"]);
    }
}
