//! The floor of a trace against random legal plans, and where it is tight.

use arbtest::arbtest;
use elbowroom_ir::arbitrary::Case;
use elbowroom_ir::planning::Freedom;
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::trace::{Phase, Trace};
use elbowroom_ir::{Bytes, OpId};
use elbowroom_sim::bound::floor;
use elbowroom_sim::live::LiveMemory;
use elbowroom_sim::liveness;

/// What a schedule makes use of.
fn freedom_of(trace: &Trace, schedule: &Schedule) -> Freedom {
    let any = |of: fn(&Action) -> bool| schedule.steps.values().any(|step| of(&step.action));
    let first_runs: Vec<OpId> = schedule
        .steps
        .values()
        .filter_map(|step| match &step.action {
            // Update ops may run early in any schedule.
            Action::Compute(launch) if trace.ops()[launch.op].phase != Phase::Update => Some(launch.op),
            _ => None,
        })
        .collect();
    Freedom {
        offload: any(|action| matches!(action, Action::Offload { .. } | Action::Prefetch { .. })),
        recompute: any(|action| matches!(action, Action::Recompute(_))),
        reorder: !first_runs.is_sorted(),
    }
}

#[test]
fn no_legal_plan_is_below_the_floor() {
    let (mut holding, mut tight, mut padded) = (0, 0, 0);
    // A fixed list of cases: the same ones on every machine.
    for seed in 0..20_000u64 {
        arbtest(|u| {
            let case = Case::arbitrary(u)?;
            let schedule = &case.plan.schedule;
            let freedom = freedom_of(&case.trace, schedule);
            let Some(floor) = floor(&case.trace, freedom, case.machine.align) else { return Ok(()) };
            let peak = LiveMemory::of(schedule, &case.machine).peak;
            assert!(peak >= floor.bytes, "{peak} {floor:?} {freedom:?}\n{:?}", case.trace);
            let height = liveness::height(schedule, &case.plan.placement.offsets);
            let arena = floor.arena(&case.trace, case.machine.align);
            assert!(height >= arena, "{height} {arena} {floor:?} {freedom:?}\n{:?}", case.trace);
            padded += usize::from(height < floor.bytes);
            let held: Bytes =
                floor.held.iter().map(|&value| case.trace.bytes(value).align_up(case.machine.align)).sum();
            assert_eq!(floor.own + held, floor.bytes);
            // More freedom never raises the floor.
            let all = Freedom { reorder: true, ..Freedom::ALL };
            let free = elbowroom_sim::bound::floor(&case.trace, all, case.machine.align).unwrap();
            assert!(free.bytes <= floor.bytes && free.held.is_empty());
            holding += usize::from(!floor.held.is_empty());
            tight += usize::from(peak == floor.bytes && !floor.held.is_empty());
            Ok(())
        })
        .seed(seed << 32 | 2_048)
        .run();
    }
    assert!(holding > 10 && tight > 5 && padded > 5, "{holding} {tight} {padded}");
}
