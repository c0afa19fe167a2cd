//! A plan and what it promised: the losses and parameters of the unlimited training, and the bytes of arena and of link that it named.
//! Used by the test `offload_planners` on a few networks and by the example `offload` on all.

use std::sync::Arc;

use elbowroom::data::{Feed, Samples};
use elbowroom::engine::{self, Digest, Session, SessionOptions};
use elbowroom::graph::Graph;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::check::CheckedPlan;
use elbowroom::ir::planning::{Costs, Freedom};
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::ir::timeline::Traffic;
use elbowroom::pipeline::{self, Method, Planned, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::{registry, sim};

pub type Failure = Box<dyn std::error::Error>;

/// The planners that only offload.
pub const PLANNERS: [&str; 10] =
    ["greedy", "dynprog", "vdnn", "tflms", "doa", "aoa", "wdoa", "swdoa", "autoswap", "bo"];

/// Shares of the unconstrained peak at which plans are looked for, in percent: the baselines cannot do without any memory on every network.
const SHARES: [u64; 4] = [40, 60, 80, 95];

const ITERATIONS: u64 = 2;

/// A network with its unlimited training.
pub struct Network {
    graph: Arc<Graph>,
    feed: Feed<'static>,
    task: Task,
    unconstrained: Planned,
    losses: Vec<u32>,
    after: Vec<Digest>,
}

/// A plan that was run, with what differed from its promise.
pub struct Ran {
    /// The limit, in percent of the unconstrained peak.
    pub percent: u64,
    /// Bytes copied in an iteration, as predicted.
    pub traffic: Traffic,
    /// Persistent values that are away over the end of the iteration.
    pub away: usize,
    /// Each broken promise in words; empty if all were kept.
    pub broken: Vec<String>,
}

fn method(planner: &str, evaluations: u64) -> Result<Method<'static>, Failure> {
    let (planner, packer) = (registry::planner(planner)?, registry::packer("best-fit")?);
    Ok(Method::new(planner, packer, Budget::evaluations(evaluations)))
}

impl Network {
    /// Builds a network and trains it without a limit.
    pub fn new(name: &str, options: &Options) -> Result<Self, Failure> {
        let graph = Arc::new(zoo::build(name, options)?);
        let trace = Arc::new(engine::trace(&graph)?);
        let machine = sim::presets::machine("cpu").ok_or("the preset cpu exists")?;
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        let task = Task { trace, costs, machine, freedom: Freedom::ALL, pins: None };
        let unconstrained = pipeline::unconstrained(&task, method("keep", 1)?.packer, &Silent)?;
        let feed = Feed::open(&graph, None, 0)?;
        let mut this = Self { graph, feed, task, unconstrained, losses: Vec::new(), after: Vec::new() };
        let plan = this.unconstrained.plan.clone();
        let trained = this.train(&plan)?;
        if !trained.broken.is_empty() {
            return Err(trained.broken.join("; ").into());
        }
        (this.losses, this.after) = (trained.losses, trained.session.digests()?);
        Ok(this)
    }

    /// Plans with this number of evaluations at the smallest of a few limits that works, if any does, and runs that plan.
    pub fn run(&mut self, planner: &str, evaluations: u64) -> Result<Option<Ran>, Failure> {
        let method = method(planner, evaluations)?;
        let unconstrained = self.unconstrained.height().get();
        let plan = |percent: u64| {
            let task = self.task.with_memory(Bytes(unconstrained * percent / 100));
            pipeline::plan(&task, &method, &Silent).ok().map(|planned| (percent, planned))
        };
        let Some((percent, planned)) = SHARES.into_iter().find_map(plan) else { return Ok(None) };
        let Trained { session, losses, mut broken } = self.train(&planned.plan)?;
        if losses != self.losses {
            broken.push("the losses differ from the unlimited ones".to_owned());
        }
        if session.digests()? != self.after {
            broken.push("the parameters differ from the unlimited ones".to_owned());
        }
        let (measured, predicted) = (session.timeline().traffic, planned.predicted.traffic);
        if measured != predicted {
            broken.push(format!("the traffic is {measured:?} where {predicted:?} was predicted"));
        }
        let at_boundaries = &planned.plan.schedule().boundary;
        let away = at_boundaries
            .iter()
            .filter(|at_boundary| at_boundary.host && at_boundary.device.is_none())
            .count();
        Ok(Some(Ran { percent, traffic: predicted, away, broken }))
    }

    fn train(&mut self, plan: &Arc<CheckedPlan>) -> Result<Trained, Failure> {
        let session = Session::new(self.graph.clone(), plan.clone(), SessionOptions::default())?;
        let mut trained = Trained { session, losses: Vec::new(), broken: Vec::new() };
        let predicted = plan.placement().height;
        for iteration in 0..ITERATIONS {
            let batch = self.feed.read(&self.graph, &Samples::From(iteration))?;
            for (slot, bytes) in batch.slots().enumerate() {
                trained.session.fill_input(slot, |input| input.copy_from_slice(bytes));
            }
            let peak = trained.session.run_iteration(iteration)?.measured_peak;
            if peak != predicted {
                trained.broken.push(format!("the peak is {peak} where {predicted} was predicted"));
            }
            trained.losses.extend(trained.session.output(0).into_iter().map(f32::to_bits));
        }
        if let Some(stain) = trained.session.first_overwritten() {
            trained.broken.push(format!("something was written above the limit, first at {stain}"));
        }
        Ok(trained)
    }
}

/// A few iterations by a plan.
struct Trained {
    session: Session,
    /// The bits of every loss.
    losses: Vec<u32>,
    /// How its bytes of arena differed from what was predicted.
    broken: Vec<String>,
}
