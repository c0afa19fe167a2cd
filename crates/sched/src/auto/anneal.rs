//! Simulated annealing over the recomputed ops of an [`AnnealState`].
//!
//! A move evicts a tensor in a gap (its op is recomputed before the use that ends the gap, and perhaps the ops of its inputs), keeps a tensor
//! (removes a recomputed op, and those that served it alone), shifts a recomputed op to another stage, or does two of these. The energy is
//! the time plus a price for every unit of memory above the limit. The price rises while the state is above the limit and falls while it is
//! below, so that the walk keeps crossing the limit: the best sequences lie there.

use super::moves::Editor;
use super::sequence::Decisions;
use super::state::AnnealState;
use crate::policy::PrefetchRule;

/// One walk.
#[derive(Clone, Debug)]
pub(crate) struct AnnealWalk<'a> {
    pub editor: Editor<'a>,
    /// Time units per unit of excess.
    price: f64,
    first_price: f64,
    /// Shortest time seen without excess.
    pub best: Option<(u64, Decisions)>,
    over: u32,
    steps: u32,
    /// Time for copies, in the order of [`AnnealState::copying`].
    room: [f64; 4],
}

impl<'a> AnnealWalk<'a> {
    pub(crate) fn new(state: AnnealState<'a>, seed: u64) -> Self {
        let inst = state.inst;
        let editor = Editor::new(state, seed);
        // At first a price at which evicting a typical tensor for a typical gap pays.
        let mean = inst.total as f64 / inst.ops.len().max(1) as f64;
        let sizes = editor.again.iter().map(|&value| f64::from(inst.values[value as usize].size));
        let typical = sizes.sum::<f64>() / editor.again.len().max(1) as f64 / f64::from(1u32 << inst.shift);
        let price = mean / (typical * inst.ops.len() as f64 * 0.05).max(1e-9);
        Self { editor, price, first_price: price, best: None, over: 0, steps: 0, room: [0.0; 4] }
    }

    /// A walk in which copies take time, with the time that may be spent on them.
    pub(crate) fn with_copies(state: AnnealState<'a>, seed: u64, room: [f64; 4]) -> Self {
        Self { room, ..Self::new(state, seed) }
    }

    /// Begins anew with nothing recomputed, at the price of excess with which it began, and forgets what it has found.
    pub(crate) fn restart(&mut self) {
        self.best = None;
        self.editor.jump(&[], &[]);
        self.price = self.first_price;
    }

    /// Where it is, if that fits.
    pub(crate) fn fitting(&self) -> Option<(u64, Decisions)> {
        let state = &self.editor.state;
        (state.excess == 0).then(|| (state.time, state.decisions(PrefetchRule::Eager)))
    }

    /// Whether it has found something that fits, or is where something fits.
    pub(crate) fn has_schedule(&self) -> bool {
        self.best.is_some() || self.editor.state.excess == 0
    }

    /// The shortest that it has found, or else where it is, if that fits.
    pub(crate) fn best_or_fitting(&self) -> Option<(u64, Decisions)> {
        self.best.clone().or_else(|| self.fitting())
    }

    fn energy(&self) -> f64 {
        let state = &self.editor.state;
        state.time as f64 + self.price * state.excess as f64 + 3.0 * self.crowded()
    }

    /// Time by which copies exceed what their streams have room for.
    fn crowded(&self) -> f64 {
        let copying = self.editor.state.copying.iter().zip(self.room);
        copying.map(|(&time, room)| (time as f64 - room).max(0.0)).sum()
    }

    /// Tries this many moves at a temperature in time units.
    pub(crate) fn run(&mut self, moves: u64, mut temperature: impl FnMut(u64) -> f64) {
        let mut energy = self.energy();
        let mut heat = 1.0;
        for step in 0..moves {
            if step % 64 == 0 {
                heat = temperature(step).max(1e-9);
            }
            self.editor.settle();
            self.editor.propose();
            let after = self.energy();
            let worse = after - energy;
            if worse <= 0.0 || self.editor.random.unit() < (-worse / heat).exp() {
                energy = after;
                let state = &self.editor.state;
                if state.excess == 0
                    && self.crowded() <= 0.0
                    && self.best.as_ref().is_none_or(|(time, _)| state.time < *time)
                {
                    self.best = Some((state.time, state.decisions(PrefetchRule::Eager)));
                }
            } else {
                self.editor.undo();
            }
            if self.account() {
                energy = self.energy();
            }
        }
    }

    /// Adjusts the price now and then; returns whether it did.
    fn account(&mut self) -> bool {
        self.steps += 1;
        self.over += u32::from(self.editor.state.excess > 0);
        if self.steps < 200 {
            return false;
        }
        let share = f64::from(self.over) / f64::from(self.steps);
        (self.steps, self.over) = (0, 0);
        self.price *= if share >= 1.0 && self.best.is_none() {
            1.5
        } else if share > 0.6 {
            1.1
        } else if share < 0.4 {
            1.0 / 1.1
        } else {
            1.0
        };
        true
    }
}
