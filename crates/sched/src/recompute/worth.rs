//! The heuristic h of dynamic tensor rematerialization (M. Kirisame et al., 2021), maintained while tensors are evicted and restored. Used by
//! [`dtr`](super::dtr), and by dynamic execution.
//!
//! ```text
//! h(v) = (time of v's op + time of the evicted neighbourhood of v) / (bytes of v × time since v was touched last)
//! ```
//!
//! The evicted neighbourhood e* is all that would have to be recomputed together with v, or could be recomputed only after v: the evicted
//! tensors that are connected with v through evicted tensors. It is maintained as classes that are united when a tensor between them is
//! evicted (union-find). A tensor that is recomputed takes its own time out of its class; the tensors that it had connected stay
//! connected, as in the authors' simulator.

use elbowroom_ir::order::Order;
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Id, Nanos, OpId, Table, TensorId};

/// Tensors, the time that their ops take, and which of them are evicted.
pub struct Worth {
    /// Time spent so far.
    now: u64,
    /// Time of each tensor's op.
    cost: Vec<u64>,
    bytes: Vec<u64>,
    touched: Vec<u64>,
    evicted: Vec<bool>,
    /// Among the tensors that can be recomputed: what its op reads, and the outputs of its readers.
    neighbours: Vec<Vec<TensorId>>,
    classes: Classes,
}

impl Worth {
    /// The tensors of a trace, none of them evicted, with durations of ops and bytes rounded up to an alignment. In the order, the tensors
    /// that can be [recomputed](Order::can_recompute) are those that are ever evicted.
    pub fn new(trace: &Trace, order: &Order, nanos: &Table<OpId, Nanos>, align: Bytes) -> Self {
        let values = trace.tensors().len();
        let mut cost = vec![0; values];
        let mut neighbours = vec![Vec::new(); values];
        for (id, op) in trace.ops().iter() {
            for &output in &op.outputs {
                cost[output.index()] = nanos.get(id).map_or(0, |nanos| nanos.get());
            }
            for &output in op.outputs.iter().filter(|&&output| order.can_recompute(output)) {
                for &read in op.reads.iter().filter(|&&read| order.can_recompute(read)) {
                    neighbours[output.index()].push(read);
                    neighbours[read.index()].push(output);
                }
            }
        }
        Self {
            now: 0,
            cost,
            bytes: trace.tensors().ids().map(|v| trace.bytes(v).align_up(align).get()).collect(),
            touched: vec![0; values],
            evicted: vec![false; values],
            neighbours,
            classes: Classes::of(values),
        }
    }

    /// Adds the duration of an op that ran.
    pub fn pass(&mut self, time: Nanos) {
        self.now += time.get();
    }

    /// Notes that an op read or wrote a tensor.
    pub fn touch(&mut self, value: TensorId) {
        self.touched[value.index()] = self.now;
    }

    /// Notes that a tensor is on the device.
    pub fn arrive(&mut self, value: TensorId) {
        let index = value.index();
        if std::mem::replace(&mut self.evicted[index], false) {
            self.classes.leave(index, self.cost[index]);
        }
    }

    /// Notes that a tensor which can be recomputed was evicted.
    pub fn depart(&mut self, value: TensorId) {
        let index = value.index();
        if std::mem::replace(&mut self.evicted[index], true) {
            return;
        }
        self.classes.enter(index, self.cost[index]);
        for neighbour in self.neighbours[index].iter().filter(|n| self.evicted[n.index()]) {
            self.classes.unite(index, neighbour.index());
        }
    }

    /// Time to restore a tensor: that of its own op and of its evicted neighbourhood.
    pub fn restore_time(&mut self, value: TensorId) -> Nanos {
        let mut seen: Vec<usize> = Vec::new();
        let mut cost = self.cost[value.index()];
        for neighbour in &self.neighbours[value.index()] {
            if self.evicted[neighbour.index()] {
                let class = self.classes.find(neighbour.index());
                if !seen.contains(&class) {
                    seen.push(class);
                    cost += self.classes.cost[class];
                }
            }
        }
        Nanos(cost)
    }

    /// h of a tensor with this time to restore it.
    pub fn h(&self, value: TensorId, restore_time: Nanos) -> f64 {
        let stale = (self.now - self.touched[value.index()]).max(1);
        restore_time.get() as f64 / (self.bytes[value.index()] as f64 * stale as f64)
    }
}

/// Classes of evicted tensors with the sum of their times. A tensor that leaves its class gets a new entry when it enters one again.
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
