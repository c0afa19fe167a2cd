//! Serves iterations that resemble each other: their lengths or sizes vary (Sekiyama et al. 2018, section 4.3).
//!
//! The plan is made from the longest iteration so far, after one at the earliest. Shorter ones leave positions out: sentences of 20 words run
//! the first 20 steps forward, and as many backward, of a plan for 50. What the plan lacks goes to the fallback, and the next iteration has
//! it: a request beyond the plan's end, one in between, a larger one, or the bytes of a block that lived longer than before.
//!
//! # Matching
//!
//! A request is matched with a position of the plan, later than that of the request before:
//! 1. the next position, if the request is equal to it. After requests without a position, the one that follows if they were changed ones;
//! 2. otherwise the position of an equal request before which at least [`ENOUGH_CONTEXT`] of the last [`CONTEXT`] requests are the same;
//!    most count, then the nearest. The end of a loop is found in this way however often the loop ran: before the first step backward of the
//!    plan come the same requests as before that of a shorter iteration;
//! 3. otherwise the next position, if its slot suffices: sizes vary, and the λ-th request is the λ-th (section 4.2).
//!
//! # Why live blocks never overlap
//!
//! A table holds the ranges of the blocks that were served, disjoint and by address. Before a slot is served, each range that has one of its
//! bytes is checked: if its block lives, the request goes to the fallback; otherwise the range is removed. Nothing else is assumed.

mod boundary;
mod merge;
mod observed;

use std::collections::{BTreeMap, HashMap};

use crate::arena::{Arena, Occupied};
use crate::directory::ArenaId;
use crate::layout::Layout;
use crate::record::ProfiledRequest;
use crate::request::{Request, RequestTime, Ticket};

use merge::{Merged, merged};

pub(crate) use boundary::{ENOUGH, Valleys, segments, vary};
use observed::LateFree;
pub(crate) use observed::{Observed, Seen};

/// Requests before a position that are compared.
const CONTEXT: usize = 8;

/// Of them, how many must be the same.
const ENOUGH_CONTEXT: usize = 4;

/// Positions of equal requests that are compared.
const MAX_CANDIDATES: usize = 64;

/// Plans that follow a change at once. After them, ever more iterations pass between two plans.
const PROMPT_PLANS: u32 = 64;

/// If this many plans followed growth, each at most [`SETTLED`] iterations after the one before, the next has room.
const GROWING: u32 = 3;

/// After this many iterations without a change, a plan with spare room is replaced by one without it.
const SETTLED: u32 = 64;

/// Room of a request that was larger, as a part of its size, and the most room of a lifetime, as a part of the iteration.
const ROOM: (usize, usize) = (3, 16);
const MAX_TIME_ROOM: usize = 16;

/// Requests at the beginning of an iteration of which none is served, before the plan's arena is given up.
const UNFIT: usize = 4;

/// Iterations in a row of which less than half is served from the plan, before the plan is abandoned.
const MAX_UNSERVED: u32 = 4;

/// How a request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VaryingStep {
    /// At this address.
    Planned(usize),
    /// It has a position, but its bytes are still in use.
    Late,
    /// It has no position, or one without a slot.
    Missed,
    /// Its arena was idle. With `true`, the next request is served.
    Idle(bool),
}

/// Where a request stands in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    At(usize),
    /// A loop runs once more than in the plan: the request is as this earlier one, whose slot may be free again. The plan goes on where it was.
    Again(usize),
    None,
}

/// What follows from an iteration that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Keep,
    /// A plan for this profile is needed. It was not served as a whole.
    Replan(Wanted),
    /// The iterations do not resemble each other.
    Abandon,
}

/// A profile to plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// As observed.
    pub profile: Vec<ProfiledRequest>,
    /// With room for what will come.
    pub roomy: Vec<ProfiledRequest>,
}

/// The slot of a position.
#[derive(Clone, Copy, Debug)]
struct PlannedSlot {
    /// 0 for none.
    address: usize,
    bytes: usize,
    align: usize,
    cell: u32,
}

/// A plan for iterations that vary, and the two latest of them.
#[derive(Debug)]
pub(crate) struct Varying {
    profile: Vec<ProfiledRequest>,
    slots: Box<[PlannedSlot]>,
    /// `None` after it was given up.
    arena_id: Option<ArenaId>,
    /// The positions of each request, in ascending order.
    positions: HashMap<Request, Vec<u32>>,
    /// Ranges that were served: first address to the end and the position.
    held: BTreeMap<usize, (usize, u32)>,
    /// The position after the latest matched one.
    cursor: usize,
    /// Requests since then.
    unmatched: usize,
    /// The latest requests, in a ring.
    recent: [Request; CONTEXT],
    recent_len: usize,
    observed: Observed,
    /// Without marks: what tells where an iteration ends.
    valleys: Option<Valleys>,
    /// Requests of the iteration that a plan served, and that it could not serve.
    served: usize,
    missed: usize,
    /// Whether a lifetime became known for a position without a slot.
    is_stale: bool,
    plans: u32,
    /// Iterations since the plan was made.
    since: u32,
    unserved: u32,
    /// Iterations, and requests of the longest of them.
    ended: u32,
    longest: usize,
    /// Plans in a row that followed a larger or longer iteration, each soon after the one before.
    growths: u32,
    /// Whether the plan has room for growth.
    is_roomy: bool,
    /// Whether the latest end of an iteration was noticed too late for another plan.
    is_deferred: bool,
}

impl Varying {
    /// A plan for `profile`, in the arena at `base` that has `cells`. `valleys` is `None` if the program marks its iterations.
    pub fn new(
        profile: Vec<ProfiledRequest>,
        built: Built<'_>,
        observed: Observed,
        valleys: Option<Valleys>,
    ) -> Self {
        let mut varying = Self {
            profile: Vec::new(),
            slots: Box::default(),
            arena_id: Some(built.arena_id),
            positions: HashMap::new(),
            held: BTreeMap::new(),
            cursor: 0,
            unmatched: 0,
            recent: [Request::new(0, 1); CONTEXT],
            recent_len: 0,
            observed,
            valleys,
            served: 0,
            missed: 0,
            is_stale: false,
            plans: 0,
            since: 0,
            unserved: 0,
            ended: 0,
            longest: 0,
            growths: 0,
            is_roomy: false,
            is_deferred: false,
        };
        let seen = varying.observed.seen();
        let recent: Vec<Request> =
            seen[seen.len().saturating_sub(CONTEXT)..].iter().map(|seen| seen.request).collect();
        varying.recent[..recent.len()].copy_from_slice(&recent);
        varying.recent_len = recent.len();
        varying.install(profile, built);
        varying
    }

    /// Replaces the plan. Live blocks keep their addresses.
    pub fn install(&mut self, profile: Vec<ProfiledRequest>, built: Built<'_>) {
        self.slots = (0..profile.len())
            .map(|at| match built.layout.slots[at] {
                Some(slot) => PlannedSlot {
                    address: built.base + slot.offset,
                    bytes: slot.bytes,
                    align: profile[at].request.align.max(built.granule),
                    cell: built.cells[at],
                },
                None => PlannedSlot { address: 0, bytes: 0, align: 0, cell: 0 },
            })
            .collect();
        self.profile = profile;
        self.index();
        self.arena_id = Some(built.arena_id);
        self.held.clear();
        self.plans += 1;
        (self.since, self.is_stale) = (0, false);
        self.rematch();
    }

    /// Finds the positions of each request.
    fn index(&mut self) {
        self.positions.clear();
        for (at, entry) in self.profile.iter().enumerate() {
            self.positions.entry(entry.request).or_default().push(at as u32);
        }
    }

    /// Matches the requests of the iteration in progress again: they came before it was known to have begun.
    fn rematch(&mut self) {
        (self.cursor, self.unmatched, self.missed) = (0, 0, 0);
        let requests: Vec<Request> = self.observed.seen().iter().map(|seen| seen.request).collect();
        let start = self.recent_len.saturating_sub(requests.len());
        let latest = self.recent_len;
        for (index, request) in requests.into_iter().enumerate() {
            self.recent_len = start + index;
            let place = self.locate(request);
            let (at, matched) = self.advance(place);
            self.missed += usize::from(!matched);
            self.observed.set_place(index, at as u32, matched);
        }
        self.recent_len = latest;
    }

    /// Its arena; `None` after that was [given up](Self::give_up_arena).
    pub fn arena_id(&self) -> Option<ArenaId> {
        self.arena_id
    }

    /// Whether the plan could not serve so many of the first requests of the iteration in progress that another plan is needed.
    pub fn is_unfit(&self) -> bool {
        self.served == 0 && self.missed >= UNFIT
    }

    /// Gives the arena up, in which no block lives: the fallback needs the memory for this iteration. The next one gets another plan.
    pub fn give_up_arena(&mut self) {
        self.arena_id = None;
    }

    /// Whether it has served many iterations.
    pub fn is_proven(&self) -> bool {
        self.ended >= SETTLED
    }

    pub fn is_marked(&self) -> bool {
        self.valleys.is_none()
    }

    pub fn now(&self) -> RequestTime {
        self.observed.now()
    }

    /// Requests of the plan.
    pub fn len(&self) -> usize {
        self.profile.len()
    }

    /// Requests of the iteration in progress.
    pub fn in_progress(&self) -> usize {
        self.observed.seen().len()
    }

    /// Serves a request. Returns also the ticket by which its free is to be reported. `arena` is the one with the id
    /// [`arena_id`](Self::arena_id); without one, the request is only observed.
    pub fn request(&mut self, request: Request, arena: Option<&Arena>) -> (VaryingStep, Ticket) {
        let place = self.locate(request);
        let (at, matched) = self.advance(place);
        self.recent[self.recent_len % CONTEXT] = request;
        self.recent_len += 1;
        let ticket = self.observed.push(Seen { request, at: at as u32, matched, span: 0 });
        let step = match (place, arena) {
            (Place::At(at) | Place::Again(at), Some(arena)) => self.serve(at, request, arena),
            _ => VaryingStep::Missed,
        };
        self.served += usize::from(matches!(step, VaryingStep::Planned(_)));
        // A position without a slot is no change.
        self.missed += usize::from(!matched || step == VaryingStep::Late);
        (step, ticket)
    }

    /// The position of the next request if those since the latest matched one were changed ones.
    fn expected(&self) -> usize {
        self.cursor + self.unmatched
    }

    /// Goes on behind a request. Returns its position, and whether it was matched with that.
    fn advance(&mut self, place: Place) -> (usize, bool) {
        match place {
            Place::At(at) => {
                (self.cursor, self.unmatched) = (at + 1, 0);
                (at, true)
            }
            Place::Again(_) => (self.cursor, false),
            Place::None => {
                self.unmatched += 1;
                (self.expected() - 1, false)
            }
        }
    }

    fn equals(&self, at: usize, request: Request) -> bool {
        self.profile.get(at).is_some_and(|entry| entry.request == request)
    }

    /// The position of a request.
    fn locate(&self, request: Request) -> Place {
        let expected = self.expected();
        for at in [expected, self.cursor] {
            if self.equals(at, request) {
                return Place::At(at);
            }
        }
        if let Some(place) = self.by_context(request) {
            return place;
        }
        if self.suffices(expected, request) { Place::At(expected) } else { Place::None }
    }

    fn suffices(&self, at: usize, request: Request) -> bool {
        self.slots.get(at).is_some_and(|slot| {
            request.size <= slot.bytes && request.align <= slot.align && request.align.is_power_of_two()
        })
    }

    /// The position of an equal request before which most of the latest requests are the same: a later one, or else an earlier one.
    fn by_context(&self, request: Request) -> Option<Place> {
        let positions = self.positions.get(&request)?;
        let (earlier, later) =
            positions.split_at(positions.partition_point(|&at| (at as usize) < self.cursor));
        let best = |candidates: &mut dyn Iterator<Item = &u32>| {
            let mut best = (ENOUGH_CONTEXT - 1, None);
            for &at in candidates.take(MAX_CANDIDATES) {
                let context = self.context(at as usize);
                if context > best.0 {
                    best = (context, Some(at as usize));
                }
                if context == CONTEXT {
                    break;
                }
            }
            best
        };
        let (context, ahead) = best(&mut later.iter());
        let (repeated, again) = best(&mut earlier.iter().rev());
        if repeated > context { again.map(Place::Again) } else { ahead.map(Place::At) }
    }

    /// How many of the latest requests are those before a position. The plan's end is before its beginning.
    fn context(&self, at: usize) -> usize {
        let n = self.profile.len();
        let back = 1..=CONTEXT.min(self.recent_len).min(n);
        back.filter(|&back| self.equals((at + n - back) % n, self.recent[(self.recent_len - back) % CONTEXT]))
            .count()
    }

    /// Serves the slot of a position if its bytes are free.
    fn serve(&mut self, at: usize, request: Request, arena: &Arena) -> VaryingStep {
        let PlannedSlot { address, bytes, cell, .. } = self.slots[at];
        if address == 0 || !self.suffices(at, request) {
            return VaryingStep::Missed;
        }
        let end = address + bytes;
        while let Some((&start, &(stop, holder))) = self.held.range(..end).next_back() {
            if stop <= address {
                break;
            }
            if arena.is_live(self.slots[holder as usize].cell, holder) {
                return VaryingStep::Late;
            }
            self.held.remove(&start);
        }
        match arena.occupy(cell, at as u32) {
            Occupied::Yes => {
                self.held.insert(address, (end, at as u32));
                VaryingStep::Planned(address)
            }
            answer => VaryingStep::Idle(answer == Occupied::Woken),
        }
    }

    /// Records a free. Returns the block's bytes, 0 for one that is not known.
    pub fn freed(&mut self, ticket: Ticket, at: RequestTime) -> usize {
        let live = self.observed.live();
        if let Some(late) = self.observed.freed(ticket, at) {
            self.freed_late(late);
        }
        live - self.observed.live()
    }

    /// Records that a block of the iteration before lived into this one.
    fn freed_late(&mut self, late: LateFree) {
        let n = self.profile.len();
        let now = self.observed.seen().get(late.index).map_or(self.expected(), |seen| seen.at as usize);
        let at = late.at as usize;
        let Some(entry) = self.profile.get_mut(at) else { return };
        let span = n - at + now;
        if span <= n && entry.span.is_none_or(|known| known < span) {
            self.is_stale |= entry.span.is_none();
            entry.span = Some(span);
        }
    }

    /// Without marks: how many requests of the iteration in progress belonged to one that has ended, if `request` shows that.
    pub fn boundary(&mut self, request: Request) -> Option<usize> {
        let is_next = self.begins_next(request);
        let valleys = self.valleys.as_mut()?;
        valleys.observe(self.observed.live(), self.observed.seen().len(), self.profile.len(), is_next)
    }

    /// Whether a request looks like the first one of an iteration: the last one of the plan has come, or one that is equal to the plan's first
    /// follows those that end the plan.
    fn begins_next(&self, request: Request) -> bool {
        if self.equals(0, request) && self.context(0) >= ENOUGH_CONTEXT {
            return true;
        }
        self.expected() == self.profile.len() && !matches!(self.by_context(request), Some(Place::Again(_)))
    }

    /// Ends the iteration after its first `requests` requests. `is_empty` tells whether no block lives in the arena.
    pub fn end_iteration(&mut self, requests: usize, is_empty: bool) -> Verdict {
        let seen = &self.observed.seen()[..requests];
        let half_served = 2 * self.served >= requests.min(self.in_progress());
        self.ended = self.ended.saturating_add(1);
        self.longest = self.longest.max(requests);
        // A plan of twice the requests of every iteration began as something else.
        let base = if self.profile.len() > 2 * self.longest { &[] } else { &self.profile[..] };
        let Merged { profile, places } = merged(base, seen);
        self.unserved = if half_served { 0 } else { self.unserved + 1 };
        self.since = self.since.saturating_add(1);
        let is_settled = self.is_roomy && self.since >= SETTLED && is_empty;
        // The end was noticed late: blocks of the next iteration are alive, so that another plan would need memory besides this one's.
        let is_time = is_empty || self.is_marked() || self.is_deferred;
        self.is_deferred = !is_time;
        let wait = 1 << self.plans.saturating_sub(PROMPT_PLANS).min(20);
        let lacks = self.is_stale || (self.missed > 0 && profile != self.profile);
        let changed = self.arena_id.is_none() || (lacks && self.since >= wait && is_time);
        let verdict = if changed || is_settled {
            self.observed.end(requests, &places);
            Verdict::Replan(self.wanted(profile, is_settled && !changed))
        } else {
            // The slots stay, and what the plan lacks is forgotten.
            let places: Vec<u32> = seen.iter().map(|seen| seen.at).collect();
            self.observed.end(requests, &places);
            if profile.len() == self.profile.len() {
                self.take_up(profile);
            }
            Verdict::Keep
        };
        self.served = 0;
        if self.unserved >= MAX_UNSERVED {
            return Verdict::Abandon;
        }
        if verdict == Verdict::Keep {
            self.rematch();
        }
        verdict
    }

    /// Takes up lifetimes, and sizes as far as slots suffice for them.
    fn take_up(&mut self, profile: Vec<ProfiledRequest>) {
        let mut same = true;
        for (at, new) in profile.into_iter().enumerate() {
            self.profile[at].span = new.span;
            if self.profile[at].request != new.request && self.suffices(at, new.request) {
                self.profile[at].request = new.request;
                same = false;
            }
        }
        if !same {
            self.index();
        }
    }

    /// What to plan. Sizes or lengths that have grown several times will grow again: then those that have grown get room, so that the next ones
    /// are served and need no other plan.
    fn wanted(&mut self, profile: Vec<ProfiledRequest>, is_settled: bool) -> Wanted {
        let (old, new) = (self.profile.len(), profile.len());
        let grown = |at: usize| old == new && self.profile[at].request.size < profile[at].request.size;
        let is_growing = new > old || (0..new).any(grown);
        self.growths = match (is_settled, is_growing && self.since <= SETTLED) {
            (true, _) => 0,
            (false, true) => self.growths + 1,
            (false, false) => self.growths,
        };
        self.is_roomy = self.growths >= GROWING;
        let mut roomy = profile.clone();
        if self.is_roomy {
            let time = new.saturating_sub(old).min(new / MAX_TIME_ROOM);
            for (at, entry) in roomy.iter_mut().enumerate() {
                if grown(at) {
                    let size = entry.request.size;
                    entry.request.size = size.saturating_add(size / ROOM.1 * ROOM.0);
                }
                // Steps that come in addition lengthen what lives across them.
                let long = entry.span.filter(|&span| span > 2 * time && span + time <= new);
                entry.span = long.map(|span| span + time).or(entry.span);
            }
        }
        Wanted { profile, roomy }
    }
}

/// What a plan is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Built<'a> {
    pub layout: &'a Layout,
    pub cells: &'a [u32],
    pub base: usize,
    pub arena_id: ArenaId,
    pub granule: usize,
}
