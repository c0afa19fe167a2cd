//! Runs of a training: a session is opened from seed or checkpoint, reads its data, runs its iterations and is saved.

use std::io;
use std::sync::Arc;

use elbowroom_engine::{Digest, HostOptions, Session, SessionOptions};
use elbowroom_graph::{DType, Graph, Tiling};
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::{Bytes, Nanos, units};

use super::evaluating::{Evaluated, Evaluator, Totals, counts_hits, reads_tokens};
use super::execution::{Executor, Measured};
use super::reading::{Ahead, Reader};
use super::saving::Saver;
use super::schedule::{Course, Schedule};
use super::settings::{Saving, Training};
use super::{Iteration, Outputs, TrainError, TrainObserver};
use crate::checkpoint::{Checkpoint, CheckpointError, Dtype, Entry, Header, UnusedRows};
use crate::data::Feed;
use crate::files::expect_writable;
use crate::network::{self, KEPT_STRUCTURES, LOSS, NetworkError, Structure, Weight};
use crate::report::{Ending, Evaluation, Saved};
use crate::weights::{self, Weights, WeightsError};

/// What the runs of one training have in common.
pub(super) struct Runner<'t, 'a> {
    training: &'t Training<'a>,
    /// The largest structure, with its algorithms and its tiles chosen.
    pub(super) graph: Arc<Graph>,
    /// The largest structure as the network built it. Files name its persistent tensors.
    as_built: Arc<Graph>,
    /// The weights that are in tiles, and structures with and without them.
    tiling: Tiling,
    cut: Vec<(Arc<Graph>, Arc<Graph>)>,
    feed: Ahead<Feed<'a>>,
    /// What the iteration of this number runs, whose batch is being read.
    next: Option<(u64, Structure)>,
    /// Samples of the last batch of a pass, and its labels that count.
    part: (usize, u64),
    checkpoint: Option<Checkpoint>,
    weights: Option<Weights>,
    /// Values that parameters begin with where neither a checkpoint nor a file of weights has them.
    initial: Vec<Weight>,
    entries: Vec<Entry>,
    /// Rows of tables that the training does not use, which its files keep.
    unused: Arc<[UnusedRows]>,
    evaluator: Option<Evaluator<'a>>,
    /// The schedule of the learning rate.
    course: Option<Course>,
    /// Number of the first iteration: earlier ones ran before the checkpoint was saved.
    pub(super) first: u64,
}

/// The measurements of a run.
#[derive(Default)]
pub(super) struct Run {
    /// Iterations that ran.
    pub iterations: u64,
    /// One for each iteration; none where only the forward part runs.
    pub losses: Vec<f32>,
    /// Evaluations on held-out data; if only the forward part runs and takes labels, what it gave over all iterations.
    pub evaluations: Vec<Evaluation>,
    /// Every output of every iteration, for comparison bit by bit.
    pub results: Vec<Digest>,
    /// The persistent tensors after the run, if it is compared with another.
    pub digests: Vec<Digest>,
    /// Median over the iterations that followed a plan, or over all if none did; the lower one of two.
    pub iteration: Nanos,
    /// Peak of the iterations that followed a plan, or of all if none did.
    pub peak: Bytes,
    /// The last iteration, one that followed a plan if there was any.
    pub last: Timeline,
    /// Most bytes that were reserved for host copies.
    pub host: Bytes,
    /// Why it ended.
    pub ending: Ending,
    /// What is not finite, if it ended for that reason.
    pub diverged: Option<String>,
    /// What was saved.
    pub saved: Saved,
}

/// How a session begins.
pub(super) enum Start<'p> {
    /// With a plan.
    Plan(&'p Arc<CheckedPlan>),
    /// Without a plan, in the memory of this machine.
    Memory(&'p Machine),
}

impl<'t, 'a> Runner<'t, 'a> {
    /// Compares the checkpoint with the network and reads the first batch, to find out before anything long begins whether both fit the
    /// network and whether checkpoints can be written.
    pub(super) fn new(
        training: &'t Training<'a>,
        graph: &Arc<Graph>,
        feed: Feed<'a>,
        checkpoint: Option<Checkpoint>,
        evaluator: Option<Evaluator<'a>>,
    ) -> Result<Self, TrainError> {
        if let Some(Saving { path, .. }) = &training.save {
            let failed = |source| CheckpointError::Write { path: path.clone(), source };
            expect_writable(path).map_err(failed)?;
        }
        if let Some(path) = &training.save_weights {
            let failed = |source| WeightsError::Write { path: path.clone(), source };
            expect_writable(path).map_err(failed)?;
        }
        let mut weights = training.weights.as_ref().map(|path| Weights::open(path, graph)).transpose()?;
        let initial = match checkpoint {
            Some(_) => Vec::new(),
            None => training.network.initial_values()?,
        };
        let entries = entries(graph);
        let mut unused =
            weights.as_mut().map(|weights| std::mem::take(&mut weights.unused)).unwrap_or_default();
        if let Some(checkpoint) = &checkpoint {
            // Training needs every persistent tensor. Forward iterations need the parameters, which any checkpoint of a training has.
            match graph.persistent.iter().any(|parameter| parameter.begin != parameter.end) {
                true => {
                    checkpoint.expect(&entries)?;
                    checkpoint.expect_seed(training.effective_seed())?;
                }
                false => checkpoint.expect_among(&entries)?,
            }
            unused = checkpoint.unused(&entries)?;
        }
        let first = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.header.iterations_done);
        let saved =
            checkpoint.as_ref().and_then(|checkpoint| Course::parse(checkpoint.header.schedule.as_ref()?));
        let course = training.course(saved, first);
        let (feed, next, part) = (Ahead::new(feed), None, (0, 0));
        let mut runner = Self {
            training,
            graph: graph.clone(),
            as_built: graph.clone(),
            tiling: Tiling::default(),
            cut: Vec::new(),
            feed,
            next,
            part,
            checkpoint,
            weights,
            initial,
            entries,
            unused: unused.into(),
            evaluator,
            course,
            first,
        };
        let Structure { graph, samples } = runner.structure(first)?;
        runner.feed.batch(first, || (graph, samples))?;
        Ok(runner)
    }

    pub(super) fn training(&self) -> &'t Training<'a> {
        self.training
    }

    /// Runs this graph from now on, with the weights of all structures in these tiles.
    pub(super) fn set_graph(&mut self, graph: Arc<Graph>, tiling: Tiling) -> Result<(), TrainError> {
        if let Some(evaluator) = &mut self.evaluator {
            evaluator.cut(&tiling).map_err(NetworkError::from)?;
        }
        self.cut.clear();
        (self.graph, self.tiling, self.next) = (graph, tiling, None);
        Ok(())
    }

    /// What an iteration runs.
    fn structure(&mut self, number: u64) -> Result<Structure, TrainError> {
        if !self.training.network.varies() {
            return Ok(Structure::of(self.graph.clone(), number)?);
        }
        let Structure { graph, samples } =
            self.training.network.structure(number, self.training.effective_seed())?;
        if self.tiling.is_empty() {
            return Ok(Structure { graph, samples });
        }
        // The same graph every time while it is kept, as the network's own is.
        if let Some((_, cut)) = self.cut.iter().find(|(whole, _)| Arc::ptr_eq(whole, &graph)) {
            return Ok(Structure { graph: cut.clone(), samples });
        }
        let cut = Arc::new(graph.tiled(&self.tiling).map_err(NetworkError::from)?);
        if self.cut.len() >= KEPT_STRUCTURES {
            self.cut.remove(0);
        }
        self.cut.push((graph, cut.clone()));
        Ok(Structure { graph: cut, samples })
    }

    /// A session with initial values, or with those of the checkpoint.
    pub(super) fn open(&self, start: &Start<'_>, host: HostOptions) -> Result<Session, TrainError> {
        let (seed, threads) = (self.training.effective_seed(), self.training.threads);
        let options = SessionOptions::default().threads(threads).seed(seed).host(host);
        let graph = self.graph.clone();
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
        let mut value = Vec::new();
        for weight in &self.initial {
            let Some(index) = self.entries.iter().position(|entry| entry.name == weight.name) else {
                continue;
            };
            value.resize(self.entries[index].bytes(), 0);
            let file = |source| NetworkError::from(weight.unreadable(source));
            weight.read(&self.entries[index].shape, &mut value).map_err(file)?;
            session.write_persistent(index, &value)?;
        }
        if let Some(weights) = &self.weights {
            let mut value = Vec::new();
            for (index, entry) in self.entries.iter().enumerate() {
                value.resize(entry.bytes(), 0);
                if weights.read(index, &entry.shape, &mut value)? {
                    session.write_persistent(index, &value)?;
                }
            }
        }
        Ok(session)
    }

    /// Writes the weights after this number of iterations of this run, if that was requested.
    pub(super) fn save_weights(&self, session: &Session, iterations: u64) -> Result<(), WeightsError> {
        let Some(path) = &self.training.save_weights else { return Ok(()) };
        let read =
            |index: usize, value: &mut [u8]| session.read_persistent(index, value).map_err(io::Error::other);
        weights::save(path, &self.as_built, self.first + iterations, &self.unused, read)
    }

    /// Runs iterations from the first on and saves checkpoints in between and at the end. An error that leaves the state of the training
    /// intact is returned after the state has been saved.
    pub(super) fn run(
        &mut self,
        session: &mut Session,
        executor: &mut dyn Executor,
        iterations: u64,
        saving: Option<&Saving>,
        observer: &dyn TrainObserver,
    ) -> Result<Run, TrainError> {
        std::thread::scope(|scope| {
            let reader = Reader::start(scope);
            let run = self.run_reading(session, executor, &reader, iterations, saving, observer);
            // The thread may still read a batch that is not needed any more.
            self.settle();
            run
        })
    }

    /// Waits until the thread has ended reading.
    fn settle(&mut self) {
        // A batch that could not be read counts only if an iteration needs it.
        let _ = self.feed.settle();
        self.next = None;
        if let Some(evaluator) = &mut self.evaluator {
            evaluator.settle();
        }
    }

    fn run_reading<'s>(
        &mut self,
        session: &mut Session,
        executor: &mut dyn Executor,
        reader: &Reader<'s>,
        iterations: u64,
        saving: Option<&Saving>,
        observer: &dyn TrainObserver,
    ) -> Result<Run, TrainError>
    where
        'a: 's,
    {
        observer.begin(iterations);
        let mut run = Run::default();
        let (mut planned, mut times) = (false, Vec::new());
        // A graph that counts hits evaluates: its loss is a sum over labels, not one that is minimized.
        let mut forward = counts_hits(&self.graph).then(Totals::default);
        let loss_slot = match &forward {
            None => self.graph.outputs.iter().position(|output| output.name == LOSS),
            Some(_) => None,
        };
        let header = Header {
            model: self.graph.name.clone(),
            iterations_done: self.first,
            seed: self.training.effective_seed(),
            schedule: self
                .course
                .filter(|course| course.schedule != Schedule::Constant)
                .map(|course| course.to_string()),
            precision: self.graph.precision(),
        };
        let mut saver = saving.map(|saving| {
            Saver::new(saving, header, &self.entries, self.unused.clone(), iterations, observer)
        });
        for done in 1..=iterations {
            let (number, graph, measured) = match self.iterate(session, executor, reader, done, iterations) {
                Ok(iteration) => iteration,
                Err(error) => return self.failed(error, run, saver, session, observer),
            };
            if self.training.one_pass {
                observer.outputs(&self.outputs(session, &graph, number));
            }
            for slot in 0..graph.outputs.len() {
                let output = session.output(slot);
                run.results.push(Digest::of(bytemuck::cast_slice(&output)));
                if loss_slot == Some(slot) {
                    run.losses.extend(output.first());
                }
            }
            let mean = forward.as_mut().and_then(|totals| totals.add(session, &graph, self.part));
            run.iterations += 1;
            run.host = run.host.max(session.host_bytes());
            let Measured { time, peak, timeline, planned: by_plan } = measured;
            if by_plan && !planned {
                // Iterations that follow plans are measured, from the first one on.
                (planned, run.peak) = (true, Bytes::ZERO);
                times.clear();
            }
            if by_plan == planned {
                times.push(time);
                run.peak = run.peak.max(peak);
                run.last = timeline;
            }
            let limit = session.limit()?;
            let loss = mean.or(run.losses.last().copied());
            let [structures, plans] = executor.structures_and_plans();
            let now = Iteration { number, loss, time, peak, limit, planned: by_plan, structures, plans };
            observer.iteration(&now);
            if by_plan {
                observer.measured(&run.last);
            }
            if let Some(loss) = loss.filter(|loss| !loss.is_finite()) {
                run.end(Ending::Diverged, Err(format!("the loss of iteration {number} is {loss}")));
                break;
            }
            let last = done == iterations;
            match self.evaluate_if_due(session, executor, reader, done, last, observer) {
                Ok(evaluated) => run.add(evaluated, planned),
                Err(error) => return self.failed(error, run, saver, session, observer),
            }
            let stopping = last || observer.interrupted();
            let saved = saver.as_mut().map_or(Ok(()), |saver| saver.iteration_ended(session, done, stopping));
            if stopping || saved.is_err() {
                run.end(if last { Ending::Finished } else { Ending::Interrupted }, saved);
                break;
            }
        }
        let done = self.first + run.iterations;
        let given = forward.filter(Totals::is_labelled).map(|totals| totals.evaluation(done, &self.graph));
        run.evaluations.extend(given);
        run.saved = saver.map(Saver::saved).unwrap_or_default();
        run.iteration = units::median(&mut times).unwrap_or_default();
        Ok(run)
    }

    /// The end of a run by an error. One that leaves the state of the training intact is returned after the state has been saved; one by
    /// which an interrupted search only says that it found nothing is no error.
    fn failed(
        &self,
        error: TrainError,
        mut run: Run,
        mut saver: Option<Saver<'_>>,
        session: &Session,
        observer: &dyn TrainObserver,
    ) -> Result<Run, TrainError> {
        if run.iterations == 0 || !error.leaves_state() {
            return Err(error);
        }
        let saved = saver.as_mut().map_or(Ok(()), |saver| saver.save_unsaved(session));
        if !observer.interrupted() {
            return Err(error);
        }
        run.end(Ending::Interrupted, saved);
        run.saved = saver.map(Saver::saved).unwrap_or_default();
        Ok(run)
    }

    /// Evaluates if that is due after this many iterations of this run.
    fn evaluate_if_due<'s>(
        &mut self,
        session: &mut Session,
        executor: &mut dyn Executor,
        reader: &Reader<'s>,
        done: u64,
        last: bool,
        observer: &dyn TrainObserver,
    ) -> Result<Option<Evaluated>, TrainError>
    where
        'a: 's,
    {
        let iterations = self.first + done;
        let due = |evaluator: &&mut Evaluator<'_>| evaluator.due.is_due(iterations, last);
        let Some(evaluator) = self.evaluator.as_mut().filter(due) else { return Ok(None) };
        self.feed.give_back();
        let evaluated = evaluator.evaluate(session, executor, reader, iterations, observer)?;
        if let Some(evaluated) = &evaluated {
            observer.evaluated(&evaluated.evaluation);
        }
        Ok(evaluated)
    }

    /// What the last batch of a pass gave.
    fn outputs(&self, session: &Session, graph: &Graph, number: u64) -> Outputs {
        let (samples, labels) = self.part;
        let batch = network::samples(graph);
        let values = graph.outputs.iter().enumerate();
        let values = values.map(|(slot, output)| (output.name.clone(), session.output(slot))).collect();
        let shape = graph.outputs.first().map(|output| graph.tensors[output.tensor].shape);
        let classes = shape.filter(|shape| (2..=3).contains(&shape.dims().len()));
        let classes = classes.and_then(|shape| shape.dims().last().copied()).unwrap_or(0);
        let language = reads_tokens(graph);
        Outputs { first: number * batch as u64, batch, samples, labels, classes, language, values }
    }

    /// Whether the training evaluates.
    pub(super) fn evaluates(&self) -> bool {
        self.evaluator.is_some()
    }

    /// Runs one iteration, the `done`th of `iterations` of this run. Returns its number and its graph.
    fn iterate<'s>(
        &mut self,
        session: &mut Session,
        executor: &mut dyn Executor,
        reader: &Reader<'s>,
        done: u64,
        iterations: u64,
    ) -> Result<(u64, Arc<Graph>, Measured), TrainError>
    where
        'a: 's,
    {
        let iterations_done =
            self.first.checked_add(done).ok_or(NetworkError::Iteration { iteration: u64::MAX })?;
        let number = iterations_done - 1;
        let Structure { graph, samples } = match self.next.take().filter(|(next, _)| *next == number) {
            Some((_, structure)) => structure,
            None => self.structure(number)?,
        };
        // An error in the next structure belongs to the next iteration.
        self.next = match done < iterations {
            true => self.structure(iterations_done).ok().map(|next| (iterations_done, next)),
            false => None,
        };
        let request = || (graph.clone(), samples.clone());
        self.part = self.feed.batch(number, request)?.part();
        session.set_rate(self.course.map_or(1.0, |course| course.factor(number)));
        let (next, feed) = (&self.next, &mut self.feed);
        let mut read = Ok(());
        let mut fill = |session: &mut Session| {
            let next = next.as_ref().map(|(at, next)| (*at, (next.graph.clone(), next.samples.clone())));
            read = feed.fill(session, reader, (number, request), next);
        };
        let measured = executor.step(session, number, &graph, &mut fill)?;
        read?;
        Ok((number, graph, measured))
    }
}

impl Run {
    /// Adds what an evaluation gave. Peaks count as those of iterations do.
    fn add(&mut self, evaluated: Option<Evaluated>, planned: bool) {
        let Some(Evaluated { evaluation, results, planned_peak }) = evaluated else { return };
        self.evaluations.push(evaluation);
        self.results.extend(results);
        if planned {
            self.peak = self.peak.max(planned_peak.unwrap_or_default());
        }
    }

    /// Ends the run. What was to be saved is not finite if `saved` is an error, which says where.
    fn end(&mut self, ending: Ending, saved: Result<(), String>) {
        self.ending = if saved.is_err() { Ending::Diverged } else { ending };
        self.diverged = saved.err();
    }
}

/// The persistent tensors of a graph as a checkpoint holds them, in the graph's order.
fn entries(graph: &Graph) -> Vec<Entry> {
    let entry = |parameter: &elbowroom_graph::Parameter| {
        let value = &graph.tensors[parameter.begin];
        let dtype = match value.dtype {
            DType::F32 => Dtype::F32,
            DType::Bf16 => Dtype::BF16,
            DType::I32 => Dtype::I32,
            DType::U8 => Dtype::U8,
        };
        Entry { name: parameter.name.clone(), dtype, shape: value.shape.dims().to_vec() }
    };
    graph.persistent.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::zoo::{self, Options};

    use super::*;
    use crate::checkpoint;

    #[test]
    fn a_checkpoint_of_too_many_iterations_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let graph = zoo::build("resnet20", &Options::new(2)).unwrap();
        let zeros = |_, value: &mut [u8]| {
            value.fill(0);
            Ok(())
        };
        for iterations_done in [u64::MAX, u64::MAX / 2] {
            let header = Header {
                model: graph.name.clone(),
                iterations_done,
                seed: 0,
                schedule: None,
                precision: graph.precision(),
            };
            checkpoint::save(&path, &header, &entries(&graph), zeros).unwrap();
            let training = Training::new(graph.clone(), Bytes(1 << 30)).resume(&path).iterations(3);
            let error = training.run().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("exceeds the range of iterations"), "{error}");
        }
    }
}
