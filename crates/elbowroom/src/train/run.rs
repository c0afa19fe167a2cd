//! Sessions that run: opened from seed or checkpoint, fed, timed, saved.

use std::path::Path;
use std::sync::Arc;

use elbowroom_engine::{Digest, HostOptions, Session, SessionOptions};
use elbowroom_graph::{DType, Graph, Shape};
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::{Bytes, Nanos, units};

use super::changing::{Lesson, Samples};
use super::ways::{Lap, Way};
use super::{Iteration, Saving, TrainError, TrainObserver, Training, samples};
use crate::checkpoint::{self, Checkpoint, CheckpointError, Dtype, Entry};
use crate::data::{DataError, Feed};
use crate::files::expect_writable;

/// Name of the output that falls while a network learns.
const LOSS: &str = "loss";

/// All that sessions of one training have in common.
pub(super) struct Runner<'a> {
    training: &'a Training<'a>,
    feeds: Feeds<'a>,
    checkpoint: Option<Checkpoint>,
    entries: Vec<Entry>,
    /// Number of the first iteration: those before it were run before the checkpoint was saved.
    pub(super) first: u64,
}

/// What a run was like.
#[derive(Default)]
pub(super) struct Run {
    /// Iterations that were run.
    pub iterations: u64,
    /// One for each iteration; none where the forward part runs alone.
    pub losses: Vec<f32>,
    /// Every output of every iteration, for comparison to the bit.
    pub results: Vec<Digest>,
    /// Median over the iterations that followed a plan, or over all if none did; the lower one of two.
    pub iteration: Nanos,
    /// Of the iterations that followed a plan, or of all if none did.
    pub peak: Bytes,
    /// The last iteration, one that followed a plan if there was any.
    pub last: Timeline,
}

/// Where a session begins.
pub(super) enum Start<'p> {
    /// At a plan.
    Plan(&'p Arc<CheckedPlan>),
    /// In this memory.
    Memory(&'p Machine),
}

impl<'a> Runner<'a> {
    /// Opens the data and the checkpoint, and checks that both belong to the network, and that checkpoints can be written.
    pub(super) fn new(training: &'a Training<'a>) -> Result<Self, TrainError> {
        let graph = &training.graph;
        if let Some(Saving { path, .. }) = &training.save {
            let failed = |source| CheckpointError::Write { path: path.clone(), source };
            expect_writable(path).map_err(failed)?;
        }
        let entries = entries(graph);
        let checkpoint = training.resume.as_deref().map(Checkpoint::open).transpose()?;
        if let Some(checkpoint) = &checkpoint {
            // What trains needs all that persists; what only looks at the parameters takes them from any checkpoint that has them.
            match graph.persistent.iter().any(|parameter| parameter.begin != parameter.end) {
                true => checkpoint.expect(&entries)?,
                false => checkpoint.expect_among(&entries)?,
            }
        }
        let first = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.iterations_done);
        let mut feeds = Feeds { data: training.data.as_deref(), seed: training.seed, open: Vec::new() };
        feeds.read(&lesson(training, first)?)?;
        Ok(Self { training, feeds, checkpoint, entries, first })
    }

    /// A session at the beginning: initial values, or those of the checkpoint.
    pub(super) fn open(&self, start: &Start<'_>, host: HostOptions) -> Result<Session, TrainError> {
        let (seed, threads) = (self.training.seed, self.training.threads);
        let options = SessionOptions { threads, seed, host, ..SessionOptions::default() };
        let graph = self.training.graph.clone();
        let mut session = match start {
            Start::Plan(plan) => Session::new(graph, Arc::clone(plan), options)?,
            Start::Memory(machine) => Session::without_plan(graph, machine, options)?,
        };
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

    /// Runs iterations from the beginning on, saving on the way and at the end.
    pub(super) fn run(
        &mut self,
        session: &mut Session,
        way: &mut dyn Way,
        iterations: u64,
        saving: Option<&Saving>,
        observer: &dyn TrainObserver,
    ) -> Result<Run, TrainError> {
        observer.begin(iterations);
        let mut run = Run::default();
        let (mut planned, mut times) = (false, Vec::new());
        let loss_slot = self.training.graph.outputs.iter().position(|output| output.name == LOSS);
        for done in 1..=iterations {
            let number = self.first + done - 1;
            let lesson = lesson(self.training, number)?;
            let feed = self.feeds.read(&lesson)?;
            let mut fill = |session: &mut Session| {
                for (slot, bytes) in feed.slots().enumerate() {
                    session.fill_input(slot, |input| input.copy_from_slice(bytes));
                }
            };
            let lap = way.step(session, number, &lesson, &mut fill)?;
            for slot in 0..lesson.graph.outputs.len() {
                let output = session.output(slot);
                run.results.push(Digest::of(bytemuck::cast_slice(&output)));
                if loss_slot == Some(slot) {
                    run.losses.extend(output.first());
                }
            }
            run.iterations += 1;
            let Lap { time, peak, timeline, planned: by_plan } = lap;
            if by_plan && !planned {
                // From here on plans are followed, and measured.
                (planned, run.peak) = (true, Bytes::ZERO);
                times.clear();
            }
            if by_plan == planned {
                times.push(time);
                run.peak = run.peak.max(peak);
                run.last = timeline;
            }
            let limit = session.limit()?;
            let ([structures, plans], loss) = (way.traces_and_plans(), run.losses.last().copied());
            let planned = by_plan;
            observer.iteration(&Iteration { number, loss, time, peak, limit, planned, structures, plans });
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
        run.iteration = units::median(&mut times).unwrap_or_default();
        Ok(run)
    }

    fn save(&self, session: &Session, path: &Path, iterations_done: u64) -> Result<(), TrainError> {
        let read = |index: usize, value: &mut [u8]| {
            session.read_persistent(index, value).map_err(std::io::Error::other)
        };
        Ok(checkpoint::save(path, &self.training.graph.name, iterations_done, &self.entries, read)?)
    }
}

/// What an iteration runs.
fn lesson(training: &Training<'_>, number: u64) -> Result<Lesson, TrainError> {
    match training.changing {
        Some(changing) => Ok(changing.at(number)?),
        None => {
            let graph = training.graph.clone();
            let samples = Samples::From(number * samples(&graph) as u64);
            Ok(Lesson { graph, samples })
        }
    }
}

/// Open data, by the shapes of the batches that are taken from it.
struct Feeds<'a> {
    data: Option<&'a Path>,
    seed: u64,
    open: Vec<(Vec<Shape>, Feed)>,
}

impl Feeds<'_> {
    /// Reads the batch of a lesson.
    fn read(&mut self, lesson: &Lesson) -> Result<&Feed, DataError> {
        let graph = &lesson.graph;
        let shapes: Vec<Shape> = graph.inputs.iter().map(|input| graph.values[input.value].shape).collect();
        let at = match self.open.iter().position(|(open, _)| *open == shapes) {
            Some(at) => at,
            None => {
                self.open.push((shapes, Feed::open(graph, self.data, self.seed)?));
                self.open.len() - 1
            }
        };
        let feed = &mut self.open[at].1;
        match &lesson.samples {
            Samples::From(first) => feed.read(*first)?,
            Samples::Sentences(batch) => feed.read_sentences(batch)?,
        }
        Ok(feed)
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
