//! Batches that are computed in parts, and gradients that are clipped: the network of a training is wrapped before anything is planned.

use elbowroom_ir::search::Observer;

use super::settings::{MicroBatch, Training};
use super::{TrainError, TrainObserver};
use crate::largest::{self, LargestError};
use crate::network::{InParts, Network, samples};
use crate::pipeline::Planned;

impl Training<'_> {
    /// Wraps the network as [`micro_batch`](Self::micro_batch) and [`clip_norm`](Self::clip_norm) demand. Returns the plan that has shown that
    /// the largest part fits, if that was searched for.
    pub(super) fn split(&mut self, observer: &dyn TrainObserver) -> Result<Option<Planned>, TrainError> {
        let Some(micro_batch) = self.micro_batch else {
            if let Some(clip) = self.clip {
                let network = std::mem::replace(&mut self.network, Box::new(Nothing));
                self.network = Box::new(InParts::new(network, 1, Some(clip)));
            }
            return Ok(None);
        };
        let batch = samples(&*self.network.largest()?);
        let refuse = |part, why| TrainError::Parts { batch, part, why };
        let named = match micro_batch {
            MicroBatch::Samples(part) => part,
            MicroBatch::Largest => batch,
        };
        if self.largest_batch {
            return Err(refuse(
                named,
                "the largest batch is searched for; name the batch or leave out the parts",
            ));
        }
        if self.network.varies() {
            return Err(refuse(named, "the network runs another structure in every iteration"));
        }
        let (part, planned) = match micro_batch {
            MicroBatch::Samples(part) if part == 0 || !batch.is_multiple_of(part) => {
                return Err(refuse(part, "the batch is no multiple of the part"));
            }
            MicroBatch::Samples(part) => (part, None),
            MicroBatch::Largest => {
                observer.stage("looking for the largest part of a batch");
                let (part, planned) = self.largest_part(batch, observer)?;
                (part, Some(planned))
            }
        };
        let fixed = "the network cannot be built for another batch";
        let network = self.network.with_batch(part).ok_or_else(|| refuse(part, fixed))?;
        self.network = Box::new(InParts::new(network, batch / part, self.clip));
        Ok(planned)
    }

    /// The largest part of a batch for which a plan is found, with that plan.
    fn largest_part(&self, batch: usize, observer: &dyn Observer) -> Result<(usize, Planned), TrainError> {
        let limit = self.memory.absolute().ok_or(LargestError::Relative)?;
        let conditions = self.conditions(&self.machine);
        let mut why = None;
        for parts in (1..=batch).filter(|&parts| batch.is_multiple_of(parts)) {
            let network = self.network.with_batch(batch / parts).ok_or(LargestError::Fixed)?;
            let graph = InParts::new(network, parts, self.clip).largest()?;
            match largest::fits(graph, &conditions, self.tiles, limit, observer)? {
                Ok(fitting) => return Ok((batch / parts, fitting.planned)),
                Err(error) if observer.interrupted() => return Err(TrainError::Plan(error)),
                Err(error) => why = Some(error),
            }
        }
        Err(why.map_or(TrainError::Interrupted, |why| LargestError::None(why).into()))
    }
}

/// Stands for the network of a training while it is wrapped.
struct Nothing;

impl Network for Nothing {
    fn largest(&self) -> Result<std::sync::Arc<elbowroom_graph::Graph>, crate::network::NetworkError> {
        Err(crate::network::NetworkError::other("no network"))
    }
}
