//! `dtr`: dynamic tensor rematerialization (M. Kirisame et al., 2021) as an offline baseline. The iteration is gone through op by op;
//! whenever bytes are missing, the value with the least h is evicted; whenever an evicted value is read, its op runs again, after what
//! it reads itself.
//!
//! ```text
//! h(v) = (time of v's op + time of the evicted neighbourhood of v) / (bytes of v × time since v was touched last)
//! ```
//!
//! The evicted neighbourhood e* is all that would have to run again with v, or could run again only after v: the evicted values that
//! hang together with v through evicted values. It is kept as classes that are united when a value between them is evicted (union-find);
//! a value that is made again takes its own time out of its class and leaves what it had connected connected, as in the authors'
//! simulator. Values that nobody reads later are evicted at once. If such a value has to be made again on the way to another, it can
//! stay until the rule evicts it, or go as soon as it has been used; each thrashes on some networks where the other does not, so both
//! are tried and the faster is taken.
//!
//! What comes out is a sequence; its policy drops values as soon as the sequence allows, so that its load is at most that of this rule.

use elbowroom_ir::planning::{Request, Scheduler};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Id, Nanos, OpId, TensorId};

use crate::policy::Policy;
use crate::recompute::repeats::{self, base, fixed_ops, time_again};
use crate::recompute::{answer, load};

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Dtr;

impl Scheduler for Dtr {
    fn name(&self) -> &'static str {
        "dtr"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        let keep = Policy::prompt(request.trace);
        let fits = load(request, &keep).is_some_and(|load| load <= request.load_limit);
        if fits || !request.freedom.recompute {
            return answer(request, Some(&keep), 1);
        }
        let mut evaluations = 1;
        let mut best: Option<(Nanos, Vec<OpId>)> = None;
        for passing in [false, true] {
            let Some((sequence, evictions)) = sequence(request, passing) else { continue };
            evaluations += evictions;
            let time = time_again(&request.costs.nanos, &sequence);
            if best.as_ref().is_none_or(|&(least, _)| time < least) {
                best = Some((time, sequence));
            }
        }
        let policy = best.map(|(_, sequence)| repeats::policy(request.trace, sequence));
        answer(request, policy.as_ref(), evaluations)
    }
}

/// The ops in the order in which they run under the rule, values made again only on the way to others `passing` or staying until they
/// are evicted, with the number of evictions; `None` if bytes are missing and nothing is left to evict, or if more than a hundred times
/// the iteration's ops would run.
pub fn sequence(request: &Request<'_>, passing: bool) -> Option<(Vec<OpId>, u64)> {
    let mut run = Run::new(request, passing);
    let order = std::mem::take(&mut run.order);
    let most = order.len() * 100;
    for (place, &op) in order.iter().enumerate() {
        run.place = place as u32;
        run.perform(op, most)?;
        let row = &request.trace.ops()[op];
        for &value in row.reads.iter().chain(&row.outputs) {
            if run.last_use[value.index()] <= run.place && run.resident[value.index()] {
                run.evict(value);
            }
        }
    }
    Some((run.sequence, run.evictions))
}

struct Run<'a> {
    trace: &'a Trace,
    limit: u64,
    align: Bytes,
    order: Vec<OpId>,
    sequence: Vec<OpId>,
    evictions: u64,
    /// The place of the op under way.
    place: u32,
    /// Time spent so far.
    now: u64,
    used: u64,
    nanos: Vec<u64>,
    bytes: Vec<u64>,
    last_use: Vec<u32>,
    /// Values that may be evicted before their last use.
    evictable: Vec<bool>,
    resident: Vec<bool>,
    evicted: Vec<bool>,
    locked: Vec<u32>,
    touched: Vec<u64>,
    /// Resident values that may be evicted, in no order, and where each stands.
    candidates: Vec<TensorId>,
    standing: Vec<usize>,
    /// What each value's op reads and what is made of it.
    neighbours: Vec<Vec<TensorId>>,
    classes: Classes,
    /// Whether values that nobody reads later, but that had to be made again, go as soon as they have been used.
    passing: bool,
}

impl<'a> Run<'a> {
    fn new(request: &'a Request<'_>, passing: bool) -> Self {
        let trace = request.trace;
        let (order, _) = base(trace);
        let values = trace.tensors().len();
        let mut last_use = vec![0u32; values];
        let mut overwritten = vec![u32::MAX; values];
        for (place, &op) in (0u32..).zip(&order) {
            let op = &trace.ops()[op];
            op.reads.iter().chain(&op.outputs).for_each(|value| last_use[value.index()] = place);
            op.mutates.iter().for_each(|mutation| overwritten[mutation.old.index()] = place);
        }
        for pair in trace.persistent() {
            last_use[pair.end.index()] = u32::MAX;
            if overwritten[pair.begin.index()] == u32::MAX {
                last_use[pair.begin.index()] = u32::MAX;
            }
        }
        // Until when each value can be had: made again, as long as all that takes can be had, or else while it is there.
        let fixed = fixed_ops(trace);
        let mut until: Vec<u32> = (0..values).map(|value| overwritten[value].min(last_use[value])).collect();
        for pair in trace.persistent() {
            until[pair.begin.index()] = overwritten[pair.begin.index()];
        }
        let mut evictable = vec![false; values];
        for &op in &order {
            let row = &trace.ops()[op];
            let inputs = row.reads.iter().map(|read| until[read.index()]).min().unwrap_or(u32::MAX);
            for &output in row.outputs.iter().filter(|_| !fixed[op.index()]) {
                let value = output.index();
                if overwritten[value] == u32::MAX && inputs >= last_use[value] {
                    evictable[value] = true;
                    until[value] = inputs;
                }
            }
        }
        let bytes: Vec<u64> =
            trace.tensors().ids().map(|v| trace.bytes(v).align_up(request.machine.align).get()).collect();
        let mut neighbours = vec![Vec::new(); values];
        for op in trace.ops().values() {
            for &output in op.outputs.iter().filter(|output| evictable[output.index()]) {
                for &read in op.reads.iter().filter(|read| evictable[read.index()]) {
                    neighbours[output.index()].push(read);
                    neighbours[read.index()].push(output);
                }
            }
        }
        let mut run = Self {
            trace,
            limit: request.load_limit.get(),
            align: request.machine.align,
            sequence: Vec::with_capacity(order.len()),
            order,
            evictions: 0,
            place: 0,
            now: 0,
            used: 0,
            nanos: trace.ops().ids().map(|op| request.costs.nanos.get(op).map_or(0, |n| n.get())).collect(),
            bytes,
            last_use,
            evictable,
            resident: vec![false; values],
            evicted: vec![false; values],
            locked: vec![0; values],
            touched: vec![0; values],
            candidates: Vec::new(),
            standing: vec![usize::MAX; values],
            neighbours,
            classes: Classes::of(values),
            passing,
        };
        for pair in trace.persistent() {
            run.arrive(pair.begin);
            run.used += run.bytes[pair.begin.index()];
        }
        run
    }

    fn arrive(&mut self, value: TensorId) {
        let index = value.index();
        self.resident[index] = true;
        if self.evictable[index] {
            self.standing[index] = self.candidates.len();
            self.candidates.push(value);
        }
        if std::mem::replace(&mut self.evicted[index], false) {
            self.classes.leave(index, self.cost(value));
        }
    }

    /// The value is no longer there; its bytes are not given back.
    fn depart(&mut self, value: TensorId) {
        let index = value.index();
        self.resident[index] = false;
        if !self.evictable[index] {
            return;
        }
        let standing = std::mem::replace(&mut self.standing[index], usize::MAX);
        self.candidates.swap_remove(standing);
        if let Some(moved) = self.candidates.get(standing) {
            self.standing[moved.index()] = standing;
        }
        self.evicted[index] = true;
        self.classes.enter(index, self.cost(value));
        for neighbour in self.neighbours[index].iter().filter(|n| self.evicted[n.index()]) {
            self.classes.unite(index, neighbour.index());
        }
    }

    fn evict(&mut self, value: TensorId) {
        self.depart(value);
        self.used -= self.bytes[value.index()];
    }

    fn cost(&self, value: TensorId) -> u64 {
        self.trace.producer(value).map_or(0, |op| self.nanos[op.index()])
    }

    /// h.
    fn worth(&mut self, value: TensorId) -> f64 {
        let mut seen: Vec<usize> = Vec::new();
        let mut cost = self.cost(value);
        for neighbour in &self.neighbours[value.index()] {
            if self.evicted[neighbour.index()] {
                let class = self.classes.find(neighbour.index());
                if !seen.contains(&class) {
                    seen.push(class);
                    cost += self.classes.cost[class];
                }
            }
        }
        let stale = (self.now - self.touched[value.index()]).max(1);
        cost as f64 / (self.bytes[value.index()] as f64 * stale as f64)
    }

    /// Evicts until so many bytes are free.
    fn make_room(&mut self, bytes: u64) -> Option<()> {
        while self.used + bytes > self.limit {
            let free = |value: &TensorId| self.locked[value.index()] == 0;
            let candidates: Vec<TensorId> = self.candidates.iter().copied().filter(free).collect();
            let worths = candidates.into_iter().map(|value| (self.worth(value), value));
            let least = worths.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))?;
            self.evict(least.1);
            self.evictions += 1;
        }
        Some(())
    }

    /// Runs an op after making again what it reads, and so on.
    fn perform(&mut self, op: OpId, most: usize) -> Option<()> {
        let trace = self.trace;
        let mut todo = vec![(op, 0)];
        while let Some((op, next)) = todo.last_mut() {
            let row = &trace.ops()[*op];
            let Some(&read) = row.reads.get(*next) else {
                let op = *op;
                todo.pop();
                if self.sequence.len() >= most {
                    return None;
                }
                self.execute(op, todo.is_empty())?;
                continue;
            };
            if self.resident[read.index()] {
                self.locked[read.index()] += 1;
                *next += 1;
            } else {
                let producer = trace.producer(read)?;
                // An op under way cannot be waited for by itself: that would be a value that is needed to make it.
                if todo.iter().any(|&(other, _)| other == producer) {
                    return None;
                }
                todo.push((producer, 0));
            }
        }
        Some(())
    }

    fn execute(&mut self, op: OpId, first: bool) -> Option<()> {
        let trace = self.trace;
        let row = &trace.ops()[op];
        // Writing over a persistent value takes no bytes; other reuse is not counted, as in the original, which copies on write.
        let mut given: Vec<TensorId> = Vec::new();
        let mut taken: Vec<TensorId> = Vec::new();
        if first {
            for mutation in &row.mutates {
                given.push(mutation.old);
                taken.push(mutation.new);
            }
        }
        let new = |value: &&TensorId| !self.resident[value.index()] && !taken.contains(value);
        let outputs: u64 = row.outputs.iter().filter(new).map(|value| self.bytes[value.index()]).sum();
        let outputs_there: Vec<TensorId> =
            row.outputs.iter().copied().filter(|value| self.resident[value.index()]).collect();
        outputs_there.iter().for_each(|value| self.locked[value.index()] += 1);
        self.make_room(outputs + row.workspace.align_up(self.align).get())?;
        outputs_there.iter().for_each(|value| self.locked[value.index()] -= 1);
        self.used += outputs;
        self.sequence.push(op);
        self.now += self.nanos[op.index()];
        for &read in &row.reads {
            self.locked[read.index()] -= 1;
            self.touched[read.index()] = self.now;
        }
        given.into_iter().for_each(|value| self.depart(value));
        if self.passing && !first {
            for &read in &row.reads {
                let index = read.index();
                if self.resident[index] && self.locked[index] == 0 && self.last_use[index] < self.place {
                    self.evict(read);
                }
            }
        }
        for &value in &row.outputs {
            self.touched[value.index()] = self.now;
            if !self.resident[value.index()] {
                self.arrive(value);
            }
        }
        Some(())
    }
}

/// Classes of evicted values with the sum of their times. A value that leaves its class gets a new entry when it enters one again.
struct Classes {
    entry: Vec<usize>,
    parent: Vec<usize>,
    cost: Vec<u64>,
}

impl Classes {
    fn of(values: usize) -> Self {
        Self { entry: vec![0; values], parent: Vec::new(), cost: Vec::new() }
    }

    fn enter(&mut self, value: usize, cost: u64) {
        self.entry[value] = self.parent.len();
        self.parent.push(self.parent.len());
        self.cost.push(cost);
    }

    fn leave(&mut self, value: usize, cost: u64) {
        let class = self.find(value);
        self.cost[class] -= cost;
    }

    fn find(&mut self, value: usize) -> usize {
        let mut at = self.entry[value];
        while self.parent[at] != at {
            self.parent[at] = self.parent[self.parent[at]];
            at = self.parent[at];
        }
        at
    }

    fn unite(&mut self, one: usize, other: usize) {
        let (one, other) = (self.find(one), self.find(other));
        if one != other {
            let (root, leaf) = if self.cost[one] >= self.cost[other] { (one, other) } else { (other, one) };
            self.parent[leaf] = root;
            self.cost[root] += std::mem::take(&mut self.cost[leaf]);
        }
    }
}
