//! The simulator against a naive reference, on random plans: time advances tick by tick, and at every tick each stream starts its next
//! action if it is free and everything that the action waits for has finished.

use arbtest::arbitrary::Unstructured;
use arbtest::arbtest;
use elbowroom_ir::arbitrary::Case;
use elbowroom_ir::planning::{CostSource, Costs};
use elbowroom_ir::schedule::{Action, Schedule, Stream};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{ActionId, Bytes, Id, Nanos};
use elbowroom_sim::live::{LiveMemory, alive_at};
use elbowroom_sim::{liveness, simulate};

/// Starts and ends by ticking.
fn tick(schedule: &Schedule, durations: &[u64], shared: bool) -> Vec<Option<(u64, u64)>> {
    let mut spans: Vec<Option<(u64, u64)>> = vec![None; schedule.steps.len()];
    let stream_of = |id: ActionId| {
        schedule.steps[id].action.stream().map(|stream| match stream {
            Stream::Compute => 0,
            Stream::ToHost => 1,
            Stream::ToDevice if shared => 1,
            Stream::ToDevice => 2,
        })
    };
    let queue = |stream: usize| schedule.steps.ids().filter(move |&id| stream_of(id) == Some(stream));
    let mut now = 0;
    while schedule.steps.ids().any(|id| stream_of(id).is_some() && spans[id.index()].is_none()) {
        // Actions without duration may start others at the same tick.
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for stream in 0..3 {
                let Some(next) = queue(stream).find(|id| spans[id.index()].is_none()) else { continue };
                let over = |id: &ActionId| spans[id.index()].is_some_and(|(_, end)| end <= now);
                let free = queue(stream).take_while(|&id| id < next).all(|id| over(&id));
                if free && schedule.steps[next].waits.iter().all(over) {
                    spans[next.index()] = Some((now, now + durations[next.index()]));
                    changed = true;
                }
            }
        }
        now += 1;
    }
    spans
}

fn durations(trace: &Trace, costs: &Costs, case: &Case) -> Vec<u64> {
    let each = |action: &Action| match action {
        Action::Compute(launch) | Action::Recompute(launch) => costs.nanos[launch.op].get(),
        Action::Offload { tensor: value, .. } => case.machine.to_host.time(trace.bytes(*value)).get(),
        Action::Prefetch { tensor: value, .. } => case.machine.to_device.time(trace.bytes(*value)).get(),
        Action::Release { .. } | Action::HostRelease { .. } => 0,
    };
    case.plan.schedule.steps.values().map(|step| each(&step.action)).collect()
}

#[test]
fn the_simulator_agrees_with_ticking() {
    let mut copies = 0;
    let mut case = |u: &mut Unstructured<'_>| {
        let mut case = Case::arbitrary(u)?;
        case.machine.to_host.rate = *u.choose(&[1, 3])? * 1_000_000_000;
        case.machine.to_device.rate = *u.choose(&[1, 3])? * 1_000_000_000;
        case.machine.to_host.latency = Nanos(u.int_in_range(0..=2)?);
        case.machine.to_device.latency = Nanos(u.int_in_range(0..=2)?);
        case.machine.shared_link = u.arbitrary()?;
        let nanos: arbitrary::Result<Vec<Nanos>> =
            case.trace.ops().ids().map(|_| Ok(Nanos(u.int_in_range(0..=9)?))).collect();
        let costs = Costs { nanos: nanos?.into(), source: CostSource::Recorded };
        let schedule = &case.plan.schedule;
        let timeline = simulate(&case.trace, &costs, &case.machine, schedule).unwrap();

        let spans = tick(schedule, &durations(&case.trace, &costs, &case), case.machine.shared_link);
        let mine: Vec<_> = timeline.spans.iter().map(|s| (s.action, s.start.get(), s.end.get())).collect();
        let theirs: Vec<_> = schedule
            .steps
            .ids()
            .filter_map(|id| spans[id.index()].map(|(start, end)| (id, start, end)))
            .collect();
        assert_eq!(mine, theirs);
        let last = theirs.iter().map(|&(.., end)| end).max().unwrap_or(0);
        assert_eq!(timeline.iteration, Nanos(last));
        copies += usize::from(timeline.traffic.to_host > Bytes::ZERO);

        // The live memory of each position, from the buffers that are alive there.
        let load = LiveMemory::of(schedule, &case.machine);
        let lifetimes = liveness::lifetimes(schedule);
        for position in schedule.steps.ids() {
            let alive = alive_at(schedule, position);
            let bytes = alive.iter().map(|&b| schedule.buffers[b].bytes.align_up(case.machine.align)).sum();
            assert_eq!(load.curve[position], bytes);
            assert!(alive.iter().all(|&buffer| !lifetimes[buffer].is_empty()));
        }
        assert_eq!(Some(load.peak), load.curve.values().copied().max());
        assert_eq!(timeline.peak_live, load.peak);
        Ok(())
    };
    // A fixed list of cases: the same ones on every machine.
    for seed in 0..2_000u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
    assert!(copies > 100, "{copies}");
}

#[test]
fn what_does_not_fit_its_trace_is_refused() {
    let mut case = |u: &mut Unstructured<'_>| {
        let case = Case::arbitrary(u)?;
        let costs =
            Costs { nanos: case.trace.ops().ids().map(|_| Nanos(1)).collect(), source: CostSource::Recorded };
        // Plans changed in one place may wait forwards or name what is not there; none may bring the simulator down.
        let changed = case.changed(u)?;
        let _ = simulate(&changed.trace, &costs, &changed.machine, &changed.plan.schedule);
        Ok(())
    };
    for seed in 0..10_000u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
}
