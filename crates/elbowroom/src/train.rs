//! Training under a limit.
//!
//! A training plans with estimated durations, executes the first iteration dynamically and measures it, plans again with measured
//! durations, and follows that plan. Where structures vary, the first iteration of another one than the largest follows a plan derived from
//! the first plan. Every iteration counts towards the training, and every iteration stays under the limit.
//!
//! ```text
//! network ─▶ largest batch ─▶ tiles       ─▶ plan from estimates ─▶ iterations, algorithms ─▶ unlimited run ─▶ report
//!            if requested     under limit    limit.rs               execution.rs              if verified
//! ```

mod derived;
mod dtr;
mod error;
mod evaluating;
mod execution;
mod host;
mod limit;
mod parts;
mod reading;
mod saving;
mod schedule;
mod session;
mod settings;

use std::collections::BTreeMap;
use std::sync::Arc;

use elbowroom_engine::{EngineError, HostOptions};
use elbowroom_graph::{Graph, Precision, Tiling};
use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Machine;

use crate::algorithms::{self, AlgorithmChoice, Chosen, Conditions};
use crate::checkpoint::{Checkpoint, Header};
use crate::data::{Augmentation, Batch, DataError, Feed};
use crate::largest::{Largest, largest};
use crate::network::{NetworkError, samples};
use crate::pipeline::{self, Planned, Rounds, Task};
use crate::report::{Evaluation, PlanReport, TrainReport};
use crate::resident;
use crate::size::MemorySpec;
use crate::tiles::{self, TiledWeight};
use evaluating::{Due, Epoch, Evaluator};
use execution::{ByPlan, Executor, UnderLimit, Unlimited};
use host::Host;
use session::{Run, Runner, Start};
use settings::Data;

pub use crate::observer::{Executed, Iteration, Outputs, Silent, TrainObserver};
pub use error::TrainError;
pub use schedule::{Schedule, ScheduleError};
pub use settings::Training;

impl<'a> Training<'a> {
    /// Trains in silence.
    ///
    /// # Errors
    ///
    /// A [`TrainError`]; [`TrainError::Refused`] if no plan was found under the limit.
    pub fn run(self) -> Result<TrainReport, TrainError> {
        self.run_observed(&Silent)
    }

    /// Trains and reports progress to an observer, which may also interrupt: then the training ends and is saved after the iteration at
    /// hand. A training that [diverges](crate::report::Ending::Diverged) ends as well; its last checkpoint is from before.
    ///
    /// # Errors
    ///
    /// A [`TrainError`]; [`TrainError::Refused`] if no plan was found under the limit, [`TrainError::Interrupted`] if the observer interrupted
    /// before the first iteration.
    pub fn run_observed(self, observer: &dyn TrainObserver) -> Result<TrainReport, TrainError> {
        self.train(observer).map_err(|error| error.or_interrupted(observer.interrupted()))
    }

    fn train(mut self, observer: &dyn TrainObserver) -> Result<TrainReport, TrainError> {
        let go_on = || if observer.interrupted() { Err(TrainError::Interrupted) } else { Ok(()) };
        let checkpoint = self.resume.as_deref().map(Checkpoint::open).transpose()?;
        self.seed = self.seed.or(checkpoint.as_ref().map(|checkpoint| checkpoint.header.seed));
        (self.method.budget.seed, self.method.budget.threads) = (self.effective_seed(), self.threads);
        if self.method.rounds == Rounds::AsNeeded {
            self.method.rounds = Rounds::Sparing;
        }
        if let Some((to_host, to_device)) = self.host.link() {
            (self.machine.to_host, self.machine.to_device) = (to_host, to_device);
        }
        let host = self.host.resolve().map_err(EngineError::from)?;
        let freedom = self.freedom;
        (self.machine, self.freedom) = (host.limit(&self.machine), host.freedom(freedom));
        let of_part = self.split(observer)?;
        let (graph, of_batch) = self.sized(observer)?;
        let known = of_part.or(of_batch);
        // Data and checkpoint are opened before anything long begins.
        let seed = self.effective_seed();
        if let Some(share) = self.held_out {
            let [rest, held_out] =
                std::mem::take(&mut self.data).split(&graph, share, seed, &self.tokenizer)?;
            (self.data, self.evaluation) = (rest, held_out);
        }
        let mut feed = std::mem::take(&mut self.data).open(&graph, seed, self.one_pass, &self.tokenizer)?;
        if self.augmentation != Augmentation::default() && !Batch::new(&graph).takes_images() {
            return Err(DataError::Mismatch(format!(
                "{} takes no images that could be mirrored or shifted; leave out --flip and --crop",
                graph.name
            ))
            .into());
        }
        feed = feed.augmented(self.augmentation);
        if self.one_pass {
            let (pass, samples_of_data) = feed.in_one_pass()?;
            (feed, self.iterations) = (pass, samples_of_data.div_ceil(samples(&graph).max(1) as u64));
        }
        let evaluator = self.resolve_epochs(&graph, &feed, checkpoint.as_ref())?;
        let remark = if self.one_pass { None } else { feed.spare_classes(&graph) };
        let other = checkpoint.as_ref().and_then(|checkpoint| other_precision(&checkpoint.header, &graph));
        let training = &self;
        let mut runner = Runner::new(training, &graph, feed, checkpoint, evaluator)?;
        go_on()?;
        observer.network(&graph);
        for remark in remark.iter().chain(&other) {
            observer.remark(remark);
        }
        let machine = measured_link(training, &host)?;
        let untiled = graph.clone();
        let Cut { graph, tiling, memory, whole } = training.cut(graph, &machine, observer)?;
        let (chosen, open) = training.choose_algorithms(&graph, memory, &machine, observer)?;
        // A share of the peak is resolved with the algorithms as built, so that the report relates the limit to them too.
        let peak_as_built = whole.as_ref().or(chosen.unconstrained.as_ref()).map(Planned::height);

        go_on()?;

        let first = match (training.first_plan(chosen, &machine, known.as_ref(), observer), open) {
            // Other algorithms need less workspace.
            (Err(unplanned), Some(limit)) if matches!(unplanned.error, TrainError::Refused(_)) => {
                let conditions = training.conditions_within(limit, &machine);
                let best = algorithms::best(&graph, &conditions, limit, observer)?;
                let graph = best.map_or(graph, |best| best.graph);
                let memory = MemorySpec::Absolute(limit);
                let chosen = Chosen { graph, memory, unconstrained: None };
                training.first_plan(chosen, &machine, known.as_ref(), observer).map(|first| (first, false))
            }
            (first, open) => first.map(|first| (first, open.is_some())),
        };
        let (First { graph, task, unconstrained, estimated }, choosing) =
            first.map_err(|unplanned| match *unplanned {
                Unplanned { error: TrainError::Refused(refusal), task: Some(task) } => {
                    limit::explain_shortage(*refusal, training, &task, &host, freedom, observer)
                }
                Unplanned { error, .. } => error,
            })?;
        runner.set_graph(graph.clone(), tiling)?;
        let machine = machine.with_memory(estimated.plan.machine().memory);

        go_on()?;

        observer.stage("training");
        let task = task.with_memory(machine.memory);
        let mut executor = UnderLimit::new(training, graph, &task, estimated, choosing, observer)?;
        let mut session = runner.open(&Start::Memory(&machine), host.options.clone())?;
        let saving = training.save.as_ref();
        let mut limited = runner.run(&mut session, &mut executor, training.iterations, saving, observer)?;
        if limited.diverged.is_none() {
            // The results of the training are reported all the same.
            let error = runner.save_weights(&session, limited.iterations).err();
            limited.saved.weights_error = error.map(|error| error.to_string());
        }
        let intact = executor.arena_above_intact(&session);
        if let Some((plan, costs, predicted)) = executor.last_followed() {
            observer.executed(&Executed { plan, costs, predicted: &predicted, measured: &limited.last });
        }
        // Digests, not values: the parameters of both runs at once would need more memory than either run.
        let verify = training.verify && !observer.interrupted();
        let digests = verify.then(|| session.digests()).transpose()?;
        drop(session);
        // Before the unlimited run, which would count as well.
        let resident = resident::most();

        let unlimited = match digests {
            Some(digests) => {
                observer.stage("running the same iterations without a limit");
                // Without tiles either.
                let (task, unconstrained) = match &whole {
                    None => (&task, &unconstrained),
                    Some(whole) => {
                        runner.set_graph(untiled.clone(), Tiling::default())?;
                        (&Task::estimate(&untiled, &machine, training.freedom)?, whole)
                    }
                };
                let iterations = limited.iterations;
                let run = training.run_unlimited(&mut runner, task, unconstrained, iterations, observer)?;
                let equal = run.results == limited.results && run.digests == digests;
                // An interrupted run has fewer iterations to compare.
                (run.iterations == limited.iterations).then_some((run, equal))
            }
            None => None,
        };
        let graph = executor.largest();
        let (algorithms, tiled_weights) = (algorithms::counts(graph), tiles::tiled_weights(graph));
        let outcome =
            Outcome { algorithms, tiled_weights, limited, unlimited, arena_above_intact: intact, resident };
        let peak = peak_as_built.unwrap_or(unconstrained.height());
        Ok(report(&runner, &executor, peak, &host, outcome))
    }

    /// The largest structure of the network, built for the largest batch if that was requested; then also the plan that has shown that it fits.
    /// That batch does not depend on how fast the host tier is now: it is the one for the machine as it is described, and `plan` names the same.
    fn sized(&mut self, observer: &dyn TrainObserver) -> Result<(Arc<Graph>, Option<Planned>), TrainError> {
        if !self.largest_batch {
            return Ok((self.network.largest()?, None));
        }
        observer.stage("looking for the largest batch");
        let conditions = self.conditions(&self.machine);
        let Largest { samples, graph, planned, .. } =
            largest(&*self.network, &conditions, self.tiles, observer)?;
        if let Some(network) = self.network.with_batch(samples) {
            self.network = network;
        }
        Ok((graph, Some(planned)))
    }

    /// Turns epochs into iterations, less those of the checkpoint, and opens the data for evaluations.
    fn resolve_epochs(
        &mut self,
        graph: &Graph,
        feed: &Feed<'a>,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Option<Evaluator<'a>>, TrainError> {
        let batch = samples(graph) as u64;
        let epoch = match self.network.samples_in_epoch() {
            Some(samples) => Some(Epoch { samples, batch, cut: true }),
            None => feed.epoch(graph).map(|samples| Epoch { samples, batch, cut: false }),
        };
        if let Some(epochs) = self.epochs {
            let total = epoch.ok_or(TrainError::NoEpochs)?.iterations(epochs);
            let total = total.ok_or(NetworkError::Iteration { iteration: u64::MAX })?;
            let done = checkpoint.map_or(0, |checkpoint| checkpoint.header.iterations_done);
            self.iterations = total.saturating_sub(done);
            if self.iterations == 0 {
                return Err(TrainError::Complete { done, epochs, total });
            }
        }
        let data = std::mem::replace(&mut self.evaluation, Data::None);
        if matches!(data, Data::None) {
            return Ok(None);
        }
        let graph = self.network.evaluation()?.ok_or(TrainError::Unevaluable)?;
        let Some(mut dataset) = data.open_evaluation(&graph, &self.tokenizer)? else { return Ok(None) };
        if let Some(names) = feed.class_names() {
            dataset.number_classes_as(&names)?;
        }
        let due = match (self.evaluate_every, epoch) {
            (Some(every), _) => Due::Every(every),
            (None, Some(epoch)) if self.epochs.is_some() => Due::Epochs(epoch),
            (None, _) => Due::End,
        };
        Ok(Some(Evaluator::new(dataset, graph, due)?))
    }

    /// The graph with those weights in tiles whose updates need too much for the limit.
    fn cut(
        &self,
        graph: Arc<Graph>,
        machine: &Machine,
        observer: &dyn TrainObserver,
    ) -> Result<Cut, TrainError> {
        let whole = |graph| Cut { graph, tiling: Tiling::default(), memory: self.memory, whole: None };
        // The unconstrained peak is at least all that is persistent: often that alone shows that nothing is to be cut.
        let persistent = graph.wholes().iter().map(|whole| Bytes(whole.bytes() as u64)).sum();
        let least = self.memory.resolve(persistent).unwrap_or(Bytes::ZERO);
        if self.algorithms == AlgorithmChoice::NumericChanges || !tiles::may_cut(&graph, self.tiles, least) {
            return Ok(whole(graph));
        }
        let task = Task::estimate(&graph, machine, self.freedom)?;
        let Ok(unconstrained) = pipeline::unconstrained(&task, self.method.packer, observer) else {
            return Ok(whole(graph));
        };
        let limit = self.memory.resolve(unconstrained.height());
        let tiling = tiles::choose(&graph, self.tiles, limit, machine, self.freedom)?;
        if tiling.is_empty() {
            return Ok(whole(graph));
        }
        let graph = Arc::new(graph.tiled(&tiling).map_err(NetworkError::from)?);
        // A share is one of the peak without tiles.
        let memory = limit.map_or(self.memory, MemorySpec::Absolute);
        Ok(Cut { graph, tiling, memory, whole: Some(unconstrained) })
    }

    /// The graph with its algorithms, and the limit for which they are chosen behind the first iteration, which does not wait for that. All
    /// iterations have the same numerically different ones. Structures that vary keep the algorithms that they were built with.
    fn choose_algorithms(
        &self,
        graph: &Arc<Graph>,
        memory: MemorySpec,
        machine: &Machine,
        observer: &dyn TrainObserver,
    ) -> Result<(Chosen, Option<Bytes>), TrainError> {
        let conditions = Conditions { memory, ..self.conditions(machine) };
        match (self.network.varies(), self.algorithms) {
            (true, AlgorithmChoice::NumericChanges) => Err(TrainError::NumericChanges),
            (true, _) => Ok((Chosen { graph: graph.clone(), memory, unconstrained: None }, None)),
            (false, AlgorithmChoice::NumericChanges) => {
                Ok((algorithms::choose(graph, &conditions, observer)?, None))
            }
            (false, _) => Ok(algorithms::choose_at_once(graph, &conditions, observer)?),
        }
    }

    /// Traces and plans one iteration. `known` may be a plan of it.
    fn first_plan(
        &self,
        chosen: Chosen,
        machine: &Machine,
        known: Option<&Planned>,
        observer: &dyn TrainObserver,
    ) -> Result<First, Box<Unplanned>> {
        let Chosen { graph, memory, unconstrained } = chosen;
        let unplanned = |error, task| Box::new(Unplanned { error, task });
        observer.stage("tracing one iteration");
        let task =
            Task::estimate(&graph, machine, self.freedom).map_err(|error| unplanned(error.into(), None))?;

        observer.stage("planning");
        // A plan that the choice of algorithms has made serves only if the graph is still the same.
        let key = task.trace.fingerprint();
        let unconstrained = match unconstrained.filter(|known| known.plan.trace().fingerprint() == key) {
            Some(known) => known,
            None => pipeline::unconstrained(&task, self.method.packer, observer)
                .map_err(|error| unplanned(TrainError::Plan(error), None))?,
        };
        let known = known.filter(|known| known.plan.trace().fingerprint() == key);
        match limit::plan(self, memory, &task, &unconstrained, known, observer) {
            Ok(estimated) => Ok(First { graph, task, unconstrained, estimated }),
            Err(error) => Err(unplanned(error, Some(task))),
        }
    }

    /// Runs the same iterations without a limit: by the plan that keeps every tensor, or dynamically if the network varies.
    fn run_unlimited(
        &self,
        runner: &mut Runner<'_, '_>,
        task: &Task,
        unconstrained: &Planned,
        iterations: u64,
        observer: &dyn TrainObserver,
    ) -> Result<Run, TrainError> {
        let everything = self.machine.clone().with_memory(all_tensors(task));
        let (mut by_plan, mut dynamic) = (ByPlan { plan: unconstrained.plan.clone() }, Unlimited::default());
        // The plan is for one structure, and an evaluation runs another one.
        let (start, executor): (_, &mut dyn Executor) = match self.network.varies() || runner.evaluates() {
            false => (Start::Plan(&unconstrained.plan), &mut by_plan),
            true => (Start::Memory(&everything), &mut dynamic),
        };
        let mut session = runner.open(&start, HostOptions::default())?;
        let run = runner.run(&mut session, executor, iterations, None, observer)?;
        Ok(Run { digests: session.digests()?, ..run })
    }
}

/// What is to be said where a training goes on in another precision than before.
fn other_precision(saved: &Header, graph: &Graph) -> Option<String> {
    let [before, now] = [saved.precision, graph.precision()].map(Precision::name);
    (before != now)
        .then(|| format!("the checkpoint was trained in {before}, and the training goes on in {now}"))
}

/// More bytes than all tensors of an iteration take together, however scattered.
fn all_tensors(task: &Task) -> Bytes {
    let (trace, align) = (&task.trace, task.machine.align);
    let storages = trace.storages().values().map(|storage| storage.bytes.align_up(align));
    let workspace = trace.ops().values().map(|op| op.workspace.align_up(align)).max();
    Bytes(2 * (storages.sum::<Bytes>() + workspace.unwrap_or_default()).get())
}

/// The machine with the measured link of the host tier. Where nothing can be measured, nothing can be offloaded either, and the machine keeps
/// its link.
fn measured_link(training: &Training<'_>, host: &Host) -> Result<Machine, TrainError> {
    let machine = training.machine.clone();
    if !training.freedom.offload {
        return Ok(machine);
    }
    let link = host.options.measure(machine.host_memory).map_err(EngineError::from)?;
    let (to_host, to_device) = link.unwrap_or((machine.to_host, machine.to_device));
    Ok(Machine { to_host, to_device, ..machine })
}

/// The largest structure with its first plans.
struct First {
    graph: Arc<Graph>,
    task: Task,
    /// The plan that keeps every tensor on the device.
    unconstrained: Planned,
    /// A plan within the limit, for estimated durations.
    estimated: Planned,
}

/// Why there is no first plan.
struct Unplanned {
    error: TrainError,
    /// What was refused, if it could be traced.
    task: Option<Task>,
}

/// A graph with some weights in tiles.
struct Cut {
    graph: Arc<Graph>,
    tiling: Tiling,
    /// The limit.
    memory: MemorySpec,
    /// The plan that keeps every tensor of the graph without tiles on the device, if there are tiles.
    whole: Option<Planned>,
}

/// What the runs of a training gave.
struct Outcome {
    algorithms: BTreeMap<&'static str, usize>,
    tiled_weights: Vec<TiledWeight>,
    limited: Run,
    /// The unlimited run, and whether the limited one equals it.
    unlimited: Option<(Run, bool)>,
    arena_above_intact: bool,
    resident: Option<Bytes>,
}

/// Builds the report: measured against predicted.
fn report(
    runner: &Runner<'_, '_>,
    executor: &UnderLimit<'_>,
    unconstrained_peak: Bytes,
    host: &Host,
    outcome: Outcome,
) -> TrainReport {
    let Outcome { algorithms, tiled_weights, limited, unlimited, arena_above_intact, resident } = outcome;
    let training = runner.training();
    let measured_unlimited = unlimited.as_ref().map(|(run, _)| run.iteration);
    let baseline = measured_unlimited.unwrap_or_else(|| executor.sum_of_op_times());
    let batch = samples(&runner.graph);
    let evaluations = &limited.evaluations;
    TrainReport {
        plan: executor.plan_report(unconstrained_peak),
        host: host.name(),
        host_kind: host.kind,
        host_reserved_bytes: limited.host,
        to_host_rate: executor.machine().to_host.rate,
        to_device_rate: executor.machine().to_device.rate,
        threads: training.threads,
        algorithms,
        tiled_weights,
        first_iteration: runner.first,
        measured_peak_bytes: limited.peak,
        arena_above_intact,
        peak_resident_bytes: resident,
        batch,
        samples_per_second: batch as f64 * 1e9 / limited.iteration.get().max(1) as f64,
        measured_iteration_ns: limited.iteration,
        measured_unlimited_iteration_ns: measured_unlimited,
        measured_overhead: PlanReport::overhead(limited.iteration, baseline),
        measured_to_host_bytes: limited.last.traffic.to_host,
        measured_to_device_bytes: limited.last.traffic.to_device,
        measured_recomputed_ops: limited.last.recomputed,
        execution: executor.execution(),
        underived_reason: executor.underived(),
        ending: limited.ending,
        diverged: limited.diverged,
        saved: limited.saved,
        eval_iterations: evaluations.iter().map(|evaluation| evaluation.iterations).collect(),
        eval_samples: evaluations.iter().map(|evaluation| evaluation.samples).collect(),
        eval_labels: evaluations.iter().map(|evaluation| evaluation.labels).collect(),
        eval_loss: evaluations.iter().map(|evaluation| evaluation.loss).collect(),
        eval_accuracy: evaluations.iter().map(|evaluation| evaluation.accuracy).collect(),
        eval_perplexity: evaluations.iter().filter_map(Evaluation::perplexity).collect(),
        losses: limited.losses,
        verified: unlimited.map(|(_, equal)| equal),
    }
}
