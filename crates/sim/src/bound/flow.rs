//! Maximum flows, by Dinic's method: the flow is raised along shortest paths, all those of one length at a time.

use std::ops::{Add, AddAssign, Mul, Range, SubAssign};

pub(super) const SOURCE: usize = 0;
pub(super) const SINK: usize = 1;
/// The level of a node to which no path leads.
const NONE: u32 = u32::MAX;

/// A number of capacities: the fewer bytes it has, the faster is the cut.
pub(super) trait Capacity:
    Copy + Ord + Default + From<u64> + Add<Output = Self> + Mul<Output = Self> + AddAssign + SubAssign
{
    /// More than any sum of capacities that occurs.
    const UNBOUNDED: Self;
}

impl Capacity for u64 {
    const UNBOUNDED: Self = Self::MAX / 4;
}

impl Capacity for u128 {
    const UNBOUNDED: Self = Self::MAX / 4;
}

/// A network of edges. Two of its nodes are [`SOURCE`] and [`SINK`]. Each edge is a pair of arcs, there and back.
pub(super) struct Network {
    /// Where the arcs that leave each node begin, and where the last ones end.
    begins: Vec<u32>,
    /// For each arc, one node after the other: the node to which it leads, and the arc back.
    ends: Vec<u32>,
    backs: Vec<u32>,
    /// For each edge, the arc there.
    arcs: Vec<u32>,
}

impl Network {
    /// The network with these edges, each from a node to another.
    pub fn new(nodes: usize, edges: &[(usize, usize)]) -> Self {
        let mut begins = vec![0; nodes + 1];
        edges.iter().flat_map(|&(from, to)| [from, to]).for_each(|node| begins[node + 1] += 1);
        for node in 0..nodes {
            begins[node + 1] += begins[node];
        }
        let mut filled = begins.clone();
        let (mut ends, mut backs) = (vec![0; 2 * edges.len()], vec![0; 2 * edges.len()]);
        let mut arc = |from: usize, to: usize| {
            let arc = filled[from];
            filled[from] += 1;
            ends[arc as usize] = to as u32;
            arc
        };
        let arcs = edges
            .iter()
            .map(|&(from, to)| {
                let (there, back) = (arc(from, to), arc(to, from));
                (backs[there as usize], backs[back as usize]) = (back, there);
                there
            })
            .collect();
        Self { begins, ends, backs, arcs }
    }

    /// The nodes on the source's side of a cut whose edges have the least sum of capacities; of several, the one with the fewest nodes.
    pub fn cut<C: Capacity>(&self, capacities: &[C]) -> Vec<bool> {
        let mut room = vec![C::default(); self.ends.len()];
        for (&arc, &capacity) in self.arcs.iter().zip(capacities) {
            room[arc as usize] = capacity;
        }
        let nodes = self.begins.len() - 1;
        let mut flow =
            Flow { network: self, room, levels: vec![NONE; nodes], queue: Vec::with_capacity(nodes) };
        while flow.find_levels() {
            flow.raise();
        }
        flow.levels.iter().map(|&level| level != NONE).collect()
    }

    fn at(&self, node: u32) -> Range<usize> {
        self.begins[node as usize] as usize..self.begins[node as usize + 1] as usize
    }
}

/// A flow through a network.
struct Flow<'a, C> {
    network: &'a Network,
    /// What still fits through each arc.
    room: Vec<C>,
    /// For each node, the fewest arcs with room from the source.
    levels: Vec<u32>,
    /// The nodes with a level, in its order.
    queue: Vec<u32>,
}

impl<C: Capacity> Flow<'_, C> {
    /// Finds the levels of all nodes up to the sink; returns whether there is a path to it.
    fn find_levels(&mut self) -> bool {
        let Self { network, room, levels, queue } = self;
        levels.fill(NONE);
        levels[SOURCE] = 0;
        queue.clear();
        queue.push(SOURCE as u32);
        let mut first = 0;
        while let Some(&node) = queue.get(first) {
            first += 1;
            let level = levels[node as usize] + 1;
            let arcs = network.at(node);
            for (&end, &room) in network.ends[arcs.clone()].iter().zip(&room[arcs]) {
                if room > C::default() && levels[end as usize] == NONE {
                    levels[end as usize] = level;
                    if end as usize == SINK {
                        return true;
                    }
                    queue.push(end);
                }
            }
        }
        false
    }

    /// Raises the flow along paths on which each arc leads to the next level, until none is left.
    fn raise(&mut self) {
        let Self { network, room, levels, .. } = self;
        // The arcs at each node that were not found useless.
        let mut next = network.begins.clone();
        let mut path: Vec<u32> = Vec::new();
        let mut node = SOURCE as u32;
        loop {
            if node as usize == SINK {
                let least = path.iter().map(|&arc| room[arc as usize]).min().unwrap_or_default();
                for &arc in &path {
                    room[arc as usize] -= least;
                    room[network.backs[arc as usize] as usize] += least;
                }
                // Back to the first arc that is full now.
                let full =
                    path.iter().position(|&arc| room[arc as usize] == C::default()).unwrap_or_default();
                node = network.ends[network.backs[path[full] as usize] as usize];
                path.truncate(full);
                continue;
            }
            let left = next[node as usize] as usize..network.begins[node as usize + 1] as usize;
            let level = levels[node as usize] + 1;
            let mut useful = network.ends[left.clone()].iter().zip(&room[left]);
            match useful.position(|(&end, &room)| room > C::default() && levels[end as usize] == level) {
                Some(skipped) => {
                    next[node as usize] += skipped as u32;
                    let arc = next[node as usize];
                    path.push(arc);
                    node = network.ends[arc as usize];
                }
                None => {
                    let Some(arc) = path.pop() else { return };
                    node = network.ends[network.backs[arc as usize] as usize];
                    next[node as usize] += 1;
                }
            }
        }
    }
}
