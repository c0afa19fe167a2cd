//! Requests of a sequence and the times at which their blocks were freed: the profile (Sekiyama 4.1).
//!
//! Time is counted in requests of the sequence: a block is alive from its own request to the first request after its free. A placement
//! depends on nothing else, and the profile is the same if a garbage collector or another thread frees a block a little earlier or later.

use crate::detect::Detector;
use crate::pages::PageVec;
use crate::request::{Request, RequestTime, Ticket};
use crate::watch::{Observed, Watch};

/// One request of an iteration, with the lifetime of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfiledRequest {
    /// Size and alignment requested.
    pub request: Request,
    /// Number of requests from this one to the first after the free; `None` if no free was recorded.
    pub span: Option<usize>,
}

/// A recorded request in eight bytes, from the lowest bit: its size, whether that is in units of [`UNIT`], the logarithm of its alignment, and
/// its block's span, which is [`ALIVE`] until the block is freed.
#[derive(Clone, Copy, Debug)]
struct RecordEntry(u64);

const SIZE_BITS: u32 = 35;
const ALIGN_BITS: u32 = 6;
const SPAN_SHIFT: u32 = SIZE_BITS + 1 + ALIGN_BITS;
const ALIVE: u64 = u64::MAX >> SPAN_SHIFT;

/// Sizes of more than 35 bits are rounded up to a multiple of this: a slot may be larger than its request.
const UNIT: u64 = 4 << 20;

impl RecordEntry {
    fn new(request: Request) -> Self {
        let size = request.size as u64;
        let is_exact = size >> SIZE_BITS == 0;
        let units = if is_exact { size } else { size.div_ceil(UNIT).min((1 << SIZE_BITS) - 1) };
        let align = u64::from(request.align.max(1).trailing_zeros());
        Self(units | u64::from(!is_exact) << SIZE_BITS | align << (SIZE_BITS + 1) | ALIVE << SPAN_SHIFT)
    }

    fn request(self) -> Request {
        let units = self.0 & ((1 << SIZE_BITS) - 1);
        let size = if self.0 >> SIZE_BITS & 1 == 0 { units } else { units * UNIT };
        let align = self.0 >> (SIZE_BITS + 1) & ((1 << ALIGN_BITS) - 1);
        Request::new(usize::try_from(size).unwrap_or(usize::MAX), 1 << align)
    }

    fn set_span(&mut self, span: u64) {
        self.0 = self.0 & ((1 << SPAN_SHIFT) - 1) | span.min(ALIVE - 1) << SPAN_SHIFT;
    }

    fn span(self) -> Option<u64> {
        Some(self.0 >> SPAN_SHIFT).filter(|&span| span != ALIVE)
    }
}

/// After this many requests, a record in which nothing recurred counts as full: it would cost time and memory for nothing.
const JUDGED: usize = 1 << 13;

/// From this many requests on, a record in which nothing recurred so far is *sparse* until something does.
const SPARSE_FROM: usize = 1 << 10;

/// Why requests are added to a record without tickets, so that the times of their frees stay unknown, and only a short number for each is kept.
/// When that ends, the detector observes all of them at once.
#[derive(Clone, Debug)]
enum Sparse {
    /// Nothing recurred. A watch observes the requests at a fraction of the detector's cost.
    Watched(Watch),
    /// Up to this length, nothing that the detector would report could be planned: see [`Record::rest`].
    Until(usize),
}

impl Sparse {
    /// Observes a request after `len` others. Returns whether sparseness ends with it.
    fn observe(&mut self, request: Request, len: usize) -> bool {
        match self {
            Self::Until(end) => len >= *end,
            Self::Watched(watch) => watch.observe(request.short_token()) == Observed::Recurring,
        }
    }
}

/// A bounded record of the latest requests, with the detector of iterations.
#[derive(Clone, Debug)]
pub struct Record {
    /// The requests that follow the last sparse part. An iteration is reported only if they contain it.
    entries: PageVec<RecordEntry>,
    /// Requests before them.
    without_tickets: usize,
    sparse: Option<Sparse>,
    /// Ticket of the first request.
    first: u64,
    detector: Detector,
    /// Maximum number of requests; a full record is cleared.
    capacity: usize,
    /// Whether the program marks its iterations: then requests are recorded whether they recur or not.
    marked: bool,
    /// Requests to skip before recording resumes: few after the first full record, because the program may have been starting up; then
    /// doubled after each full record without an iteration. After the pause, [`Watch`] decides.
    pause: u64,
    /// Requests to skip from now on.
    skipped: u64,
    /// The time of the first request in which no iteration was found.
    began: u64,
    /// After a pause: what decides when recording resumes.
    watch: Option<Watch>,
}

impl Record {
    /// An empty record of at most `capacity` requests.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(16);
        Self {
            entries: PageVec::new(),
            sparse: None,
            without_tickets: 0,
            first: 0,
            detector: Detector::new(),
            capacity,
            marked: false,
            pause: (capacity / 16) as u64,
            skipped: 0,
            began: 0,
            watch: None,
        }
    }

    /// Records a request. Returns its ticket, if it was recorded, and the length of the iteration that has just repeated, if there is one.
    pub fn request(&mut self, request: Request) -> (Option<Ticket>, Option<usize>) {
        if self.skipped > 0 {
            self.skip(1);
            return (None, None);
        }
        if let Some(watch) = &mut self.watch {
            match watch.observe(request.short_token()) {
                Observed::Recurring => self.watch = None,
                other => {
                    if let Observed::Pause(requests) = other {
                        self.skipped = requests;
                    }
                    self.first += 1;
                    return (None, None);
                }
            }
        }
        let len = self.len();
        if len == self.capacity
            || (len == JUDGED && !self.marked && self.is_all_new())
            || self.add(request).is_none()
        {
            let began = self.began;
            self.clear();
            self.began = began;
            self.skipped = self.pause;
            self.watch = Watch::new(self.first - began + self.pause, self.capacity / 4);
            self.pause = self.pause.saturating_mul(2);
            self.first += 1;
            return (None, None);
        }
        if self.sparse.is_some() {
            return (None, None);
        }
        let period = self.detector.observe(request);
        let with_tickets = self.entries.len();
        (Some(Ticket(self.now().0 - 1)), period.filter(|&period| period <= with_tickets))
    }

    /// Adds a request, which the detector has not observed yet unless the record is sparse. `None` if the system has no memory.
    fn add(&mut self, request: Request) -> Option<()> {
        if let Some(sparse) = &mut self.sparse {
            if !sparse.observe(request, self.without_tickets) {
                self.without_tickets += 1;
                return self.detector.defer(request.short_token());
            }
            self.sparse = None;
        }
        self.entries.push(RecordEntry::new(request))
    }

    /// Whether hardly any short sequence of requests has occurred twice.
    fn is_all_new(&self) -> bool {
        match &self.sparse {
            None => self.detector.is_all_new(),
            Some(Sparse::Watched(_)) => true,
            Some(Sparse::Until(_)) => false,
        }
    }

    /// Makes the record sparse if it is long enough and nothing has recurred. For requests that no plan serves.
    pub fn economize(&mut self) {
        let len = self.len();
        if (SPARSE_FROM..JUDGED).contains(&len)
            && len.is_power_of_two()
            && self.sparse.is_none()
            && self.detector.is_all_new()
        {
            let Some(mut watch) = Watch::new(0, self.capacity / 4) else { return };
            for &token in self.detector.tokens() {
                watch.observe(token);
            }
            self.make_sparse(Sparse::Watched(watch));
        }
    }

    fn make_sparse(&mut self, sparse: Sparse) {
        self.without_tickets = self.len();
        self.entries = PageVec::new();
        self.sparse = Some(sparse);
    }

    /// After a period that could not be planned, when a longer run is [required](Self::require_run): makes the record sparse for as long as no
    /// period can be reported. With `r` requests required, that of a period `p` is reported once the record has `r + p`. Tickets begin at three
    /// quarters of `r`, so that those of a period and a quarter of `r` more are there by then.
    pub fn rest(&mut self) {
        let end = self.detector.required_run() / 4 * 3;
        if self.len() >= SPARSE_FROM && end > self.len() {
            self.make_sparse(Sparse::Until(end));
        }
    }

    /// Ends a sparse part: the next request gets a ticket, whether requests recur or not.
    pub fn end_economy(&mut self) {
        self.sparse = None;
    }

    /// Clears the record because the program marks an iteration, and records the requests that follow.
    pub fn mark(&mut self) {
        self.marked = true;
        self.clear();
    }

    /// Clears the record; the next request has this time.
    pub fn restart_at(&mut self, now: RequestTime) {
        self.clear();
        (self.first, self.began) = (now.0, now.0);
    }

    /// A request that has a ticket, with its lifetime, by its index among them; a request of no bytes for other indices.
    pub fn profiled(&self, index: usize) -> ProfiledRequest {
        let Some(entry) = self.entries.get(index) else {
            return ProfiledRequest { request: Request::new(0, 1), span: None };
        };
        let span = entry.span().and_then(|span| usize::try_from(span).ok());
        ProfiledRequest { request: entry.request(), span }
    }

    /// How many requests have tickets.
    pub fn with_tickets(&self) -> usize {
        self.entries.len()
    }

    /// How many of the next requests are not even looked at.
    pub fn to_skip(&self) -> u64 {
        self.skipped
    }

    /// Counts requests that are not recorded. What was recorded before them is dropped, because the record has no gaps.
    pub fn skip(&mut self, requests: u64) {
        if requests > 0 && self.len() > 0 {
            self.clear();
        }
        self.skipped = self.skipped.saturating_sub(requests);
        self.first += requests;
    }

    /// Whether requests get tickets now.
    pub fn is_recording(&self) -> bool {
        self.skipped == 0 && self.watch.is_none() && self.sparse.is_none()
    }

    /// Records that a block was freed. Tickets of cleared requests are ignored. Returns the block's bytes, 0 for one that is ignored.
    pub fn freed(&mut self, ticket: Ticket, at: RequestTime) -> usize {
        let first = self.first + self.without_tickets as u64;
        let index = ticket.0.checked_sub(first).and_then(|index| usize::try_from(index).ok());
        let entry =
            index.and_then(|index| self.entries.get_mut(index)).filter(|entry| entry.span().is_none());
        let Some(entry) = entry else { return 0 };
        entry.set_span(at.0.saturating_sub(ticket.0).max(1));
        entry.request().size
    }

    /// The current time.
    pub fn now(&self) -> RequestTime {
        RequestTime(self.first + self.len() as u64)
    }

    /// Requests in the record.
    pub fn len(&self) -> usize {
        self.without_tickets + self.entries.len()
    }

    /// The last `period` requests with their lifetimes. Requires that the `period` requests before them were the same except for sizes; of
    /// two sizes the larger counts, of two lifetimes the longer. A block of the last iteration may still be alive because it is freed in
    /// the next one; then the lifetime of its counterpart in the iteration before counts.
    pub fn iteration(&self, period: usize) -> Vec<ProfiledRequest> {
        let len = self.entries.len();
        let Some(start) = len.checked_sub(period) else { return Vec::new() };
        let span = |index: usize| self.entries.get(index)?.span();
        (start..len)
            .map(|index| {
                let before = index.checked_sub(period).and_then(span);
                let alive_for = (len - index) as u64;
                let span = match (span(index), before) {
                    (Some(one), Some(other)) => Some(one.max(other)),
                    (Some(one), None) => Some(one),
                    // Still alive: either not yet as long as its counterpart was, or already longer, with unknown end.
                    (None, Some(other)) => (other >= alive_for).then_some(other),
                    (None, None) => None,
                };
                let span = span.and_then(|span| usize::try_from(span).ok());
                let request = self.entries[index].request();
                let before =
                    index.checked_sub(period).map_or(request, |before| self.entries[before].request());
                let largest = Request::new(request.size.max(before.size), request.align.max(before.align));
                ProfiledRequest { request: largest, span }
            })
            .collect()
    }

    /// After a detection that proved wrong once `run` requests had followed it: requires a longer run next time.
    pub fn require_run(&mut self, run: usize) {
        self.detector.require_run(run.min(self.capacity / 4));
    }

    /// The minimum run that a detection requires.
    pub fn required_run(&self) -> usize {
        self.detector.required_run()
    }

    /// Clears the record. Tickets given out before are ignored from then on.
    pub fn clear(&mut self) {
        self.first += self.len() as u64;
        self.entries = PageVec::new();
        (self.sparse, self.without_tickets) = (None, 0);
        self.detector.clear();
        self.began = self.first;
        (self.skipped, self.watch) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_what_it_is_given() {
        for size in [0, 1, 1_000, (1 << 35) - 1, 1 << 35, 5 << 40] {
            for align in [1, 16, 4096, 1 << 40] {
                let mut entry = RecordEntry::new(Request::new(size, align));
                assert_eq!((entry.request(), entry.span()), (Request::new(size, align), None));
                for (span, kept) in [(1, 1), (100_000, 100_000), (u64::MAX, ALIVE - 1)] {
                    entry.set_span(span);
                    assert_eq!((entry.request(), entry.span()), (Request::new(size, align), Some(kept)));
                }
            }
        }
        let rounded = RecordEntry::new(Request::new((1 << 36) + 1, 16)).request();
        assert_eq!(rounded.size, (1 << 36) + UNIT as usize);
        assert!(RecordEntry::new(Request::new(usize::MAX, 3)).request().size >= 1 << 56);
    }

    /// Bytes of the pages that a record has written.
    fn bytes(record: &Record) -> usize {
        let sparse = record.sparse.iter().filter_map(|sparse| match sparse {
            Sparse::Watched(watch) => Some(watch),
            Sparse::Until(_) => None,
        });
        let watches = sparse.chain(&record.watch);
        size_of_val(&record.entries[..]) + record.detector.bytes() + watches.map(Watch::bytes).sum::<usize>()
    }

    /// Once 88 to 104 bytes for each request: in a small program, the record was a tenth of all memory.
    #[test]
    fn a_request_is_recorded_in_few_bytes() {
        let scrambled = |i| {
            let mixed = Request::new(i, 1).token().wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed >> 40) as usize
        };
        // Nothing recurs; pieces of twelve requests recur in other orders; a hundred requests recur, and are never freed.
        type Size<'a> = &'a dyn Fn(usize) -> usize;
        let kinds: [(&str, Size, usize); 3] = [
            ("nothing", &|i| 1_000 + 64 * i, 6),
            ("pieces", &|i| 1_000 + 64 * (i % 12) + 1_024 * (scrambled(i / 12) % 13), 24),
            ("loop", &|i| 1_000 + 64 * (i % 100), 14),
        ];
        let many = if cfg!(miri) { 1_000 } else { 8_000 };
        for (name, size, per_request) in kinds {
            let (mut record, mut most) = (Record::new(1 << 15), 0);
            for i in 0..many {
                record.request(Request::new(size(i), 16));
                record.economize();
                most = most.max(bytes(&record));
            }
            assert_eq!(record.len(), many, "{name}");
            let all = if cfg!(miri) { 64 << 10 } else { many * per_request + (32 << 10) };
            assert!(most <= all, "{name}: {most} of {all}");
        }
    }

    #[test]
    fn a_record_has_no_gaps() {
        let mut record = Record::new(1_000);
        let ticket = (0..100).filter_map(|i| record.request(Request::new(1_000 + i, 16)).0).last().unwrap();
        record.skip(0);
        assert_eq!((record.now(), record.len()), (RequestTime(100), 100));
        record.skip(7);
        assert_eq!((record.now(), record.len()), (RequestTime(107), 0));
        record.freed(ticket, record.now());
        let mut period = None;
        for i in 0..140 {
            let (ticket, found) = record.request(Request::new(2_000 + 64 * (i * i % 70), 16));
            record.freed(ticket.unwrap(), record.now());
            period = period.or(found);
        }
        assert_eq!((period, record.now()), (Some(70), RequestTime(247)));
        assert!(record.iteration(70).iter().all(|entry| entry.span == Some(1)));
    }
}
