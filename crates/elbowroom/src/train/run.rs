//! Sessions that run: opened from seed or checkpoint, fed, timed, saved.

use std::path::Path;
use std::sync::Arc;

use elbowroom_engine::{
    Digest, EngineError, HostOptions, IterationReport, MeasuredCosts, Session, SessionOptions,
};
use elbowroom_graph::{DType, Graph};
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::schedule::{Action, Lane};
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::{Bytes, Nanos};

use super::{Iteration, Saving, TrainError, TrainObserver, Training};
use crate::checkpoint::{self, Checkpoint, Dtype, Entry};
use crate::data::Feed;
use crate::pipeline::Task;

/// Iterations run to measure durations. The first one pays for fresh pages and is not counted.
const MEASURED: u64 = 2;

/// Name of the output that falls while a network learns.
const LOSS: &str = "loss";

/// All that sessions of one training have in common.
pub(super) struct Runner<'a> {
    graph: Arc<Graph>,
    feed: Feed,
    checkpoint: Option<Checkpoint>,
    entries: Vec<Entry>,
    seed: u64,
    threads: usize,
    host: &'a HostOptions,
    /// Number of the first iteration: those before it were run before the checkpoint was saved.
    pub(super) first: u64,
}

/// What a run was like.
pub(super) struct Run {
    /// Iterations that were run.
    pub iterations: u64,
    /// One for each iteration; none where the forward part runs alone.
    pub losses: Vec<f32>,
    /// Every output of every iteration, for comparison to the bit.
    pub results: Vec<Digest>,
    /// Median over the iterations, the lower one of two.
    pub iteration: Nanos,
    /// Sum of the median durations of the ops: an iteration in which nothing waits and nothing is computed twice.
    pub unlimited_by_ops: Nanos,
    pub peak: Bytes,
    /// The last iteration.
    pub last: Timeline,
}

impl<'a> Runner<'a> {
    /// Opens the data and the checkpoint, and checks that both belong to the network.
    pub(super) fn new(training: &'a Training<'_>) -> Result<Self, TrainError> {
        let graph = training.graph.clone();
        let entries = entries(&graph);
        let checkpoint = training.resume.as_deref().map(Checkpoint::open).transpose()?;
        if let Some(checkpoint) = &checkpoint {
            // What trains needs all that persists; what only looks at the parameters takes them from any checkpoint that has them.
            match graph.persistent.iter().any(|parameter| parameter.begin != parameter.end) {
                true => checkpoint.expect(&entries)?,
                false => checkpoint.expect_among(&entries)?,
            }
        }
        let first = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.iterations_done);
        let mut feed = Feed::open(&graph, training.data.as_deref(), training.seed)?;
        feed.read(first)?;
        let (seed, threads) = (training.seed, training.threads);
        Ok(Self { graph, feed, checkpoint, entries, seed, threads, host: &training.host, first })
    }

    /// A session at the beginning: initial values, or those of the checkpoint.
    pub(super) fn open(&self, plan: &Arc<CheckedPlan>, host: HostOptions) -> Result<Session, TrainError> {
        let options =
            SessionOptions { threads: self.threads, seed: self.seed, host, ..SessionOptions::default() };
        let mut session = Session::new(self.graph.clone(), plan.clone(), options)?;
        if let Some(checkpoint) = &self.checkpoint {
            let mut value = Vec::new();
            for (index, entry) in self.entries.iter().enumerate() {
                value.resize(entry.bytes(), 0);
                checkpoint.read(&entry.name, &mut value)?;
                session.write_persistent(index, &value)?;
            }
        }
        Ok(session)
    }

    /// Runs a plan for a moment, and returns the task with the durations and the link that were measured.
    pub(super) fn measure(&mut self, plan: &Arc<CheckedPlan>, task: &Task) -> Result<Task, TrainError> {
        let mut session = self.open(plan, self.host.clone())?;
        let mut costs = MeasuredCosts::new(&task.trace);
        for done in 1..=MEASURED {
            self.step(&mut session, self.first)?;
            if done == MEASURED {
                costs.add(plan.schedule(), &session.timeline());
            }
        }
        let machine = linked(task.machine.clone(), plan, &session.timeline());
        Ok(Task { costs: costs.median(), machine, ..task.clone() })
    }

    /// Runs iterations from the beginning on, saving on the way and at the end.
    pub(super) fn run(
        &mut self,
        session: &mut Session,
        iterations: u64,
        saving: Option<&Saving>,
        observer: &dyn TrainObserver,
    ) -> Result<Run, TrainError> {
        observer.begin(iterations);
        let plan = session.plan().cloned().ok_or(EngineError::NoPlan)?;
        let mut costs = MeasuredCosts::new(plan.trace());
        let (mut losses, mut results, mut times) = (Vec::new(), Vec::new(), Vec::new());
        let loss_slot = self.graph.outputs.iter().position(|output| output.name == LOSS);
        let mut peak = Bytes::ZERO;
        let mut last = Timeline::default();
        for done in 1..=iterations {
            let number = self.first + done - 1;
            let report = self.step(session, number)?;
            last = session.timeline();
            costs.add(plan.schedule(), &last);
            for slot in 0..self.graph.outputs.len() {
                let output = session.output(slot);
                results.push(Digest::of(bytemuck::cast_slice(&output)));
                if loss_slot == Some(slot) {
                    losses.extend(output.first());
                }
            }
            times.push(report.iteration);
            peak = peak.max(report.measured_peak);
            let (loss, time) = (losses.last().copied(), report.iteration);
            observer.iteration(&Iteration { number, loss, time, peak, limit: plan.machine().memory });
            let stopping = done == iterations || observer.interrupted();
            if let Some(saving) = saving
                && (stopping || done % saving.every == 0)
            {
                self.save(session, &saving.path, number + 1)?;
            }
            if stopping {
                break;
            }
        }
        times.sort_unstable();
        Ok(Run {
            iterations: times.len() as u64,
            losses,
            results,
            iteration: times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or_default(),
            unlimited_by_ops: costs.median().total(),
            peak,
            last,
        })
    }

    fn step(&mut self, session: &mut Session, number: u64) -> Result<IterationReport, TrainError> {
        self.feed.read(number)?;
        for (slot, bytes) in self.feed.slots().enumerate() {
            session.fill_input(slot, |input| input.copy_from_slice(bytes));
        }
        Ok(session.run_iteration(number)?)
    }

    fn save(&self, session: &Session, path: &Path, iterations_done: u64) -> Result<(), TrainError> {
        let read = |index: usize, value: &mut [u8]| {
            session.read_persistent(index, value).map_err(std::io::Error::other)
        };
        Ok(checkpoint::save(path, &self.graph.name, iterations_done, &self.entries, read)?)
    }
}

/// The persistent values of a graph as a checkpoint holds them, in the graph's order.
fn entries(graph: &Graph) -> Vec<Entry> {
    let entry = |parameter: &elbowroom_graph::Parameter| {
        let value = &graph.values[parameter.begin];
        let dtype = match value.dtype {
            DType::F32 => Dtype::F32,
            DType::I32 => Dtype::I32,
            DType::U8 => Dtype::U8,
        };
        Entry { name: parameter.name.clone(), dtype, shape: value.shape.dims().to_vec() }
    };
    graph.persistent.iter().map(entry).collect()
}

/// The machine with the rates at which copies really went, in the directions in which there were any.
fn linked(mut machine: Machine, plan: &CheckedPlan, timeline: &Timeline) -> Machine {
    for (lane, channel) in [(Lane::ToHost, &mut machine.to_host), (Lane::ToDevice, &mut machine.to_device)] {
        let spans = timeline.spans.iter().filter(|span| span.lane == lane);
        let (bytes, time) = spans.fold((0u64, 0u64), |(bytes, time), span| {
            let copied = match plan.schedule().steps[span.action].action {
                Action::Offload { value, .. } | Action::Prefetch { value, .. } => {
                    plan.trace().bytes(value).get()
                }
                _ => 0,
            };
            (bytes + copied, time + (span.end - span.start).get())
        });
        if bytes > 0 && time > 0 {
            let rate = u128::from(bytes) * 1_000_000_000 / u128::from(time);
            *channel = Channel::with_rate(u64::try_from(rate).unwrap_or(u64::MAX).max(1));
        }
    }
    machine
}
