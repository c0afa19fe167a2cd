//! Evaluation during a training: the network runs forward over held-out data, under the same limit and in the same session, by a plan of its
//! own. The optimizer state stays where the limit permits; nothing that is trained changes.

use std::sync::Arc;

use elbowroom_engine::{Digest, Session};
use elbowroom_graph::{BuildError, Content, Graph, Tiling};
use elbowroom_ir::Bytes;

use super::execution::{Executor, Measured};
use super::reading::{Ahead, Reader};
use super::{TrainError, TrainObserver};
use crate::data::{Dataset, Pass};
use crate::network::{HITS, LOSS};
use crate::report::Evaluation;

/// When a training evaluates, counted in iterations since the first one of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Whenever this many more have ended.
    Every(u64),
    /// At the end of every epoch.
    Epochs(Epoch),
    /// At the end of the training only.
    End,
}

/// How many iterations an epoch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    /// Samples of the data.
    pub samples: u64,
    /// Samples of a batch.
    pub batch: u64,
    /// Whether an epoch ends with a smaller batch. Otherwise the next epoch begins in the middle of a batch.
    pub cut: bool,
}

impl Epoch {
    /// Iterations after which this number of epochs has ended; `None` beyond 64 bits.
    pub fn iterations(&self, epochs: u64) -> Option<u64> {
        match self.cut {
            true => self.samples.div_ceil(self.batch).checked_mul(epochs),
            false => Some(self.samples.checked_mul(epochs)?.div_ceil(self.batch)),
        }
    }

    /// Whether an epoch ends with the last of this number of iterations.
    pub fn ends_after(&self, iterations: u64) -> bool {
        let per_epoch = self.samples.div_ceil(self.batch).max(1);
        if self.cut {
            return iterations.is_multiple_of(per_epoch);
        }
        // Samples seen after this iteration and before it lie in different epochs.
        let epochs =
            |iterations: u64| u128::from(iterations) * u128::from(self.batch) / u128::from(self.samples);
        iterations > 0 && epochs(iterations) > epochs(iterations - 1)
    }
}

impl Due {
    /// Whether an evaluation is due after this number of iterations; `last` says that the training ends there.
    pub fn is_due(&self, iterations: u64, last: bool) -> bool {
        last || match self {
            Self::Every(every) => iterations.is_multiple_of(*every),
            Self::Epochs(epoch) => epoch.ends_after(iterations),
            Self::End => false,
        }
    }
}

/// Evaluates a network whenever it is due.
pub(super) struct Evaluator<'a> {
    graph: Arc<Graph>,
    /// As the network built it.
    as_built: Arc<Graph>,
    pass: Ahead<Pass<'a>>,
    batches: u64,
    pub due: Due,
}

/// What an evaluation gave, and what it needed.
pub(super) struct Evaluated {
    pub evaluation: Evaluation,
    /// The outputs of every batch.
    pub results: Vec<Digest>,
    /// Peak over the batches that followed a plan.
    pub planned_peak: Option<Bytes>,
}

impl<'a> Evaluator<'a> {
    /// Before the first iteration. The first batch is read, so that data that does not fit the network is found early; it is read again for the
    /// first evaluation.
    ///
    /// # Errors
    ///
    /// Those of the data.
    pub fn new(dataset: Box<dyn Dataset + 'a>, graph: Arc<Graph>, due: Due) -> Result<Self, TrainError> {
        let pass = Pass::new(dataset, &graph)?;
        let batches = pass.batches();
        let mut pass = Ahead::new(pass);
        pass.batch(0, || 0)?;
        pass.give_back();
        Ok(Self { as_built: graph.clone(), graph, pass, batches, due })
    }

    /// Waits until the thread that reads batches has ended.
    pub fn settle(&mut self) {
        // A batch that could not be read counts only if an evaluation needs it.
        let _ = self.pass.settle();
    }

    /// Cuts the weights into the tiles in which they are trained.
    ///
    /// # Errors
    ///
    /// The graph uses one of them in another way than the training does.
    pub fn cut(&mut self, tiling: &Tiling) -> Result<(), BuildError> {
        self.graph = match tiling.is_empty() {
            true => self.as_built.clone(),
            false => Arc::new(self.as_built.tiled(tiling)?),
        };
        Ok(())
    }

    /// One pass over the data; `None` if it was interrupted. `iterations` ran before.
    pub fn evaluate<'s>(
        &mut self,
        session: &mut Session,
        executor: &mut dyn Executor,
        reader: &Reader<'s>,
        iterations: u64,
        observer: &dyn TrainObserver,
    ) -> Result<Option<Evaluated>, TrainError>
    where
        'a: 's,
    {
        if !counts_hits(&self.graph) {
            return Err(TrainError::Unevaluable);
        }
        let mut totals = Totals::default();
        let (mut results, mut planned_peak) = (Vec::new(), None);
        observer.evaluation_begins(self.batches);
        for number in 0..self.batches {
            if observer.interrupted() {
                return Ok(None);
            }
            let part = self.pass.batch(number, || number)?.part();
            let part = (part.samples, part.labels);
            let next = Some(number + 1).filter(|&next| next < self.batches);
            let mut read = Ok(());
            let mut fill = |session: &mut Session| {
                read = self.pass.fill(session, reader, (number, || number), next.map(|next| (next, next)));
            };
            let Measured { planned, peak, .. } =
                executor.evaluate(session, number, &self.graph, &mut fill)?;
            read?;
            if planned {
                planned_peak = planned_peak.max(Some(peak));
            }
            for slot in 0..self.graph.outputs.len() {
                results.push(Digest::of(bytemuck::cast_slice(&session.output(slot))));
            }
            totals.add(session, &self.graph, part);
        }
        self.pass.give_back();
        let evaluation = totals.evaluation(iterations, &self.graph);
        Ok(Some(Evaluated { evaluation, results, planned_peak }))
    }
}

/// What the batches of a graph that evaluates have given together.
#[derive(Default)]
pub(super) struct Totals {
    loss: f64,
    hits: f64,
    labels: u64,
    samples: u64,
}

impl Totals {
    /// Adds the outputs of a batch with this many samples and labels that count. Returns its mean loss, if a label counts.
    pub fn add(&mut self, session: &Session, graph: &Graph, (samples, labels): (usize, u64)) -> Option<f32> {
        let output = |name: &str| {
            let slot = graph.outputs.iter().position(|output| output.name == name)?;
            session.output(slot).first().copied().map(f64::from)
        };
        let loss = output(LOSS).unwrap_or(f64::NAN);
        self.loss += loss;
        self.hits += output(HITS).unwrap_or(f64::NAN);
        (self.labels, self.samples) = (self.labels + labels, self.samples + samples as u64);
        (labels > 0).then(|| (loss / labels as f64) as f32)
    }

    /// Whether any label counts.
    pub fn is_labelled(&self) -> bool {
        self.labels > 0
    }

    /// The means over all labels after this many iterations. Data without a label that counts has none.
    pub fn evaluation(&self, iterations: u64, graph: &Graph) -> Evaluation {
        let labels = self.labels as f64;
        Evaluation {
            iterations,
            samples: self.samples,
            labels: self.labels,
            loss: self.loss / labels,
            accuracy: self.hits / labels,
            language: reads_tokens(graph),
        }
    }
}

/// Whether a graph evaluates: it gives the sum of the losses and counts the labels that it finds.
pub(super) fn counts_hits(graph: &Graph) -> bool {
    [LOSS, HITS].iter().all(|name| graph.outputs.iter().any(|output| output.name == *name))
}

/// Whether a graph reads tokens.
pub(super) fn reads_tokens(graph: &Graph) -> bool {
    let content = graph.inputs.first().map(|input| input.content);
    matches!(content, Some(Content::Class { .. }))
}
