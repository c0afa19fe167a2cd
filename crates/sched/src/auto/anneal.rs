//! Simulated annealing over the repeats of a [`State`].
//!
//! A move drops a value in a gap (its maker runs again before the use that ends the gap, and perhaps the makers of what that needs),
//! keeps one (takes a repeat away, and what served it alone), shifts a repeat to another stage, or does two of these. The energy is the
//! time plus a price for every unit of excess; the price rises while the state is over the limit and falls while it is under it, so
//! that the walk keeps crossing the border at which the best sequences lie.

use super::instance::NONE;
use super::random::Random;
use super::state::State;

/// One walk.
#[derive(Clone, Debug)]
pub(crate) struct Walk<'a> {
    pub state: State<'a>,
    pub random: Random,
    /// Time units per unit of excess.
    pub price: f64,
    /// Shortest time seen without excess, and its repeats.
    pub best: Option<(u64, Vec<(u32, u32)>)>,
    /// Values that can be made again: those worth drawing.
    candidates: Vec<u32>,
    journal: Vec<(bool, u32, u32)>,
    over: u32,
    steps: u32,
    pub evaluations: u64,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(state: State<'a>, seed: u64) -> Self {
        let inst = state.inst;
        let again = |v: &u32| {
            let value = inst.values[*v as usize];
            value.maker != NONE && inst.ops[value.maker as usize].latest > 0 && value.size > 0
        };
        let candidates: Vec<u32> = (0..inst.values.len() as u32).filter(again).collect();
        // At first a price at which dropping a typical value for a typical gap pays.
        let mean = inst.total as f64 / inst.ops.len().max(1) as f64;
        let bytes: f64 = candidates.iter().map(|&v| f64::from(inst.values[v as usize].size)).sum::<f64>();
        let typical = bytes / candidates.len().max(1) as f64 / f64::from(1u32 << inst.shift);
        let price = mean / (typical * inst.ops.len() as f64 * 0.05).max(1e-9);
        Self {
            state,
            random: Random::new(seed),
            price,
            best: None,
            candidates,
            journal: Vec::new(),
            over: 0,
            steps: 0,
            evaluations: 0,
        }
    }

    fn energy(&self) -> f64 {
        self.state.time as f64 + self.price * self.state.excess as f64
    }

    /// Makes the state one with these repeats.
    pub(crate) fn jump(&mut self, repeats: &[(u32, u32)]) {
        while let Some(&(stage, op)) = self.state.repeats().last() {
            self.state.remove(stage, op);
        }
        for &(stage, op) in repeats {
            self.state.insert(stage, op);
        }
    }

    /// Tries so many moves at a temperature in time units.
    pub(crate) fn run(&mut self, moves: u64, mut temperature: impl FnMut(u64) -> f64) {
        let mut energy = self.energy();
        let mut heat = 1.0;
        for step in 0..moves {
            if step % 64 == 0 {
                heat = temperature(step).max(1e-9);
            }
            self.journal.clear();
            self.propose();
            if self.journal.is_empty() {
                self.account();
                continue;
            }
            let after = self.energy();
            let worse = after - energy;
            if worse <= 0.0 || self.random.unit() < (-worse / heat).exp() {
                energy = after;
                if self.state.excess == 0
                    && self.best.as_ref().is_none_or(|(time, _)| self.state.time < *time)
                {
                    let mut repeats = self.state.repeats().to_vec();
                    repeats.sort_unstable();
                    self.best = Some((self.state.time, repeats));
                }
            } else {
                self.undo();
            }
            if self.account() {
                energy = self.energy();
            }
        }
        self.evaluations += moves;
    }

    /// Adjusts the price now and then; says whether it did.
    fn account(&mut self) -> bool {
        self.steps += 1;
        self.over += u32::from(self.state.excess > 0);
        if self.steps < 200 {
            return false;
        }
        let share = f64::from(self.over) / f64::from(self.steps);
        (self.steps, self.over) = (0, 0);
        self.price *= if share > 0.6 {
            1.1
        } else if share < 0.4 {
            1.0 / 1.1
        } else {
            1.0
        };
        true
    }

    fn insert(&mut self, stage: u32, op: u32) {
        self.state.insert(stage, op);
        self.journal.push((true, stage, op));
    }

    fn remove(&mut self, stage: u32, op: u32) {
        self.state.remove(stage, op);
        self.journal.push((false, stage, op));
    }

    fn undo(&mut self) {
        while let Some((inserted, stage, op)) = self.journal.pop() {
            if inserted {
                self.state.remove(stage, op);
            } else {
                self.state.insert(stage, op);
            }
        }
    }

    fn propose(&mut self) {
        if self.candidates.is_empty() {
            return;
        }
        match self.random.below(10) {
            0..=3 => self.drop_value(),
            4..=5 => self.keep_value(),
            6..=7 => self.shift(),
            _ => {
                self.keep_value();
                self.drop_value();
            }
        }
    }

    /// Drops a value in a random gap.
    fn drop_value(&mut self) {
        for _ in 0..8 {
            let value = self.candidates[self.random.below(self.candidates.len())];
            let touches = self.state.touch_count(value);
            if touches < 2 {
                continue;
            }
            let index = 1 + self.random.below(touches - 1);
            let Some((stage, op, false)) = self.state.touch(value, index) else { continue };
            let maker = self.state.inst.values[value as usize].maker;
            // Right after it was made there is nothing to gain.
            if stage <= maker + 1 && op == stage {
                continue;
            }
            if stage > self.state.inst.ops[maker as usize].latest
                || self.state.has(stage, maker)
                || maker >= op
            {
                continue;
            }
            let deep = if self.random.chance(0.5) { 0.9 } else { 0.3 };
            self.make_again(stage, maker, deep);
            return;
        }
    }

    /// Runs an op again in a stage, and with some chance the makers of those inputs that would have to be kept for it.
    fn make_again(&mut self, stage: u32, op: u32, deep: f64) {
        let inst = self.state.inst;
        let mut next = vec![op];
        while let Some(op) = next.pop() {
            if self.state.has(stage, op) {
                continue;
            }
            for &input in &inst.ops[op as usize].reads {
                let maker = inst.values[input as usize].maker;
                if maker != NONE
                    && inst.ops[maker as usize].latest >= stage
                    && maker < stage
                    && !self.state.alive_at(input, stage, op)
                    && self.random.chance(deep)
                    && next.len() < 64
                {
                    next.push(maker);
                }
            }
            self.insert(stage, op);
        }
    }

    /// Takes a random repeat away, and everything that then serves nobody.
    fn keep_value(&mut self) {
        let repeats = self.state.repeats();
        if repeats.is_empty() {
            return;
        }
        let (stage, op) = repeats[self.random.below(repeats.len())];
        self.take_away(stage, op);
    }

    fn take_away(&mut self, stage: u32, op: u32) {
        let inst = self.state.inst;
        let mut next = vec![(stage, op)];
        while let Some((stage, op)) = next.pop() {
            if !self.state.has(stage, op) {
                continue;
            }
            self.remove(stage, op);
            for &input in &inst.ops[op as usize].reads {
                if let Some((made, maker)) = self.state.made_before(input, stage, op)
                    && made != maker
                    && self.state.useless(made, maker)
                {
                    next.push((made, maker));
                }
            }
        }
    }

    /// Moves a random repeat, and perhaps those of the same stage that serve it, to another stage.
    fn shift(&mut self) {
        let repeats = self.state.repeats();
        if repeats.is_empty() {
            return;
        }
        let (stage, op) = repeats[self.random.below(repeats.len())];
        let span = 1 + self.random.below(6) as u32;
        let to = if self.random.chance(0.5) { stage.saturating_sub(span) } else { stage + span };
        if to <= op
            || to > self.state.inst.ops[op as usize].latest
            || to as usize >= self.state.inst.ops.len()
        {
            return;
        }
        if self.random.chance(0.5) {
            let group: Vec<u32> = self.state.again(stage).to_vec();
            for other in group {
                if other < to && to <= self.state.inst.ops[other as usize].latest {
                    self.remove(stage, other);
                    if !self.state.has(to, other) {
                        self.insert(to, other);
                    }
                }
            }
            return;
        }
        self.remove(stage, op);
        if !self.state.has(to, op) {
            self.insert(to, op);
        }
    }
}
