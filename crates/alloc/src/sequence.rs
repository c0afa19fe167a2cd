//! One sequence of requests: recorded until it repeats, then answered from a plan, and recorded again when it changes.
//!
//! A sequence belongs to one thread, or to one queue of a device. Blocks may be freed by anybody; requests come from its owner.
//!
//! ```text
//!            two equal iterations              unexpected requests
//! recording ──────────────────────▶ replaying ──────────────────────▶ recording, and looking for a gram_hash
//!     ▲                             │     ▲                            of a plan that was left
//!     │                             └─────┘ larger request, later free:                │
//!     └── forgets, when full                reoptimized when an iteration ends         └──▶ replaying
//! ```

use std::collections::VecDeque;
use std::ops::Deref;

use elbowroom_ir::search::Budget;

use crate::arena::Arena;
use crate::directory::{ArenaId, Directory};
use crate::layout::{Layout, Planning, unrolled};
use crate::memory::Backing;
use crate::record::{ProfiledRequest, Record};
use crate::replay::{Finished, GRAM, Replay, Step, gram_hash};
use crate::request::{Request, RequestTime, Ticket};
use crate::stats::Stats;

/// Plans kept for phases of a program, such as training and evaluation.
const MAX_KEPT_PLANS: usize = 4;

/// Expected requests in a row after which a plan has confirmed itself, if they are also two iterations and half of all that was recorded.
const CONFIRMATION: usize = 256;

/// More than this is not asked for because much was recorded.
const MAX_HISTORY_CONFIRMATION: usize = 1 << 14;

/// Plans that a sequence makes in its entry.
const MAX_PLANS: u64 = 1_000;

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

struct ReservedArena {
    arena_id: ArenaId,
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
    reserved: Vec<ReservedArena>,
    interruptions: u32,
    /// Where the last iteration marks stood, if the program marks its iterations.
    marks: Option<Marks>,
    /// Whether the plan in use was made for what was just detected, and not taken up again.
    detected: bool,
    /// Whether the plan in use has answered many requests in a row.
    confirmed: bool,
    /// Expected requests in a row that prove a plan. Doubles when a confirmed plan is soon left after all.
    confirmation: usize,
    /// Requests before the plan in use had confirmed itself.
    confirmed_at: u64,
    /// Requests in a row that were the expected ones.
    expected_in_row: usize,
    /// Iterations since the plan in use was made or taken up, and requests while it had not confirmed itself.
    since: u64,
    requests_since: usize,
    stats: Stats,
}

#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    last: Option<RequestTime>,
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
            confirmed: false,
            confirmation: CONFIRMATION,
            confirmed_at: 0,
            expected_in_row: 0,
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
            Some(active) if self.confirmed => self.replay(active, request),
            Some(active) => self.replay_unconfirmed(active, request),
            None => self.record_request(request),
        }
    }

    /// Answers from a plan.
    #[inline]
    fn replay(&mut self, active: usize, request: Request) -> Answer {
        let replay = &mut self.plans[active];
        let Some(arena) = self.directory.get(replay.arena_id()) else { return Answer::Fallback(None) };
        let step = replay.request(request, arena);
        let finished = replay.finished();
        if let Step::Planned(address) = step {
            self.expected_in_row += 1;
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
                self.expected_in_row = 0;
            }
            Step::Planned(_) | Step::Unslotted => {}
        }
        if step == Step::Lost {
            self.abandon();
        } else if let Some(finished) = finished {
            self.finish(finished);
        }
    }

    /// Answers from a plan that has not confirmed itself yet, and goes on recording: what repeated may have been a loop within the iteration.
    #[cold]
    fn replay_unconfirmed(&mut self, active: usize, request: Request) -> Answer {
        self.requests_since += 1;
        let (ticket, period) = self.record.request(request);
        let answer = self.replay(active, request);
        if self.active == Some(active) {
            let length = self.plans[active].profile().len();
            let history = (self.record.len() / 2).min(MAX_HISTORY_CONFIRMATION);
            let confirmation = self.confirmation.max(2 * length).max(history);
            if self.expected_in_row >= confirmation && self.plans[active].at_beginning() {
                self.confirm(active);
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

    /// The plan in use has confirmed itself: recording ends. What was learned since the plan was made about how long blocks live is used.
    fn confirm(&mut self, active: usize) {
        let plan = &self.plans[active];
        let profile = unrolled(self.record.iteration(plan.profile().len()));
        let slots =
            profile.iter().filter(|entry| entry.span.is_some_and(|span| span <= profile.len())).count();
        if !plan.is_marked() && slots * plan.profile().len() > plan.slots() * profile.len() {
            self.improve(active, profile);
        }
        self.confirmed = true;
        self.confirmed_at = self.stats.requests;
        self.record.require_run(0);
        self.record.clear();
    }

    /// A recorded block was freed at a moment of this sequence.
    pub fn freed(&mut self, ticket: Ticket, at: RequestTime) {
        self.record.freed(ticket, at);
    }

    /// The present moment, in requests recorded.
    pub fn now(&self) -> RequestTime {
        self.record.now()
    }

    /// Whether it records: otherwise it wants to hear of no frees.
    pub fn is_recording(&self) -> bool {
        self.active.is_none() || !self.confirmed
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
                return self.abandon();
            }
            plan.start_iteration();
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
    fn record_request(&mut self, request: Request) -> Answer {
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
            self.record.require_run(2 * self.record.len());
        }
    }

    /// Takes up a plan that was left, if the latest requests are a gram_hash of it.
    fn recognize(&mut self) -> bool {
        if self.recent.len() < GRAM || self.plans.is_empty() {
            return false;
        }
        let hash = gram_hash(self.recent.iter().map(|request| request.token()));
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
                self.discard_free_pages(replay.arena_id());
            }
        }
        self.active = Some(plan);
        self.confirmed = false;
        self.expected_in_row = 0;
        self.since = 0;
        self.requests_since = 0;
        self.recent.clear();
    }

    /// Plans an iteration, the next of which begins with the next request. Says whether there is a plan now.
    fn plan(&mut self, profile: Vec<ProfiledRequest>) -> bool {
        let profile = unrolled(profile);
        let planned = |entry: &&ProfiledRequest| entry.span.is_some_and(|span| span <= profile.len());
        let size = |entry: &ProfiledRequest| entry.request.size as u128;
        let all: u128 = profile.iter().map(size).sum();
        let with_slots: u128 = profile.iter().filter(planned).map(size).sum();
        if 2 * with_slots < all {
            return false;
        }
        let Some(mut replay) = self.build(profile) else { return false };
        if self.marks.is_some() {
            replay = replay.marked();
        }
        if self.plans.len() == MAX_KEPT_PLANS {
            let oldest = self.plans.remove(0);
            self.discard_free_pages(oldest.arena_id());
        }
        self.plans.push(replay);
        self.activate(self.plans.len() - 1);
        self.detected = true;
        self.release_empty_arenas();
        true
    }

    /// A layout of an iteration in an arena of its own.
    fn build(&mut self, profile: Vec<ProfiledRequest>) -> Option<Replay> {
        if self.stats.plans == MAX_PLANS {
            return None;
        }
        let planning = Planning { granule: self.settings.granule, budget: self.settings.budget.clone() };
        let layout = Layout::new(&profile, &planning)?;
        let base = self.backing.reserve(layout.arena_bytes, layout.align).ok()?;
        let reserved =
            |arena_id| ReservedArena { arena_id, base, bytes: layout.arena_bytes, align: layout.align };
        let (arena, cells) = Arena::new(base, &layout);
        let Some(arena_id) = self.directory.add(arena) else {
            self.backing.release(base, layout.arena_bytes, layout.align);
            return None;
        };
        self.reserved.push(reserved(arena_id));
        self.stats.plans += 1;
        self.stats.height = layout.arena_bytes;
        self.stats.peak_load = layout.peak_load;
        Some(Replay::new(profile, &layout, &cells, base, arena_id, self.settings.granule))
    }

    /// An iteration has ended.
    fn finish(&mut self, finished: Finished) {
        self.stats.iterations += 1;
        self.since += 1;
        let Some(active) = self.active else { return };
        let plan = &self.plans[active];
        let slots = plan.slots();
        let larger = plan.is_marked() && finished.changed;
        if self.since > 1 && 2 * finished.served < slots && !larger {
            return self.abandon();
        }
        // Each time it takes twice as long until the next, so that a program that never settles is not planned for ever.
        if finished.changed && self.since >= 1 << self.stats.reoptimized.min(32) {
            self.reoptimize(active);
        }
        self.release_empty_arenas();
    }

    /// Plans the iteration in use again, with what has been observed since (Sekiyama 4.3).
    fn reoptimize(&mut self, active: usize) {
        if self.improve(active, self.plans[active].profile().to_vec()) {
            self.stats.reoptimized += 1;
        }
    }

    /// Replaces the plan in use. Blocks that live stay where they are.
    fn improve(&mut self, active: usize, profile: Vec<ProfiledRequest>) -> bool {
        if let Some(mut replay) = self.build(profile) {
            if self.marks.is_some() {
                replay = replay.marked();
            }
            let old = std::mem::replace(&mut self.plans[active], replay);
            self.discard_free_pages(old.arena_id());
            self.since = 0;
            return true;
        }
        false
    }

    /// Leaves the plan in use.
    fn abandon(&mut self) {
        self.stats.lost += 1;
        let left = self.active.take();
        let answered = if self.confirmed { usize::MAX } else { self.requests_since };
        self.recent.clear();
        if let Some(marks) = &mut self.marks {
            *marks = Marks::default();
        }
        if self.confirmed {
            self.confirmed = false;
            self.record.clear();
            if self.stats.requests - self.confirmed_at < 4 * self.confirmation as u64 {
                self.confirmation = (2 * self.confirmation).min(self.settings.history / 4).max(CONFIRMATION);
            }
        } else if self.detected {
            // That was no iteration, it only looked like one. What was recorded meanwhile may still be a part of the real one.
            self.record.require_run((2 * self.requests_since).max(2 * self.record.required_run()));
        }
        if let Some(plan) = left
            && self.plans[plan].is_useless(answered)
        {
            // It has been taken up for a gram_hash that says little, again and again.
            let plan = self.plans.remove(plan);
            self.discard_free_pages(plan.arena_id());
            self.release_empty_arenas();
        }
    }

    /// Lends the pages of an arena on which nothing profile.
    fn discard_free_pages(&self, arena_id: ArenaId) {
        let Some(arena) = self.directory.get(arena_id) else { return };
        let mut free_from = 0;
        for (offset, bytes) in arena.occupied() {
            self.backing.discard(arena.base() + free_from, offset - free_from);
            free_from = offset + bytes;
        }
        self.backing.discard(arena.base() + free_from, arena.bytes() - free_from);
    }

    /// Forgets all plans that are not in use, and gives back their arenas, those on which nothing profile.
    pub fn release_idle_plans(&mut self) {
        let active = self.active.map(|active| self.plans.swap_remove(active));
        self.plans.clear();
        self.plans.extend(active);
        self.active = self.active.map(|_| 0);
        self.release_empty_arenas();
    }

    /// Gives back arenas of plans that are gone, once nothing profile in them.
    fn release_empty_arenas(&mut self) {
        if self.reserved.len() == self.plans.len() {
            return;
        }
        let (plans, directory, backing) = (&self.plans, &self.directory, &self.backing);
        self.reserved.retain(|reserved| {
            let in_use = plans.iter().any(|plan| plan.arena_id() == reserved.arena_id);
            let empty = directory.get(reserved.arena_id).is_none_or(Arena::is_empty);
            if !in_use && empty {
                directory.remove(reserved.arena_id);
                backing.release(reserved.base, reserved.bytes, reserved.align);
            }
            in_use || !empty
        });
    }
}

impl<B: Backing, D: Deref<Target = Directory>> Drop for Sequence<B, D> {
    /// Gives back the arenas in which nothing profile. The others stay: somebody still uses their bytes.
    fn drop(&mut self) {
        self.plans.clear();
        self.release_empty_arenas();
    }
}
