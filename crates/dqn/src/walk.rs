//! The embeddings of nodes along an episode. An action changes one feature of one or two nodes, which affects their neighbours round by
//! round. Only the affected rows are computed anew, by the same sums in the same order, so that the embeddings are bit-exact with
//! [`Sight::embed`].

use crate::environment::{Action, Candidate, Environment};
use crate::network::{Embedding, Fixed, Sight, Weights};

/// Which node represents which action on a candidate. Doing nothing is represented by the first node of all (section 4.9).
pub(crate) fn action_node(candidate: &Candidate, action: Action) -> u32 {
    match action {
        Action::Keep => 0,
        Action::Offload => candidate.node,
        Action::Recompute => candidate.remove.unwrap_or(0),
    }
}

/// The last feature of every node: whether its action can be taken, which ends when its tensor is offloaded or evicted.
pub(crate) fn validity(candidates: &[Candidate], nodes: usize, decisions: &[Action]) -> Vec<f32> {
    let mut valid = vec![0.0; nodes];
    for (index, candidate) in candidates.iter().enumerate() {
        if decisions.get(index).is_none_or(|&action| action == Action::Keep) {
            valid[candidate.node as usize] = f32::from(u8::from(candidate.offload));
            if let Some(remove) = candidate.remove {
                valid[remove as usize] = 1.0;
            }
        }
    }
    valid
}

/// See the [module](self).
pub(crate) struct EpisodeWalk<'w> {
    weights: &'w Weights,
    fixed: &'w Fixed,
    pub embedding: Embedding,
    valid: Vec<f32>,
    /// How many decisions the states are about.
    decided: usize,
    /// Nodes whose rows are to be computed in this round, and which are among them.
    rows: Vec<u32>,
    listed: Vec<bool>,
}

impl<'w> EpisodeWalk<'w> {
    /// The states after these decisions.
    pub(crate) fn new(
        environment: &Environment<'_>,
        sight: &Sight<'_>,
        (weights, fixed): (&'w Weights, &'w Fixed),
        decisions: &[Action],
    ) -> Self {
        let valid = validity(&environment.candidates, sight.nodes.len(), decisions);
        let embedding = sight.embed(weights, fixed, &valid);
        let listed = vec![false; sight.nodes.len()];
        Self { weights, fixed, embedding, valid, decided: decisions.len(), rows: Vec::new(), listed }
    }

    /// Goes on to the states after these decisions, which begin with those before.
    pub(crate) fn advance(&mut self, environment: &Environment<'_>, sight: &Sight<'_>, decisions: &[Action]) {
        let from = self.decided.min(decisions.len());
        let mut changed = Vec::new();
        for (candidate, &action) in environment.candidates[from..].iter().zip(&decisions[from..]) {
            if action != Action::Keep {
                changed.extend([Some(candidate.node), candidate.remove].into_iter().flatten());
            }
        }
        self.decided = decisions.len();
        // Several candidates may share a node: what counts is what all decisions together leave of it.
        if !changed.is_empty() {
            let valid = validity(&environment.candidates, sight.nodes.len(), decisions);
            changed.sort_unstable();
            changed.dedup();
            changed.retain(|&v| self.valid[v as usize] != valid[v as usize]);
            self.valid = valid;
            self.change(sight, &changed);
        }
    }

    /// The valid action of greatest value on a candidate, with it.
    pub(crate) fn greatest(
        &self,
        sight: &Sight<'_>,
        candidate: &Candidate,
        valid: [bool; 3],
    ) -> (Action, f32) {
        let mut best = (Action::Keep, f32::NEG_INFINITY);
        for action in Action::ALL.into_iter().filter(|&action| valid[action as usize]) {
            let node = action_node(candidate, action);
            let value = sight.value(self.weights, &self.embedding, candidate.node, node);
            if value > best.1 {
                best = (action, value);
            }
        }
        best
    }

    /// Computes again what depends on these nodes' last feature.
    fn change(&mut self, sight: &Sight<'_>, changed: &[u32]) {
        let nodes = sight.nodes;
        let mut moved: Vec<u32> = Vec::new();
        for round in 0..sight.rounds {
            self.rows.clear();
            let (rows, listed) = (&mut self.rows, &mut self.listed);
            let mut list = |v: u32| {
                if !std::mem::replace(&mut listed[v as usize], true) {
                    rows.push(v);
                }
            };
            changed.iter().for_each(|&v| list(v));
            for &v in &moved {
                nodes.neighbours(v).for_each(&mut list);
            }
            moved.clear();
            for &v in &self.rows {
                self.listed[v as usize] = false;
                let valid = self.valid[v as usize];
                if sight.renew(self.weights, self.fixed, &mut self.embedding, round, (v, valid)) {
                    moved.push(v);
                }
            }
        }
        sight.average(self.weights, &mut self.embedding);
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::TensorId;

    use super::*;
    use crate::network::Fixed;
    use crate::nodes::{FEATURES, Kind, Node, Nodes};
    use elbowroom_sched::random::Random;

    #[test]
    fn states_along_an_episode_are_those_computed_from_nothing() {
        let mut random = Random::new(7);
        for hidden in [5, 8, 16] {
            let count = 120;
            let node = |place: u32, value: usize| Node {
                kind: Kind::Read,
                value: TensorId(value as u32),
                place,
                time: u64::from(place * place),
            };
            let nodes = Nodes::connect((0..count).map(|i| node(i, random.below(40))).collect(), 40);
            let features: Vec<f32> = (0..nodes.len() * FEATURES).map(|_| random.unit() as f32).collect();
            let sight = Sight { nodes: &nodes, features: &features, rounds: 4 };
            let weights = Weights::random(hidden, &mut random);
            let fixed: Fixed = sight.fix(&weights);
            let mut walk = EpisodeWalk {
                weights: &weights,
                fixed: &fixed,
                valid: vec![1.0; nodes.len()],
                embedding: sight.embed(&weights, &fixed, &vec![1.0; nodes.len()]),
                decided: 0,
                rows: Vec::new(),
                listed: vec![false; nodes.len()],
            };
            for _ in 0..60 {
                let changed = [random.below(nodes.len()) as u32, 3];
                changed.iter().for_each(|&v| walk.valid[v as usize] = 1.0 - walk.valid[v as usize]);
                walk.change(&sight, &changed);
                assert_eq!(walk.embedding, sight.embed(&weights, &fixed, &walk.valid));
            }
        }
    }
}
