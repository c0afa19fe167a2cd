//! Runs of a training: a session is opened from seed or checkpoint, reads its data, runs its iterations and is saved.

use std::path::Path;
use std::sync::Arc;

use elbowroom_engine::{Digest, HostOptions, Session, SessionOptions};
use elbowroom_graph::{DType, Graph};
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::{Bytes, Nanos, units};

use super::execution::{Executor, Measured};
use super::settings::{Saving, Training};
use super::{Iteration, TrainError, TrainObserver};
use crate::checkpoint::{self, Checkpoint, CheckpointError, Dtype, Entry};
use crate::data::Feed;
use crate::files::expect_writable;
use crate::network::{NetworkError, Structure};

/// Name of the output that holds the loss.
const LOSS: &str = "loss";

/// What the runs of one training have in common.
pub(super) struct Runner<'a> {
    training: &'a Training<'a>,
    /// The largest structure, with its algorithms chosen.
    pub(super) graph: Arc<Graph>,
    feed: Feed<'a>,
    checkpoint: Option<Checkpoint>,
    entries: Vec<Entry>,
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
}

/// How a session begins.
pub(super) enum Start<'p> {
    /// With a plan.
    Plan(&'p Arc<CheckedPlan>),
    /// Without a plan, in the memory of this machine.
    Memory(&'p Machine),
}

impl<'a> Runner<'a> {
    /// Opens the checkpoint and reads the first batch, to find out before anything long begins whether both fit the network and whether
    /// checkpoints can be written.
    pub(super) fn new(
        training: &'a Training<'a>,
        graph: &Arc<Graph>,
        feed: Feed<'a>,
    ) -> Result<Self, TrainError> {
        if let Some(Saving { path, .. }) = &training.save {
            let failed = |source| CheckpointError::Write { path: path.clone(), source };
            expect_writable(path).map_err(failed)?;
        }
        let entries = entries(graph);
        let checkpoint = training.resume.as_deref().map(Checkpoint::open).transpose()?;
        if let Some(checkpoint) = &checkpoint {
            // Training needs every persistent tensor. Forward iterations need the parameters, which any checkpoint of a training has.
            match graph.persistent.iter().any(|parameter| parameter.begin != parameter.end) {
                true => checkpoint.expect(&entries)?,
                false => checkpoint.expect_among(&entries)?,
            }
        }
        let first = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.iterations_done);
        let mut runner = Self { training, graph: graph.clone(), feed, checkpoint, entries, first };
        let Structure { graph, samples } = runner.structure(first)?;
        runner.feed.read(&graph, &samples)?;
        Ok(runner)
    }

    pub(super) fn training(&self) -> &'a Training<'a> {
        self.training
    }

    /// What an iteration runs.
    fn structure(&self, number: u64) -> Result<Structure, TrainError> {
        match self.training.network.varies() {
            true => Ok(self.training.network.structure(number, self.training.seed)?),
            false => Ok(Structure::of(self.graph.clone(), number)?),
        }
    }

    /// A session with initial values, or with those of the checkpoint.
    pub(super) fn open(&self, start: &Start<'_>, host: HostOptions) -> Result<Session, TrainError> {
        let (seed, threads) = (self.training.seed, self.training.threads);
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
        Ok(session)
    }

    /// Runs iterations from the first on and saves checkpoints in between and at the end.
    pub(super) fn run(
        &mut self,
        session: &mut Session,
        executor: &mut dyn Executor,
        iterations: u64,
        saving: Option<&Saving>,
        observer: &dyn TrainObserver,
    ) -> Result<Run, TrainError> {
        observer.begin(iterations);
        let mut run = Run::default();
        let (mut planned, mut times) = (false, Vec::new());
        let loss_slot = self.graph.outputs.iter().position(|output| output.name == LOSS);
        for done in 1..=iterations {
            let iterations_done =
                self.first.checked_add(done).ok_or(NetworkError::Iteration { iteration: u64::MAX })?;
            let number = iterations_done - 1;
            let Structure { graph, samples } = self.structure(number)?;
            let batch = self.feed.read(&graph, &samples)?;
            let mut fill = |session: &mut Session| {
                for (slot, bytes) in batch.slots().enumerate() {
                    session.fill_input(slot, |input| input.copy_from_slice(bytes));
                }
            };
            let measured = executor.step(session, number, &graph, &mut fill)?;
            for slot in 0..graph.outputs.len() {
                let output = session.output(slot);
                run.results.push(Digest::of(bytemuck::cast_slice(&output)));
                if loss_slot == Some(slot) {
                    run.losses.extend(output.first());
                }
            }
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
            let ([structures, plans], loss) = (executor.structures_and_plans(), run.losses.last().copied());
            let planned = by_plan;
            observer.iteration(&Iteration { number, loss, time, peak, limit, planned, structures, plans });
            let stopping = done == iterations || observer.interrupted();
            if let Some(saving) = saving
                && (stopping || done % saving.every == 0)
            {
                self.save(session, &saving.path, iterations_done)?;
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
        Ok(checkpoint::save(path, &self.graph.name, iterations_done, &self.entries, read)?)
    }
}

/// The persistent tensors of a graph as a checkpoint holds them, in the graph's order.
fn entries(graph: &Graph) -> Vec<Entry> {
    let entry = |parameter: &elbowroom_graph::Parameter| {
        let value = &graph.tensors[parameter.begin];
        let dtype = match value.dtype {
            DType::F32 => Dtype::F32,
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
            checkpoint::save(&path, &graph.name, iterations_done, &entries(&graph), zeros).unwrap();
            let training = Training::new(graph.clone(), Bytes(1 << 30)).resume(&path).iterations(3);
            let error = training.run().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("exceeds the range of iterations"), "{error}");
        }
    }
}
