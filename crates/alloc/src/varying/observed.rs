//! The requests of the iteration in progress and of the one before, with their positions in the plan and the times of their frees: profiling
//! goes on while a plan is in use (Sekiyama et al. 2018, section 4.3).

use crate::request::{Request, RequestTime, Ticket};

/// A request of an observed iteration.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub request: Request,
    /// The position of the plan that it was matched with; if it was not, the position at which it was expected.
    pub at: u32,
    pub matched: bool,
    /// Requests from this one to the first after its free; 0 while its block is alive.
    pub span: u32,
}

/// The requests of one iteration, in order.
#[derive(Clone, Debug, Default)]
struct Iteration {
    /// Ticket of the first request.
    first: u64,
    seen: Vec<Seen>,
}

/// A free of a block that was requested in the iteration before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateFree {
    /// The position of its request in the plan.
    pub at: u32,
    /// Index of the first request after the free, in the iteration in progress.
    pub index: usize,
}

/// Two iterations. Tickets are numbers of requests, as in a record.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    current: Iteration,
    previous: Iteration,
    /// Bytes of all blocks of the two that are alive.
    live: usize,
}

impl Observed {
    /// An observation whose next request has the ticket `next`, after the requests of two iterations that were recorded elsewhere.
    pub fn new(next: RequestTime, previous: Vec<Seen>, current: Vec<Seen>) -> Self {
        let begun = next.0.saturating_sub(current.len() as u64);
        let first = begun.saturating_sub(previous.len() as u64);
        let alive = previous.iter().chain(&current).filter(|seen| seen.span == 0);
        Self {
            live: alive.map(|seen| seen.request.size).sum(),
            current: Iteration { first: begun, seen: current },
            previous: Iteration { first, seen: previous },
        }
    }

    /// The current time.
    pub fn now(&self) -> RequestTime {
        RequestTime(self.current.first + self.current.seen.len() as u64)
    }

    /// Requests of the iteration in progress.
    pub fn seen(&self) -> &[Seen] {
        &self.current.seen
    }

    /// Bytes of the blocks of both iterations that are alive.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Adds a request.
    pub fn push(&mut self, seen: Seen) -> Ticket {
        let ticket = Ticket(self.now().0);
        self.live = self.live.saturating_add(seen.request.size);
        self.current.seen.push(seen);
        ticket
    }

    /// Records a free. Returns what it says about the iteration before, if its block was requested there.
    pub fn freed(&mut self, ticket: Ticket, at: RequestTime) -> Option<LateFree> {
        let is_current = ticket.0 >= self.current.first;
        let iteration = if is_current { &mut self.current } else { &mut self.previous };
        let index = usize::try_from(ticket.0.checked_sub(iteration.first)?).ok()?;
        let seen = iteration.seen.get_mut(index).filter(|seen| seen.span == 0)?;
        seen.span = u32::try_from(at.0.saturating_sub(ticket.0).max(1)).unwrap_or(u32::MAX);
        self.live = self.live.saturating_sub(seen.request.size);
        let at_position = seen.at;
        let index = usize::try_from(at.0.checked_sub(self.current.first)?).ok()?;
        (!is_current).then_some(LateFree { at: at_position, index })
    }

    /// Ends the iteration after its first `requests` requests; those that follow begin the next one. `places` are the positions of the
    /// requests in the plan from now on.
    pub fn end(&mut self, requests: usize, places: &[u32]) {
        let dropped = self.previous.seen.iter().filter(|seen| seen.span == 0);
        self.live = dropped.fold(self.live, |live, seen| live.saturating_sub(seen.request.size));
        let rest = self.current.seen.split_off(requests.min(self.current.seen.len()));
        let first = self.current.first + self.current.seen.len() as u64;
        let mut ended = std::mem::replace(&mut self.current, Iteration { first, seen: rest });
        ended.seen.iter_mut().zip(places).for_each(|(seen, &place)| seen.at = place);
        self.previous = ended;
    }

    /// Sets the position of a request of the iteration in progress.
    pub fn set_place(&mut self, index: usize, at: u32, matched: bool) {
        if let Some(seen) = self.current.seen.get_mut(index) {
            (seen.at, seen.matched) = (at, matched);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(size: usize, at: u32) -> Seen {
        Seen { request: Request::new(size, 64), at, matched: true, span: 0 }
    }

    #[test]
    fn blocks_of_any_size_may_stay_alive() {
        let mut observed = Observed::new(RequestTime(0), Vec::new(), Vec::new());
        for i in 0..3 {
            observed.push(seen(usize::MAX, i));
        }
        observed.end(3, &[0, 1, 2]);
        observed.end(0, &[]);
        assert_eq!(observed.live(), 0);
    }

    #[test]
    fn frees_are_found_in_both_iterations() {
        let mut observed = Observed::new(RequestTime(10), Vec::new(), Vec::new());
        let tickets: Vec<Ticket> = (0..3).map(|i| observed.push(seen(100, i))).collect();
        assert_eq!((tickets[0], observed.live()), (Ticket(10), 300));
        assert_eq!(observed.freed(tickets[0], RequestTime(12)), None);
        assert_eq!((observed.seen()[0].span, observed.live()), (2, 200));
        assert_eq!(observed.freed(tickets[0], RequestTime(13)), None, "once");
        observed.end(2, &[5, 6]);
        assert_eq!((observed.seen().len(), observed.now()), (1, RequestTime(13)));
        // The second block was requested in the iteration that has ended.
        assert_eq!(observed.freed(tickets[1], RequestTime(13)), Some(LateFree { at: 6, index: 1 }));
        assert_eq!(observed.live(), 100);
        observed.end(1, &[0]);
        observed.end(0, &[]);
        assert_eq!((observed.live(), observed.freed(tickets[2], observed.now())), (0, None), "forgotten");
    }
}
