//! The plans of real planners for networks of the zoo, each changed in one place: the checker refuses the plan, or a run computes the bits of
//! the run without a limit, or the session says why it cannot run the plan.

use std::sync::Arc;

use arbitrary::Unstructured;
use arbtest::arbtest;
use elbowroom::engine::{
    ChaosOptions, Digest, EngineError, HostError, Session, SessionOptions, reserved_host_bytes,
};
use elbowroom::graph::zoo::{self, Options};
use elbowroom::graph::{Content, Graph};
use elbowroom::ir::arbitrary as draw;
use elbowroom::ir::check::{CheckedPlan, check};
use elbowroom::ir::planning::Freedom;
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::pipeline::{self, Method, Task};
use elbowroom::size::MemorySpec;
use elbowroom::{registry, sim};

const ITERATIONS: u64 = 2;
/// Bytes from which a change is drawn; most changes take fewer.
const DATA: u32 = 64;

/// What a training computes.
type Results = (Vec<f32>, Vec<Digest>);

/// Fills all inputs with numbers that depend on the iteration.
fn fill(session: &mut Session, iteration: u64) {
    let graph = session.graph().clone();
    for (slot, input) in graph.inputs.iter().enumerate() {
        session.fill_input(slot, |bytes| {
            for (index, word) in bytes.chunks_exact_mut(4).enumerate() {
                let mixed = (index as u64 + 1_000 * iteration).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                word.copy_from_slice(&match input.content {
                    Content::Real => (mixed as f32 / 4e6 - 2.0).to_ne_bytes(),
                    Content::Class { classes } => ((mixed % classes as u64) as i32).to_ne_bytes(),
                });
            }
        });
    }
}

fn train(graph: &Arc<Graph>, plan: Arc<CheckedPlan>, seed: u64) -> Result<Results, EngineError> {
    // Streams that come late, and bytes that are poisoned once they are free, turn a missing order into other bits.
    let chaos = ChaosOptions::default().seed(seed).poison(true);
    let mut session = Session::new(graph.clone(), plan, SessionOptions::default().seed(7).chaos(chaos))?;
    let mut losses = Vec::new();
    for iteration in 0..ITERATIONS {
        fill(&mut session, iteration);
        session.run_iteration(iteration)?;
        losses.extend(session.output(0));
    }
    assert_eq!(session.first_overwritten(), None, "nothing is written above the arena");
    Ok((losses, session.digests()?))
}

/// Runs what is left of so many changes of each planner's plan. Returns how many were refused and how many were run.
fn change(name: &str, options: &Options, share: f64, changes: u64) -> [u64; 2] {
    let graph = Arc::new(zoo::build(name, options).unwrap());
    let machine = sim::presets::machine("cpu").unwrap();
    let task = Task::estimate(&graph, &machine, Freedom::ALL).unwrap();
    let packer = registry::packer(registry::DEFAULT_PACKER).unwrap();
    let unconstrained = pipeline::unconstrained(&task, packer, &Silent).unwrap();
    let oracle = train(&graph, unconstrained.plan.clone(), 0).unwrap();
    let limited = task.with_memory(MemorySpec::Share(share).resolve(unconstrained.height()).unwrap());
    let (mut refused, mut run, mut short_of_host) = (0, 0, 0);
    for planner in ["auto", "floor", "dtr"] {
        let method =
            Method::new(registry::planner(planner).unwrap(), packer, Budget::evaluations(16)).at_once();
        let Ok(planned) = pipeline::plan(&limited, &method, &Silent) else { continue };
        let (trace, machine) = (planned.plan.trace(), planned.plan.machine());
        let mut case = |u: &mut Unstructured<'_>| -> arbitrary::Result<()> {
            let changed = draw::changed(u, trace, planned.plan.plan())?;
            let Ok(checked) = check(trace.clone(), machine.clone(), changed) else {
                refused += 1;
                return Ok(());
            };
            let needed = reserved_host_bytes(&checked);
            match train(&graph, Arc::new(checked), run) {
                Ok(results) => assert!(results == oracle, "{name} by {planner} computes other bits"),
                // The checker limits the sum of host copies, a session what it reserves for them.
                Err(EngineError::Host(HostError::Limit { .. })) if needed > machine.host_memory => {
                    short_of_host += 1;
                }
                Err(error) => panic!("{name} by {planner}: {error}"),
            }
            run += 1;
            Ok(())
        };
        for seed in 0..changes {
            arbtest(&mut case).seed(seed << 32 | u64::from(DATA)).run();
        }
    }
    eprintln!(
        "{name}: {refused} changed plans refused, {run} accepted, {short_of_host} of them without the host memory"
    );
    [refused, run]
}

/// The networks, small, with a share of their unconstrained peak at which plans offload or recompute.
fn networks() -> [(&'static str, Options, f64); 4] {
    [
        ("resnet10", Options::new(2).image(8).width(4), 0.7),
        ("lstm", Options::new(2).length(4).width(8).vocabulary(11), 0.7),
        ("gpt", Options::new(1).length(8).width(64).layers(1).vocabulary(11), 0.7),
        ("unet", Options::new(1).image(16).width(4), 0.7),
    ]
}

fn change_all(changes: u64) {
    let counts = std::thread::scope(|scope| {
        let change = |(name, options, share)| scope.spawn(move || change(name, &options, share, changes));
        networks().map(change).map(|thread| thread.join().unwrap())
    });
    let [refused, run] = [0, 1].map(|kind| counts.iter().map(|counts| counts[kind]).sum::<u64>());
    assert!(refused > run && run > 0, "{refused} refused, {run} run");
}

#[test]
fn changed_plans_are_refused_or_compute_the_same_bits() {
    change_all(30);
}

#[test]
#[ignore = "takes half a minute"]
fn ten_thousands_of_changed_plans_are_refused_or_compute_the_same_bits() {
    change_all(5_000);
}
