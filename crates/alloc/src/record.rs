//! Requests of a sequence and the times at which their blocks were freed: the profile (Sekiyama 4.1).
//!
//! Time is counted in requests of the sequence: a block is alive from its own request to the first request after its free. A placement
//! depends on nothing else, and the profile is the same if a garbage collector or another thread frees a block a little earlier or later.

use std::collections::VecDeque;

use crate::detect::Detector;
use crate::request::{Request, RequestTime, Ticket};

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
    freed: Option<u64>,
}

/// A bounded record of the latest requests, with the detector of iterations.
#[derive(Clone, Debug)]
pub struct Record {
    entries: VecDeque<RecordEntry>,
    /// Ticket of the first entry.
    first: u64,
    detector: Detector,
    /// Maximum number of entries; a full record is cleared.
    capacity: usize,
    /// Requests to skip before recording resumes: few after the first full record, because the program may have been starting up; then
    /// doubled after each full record without an iteration.
    pause: u64,
    skipped: u64,
}

impl Record {
    /// An empty record of at most `capacity` requests.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(16);
        Self {
            entries: VecDeque::new(),
            first: 0,
            detector: Detector::new(),
            capacity,
            pause: (capacity / 16) as u64,
            skipped: 0,
        }
    }

    /// Records a request. Returns its ticket, if it was recorded, and the length of the iteration that has just repeated, if there is one.
    pub fn request(&mut self, request: Request) -> (Option<Ticket>, Option<usize>) {
        if self.skipped > 0 {
            self.skipped -= 1;
            self.first += 1;
            return (None, None);
        }
        if self.entries.len() == self.capacity {
            self.clear();
            self.skipped = self.pause;
            self.pause = self.pause.saturating_mul(2);
            return self.request(request);
        }
        let ticket = Ticket(self.first + self.entries.len() as u64);
        self.entries.push_back(RecordEntry { request, freed: None });
        (Some(ticket), self.detector.observe(request))
    }

    /// Records that a block was freed. Tickets of cleared requests are ignored.
    pub fn freed(&mut self, ticket: Ticket, at: RequestTime) {
        let index = ticket.0.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) {
            entry.freed.get_or_insert(at.0.max(ticket.0 + 1));
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
            entry.freed.map(|freed| freed - (self.first + index as u64))
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
        self.entries = VecDeque::new();
        self.detector.clear();
    }
}
