//! What a sequence asked for and when it gave it back: the profile (Sekiyama 4.1).
//!
//! Time is counted in requests of the sequence: a block is alive from its own request to the first request after its free. That is all
//! that a placement depends on, and it stays the same when a garbage collector or another thread frees a little earlier or later.

use std::collections::VecDeque;

use crate::detect::Detector;
use crate::request::{Request, RequestTime, Ticket};

/// One request of an iteration with how long its block lived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfiledRequest {
    /// What was asked for.
    pub request: Request,
    /// Number of requests from this one to the first after the free; `None` if it was not seen to be freed.
    pub span: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct RecordEntry {
    request: Request,
    freed: Option<u64>,
}

/// A bounded record of the latest requests, with the detector that listens.
#[derive(Clone, Debug)]
pub struct Record {
    entries: VecDeque<RecordEntry>,
    /// Ticket of the first entry.
    first: u64,
    detector: Detector,
    /// Most entries kept; when they are full, all are forgotten.
    capacity: usize,
    /// Requests to let pass before recording goes on: few after the first full record, because a program may have been starting; twice
    /// as many each time that a full record held no iteration.
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

    /// Hears a request. Returns its ticket, if it is recorded, and the length of the iteration that has just repeated, if one has.
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

    /// Hears that a block was freed at a moment. Tickets of forgotten requests are passed over.
    pub fn freed(&mut self, ticket: Ticket, at: RequestTime) {
        let index = ticket.0.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) {
            entry.freed.get_or_insert(at.0.max(ticket.0 + 1));
        }
    }

    /// The present moment.
    pub fn now(&self) -> RequestTime {
        RequestTime(self.first + self.entries.len() as u64)
    }

    /// Requests recorded and not forgotten.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the last `2 × period` requests are two equal subsequences.
    pub fn repeats(&self, period: usize) -> bool {
        period > 0 && self.detector.repeats(period)
    }

    /// The last `period` requests with the spans of their blocks, given that as many before them were the same, except perhaps for
    /// their sizes: of two the larger counts. A block of the last
    /// iteration may still be alive because it is freed in the next one: then its predecessor's span counts, and of two the longer.
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
                    // Still alive: not yet as long as its predecessor lived, or already longer, and who knows how long.
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

    /// After a detection that proved false once `run` requests had followed it: asks for more next time.
    pub fn require_run(&mut self, run: usize) {
        self.detector.require_run(run.min(self.capacity / 4));
    }

    /// The run that is asked for at least.
    pub fn required_run(&self) -> usize {
        self.detector.required_run()
    }

    /// Forgets all requests. Tickets given out stay known as forgotten.
    pub fn clear(&mut self) {
        self.first += self.entries.len() as u64;
        self.entries = VecDeque::new();
        self.detector.clear();
    }
}
