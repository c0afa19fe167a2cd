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

#[derive(Clone, Copy, Debug)]
struct RecordEntry {
    request: Request,
    /// [`ALIVE`] until the block is freed.
    freed: u64,
}

const ALIVE: u64 = u64::MAX;

/// After this many requests, a record in which nothing recurred counts as full: it would cost time and memory for nothing.
const JUDGED: usize = 1 << 13;

/// From this many requests on, a record in which nothing recurred so far is *sparse* until something does: see [`Sparse`].
const SPARSE_FROM: usize = 1 << 10;

/// A record to which requests are added without tickets, so that the times of their frees stay unknown, and without the detector. A watch
/// observes them at a fraction of the cost. When they recur, the detector observes all of them at once.
#[derive(Clone, Debug)]
struct Sparse {
    watch: Watch,
    /// Entries that the detector has observed.
    observed: usize,
}

/// A bounded record of the latest requests, with the detector of iterations.
#[derive(Clone, Debug)]
pub struct Record {
    entries: PageVec<RecordEntry>,
    sparse: Option<Sparse>,
    /// Entries before the first one that follows the last sparse part. An iteration is reported only if it begins behind them.
    without_tickets: usize,
    /// Ticket of the first entry.
    first: u64,
    detector: Detector,
    /// Maximum number of entries; a full record is cleared.
    capacity: usize,
    /// Requests to skip before recording resumes: few after the first full record, because the program may have been starting up; then
    /// doubled after each full record without an iteration. After the pause, [`Watch`] decides.
    pause: u64,
    /// Requests to skip from now on.
    skipped: u64,
    /// The time of the first request in which no iteration was found.
    began: u64,
    /// After a pause: what decides when recording resumes.
    watch: Option<Watch>,
    /// The first request served from a plan, and the bytes of blocks that were requested before it and freed after it.
    planned_from: u64,
    left: usize,
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
            pause: (capacity / 16) as u64,
            skipped: 0,
            began: 0,
            watch: None,
            planned_from: 0,
            left: 0,
        }
    }

    /// Records a request. Returns its ticket, if it was recorded, and the length of the iteration that has just repeated, if there is one.
    pub fn request(&mut self, request: Request) -> (Option<Ticket>, Option<usize>) {
        if self.skipped > 0 {
            self.skip(1);
            return (None, None);
        }
        if let Some(watch) = &mut self.watch {
            match watch.observe(request) {
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
        if self.entries.len() == self.capacity
            || (self.entries.len() == JUDGED && (self.sparse.is_some() || self.detector.is_all_new()))
            || self.entries.push(RecordEntry { request, freed: ALIVE }).is_none()
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
        if let Some(sparse) = &mut self.sparse {
            if sparse.watch.observe(request) != Observed::Recurring {
                return (None, None);
            }
            self.end_sparse(self.entries.len() - 1);
        }
        let period = self.detector.observe(request);
        let with_tickets = self.entries.len() - self.without_tickets;
        (
            Some(Ticket(self.first + self.entries.len() as u64 - 1)),
            period.filter(|&period| period <= with_tickets),
        )
    }

    /// Makes the record sparse if it is long enough and nothing has recurred. For requests that no plan serves.
    pub fn economize(&mut self) {
        let len = self.entries.len();
        if (SPARSE_FROM..JUDGED).contains(&len)
            && len.is_power_of_two()
            && self.sparse.is_none()
            && self.detector.is_all_new()
        {
            let Some(mut watch) = Watch::new(0, self.capacity / 4) else { return };
            for entry in self.entries.iter() {
                watch.observe(entry.request);
            }
            self.sparse = Some(Sparse { watch, observed: len });
        }
    }

    /// Ends a sparse part: the next request gets a ticket, whether requests recur or not.
    pub fn end_economy(&mut self) {
        if self.sparse.is_some() {
            self.end_sparse(self.entries.len());
        }
    }

    /// Ends a sparse part: the detector observes its requests, and the entry at `until` is the first with a ticket.
    #[cold]
    fn end_sparse(&mut self, until: usize) {
        let Some(sparse) = self.sparse.take() else { return };
        for entry in &self.entries[sparse.observed..until] {
            self.detector.observe(entry.request);
        }
        self.without_tickets = until;
    }

    /// How many of the next requests are not even looked at.
    pub fn to_skip(&self) -> u64 {
        self.skipped
    }

    /// Counts requests that are not recorded. What was recorded before them is dropped, because the record has no gaps.
    pub fn skip(&mut self, requests: u64) {
        if requests > 0 && !self.entries.is_empty() {
            self.clear();
        }
        self.skipped = self.skipped.saturating_sub(requests);
        self.first += requests;
    }

    /// Whether requests get tickets now.
    pub fn is_recording(&self) -> bool {
        self.skipped == 0 && self.watch.is_none() && self.sparse.is_none()
    }

    /// From the next request on, a plan serves: blocks requested before leave the fallback for good.
    pub fn start_plan(&mut self) {
        (self.planned_from, self.left) = (self.now().0, 0);
    }

    /// Bytes of the recorded blocks that were freed since the plan began, or since this function last returned them. Returns 0 if they are
    /// fewer than `enough`.
    pub fn take_left(&mut self, enough: usize) -> usize {
        if self.left < enough { 0 } else { std::mem::take(&mut self.left) }
    }

    /// Records that a block was freed. Tickets of cleared requests are ignored.
    pub fn freed(&mut self, ticket: Ticket, at: RequestTime) {
        let index = ticket.0.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(entry) = index.and_then(|index| self.entries.get_mut(index))
            && entry.freed == ALIVE
        {
            entry.freed = at.0.max(ticket.0 + 1);
            if ticket.0 < self.planned_from {
                self.left = self.left.saturating_add(entry.request.size);
            }
        }
    }

    /// The current time.
    pub fn now(&self) -> RequestTime {
        RequestTime(self.first + self.entries.len() as u64)
    }

    /// Requests in the record.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The last `period` requests with their lifetimes. Requires that the `period` requests before them were the same except for sizes; of
    /// two sizes the larger counts, of two lifetimes the longer. A block of the last iteration may still be alive because it is freed in
    /// the next one; then the lifetime of its counterpart in the iteration before counts.
    pub fn iteration(&self, period: usize) -> Vec<ProfiledRequest> {
        let len = self.entries.len();
        let Some(start) = len.checked_sub(period) else { return Vec::new() };
        let now = self.now().0;
        let span = |index: usize| {
            let entry = self.entries.get(index)?;
            (entry.freed != ALIVE).then(|| entry.freed - (self.first + index as u64))
        };
        (start..len)
            .map(|index| {
                let before = index.checked_sub(period).and_then(span);
                let alive_for = now - (self.first + index as u64);
                let span = match (span(index), before) {
                    (Some(one), Some(other)) => Some(one.max(other)),
                    (Some(one), None) => Some(one),
                    // Still alive: either not yet as long as its counterpart was, or already longer, with unknown end.
                    (None, Some(other)) => (other >= alive_for).then_some(other),
                    (None, None) => None,
                };
                let span = span.and_then(|span| usize::try_from(span).ok());
                let request = self.entries[index].request;
                let before = index.checked_sub(period).map_or(request, |before| self.entries[before].request);
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
        self.first += self.entries.len() as u64;
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
