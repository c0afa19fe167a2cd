//! More freedom makes no plan worse: under a time limit the rounds of `auto` keep the trace's order until one of them has packed a schedule, because
//! the time might end before, and rounds with the freedom that has found the fastest plan are no fewer than others.

use std::sync::{Arc, Mutex};

use elbowroom::engine;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::packing::{Packer, Placement, Problem};
use elbowroom::ir::planning::{Costs, Freedom, Known, Planner, Request};
use elbowroom::ir::schedule::Schedule;
use elbowroom::ir::search::{Budget, Observer, Outcome, Silent, StopReason};
use elbowroom::ir::trace::Trace;
use elbowroom::ir::{Bytes, Nanos};
use elbowroom::pipeline::{self, Method, Rounds, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::{registry, sim};

/// `auto`, which notes what each round may decide, and whether it continues. With a favourite, rounds that may decide anything else only offload,
/// however long that takes.
struct Noting {
    favourite: Option<Freedom>,
    rounds: Mutex<Vec<(Freedom, bool)>>,
}

impl Noting {
    fn auto() -> &'static dyn Planner {
        registry::planner("auto").unwrap()
    }

    /// Notes a round; returns who plans it.
    fn planner(&self, request: &Request<'_>, continues: bool) -> &'static dyn Planner {
        self.rounds.lock().unwrap().push((request.freedom, continues));
        match self.favourite {
            Some(favourite) if favourite != request.freedom => registry::planner("floor").unwrap(),
            _ => Self::auto(),
        }
    }
}

impl Planner for Noting {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn peers(&self, trace: &Trace) -> Vec<&'static dyn Planner> {
        Self::auto().peers(trace)
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        self.schedule_from(request, Known::default(), budget, observer)
    }

    fn schedule_from(
        &self,
        request: &Request<'_>,
        known: Known<'_>,
        budget: &Budget,
        observer: &dyn Observer,
    ) -> Outcome<Schedule> {
        self.planner(request, known.horizon.is_some()).schedule_from(request, known, budget, observer)
    }
}

/// The packer `auto`, which refuses whatever fills more than this share of a limit, in percent.
struct Wasteful(u64);

impl Packer for Wasteful {
    fn name(&self) -> &'static str {
        "wasteful"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        let wasted = Bytes(problem.peak_live().get() / self.0 * 100);
        match problem.capacity {
            Some(capacity) if wasted > capacity => {
                Outcome { best: None, evaluations: 1, stop: StopReason::GaveUp { best: Some(wasted) } }
            }
            _ => registry::packer("auto").unwrap().pack(problem, budget, observer),
        }
    }
}

fn task(freedom: Freedom) -> Task {
    let graph = zoo::build("resnet18", &Options::new(8).image(32)).unwrap();
    let machine = sim::presets::machine("gtx1080ti").unwrap();
    let trace = engine::trace(&graph).unwrap();
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    Task { trace: Arc::new(trace), costs, machine, freedom, pins: None }
}

/// Iteration time of a series of this many rounds, if there is a plan, and what the rounds were allowed.
fn series(
    task: &Task,
    packer: &dyn Packer,
    rounds: usize,
    favourite: Option<Freedom>,
) -> (Option<Nanos>, Vec<(Freedom, bool)>) {
    let noting = Noting { favourite, rounds: Mutex::new(Vec::new()) };
    let record = vec!["100"; rounds].join("-") + if rounds == 1 { "-" } else { "" };
    let method = Method::new(&noting, packer, Budget::evaluations(300));
    let method = Method { rounds: Rounds::Recorded(record.parse().unwrap()), ..method };
    let planned = pipeline::plan(task, &method, &Silent).ok();
    (planned.map(|planned| planned.predicted.iteration), noting.rounds.into_inner().unwrap())
}

#[test]
fn a_series_reorders_nothing_before_it_has_packed_a_schedule() {
    let in_order = Freedom { reorder: false, ..Freedom::ALL };
    let free = Freedom { reorder: true, ..Freedom::ALL };
    let unlimited = pipeline::unconstrained(&task(free), registry::packer("auto").unwrap(), &Silent).unwrap();
    let half = Bytes(unlimited.height().get() / 2);
    let (free, in_order) = (task(free).with_memory(half), task(in_order).with_memory(half));
    for waste in [100, 90] {
        let packer = Wasteful(waste);
        let results: Vec<_> = (1..=6).map(|rounds| series(&free, &packer, rounds, None)).collect();
        let packed = 1 + results.iter().position(|(time, _)| time.is_some()).expect("a round is packed");
        assert!(packed > 1 || waste == 100, "the first schedule fills the limit");
        let (_, allowed) = &results[5];
        assert!(allowed[..packed].iter().all(|(freedom, _)| !freedom.reorder), "{waste}: {allowed:?}");
        assert!(allowed[packed..].iter().any(|(freedom, _)| freedom.reorder), "{waste}: {allowed:?}");
        let again = allowed[packed..].iter().find(|(freedom, _)| freedom.reorder && freedom.offload);
        assert!(again.is_some_and(|&(_, continues)| continues), "{waste}: warm starts are made once");
        // Until then both are the same, and what is packed is kept.
        for (rounds, (time, _)) in (1..=packed).zip(&results) {
            assert_eq!(*time, series(&in_order, &packer, rounds, None).0, "{waste}: {rounds} rounds");
        }
        let times: Vec<Nanos> = results.iter().filter_map(|(time, _)| *time).collect();
        assert!(
            times.is_sorted_by(|earlier, later| earlier >= later),
            "{waste}: {:?}",
            times.iter().map(|time| time.get()).collect::<Vec<_>>()
        );
    }
}

#[test]
fn the_freedom_that_found_the_fastest_plan_has_no_fewer_rounds() {
    let free = Freedom { reorder: true, ..Freedom::ALL };
    let in_order = Freedom { reorder: false, ..Freedom::ALL };
    let without_link = Freedom { offload: false, ..in_order };
    // No round has this freedom, so that `floor` plans all of them.
    let absent = Freedom { recompute: false, ..without_link };
    let packer = registry::packer("auto").unwrap();
    let unlimited = pipeline::unconstrained(&task(free), packer, &Silent).unwrap();
    for all in [in_order, free] {
        let mut task = task(all).with_memory(Bytes(unlimited.height().get() / 4 * 3));
        // On a slow link, to offload alone takes longer.
        for link in [&mut task.machine.to_host, &mut task.machine.to_device] {
            link.rate /= 20;
        }
        let (time, rounds) = series(&task, packer, 12, Some(without_link));
        let (floor, _) = series(&task, packer, 12, Some(absent));
        assert!(time.is_some() && time < floor, "{all:?}: {time:?}, {floor:?} by others alone");
        let count = |freedom: Freedom| rounds.iter().skip(6).filter(|round| round.0 == freedom).count();
        assert!(count(without_link) >= count(in_order).max(2), "{all:?}: {rounds:?}");
    }
}
