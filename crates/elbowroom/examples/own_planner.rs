//! A planner of one's own, compared with one of the library: it offloads the layer outputs with the most bytes first, until live memory fits.
//! `docs/add-a-planner.md` explains it.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use elbowroom::graph::zoo;
use elbowroom::ir::Bytes;
use elbowroom::ir::planning::{Costs, Freedom, Planner, Request};
use elbowroom::ir::schedule::Schedule;
use elbowroom::ir::search::{Budget, Observer, Outcome, Silent, StopReason};
use elbowroom::pipeline::{self, Method, Task};
use elbowroom::sim::{cost::Roofline, presets};
use elbowroom_sched::chain::linearize::Linear;
use elbowroom_sched::lower;
use elbowroom_sched::lower::least_live;
use elbowroom_sched::verdict::impossible_op;

struct LargestFirst;

impl Planner for LargestFirst {
    fn name(&self) -> &'static str {
        "largest-first"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let start = Instant::now();
        let refuse = |best: Option<Bytes>, evaluations| {
            let stop = match impossible_op(request) {
                Some(proof) => StopReason::Infeasible(Box::new(proof)),
                None => StopReason::GaveUp { best },
            };
            Outcome { best: None, evaluations, stop }
        };
        // The trace as a chain of layers: `keep` is the policy that keeps every tensor, `groups` are the layers.
        let Ok(linear) = Linear::of(request) else { return refuse(None, 0) };
        let mut layers: Vec<usize> = (0..linear.groups.len()).collect();
        layers.sort_by_key(|&layer| Reverse(linear.chain.activations[layer + 1]));
        if !request.freedom.offload {
            layers.clear();
        }

        let mut policy = linear.keep.clone();
        let mut least: Option<Bytes> = None;
        let mut next = layers.into_iter();
        for evaluations in 1.. {
            if let Ok((live, _)) = least_live(request, &policy) {
                least = Some(least.map_or(live, |least| least.min(live)));
                if live <= request.live_limit
                    && let Ok(lowered) = lower(request, &policy)
                {
                    return Outcome { evaluations, ..Outcome::finished(lowered.schedule) };
                }
            }
            let stop = observer.interrupted() || budget.exhausted(evaluations, start).is_some();
            match next.next() {
                Some(layer) if !stop => linear.offload(&mut policy, [layer]),
                _ => return refuse(least, evaluations),
            }
        }
        unreachable!("the layers end before the numbers do")
    }
}

/// One iteration of ResNet-18 on a V100 with 100 MiB.
fn task() -> Result<Task, Box<dyn std::error::Error>> {
    let graph = zoo::build("resnet18", &zoo::Options::new(8))?;
    let trace = Arc::new(elbowroom::engine::trace(&graph)?);
    let machine = presets::machine("v100").ok_or("no such machine")?.with_memory(Bytes(100 << 20));
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    Ok(Task { trace, costs, machine, freedom: Freedom::ALL, pins: None })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let task = task()?;
    let greedy = elbowroom_sched::planner("greedy").ok_or("no such planner")?;
    for planner in [&LargestFirst as &dyn Planner, greedy] {
        let method = Method::new(planner, &elbowroom::pack::Auto, Budget::evaluations(100));
        let planned = pipeline::plan(&task, &method, &Silent)?;
        println!("{:<14} {} in {}", planner.name(), planned.predicted.iteration, planned.height());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pipeline::plan` returns checked plans only, so that a plan which exists is legal.
    #[test]
    fn its_plan_fits_and_it_refuses_what_no_plan_can_do() {
        let task = task().unwrap();
        let method = Method::new(&LargestFirst, &elbowroom::pack::Auto, Budget::evaluations(100));
        let planned = pipeline::plan(&task, &method, &Silent).unwrap();
        assert!(planned.height() <= task.machine.memory);
        let impossible = pipeline::plan(&task.with_memory(Bytes(1 << 20)), &method, &Silent);
        assert!(matches!(impossible, Err(pipeline::PlanError::Infeasible { .. })));
    }
}
