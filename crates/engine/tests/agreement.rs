//! A training is bit-exact for every plan, number of threads and host tier, and under injected faults.

mod support;

use std::sync::Arc;
use std::time::Duration;

use arbitrary::Unstructured;
use arbtest::arbtest;
use elbowroom_engine::{ChaosOptions, HostOptions, HostPlace, SessionOptions, first_difference};
use elbowroom_graph::{Graph, Precision};
use elbowroom_ir::arbitrary as draw;
use elbowroom_ir::check::check;

use support::{convnet, counts, drawn, interpret, run, run_checked, threads, trace, transformer};

const ITERATIONS: u64 = 3;

/// Late streams and poisoned bytes most of the time, one or two threads, and sometimes a file as host tier.
fn circumstances(u: &mut Unstructured<'_>) -> arbitrary::Result<SessionOptions> {
    let mut options = threads(u.int_in_range(1..=2)?);
    if u.ratio(3, 4)? {
        let longest_delay = Duration::from_micros(60);
        let seed = u.arbitrary()?;
        options.chaos = Some(ChaosOptions::default().seed(seed).longest_delay(longest_delay).poison(true));
    }
    if u.ratio(1, 4)? {
        options.host = HostOptions::default().place(HostPlace::Folder(std::env::temp_dir()));
    }
    Ok(options)
}

/// Runs random legal plans under random circumstances.
fn random_plans_agree(graph: Graph) {
    let (trace, graph) = (trace(&graph), Arc::new(graph));
    let oracle = interpret(&graph, ITERATIONS);
    let (mut plans, mut copies, mut recomputed) = (0, 0, 0);
    let mut case = |u: &mut Unstructured<'_>| {
        let (machine, plan) = draw::plan(u, &trace)?;
        if machine.align.get() % 4 != 0 {
            return Ok(());
        }
        let (streams, again) = counts(&plan);
        let height = plan.placement.height;
        let (outcome, mut session) =
            run(&graph, &trace, machine, plan, circumstances(u)?, ITERATIONS).unwrap();
        assert_eq!(outcome, oracle);
        assert_eq!(session.first_overwritten(), None);
        let report = session.run_iteration(ITERATIONS).unwrap();
        assert_eq!(report.measured_peak, height, "what was handed out is what was promised, to the byte");
        let timeline = session.timeline();
        assert_eq!(timeline.recomputed, again);
        assert_eq!(timeline.spans.len(), streams.iter().sum());
        assert_eq!(timeline.iteration, report.iteration);
        (plans, copies, recomputed) = (plans + 1, copies + streams[1] + streams[2], recomputed + again);
        Ok(())
    };
    for seed in 0..40u64 {
        arbtest(&mut case).seed(seed << 32 | 131_072).run();
    }
    assert!(
        plans > 5 && copies > 50 && recomputed > 5,
        "{plans} plans, {copies} copies, {recomputed} recomputed"
    );
}

#[test]
fn random_plans_of_a_residual_block_agree_with_the_oracle() {
    random_plans_agree(convnet());
}

#[test]
fn random_plans_of_a_transformer_agree_with_the_oracle() {
    random_plans_agree(transformer());
}

#[test]
fn random_plans_in_bf16_agree_with_the_oracle() {
    for graph in [convnet(), transformer()] {
        random_plans_agree(graph.in_precision(Precision::Bf16).unwrap());
    }
}

/// The checker on trial: a legal plan is changed in one place; either the checker objects, or the run equals the oracle to the bit.
#[test]
fn plans_changed_in_one_place_are_rejected_or_make_no_difference() {
    let graph = convnet();
    let (trace, graph) = (trace(&graph), Arc::new(graph));
    let oracle = interpret(&graph, ITERATIONS);
    let (mut rejected, mut harmless) = (0, 0);
    let mut case = |u: &mut Unstructured<'_>| {
        let (machine, plan) = draw::plan(u, &trace)?;
        if machine.align.get() % 4 != 0 {
            return Ok(());
        }
        for _ in 0..8 {
            let changed = draw::changed(u, &trace, &plan)?;
            let Ok(checked) = check(trace.clone(), machine.clone(), changed) else {
                rejected += 1;
                continue;
            };
            let (outcome, session) =
                run_checked(&graph, Arc::new(checked), circumstances(u)?, ITERATIONS).unwrap();
            assert_eq!(outcome, oracle);
            assert_eq!(session.first_overwritten(), None);
            harmless += 1;
        }
        Ok(())
    };
    // A fixed list of cases: the same ones on every machine.
    for seed in 0..40u64 {
        arbtest(&mut case).seed(seed << 32 | 131_072).run();
    }
    assert!(rejected > 50 && harmless > 2, "{rejected} rejected, {harmless} harmless");
}

#[test]
fn losses_are_numbers_and_the_parameters_move() {
    for graph in [convnet(), transformer()] {
        let (trace, graph) = (trace(&graph), Arc::new(graph));
        let (machine, plan) = drawn(&trace, 1, |_| true);
        let (_, fresh) = run(&graph, &trace, machine.clone(), plan.clone(), threads(1), 0).unwrap();
        let (after, trained) = run(&graph, &trace, machine, plan, threads(1), 20).unwrap();
        let losses: Vec<f32> = after.losses.iter().map(|&bits| f32::from_bits(bits)).collect();
        assert!(losses.iter().all(|loss| loss.is_finite() && *loss > 0.0), "{losses:?}");
        assert!(first_difference(&fresh, &trained).unwrap().is_some());
        assert_eq!(first_difference(&trained, &trained).unwrap(), None);
    }
}

/// A training taken over from another in the middle goes on as if nothing had happened.
#[test]
fn persistent_values_move_from_one_session_to_another() {
    let graph = transformer();
    let (trace, graph) = (trace(&graph), Arc::new(graph));
    let (machine, plan) = drawn(&trace, 1, |_| true);
    let (_, first) = run(&graph, &trace, machine, plan, threads(1), 2).unwrap();
    let (machine, plan) = drawn(&trace, 2, |plan| counts(plan).0[1] > 0);
    let (_, mut second) = run(&graph, &trace, machine, plan, threads(2), 0).unwrap();
    for index in 0..first.persistent().len() {
        let mut value = vec![0; first.persistent_bytes(index)];
        first.read_persistent(index, &mut value).unwrap();
        second.write_persistent(index, &value).unwrap();
    }
    assert_eq!(first_difference(&first, &second).unwrap(), None);
    support::fill(&mut second, 2);
    second.run_iteration(2).unwrap();
    assert_eq!(second.digests().unwrap(), interpret(&graph, 3).digests);
}
