//! The input graph of the network (section 4.2): one node for every GPU operation on a tensor that is large enough, an edge between successive
//! operations and between all operations on the same tensor, weighted by the time between them.
//!
//! ```text
//! op       conv                relu                                  conv.grad
//! nodes    malloc x  write x   malloc y  read x  write y  ...        read x  free x
//! actions  remove x                      offload x                                     the last access before the gap offloads,
//!                                                                                      the malloc removes; no node does both
//! ```
//!
//! Sums over the neighbours of a node take linear time however many operations concern one tensor: the sum over all of them is taken once
//! per tensor.

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Bytes, Id, TensorId};

use elbowroom_sched::policy::{Policy, SequenceIndex, Touches};

/// Features of a node that do not change, without the last: whether its action is still valid.
pub(crate) const FEATURES: usize = 6;

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Malloc,
    Write,
    Read,
    Free,
}

/// One GPU operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub kind: Kind,
    pub value: TensorId,
    pub place: SequenceIndex,
    /// Start of the op, or its end for a free.
    pub time: u64,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    pub nodes: Vec<Node>,
    /// The nodes of each tensor that has any, ascending.
    pub groups: Vec<Vec<u32>>,
    /// The group of each node.
    pub group: Vec<u32>,
    /// Sum of the weights of each node's edges, divided by the mean of these sums.
    pub weights: Vec<f32>,
    /// Mean number of neighbours, a node itself among them: sums over neighbours are divided by it, so that a network keeps its scale
    /// from one trace to another.
    pub degree: f32,
    /// What the sum of the states of all nodes is multiplied by, likewise: one by their number.
    pub share: f32,
}

impl Nodes {
    /// The operations of a policy that keeps everything, on tensors of at least a size.
    pub(crate) fn of(request: &Request<'_>, keep: &Policy, touches: &Touches, least: Bytes) -> Self {
        let trace = request.trace;
        let mut lasting = vec![false; trace.tensors().len()];
        for pair in trace.persistent() {
            lasting[pair.begin.index()] = true;
            lasting[pair.end.index()] = true;
        }
        let seen = |value: &TensorId| trace.bytes(*value) >= least;
        let mut nodes = Vec::new();
        let mut time = 0;
        for (place, &op) in (0u32..).zip(&keep.sequence) {
            let row = &trace.ops()[op];
            let end = time + request.costs.nanos.get(op).map_or(0, |nanos| nanos.get());
            let mut reads = row.reads.clone();
            reads.sort_unstable();
            reads.dedup();
            let mut push = |kind, value, time| nodes.push(Node { kind, value, place, time });
            for &value in row.outputs.iter().filter(|value| seen(value)) {
                if row.overwrites(value).is_none() && !lasting[value.index()] {
                    push(Kind::Malloc, value, time);
                }
            }
            reads.iter().copied().filter(|value| seen(value)).for_each(|value| push(Kind::Read, value, time));
            row.outputs.iter().copied().filter(seen).for_each(|value| push(Kind::Write, value, time));
            for &value in reads.iter().chain(&row.outputs).filter(|value| seen(value)) {
                let last = touches.of_value(value).last().is_some_and(|touch| touch.place == place);
                if last && !lasting[value.index()] && row.overwritten_by(value).is_none() {
                    push(Kind::Free, value, end);
                }
            }
            time = end;
        }
        Self::connect(nodes, trace.tensors().len())
    }

    /// The same with sums as equations 1 and 2 write them instead of means.
    pub(crate) fn with_sums(self) -> Self {
        Self { degree: 1.0, share: 1.0, ..self }
    }

    pub(crate) fn connect(nodes: Vec<Node>, values: usize) -> Self {
        let mut numbers = vec![u32::MAX; values];
        let mut groups: Vec<Vec<u32>> = Vec::new();
        let mut group = Vec::with_capacity(nodes.len());
        for (index, node) in (0u32..).zip(&nodes) {
            let number = &mut numbers[node.value.index()];
            if *number == u32::MAX {
                *number = groups.len() as u32;
                groups.push(Vec::new());
            }
            groups[*number as usize].push(index);
            group.push(*number);
        }
        let mut this = Self { nodes, groups, group, weights: Vec::new(), degree: 1.0, share: 1.0 };
        let count = this.nodes.len().max(1) as f64;
        let (mut sums, mut degrees) = (vec![0f64; this.nodes.len()], 0usize);
        for members in &this.groups {
            let whole: f64 = members.iter().map(|&v| this.nodes[v as usize].time as f64).sum();
            let mut before = 0f64;
            for (rank, &v) in members.iter().enumerate() {
                let time = this.nodes[v as usize].time as f64;
                // Times ascend along a group: all earlier ones are as far away as this one is later, and so on.
                let after = whole - before - time;
                let later = (members.len() - rank - 1) as f64;
                sums[v as usize] = (rank as f64 * time - before) + (after - later * time);
                before += time;
            }
            degrees += members.len() * members.len();
        }
        for pair in 1..this.nodes.len() {
            if this.group[pair - 1] != this.group[pair] {
                let lag = (this.nodes[pair].time - this.nodes[pair - 1].time) as f64;
                sums[pair - 1] += lag;
                sums[pair] += lag;
                degrees += 2;
            }
        }
        let mean = sums.iter().sum::<f64>() / count;
        let unit = if mean > 0.0 { mean } else { 1.0 };
        this.weights = sums.into_iter().map(|sum| (sum / unit) as f32).collect();
        this.degree = (degrees as f64 / count).max(1.0) as f32;
        this.share = 1.0 / this.nodes.len().max(1) as f32;
        this
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Sums the states over each node's neighbours and itself, divided by the mean degree. States are rows of `width`. The relation is
    /// symmetric, so this is its own transpose.
    pub(crate) fn gather(&self, states: &[f32], width: usize, sums: &mut [f32]) {
        match width {
            8 => return self.gather_by::<8>(states, sums),
            16 => return self.gather_by::<16>(states, sums),
            32 => return self.gather_by::<32>(states, sums),
            _ => {}
        }
        let scale = 1.0 / self.degree;
        let mut whole = vec![0.0; width];
        for members in &self.groups {
            whole.fill(0.0);
            for &v in members {
                add(&mut whole, &states[v as usize * width..][..width]);
            }
            for &v in members {
                sums[v as usize * width..][..width].copy_from_slice(&whole);
            }
        }
        for pair in 1..self.nodes.len() {
            if self.group[pair - 1] != self.group[pair] {
                let (left, right) = ((pair - 1) * width, pair * width);
                add(&mut sums[left..][..width], &states[right..][..width]);
                add(&mut sums[right..][..width], &states[left..][..width]);
            }
        }
        sums.iter_mut().for_each(|sum| *sum *= scale);
    }

    /// The same with the width known.
    fn gather_by<const WIDTH: usize>(&self, states: &[f32], sums: &mut [f32]) {
        let states = states.as_chunks::<WIDTH>().0;
        let sums = sums.as_chunks_mut::<WIDTH>().0;
        for members in &self.groups {
            let mut whole = [0.0; WIDTH];
            for &v in members {
                let state = &states[v as usize];
                for i in 0..WIDTH {
                    whole[i] += state[i];
                }
            }
            members.iter().for_each(|&v| sums[v as usize] = whole);
        }
        let scale = 1.0 / self.degree;
        for (v, sum) in sums.iter_mut().enumerate() {
            let mut row = *sum;
            self.counterparts(v as u32).for_each(|u| {
                let state = &states[u as usize];
                for i in 0..WIDTH {
                    row[i] += state[i];
                }
            });
            row.iter_mut().for_each(|sum| *sum *= scale);
            *sum = row;
        }
    }

    /// The row of one node in [`gather`](Self::gather), by the same sums in the same order.
    pub(crate) fn gather_one(&self, states: &[f32], v: u32, sum: &mut [f32]) {
        let width = sum.len();
        let row = |u: u32| &states[u as usize * width..][..width];
        sum.fill(0.0);
        self.groups[self.group[v as usize] as usize].iter().for_each(|&u| add(sum, row(u)));
        self.counterparts(v).for_each(|u| add(sum, row(u)));
        let scale = 1.0 / self.degree;
        sum.iter_mut().for_each(|sum| *sum *= scale);
    }

    /// The neighbours of a node, itself among them.
    pub(crate) fn neighbours(&self, v: u32) -> impl Iterator<Item = u32> {
        self.groups[self.group[v as usize] as usize].iter().copied().chain(self.counterparts(v))
    }

    /// The nodes before and after one, if they concern another tensor.
    fn counterparts(&self, v: u32) -> impl Iterator<Item = u32> {
        let other = move |&u: &u32| self.group.get(u as usize).is_some_and(|&g| g != self.group[v as usize]);
        [v.checked_sub(1), Some(v + 1)].into_iter().flatten().filter(other)
    }
}

fn add(into: &mut [f32], row: &[f32]) {
    into.iter_mut().zip(row).for_each(|(into, row)| *into += row);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of nodes that are neighbours: one after the other, or on the same tensor.
    fn plainly(nodes: &Nodes, states: &[f32], v: usize) -> (f32, f64, usize) {
        let (mut sum, mut weight, mut degree) = (0.0, 0.0, 0);
        for (u, state) in states.iter().enumerate() {
            if u == v || u.abs_diff(v) == 1 || nodes.nodes[u].value == nodes.nodes[v].value {
                sum += state;
                weight += nodes.nodes[u].time.abs_diff(nodes.nodes[v].time) as f64;
                degree += 1;
            }
        }
        (sum, weight, degree)
    }

    #[test]
    fn sums_over_neighbours_agree_with_looking_at_every_pair() {
        let values = [0u32, 0, 1, 0, 2, 1, 1, 2, 0, 3];
        let nodes = values.iter().enumerate().map(|(i, &value)| Node {
            kind: Kind::Read,
            value: TensorId(value),
            place: i as u32,
            time: (i * i) as u64,
        });
        let nodes = Nodes::connect(nodes.collect(), 4);
        let states: Vec<f32> = (0..values.len()).map(|i| (i * 7 % 5) as f32).collect();
        let mut sums = vec![0.0; values.len()];
        nodes.gather(&states, 1, &mut sums);
        // Every width takes the same sums: here of copies side by side.
        for width in [8, 16, 32] {
            let wide: Vec<f32> = states.iter().flat_map(|&state| vec![state; width]).collect();
            let (mut rows, mut one) = (vec![0.0; wide.len()], vec![0.0; width]);
            nodes.gather(&wide, width, &mut rows);
            for (v, row) in rows.chunks_exact(width).enumerate() {
                nodes.gather_one(&wide, v as u32, &mut one);
                assert!(row.iter().all(|&sum| sum == sums[v]) && row == one);
            }
        }
        let plain: Vec<_> = (0..values.len()).map(|v| plainly(&nodes, &states, v)).collect();
        let degree = plain.iter().map(|p| p.2).sum::<usize>() as f32 / values.len() as f32;
        let mean = plain.iter().map(|p| p.1).sum::<f64>() / values.len() as f64;
        assert!((nodes.degree - degree).abs() < 1e-6);
        for (v, (sum, weight, _)) in plain.into_iter().enumerate() {
            assert!((sums[v] - sum / degree).abs() < 1e-5, "node {v}");
            assert!((f64::from(nodes.weights[v]) - weight / mean).abs() < 1e-5, "node {v}");
        }
    }
}
