//! One sequence of requests: recorded until it repeats, then answered from a plan, and recorded again when it changes.
//!
//! A sequence belongs to one thread, or to one queue of a device. Blocks may be freed by anybody; requests come from its owner.
//!
//! ```text
//!            two equal iterations              unexpected requests
//! recording ──────────────────────▶ replaying ──────────────────────▶ recording, and looking for a passage
//!     ▲                             │     ▲                            of a plan that was left
//!     │                             └─────┘ larger request, later free:                │
//!     └── forgets, when full                reoptimized when an iteration ends         └──▶ replaying
//! ```

use std::collections::VecDeque;
use std::ops::Deref;

use elbowroom_ir::search::Budget;

use crate::arena::Arena;
use crate::directory::{Directory, Place};
use crate::layout::{Layout, Planning, unrolled};
use crate::memory::Backing;
use crate::record::{Life, Record};
use crate::replay::{Finished, GRAM, Replay, Step, passage};
use crate::request::{Moment, Request, Ticket};
use crate::stats::Stats;

/// Plans kept for phases of a program, such as training and evaluation.
const KEPT: usize = 4;

/// Expected requests in a row after which a plan has proved itself, if they are also two iterations and half of all that was recorded.
const PROOF: usize = 256;

/// More than this is not asked for because much was recorded.
const PROOF_OF_HISTORY: usize = 1 << 14;

/// Plans that a sequence makes in its life.
const MOST_PLANS: u64 = 1_000;

/// How a sequence works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Slots start and end at multiples of this many bytes; a power of two.
    pub granule: usize,
    /// How long to look for a low placement. The program waits meanwhile.
    pub budget: Budget,
    /// Most requests recorded while no iteration is known; an iteration of more than a quarter of this is not found.
    pub history: usize,
}

impl Default for Settings {
    /// 64 bytes, a quarter of a second at most, 2^17 requests.
    fn default() -> Self {
        let time = Some(std::time::Duration::from_millis(250));
        Self { granule: 64, budget: Budget { time, ..Budget::evaluations(256) }, history: 1 << 17 }
    }
}

/// What a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This address, until it is [released](Directory::release). With a ticket, the sequence wants to be told of that as well.
    Planned(usize, Option<Ticket>),
    /// Whatever the fallback has. With a ticket, the sequence wants to be told when the block is [freed](Sequence::freed).
    Fallback(Option<Ticket>),
}

struct Reserved {
    place: Place,
    base: usize,
    bytes: usize,
    align: usize,
}

/// The requests of one thread or queue, with the plans made for them.
pub struct Sequence<B: Backing, D: Deref<Target = Directory>> {
    backing: B,
    directory: D,
    settings: Settings,
    record: Record,
    recent: VecDeque<Request>,
    plans: Vec<Replay>,
    active: Option<usize>,
    reserved: Vec<Reserved>,
    interruptions: u32,
    /// Where the last iteration marks stood, if the program marks its iterations.
    marks: Option<Marks>,
    /// Whether the plan in use was made for what was just detected, and not taken up again.
    detected: bool,
    /// Whether the plan in use has answered many requests in a row.
    proved: bool,
    /// Expected requests in a row that prove a plan. Doubles when a proved plan is soon left after all.
    proof: usize,
    /// Requests before the plan in use had proved itself.
    proved_at: u64,
    /// Requests in a row that were the expected ones.
    calm: usize,
    /// Iterations since the plan in use was made or taken up, and requests while it had not proved itself.
    since: u64,
    requests_since: usize,
    stats: Stats,
}

#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    last: Option<Moment>,
    /// Requests between the two marks before the last.
    length: Option<usize>,
}

impl<B: Backing, D: Deref<Target = Directory>> Sequence<B, D> {
    /// A sequence that has seen nothing, with the memory that its arenas come from and the directory that they go to.
    pub fn new(backing: B, directory: D, settings: Settings) -> Self {
        Self {
            backing,
            directory,
            record: Record::new(settings.history),
            settings,
            recent: VecDeque::with_capacity(GRAM),
            plans: Vec::new(),
            active: None,
            reserved: Vec::new(),
            interruptions: 0,
            marks: None,
            detected: false,
            proved: false,
            proof: PROOF,
            proved_at: 0,
            calm: 0,
            since: 0,
            requests_since: 0,
            stats: Stats::default(),
        }
    }

    /// The next request of the owner.
    #[inline]
    pub fn request(&mut self, request: Request) -> Answer {
        self.stats.requests += 1;
        self.stats.bytes = self.stats.bytes.saturating_add(request.size as u64);
        if self.interruptions > 0 {
            self.stats.interrupted += 1;
            return Answer::Fallback(None);
        }
        match self.active {
            Some(active) if self.proved => self.replay(active, request),
            Some(active) => self.try_out(active, request),
            None => self.listen(request),
        }
    }

    /// Answers from a plan.
    #[inline]
    fn replay(&mut self, active: usize, request: Request) -> Answer {
        let replay = &mut self.plans[active];
        let Some(arena) = self.directory.get(replay.place()) else { return Answer::Fallback(None) };
        let step = replay.request(request, arena);
        let finished = replay.finished();
        if let Step::Planned(address) = step {
            self.calm += 1;
            self.stats.planned += 1;
            self.stats.planned_bytes = self.stats.planned_bytes.saturating_add(request.size as u64);
            if let Some(finished) = finished {
                self.finish(finished);
            }
            return Answer::Planned(address, None);
        }
        self.unplanned(step, finished);
        Answer::Fallback(None)
    }

    #[cold]
    fn unplanned(&mut self, step: Step, finished: Option<Finished>) {
        match step {
            Step::Late => self.stats.late += 1,
            Step::Missed | Step::Lost => {
                self.stats.mismatches += 1;
                self.calm = 0;
            }
            Step::Planned(_) | Step::Unslotted => {}
        }
        if step == Step::Lost {
            self.lose();
        } else if let Some(finished) = finished {
            self.finish(finished);
        }
    }

    /// Answers from a plan that has not proved itself yet, and goes on recording: what repeated may have been a loop within the iteration.
    #[cold]
    fn try_out(&mut self, active: usize, request: Request) -> Answer {
        self.requests_since += 1;
        let (ticket, period) = self.record.request(request);
        let answer = self.replay(active, request);
        if self.active == Some(active) {
            let length = self.plans[active].lives().len();
            let history = (self.record.len() / 2).min(PROOF_OF_HISTORY);
            let proof = self.proof.max(2 * length).max(history);
            if self.calm >= proof && self.plans[active].at_beginning() {
                self.prove(active);
                return answer;
            }
            if let Some(period) = period.filter(|&period| period > length && self.marks.is_none()) {
                self.plan_or_wait(period);
            }
        }
        match answer {
            Answer::Planned(address, _) => Answer::Planned(address, ticket),
            Answer::Fallback(_) => Answer::Fallback(ticket),
        }
    }

    /// The plan in use has proved itself: recording ends. What was learned since the plan was made about how long blocks live is used.
    fn prove(&mut self, active: usize) {
        let plan = &self.plans[active];
        let lives = unrolled(self.record.iteration(plan.lives().len()));
        let slots = lives.iter().filter(|life| life.span.is_some_and(|span| span <= lives.len())).count();
        if !plan.is_marked() && slots * plan.lives().len() > plan.slots() * lives.len() {
            self.improve(active, lives);
        }
        self.proved = true;
        self.proved_at = self.stats.requests;
        self.record.be_patient(0);
        self.record.forget();
    }

    /// A recorded block was freed at a moment of this sequence.
    pub fn freed(&mut self, ticket: Ticket, at: Moment) {
        self.record.freed(ticket, at);
    }

    /// The present moment, in requests recorded.
    pub fn now(&self) -> Moment {
        self.record.now()
    }

    /// Whether it records: otherwise it wants to hear of no frees.
    pub fn is_recording(&self) -> bool {
        self.active.is_none() || !self.proved
    }

    /// Counts so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Counts so far, where they lie.
    #[inline]
    pub(crate) fn stats_ref(&self) -> &Stats {
        &self.stats
    }

    /// Says that an iteration begins here. A program that marks its iterations is planned after two marked iterations with the same number
    /// of requests, whatever their sizes; nothing else is taken for an iteration.
    pub fn mark_iteration(&mut self) {
        let marks = self.marks.get_or_insert_default();
        if let Some(active) = self.active {
            let plan = &mut self.plans[active];
            if !plan.is_marked() {
                // It was found before there were marks, and begins anywhere.
                return self.lose();
            }
            plan.align();
            if let Some(finished) = plan.finished() {
                self.finish(finished);
            }
            return;
        }
        let now = self.record.now();
        let length = marks.last.and_then(|last| usize::try_from(now.0 - last.0).ok());
        let repeats = length.is_some_and(|length| length > 0 && marks.length == Some(length));
        *marks = Marks { last: Some(now), length };
        if let Some(period) = length.filter(|_| repeats) {
            self.plan(self.record.iteration(period));
        }
    }

    /// What follows, until [`resume`](Self::resume), is not a part of what repeats (Sekiyama 4.3). Interruptions nest.
    pub fn interrupt(&mut self) {
        self.interruptions = self.interruptions.saturating_add(1);
    }

    /// Ends an interruption. One resume too many does nothing.
    pub fn resume(&mut self) {
        self.interruptions = self.interruptions.saturating_sub(1);
    }

    /// Records a request for which there is no plan.
    fn listen(&mut self, request: Request) -> Answer {
        let (ticket, period) = self.record.request(request);
        if self.recent.len() == GRAM {
            self.recent.pop_front();
        }
        self.recent.push_back(request);
        if self.recognize() {
            return Answer::Fallback(ticket);
        }
        if let Some(period) = period.filter(|_| self.marks.is_none()) {
            self.plan_or_wait(period);
        }
        Answer::Fallback(ticket)
    }

    /// Plans the last `period` requests; if that cannot be, waits longer for the next iteration.
    fn plan_or_wait(&mut self, period: usize) {
        if !self.plan(self.record.iteration(period)) {
            // Asking again at every request would cost more each time than it can bring.
            self.record.be_patient(2 * self.record.len());
        }
    }

    /// Takes up a plan that was left, if the latest requests are a passage of it.
    fn recognize(&mut self) -> bool {
        if self.recent.len() < GRAM || self.plans.is_empty() {
            return false;
        }
        let hash = passage(self.recent.iter().map(|request| request.token()));
        let recent = &self.recent;
        let found = self.plans.iter_mut().position(|plan| plan.recognize(hash, recent.iter().copied()));
        if let Some(plan) = found {
            self.activate(plan);
            self.detected = false;
        }
        found.is_some()
    }

    fn activate(&mut self, plan: usize) {
        // Pages of the others are of no use meanwhile.
        for (other, replay) in self.plans.iter().enumerate() {
            if other != plan {
                self.lend(replay.place());
            }
        }
        self.active = Some(plan);
        self.proved = false;
        self.calm = 0;
        self.since = 0;
        self.requests_since = 0;
        self.recent.clear();
    }

    /// Plans an iteration, the next of which begins with the next request. Says whether there is a plan now.
    fn plan(&mut self, lives: Vec<Life>) -> bool {
        let lives = unrolled(lives);
        let planned = |life: &&Life| life.span.is_some_and(|span| span <= lives.len());
        let size = |life: &Life| life.request.size as u128;
        let all: u128 = lives.iter().map(size).sum();
        let with_slots: u128 = lives.iter().filter(planned).map(size).sum();
        if 2 * with_slots < all {
            return false;
        }
        let Some(mut replay) = self.build(lives) else { return false };
        if self.marks.is_some() {
            replay = replay.marked();
        }
        if self.plans.len() == KEPT {
            let oldest = self.plans.remove(0);
            self.lend(oldest.place());
        }
        self.plans.push(replay);
        self.activate(self.plans.len() - 1);
        self.detected = true;
        self.sweep();
        true
    }

    /// A layout of an iteration in an arena of its own.
    fn build(&mut self, lives: Vec<Life>) -> Option<Replay> {
        if self.stats.plans == MOST_PLANS {
            return None;
        }
        let planning = Planning { granule: self.settings.granule, budget: self.settings.budget.clone() };
        let layout = Layout::new(&lives, &planning)?;
        let base = self.backing.reserve(layout.height, layout.align).ok()?;
        let reserved = |place| Reserved { place, base, bytes: layout.height, align: layout.align };
        let (arena, cells) = Arena::new(base, &layout);
        let Some(place) = self.directory.add(arena) else {
            self.backing.release(base, layout.height, layout.align);
            return None;
        };
        self.reserved.push(reserved(place));
        self.stats.plans += 1;
        self.stats.height = layout.height;
        self.stats.peak_load = layout.peak_load;
        Some(Replay::new(lives, &layout, &cells, base, place, self.settings.granule))
    }

    /// An iteration has ended.
    fn finish(&mut self, finished: Finished) {
        self.stats.iterations += 1;
        self.since += 1;
        let Some(active) = self.active else { return };
        let plan = &self.plans[active];
        let slots = plan.slots();
        let larger = plan.is_marked() && finished.changed;
        if self.since > 1 && 2 * finished.given < slots && !larger {
            return self.lose();
        }
        // Each time it takes twice as long until the next, so that a program that never settles is not planned for ever.
        if finished.changed && self.since >= 1 << self.stats.reoptimized.min(32) {
            self.reoptimize(active);
        }
        self.sweep();
    }

    /// Plans the iteration in use again, with what has been observed since (Sekiyama 4.3).
    fn reoptimize(&mut self, active: usize) {
        if self.improve(active, self.plans[active].lives().to_vec()) {
            self.stats.reoptimized += 1;
        }
    }

    /// Replaces the plan in use. Blocks that live stay where they are.
    fn improve(&mut self, active: usize, lives: Vec<Life>) -> bool {
        if let Some(mut replay) = self.build(lives) {
            if self.marks.is_some() {
                replay = replay.marked();
            }
            let old = std::mem::replace(&mut self.plans[active], replay);
            self.lend(old.place());
            self.since = 0;
            return true;
        }
        false
    }

    /// Leaves the plan in use.
    fn lose(&mut self) {
        self.stats.lost += 1;
        let left = self.active.take();
        let answered = if self.proved { usize::MAX } else { self.requests_since };
        self.recent.clear();
        if let Some(marks) = &mut self.marks {
            *marks = Marks::default();
        }
        if self.proved {
            self.proved = false;
            self.record.forget();
            if self.stats.requests - self.proved_at < 4 * self.proof as u64 {
                self.proof = (2 * self.proof).min(self.settings.history / 4).max(PROOF);
            }
        } else if self.detected {
            // That was no iteration, it only looked like one. What was recorded meanwhile may still be a part of the real one.
            self.record.be_patient((2 * self.requests_since).max(2 * self.record.patience()));
        }
        if let Some(plan) = left
            && self.plans[plan].is_fruitless(answered)
        {
            // It has been taken up for a passage that says little, again and again.
            let plan = self.plans.remove(plan);
            self.lend(plan.place());
            self.sweep();
        }
    }

    /// Lends the pages of an arena on which nothing lives.
    fn lend(&self, place: Place) {
        let Some(arena) = self.directory.get(place) else { return };
        let mut free_from = 0;
        for (offset, bytes) in arena.occupied() {
            self.backing.discard(arena.base() + free_from, offset - free_from);
            free_from = offset + bytes;
        }
        self.backing.discard(arena.base() + free_from, arena.bytes() - free_from);
    }

    /// Forgets all plans that are not in use, and gives back their arenas, those on which nothing lives.
    pub fn shed(&mut self) {
        let active = self.active.map(|active| self.plans.swap_remove(active));
        self.plans.clear();
        self.plans.extend(active);
        self.active = self.active.map(|_| 0);
        self.sweep();
    }

    /// Gives back arenas of plans that are gone, once nothing lives in them.
    fn sweep(&mut self) {
        if self.reserved.len() == self.plans.len() {
            return;
        }
        let (plans, directory, backing) = (&self.plans, &self.directory, &self.backing);
        self.reserved.retain(|reserved| {
            let in_use = plans.iter().any(|plan| plan.place() == reserved.place);
            let empty = directory.get(reserved.place).is_none_or(Arena::is_empty);
            if !in_use && empty {
                directory.remove(reserved.place);
                backing.release(reserved.base, reserved.bytes, reserved.align);
            }
            in_use || !empty
        });
    }
}

impl<B: Backing, D: Deref<Target = Directory>> Drop for Sequence<B, D> {
    /// Gives back the arenas in which nothing lives. The others stay: somebody still uses their bytes.
    fn drop(&mut self) {
        self.plans.clear();
        self.sweep();
    }
}
