//! Plans of parts, derived from the plan of the whole.

use std::sync::Arc;

use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;
use elbowroom::engine;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::arbitrary::Case;
use elbowroom::ir::check::{CheckedPlan, Rule, check};
use elbowroom::ir::planning::Freedom;
use elbowroom::ir::schedule::Action;
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::ir::trace::{Mutation, Op, Persistent, Reuse, Storage, Tensor, Trace, TraceData};
use elbowroom::ir::{Bytes, OpId, StorageId, Table, TensorId};
use elbowroom::pipeline::{self, Method, Task, Underived, derived_plan};
use elbowroom::registry;

#[path = "../../ir/tests/symbolic/mod.rs"]
mod symbolic;

/// A trace without some of the ops of another. What an op that is left out would have written is one of the tensors that it would have read,
/// or is missing, together with all ops that read it.
struct Part<'a> {
    whole: &'a Trace,
    data: TraceData,
    /// The tensors of the part, by those of the whole.
    tensor: Table<TensorId, Option<TensorId>>,
    /// The ops of the part, by those of the whole.
    op: Table<OpId, Option<OpId>>,
    smaller: bool,
}

impl<'a> Part<'a> {
    /// Draws a part; `None` if what is left is no trace.
    fn draw(u: &mut Unstructured<'_>, whole: &'a Trace) -> Result<Option<Trace>> {
        let mut part = Self {
            whole,
            data: TraceData { name: "part".to_owned(), ..TraceData::default() },
            tensor: Table::filled(whole.tensors().len(), None),
            op: Table::filled(whole.ops().len(), None),
            smaller: u.ratio(1, 4)?,
        };
        for pair in whole.persistent() {
            let bytes = whole.bytes(pair.begin);
            let storage = part.data.storages.push(Storage { bytes });
            part.add(pair.begin, storage);
        }
        for (id, op) in whole.ops().iter() {
            let reads: Option<Vec<TensorId>> = op.reads.iter().map(|&read| part.tensor[read]).collect();
            match reads {
                Some(reads) if !u.ratio(1, 4)? => part.keep(id, op, &reads),
                _ => part.leave_out(u, op)?,
            }
        }
        for pair in whole.persistent() {
            let begin = part.tensor[pair.begin];
            let Some((begin, end)) = begin.zip(part.tensor[pair.end].or(begin)) else { return Ok(None) };
            part.data.persistent.push(Persistent { begin, end });
        }
        Ok(Trace::new(part.data).ok())
    }

    fn add(&mut self, tensor: TensorId, storage: StorageId) -> TensorId {
        let name = self.whole.tensors()[tensor].name.clone();
        let added = self.data.tensors.push(Tensor { name, storage });
        self.tensor[tensor] = Some(added);
        added
    }

    fn keep(&mut self, id: OpId, op: &Op, reads: &[TensorId]) {
        let mut mutates = Vec::new();
        let outputs = op.outputs.iter().map(|&output| {
            let storage = match op.overwrites(output).and_then(|old| self.tensor[old]) {
                Some(old) => {
                    mutates.push((old, output));
                    self.data.tensors[old].storage
                }
                None => {
                    let bytes = self.whole.bytes(output).get();
                    let bytes = Bytes(if self.smaller { bytes.div_ceil(2) } else { bytes });
                    self.data.storages.push(Storage { bytes })
                }
            };
            self.add(output, storage)
        });
        let outputs: Vec<TensorId> = outputs.collect();
        let size = |tensor: TensorId| self.data.storages[self.data.tensors[tensor].storage].bytes;
        let reuses = op.may_reuse.iter().filter_map(|reuse| {
            let (input, output) = self.tensor[reuse.input].zip(self.tensor[reuse.output])?;
            (size(input) >= size(output)).then_some(Reuse { input, output })
        });
        let may_reuse = reuses.collect();
        let mutates = mutates
            .into_iter()
            .filter_map(|(old, new)| Some(Mutation { old, new: self.tensor[new]? }))
            .collect();
        let after = op.after.iter().filter_map(|&other| self.op[other]).collect();
        let kept = Op { reads: reads.to_vec(), outputs, mutates, may_reuse, after, ..op.clone() };
        self.op[id] = Some(self.data.ops.push(kept));
    }

    fn leave_out(&mut self, u: &mut Unstructured<'_>, op: &Op) -> Result<()> {
        let known: Vec<TensorId> = op.reads.iter().filter_map(|&read| self.tensor[read]).collect();
        for &output in &op.outputs {
            self.tensor[output] = match op.overwrites(output) {
                Some(old) => self.tensor[old],
                None if known.is_empty() || u.ratio(1, 3)? => None,
                None => Some(*u.choose(&known)?),
            };
        }
        Ok(())
    }
}

#[test]
fn whatever_is_left_out_a_derived_plan_is_legal_smaller_and_reads_the_right_bytes() {
    let packer = registry::packer("auto").unwrap();
    let [mut parts, mut derived, mut refused, mut longer] = [0usize; 4];
    let mut case = |u: &mut Unstructured<'_>| {
        let Case { trace, machine, plan } = Case::arbitrary(u)?;
        let whole = check(trace.clone(), machine, plan).unwrap();
        for _ in 0..4 {
            let Some(part) = Part::draw(u, &trace)?.map(Arc::new) else { continue };
            parts += 1;
            let plan = match derived_plan(&whole, &part, packer, &Silent) {
                Ok(plan) => plan,
                // A copy that stands for two may be on the host for longer than there is room for it.
                Err(Underived::Illegal(illegal)) if illegal.first().rule == Rule::L8 => {
                    refused += 1;
                    continue;
                }
                Err(Underived::Illegal(illegal)) => panic!("{illegal}"),
                Err(_) => {
                    refused += 1;
                    continue;
                }
            };
            derived += 1;
            assert!(plan.placement().height <= whole.placement().height);
            let lasting = |plan: &CheckedPlan| pipeline::persistent_offsets(plan);
            assert_eq!(lasting(&plan), lasting(&whole), "persistent tensors stay where they are");
            for seed in 0..3 {
                symbolic::run(&part, whole.machine().memory, plan.plan(), seed).unwrap();
            }
            longer += usize::from(part.ops().len() < trace.ops().len());
        }
        Ok(())
    };
    for seed in 0..4_000u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
    assert!(
        longer > 2_000 && 10 * refused < parts,
        "{derived} of {parts} derived, {refused} refused, {longer}"
    );
}

fn task(graph: &elbowroom::graph::Graph, limit: Option<Bytes>) -> Task {
    let machine = elbowroom::sim::presets::machine("cpu").unwrap();
    let machine = limit.map_or(machine.clone(), |limit| machine.with_memory(limit));
    Task::estimate(graph, &machine, Freedom::ALL).unwrap()
}

#[test]
fn structures_of_stochastic_depth_follow_the_plan_of_the_largest() {
    let packer = registry::packer("auto").unwrap();
    // Slow ops leave time for many copies, so that persistent tensors leave and return between the others.
    for (network, batch, percent, slower, rate) in [
        ("stochastic-resnet20", 2, 60, 1, 4_000_000_000),
        ("stochastic-resnet20", 8, 40, 1, 4_000_000_000),
        ("stochastic-resnet50", 2, 50, 1, 4_000_000_000),
        ("stochastic-resnet32", 1, 45, 100, 1_000_000_000),
    ] {
        let options = Options::new(batch).image(16);
        let build = |options: &Options| zoo::build(network, options).unwrap();
        let largest = build(&options);
        let peak = pipeline::unconstrained(&task(&largest, None), packer, &Silent).unwrap().height();
        let mut limited = task(&largest, Some(Bytes(peak.get() / 100 * percent)));
        for op in limited.trace.ops().ids() {
            limited.costs.nanos[op].0 *= slower;
        }
        limited.machine.to_host.rate = rate;
        limited.machine.to_device.rate = rate;
        let method = Method::new(registry::planner("auto").unwrap(), packer, Budget::evaluations(60));
        let whole = pipeline::plan(&limited, &method.at_once(), &Silent).unwrap().plan;
        let copies = |plan: &CheckedPlan| {
            let steps = plan.schedule().steps.values();
            steps
                .filter(|step| matches!(step.action, Action::Offload { .. } | Action::Prefetch { .. }))
                .count()
        };
        for draw in 0..60 {
            let graph = build(&options.clone().draw(draw));
            let trace = Arc::new(engine::trace(&graph).unwrap());
            let plan = derived_plan(&whole, &trace, packer, &Silent)
                .unwrap_or_else(|why| panic!("{network} at {percent} %, draw {draw}: {why}"));
            assert!(plan.placement().height <= whole.placement().height);
            assert!(copies(&plan) <= copies(&whole));
        }
        // The whole is a part of itself.
        let same = derived_plan(&whole, whole.trace(), packer, &Silent).unwrap();
        assert_eq!(same.placement().height, whole.placement().height);
        assert_eq!(copies(&same), copies(&whole));
    }
}

#[test]
fn what_is_no_part_is_refused_by_name() {
    let packer = registry::packer("auto").unwrap();
    let build = |network: &str| zoo::build(network, &Options::new(2).image(8)).unwrap();
    let whole = pipeline::unconstrained(&task(&build("resnet20"), None), packer, &Silent).unwrap().plan;
    let other = Arc::new(engine::trace(&build("resnet32")).unwrap());
    let error = derived_plan(&whole, &other, packer, &Silent).unwrap_err().to_string();
    assert!(error.contains("the planned structure has no op layer1.3.conv1"), "{error}");
    let wide = zoo::build("resnet20", &Options::new(2).image(8).width(32)).unwrap();
    let wide = Arc::new(engine::trace(&wide).unwrap());
    let error = derived_plan(&whole, &wide, packer, &Silent).unwrap_err().to_string();
    assert!(error.contains("other persistent tensors"), "{error}");
}
