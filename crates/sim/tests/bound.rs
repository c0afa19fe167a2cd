//! The lower bound of the iteration time against the true optimum of small graphs, where nothing may be offloaded.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use arbitrary::Unstructured;
use arbtest::arbtest;
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{CostSource, Costs, Freedom, Request};
use elbowroom_ir::trace::{Again, Op, Phase, Storage, Tensor, Trace, TraceData, Work};
use elbowroom_ir::{Bytes, Id, Nanos, OpId, TensorId};
use elbowroom_sim::bound::{lower_bound, thorough_bound};

/// Up to so many ops with one result each, which read up to three earlier results; every result but the last is read. Some of them may run once
/// only.
fn graph(u: &mut Unstructured<'_>, most: usize) -> arbitrary::Result<(Trace, Costs)> {
    let ops = u.int_in_range(4..=most)?;
    let mut data = TraceData::default();
    let mut nanos = Vec::new();
    for at in 0..ops {
        let mut reads: Vec<usize> = Vec::new();
        for _ in 0..u.int_in_range(0..=3)? {
            if at > 0 {
                reads.push(u.int_in_range(0..=at - 1)?);
            }
        }
        if at + 1 == ops {
            let read =
                |value: &usize| data.ops.values().any(|op: &Op| op.reads.contains(&TensorId::new(*value)));
            reads.extend((0..at).filter(|value| !read(value)));
        }
        reads.sort_unstable();
        reads.dedup();
        let storage = data.storages.push(Storage { bytes: Bytes(u.int_in_range(1..=6)?) });
        let output = data.tensors.push(Tensor { name: format!("y{at}"), storage });
        data.ops.push(Op {
            name: format!("op{at}"),
            kind: String::new(),
            phase: Phase::Forward,
            again: if u.ratio(1, 8)? { Again::Never } else { Again::Pure },
            reads: reads.into_iter().map(TensorId::new).collect(),
            outputs: vec![output],
            mutates: Vec::new(),
            may_reuse: Vec::new(),
            after: Vec::new(),
            workspace: Bytes(u.int_in_range(0..=1)?),
            work: Work::default(),
            line: String::new(),
        });
        nanos.push(Nanos(u.int_in_range(0..=9)?));
    }
    let costs = Costs { nanos: nanos.into_iter().collect(), source: CostSource::Roofline };
    Ok((Trace::new(data).unwrap(), costs))
}

/// The shortest time in which all ops run, some of them more than once, with at most `limit` bytes on the device: Dijkstra's method over pairs of
/// the set of ops that have run and the set of results that are there. `None` if there is no way.
fn optimum(trace: &Trace, costs: &Costs, limit: u64, reorder: bool) -> Option<u64> {
    let ops: Vec<&Op> = trace.ops().values().collect();
    let has = |set: u32, at: usize| set >> at & 1 == 1;
    let bytes = |set: u32| -> u64 {
        let there = (0..ops.len()).filter(|&at| has(set, at));
        there.map(|at| trace.bytes(TensorId::new(at)).get()).sum()
    };
    let mut best: HashMap<(u32, u32), u64> = HashMap::new();
    let mut queue = BinaryHeap::from([Reverse((0, 0u32, 0u32))]);
    while let Some(Reverse((time, done, set))) = queue.pop() {
        if done.count_ones() as usize == ops.len() {
            return Some(time);
        }
        if best.get(&(done, set)).is_some_and(|&known| known < time) {
            continue;
        }
        let mut reach = |time: u64, done: u32, set: u32| {
            let known = best.entry((done, set)).or_insert(u64::MAX);
            if time < *known {
                *known = time;
                queue.push(Reverse((time, done, set)));
            }
        };
        (0..ops.len()).filter(|&at| has(set, at)).for_each(|at| reach(time, done, set & !(1 << at)));
        for (at, op) in ops.iter().enumerate() {
            let ready = op.reads.iter().all(|value| has(set, value.index()));
            let turn = has(done, at) || reorder || at == done.count_ones() as usize;
            let useless = has(set, at) || has(done, at) && op.again == Again::Never;
            let with = set | 1 << at;
            if ready && turn && !useless && bytes(with) + op.workspace.get() <= limit {
                reach(time + costs.nanos[OpId::new(at)].get(), done | 1 << at, with);
            }
        }
    }
    None
}

fn machine(limit: u64) -> Machine {
    Machine {
        name: "none".to_owned(),
        memory: Bytes(limit),
        align: Bytes(1),
        host_memory: Bytes::ZERO,
        to_host: Channel::with_rate(1),
        to_device: Channel::with_rate(1),
        shared_link: false,
        flops_per_second: 1,
        half_flops_per_second: None,
        bytes_per_second: 1,
        launch: Nanos(0),
    }
}

/// Recomputation alone within the machine's memory.
fn request<'a>(trace: &'a Trace, costs: &'a Costs, machine: &'a Machine, reorder: bool) -> Request<'a> {
    let freedom = Freedom { offload: false, recompute: true, reorder };
    Request { trace, costs, machine, live_limit: machine.memory, freedom, packer: None, pins: None }
}

/// At every limit of so many graphs: how often the optimum is above the sum of times, and how often the bound equals it then.
fn compare(graphs: u64, most: usize, reorder: bool) -> (usize, usize) {
    let (mut above, mut equal) = (0, 0);
    for seed in 0..graphs {
        arbtest(|u| {
            let (trace, costs) = graph(u, most)?;
            let total = costs.total().get();
            let bytes: u64 = trace.tensors().ids().map(|value| trace.bytes(value).get()).sum();
            for limit in 1..=bytes {
                let machine = machine(limit);
                let request = request(&trace, &costs, &machine, reorder);
                let Some(least) = optimum(&trace, &costs, limit, reorder) else { continue };
                let bound = lower_bound(&request).get();
                assert!(bound <= least, "{bound} of {least} at {limit}: {trace:?} {costs:?}");
                let thorough = |time| thorough_bound(&request, time).get();
                assert!((bound..=least).contains(&thorough(None)), "{bound} to {least} at {limit}");
                assert_eq!(thorough(Some(Duration::ZERO)), bound, "no time for more");
                above += usize::from(least > total);
                equal += usize::from(least > total && bound == least);
            }
            Ok(())
        })
        .seed(seed << 32 | 512)
        .run();
    }
    (above, equal)
}

#[test]
fn the_bound_is_never_above_the_optimum_and_often_equal() {
    let (above, equal) = compare(3_000, 9, false);
    assert!(above > 1_000 && 3 * equal > 2 * above, "{equal} of {above}");
}

#[test]
fn neither_is_it_in_any_order() {
    let (above, equal) = compare(1_500, 7, true);
    assert!(above > 100 && 3 * equal > above, "{equal} of {above}");
}

/// The same bytes and times in smaller units: `1 << BYTES` and `1 << NANOS` as large. Products of both need more than 64 bits then.
#[test]
fn numbers_that_need_more_bits_have_the_same_bound() {
    const BYTES: u32 = 24;
    const NANOS: u32 = 33;
    let mut above = 0;
    for seed in 0..1_000 {
        arbtest(|u| {
            let (trace, costs) = graph(u, 9)?;
            let mut large = trace.data().clone();
            let in_units = |bytes: Bytes| Bytes(bytes.get() << BYTES);
            large.storages =
                large.storages.values().map(|storage| Storage { bytes: in_units(storage.bytes) }).collect();
            large.ops =
                large.ops.values().map(|op| Op { workspace: in_units(op.workspace), ..op.clone() }).collect();
            let large = Trace::new(large).unwrap();
            let times = costs.nanos.values().map(|time| Nanos(time.get() << NANOS)).collect();
            let long = Costs { nanos: times, ..costs.clone() };
            let bytes: u64 = trace.tensors().ids().map(|value| trace.bytes(value).get()).sum();
            for limit in 1..=bytes {
                let bound = |trace: &Trace, costs: &Costs, limit: u64| {
                    lower_bound(&request(trace, costs, &machine(limit), false)).get()
                };
                let (small, large) = (bound(&trace, &costs, limit), bound(&large, &long, limit << BYTES));
                assert_eq!(small, large.div_ceil(1 << NANOS), "{large} at {limit}: {trace:?} {costs:?}");
                above += u64::from(small > costs.total().get());
            }
            Ok(())
        })
        .seed(seed << 32 | 512)
        .run();
    }
    assert!(above > 1_000, "{above}");
}
