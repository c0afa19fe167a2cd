//! How much recomputation an op forces, with the inputs of what is recomputed.
//!
//! While an op runs for the first time, every tensor that was computed before it and is needed after it is on the device, on the host, or
//! will be computed again. To compute it again, each input of its producer must be there in one of the same three ways. For a price per byte that
//! stays, the cheapest choice is a minimum cut: an op that runs again costs its time, a tensor that stays costs the price of its bytes, and an
//! op that runs again needs its inputs (a closure, Picard 1976). By Lagrange's duality
//!
//! > cost of the cut − price × bytes that have room
//!
//! is, for any price, a lower bound of the time of recomputation. The maximum over the prices is that of the linear relaxation: between two
//! choices, a part of the difference counts as the same part of its time. The prices tried are those at which two known choices cost the same.

use elbowroom_ir::planning::Request;
use elbowroom_ir::trace::Again;
use elbowroom_ir::{Id, OpId, TensorId};

use super::GIGA;
use super::flow::{Capacity, Network, SINK, SOURCE};
use super::needs::{Needs, distinct, early, may_overwrite};

/// Most choices that are found for one frontier. Fewer prices give a lower bound that is lower.
const MAX_CHOICES: usize = 64;

/// What may be computed again after an op.
pub(super) struct Closures {
    /// The ops that may run again.
    ops: Vec<OpId>,
    /// Time of each of them.
    times: Vec<u64>,
    tensors: Vec<Kept>,
    /// Sums of the times, and of the bytes of all tensors.
    time: u128,
    bytes: u128,
    /// Bytes of all idle tensors.
    idle: u64,
    /// The edges of a network whose cuts are the choices, each from a node to another: the recomputed ops lie on the source's side.
    edges: Vec<(usize, usize, Cost)>,
    /// Its nodes: source, sink, the ops, and some of the tensors.
    nodes: usize,
}

/// A tensor that stays unless it is computed again.
struct Kept {
    bytes: u64,
    /// The op that computes it again.
    maker: Option<usize>,
    /// Ops that run again only with it; `None` if it is needed in any case.
    readers: Option<Vec<usize>>,
}

impl Closures {
    /// The closures at an op, while which the `idle` tensors are needed before and after it.
    pub fn of(request: &Request<'_>, needs: &Needs, at: OpId, idle: &[TensorId]) -> Self {
        let trace = request.trace;
        let may_run = |op: OpId| request.freedom.recompute && trace.ops()[op].again != Again::Never;
        let mut ops: Vec<OpId> = Vec::new();
        let mut numbers: Vec<Option<usize>> = vec![None; trace.ops().len()];
        let mut number = |op: OpId, ops: &mut Vec<OpId>| {
            *numbers[op.index()].get_or_insert_with(|| {
                ops.push(op);
                ops.len() - 1
            })
        };
        let mut place: Vec<Option<usize>> = vec![None; trace.tensors().len()];
        let mut tensors: Vec<Kept> = Vec::new();
        let mut kept = |value: TensorId, readers, ops: &mut Vec<OpId>| {
            let maker = trace.producer(value).filter(|&op| may_run(op)).map(|op| number(op, ops));
            Kept { bytes: trace.bytes(value).get(), maker, readers }
        };
        for &value in idle {
            place[value.index()] = Some(tensors.len());
            tensors.push(kept(value, None, &mut ops));
        }
        let idle = tensors.iter().map(|tensor| tensor.bytes).sum();
        // Operands of the op itself are there without further bytes, and so is what exists when the iteration begins.
        let op = &trace.ops()[at];
        let there = |value: TensorId| {
            (op.reads.contains(&value) && !may_overwrite(op, value))
                || trace.producer(value).is_none_or(|maker| early(&trace.ops()[maker]))
        };
        let mut next = 0;
        while next < ops.len() {
            for value in distinct(&trace.ops()[ops[next]].reads) {
                if let Some(known) = place[value.index()] {
                    if let Some(readers) = &mut tensors[known].readers {
                        readers.push(next);
                    }
                } else if !needs.persists(trace, value) && !there(value) {
                    place[value.index()] = Some(tensors.len());
                    tensors.push(kept(value, Some(vec![next]), &mut ops));
                }
            }
            next += 1;
        }
        let times: Vec<u64> =
            ops.iter().map(|&op| request.costs.nanos.get(op).map_or(0, |time| time.get())).collect();
        let (nodes, edges) = network(&times, &tensors);
        let time = times.iter().copied().map(u128::from).sum();
        let bytes = tensors.iter().map(|tensor| u128::from(tensor.bytes)).sum();
        Self { ops, times, tensors, time, bytes, idle, edges, nodes }
    }

    /// The work of a cut, as the number of edges in a network that has a node for every tensor.
    pub fn size(&self) -> usize {
        let readers = self.tensors.iter().flat_map(|tensor| &tensor.readers).map(Vec::len);
        2 * self.ops.len() + self.tensors.len() + readers.sum::<usize>()
    }

    /// The choice whose cost is least, if a nanosecond costs `per_nano` and a byte that stays costs `per_byte`. Ops that are `settled` are recomputed,
    /// or not, whatever that costs.
    fn cheapest(&self, settled: &[Option<bool>], per_byte: u128, per_nano: u128) -> Choice {
        // Capacities add up to less than 2^61, so that an unbounded edge (2^62) and the flow back through it fit 64 bits.
        let again = match u64::try_from(8 * (self.time * per_nano + self.bytes * per_byte)) {
            Ok(_) => self.cut(settled, per_byte as u64, per_nano as u64),
            Err(_) => self.cut(settled, per_byte, per_nano),
        };
        let stays = |tensor: &&Kept| {
            let needed = tensor.readers.as_ref().is_none_or(|readers| readers.iter().any(|&op| again[op]));
            needed && !tensor.maker.is_some_and(|op| again[op])
        };
        Choice {
            time: self.times.iter().zip(&again).filter(|&(_, &again)| again).map(|(time, _)| time).sum(),
            bytes: self.tensors.iter().filter(stays).map(|tensor| tensor.bytes).sum(),
            again,
            proved: false,
        }
    }

    /// For each op, whether the cheapest choice recomputes it. Ops for which that is settled are no nodes: they are the source or the sink.
    fn cut<C: Capacity>(&self, settled: &[Option<bool>], per_byte: C, per_nano: C) -> Vec<bool> {
        let mut nodes = 2;
        let mut node = || {
            nodes += 1;
            nodes - 1
        };
        let mut place = vec![SINK; self.nodes];
        place[SOURCE] = SOURCE;
        for (place, settled) in place[2..].iter_mut().zip(settled) {
            *place = match settled {
                Some(true) => SOURCE,
                Some(false) => SINK,
                None => node(),
            };
        }
        // A tensor stays if any of its readers runs again.
        for &(reader, tensor, _) in self.edges.iter().filter(|(.., cost)| cost.is_none()) {
            match (place[reader], place[tensor]) {
                (SOURCE, _) => place[tensor] = SOURCE,
                (reader, SINK) if reader != SINK => place[tensor] = node(),
                _ => {}
            }
        }
        let (mut ends, mut capacities) = (Vec::new(), Vec::new());
        for &(from, to, cost) in &self.edges {
            let (from, to) = (place[from], place[to]);
            if from != SINK && to != SOURCE && (from, to) != (SOURCE, SINK) {
                ends.push((from, to));
                capacities.push(cost.map_or(C::UNBOUNDED, |(time, bytes)| {
                    C::from(time) * per_nano + C::from(bytes) * per_byte
                }));
            }
        }
        let sources = Network::new(nodes, &ends).cut(&capacities);
        place[2..2 + self.ops.len()].iter().map(|&place| sources[place]).collect()
    }
}

/// What an edge costs in a cut: a time and bytes that stay. Without it, the edge is in no cut.
type Cost = Option<(u64, u64)>;

/// The network whose cuts are choices, as the number of its nodes and its edges: for each op those from the source and to the sink, then those of
/// tensors.
fn network(times: &[u64], tensors: &[Kept]) -> (usize, Vec<(usize, usize, Cost)>) {
    let node = |op: usize| 2 + op;
    let mut stays = vec![[0, 0]; times.len()];
    let mut edges: Vec<(usize, usize, Cost)> = Vec::new();
    let mut nodes = 2 + times.len();
    for tensor in tensors {
        let cost = Some((0, tensor.bytes));
        match (tensor.readers.as_deref(), tensor.maker) {
            // The tensor stays whatever is recomputed.
            (None, None) => {}
            (None, Some(maker)) => stays[maker][0] += tensor.bytes,
            (Some(&[reader]), None) => stays[reader][1] += tensor.bytes,
            (Some(&[reader]), Some(maker)) => edges.push((node(reader), node(maker), cost)),
            // With a node of its own a tensor counts once, however many of its readers are recomputed.
            (Some(readers), maker) => {
                edges.push((nodes, maker.map_or(SINK, node), cost));
                edges.extend(readers.iter().map(|&reader| (node(reader), nodes, None)));
                nodes += 1;
            }
        }
    }
    let ops = times.iter().zip(stays).enumerate().flat_map(|(op, (&time, [without, with]))| {
        [(SOURCE, node(op), Some((0, without))), (node(op), SINK, Some((time, with)))]
    });
    (nodes, ops.chain(edges).collect())
}

/// Nanoseconds of ops that run again, and bytes that stay.
struct Choice {
    time: u64,
    bytes: u64,
    /// Which ops run again.
    again: Vec<bool>,
    /// No choice is better than this one and the next at the price at which these two cost the same.
    proved: bool,
}

/// The price at which so many nanoseconds cost as much as so many bytes, in numbers whose products with any time and any size can be added up.
fn price(nanos: u64, bytes: u64) -> (u128, u128) {
    let shift = (u64::BITS - nanos.max(bytes).leading_zeros()).saturating_sub(40);
    (u128::from(nanos >> shift), u128::from(bytes >> shift).max(1))
}

/// The choices that are best at some price, as far as they are known.
pub(super) struct Frontier<'a> {
    closures: &'a Closures,
    /// For each op, whether it is recomputed, if that is settled.
    pub settled: Vec<Option<bool>>,
    /// In order of bytes: from the fewest to those of the shortest time.
    choices: Vec<Choice>,
}

impl<'a> Frontier<'a> {
    /// The frontier of all choices.
    pub fn of(closures: &'a Closures) -> Self {
        Self::new(closures, vec![None; closures.ops.len()])
    }

    /// The frontier of the choices that agree with what is settled.
    pub fn new(closures: &'a Closures, settled: Vec<Option<bool>>) -> Self {
        let (fewest, shortest) = (closures.cheapest(&settled, 1, 0), closures.cheapest(&settled, 0, 1));
        let mut choices = vec![fewest];
        if choices[0].bytes < shortest.bytes {
            choices.push(shortest);
        }
        Self { closures, settled, choices }
    }

    /// The last choice for which there is room, and the first for which there is none, if `absent` billionths of the bytes of idle tensors must not
    /// be on the device.
    fn around(&self, absent: u128) -> (Option<usize>, Option<usize>) {
        let idle = u128::from(self.closures.idle) * GIGA;
        let fits = |choice: &Choice| u128::from(choice.bytes) * GIGA + absent <= idle;
        let above = self.choices.iter().position(|choice| !fits(choice));
        (above.unwrap_or(self.choices.len()).checked_sub(1), above)
    }

    /// A lower bound of the time of recomputation; `None` if no choice leaves as few bytes.
    pub fn time(&mut self, absent: u128) -> Option<u64> {
        let room = (u128::from(self.closures.idle) * GIGA).checked_sub(absent)?;
        loop {
            let (below, above) = self.around(absent);
            let below = below?;
            let few = &self.choices[below];
            let Some(above) = above else { return Some(few.time) };
            let many = &self.choices[above];
            let (nanos, bytes) = price(few.time.saturating_sub(many.time), many.bytes - few.bytes);
            let cost = |choice: &Choice| u128::from(choice.time) * bytes + u128::from(choice.bytes) * nanos;
            let known = cost(few).min(cost(many));
            let mut least = known;
            if !few.proved {
                // Where a byte costs more, at least the same ops are recomputed (Gallo, Grigoriadis, Tarjan 1989): only those on which the two
                // choices differ are open. A price that rounding moves out from between the two gives a lower bound that is no higher.
                let both = few.again.iter().zip(&many.again);
                let settled: Vec<_> = both.map(|(few, many)| (few == many).then_some(*few)).collect();
                let found = self.closures.cheapest(&settled, nanos, bytes);
                least = known.min(cost(&found));
                if least < known && self.choices.len() < MAX_CHOICES {
                    let place = self.choices.partition_point(|choice| choice.bytes <= found.bytes);
                    self.choices.insert(place, found);
                    continue;
                }
                self.choices[below].proved = least == known;
            }
            let time = least.saturating_sub(nanos * room.div_ceil(GIGA)).div_ceil(bytes);
            return Some(time as u64);
        }
    }

    /// The time of a known choice that leaves as few bytes.
    pub fn attained(&self, absent: u128) -> Option<u64> {
        self.around(absent).0.map(|below| self.choices[below].time)
    }

    /// The ops that a known choice that leaves as few bytes runs again.
    pub fn again(&self, absent: u128) -> Vec<OpId> {
        let choice = self.around(absent).0.map(|below| &self.choices[below]);
        let ops = choice.into_iter().flat_map(|choice| self.closures.ops.iter().zip(&choice.again));
        ops.filter(|&(_, &again)| again).map(|(&op, _)| op).collect()
    }

    /// The longest op that only one of the two choices next to the bound runs again.
    pub fn undecided(&self, absent: u128) -> Option<usize> {
        let (below, above) = self.around(absent);
        let (few, many) = (&self.choices[below?].again, &self.choices[above?].again);
        let ops = (0..few.len()).filter(|&op| few[op] != many[op]);
        ops.max_by_key(|&op| (self.closures.times[op], op))
    }
}
