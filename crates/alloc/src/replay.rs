//! Serves the requests of an iteration from its layout: the λ-th request gets the λ-th slot (Sekiyama 4.2).
//!
//! # Why live blocks never overlap, whatever the program does
//!
//! Slots are served in cyclic order; some may be skipped, but the order is never reversed. Before a slot is served, every slot that used
//! any of its bytes last (its *predecessors* in the layout) is checked:
//! - If the predecessor's block is still alive, the request goes to the fallback ([`ReplayStep::Late`]).
//! - If the predecessor was served in its latest iteration, its bytes were free of other blocks then, and no slot in between uses them: its
//!   bytes are free now.
//! - If the predecessor was not served in its latest iteration (it was skipped, or went to the fallback), an earlier user of its bytes may
//!   still be alive: then all slots are checked.
//!
//! A program that repeats itself therefore pays for at most three checks per request on average. One that does not is served more slowly or
//! by the fallback, but never wrongly. None of this depends on why a request is unexpected.
//!
//! # Matching requests with slots
//!
//! The expected request is recognized by equality. Otherwise a request may be an extra one, a changed one (larger or smaller), or one that
//! follows omitted ones. A smaller one gets the slot. Any other unexpected request goes to the fallback, and the next requests decide which
//! case it was. The search is limited to a window of constant length.

use crate::arena::{Arena, Occupied};
use crate::directory::ArenaId;
use crate::gram::{GRAM, Grams, Recent};
use crate::layout::Layout;
use crate::record::ProfiledRequest;
use crate::request::Request;

/// Number of later requests that are compared with an unexpected one, and of consecutive unexpected requests after which the plan is
/// abandoned.
const WINDOW: usize = 16;

/// Maximum number of overdue blocks that are tracked.
const MAX_OVERDUE: usize = 16;

/// Requests that make resuming a plan worthwhile, and how many times in a row there may be fewer.
const MIN_USEFUL_REQUESTS: usize = 64 + WINDOW;
const MAX_SHORT_USES: u32 = 4;

/// How a request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayStep {
    /// At this address.
    Planned(usize),
    /// It was the expected request, but it has no slot because its block outlives an iteration.
    Unslotted,
    /// It was the expected request, but its slot's bytes are still in use.
    Late,
    /// It was the expected request, but the arena was idle and its pages have been discarded, or are being discarded. With `true`, the next
    /// request is served.
    Idle(bool),
    /// It was not the expected request.
    Missed,
    /// It was not the expected request, and neither were many before it: the program's behaviour has changed.
    Lost,
}

#[derive(Clone, Debug)]
struct ReplayEntry {
    request: Request,
    /// Address of the slot; 0 for none.
    address: usize,
    cell: u32,
    /// Its range in [`Replay::predecessors`].
    first_predecessor: u32,
    last_predecessor: u32,
    /// The latest iteration in which its slot was served.
    iteration: u64,
}

/// Unexpected requests that have not been explained yet.
#[derive(Clone, Debug, Default)]
struct Unexplained {
    requests: Vec<Request>,
    /// The position that follows if the first of them was a later request of the iteration.
    ahead: Option<usize>,
}

/// A layout in use.
#[derive(Clone, Debug)]
pub struct Replay {
    entries: Box<[ReplayEntry]>,
    predecessors: Box<[u32]>,
    arena_id: ArenaId,
    granule: usize,
    /// Index of the request expected next.
    cursor: usize,
    /// Number of the iteration.
    iteration: u64,
    unexplained: Option<Unexplained>,
    /// Whether the latest slot went to a smaller request.
    inexact: bool,
    /// Slots served in this iteration.
    served: usize,
    /// Sizes and lifetimes as observed.
    profile: Vec<ProfiledRequest>,
    changed: bool,
    grams: Grams,
    finished: Option<Finished>,
    /// Live blocks whose bytes another slot needs. Tracked until they are freed, to record their lifetimes.
    overdue: Vec<u32>,
    /// How many times in a row the plan was abandoned soon after it was resumed.
    short_uses: u32,
}

/// The iteration that has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Slots served in it.
    pub served: usize,
    /// Whether a request was larger, or a block lived longer, than the plan assumed.
    pub changed: bool,
}

impl Replay {
    /// A layout for `profile` in the arena at `base`, with the arena's id and the arena's cell of each request.
    pub fn new(
        profile: Vec<ProfiledRequest>,
        layout: &Layout,
        cells: &[u32],
        base: usize,
        arena_id: ArenaId,
        granule: usize,
    ) -> Self {
        let mut predecessors = Vec::new();
        let mut entries = Vec::with_capacity(profile.len());
        for (at, entry) in profile.iter().enumerate() {
            let first_predecessor = predecessors.len() as u32;
            predecessors.extend_from_slice(&layout.predecessors[at]);
            entries.push(ReplayEntry {
                request: entry.request,
                address: layout.slots[at].map_or(0, |slot| base + slot.offset),
                cell: cells[at],
                first_predecessor,
                last_predecessor: predecessors.len() as u32,
                iteration: 0,
            });
        }
        let requests: Vec<Request> = profile.iter().map(|entry| entry.request).collect();
        Self {
            entries: entries.into(),
            predecessors: predecessors.into(),
            arena_id,
            granule,
            cursor: 0,
            iteration: 1,
            unexplained: None,
            inexact: false,
            served: 0,
            profile,
            changed: false,
            grams: Grams::new(&requests),
            finished: None,
            overdue: Vec::new(),
            short_uses: 0,
        }
    }

    /// Records that the plan was abandoned after `requests` requests. Returns true if that was too soon several times in a row, so that the
    /// plan should be dropped.
    pub(crate) fn is_useless(&mut self, requests: usize) -> bool {
        self.short_uses = if requests < MIN_USEFUL_REQUESTS { self.short_uses + 1 } else { 0 };
        self.short_uses >= MAX_SHORT_USES
    }

    /// The id of its arena.
    pub fn arena_id(&self) -> ArenaId {
        self.arena_id
    }

    /// Requests of an iteration that have a slot.
    pub fn slots(&self) -> usize {
        self.entries.iter().filter(|entry| entry.address != 0).count()
    }

    /// The iteration as observed: the largest sizes and longest lifetimes.
    pub fn profile(&self) -> &[ProfiledRequest] {
        &self.profile
    }

    /// Serves the next request. `arena` is the one with the id [`arena_id`](Self::arena_id).
    #[inline]
    pub fn request(&mut self, request: Request, arena: &Arena) -> ReplayStep {
        let settled = self.unexplained.is_none() & self.overdue.is_empty();
        if self.entries[self.cursor].request == request && settled {
            self.inexact = false;
            self.serve(arena)
        } else {
            self.update_overdue(arena);
            self.unexpected(request, arena)
        }
    }

    /// Whether the first request of an iteration is expected next.
    pub fn at_beginning(&self) -> bool {
        self.cursor == 0 && self.unexplained.is_none()
    }

    /// Returns the iteration that the latest request ended, once.
    #[inline]
    pub fn finished(&mut self) -> Option<Finished> {
        self.finished.take()
    }

    /// Serves the slot of the expected request if its bytes are free, and advances to the next request.
    #[inline]
    fn serve(&mut self, arena: &Arena) -> ReplayStep {
        let at = self.cursor;
        let entry = &self.entries[at];
        let (address, cell) = (entry.address, entry.cell);
        let mut holder = None;
        let mut known = true;
        for &before in &self.predecessors[entry.first_predecessor as usize..entry.last_predecessor as usize] {
            let other = &self.entries[before as usize];
            if arena.is_live(other.cell, before) {
                holder = Some(before as usize);
                break;
            }
            known &=
                other.iteration == if (before as usize) < at { self.iteration } else { self.iteration - 1 };
        }
        if !known && holder.is_none() {
            holder = self.holder(at, arena);
        }
        let step = match holder {
            _ if address == 0 => ReplayStep::Unslotted,
            Some(holder) => {
                self.record_longer(holder, at);
                if self.overdue.len() < MAX_OVERDUE && !self.overdue.contains(&(holder as u32)) {
                    self.overdue.push(holder as u32);
                }
                ReplayStep::Late
            }
            None => match arena.occupy(cell, at as u32) {
                Occupied::Yes => {
                    self.entries[at].iteration = self.iteration;
                    self.served += 1;
                    ReplayStep::Planned(address)
                }
                answer => ReplayStep::Idle(answer == Occupied::Woken),
            },
        };
        self.expect((at + 1) % self.entries.len());
        step
    }

    /// A live block on the bytes of a slot, if there is one. Checks all slots.
    #[cold]
    fn holder(&self, at: usize, arena: &Arena) -> Option<usize> {
        let entry = &self.entries[at];
        let bytes = |entry: &ReplayEntry| entry.request.rounded(self.granule).unwrap_or(usize::MAX / 2);
        let (start, end) = (entry.address, entry.address + bytes(entry));
        self.entries.iter().enumerate().position(|(other, o)| {
            o.address != 0
                && o.address < end
                && start < o.address + bytes(o)
                && arena.is_live(o.cell, other as u32)
        })
    }

    /// Updates the list of overdue blocks and their lifetimes.
    fn update_overdue(&mut self, arena: &Arena) {
        let mut overdue = std::mem::take(&mut self.overdue);
        overdue.retain(|&holder| arena.is_live(self.entries[holder as usize].cell, holder));
        for &holder in &overdue {
            self.record_longer(holder as usize, self.cursor);
        }
        self.overdue = overdue;
    }

    /// Records that the block of request `holder` was still alive at request `at`.
    #[cold]
    fn record_longer(&mut self, holder: usize, at: usize) {
        let n = self.entries.len();
        let distance = if at > holder { at - holder } else { at + n - holder };
        let entry = &mut self.profile[holder];
        if let Some(span) = entry.span.filter(|&span| span <= distance) {
            // A block that is alive when its request recurs cannot have a slot.
            entry.span = Some(span.max(distance + 1)).filter(|&span| span <= n);
            self.changed = true;
        }
    }

    /// Advances to a request, in cyclic order.
    #[inline]
    fn expect(&mut self, at: usize) {
        if at <= self.cursor {
            self.iteration += 1;
            self.finished = Some(Finished { served: self.served, changed: self.changed });
            self.served = 0;
        }
        self.cursor = at;
    }

    fn equals(&self, at: usize, request: Request) -> bool {
        self.entries[at].request == request
    }

    /// Whether the slot of a request suffices for another request.
    fn suffices(&self, at: usize, request: Request) -> bool {
        let slot = self.entries[at].request;
        request.size <= slot.size
            && request.align <= slot.align.max(self.granule)
            && request.align.is_power_of_two()
    }

    /// Whether the slot suffices and the request is not so small that it is probably a different one.
    fn resembles(&self, at: usize, request: Request) -> bool {
        self.suffices(at, request) && request.size >= self.entries[at].request.size / 2
    }

    #[cold]
    fn unexpected(&mut self, request: Request, arena: &Arena) -> ReplayStep {
        let n = self.entries.len();
        let unexplained = self.unexplained.take();
        if self.equals(self.cursor, request) {
            // The unexpected requests before it were extra.
            return self.serve(arena);
        }
        match unexplained {
            None => {
                let previous = (self.cursor + n - 1) % n;
                if std::mem::take(&mut self.inexact) && self.equals(previous, request) {
                    // The smaller request before this one was extra, and has this one's slot.
                    return ReplayStep::Missed;
                }
                if self.resembles(self.cursor, request) {
                    self.inexact = true;
                    return self.serve(arena);
                }
                let ahead = self.ahead(request);
                if ahead.is_none() && self.suffices(self.cursor, request) {
                    self.inexact = true;
                    return self.serve(arena);
                }
                self.unexplained = Some(Unexplained { requests: vec![request], ahead });
                ReplayStep::Missed
            }
            Some(mut unexplained) => {
                let after = (self.cursor + unexplained.requests.len()) % n;
                if unexplained.requests.len() < n
                    && (self.equals(after, request) || self.resembles(after, request))
                {
                    // The unexpected requests were changed ones.
                    for (i, changed) in unexplained.requests.into_iter().enumerate() {
                        self.record_larger((self.cursor + i) % n, changed);
                    }
                    self.expect(after);
                    return self.serve(arena);
                }
                if let Some(ahead) = unexplained.ahead.filter(|&ahead| self.equals(ahead, request)) {
                    self.expect(ahead);
                    return self.serve(arena);
                }
                unexplained.ahead = self.ahead(request);
                unexplained.requests.push(request);
                if unexplained.requests.len() > WINDOW {
                    return ReplayStep::Lost;
                }
                self.unexplained = Some(unexplained);
                ReplayStep::Missed
            }
        }
    }

    /// The position that follows if the program has just made this one of the next requests.
    fn ahead(&self, request: Request) -> Option<usize> {
        let n = self.entries.len();
        let mut next = (1..=WINDOW.min(n - 1)).map(|i| (self.cursor + i) % n);
        next.find(|&at| self.equals(at, request)).map(|at| (at + 1) % n)
    }

    /// Records that the request of a slot was larger, or more strictly aligned.
    fn record_larger(&mut self, at: usize, request: Request) {
        if !self.suffices(at, request) && request.align.is_power_of_two() {
            let entry = &mut self.profile[at].request;
            *entry = Request::new(entry.size.max(request.size), entry.align.max(request.align));
            self.changed = true;
        }
    }

    /// Whether the latest gram occurs in this iteration at exactly one position. If so, continues behind that position.
    pub(crate) fn recognize(&mut self, recent: &Recent) -> bool {
        let Some(end) = recent.hash().and_then(|hash| self.grams.end(hash)) else { return false };
        let n = self.entries.len();
        let mut expected = (0..GRAM).map(|i| (end + n * GRAM + i + 1 - GRAM) % n);
        if !recent.iter().zip(&mut expected).all(|(request, at)| self.equals(at, request)) {
            return false;
        }
        self.unexplained = None;
        self.overdue.clear();
        self.cursor = (end + 1) % n;
        // Advances by two iterations, so that no slot counts as served in its latest one and all slots are checked once.
        self.iteration += 2;
        self.served = 0;
        self.finished = None;
        true
    }
}
