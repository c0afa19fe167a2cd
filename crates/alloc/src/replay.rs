//! Answering the requests of an iteration from its layout: the λ-th request gets the λ-th slot (Sekiyama 4.2).
//!
//! # Why no two living blocks overlap, whatever the program does
//!
//! A slot is served out only at its iteration, and turns only go forward round the circle. Before it is served out, every slot that held any of
//! its bytes last (its *predecessors*, by layout) is looked at:
//! - if the predecessor's block is still alive, the request goes to the fallback ([`Step::Late`]);
//! - if the predecessor was served out at its latest iteration, then at that moment its bytes were free of everybody else, and nobody between
//!   that iteration and this has a slot there: its bytes are free now;
//! - if it was not served out at its latest iteration (it was skipped, or went to the fallback), who had its bytes before may still live
//!   there: then all slots are looked at.
//!
//! So a program that repeats itself pays for at most three looks per request on average, and one that does not is served more slowly or
//! by the fallback, never wrongly. Nothing here depends on why a request is unexpected.
//!
//! # Which slot a request means
//!
//! The expected request is recognized by equality. Otherwise a request may be an extra one, a changed one (larger or smaller), or one
//! behind others that were left out. A smaller one gets the slot. Any other unexpected request goes to the fallback, and the next
//! requests decide which it was. All that is looked at is a window of constant length.

use std::collections::HashMap;

use crate::arena::Arena;
use crate::directory::ArenaId;
use crate::layout::Layout;
use crate::record::ProfiledRequest;
use crate::request::Request;

/// Requests looked at ahead of the expected one, and unexpected requests in a row after which the plan is left.
const WINDOW: usize = 16;

/// Blocks watched at a time.
const MAX_OVERDUE: usize = 16;

/// Requests that make it worth while to have taken up a plan, and how often there may be fewer.
const MIN_USEFUL_REQUESTS: usize = 64 + WINDOW;
const MAX_SHORT_USES: u32 = 4;

/// Latest requests by which a plan that was left is recognized again.
pub(crate) const GRAM: usize = 8;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has this address.
    Planned(usize),
    /// It was the expected one, and has no slot because its block outlives an iteration.
    Unslotted,
    /// It was the expected one, and its slot's bytes are not free yet.
    Late,
    /// It was not the expected one.
    Missed,
    /// It was not the expected one, nor were many before it: the program does something else.
    Lost,
}

#[derive(Clone, Debug)]
struct ReplayEntry {
    request: Request,
    /// Address of the slot; 0 for none.
    address: usize,
    cell: u32,
    /// Range of `before`.
    first_predecessor: u32,
    last_predecessor: u32,
    /// The latest iteration at which it was served out.
    iteration: u64,
}

/// Unexpected requests of which it is not yet known what they were.
#[derive(Clone, Debug, Default)]
struct Unexplained {
    requests: Vec<Request>,
    /// Where the program would be if the first of them was a later one of the iteration.
    ahead: Option<usize>,
}

/// A layout in use.
#[derive(Clone, Debug)]
pub struct Replay {
    entries: Box<[ReplayEntry]>,
    predecessors: Box<[u32]>,
    arena_id: ArenaId,
    granule: usize,
    /// The request expected next.
    cursor: usize,
    /// Number of the iteration.
    iteration: u64,
    unexplained: Option<Unexplained>,
    /// Whether the latest slot went to a smaller request.
    inexact: bool,
    /// Slots served out in this iteration.
    served: usize,
    /// Sizes and spans as they turned out to be.
    profile: Vec<ProfiledRequest>,
    changed: bool,
    grams: HashMap<u64, Option<u32>>,
    finished: Option<Finished>,
    /// Living blocks that stood in the way of others: watched until they are freed, to know how long they live.
    overdue: Vec<u32>,
    /// Whether the program marks its iterations: then a request is known by its arena_id alone.
    marked: bool,
    /// Whether a marked iteration has had all its requests.
    exhausted: bool,
    /// How often in a row it was left again at once.
    short_uses: u32,
}

/// An iteration that has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Slots served out in it.
    pub served: usize,
    /// Whether a request was larger, or a block lived longer, than the plan assumed.
    pub changed: bool,
}

/// The hash of a gram_hash of requests.
pub(crate) fn gram_hash(tokens: impl Iterator<Item = u64>) -> u64 {
    tokens.fold(0, |hash: u64, token| hash.rotate_left(7).wrapping_mul(0x0100_0000_01b3) ^ token)
}

impl Replay {
    /// A layout of `profile` in the arena at `base`, which lies at a arena_id of the directory, with the arena's cell for each request.
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
        let n = profile.len();
        let mut grams = HashMap::with_capacity(n);
        for end in 0..n {
            let tokens = (0..GRAM).map(|i| profile[(end + n * GRAM + i + 1 - GRAM) % n].request.token());
            grams.entry(gram_hash(tokens)).and_modify(|at| *at = None).or_insert(Some(end as u32));
        }
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
            grams,
            finished: None,
            overdue: Vec::new(),
            marked: false,
            exhausted: false,
            short_uses: 0,
        }
    }

    /// The same, for a program that [marks](Self::align) its iterations: the λ-th request of an iteration gets the λ-th slot if it
    /// suffices, whatever was asked for there before.
    pub fn marked(self) -> Self {
        Self { marked: true, ..self }
    }

    /// Whether it is for a program that marks its iterations.
    pub fn is_marked(&self) -> bool {
        self.marked
    }

    /// Hears that it was left so many requests after it was taken up. Says whether that was so soon, for the last few times, that it had
    /// better be forgotten.
    pub(crate) fn is_useless(&mut self, requests: usize) -> bool {
        self.short_uses = if requests < MIN_USEFUL_REQUESTS { self.short_uses + 1 } else { 0 };
        self.short_uses >= MAX_SHORT_USES
    }

    /// Where its arena is.
    pub fn arena_id(&self) -> ArenaId {
        self.arena_id
    }

    /// Requests of an iteration that have a slot.
    pub fn slots(&self) -> usize {
        self.entries.iter().filter(|entry| entry.address != 0).count()
    }

    /// The iteration as it turned out to be: the sizes asked for and the spans lived at most.
    pub fn profile(&self) -> &[ProfiledRequest] {
        &self.profile
    }

    /// The next request. `arena` is the one at [`arena_id`](Self::arena_id).
    #[inline]
    pub fn request(&mut self, request: Request, arena: &Arena) -> Step {
        let settled = self.unexplained.is_none() & self.overdue.is_empty() & !self.exhausted;
        if self.entries[self.cursor].request == request && settled {
            self.inexact = false;
            self.serve(arena)
        } else if self.exhausted {
            Step::Missed
        } else {
            self.update_overdue(arena);
            self.unexpected(request, arena)
        }
    }

    /// Whether the first request of an iteration is expected next.
    pub fn at_beginning(&self) -> bool {
        self.cursor == 0 && self.unexplained.is_none()
    }

    /// The iteration that the latest request ended, once.
    #[inline]
    pub fn finished(&mut self) -> Option<Finished> {
        self.finished.take()
    }

    /// Gives the slot of the expected request, if its bytes are free, and expects the next request.
    #[inline]
    fn serve(&mut self, arena: &Arena) -> Step {
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
            _ if address == 0 => Step::Unslotted,
            Some(holder) => {
                self.record_longer(holder, at);
                if self.overdue.len() < MAX_OVERDUE && !self.overdue.contains(&(holder as u32)) {
                    self.overdue.push(holder as u32);
                }
                Step::Late
            }
            None => {
                arena.occupy(cell, at as u32);
                self.entries[at].iteration = self.iteration;
                self.served += 1;
                Step::Planned(address)
            }
        };
        self.expect((at + 1) % self.entries.len());
        step
    }

    /// Any living block on the bytes of a slot. Looks at all slots.
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

    /// Blocks that stood in the way are still alive, or are not.
    fn update_overdue(&mut self, arena: &Arena) {
        let mut overdue = std::mem::take(&mut self.overdue);
        overdue.retain(|&holder| arena.is_live(self.entries[holder as usize].cell, holder));
        for &holder in &overdue {
            self.record_longer(holder as usize, self.cursor);
        }
        self.overdue = overdue;
    }

    /// The block of request `holder` was still alive at request `at`.
    #[cold]
    fn record_longer(&mut self, holder: usize, at: usize) {
        let n = self.entries.len();
        let distance = if at > holder { at - holder } else { at + n - holder };
        let entry = &mut self.profile[holder];
        if let Some(span) = entry.span.filter(|&span| span <= distance) {
            // A block that is alive when its own next instance is asked for cannot have a slot.
            entry.span = Some(span.max(distance + 1)).filter(|&span| span <= n);
            self.changed = true;
        }
    }

    /// Expects a request next, going forward round the circle.
    #[inline]
    fn expect(&mut self, at: usize) {
        if at <= self.cursor {
            self.iteration += 1;
            self.finished = Some(Finished { served: self.served, changed: self.changed });
            self.served = 0;
            self.exhausted = self.marked;
        }
        self.cursor = at;
    }

    fn equals(&self, at: usize, request: Request) -> bool {
        self.entries[at].request == request
    }

    /// Whether the slot of a request suffices for another.
    fn suffices(&self, at: usize, request: Request) -> bool {
        let slot = self.entries[at].request;
        request.size <= slot.size && request.align <= slot.align.max(self.granule)
    }

    /// Whether it does, and the other is not so small that it is probably something else.
    fn resembles(&self, at: usize, request: Request) -> bool {
        self.suffices(at, request) && request.size >= self.entries[at].request.size / 2
    }

    #[cold]
    fn unexpected(&mut self, request: Request, arena: &Arena) -> Step {
        let n = self.entries.len();
        let unexplained = self.unexplained.take();
        if self.equals(self.cursor, request) {
            // Whatever came before was extra.
            return self.serve(arena);
        }
        if self.marked {
            if self.suffices(self.cursor, request) {
                return self.serve(arena);
            }
            self.record_larger(self.cursor, request);
            self.expect((self.cursor + 1) % n);
            return Step::Missed;
        }
        match unexplained {
            None => {
                let previous = (self.cursor + n - 1) % n;
                if std::mem::take(&mut self.inexact) && self.equals(previous, request) {
                    // The smaller request before this one was extra, and has got this one's slot.
                    return Step::Missed;
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
                Step::Missed
            }
            Some(mut unexplained) => {
                let after = (self.cursor + unexplained.requests.len()) % n;
                if unexplained.requests.len() < n
                    && (self.equals(after, request) || self.resembles(after, request))
                {
                    // The requests before were changed ones.
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
                    return Step::Lost;
                }
                self.unexplained = Some(unexplained);
                Step::Missed
            }
        }
    }

    /// Behind which of the next requests the program would be if it had just made that one.
    fn ahead(&self, request: Request) -> Option<usize> {
        let n = self.entries.len();
        let mut next = (1..=WINDOW.min(n - 1)).map(|i| (self.cursor + i) % n);
        next.find(|&at| self.equals(at, request)).map(|at| (at + 1) % n)
    }

    /// The request of a slot turned out larger, or more strictly aligned.
    fn record_larger(&mut self, at: usize, request: Request) {
        if !self.suffices(at, request) {
            let entry = &mut self.profile[at].request;
            *entry = Request::new(entry.size.max(request.size), entry.align.max(request.align));
            self.changed = true;
        }
    }

    /// The program says that an iteration begins here.
    pub fn start_iteration(&mut self) {
        self.unexplained = None;
        if self.cursor != 0 {
            self.expect(0);
        }
        self.exhausted = false;
    }

    /// Whether the latest [`GRAM`] requests, by the hash of their gram_hash, are a part of this iteration, at one arena_id only: then the
    /// next request is expected behind that arena_id.
    pub(crate) fn recognize(&mut self, hash: u64, recent: impl Iterator<Item = Request>) -> bool {
        let Some(end) = self.grams.get(&hash).copied().flatten() else { return false };
        let n = self.entries.len();
        let mut expected = (0..GRAM).map(|i| (end as usize + n * GRAM + i + 1 - GRAM) % n);
        if !recent.zip(&mut expected).all(|(request, at)| self.equals(at, request)) {
            return false;
        }
        self.unexplained = None;
        self.overdue.clear();
        self.exhausted = false;
        self.cursor = (end as usize + 1) % n;
        // Two turns on: no slot counts as served out at its latest iteration, so all are looked at once.
        self.iteration += 2;
        self.served = 0;
        self.finished = None;
        true
    }
}
