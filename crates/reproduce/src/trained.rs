//! Iterations that run on this machine: a network is trained under a planner's schedule, as by the command `train`.

use elbowroom::algorithms::AlgorithmChoice;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::planning::Freedom;
use elbowroom::ir::search::Observer;
use elbowroom::registry;
use elbowroom::size::MemorySpec;
use elbowroom::train::{TrainError, TrainObserver, Training};

use crate::{Bench, Error};

/// Iterations of a measurement, as in Chen et al., section 5.4; the median of those that follow the plan counts.
const ITERATIONS: u64 = 20;

/// What was measured of a planner's schedule.
pub(crate) struct Trained {
    /// Batches per second.
    pub speed: f64,
    /// Ops that an iteration computes again.
    pub recomputed: usize,
}

impl Trained {
    /// Trains a network of the zoo in the memory of its unconstrained peak. Every convolution is computed by the algorithm that it was built
    /// with, so that two planners run the same kernels. `None` if the observer interrupts.
    pub(crate) fn measure(
        network: &str,
        options: &Options,
        planner: &str,
        freedom: Freedom,
        bench: &Bench<'_>,
    ) -> Result<Option<Self>, Error> {
        let training = Training::new(zoo::build(network, options)?, MemorySpec::Share(1.0))
            .planner(registry::planner(planner)?)
            .freedom(freedom)
            .algorithms(AlgorithmChoice::AsBuilt)
            // The first iteration has no plan.
            .iterations(ITERATIONS + 1);
        let report = match training.run_observed(&Interruptible(bench.observer)) {
            Err(TrainError::Interrupted) => return Ok(None),
            report => report?,
        };
        if bench.stopped() {
            return Ok(None);
        }
        let speed = 1e9 / report.measured_iteration_ns.get().max(1) as f64;
        Ok(Some(Self { speed, recomputed: report.measured_recomputed_ops }))
    }
}

/// Passes on interruptions to a training, whose own progress is not shown.
struct Interruptible<'a>(&'a dyn Observer);

impl Observer for Interruptible<'_> {
    fn interrupted(&self) -> bool {
        self.0.interrupted()
    }
}

impl TrainObserver for Interruptible<'_> {}
