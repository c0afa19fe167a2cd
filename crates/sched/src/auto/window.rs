//! Windows solved exactly: a few neighbouring repeats are removed, and the cheapest repair is found by branch and bound.
//!
//! At the place with the largest live memory above the limit, some tensor that is alive without being used must be recomputed before its
//! next use. The tree branches on that tensor, most bytes per time first, and a branch excludes the tensors that its earlier siblings have
//! tried. The lower bound of a node is the time so far plus a fractional knapsack over the tensors that could be evicted at that place.
//! Repeats outside the window stay as they are.

use super::moves::Editor;
use super::sequence::Decisions;
use super::state::AnnealState;
use crate::policy::PrefetchRule;

/// The largest number of repeats removed together.
const FREED: usize = 7;
/// Candidates tried at a node.
const BREADTH: usize = 10;
/// Nodes of one tree.
const NODES: u64 = 250;
/// What choosing a window costs, in nodes.
const ENTRY: u64 = 4;

/// A searcher of windows around one sequence that fits.
#[derive(Clone, Debug)]
pub(crate) struct WindowSearch<'a> {
    editor: Editor<'a>,
    /// Shortest sequence that fits; the editor is there between two trees.
    pub best: Option<(u64, Decisions)>,
    tree: Tree,
}

/// The search in one window.
#[derive(Clone, Debug, Default)]
struct Tree {
    nodes: u64,
    /// Only shorter sequences count.
    below: u64,
    found: Option<Decisions>,
    /// Repeats, as (stage, op), that elder siblings have tried.
    excluded: Vec<(u32, u32)>,
}

/// A way to relieve a place: an op recomputed before a use, its time, and the size of its outputs that leave the place by that.
#[derive(Clone, Copy, Debug)]
struct Relief {
    stage: u32,
    maker: u32,
    time: u64,
    gain: i64,
}

impl<'a> WindowSearch<'a> {
    pub(crate) fn new(state: AnnealState<'a>, seed: u64) -> Self {
        Self { editor: Editor::new(state, seed), best: None, tree: Tree::default() }
    }

    /// Goes on from these decisions if they take less time than its own.
    pub(crate) fn adopt(&mut self, best: &(u64, Decisions)) {
        if self.best.as_ref().is_none_or(|(time, _)| best.0 < *time) {
            self.editor.jump(&best.1.repeats, &[]);
            if self.editor.state.excess == 0 {
                self.best = Some((self.editor.state.time, best.1.clone()));
            }
        }
    }

    /// Visits this many nodes, tree by tree.
    pub(crate) fn run(&mut self, nodes: u64) {
        let mut left = nodes;
        while left > 0 && self.best.is_some() {
            left = left.saturating_sub(self.solve(left.min(NODES)) + ENTRY);
        }
    }

    /// Solves one window in at most this many nodes; returns how many it took.
    fn solve(&mut self, nodes: u64) -> u64 {
        let Some((time, _)) = self.best else { return 0 };
        self.editor.settle();
        if !self.free() {
            return 0;
        }
        // A sequence that takes as long is as good a place to go on from.
        self.tree = Tree { nodes, below: time + 1, ..Tree::default() };
        self.branch();
        self.editor.undo();
        if let Some(found) = self.tree.found.take() {
            self.editor.jump(&found.repeats, &[]);
            self.best = Some((self.editor.state.time, found));
        }
        nodes - self.tree.nodes
    }

    /// Removes a few repeats that are neighbours in the sequence or in the trace.
    fn free(&mut self) -> bool {
        let repeats = self.editor.state.repeats();
        if repeats.is_empty() {
            return false;
        }
        let (stage, op) = repeats[self.editor.random.below(repeats.len())];
        let by_stage = self.editor.random.chance(0.5);
        let count = 1 + self.editor.random.below(FREED);
        let mut near: Vec<(u32, u32, u32)> = repeats
            .iter()
            .map(|&(s, o)| (if by_stage { s.abs_diff(stage) } else { o.abs_diff(op) }, s, o))
            .collect();
        near.sort_unstable();
        near.truncate(count);
        for (_, stage, op) in near {
            self.editor.remove_repeat(stage, op);
        }
        true
    }

    fn branch(&mut self) {
        let state = &self.editor.state;
        if self.tree.nodes == 0 || state.time >= self.tree.below {
            return;
        }
        self.tree.nodes -= 1;
        if state.excess == 0 {
            self.tree.below = state.time;
            self.tree.found = Some(state.decisions(PrefetchRule::Eager));
            return;
        }
        let (reliefs, least) = self.reliefs(state.highest_place());
        if self.editor.state.time + least >= self.tree.below {
            return;
        }
        let excluded = self.tree.excluded.len();
        for relief in reliefs.into_iter().take(BREADTH) {
            if self.editor.state.time + relief.time >= self.tree.below {
                continue;
            }
            let mark = self.editor.mark();
            self.editor.insert(relief.stage, relief.maker);
            self.branch();
            self.editor.undo_to(mark);
            self.tree.excluded.push((relief.stage, relief.maker));
        }
        self.tree.excluded.truncate(excluded);
    }

    /// Ways to relieve a place, most bytes per time first, and the least time that relieves it if tensors could leave in part.
    fn reliefs(&self, place: usize) -> (Vec<Relief>, u64) {
        let state = &self.editor.state;
        let inst = state.inst;
        let mut reliefs: Vec<Relief> = Vec::new();
        for (value, stage) in self.editor.droppable(place) {
            let row = inst.values[value as usize];
            let gain = i64::from(row.size);
            match reliefs.iter_mut().find(|relief| (relief.stage, relief.maker) == (stage, row.maker)) {
                Some(relief) => relief.gain += gain,
                None if self.tree.excluded.contains(&(stage, row.maker)) => {}
                None => {
                    let time = inst.ops[row.maker as usize].time;
                    reliefs.push(Relief { stage, maker: row.maker, time, gain });
                }
            }
        }
        reliefs.sort_unstable_by(|a, b| {
            let (ab, ba) = (u128::from(a.time) * b.gain as u128, u128::from(b.time) * a.gain as u128);
            ab.cmp(&ba).then(a.maker.cmp(&b.maker))
        });
        let mut missing = state.over_at(place);
        let mut least = 0;
        for relief in &reliefs {
            if missing <= 0 {
                break;
            }
            let part = missing.min(relief.gain);
            least += (u128::from(relief.time) * part as u128 / relief.gain as u128) as u64;
            missing -= part;
        }
        (reliefs, if missing > 0 { u64::MAX / 2 } else { least })
    }
}
