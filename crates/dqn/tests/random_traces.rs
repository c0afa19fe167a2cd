//! The planner on random traces: it returns a legal schedule within the limit, or the reason why there is none.

use std::sync::Arc;

use arbtest::arbitrary::{self, Unstructured};
use arbtest::arbtest;
use elbowroom_dqn::Dqn;
use elbowroom_dqn::settings::Settings;
use elbowroom_ir::check::check_schedule;
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{CostSource, Costs, Freedom, Planner, Request};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::lower;
use elbowroom_sched::policy::Policy;

fn machine(u: &mut Unstructured<'_>) -> arbitrary::Result<Machine> {
    let mut link = || {
        let latency = Nanos(u.int_in_range(0..=3)?);
        Ok(Channel { latency, rate: *u.choose(&[1, 4, 100])? * 1_000_000_000 })
    };
    let (to_host, to_device) = (link()?, link()?);
    Ok(Machine {
        name: "test".into(),
        memory: Bytes(1 << 40),
        align: Bytes(*u.choose(&[1, 4, 16])?),
        host_memory: Bytes(1 << 40),
        to_host,
        to_device,
        shared_link: u.arbitrary()?,
        flops_per_second: 1,
        half_flops_per_second: None,
        bytes_per_second: 1,
        launch: Nanos::ZERO,
    })
}

#[test]
fn it_keeps_to_the_limit_or_says_why_not() {
    keeps_to_the_limit(Settings::DEFAULT);
}

#[test]
fn so_it_does_in_the_order_of_the_papers_text() {
    keeps_to_the_limit("paper=true,least=1".parse().unwrap());
}

fn keeps_to_the_limit(settings: Settings) {
    let dqn = Dqn::new(settings, None);
    let mut found = 0;
    let mut case = |u: &mut Unstructured<'_>| {
        let trace = Arc::new(elbowroom_ir::arbitrary::trace(u)?);
        let machine = machine(u)?;
        let each = |_| Ok(Nanos(u.int_in_range(0..=20)?));
        let nanos: arbitrary::Result<Vec<Nanos>> = trace.ops().ids().map(each).collect();
        let costs = Costs { nanos: nanos?.into(), source: CostSource::Recorded };
        let mut request = Request {
            trace: &trace,
            costs: &costs,
            machine: &machine,
            live_limit: Bytes(1 << 40),
            freedom: Freedom::ALL,
            packer: None,
            pins: None,
        };
        let peak = lower(&request, &Policy::keep(&trace)).unwrap().peak;
        request.live_limit = Bytes(peak.get() * u.int_in_range(1..=10)? / 10);
        let outcome = dqn.schedule(&request, &Budget::evaluations(8), &Silent);
        if let Some(schedule) = outcome.best {
            found += 1;
            check_schedule(trace.clone(), machine.clone(), schedule, request.live_limit)
                .unwrap_or_else(|illegal| panic!("{illegal} {:?}", trace.data()));
        } else {
            assert!(["infeasible", "gave-up"].contains(&outcome.stop.name()), "{:?}", outcome.stop);
        }
        Ok(())
    };
    // As many cases on a busy machine as on an idle one.
    for seed in 0..80u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
    assert!(found > 5, "{found}");
}
