//! What tests of trainings share.

use elbowroom::ir::search::{Budget, Observer};
use elbowroom::pipeline::Method;
use elbowroom::registry;
use elbowroom::train::{Iteration, TrainObserver};

/// Shows nothing, and sees to it that no iteration goes over the limit.
pub struct Quiet;

impl Observer for Quiet {}

impl TrainObserver for Quiet {
    fn iteration(&self, done: &Iteration) {
        assert!(done.peak <= done.limit);
    }
}

/// The default planner and packer, with few evaluations.
pub fn method() -> Method<'static> {
    let method = Method::new(
        registry::planner(registry::DEFAULT_PLANNER).unwrap(),
        registry::packer(registry::DEFAULT_PACKER).unwrap(),
        Budget::default(),
    )
    .at_once();
    Method { budget: Budget::evaluations(50), ..method }
}
