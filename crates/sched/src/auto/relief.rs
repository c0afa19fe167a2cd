//! A state over the limit, relieved greedily: what [`mincut`](super::mincut) recomputes, the activations of [streamed](super::stream) parameters,
//! an earlier schedule within a lower limit, and a schedule of recompute alone where the planners of the [warm starts](super::warm) find nothing good.
//!
//! While live memory exceeds the limit, a tensor that is alive without being used at the place with the most leaves: the one that lowers the
//! excess most for its time. It is evicted, and the inputs of its op are kept for it or recomputed too, or it is offloaded, if copies have a
//! price. Afterwards whatever the limit no longer asks for is kept again, the longest ops first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use elbowroom_ir::planning::{Planner, Request};

use super::instance::Instance;
use super::moves::Editor;
use super::search::{TYPICAL, can_fit_alone};
use super::sequence::{Decisions, policy};
use super::state::{AnnealState, Copies};
use super::{Auto, Found};
use crate::lower::{Lowered, lower};

/// Tensors tried at a place: most bytes per time first. With copies there are others to choose from.
const BREADTH: usize = 32;
const BREADTH_WITH_COPIES: usize = 64;
/// Ways tried altogether on traces of up to [`TYPICAL`] ops: on longer ones each takes longer.
const TRIALS: usize = 20_000;
const TRIALS_WITH_COPIES: usize = 400_000;
/// A copy counts as this part of its time: it costs nothing as long as the link has time for it.
const COPYING: u64 = 1_000;
/// Changes of a state that a relief with a link may try. A ResNet-152 takes up to 35,000; where a tensor is recomputed from far away, a relief that
/// takes more takes longer than the search, which does as well.
const CHANGES: usize = 40_000;
/// For how many tensors that leave what another would gain is remembered, and by what factor it may have grown in the meantime: mostly it has
/// shrunk, since both lower the same excess. A GPT-2 of 714 ops is relieved in a tenth of the time, and as well.
const REMEMBERED: u64 = 32;
const GROWTH: f64 = 1.5;

/// What a relief may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means {
    /// Tensors are offloaded too, as long as copies take at most this share, in tenths, of the time before and after the op with the highest live
    /// memory: copies wait for each other and for memory, in some networks more than in others. Without it, tensors are recomputed only.
    pub link: Option<u64>,
    /// Changes of the state that it may try.
    pub changes: usize,
}

impl Means {
    /// Recompute alone.
    pub(crate) const ALONE: Self = Self { link: None, changes: usize::MAX };

    /// With this share of the link.
    pub(crate) const fn with_link(tenths: u64) -> Self {
        Self { link: Some(tenths), changes: CHANGES }
    }
}

/// A schedule of recompute alone that keeps to the limit; `None` if there is none, or every eviction at some place makes things worse.
pub(crate) fn schedule(request: &Request<'_>, inst: &Instance) -> Option<Found> {
    if !request.freedom.recompute || !can_fit_alone(request) {
        return None;
    }
    let Lowered { iteration, schedule, .. } =
        relieved(request, inst, &Decisions::KEEP, Means::ALONE, &|| false)?;
    Some(Found { time: iteration.get(), schedule, by: Auto.name() })
}

/// The schedule of some decisions in which more tensors are away where the limit asks for it, and those are kept for which it no longer asks;
/// `None` if nothing helps at some place, too much has been tried, or it is interrupted.
pub(crate) fn relieved(
    request: &Request<'_>,
    inst: &Instance,
    decisions: &Decisions,
    means: Means,
    interrupted: &dyn Fn() -> bool,
) -> Option<Lowered> {
    let mut state = AnnealState::new(inst);
    let (mut prices, mut room) = (None, [u64::MAX; 4]);
    if let Some(tenths) = means.link {
        let copies = Copies::of(request, inst, 1.0);
        let price = |(out, back): (&u64, &u64)| (out + back) / COPYING;
        prices = Some(copies.out.iter().zip(&copies.back).map(price).collect::<Vec<u64>>());
        let before = inst.start(state.highest_place());
        let [first, second] = [before, inst.total - before].map(|time| time / 10 * tenths);
        room = [first, second, second, first];
        state.copies = Some(Arc::new(copies));
    }
    let mut relief = Relief::new(state, prices.as_deref());
    (relief.room, relief.changes) = (room, means.changes);
    relief.editor.jump(&decisions.repeats, &decisions.prefetches);
    relief.relieve(interrupted)?;
    relief.keep_again(interrupted)?;
    lower(request, &policy(request, inst, &relief.editor.state.decisions(decisions.rule))).ok()
}

/// A state that is being relieved.
pub(crate) struct Relief<'a> {
    pub editor: Editor<'a>,
    /// What offloading each tensor costs, in time units; `None` if none may be offloaded.
    prices: Option<&'a [u64]>,
    /// The time that copies may take, in the order of [`AnnealState::copying`].
    pub room: [u64; 4],
    /// Ways that may still be tried, and changes of the state that these may make together: a way with all that it recomputes in turn may be a
    /// hundred of them.
    trials: usize,
    pub changes: usize,
    /// Tensors that have left.
    left: u64,
    /// What the ways gained when they were tried last, and how many tensors had left then.
    scores: HashMap<Way, (f64, u64)>,
}

/// A way in which a tensor leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Way {
    /// An op is recomputed in a stage, and with `deep` the ops of its inputs too.
    Recompute { stage: u32, op: u32, deep: bool },
    /// A tensor is prefetched for an op in a stage.
    Prefetch(u32, u32, u32),
}

/// A way in the order in which ways are tried: what it gained last, then its place in the list.
#[derive(PartialEq)]
struct Candidate(f64, Reverse<usize>, Way);

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Those with the highest scores, at most so many, the highest first. Sorting all of them takes longer than all else.
fn most<T: Ord + Copy>(mut scored: Vec<(f64, T)>, at_most: usize) -> Vec<T> {
    let order = |a: &(f64, T), b: &(f64, T)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if scored.len() > at_most {
        scored.select_nth_unstable_by(at_most, order);
        scored.truncate(at_most);
    }
    scored.sort_unstable_by(order);
    scored.into_iter().map(|(_, one)| one).collect()
}

impl<'a> Relief<'a> {
    /// Begins with a state; `prices` are what offloading each tensor costs, if it is allowed.
    pub(crate) fn new(state: AnnealState<'a>, prices: Option<&'a [u64]>) -> Self {
        let most = if prices.is_some() { TRIALS_WITH_COPIES } else { TRIALS };
        let trials = most * TYPICAL / state.inst.ops.len().max(TYPICAL);
        Self {
            editor: Editor::new(state, 0),
            prices,
            room: [u64::MAX; 4],
            trials,
            changes: usize::MAX,
            left: 0,
            scores: HashMap::new(),
        }
    }

    /// Lets tensors leave until nothing exceeds the limit; `None` if nothing helps at some place, too much has been tried, or it is interrupted.
    pub(crate) fn relieve(&mut self, interrupted: &dyn Fn() -> bool) -> Option<()> {
        while self.editor.state.excess > 0 {
            let way = self.best().filter(|_| !interrupted())?;
            self.take(way);
            self.left += 1;
        }
        Some(())
    }

    fn take(&mut self, way: Way) {
        match way {
            Way::Recompute { stage, op, deep } => self.editor.recompute(stage, op, f64::from(deep)),
            Way::Prefetch(value, stage, op) => self.editor.prefetch(value, stage, op),
        }
    }

    /// The way that lowers the excess most for its time.
    fn best(&mut self) -> Option<Way> {
        let fresh = |&(_, left): &&(f64, u64)| left + REMEMBERED > self.left;
        let expected =
            |way: &Way| self.scores.get(way).filter(fresh).map_or(f64::INFINITY, |&(score, _)| score);
        let ways = self.ways().into_iter().enumerate();
        let mut queue: BinaryHeap<Candidate> =
            ways.map(|(index, way)| Candidate(expected(&way), Reverse(index), way)).collect();
        let mut best: Option<(f64, Way)> = None;
        while let Some(Candidate(expected, _, way)) = queue.pop() {
            if best.is_some_and(|(most, _)| most >= GROWTH * expected) {
                break;
            }
            self.trials = self.trials.checked_sub(1).filter(|_| self.changes > 0)?;
            let score = self.score(way, best.map_or(0.0, |(most, _)| most));
            self.scores.insert(way, (score, self.left));
            if score > 0.0 && best.is_none_or(|(most, _)| score > most) {
                best = Some((score, way));
            }
        }
        Some(best?.1)
    }

    /// By how much a way lowers the excess for its time. Deep recomputation may go back to the beginning of the iteration. It ends where the
    /// score can no longer come near `best`; an upper bound of the score is returned then.
    fn score(&mut self, way: Way, best: f64) -> f64 {
        let (excess, time) = (self.editor.state.excess, self.editor.state.time);
        self.editor.settle();
        // The upper bound of the gain where the recomputation ended early.
        let mut at_most = None;
        match way {
            Way::Recompute { stage, op, deep: true } => {
                let mut bound = None;
                self.editor.recompute_until(stage, op, 1.0, |state| {
                    let bound = *bound.get_or_insert_with(|| state.gain_at_most(stage, op));
                    // Remembered scores within one factor of the best are tried again at once.
                    let hopeless = GROWTH * GROWTH * (bound as f64) < best * (state.time - time + 1) as f64;
                    at_most = hopeless.then_some(bound);
                    hopeless
                });
            }
            _ => self.take(way),
        }
        self.changes = self.changes.saturating_sub(self.editor.mark());
        let state = &self.editor.state;
        let price = match (way, self.prices) {
            (Way::Prefetch(value, ..), Some(prices)) => prices[value as usize],
            _ => state.time - time,
        };
        let gain = at_most.unwrap_or(excess - state.excess);
        self.editor.undo();
        gain as f64 / (price + 1) as f64
    }

    /// Ways to relieve the place with the most live memory, most bytes per time first.
    fn ways(&self) -> Vec<Way> {
        let state = &self.editor.state;
        let (inst, place) = (state.inst, state.highest_place());
        let per_time =
            |value: u32, time: u64| f64::from(inst.values[value as usize].size) / (time + 1) as f64;
        let breadth = if self.prices.is_some() { BREADTH_WITH_COPIES } else { BREADTH };
        let again = self.editor.droppable(place).map(|(value, stage)| {
            let op = inst.values[value as usize].maker;
            (per_time(value, inst.ops[op as usize].time), (stage, op))
        });
        // An op that makes several tensors is there as often.
        let mut again = most(again.collect(), 2 * breadth);
        again.dedup();
        let again = again.into_iter().take(breadth);
        let again =
            again.flat_map(|(stage, op)| [false, true].map(|deep| Way::Recompute { stage, op, deep }));
        let mut ways: Vec<Way> = again.collect();
        if let Some(prices) = self.prices {
            let away = state.idle_at(place).filter(|&(value, _, stage, op)| {
                !inst.values[value as usize].pinned && self.has_room(value, stage, op)
            });
            let away = away.map(|idle| (per_time(idle.0, prices[idle.0 as usize]), idle));
            let away = most(away.collect(), breadth);
            ways.extend(away.into_iter().map(|(value, _, stage, op)| Way::Prefetch(value, stage, op)));
        }
        ways
    }

    /// Whether the link has time for the copies of another tensor that is prefetched for a use.
    fn has_room(&self, value: u32, stage: u32, op: u32) -> bool {
        let state = &self.editor.state;
        let Some(copies) = &state.copies else { return true };
        let begins = state.use_before(value, stage, op).is_none();
        let first = if begins { 2 } else { 0 };
        let times = [copies.out[value as usize], copies.back[value as usize]];
        let fits = |(index, time): (usize, u64)| state.copying[index] + time <= self.room[index];
        (first..).zip(times).all(fits)
    }

    /// Removes the repeats without which everything still fits; `None` if it is interrupted.
    pub(crate) fn keep_again(&mut self, interrupted: &dyn Fn() -> bool) -> Option<()> {
        let mut repeats = self.editor.state.repeats().to_vec();
        let ops = &self.editor.state.inst.ops;
        repeats.sort_by_key(|&(stage, op)| (Reverse(ops[op as usize].time), stage, op));
        for (stage, op) in repeats {
            if interrupted() {
                return None;
            }
            self.if_it_fits(|editor| editor.remove_repeat(stage, op));
        }
        Some(())
    }

    /// Makes a change, unless something exceeds the limit then.
    pub(crate) fn if_it_fits(&mut self, change: impl FnOnce(&mut Editor<'a>)) {
        self.editor.settle();
        change(&mut self.editor);
        if self.editor.state.excess > 0 {
            self.editor.undo();
        }
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::zoo::{self, Options};
    use elbowroom_ir::Bytes;
    use elbowroom_ir::planning::{Costs, Freedom};
    use elbowroom_ir::schedule::Schedule;
    use elbowroom_ir::search::{Budget, Silent};
    use elbowroom_sim::cost::Roofline;
    use elbowroom_sim::presets;

    use super::super::warm::{EARLIER, WarmStart};
    use super::*;
    use crate::lower::least_live;
    use crate::offload::floor::Floor;
    use crate::policy::Policy;
    use crate::recompute::sublinear::Sublinear;

    #[test]
    fn a_schedule_is_relieved_by_what_a_lower_limit_asks_for() {
        let machine = presets::machine("a100").unwrap();
        let trace = zoo::build("resnet50", &Options::new(64).image(224)).unwrap();
        let trace = trace.trace(&|_, _| Bytes::ZERO).unwrap();
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        let (trace, costs, machine) = (&trace, &costs, &machine);
        let freedom = Freedom { reorder: false, ..Freedom::ALL };
        let request =
            |live_limit| Request { trace, costs, machine, live_limit, freedom, packer: None, pins: None };
        let plain = Policy::prompt(trace);
        let (peak, _) = least_live(&request(Bytes(u64::MAX >> 1)), &plain).unwrap();
        let live = |schedule: &Schedule| {
            let timeline = elbowroom_sim::simulate(trace, costs, machine, schedule);
            timeline.expect("what was lowered can be simulated").peak_live
        };
        let planners: [(&dyn Planner, Means); 2] =
            [(&Sublinear, Means::ALONE), (&Floor, Means::with_link(10))];
        for (planner, means) in planners {
            let half = request(Bytes(peak.get() / 2));
            let known = planner.schedule(&half, &Budget::evaluations(32), &Silent).best.unwrap();
            let inst = Instance::new(&half, plain.sequence.clone());
            let decided = WarmStart::known(&half, &inst, &known, EARLIER).unwrap().decisions;
            let request = request(Bytes(live(&known).get() * 98 / 100));
            let inst = Instance::new(&request, plain.sequence.clone());
            let relieved = relieved(&request, &inst, &decided, means, &|| false).expect("it can be relieved");
            assert!(live(&relieved.schedule) <= request.live_limit);
            let other = WarmStart::known(&request, &inst, &relieved.schedule, EARLIER).unwrap().decisions;
            let all = decided.repeats.len() + decided.prefetches.len();
            let both = decided.repeats.iter().filter(|repeat| other.repeats.contains(repeat)).count()
                + decided.prefetches.iter().filter(|prefetch| other.prefetches.contains(prefetch)).count();
            assert!(4 * both >= 3 * all, "{}: {both} of {all} decisions stay", planner.name());
        }
    }
}
