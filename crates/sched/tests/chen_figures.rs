//! Chen et al., Figures 5 and 6 in kind: feature-map bytes by depth and strategy, from exact static plans.

use elbowroom_graph::zoo::{self, OptimizerKind, Options};
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{Costs, Freedom, Request};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, OpId};
use elbowroom_sched::recompute::cuts::Cuts;
use elbowroom_sched::recompute::{recursive, repeats};
use elbowroom_sched::{lower, policy::Policy, policy::Reuses};
use elbowroom_sim::cost::Roofline;
use elbowroom_sim::presets;

/// Bytes of a strategy, and what it adds to the time of the ops, in percent.
struct Point {
    bytes: u64,
    overhead: f64,
}

struct Network {
    trace: Trace,
    costs: Costs,
    machine: Machine,
}

impl Network {
    fn new(name: &str, options: &Options) -> Self {
        let graph = zoo::build(name, options).unwrap();
        let trace = graph.trace(&|_, _: OpId| Bytes::ZERO).unwrap();
        let machine = Machine { align: Bytes(1), ..presets::machine("v100").unwrap() };
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        Self { trace, costs, machine }
    }

    fn request(&self) -> Request<'_> {
        Request {
            trace: &self.trace,
            costs: &self.costs,
            machine: &self.machine,
            live_limit: Bytes(1 << 60),
            freedom: Freedom { offload: false, recompute: true, ..Freedom::ALL },
            packer: None,
            pins: None,
        }
    }

    /// Parameters and what else outlives the iteration: no feature maps.
    fn persistent(&self) -> u64 {
        self.trace.persistent().iter().map(|pair| self.trace.bytes(pair.begin).get()).sum()
    }

    /// Bytes of all buffers together, none used twice except by outputs written over dying inputs.
    fn unshared(&self, reuses: Reuses) -> u64 {
        let policy = Policy { reuses, ..Policy::keep(&self.trace) };
        let lowered = lower(&self.request(), &policy).unwrap();
        lowered.schedule.buffers.values().map(|buffer| buffer.bytes.get()).sum::<u64>() - self.persistent()
    }

    fn of_policy(&self, policy: &Policy) -> Point {
        let (live_bytes, _) = elbowroom_sched::lower::least_live(&self.request(), policy).unwrap();
        let again = repeats::recompute_time(&self.costs.nanos, &policy.sequence);
        Point {
            bytes: live_bytes.get() - self.persistent(),
            overhead: 100.0 * again.get() as f64 / self.costs.total().get() as f64,
        }
    }

    fn planned(&self, planner: &str) -> Point {
        let outcome =
            elbowroom_sched::planner(planner).unwrap().schedule(&self.request(), &Budget::default(), &Silent);
        let schedule = outcome.best.unwrap();
        let timeline = elbowroom_sim::simulate(&self.trace, &self.costs, &self.machine, &schedule).unwrap();
        let total = self.costs.total().get() as f64;
        Point {
            bytes: timeline.peak_live.get() - self.persistent(),
            overhead: 100.0 * (timeline.iteration.get() as f64 / total - 1.0),
        }
    }

    /// The leanest of several numbers of cuts per division.
    fn recursive(&self) -> Point {
        let (_, backward_start) = repeats::base(&self.trace);
        let cuts = Cuts::of(&self.trace, backward_start);
        let single = cuts.single();
        let candidates = if single.len() * 8 > cuts.narrow().len() { single } else { cuts.narrow() };
        let each =
            |k| self.of_policy(&recursive::mirrors(&self.trace, &cuts, &candidates, k).policy(&self.trace));
        [1, 2, 4].into_iter().map(each).min_by_key(|point| point.bytes).unwrap()
    }
}

/// The slope of a line through the logarithms.
fn exponent(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|&(x, y)| (x.ln(), y.ln())).collect();
    let n = logs.len() as f64;
    let (mx, my) = (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
    let covariance: f64 = logs.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum();
    covariance / logs.iter().map(|p| (p.0 - mx).powi(2)).sum::<f64>()
}

const STRATEGIES: [&str; 6] = ["none", "inplace", "sharing", "drop-cheap", "sublinear", "recursive"];

/// Prints bytes per strategy and size; returns the curve of every strategy.
fn curves(sizes: &[usize], network: impl Fn(usize) -> Network) -> [Vec<(f64, f64)>; 6] {
    let mut curves: [Vec<(f64, f64)>; 6] = Default::default();
    for &size in sizes {
        let network = network(size);
        let point = |bytes| Point { bytes, overhead: 0.0 };
        let points = [
            point(network.unshared(Reuses::Never)),
            point(network.unshared(Reuses::Every)),
            network.of_policy(&Policy::prompt(&network.trace)),
            network.planned("drop-cheap"),
            network.planned("sublinear"),
            network.recursive(),
        ];
        print!("{size:5} ({} ops):", network.trace.ops().len());
        for ((strategy, point), curve) in STRATEGIES.iter().zip(&points).zip(&mut curves) {
            print!("  {strategy} {:.2} GB (+{:.0} %)", point.bytes as f64 / 1e9, point.overhead);
            curve.push((size as f64, point.bytes as f64));
        }
        println!();
        // The paper: about one more forward pass, 30 %.
        assert!((20.0..40.0).contains(&points[4].overhead));
    }
    for (strategy, curve) in STRATEGIES.iter().zip(&curves) {
        println!("{strategy}: exponent {:.2}", exponent(curve));
    }
    curves
}

#[test]
fn residual_networks_of_any_depth() {
    let options = Options::new(32).image(224).optimizer(OptimizerKind::Sgd);
    let curves = curves(&[254, 503, 1001, 2000], |depth| Network::new(&format!("resnet{depth}"), &options));
    let [none, _, sharing, cheap, sublinear, recursive] = &curves;
    assert!(exponent(sharing) >= 0.9 && exponent(sublinear) <= 0.6);
    // A thousand layers: tens of GB without any optimization, single digits with it (the paper: 48 to 7 GB).
    let deep = |curve: &[(f64, f64)]| curve[2].1;
    assert!(deep(none) > 40e9 && deep(sublinear) < 7e9);
    assert!(deep(cheap) < deep(sharing) && deep(recursive) < deep(sublinear));
    // Less than any root: what single layers need outweighs the logarithm.
    assert!(exponent(recursive) < 0.2);
}

#[test]
fn unrolled_recurrent_networks() {
    let options = |length| {
        Options::new(64).length(length).width(1024).layers(4).vocabulary(256).optimizer(OptimizerKind::Sgd)
    };
    let curves = curves(&[64, 128, 256, 512], |length| Network::new("lstm", &options(length)));
    let [_, _, sharing, _, sublinear, recursive] = &curves;
    assert!(exponent(sharing) >= 0.8 && exponent(sublinear) <= 0.7);
    assert!(exponent(recursive) < 0.4);
}
