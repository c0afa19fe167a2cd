//! Sequences whose iterations vary: with marks from the first iteration on, without them once valleys of live memory have shown some.

use std::ops::Range;

use super::{NewArena, Sequence};
use crate::arena::Arena;
use crate::directory::SharedDirectory;
use crate::layout::Layout;
use crate::memory::Backing;
use crate::record::ProfiledRequest;
use crate::request::Request;
use crate::sequence::Answer;
use crate::varying::{
    Built, ENOUGH, Observed, Seen, Valleys, Varying, VaryingStep, Verdict, Wanted, segments,
};

/// Recorded requests at which iterations that vary are first looked for; later whenever there are a quarter more.
pub(super) const FIRST_LOOK: usize = 512;

/// Periods that are recorded before one is planned that is like an iteration of another plan, so that both can be planned as iterations that vary.
pub(super) const WAIT: usize = 5;

/// A plan for iterations that vary is abandoned if one has this many times its requests.
const MAX_GROWTH: usize = 8;

/// Evaluations of the packer for a plan of iterations that vary. Few, because every longer iteration needs another plan.
const VARYING_EVALUATIONS: u64 = 16;

/// What is known of a program that marks its iterations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    /// Plans abandoned, and the iterations that are not planned after the latest.
    lost: u32,
    wait: u32,
}

impl<B: Backing, D: SharedDirectory> Sequence<B, D> {
    /// Marks the start of an iteration. If a program marks its iterations, a plan is made after the first (Sekiyama 4.1), whatever the sizes and
    /// lengths of those that follow; automatic detection is off.
    pub fn mark_iteration(&mut self) {
        match &self.varying {
            Some(varying) if varying.is_marked() => {
                let requests = varying.in_progress();
                if requests > 0 {
                    self.end_varying(requests);
                }
                return;
            }
            Some(_) => self.abandon_varying(),
            None => {}
        }
        let Some(marks) = &mut self.marks else {
            // Plans made before the first mark may begin anywhere in the iteration.
            if self.active.is_some() {
                self.abandon();
            }
            self.release_idle_plans();
            self.marks = Some(Marks::default());
            return self.record.mark();
        };
        if self.record.with_tickets() == 0 {
            return;
        }
        let waits = marks.wait > 0;
        marks.wait = marks.wait.saturating_sub(1);
        if waits || self.record.with_tickets() != self.record.len() {
            return self.record.mark();
        }
        let profile: Vec<ProfiledRequest> =
            (0..self.record.with_tickets()).map(|index| self.record.profiled(index)).collect();
        let seen = seen(&profile, 0);
        if !self.vary(profile, seen, Vec::new(), None) {
            self.give_up_on_marks();
            self.record.mark();
        }
    }

    /// Plans no iteration for a while, ever longer.
    pub(super) fn give_up_on_marks(&mut self) {
        if let Some(marks) = &mut self.marks {
            marks.wait = 1 << marks.lost.min(16);
            marks.lost += 1;
        }
    }

    /// Makes a plan for iterations that vary. `previous` and `current` are the last requests of the record: of the iteration before, and of the
    /// one in progress. Returns whether there is a plan now.
    pub(super) fn vary(
        &mut self,
        profile: Vec<ProfiledRequest>,
        previous: Vec<Seen>,
        current: Vec<Seen>,
        valleys: Option<Valleys>,
    ) -> bool {
        let Some(layout) = self.layout(&profile, Some(VARYING_EVALUATIONS)) else { return false };
        self.active = None;
        self.release_idle_plans();
        let Some(arena) = self.reserve(&layout) else { return false };
        let built = built(&layout, &arena, self.settings.granule);
        let observed = Observed::new(self.record.now(), previous, current);
        self.varying = Some(Varying::new(profile, built, observed, valleys));
        let now = self.record.now();
        self.record.restart_at(now);
        self.start_plan();
        true
    }

    /// Serves a request from a plan of iterations that vary.
    pub(super) fn request_varying(&mut self, request: Request) -> Answer {
        if !request.align.is_power_of_two() {
            return Answer::Fallback(None);
        }
        if let Some(requests) = self.varying.as_mut().and_then(|varying| varying.boundary(request)) {
            self.end_varying(requests);
        }
        let outgrown = |varying: &&mut Varying| varying.in_progress() >= MAX_GROWTH * varying.len().max(64);
        if self.varying.as_mut().filter(outgrown).is_some() {
            self.abandon_varying();
        }
        let Some(varying) = &mut self.varying else { return self.record_request(request) };
        let arena = varying.arena_id().and_then(|arena| self.directory.get(arena));
        let (step, ticket) = varying.request(request, arena);
        match step {
            VaryingStep::Planned(address) => {
                self.stats.planned += 1;
                self.stats.planned_bytes = self.stats.planned_bytes.saturating_add(request.size as u64);
                return Answer::Planned(address, Some(ticket));
            }
            VaryingStep::Late => self.stats.late += 1,
            VaryingStep::Missed => {
                self.stats.mismatches += 1;
                if varying.is_unfit() && arena.is_some_and(Arena::is_empty) {
                    varying.give_up_arena();
                    self.release_empty_arenas();
                }
            }
            VaryingStep::Idle(woken) => {
                if woken {
                    self.directory.wake();
                }
            }
        }
        Answer::Fallback(Some(ticket))
    }

    /// Ends an iteration of those that vary after its first `requests` requests.
    pub(super) fn end_varying(&mut self, requests: usize) {
        self.stats.iterations += 1;
        let arena = self.varying.as_ref().and_then(Varying::arena_id).and_then(|id| self.directory.get(id));
        let is_empty = arena.is_none_or(Arena::is_empty);
        match self.varying.as_mut().map(|varying| varying.end_iteration(requests, is_empty)) {
            Some(Verdict::Replan(wanted)) => self.replan_varying(wanted),
            Some(Verdict::Abandon) => self.abandon_varying(),
            Some(Verdict::Keep) | None => {}
        }
        self.release_empty_arenas();
    }

    /// Plans iterations that vary again (Sekiyama 4.3). If no block lives in the arena of the plan before, the new one takes its memory.
    pub(super) fn replan_varying(&mut self, wanted: Wanted) {
        let fits = wanted.roomy.len() <= self.settings.history;
        let layout = self.layout(&wanted.roomy, Some(VARYING_EVALUATIONS)).filter(|_| fits);
        let before = self.varying.take();
        self.release_empty_arenas();
        let arena = layout.as_ref().and_then(|layout| self.reserve(layout));
        self.varying = before;
        match (&mut self.varying, layout, arena) {
            (Some(varying), Some(layout), Some(arena)) => {
                varying.install(wanted.profile, built(&layout, &arena, self.settings.granule));
                self.stats.reoptimized += 1;
            }
            _ => self.abandon_varying(),
        }
    }

    /// Abandons the plan of iterations that vary.
    pub(super) fn abandon_varying(&mut self) {
        let Some(varying) = self.varying.take() else { return };
        self.stats.lost += 1;
        if let Some(arena) = varying.arena_id() {
            self.discard_free_pages(arena);
        }
        self.record.restart_at(varying.now());
        if varying.is_marked() {
            self.give_up_on_marks();
        } else {
            self.first_look = if varying.is_proven() {
                FIRST_LOOK
            } else {
                (2 * self.first_look).min(self.settings.history / 2)
            };
            (self.looked_at, self.next_look) = (0, self.first_look);
        }
        self.release_empty_arenas();
    }

    /// Looks for iterations that vary in the record whenever that has grown by a quarter.
    pub(super) fn look_for_varying(&mut self) {
        let recorded = self.record.with_tickets();
        if recorded < self.looked_at {
            (self.looked_at, self.next_look) = (0, self.first_look);
        }
        if recorded < self.next_look || self.marks.is_some() {
            return;
        }
        (self.looked_at, self.next_look) = (recorded, recorded + recorded / 4);
        self.plan_varying(ENOUGH);
    }

    /// Plans iterations that vary if the record has at least `enough` of them. Returns whether there is a plan.
    pub(super) fn plan_varying(&mut self, enough: usize) -> bool {
        let recorded = self.record.with_tickets();
        let Some(found) = segments(recorded, |index| self.record.profiled(index), enough) else {
            return false;
        };
        let part = |range: Range<usize>| -> Vec<ProfiledRequest> {
            range.map(|index| self.record.profiled(index)).collect()
        };
        let ranges = || found.starts.windows(2).map(|pair| pair[0]..pair[1]);
        let (Some(longest), Some(last)) = (ranges().max_by_key(Range::len), ranges().next_back()) else {
            return false;
        };
        let current = seen(&part(last.end..recorded), UNPLACED);
        let previous = seen(&part(last.clone()), if longest == last { 0 } else { UNPLACED });
        let longest = part(longest);
        self.vary(longest, previous, current, Some(Valleys::new(&found)))
    }
}

/// The position of a request that is not matched yet.
const UNPLACED: u32 = u32::MAX;

/// Recorded requests as those of an observed iteration, at positions from `first` on, or [`UNPLACED`].
fn seen(record: &[ProfiledRequest], first: u32) -> Vec<Seen> {
    let entry = |(index, entry): (usize, &ProfiledRequest)| Seen {
        request: entry.request,
        at: first.saturating_add(index as u32),
        matched: first != UNPLACED,
        span: entry.span.map_or(0, |span| u32::try_from(span).unwrap_or(u32::MAX)),
    };
    record.iter().enumerate().map(entry).collect()
}

fn built<'a>(layout: &'a Layout, arena: &'a NewArena, granule: usize) -> Built<'a> {
    Built { layout, cells: &arena.cells, base: arena.base, arena_id: arena.arena_id, granule }
}
