//! A sequence of requests: recorded until it repeats, then served from a plan, and recorded again when it changes.
//!
//! A sequence belongs to one thread, or to one queue of a device. Only its owner makes requests; any thread may free blocks.
//!
//! ```text
//!            two equal iterations              unexpected requests
//! recording ──────────────────────▶ replaying ──────────────────────▶ recording, and looking for requests
//!     ▲                             │     ▲                            of an abandoned plan
//!     │                             └─────┘ larger request, later free:                │
//!     └── cleared when full                 reoptimized when an iteration ends         └──▶ replaying
//! ```

mod varying;

use elbowroom_ir::search::Budget;

use crate::arena::Arena;
use crate::directory::{ArenaId, SharedDirectory};
use crate::gram::Recent;
use crate::layout::{Layout, Planning, unrolled};
use crate::memory::Backing;
use crate::record::{ProfiledRequest, Record};
use crate::replay::{Finished, Replay, ReplayStep};
use crate::request::{Request, RequestTime, Ticket};
use crate::stats::Stats;
use crate::varying::{Varying, vary};
use varying::{FIRST_LOOK, Marks, WAIT};

/// Plans kept for the phases of a program, such as training and evaluation.
const MAX_KEPT_PLANS: usize = 4;

/// Consecutive expected requests that confirm a plan, if they also span two iterations and half of the record.
const CONFIRMATION: usize = 256;

/// Upper bound of what half of the record contributes to that requirement.
const MAX_HISTORY_CONFIRMATION: usize = 1 << 14;

/// Consecutive unexpected requests that look like another phase of the program.
const MANY_UNEXPECTED: usize = 4;

/// Maximum number of plans that a sequence makes.
const MAX_PLANS: u64 = 1_000;

/// Parameters of a sequence.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Slots start and end at multiples of this many bytes. Rounded up to a power of two.
    pub granule: usize,
    /// Budget of the packer. The program waits for it.
    pub budget: Budget,
    /// Maximum number of recorded requests; an iteration of more than a quarter of this is not detected.
    pub history: usize,
}

impl Default for Settings {
    /// Granule 64 bytes; budget 256 evaluations and at most a quarter of a second; history 2^17 requests.
    fn default() -> Self {
        let time = Some(std::time::Duration::from_millis(250));
        Self { granule: 64, budget: Budget { time, ..Budget::evaluations(256) }, history: 1 << 17 }
    }
}

impl Settings {
    /// Sets the granule: slots start and end at its multiples.
    #[must_use]
    pub fn granule(self, granule: usize) -> Self {
        Self { granule, ..self }
    }

    /// Sets the budget of the packer.
    #[must_use]
    pub fn budget(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// Sets the maximum number of recorded requests.
    #[must_use]
    pub fn history(self, history: usize) -> Self {
        Self { history, ..self }
    }
}

/// How a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// At this address, until it is [released](crate::Directory::release). With a ticket, report the release through [`freed`](Sequence::freed),
    /// too.
    Planned(usize, Option<Ticket>),
    /// By the fallback. With a ticket, report when the block is [freed](Sequence::freed).
    Fallback(Option<Ticket>),
}

struct ReservedArena {
    arena_id: ArenaId,
    base: usize,
    bytes: usize,
    align: usize,
}

/// The requests of one thread or queue, and the plans made for them.
pub struct Sequence<B: Backing, D: SharedDirectory> {
    backing: B,
    directory: D,
    settings: Settings,
    record: Record,
    recent: Recent,
    plans: Vec<Replay>,
    active: Option<usize>,
    /// The plan in use if iterations vary. Then none of `plans` is.
    varying: Option<Varying>,
    /// Recorded requests at which iterations that vary are looked for next, and at the latest look.
    next_look: usize,
    looked_at: usize,
    /// Recorded requests at which they are looked for at the earliest. Doubled if a plan for them is abandoned soon.
    first_look: usize,
    /// Recorded requests before which a period is not planned that may be one of several.
    wait_until: usize,
    reserved: Vec<ReservedArena>,
    interruptions: u32,
    /// If the program marks its iterations.
    marks: Option<Marks>,
    /// Whether the plan in use was made after a detection, as opposed to resumed.
    detected: bool,
    /// Whether the plan in use has been confirmed by enough expected requests.
    confirmed: bool,
    /// Consecutive expected requests that confirm a plan. Doubled if a confirmed plan is abandoned soon after.
    confirmation: usize,
    /// Requests up to the confirmation of the plan in use.
    confirmed_at: u64,
    /// Consecutive expected requests.
    expected_in_row: usize,
    /// Consecutive unexpected requests, and their bytes since free pages were last discarded for them.
    unexpected_in_row: usize,
    unexpected_bytes: usize,
    /// The first request served from the plan in use, and the bytes of blocks that were requested before it and freed after it.
    planned_from: RequestTime,
    left: usize,
    /// Iterations since the plan in use was made or resumed, and requests before its confirmation.
    since: u64,
    requests_since: usize,
    stats: Stats,
}

/// An arena that was just reserved.
struct NewArena {
    arena_id: ArenaId,
    cells: Vec<u32>,
    base: usize,
}

impl<B: Backing, D: SharedDirectory> Sequence<B, D> {
    /// An empty sequence. Its arenas are reserved from `backing` and registered in `directory`.
    pub fn new(backing: B, directory: D, mut settings: Settings) -> Self {
        settings.granule = settings.granule.checked_next_power_of_two().unwrap_or(1 << 12);
        Self {
            backing,
            directory,
            record: Record::new(settings.history),
            settings,
            recent: Recent::new(),
            plans: Vec::new(),
            active: None,
            varying: None,
            next_look: FIRST_LOOK,
            looked_at: 0,
            first_look: FIRST_LOOK,
            wait_until: 0,
            reserved: Vec::new(),
            interruptions: 0,
            marks: None,
            detected: false,
            confirmed: false,
            confirmation: CONFIRMATION,
            confirmed_at: 0,
            expected_in_row: 0,
            unexpected_in_row: 0,
            unexpected_bytes: 0,
            planned_from: RequestTime(0),
            left: 0,
            since: 0,
            requests_since: 0,
            stats: Stats::default(),
        }
    }

    /// Serves the owner's next request.
    #[inline]
    pub fn request(&mut self, request: Request) -> Answer {
        self.stats.requests += 1;
        self.stats.bytes = self.stats.bytes.saturating_add(request.size as u64);
        if self.interruptions > 0 {
            self.stats.interrupted += 1;
            return Answer::Fallback(None);
        }
        if self.varying.is_some() {
            return self.request_varying(request);
        }
        match self.active {
            Some(active) if self.confirmed => self.replay(active, request),
            Some(active) => self.replay_unconfirmed(active, request),
            None => self.record_request(request),
        }
    }

    /// Serves a request from a plan.
    #[inline]
    fn replay(&mut self, active: usize, request: Request) -> Answer {
        let replay = &mut self.plans[active];
        let Some(arena) = self.directory.get(replay.arena_id()) else { return Answer::Fallback(None) };
        let step = replay.request(request, arena);
        let finished = replay.finished();
        if let ReplayStep::Planned(address) = step {
            self.expected_in_row += 1;
            self.stats.planned += 1;
            self.stats.planned_bytes = self.stats.planned_bytes.saturating_add(request.size as u64);
            if let Some(finished) = finished {
                self.finish(finished);
            }
            return Answer::Planned(address, None);
        }
        self.unplanned(step, finished, request);
        Answer::Fallback(None)
    }

    #[cold]
    fn unplanned(&mut self, step: ReplayStep, finished: Option<Finished>, request: Request) {
        match step {
            ReplayStep::Late => self.stats.late += 1,
            ReplayStep::Missed | ReplayStep::Lost => {
                self.stats.mismatches += 1;
                if self.expected_in_row > 0 {
                    (self.unexpected_in_row, self.unexpected_bytes) = (0, 0);
                }
                self.expected_in_row = 0;
                self.unexpected_in_row += 1;
                self.unexpected_bytes = self.unexpected_bytes.saturating_add(request.size);
                if self.unexpected_in_row >= MANY_UNEXPECTED {
                    self.make_room();
                }
            }
            ReplayStep::Idle(woken) if woken => self.directory.wake(),
            ReplayStep::Idle(_) | ReplayStep::Planned(_) | ReplayStep::Unslotted => {}
        }
        if step == ReplayStep::Lost {
            self.abandon();
        } else if let Some(finished) = finished {
            self.finish(finished);
        }
    }

    /// Returns the free pages of the arena in use to the system if the fallback has needed memory of some size meanwhile: what comes may be
    /// another phase of the program.
    fn make_room(&mut self) {
        let Some(active) = self.active else { return };
        let arena_id = self.plans[active].arena_id();
        let bytes = self.directory.get(arena_id).map_or(0, Arena::bytes);
        if self.unexpected_bytes > bytes / 32 {
            self.discard_free_pages(arena_id);
            self.unexpected_bytes = 0;
        }
    }

    /// Serves a request from an unconfirmed plan and keeps recording: what repeated may have been a loop within the iteration.
    #[cold]
    fn replay_unconfirmed(&mut self, active: usize, request: Request) -> Answer {
        self.requests_since += 1;
        self.record.end_economy();
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
            if let Some(period) = period.filter(|&period| period > length) {
                self.plan_or_wait(period);
            }
        }
        self.look_for_varying();
        match answer {
            Answer::Planned(address, _) => Answer::Planned(address, ticket),
            Answer::Fallback(_) => Answer::Fallback(ticket),
        }
    }

    /// Confirms the plan in use and stops recording. If lifetimes recorded since give more blocks a slot, plans again first.
    fn confirm(&mut self, active: usize) {
        let plan = &self.plans[active];
        let profile = unrolled(self.record.iteration(plan.profile().len()));
        let slots =
            profile.iter().filter(|entry| entry.span.is_some_and(|span| span <= profile.len())).count();
        if slots * plan.profile().len() > plan.slots() * profile.len() {
            self.improve(active, profile);
        }
        self.confirmed = true;
        self.confirmed_at = self.stats.requests;
        self.record.require_run(0);
        self.record.clear();
    }

    /// Reports that a recorded block was freed at a time of this sequence.
    pub fn freed(&mut self, ticket: Ticket, at: RequestTime) {
        let bytes = match &mut self.varying {
            Some(varying) => varying.freed(ticket, at),
            None => self.record.freed(ticket, at),
        };
        if ticket.0 < self.planned_from.0 {
            self.left = self.left.saturating_add(bytes);
        }
    }

    /// The current time, in recorded requests.
    pub fn now(&self) -> RequestTime {
        self.varying.as_ref().map_or_else(|| self.record.now(), Varying::now)
    }

    /// Whether the sequence records. Otherwise frees need not be reported.
    pub fn is_recording(&self) -> bool {
        if self.varying.is_some() {
            true
        } else if self.active.is_some() {
            !self.confirmed
        } else {
            self.record.is_recording()
        }
    }

    /// How many of the next requests the fallback may serve without a call of [`request`](Self::request), because nothing would come of it.
    #[inline]
    pub(crate) fn pause(&self) -> u64 {
        if self.may_pause() { self.record.to_skip() } else { 0 }
    }

    /// Whether the fallback may serve requests without a call of [`request`](Self::request): there is no plan that they could belong to.
    #[inline]
    pub(crate) fn may_pause(&self) -> bool {
        self.active.is_none()
            && self.varying.is_none()
            && self.plans.is_empty()
            && self.marks.is_none()
            && self.interruptions == 0
    }

    /// Counts requests that the fallback served without a call of [`request`](Self::request). What was recorded before them is dropped.
    pub(crate) fn skip(&mut self, requests: u64, bytes: u64) {
        self.stats.requests += requests;
        self.stats.bytes = self.stats.bytes.saturating_add(bytes);
        self.record.skip(requests);
    }

    /// Whether at least `enough` bytes of blocks that were recorded for the plan in use have left the fallback since this was last true.
    pub(crate) fn take_left(&mut self, enough: usize) -> bool {
        let have_left = (self.active.is_some() || self.varying.is_some()) && self.left >= enough;
        if have_left {
            self.left = 0;
        }
        have_left
    }

    /// Returns the pages of all arenas that hold no live block to the system.
    pub(crate) fn discard_all_free_pages(&self) {
        self.reserved.iter().for_each(|reserved| self.discard_free_pages(reserved.arena_id));
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The counters, by reference.
    #[inline]
    pub(crate) fn stats_ref(&self) -> &Stats {
        &self.stats
    }

    /// Excludes the following requests from the iteration (Sekiyama 4.3) until [`resume`](Self::resume). Interruptions nest.
    pub fn interrupt(&mut self) {
        self.interruptions = self.interruptions.saturating_add(1);
    }

    /// Ends an interruption. Has no effect without one.
    pub fn resume(&mut self) {
        self.interruptions = self.interruptions.saturating_sub(1);
    }

    /// Records a request that no plan serves.
    fn record_request(&mut self, request: Request) -> Answer {
        if !request.align.is_power_of_two() {
            return Answer::Fallback(None);
        }
        let (ticket, period) = self.record.request(request);
        if self.marks.is_some() {
            return Answer::Fallback(ticket);
        }
        self.record.economize();
        self.recent.push(request);
        if self.recognize() {
            return Answer::Fallback(ticket);
        }
        if let Some(period) = period
            && !self.plan_or_wait(period)
        {
            self.record.rest();
        }
        if self.active.is_none() {
            self.look_for_varying();
        }
        Answer::Fallback(ticket)
    }

    /// Plans the last `period` requests. If that fails, requires a longer run before the next attempt. Returns whether there is a plan, or soon
    /// will be.
    fn plan_or_wait(&mut self, period: usize) -> bool {
        if (1..self.wait_until).contains(&self.record.with_tickets()) {
            return true;
        }
        self.wait_until = 0;
        let profile = self.record.iteration(period);
        // An iteration much like one that was planned before, but not the same, will not be the last of its kind.
        let recorded = self.record.with_tickets();
        if self.first_look == FIRST_LOOK && self.plans.iter().any(|plan| vary(plan.profile(), &profile)) {
            if self.plan_varying(1) {
                return true;
            }
            if recorded < WAIT * period {
                self.wait_until = recorded + period / 2;
                return true;
            }
        }
        let is_planned = self.plan(profile);
        if !is_planned {
            // An attempt at every request would cost more than it could gain.
            self.record.require_run(2 * self.record.len());
        }
        is_planned
    }

    /// Resumes an abandoned plan if the latest requests occur in it.
    fn recognize(&mut self) -> bool {
        let found = self.plans.iter_mut().position(|plan| plan.recognize(&self.recent));
        if let Some(plan) = found {
            self.activate(plan);
            self.detected = false;
        }
        found.is_some()
    }

    fn activate(&mut self, plan: usize) {
        // Meanwhile the free pages of the other plans' arenas are of no use.
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

    /// Plans an iteration that starts again with the next request. Returns whether there is a plan now.
    fn plan(&mut self, profile: Vec<ProfiledRequest>) -> bool {
        let profile = unrolled(profile);
        let planned = |entry: &&ProfiledRequest| entry.span.is_some_and(|span| span <= profile.len());
        let size = |entry: &ProfiledRequest| entry.request.size as u128;
        let all: u128 = profile.iter().map(size).sum();
        let with_slots: u128 = profile.iter().filter(planned).map(size).sum();
        if 2 * with_slots < all {
            return false;
        }
        let Some(replay) = self.build(profile) else { return false };
        if self.plans.len() == MAX_KEPT_PLANS {
            let oldest = self.plans.remove(0);
            self.discard_free_pages(oldest.arena_id());
        }
        self.plans.push(replay);
        self.activate(self.plans.len() - 1);
        self.start_plan();
        self.detected = true;
        self.release_empty_arenas();
        true
    }

    /// From the next request on, a plan serves: blocks requested before leave the fallback for good.
    fn start_plan(&mut self) {
        (self.planned_from, self.left) = (self.now(), 0);
    }

    /// Builds a layout of an iteration in an arena of its own.
    fn build(&mut self, profile: Vec<ProfiledRequest>) -> Option<Replay> {
        let layout = self.layout(&profile, None)?;
        let NewArena { arena_id, cells, base } = self.reserve(&layout)?;
        Some(Replay::new(profile, &layout, &cells, base, arena_id, self.settings.granule))
    }

    /// Packs an iteration with at most this many evaluations, unless there were too many plans.
    fn layout(&self, profile: &[ProfiledRequest], evaluations: Option<u64>) -> Option<Layout> {
        if self.stats.plans == MAX_PLANS {
            return None;
        }
        let mut budget = self.settings.budget.clone();
        budget.evaluations = budget.evaluations.into_iter().chain(evaluations).min();
        Layout::new(profile, &Planning { granule: self.settings.granule, budget })
    }

    /// Reserves the arena of a layout.
    fn reserve(&mut self, layout: &Layout) -> Option<NewArena> {
        let base = self.backing.reserve(layout.arena_bytes, layout.align).ok()?;
        let (arena, cells) = Arena::new(base, layout);
        let Some(arena_id) = self.directory.add(arena) else {
            // SAFETY: reserved above, and known to nothing else.
            unsafe { self.backing.release(base, layout.arena_bytes, layout.align) };
            return None;
        };
        self.reserved.push(ReservedArena { arena_id, base, bytes: layout.arena_bytes, align: layout.align });
        self.stats.plans += 1;
        self.stats.arena_bytes = layout.arena_bytes;
        self.stats.peak_live = layout.peak_live;
        Some(NewArena { arena_id, cells, base })
    }

    /// Updates plan and counters at the end of an iteration.
    fn finish(&mut self, finished: Finished) {
        self.stats.iterations += 1;
        self.since += 1;
        let Some(active) = self.active else { return };
        let plan = &self.plans[active];
        let slots = plan.slots();
        if self.since > 1 && 2 * finished.served < slots {
            return self.abandon();
        }
        // The interval to the next planning doubles each time, so that a program that never settles is not planned forever.
        if finished.changed && self.since >= 1 << self.stats.reoptimized.min(32) {
            self.reoptimize(active);
        }
        self.release_empty_arenas();
    }

    /// Plans the iteration in use again with the sizes and lifetimes observed since (Sekiyama 4.3).
    fn reoptimize(&mut self, active: usize) {
        if self.improve(active, self.plans[active].profile().to_vec()) {
            self.stats.reoptimized += 1;
        }
    }

    /// Replaces the plan in use. Live blocks keep their addresses.
    fn improve(&mut self, active: usize, profile: Vec<ProfiledRequest>) -> bool {
        if let Some(replay) = self.build(profile) {
            let old = std::mem::replace(&mut self.plans[active], replay);
            self.discard_free_pages(old.arena_id());
            self.since = 0;
            return true;
        }
        false
    }

    /// Abandons the plan in use.
    fn abandon(&mut self) {
        self.stats.lost += 1;
        let left = self.active.take();
        if let Some(plan) = left {
            // What the program does now is served by the fallback, which needs the memory.
            self.discard_free_pages(self.plans[plan].arena_id());
        }
        let answered = if self.confirmed { usize::MAX } else { self.requests_since };
        self.recent.clear();
        if self.confirmed {
            self.confirmed = false;
            self.record.clear();
            if self.stats.requests - self.confirmed_at < 4 * self.confirmation as u64 {
                self.confirmation = (2 * self.confirmation).min(self.settings.history / 4).max(CONFIRMATION);
            }
        } else if self.detected {
            // The detected repetition was not an iteration. The record may still contain a part of the real one.
            self.record.require_run((2 * self.requests_since).max(2 * self.record.required_run()));
        }
        if let Some(plan) = left
            && self.plans[plan].is_useless(answered)
        {
            // The plan was resumed several times after requests that also occur elsewhere.
            let plan = self.plans.remove(plan);
            self.discard_free_pages(plan.arena_id());
            self.release_empty_arenas();
        }
    }

    /// Returns the pages of an arena that hold no live block to the system.
    fn discard_free_pages(&self, arena_id: ArenaId) {
        let Some(arena) = self.directory.get(arena_id) else { return };
        arena.for_each_free_range(|address, bytes| {
            // SAFETY: no block is live in the range. Only this sequence could make one live.
            unsafe { self.backing.discard(address, bytes) };
        });
    }

    /// Drops all plans that are not in use, and releases those of their arenas that hold no live block.
    pub fn release_idle_plans(&mut self) {
        let active = self.active.map(|active| self.plans.swap_remove(active));
        self.plans.clear();
        self.plans.extend(active);
        self.active = self.active.map(|_| 0);
        self.release_empty_arenas();
    }

    /// As [`release_idle_plans`](Self::release_idle_plans), and drops the plan in use as well if its arena holds no live block: another
    /// sequence needs the memory more. What repeats is planned again.
    pub fn release_empty_plans(&mut self) {
        let arena = self.active.and_then(|active| self.directory.get(self.plans[active].arena_id()));
        if arena.is_some_and(Arena::is_empty) {
            self.abandon();
        }
        let arena = self.varying.as_ref().and_then(Varying::arena_id).and_then(|id| self.directory.get(id));
        if arena.is_some_and(Arena::is_empty) {
            self.abandon_varying();
        }
        self.release_idle_plans();
    }

    /// Releases arenas of dropped plans once they hold no live block.
    fn release_empty_arenas(&mut self) {
        let varying = self.varying.as_ref().and_then(Varying::arena_id);
        if self.reserved.len() == self.plans.len() + usize::from(varying.is_some()) {
            return;
        }
        let (plans, directory, backing) = (&self.plans, &self.directory, &self.backing);
        self.reserved.retain(|reserved| {
            let in_use = plans.iter().any(|plan| plan.arena_id() == reserved.arena_id)
                || varying == Some(reserved.arena_id);
            let empty = directory.get(reserved.arena_id).is_none_or(Arena::is_empty);
            if !in_use && empty {
                if let Some(arena) = directory.get(reserved.arena_id) {
                    arena.retire();
                }
                directory.remove(reserved.arena_id);
                // SAFETY: reserved by `build`. No block is live in the arena, and no plan could make one live.
                unsafe { backing.release(reserved.base, reserved.bytes, reserved.align) };
            }
            in_use || !empty
        });
    }
}

impl<B: Backing, D: SharedDirectory> Drop for Sequence<B, D> {
    /// Releases the arenas without live blocks. The others are leaked, because their bytes are still in use.
    fn drop(&mut self) {
        self.plans.clear();
        self.varying = None;
        self.release_empty_arenas();
    }
}
