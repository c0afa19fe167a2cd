//! `auto` with few evaluations near the smallest limits, where the planners that it starts from find nothing, or schedules that recompute the
//! same ops over and over.

use elbowroom_graph::zoo::{self, Options};
use elbowroom_ir::Bytes;
use elbowroom_ir::planning::{Costs, Freedom, Planner, Request};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_sched::auto::Auto;
use elbowroom_sim::bound::floor;
use elbowroom_sim::cost::Roofline;
use elbowroom_sim::{presets, simulate};

#[test]
fn a_short_search_near_the_smallest_limit_finds_a_sane_schedule() {
    let machine = presets::machine("v100").unwrap();
    let freedom = Freedom { offload: false, recompute: true, reorder: false };
    for (name, percent) in [("gpt", 106), ("unet", 106), ("unet", 108), ("convnext-tiny", 106)] {
        let graph = zoo::build(name, &Options::new(4)).unwrap();
        let trace = graph.trace(&|_, _| Bytes::ZERO).unwrap();
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        let least = floor(&trace, freedom, machine.align).unwrap().bytes;
        let live_limit = Bytes(least.get() * percent / 100);
        let (trace, costs, machine) = (&trace, &costs, &machine);
        let request = Request { trace, costs, machine, live_limit, freedom, packer: None, pins: None };
        let outcome = Auto.schedule(&request, &Budget::evaluations(50), &Silent);
        let found = outcome.best.unwrap_or_else(|| panic!("{name} at {percent} % of the largest op"));
        let timeline = simulate(trace, costs, machine, &found).unwrap();
        assert!(timeline.peak_live <= live_limit);
        let (time, total) = (timeline.iteration.get(), costs.total().get());
        assert!(time <= total * 3 / 2, "{name} at {percent} %: {time} of {total} ns without a limit");
    }
}
