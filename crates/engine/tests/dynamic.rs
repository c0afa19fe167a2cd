//! Dynamic execution is bit-exact with the unlimited run, at every limit under which it runs and for every choice of tensors to remove.

mod support;

use std::sync::Arc;

use arbtest::arbitrary::Unstructured;
use arbtest::arbtest;
use elbowroom_engine::dynamic::{Candidate, Decider, DynamicExecution, DynamicReport, Event, Removal};
use elbowroom_engine::{
    ChaosOptions, EngineError, HostOptions, HostPlace, Interpreter, Session, SessionOptions,
};
use elbowroom_graph::Graph;
use elbowroom_ir::Bytes;
use elbowroom_ir::check::check;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::order::Order;
use elbowroom_ir::planning::Freedom;
use elbowroom_ir::trace::Trace;

use support::{Outcome, SEED, convnet, convnet_of, drawn, fill, interpret, threads, trace, transformer};

const ITERATIONS: u64 = 3;

/// Chooses by lot.
struct Lot(u64);

impl Lot {
    fn draw(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

impl Decider for Lot {
    fn victim(
        &mut self,
        missing: Bytes,
        candidates: &[Candidate],
    ) -> Option<(elbowroom_ir::TensorId, Removal)> {
        assert!(!missing.is_zero() && !candidates.is_empty());
        let index = self.draw(candidates.len());
        let Candidate { tensor: value, may_evict, may_offload, .. } = candidates[index];
        let drop = may_evict && (!may_offload || self.draw(2) == 0);
        Some((value, if drop { Removal::Evict } else { Removal::Offload }))
    }
}

/// Gives up, or lies.
struct Useless(Option<(elbowroom_ir::TensorId, Removal)>);

impl Decider for Useless {
    fn victim(&mut self, _: Bytes, _: &[Candidate]) -> Option<(elbowroom_ir::TensorId, Removal)> {
        self.0
    }
}

fn order(trace: &Trace) -> Order {
    Order::new(trace, trace.ops().ids().collect()).unwrap()
}

/// Bytes of the op that needs most at once, and of all storages.
fn extremes(trace: &Trace) -> (u64, u64) {
    let round = |bytes: Bytes| bytes.align_up(Bytes(64)).get();
    let op = |op: &elbowroom_ir::trace::Op| -> u64 {
        let mut storages: Vec<_> =
            op.reads.iter().chain(&op.outputs).map(|&value| trace.storage(value)).collect();
        storages.sort_unstable();
        storages.dedup();
        storages.iter().map(|&storage| round(trace.storages()[storage].bytes)).sum::<u64>()
            + round(op.workspace)
    };
    let all = trace.storages().values().map(|storage| round(storage.bytes)).sum();
    (trace.ops().values().map(op).max().unwrap(), all)
}

fn machine(memory: u64) -> Machine {
    let (machine, _) = drawn(&trace(&convnet()), 1, |_| true);
    Machine { memory: Bytes(memory), align: Bytes(64), ..machine }
}

fn poisoned(seed: u64) -> SessionOptions {
    let chaos = ChaosOptions::default().seed(seed).poison(true);
    threads(1).chaos(chaos)
}

fn outcome(session: &Session, losses: Vec<u32>) -> Outcome {
    Outcome { losses, digests: session.digests().unwrap() }
}

fn improvised(
    session: &mut Session,
    iterations: std::ops::Range<u64>,
    run_dynamic: (&Order, Freedom, &mut dyn Decider),
    losses: &mut Vec<u32>,
) -> Result<Vec<DynamicReport>, EngineError> {
    let (order, freedom, decider) = run_dynamic;
    iterations
        .map(|iteration| {
            fill(session, iteration);
            let report = session
                .run_dynamic(iteration, DynamicExecution { order, freedom, decider: &mut *decider })?;
            losses.push(session.output(0)[0].to_bits());
            Ok(report)
        })
        .collect()
}

fn any_decider_agrees(graph: Graph) {
    let (trace, graph) = (trace(&graph), Arc::new(graph));
    let (order, oracle) = (order(&trace), interpret(&graph, ITERATIONS));
    let (least, all) = extremes(&trace);
    let (mut ran, mut stuck) = (0, 0);
    let mut sum = DynamicReport::default();
    let mut case = |u: &mut Unstructured<'_>| {
        let memory = u.int_in_range(least..=all)?;
        let mut options = poisoned(u.arbitrary()?);
        if u.ratio(1, 4)? {
            options.host = HostOptions::default().place(HostPlace::Folder(std::env::temp_dir()));
        }
        let freedom = Freedom { offload: u.ratio(3, 4)?, recompute: u.ratio(3, 4)?, ..Freedom::ALL };
        let mut session = Session::without_plan(graph.clone(), &machine(memory), options).unwrap();
        let mut losses = Vec::new();
        let seed = u.arbitrary()?;
        let mut lot = Lot(seed);
        let run_dynamic = DynamicExecution { order: &order, freedom, decider: &mut Lot(seed) };
        let rehearsed = session.dry_run(run_dynamic);
        match improvised(&mut session, 0..ITERATIONS, (&order, freedom, &mut lot), &mut losses) {
            Ok(reports) => {
                assert_eq!(outcome(&session, losses), oracle);
                let removals = |r: &DynamicReport| [r.evicted, r.offloaded, r.recomputed, r.compactions];
                assert_eq!(
                    removals(&rehearsed.unwrap()),
                    removals(&reports[0]),
                    "the dry run predicts the iteration"
                );
                for report in reports {
                    assert!(report.measured_peak <= Bytes(memory));
                    assert_eq!(report.ops.len(), graph.nodes.len() + report.recomputed);
                    assert!(freedom.offload || report.offloaded == 0);
                    assert!(freedom.recompute || report.recomputed == 0);
                    sum.evicted += report.evicted;
                    sum.offloaded += report.offloaded;
                    sum.recomputed += report.recomputed;
                    sum.compactions += report.compactions;
                }
                ran += 1;
            }
            // With all bytes there is always room; with both ways to leave it takes bad luck.
            Err(EngineError::OutOfMemory { .. }) if memory < all => stuck += 1,
            Err(error) => panic!("{error}"),
        }
        Ok(())
    };
    // A fixed list of cases: the same ones on every machine.
    for seed in 0..60u64 {
        arbtest(&mut case).seed(seed << 32 | 64).run();
    }
    assert!(ran > stuck && ran > 10, "{ran} ran, {stuck} got stuck");
    let counts = [sum.evicted, sum.offloaded, sum.recomputed, sum.compactions];
    assert!(counts.iter().all(|&count| count > 20), "{counts:?}");
}

#[test]
fn any_decider_on_a_residual_block_with_batch_norm_and_dropout_agrees_with_the_oracle() {
    any_decider_agrees(convnet());
}

#[test]
fn any_decider_on_a_transformer_with_dropout_agrees_with_the_oracle() {
    any_decider_agrees(transformer());
}

/// The largest op alone decides how little is enough: everything else can wait on the host.
#[test]
fn what_one_op_needs_at_once_is_enough() {
    for graph in [convnet(), transformer()] {
        let (trace, graph) = (trace(&graph), Arc::new(graph));
        let (order, (least, _)) = (order(&trace), extremes(&trace));
        let freedom = Freedom { offload: true, recompute: false, ..Freedom::ALL };
        let mut session = Session::without_plan(graph.clone(), &machine(least), poisoned(1)).unwrap();
        let mut losses = Vec::new();
        improvised(&mut session, 0..ITERATIONS, (&order, freedom, &mut Lot(3)), &mut losses).unwrap();
        assert_eq!(outcome(&session, losses), interpret(&graph, ITERATIONS));
    }
}

#[test]
fn plans_and_iterations_without_one_follow_each_other_and_moving_between_them_loses_nothing() {
    let mut moved = 0;
    for (number, graph) in [(5, convnet()), (6, transformer()), (7, convnet()), (8, transformer())] {
        let (trace, graph) = (trace(&graph), Arc::new(graph));
        let order = order(&trace);
        let (mut machine, first) = drawn(&trace, number, |_| true);
        let (other, second) = drawn(&trace, number + 50, |plan| {
            plan.schedule.boundary.iter().any(|at_boundary| at_boundary.host)
        });
        machine.memory = machine.memory.max(other.memory).max(Bytes(extremes(&trace).0));
        // The least that kernels need: both plans keep to it.
        machine.align = Bytes(4);
        machine.host_memory = machine.host_memory.max(other.host_memory);
        let prove = |plan| check(trace.clone(), machine.clone(), plan);
        let [first, second] =
            [first, second].map(|plan| Arc::new(prove(plan).expect("more of everything is there")));
        let mut session = Session::without_plan(graph.clone(), &machine, poisoned(number)).unwrap();
        let mut losses = Vec::new();
        for round in 0..2 {
            let start = 4 * round;
            let run_dynamic = (&order, Freedom::ALL, &mut Lot(round) as &mut dyn Decider);
            improvised(&mut session, start..start + 1, run_dynamic, &mut losses).unwrap();
            for (iteration, plan) in [(start + 1, &first), (start + 2, &second), (start + 3, &first)] {
                moved += session.set_plan(&graph, plan).unwrap().get();
                assert_eq!(session.set_plan(&graph, plan).unwrap(), Bytes::ZERO);
                fill(&mut session, iteration);
                let report = session.run_iteration(iteration).unwrap();
                assert_eq!(report.measured_peak, plan.placement().height);
                assert_eq!(session.first_overwritten(), None);
                losses.push(session.output(0)[0].to_bits());
            }
        }
        assert_eq!(outcome(&session, losses), interpret(&graph, 8));
    }
    assert!(moved > 0, "no two plans were compared");
}

/// The last batch of an epoch is smaller; the parameters go on.
#[test]
fn another_graph_with_the_same_parameters_goes_on_where_the_first_one_was() {
    let graphs = [convnet_of(4, 8), convnet_of(3, 8)].map(Arc::new);
    let traces = [0, 1].map(|i: usize| trace(&graphs[i]));
    let orders = [0, 1].map(|i: usize| order(&traces[i]));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let mut oracles = [0, 1].map(|i: usize| Interpreter::new(&graphs[i], SEED));
    let (least, all) = extremes(&traces[0]);
    let memory = least.midpoint(all);
    let mut session = Session::without_plan(graphs[0].clone(), &machine(memory), poisoned(4)).unwrap();
    let (mut losses, mut expected) = (Vec::new(), Vec::new());
    // Without dropout's iteration number in step with the session's, masks would differ: every oracle runs every iteration.
    for (iteration, which) in [0, 0, 1, 0, 1].into_iter().enumerate() {
        let iteration = iteration as u64;
        session.set_graph(&graphs[which]).unwrap();
        let run_dynamic = (&orders[which], Freedom::ALL, &mut Lot(iteration) as &mut dyn Decider);
        improvised(&mut session, iteration..iteration + 1, run_dynamic, &mut losses).unwrap();
        let before: Vec<Vec<f32>> =
            (0..graphs[0].persistent.len()).map(|p| oracles[0].persistent(p).to_vec()).collect();
        let mut after = Vec::new();
        for (index, oracle) in oracles.iter_mut().enumerate() {
            for (position, value) in before.iter().enumerate() {
                oracle.persistent_mut(position).copy_from_slice(value);
            }
            let inputs: Vec<Vec<u8>> = (0..graphs[index].inputs.len())
                .map(|slot| {
                    let input = &graphs[index].inputs[slot];
                    let mut bytes = vec![0; graphs[index].tensors[input.tensor].bytes().get() as usize];
                    support::batch(input.content, slot, iteration, &mut bytes);
                    bytes
                })
                .collect();
            let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
            let outputs = oracle.run(&pool, &inputs).unwrap();
            if index == which {
                expected.push(u32::from_ne_bytes(outputs[0][..4].try_into().unwrap()));
                after = (0..before.len()).map(|p| oracle.persistent(p).to_vec()).collect();
            }
        }
        for (position, value) in after.iter().enumerate() {
            oracles[0].persistent_mut(position).copy_from_slice(value);
        }
    }
    assert_eq!(losses, expected);
    for position in 0..graphs[0].persistent.len() {
        let mut bytes = vec![0; session.persistent_bytes(position)];
        session.read_persistent(position, &mut bytes).unwrap();
        let expected: Vec<u8> =
            oracles[0].persistent(position).iter().flat_map(|v| v.to_ne_bytes()).collect();
        assert_eq!(bytes, expected, "{}", graphs[0].persistent[position].name);
    }
    let stranger = Arc::new(transformer());
    assert!(matches!(session.set_graph(&stranger), Err(EngineError::ParameterMismatch { .. })));
}

#[test]
fn deciders_that_give_up_or_lie_end_the_session_with_a_reason() {
    let graph = Arc::new(convnet());
    let trace = trace(&graph);
    let order = order(&trace);
    let (least, all) = extremes(&trace);
    let open = || Session::without_plan(graph.clone(), &machine(least.midpoint(all)), poisoned(1)).unwrap();
    let run = |session: &mut Session, decider: &mut dyn Decider| {
        session
            .run_dynamic(0, DynamicExecution { order: &order, freedom: Freedom::ALL, decider })
            .unwrap_err()
    };
    let mut session = open();
    assert!(matches!(run(&mut session, &mut Useless(None)), EngineError::OutOfMemory { .. }));
    assert!(matches!(run(&mut session, &mut Lot(1)), EngineError::Broken));
    // A weight's new value does not exist yet, let alone can it leave.
    let absent = graph.persistent[0].end;
    let error = run(&mut open(), &mut Useless(Some((absent, Removal::Offload))));
    assert!(matches!(error, EngineError::IllegalVictim { value } if value == absent), "{error}");
    assert!(matches!(open().run_iteration(0), Err(EngineError::NoPlan)));
    let foreign = support::trace(&transformer());
    let foreign = Order::new(&foreign, foreign.ops().ids().collect()).unwrap();
    let run_dynamic = DynamicExecution { order: &foreign, freedom: Freedom::ALL, decider: &mut Lot(1) };
    assert!(matches!(open().run_dynamic(0, run_dynamic), Err(EngineError::ForeignOrder(_))));
}

/// The events of a decider match the execution: a decider can keep its own account from them.
#[test]
fn events_tell_what_is_there() {
    struct Books(Lot, std::collections::HashSet<elbowroom_ir::TensorId>);
    impl Decider for Books {
        fn note(&mut self, event: Event) {
            match event {
                Event::OpRan { .. } => {}
                Event::Available(value) => assert!(self.1.insert(value), "{value} was there"),
                Event::Removed(value, _) | Event::Unused(value) => {
                    assert!(self.1.remove(&value), "{value} was gone")
                }
            }
        }
        fn victim(&mut self, missing: Bytes, of: &[Candidate]) -> Option<(elbowroom_ir::TensorId, Removal)> {
            assert!(of.iter().all(|candidate| self.1.contains(&candidate.tensor)));
            self.0.victim(missing, of)
        }
    }
    let graph = Arc::new(convnet());
    let trace = trace(&graph);
    let (order, (least, all)) = (order(&trace), extremes(&trace));
    let memory = least.midpoint(all).midpoint(least);
    let mut session = Session::without_plan(graph.clone(), &machine(memory), threads(2)).unwrap();
    let mut books = Books(Lot(9), Default::default());
    let run_dynamic = DynamicExecution { order: &order, freedom: Freedom::ALL, decider: &mut books };
    fill(&mut session, 0);
    session.run_dynamic(0, run_dynamic).unwrap();
    assert!(
        graph
            .persistent
            .iter()
            .all(|parameter| !books.1.contains(&parameter.begin) || parameter.begin == parameter.end)
    );
    assert!(books.1.iter().all(|value| graph.persistent.iter().any(|parameter| parameter.end == *value)));
}

#[test]
fn a_machine_whose_alignment_kernels_cannot_use_is_refused() {
    for align in [0, 1, 2, 6] {
        let machine = Machine { align: Bytes(align), ..machine(1 << 20) };
        let outcome = Session::without_plan(Arc::new(convnet()), &machine, threads(1));
        let refused = matches!(outcome, Err(EngineError::Alignment { align: found, .. }) if found == align);
        assert!(refused, "{align}");
    }
}
