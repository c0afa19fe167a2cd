//! Maximum flows, by Dinic's method: the flow is raised along shortest paths, all those of one length at a time.

use std::collections::VecDeque;

/// More than any sum of capacities that occurs.
pub(super) const UNBOUNDED: u128 = u128::MAX / 4;
pub(super) const SOURCE: usize = 0;
pub(super) const SINK: usize = 1;

/// A network of edges. Two of its nodes are [`SOURCE`] and [`SINK`].
pub(super) struct Network {
    /// Edges as pairs, there and back: their ends.
    ends: Vec<usize>,
    /// The edges at each node, one node after the other.
    edges: Vec<usize>,
    /// Where those of each node begin, and where the last ones end.
    begins: Vec<usize>,
}

impl Network {
    /// The network with these edges, each from a node to another.
    pub fn new(nodes: usize, edges: &[(usize, usize)]) -> Self {
        let ends: Vec<usize> = edges.iter().flat_map(|&(from, to)| [to, from]).collect();
        let mut begins = vec![0; nodes + 1];
        ends.iter().for_each(|&end| begins[end + 1] += 1);
        for node in 0..nodes {
            begins[node + 1] += begins[node];
        }
        let mut filled = begins.clone();
        let mut sorted = vec![0; ends.len()];
        for edge in 0..ends.len() {
            let place = &mut filled[ends[edge ^ 1]];
            sorted[*place] = edge;
            *place += 1;
        }
        Self { ends, edges: sorted, begins }
    }

    /// The number of edges.
    pub fn edges(&self) -> usize {
        self.ends.len() / 2
    }

    /// The nodes on the source's side of a cut whose edges have the least sum of capacities; of several, the one with the fewest nodes.
    pub fn cut(&self, capacities: &[u128]) -> Vec<bool> {
        let room = capacities.iter().flat_map(|&capacity| [capacity, 0]).collect();
        let mut flow = Flow { network: self, room };
        loop {
            let levels = flow.levels();
            if levels[SINK] == usize::MAX {
                return levels.into_iter().map(|level| level != usize::MAX).collect();
            }
            flow.raise(&levels);
        }
    }

    fn at(&self, node: usize) -> &[usize] {
        &self.edges[self.begins[node]..self.begins[node + 1]]
    }
}

/// A flow through a network.
struct Flow<'a> {
    network: &'a Network,
    /// What still fits through each edge.
    room: Vec<u128>,
}

impl Flow<'_> {
    /// For each node, the fewest edges with room from the source; `usize::MAX` if none lead there.
    fn levels(&self) -> Vec<usize> {
        let mut levels = vec![usize::MAX; self.network.begins.len() - 1];
        levels[SOURCE] = 0;
        let mut queue = VecDeque::from([SOURCE]);
        while let Some(node) = queue.pop_front() {
            for &edge in self.network.at(node) {
                let end = self.network.ends[edge];
                if self.room[edge] > 0 && levels[end] == usize::MAX {
                    levels[end] = levels[node] + 1;
                    queue.push_back(end);
                }
            }
        }
        levels
    }

    /// Raises the flow along paths on which each edge leads to the next level, until none is left.
    fn raise(&mut self, levels: &[usize]) {
        // The edges at each node that were not found useless.
        let mut next = vec![0; levels.len()];
        let mut path: Vec<usize> = Vec::new();
        let mut node = SOURCE;
        loop {
            if node == SINK {
                let least = path.iter().map(|&edge| self.room[edge]).min().unwrap_or_default();
                for &edge in &path {
                    self.room[edge] -= least;
                    self.room[edge ^ 1] += least;
                }
                // Back to the first edge that is full now.
                let full = path.iter().position(|&edge| self.room[edge] == 0).unwrap_or_default();
                node = self.network.ends[path[full] ^ 1];
                path.truncate(full);
                continue;
            }
            let useful =
                |&edge: &usize| self.room[edge] > 0 && levels[self.network.ends[edge]] == levels[node] + 1;
            match self.network.at(node)[next[node]..].iter().position(useful) {
                Some(skipped) => {
                    next[node] += skipped;
                    let edge = self.network.at(node)[next[node]];
                    path.push(edge);
                    node = self.network.ends[edge];
                }
                None => {
                    let Some(edge) = path.pop() else { return };
                    node = self.network.ends[edge ^ 1];
                    next[node] += 1;
                }
            }
        }
    }
}
