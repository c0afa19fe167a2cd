//! The replay memory: trajectories, cut where the embeddings of nodes change.
//!
//! ```text
//! decisions   keep  keep  offload | recompute | keep  offload | ...
//! states      s0 ─────────────▶     s1 ──────▶  s2 ────────▶
//! ```
//!
//! Embeddings do not change while every tensor is kept. One pass over the nodes therefore serves all decisions of a stretch, and a mini-batch
//! is drawn by stretches.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::environment::Action;
use crate::episode::Transition;

/// An episode as it is remembered.
pub(crate) struct Trajectory {
    /// The decisions in effect.
    pub decisions: Vec<Action>,
    pub taken: Vec<Transition>,
    /// What was gained from each decision to the end of the episode, discounted.
    pub gains: Vec<f32>,
}

impl Trajectory {
    pub(crate) fn new(decisions: Vec<Action>, taken: Vec<Transition>, discount: f32) -> Self {
        let mut gains = vec![0.0; taken.len()];
        for (index, taken) in taken.iter().enumerate().rev() {
            let after = gains.get(index + 1).copied().unwrap_or(0.0);
            gains[index] = taken.reward + discount * after;
        }
        Self { decisions, taken, gains }
    }

    /// One past the last decision whose reward counts as it came when looking this many decisions ahead.
    pub(crate) fn end(&self, index: usize, ahead: usize) -> usize {
        index.saturating_add(ahead).min(self.taken.len())
    }
}

/// Successive decisions in one state of the nodes.
pub(crate) struct Stretch {
    pub past: Arc<Trajectory>,
    pub from: usize,
    /// One past the last.
    pub to: usize,
    /// What the state this many decisions ahead of each was worth to which copy of the network.
    pub next: Option<(u32, Vec<f32>)>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct ReplayMemory {
    /// Stretches that are never forgotten.
    kept: Vec<Stretch>,
    recent: VecDeque<Stretch>,
    /// Decisions in `recent`.
    decisions: usize,
}

impl ReplayMemory {
    /// Remembers an episode for good.
    pub(crate) fn keep(&mut self, past: Trajectory) {
        self.kept.extend(stretches(past));
    }

    /// Remembers an episode until `most` later decisions are to be remembered.
    pub(crate) fn add(&mut self, past: Trajectory, most: usize) {
        for stretch in stretches(past) {
            self.decisions += stretch.to - stretch.from;
            self.recent.push_back(stretch);
        }
        while self.decisions > most && self.recent.len() > 1 {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.decisions -= oldest.to - oldest.from;
        }
    }

    /// Stretches.
    pub(crate) fn len(&self) -> usize {
        self.kept.len() + self.recent.len()
    }

    /// One of them.
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Stretch> {
        let kept = self.kept.len();
        if index < kept { self.kept.get_mut(index) } else { self.recent.get_mut(index - kept) }
    }
}

fn stretches(past: Trajectory) -> impl Iterator<Item = Stretch> {
    let past = Arc::new(past);
    let mut from = 0;
    std::iter::from_fn(move || {
        let rest = &past.decisions[from..];
        let last = rest.iter().position(|&action| action != Action::Keep).or(rest.len().checked_sub(1))?;
        let to = from + last + 1;
        let stretch = Stretch { past: past.clone(), from, to, next: None };
        from = to;
        Some(stretch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn episodes_are_cut_where_something_leaves_and_the_oldest_go_first() {
        let decisions = [0, 0, 1, 2, 0, 1, 0, 0].map(|action| Action::ALL[action]).to_vec();
        let taken = |&action| Transition { action, reward: -1.0, valid: [true; 3] };
        let past = || Trajectory::new(decisions.clone(), decisions.iter().map(taken).collect(), 0.5);
        assert_eq!(past().gains[5..], [-1.75, -1.5, -1.0]);
        let mut memory = ReplayMemory::default();
        memory.keep(past());
        memory.add(past(), 100);
        memory.add(past(), 10);
        let mut cuts = Vec::new();
        for index in 0..memory.len() {
            let stretch = memory.get_mut(index).unwrap();
            cuts.push((stretch.from, stretch.to));
        }
        let whole = [(0, 3), (3, 4), (4, 6), (6, 8)];
        assert_eq!(cuts, [&whole[..], &whole[3..], &whole[..]].concat());
        assert!(memory.get_mut(9).is_none());
    }
}
