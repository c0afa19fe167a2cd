//! The checker is checked: a legal plan changed in one place is rejected, or runs to the same bytes under every order of the streams.

mod symbolic;

use std::collections::BTreeMap;

use arbtest::arbitrary::Unstructured;
use arbtest::arbtest;
use elbowroom_ir::arbitrary::Case;
use elbowroom_ir::check::check;
use elbowroom_ir::text::{PlanFile, TraceFile};

const ORDERS: u64 = 8;

fn print(case: &Case) -> String {
    let trace = TraceFile::new((*case.trace).clone(), None, None).expect("a trace");
    let plan = PlanFile::new(case.plan.clone(), case.machine.clone()).expect("a machine");
    format!("{trace}{plan}")
}

#[test]
fn legal_plans_run_right_in_every_order() {
    let mut case = |u: &mut Unstructured<'_>| {
        let case = Case::arbitrary(u)?;
        for seed in 0..ORDERS {
            if let Err(why) = symbolic::run(&case.trace, case.machine.memory, &case.plan, seed) {
                panic!("{}{why}", print(&case));
            }
        }
        Ok(())
    };
    for seed in 0..5_000u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
}

#[test]
fn a_change_that_matters_is_rejected() {
    let (mut accepted, mut rejected, mut wrong) = (0, 0, 0);
    let mut rules: BTreeMap<u8, usize> = BTreeMap::new();
    let mut case = |u: &mut Unstructured<'_>| {
        let case = Case::arbitrary(u)?;
        for _ in 0..4 {
            let changed = case.changed(u)?;
            let run = |seed| symbolic::run(&changed.trace, changed.machine.memory, &changed.plan, seed);
            match check(changed.trace.clone(), changed.machine.clone(), changed.plan.clone()) {
                Ok(_) => {
                    accepted += 1;
                    for seed in 0..ORDERS {
                        if let Err(why) = run(seed) {
                            panic!(
                                "{}accepted after a change, but {why}; it was\n{}",
                                print(&changed),
                                print(&case)
                            );
                        }
                    }
                }
                Err(illegal) => {
                    rejected += 1;
                    *rules.entry(illegal.first().rule as u8).or_default() += 1;
                    wrong += usize::from((0..ORDERS).any(|seed| run(seed).is_err()));
                }
            }
        }
        Ok(())
    };
    for seed in 0..6_000u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
    // The property would be empty if changes were all accepted or all harmless, or if some rule were never needed.
    assert!(rejected > accepted && accepted > rejected / 100, "{accepted} accepted, {rejected} rejected");
    assert!(wrong > rejected / 2, "only {wrong} of {rejected} rejected plans run wrong");
    assert_eq!(rules.len(), 10, "{rules:?}");
}
