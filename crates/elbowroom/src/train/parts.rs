//! Batches that are computed in parts, and gradients that are clipped: the network of a training is wrapped before anything is planned.

use elbowroom_ir::search::Observer;

use super::host::Host;
use super::settings::{MicroBatch, Training};
use super::{TrainError, TrainObserver, measured_link};
use crate::largest::{self, LargestError};
use crate::network::{InParts, Network, samples};

impl Training<'_> {
    /// Wraps the network as [`micro_batch`](Self::micro_batch) and [`clip_norm`](Self::clip_norm) demand.
    pub(super) fn split(&mut self, host: &Host, observer: &dyn TrainObserver) -> Result<(), TrainError> {
        let Some(micro_batch) = self.micro_batch else {
            if let Some(clip) = self.clip {
                let network = std::mem::replace(&mut self.network, Box::new(Nothing));
                self.network = Box::new(InParts::new(network, 1, Some(clip)));
            }
            return Ok(());
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
        let part = match micro_batch {
            MicroBatch::Samples(part) if part == 0 || !batch.is_multiple_of(part) => {
                return Err(refuse(part, "the batch is no multiple of the part"));
            }
            MicroBatch::Samples(part) => part,
            MicroBatch::Largest => {
                observer.stage("looking for the largest part of a batch");
                self.largest_part(batch, host, observer)?
            }
        };
        let fixed = "the network cannot be built for another batch";
        let network = self.network.with_batch(part).ok_or_else(|| refuse(part, fixed))?;
        self.network = Box::new(InParts::new(network, batch / part, self.clip));
        Ok(())
    }

    /// The largest part of a batch for which a plan is found.
    fn largest_part(&self, batch: usize, host: &Host, observer: &dyn Observer) -> Result<usize, TrainError> {
        let limit = self.memory.absolute().ok_or(LargestError::Relative)?;
        let measured = measured_link(self, host)?;
        let conditions = self.conditions(&measured);
        let machines = [&measured, &self.machine];
        let mut why = None;
        for parts in (1..=batch).filter(|&parts| batch.is_multiple_of(parts)) {
            let network = self.network.with_batch(batch / parts).ok_or(LargestError::Fixed)?;
            let graph = InParts::new(network, parts, self.clip).largest()?;
            match largest::fits(graph, &conditions, self.tiles, &machines, limit, observer)? {
                Ok(_) => return Ok(batch / parts),
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
