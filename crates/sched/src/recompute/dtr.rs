//! `dtr`: dynamic tensor rematerialization (M. Kirisame et al., 2021) as an offline baseline. Visits the iteration op by op. When memory is
//! short, the tensor with the smallest h is evicted; when an evicted tensor is read, its op is recomputed, after the ops of its inputs.
//!
//! [`worth`](super::worth) defines h. Tensors that no later op reads are evicted at once. If such a tensor must be recomputed for another one,
//! it can stay until the rule evicts it, or be evicted as soon as it has been used; each thrashes on some networks where the other does not,
//! so both are tried and the faster is kept.
//!
//! The result is a sequence; its policy evicts tensors as early as the sequence permits, so that its live memory is at most that of the rule.

use elbowroom_ir::order::Order;
use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, Silent};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Id, Nanos, OpId, Table, TensorId};

use crate::policy::Policy;
use crate::recompute::repeats::{self, base, recompute_time};
use crate::recompute::worth::Worth;
use crate::recompute::{answer, interrupted, least_bytes};

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Dtr {
    /// The longest sequence before it gives up, as a multiple of the iteration's number of ops.
    times: usize,
}

impl Dtr {
    /// Gives up late: at some limits it is the only rule that finds anything.
    pub const DEFAULT: Self = Self { times: 100 };
    /// Gives up where the schedule would be too slow to start from: to find one there takes most of a second for an Inception-v3.
    pub const BRIEF: Self = Self { times: 4 };
}

impl Planner for Dtr {
    fn name(&self) -> &'static str {
        "dtr"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let keep = Policy::prompt(request.trace);
        let fits = least_bytes(request, &keep).is_some_and(|live_bytes| live_bytes <= request.live_limit);
        if fits || !request.freedom.recompute {
            return answer(request, Some(&keep), 1);
        }
        let mut evaluations = 1;
        let mut best: Option<(Nanos, Vec<OpId>)> = None;
        for passing in [false, true] {
            let Some((sequence, evictions)) = sequence_until(request, passing, self.times, observer) else {
                continue;
            };
            evaluations += evictions;
            let time = recompute_time(&request.costs.nanos, &sequence);
            if best.as_ref().is_none_or(|&(least, _)| time < least) {
                best = Some((time, sequence));
            }
        }
        let policy = best.map(|(_, sequence)| repeats::policy(request.trace, sequence));
        match observer.interrupted() {
            true => interrupted(request, policy.as_ref(), evaluations),
            false => answer(request, policy.as_ref(), evaluations),
        }
    }
}

/// The ops in the order in which they run under the rule, tensors recomputed only on the way to others `passing` or staying until they
/// are evicted, with the number of evictions; `None` if bytes are missing and nothing is left to evict, or if more than a hundred times
/// the iteration's ops would run.
pub fn sequence(request: &Request<'_>, passing: bool) -> Option<(Vec<OpId>, u64)> {
    sequence_until(request, passing, Dtr::DEFAULT.times, &Silent)
}

/// The same with another limit than a hundred times; `None` also if the observer interrupts.
fn sequence_until(
    request: &Request<'_>,
    passing: bool,
    times: usize,
    observer: &dyn Observer,
) -> Option<(Vec<OpId>, u64)> {
    let order = Order::new(request.trace, base(request.trace).0).ok()?;
    let mut run = DtrRun::new(request, &order, passing);
    let most = order.ops().len() * times;
    for (place, &op) in order.ops().iter().enumerate() {
        run.place = place as u32;
        run.perform(op, most, observer)?;
        let row = &request.trace.ops()[op];
        for &value in row.reads.iter().chain(&row.outputs) {
            if order.last_use(value) <= run.place && run.resident[value.index()] {
                run.evict(value);
            }
        }
    }
    Some((run.sequence, run.evictions))
}

struct DtrRun<'a> {
    trace: &'a Trace,
    order: &'a Order,
    nanos: &'a Table<OpId, Nanos>,
    limit: u64,
    align: Bytes,
    sequence: Vec<OpId>,
    evictions: u64,
    /// The place of the op under way.
    place: u32,
    used: u64,
    bytes: Vec<u64>,
    resident: Vec<bool>,
    locked: Vec<u32>,
    /// Resident tensors that may be evicted before their last use, in no order, and where each stands.
    candidates: Vec<TensorId>,
    standing: Vec<usize>,
    worth: Worth,
    /// Whether tensors that no op reads later, but that had to be recomputed, go as soon as they have been used.
    passing: bool,
}

impl<'a> DtrRun<'a> {
    fn new(request: &'a Request<'_>, order: &'a Order, passing: bool) -> Self {
        let (trace, align) = (request.trace, request.machine.align);
        let values = trace.tensors().len();
        let mut run = Self {
            trace,
            order,
            nanos: &request.costs.nanos,
            limit: request.live_limit.get(),
            align,
            sequence: Vec::with_capacity(order.ops().len()),
            evictions: 0,
            place: 0,
            used: 0,
            bytes: trace.tensors().ids().map(|v| trace.bytes(v).align_up(align).get()).collect(),
            resident: vec![false; values],
            locked: vec![0; values],
            candidates: Vec::new(),
            standing: vec![usize::MAX; values],
            worth: Worth::new(trace, order, &request.costs.nanos, align),
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
        if self.order.can_recompute(value) {
            self.standing[index] = self.candidates.len();
            self.candidates.push(value);
        }
        self.worth.arrive(value);
    }

    /// The tensor is no longer there; its bytes are not given back.
    fn depart(&mut self, value: TensorId) {
        let index = value.index();
        self.resident[index] = false;
        if !self.order.can_recompute(value) {
            return;
        }
        let standing = std::mem::replace(&mut self.standing[index], usize::MAX);
        self.candidates.swap_remove(standing);
        if let Some(moved) = self.candidates.get(standing) {
            self.standing[moved.index()] = standing;
        }
        self.worth.depart(value);
    }

    fn evict(&mut self, value: TensorId) {
        self.depart(value);
        self.used -= self.bytes[value.index()];
    }

    /// Evicts until this many bytes are free.
    fn make_room(&mut self, bytes: u64) -> Option<()> {
        while self.used + bytes > self.limit {
            let Self { candidates, locked, worth, .. } = self;
            let free = candidates.iter().copied().filter(|value| locked[value.index()] == 0);
            let worths = free.map(|value| {
                let again = worth.restore_time(value);
                (worth.h(value, again), value)
            });
            let least = worths.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))?;
            self.evict(least.1);
            self.evictions += 1;
        }
        Some(())
    }

    /// Runs an op after making again what it reads, and so on.
    fn perform(&mut self, op: OpId, most: usize, observer: &dyn Observer) -> Option<()> {
        let trace = self.trace;
        let mut todo = vec![(op, 0)];
        while let Some((op, next)) = todo.last_mut() {
            let row = &trace.ops()[*op];
            let Some(&read) = row.reads.get(*next) else {
                let op = *op;
                todo.pop();
                // One op may need thousands of others, each with a look at all candidates.
                if self.sequence.len() >= most || observer.interrupted() {
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
                // An op under way cannot be waited for by itself: that would be a tensor that is needed to make it.
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
        // Writing over a persistent tensor takes no bytes; other reuse is not counted, as in the original, which copies on write.
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
        self.worth.pass(self.nanos.get(op).copied().unwrap_or_default());
        for &read in &row.reads {
            self.locked[read.index()] -= 1;
            self.worth.touch(read);
        }
        given.into_iter().for_each(|value| self.depart(value));
        if self.passing && !first {
            for &read in &row.reads {
                let index = read.index();
                if self.resident[index] && self.locked[index] == 0 && self.order.last_use(read) < self.place {
                    self.evict(read);
                }
            }
        }
        for &value in &row.outputs {
            self.worth.touch(value);
            if !self.resident[value.index()] {
                self.arrive(value);
            }
        }
        Some(())
    }
}
