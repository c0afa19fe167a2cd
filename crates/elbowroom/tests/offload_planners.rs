//! What the offload planners promise is what the engine does: every plan is proved, leaves the unlimited training's bits, and uses the
//! bytes of arena and of link that it said, values that stay away over the end of the iteration included.

use std::sync::Arc;

use elbowroom::data::Feed;
use elbowroom::engine::{self, Digest, Session, SessionOptions};
use elbowroom::graph::Graph;
use elbowroom::graph::zoo::{self, OptimizerKind, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::check::CheckedPlan;
use elbowroom::ir::planning::{Costs, Freedom};
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::pipeline::{self, Method, Planned, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::{registry, sim};

const PLANNERS: [&str; 10] =
    ["greedy", "dynprog", "vdnn", "tflms", "doa", "aoa", "wdoa", "swdoa", "autoswap", "bo"];

const ITERATIONS: u64 = 2;

struct Network {
    graph: Arc<Graph>,
    feed: Feed,
    task: Task,
    natural: Planned,
    after: Vec<Digest>,
}

fn method(planner: &str) -> Method<'static> {
    Method {
        scheduler: registry::scheduler(planner).unwrap(),
        packer: registry::packer("best-fit").unwrap(),
        budget: Budget::evaluations(6),
    }
}

impl Network {
    fn new(name: &str, options: &Options) -> Self {
        let graph = Arc::new(zoo::build(name, options).unwrap());
        let trace = Arc::new(engine::trace(&graph).unwrap());
        let machine = sim::presets::machine("cpu").unwrap();
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        let task = Task { trace, costs, machine, freedom: Freedom::ALL };
        let natural = pipeline::natural(&task, method("keep").packer, &Silent).unwrap();
        let feed = Feed::open(&graph, None, 0).unwrap();
        let mut this = Self { graph, feed, task, natural, after: Vec::new() };
        this.after = this.run(&this.natural.plan.clone()).digests().unwrap();
        this
    }

    fn run(&mut self, plan: &Arc<CheckedPlan>) -> Session {
        let mut session = Session::new(self.graph.clone(), plan.clone(), SessionOptions::default()).unwrap();
        for iteration in 0..ITERATIONS {
            self.feed.read(iteration).unwrap();
            for (slot, bytes) in self.feed.slots().enumerate() {
                session.fill_input(slot, |input| input.copy_from_slice(bytes));
            }
            let report = session.run_iteration(iteration).unwrap();
            assert_eq!(report.measured_peak, plan.placement().height);
        }
        assert_eq!(session.first_stain(), None);
        session
    }

    /// A plan at the smallest of a few limits that works; the baselines cannot do without any memory on every network.
    fn planned(&self, planner: &str) -> Option<Planned> {
        let natural = self.natural.height().get();
        let limits = [40, 60, 80, 95].map(|percent| Bytes(natural * percent / 100));
        let plan = |limit| pipeline::plan(&self.task.with_memory(limit), &method(planner), &Silent).ok();
        limits.into_iter().find_map(plan)
    }
}

#[test]
fn plans_run_as_promised() {
    let small = |batch| Options { length: Some(12), width: Some(32), layers: Some(2), ..Options::new(batch) };
    // A head of GPT has 64 columns.
    let adam = Options { optimizer: Some(OptimizerKind::Adam), width: Some(64), ..small(2) };
    let (mut away, mut ran) = (0, [0; PLANNERS.len()]);
    for (name, options) in
        [("resnet18", Options::new(2)), ("vgg11", Options::new(8)), ("lstm", small(8)), ("gpt", adam)]
    {
        let mut network = Network::new(name, &options);
        for (planner, ran) in PLANNERS.into_iter().zip(&mut ran) {
            let Some(planned) = network.planned(planner) else { continue };
            *ran += 1;
            let session = network.run(&planned.plan);
            assert_eq!(session.digests().unwrap(), network.after, "{planner} on {name}");
            let traffic = session.timeline().traffic;
            assert_eq!(traffic, planned.predicted.traffic, "{planner} on {name}");
            assert!(!traffic.to_host.is_zero() && !traffic.to_device.is_zero(), "{planner} on {name}");
            let homes = &planned.plan.schedule().boundary;
            away += homes.iter().filter(|home| home.host && home.device.is_none()).count();
        }
    }
    assert!(ran.iter().all(|&networks| networks >= 1) && ran.iter().sum::<i32>() >= 36, "{ran:?}");
    assert!(away > 20, "only {away} persistent values were away over the end of an iteration");
}
