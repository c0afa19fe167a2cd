//! A packer that packs no problem twice while one plan is made.
//!
//! The rounds of `fit` and the planners that pack (AutoSwap, whose four scores often select the same schedule) ask for the same problem again:
//! as a warm start of `auto`, as its peer, at the next round's limit. Packers are deterministic for a problem and a budget of evaluations, so
//! an answer that neither a clock nor an interruption ended is the answer to every later request with that budget.

use std::any::Any;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Goal, Observer, Outcome, StopReason};

/// Answers that are kept, the latest: placements of the largest problems take some megabytes together, and repetitions are close.
const KEPT: usize = 64;

/// Two hashes of a problem and its budget with independent keys. That two of the few problems of a plan share both is out of the question,
/// and a placement of another problem would not pass the checker.
type Key = (u64, u64);

/// See the [module](self).
pub(super) struct Remembered<'a> {
    packer: &'a dyn Packer,
    keys: (RandomState, RandomState),
    answers: Mutex<VecDeque<(Key, Outcome<Placement>)>>,
}

impl<'a> Remembered<'a> {
    pub(super) fn new(packer: &'a dyn Packer) -> Self {
        let keys = (RandomState::new(), RandomState::new());
        Self { packer, keys, answers: Mutex::new(VecDeque::new()) }
    }

    fn key(&self, problem: &Problem, budget: &Budget) -> Key {
        let of = |keys: &RandomState| {
            keys.hash_one((problem.blocks.as_slice(), problem.capacity, budget.evaluations, budget.seed))
        };
        (of(&self.keys.0), of(&self.keys.1))
    }
}

impl Packer for Remembered<'_> {
    fn name(&self) -> &'static str {
        self.packer.name()
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        if budget.time.is_some() {
            return self.packer.pack(problem, budget, observer);
        }
        let key = self.key(problem, budget);
        let known = |answers: &VecDeque<(Key, Outcome<Placement>)>| {
            answers.iter().find(|(known, _)| *known == key).map(|(_, answer)| answer.clone())
        };
        // A packer that panics holds no lock, so that what is behind one is whole.
        if let Some(answer) = known(&self.answers.lock().unwrap_or_else(PoisonError::into_inner)) {
            return answer;
        }
        let watch = Heard { observer, interrupted: AtomicBool::new(false) };
        let answer = self.packer.pack(problem, budget, &watch);
        let late = observer.deadline().is_some_and(|end| end <= Instant::now());
        let cut = matches!(answer.stop, StopReason::Interrupted | StopReason::Time);
        if !cut && !late && !watch.interrupted.into_inner() {
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            if answers.len() == KEPT {
                answers.pop_front();
            }
            answers.push_back((key, answer.clone()));
        }
        answer
    }
}

/// Forwards everything, and remembers whether the packer was told to stop. To ask the observer once more would be a question of our own, which
/// an observer with a deadline would take for the end of the search.
struct Heard<'a> {
    observer: &'a dyn Observer,
    interrupted: AtomicBool,
}

impl Observer for Heard<'_> {
    fn begins(&self, goal: &Goal<'_>) {
        self.observer.begins(goal);
    }

    fn improved(&self, cost: u64, bound: u64) {
        self.observer.improved(cost, bound);
    }

    fn progress(&self, evaluations: u64) {
        self.observer.progress(evaluations);
    }

    fn note(&self, note: &dyn Any) {
        self.observer.note(note);
    }

    fn origin(&self, origin: &str) {
        self.observer.origin(origin);
    }

    fn interrupted(&self) -> bool {
        let interrupted = self.observer.interrupted();
        if interrupted {
            self.interrupted.store(true, Ordering::Relaxed);
        }
        interrupted
    }

    fn deadline(&self) -> Option<Instant> {
        self.observer.deadline()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::Block;
    use elbowroom_ir::search::Silent;

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicU64);

    impl Packer for Counting {
        fn name(&self) -> &'static str {
            "counting"
        }

        fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let stop = if observer.interrupted() { StopReason::Interrupted } else { StopReason::Finished };
            let offsets = problem.blocks.values().map(|_| Bytes(budget.seed)).collect();
            Outcome { best: Some(Placement::new(problem, offsets)), evaluations: 1, stop }
        }
    }

    #[derive(Default)]
    struct Switch(AtomicBool);

    impl Observer for Switch {
        fn interrupted(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn problem(size: u64, capacity: Option<Bytes>) -> Problem {
        Problem { blocks: std::iter::once(Block::new(0, 1, Bytes(size))).collect(), capacity }
    }

    #[test]
    fn a_problem_is_packed_once_for_each_budget() {
        let counting = Counting::default();
        let packer = Remembered::new(&counting);
        let twenty = Budget::evaluations(20);
        let made = || counting.0.load(Ordering::Relaxed);
        let first = packer.pack(&problem(8, None), &twenty, &Silent);
        assert_eq!(packer.pack(&problem(8, None), &twenty, &Silent), first);
        assert_eq!(made(), 1);
        // Another size, capacity, number of evaluations or seed is another question.
        packer.pack(&problem(9, None), &twenty, &Silent);
        packer.pack(&problem(8, Some(Bytes(8))), &twenty, &Silent);
        packer.pack(&problem(8, None), &Budget::evaluations(21), &Silent);
        let seeded = packer.pack(&problem(8, None), &Budget { seed: 3, ..twenty.clone() }, &Silent);
        assert_eq!(made(), 5);
        assert_ne!(seeded, first);
        // A clock decides.
        packer.pack(&problem(8, None), &Budget::default(), &Silent);
        packer.pack(&problem(8, None), &Budget::default(), &Silent);
        assert_eq!(made(), 7);
    }

    #[test]
    fn what_was_interrupted_is_packed_again() {
        let counting = Counting::default();
        let packer = Remembered::new(&counting);
        let (budget, switch) = (Budget::evaluations(20), Switch::default());
        switch.0.store(true, Ordering::Relaxed);
        packer.pack(&problem(8, None), &budget, &switch);
        switch.0.store(false, Ordering::Relaxed);
        packer.pack(&problem(8, None), &budget, &switch);
        packer.pack(&problem(8, None), &budget, &switch);
        assert_eq!(counting.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn the_latest_answers_are_kept() {
        let counting = Counting::default();
        let packer = Remembered::new(&counting);
        let budget = Budget::evaluations(20);
        for size in 0..=KEPT as u64 {
            packer.pack(&problem(size, None), &budget, &Silent);
        }
        packer.pack(&problem(KEPT as u64, None), &budget, &Silent);
        assert_eq!(counting.0.load(Ordering::Relaxed), KEPT as u64 + 1);
        packer.pack(&problem(0, None), &budget, &Silent);
        assert_eq!(counting.0.load(Ordering::Relaxed), KEPT as u64 + 2);
    }
}
