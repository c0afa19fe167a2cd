//! Iterations of different lengths, marked and not: what is planned and reserved (Sekiyama et al. 2018, section 4.3).

mod lengths;
#[expect(dead_code, reason = "other tests use the rest")]
mod shadow;

use std::cell::Cell;
use std::rc::Rc;

use elbowroom_alloc::{Backing, OutOfMemory, Pool, Release, Request, Settings};
use lengths::{Client, KINDS, Kind, ORDERS, Order, WARM_UP, iterate, lengths};
use shadow::Shadow;

struct Sequence {
    shadow: Shadow,
    marked: bool,
}

impl Client for Sequence {
    fn allocate(&mut self, size: usize) -> usize {
        self.shadow.request(size, 64)
    }
    fn free(&mut self, block: usize) {
        self.shadow.free(block);
    }
    fn mark(&mut self) {
        if self.marked {
            self.shadow.sequence.mark_iteration();
        }
    }
}

/// Imaginary memory that counts what is reserved.
#[derive(Clone, Default)]
struct Counted {
    next: Rc<Cell<usize>>,
    now: Rc<Cell<usize>>,
    most: Rc<Cell<usize>>,
}

// SAFETY: ranges of nothing, which no code accesses; they never overlap.
unsafe impl Backing for Counted {
    fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory> {
        let address = self.next.get().max(1 << 20).next_multiple_of(align);
        self.next.set(address + bytes);
        self.now.set(self.now.get() + bytes);
        self.most.set(self.most.get().max(self.now.get()));
        Ok(address)
    }

    unsafe fn release(&self, _: usize, bytes: usize, _: usize) {
        self.now.set(self.now.get() - bytes);
    }
}

struct Queue {
    pool: Pool<Counted>,
    marked: bool,
}

impl Client for Queue {
    fn allocate(&mut self, size: usize) -> usize {
        self.pool.allocate(3, Request::new(size, 64)).expect("memory without an end")
    }
    fn free(&mut self, block: usize) {
        // SAFETY: blocks of imaginary memory have no contents.
        assert_eq!(unsafe { self.pool.free(block) }, Release::Freed);
    }
    fn mark(&mut self) {
        if self.marked {
            self.pool.mark_iteration(3);
        }
    }
}

/// What came of the iterations after the warm-up.
#[derive(Debug)]
struct Figures {
    /// Of the requests, how many were planned.
    planned: f64,
    /// The most bytes that arenas took, or all that a pool took, over the peak of the longest iteration.
    reserve: f64,
}

impl Figures {
    fn assert(&self, at_most: f64, what: impl std::fmt::Debug) {
        assert!(self.planned >= 0.95 && self.reserve <= at_most, "{what:?}: {self:?}");
    }
}

fn sequence(kind: Kind, order: Order, marked: bool, seed: u64) -> Figures {
    let mut client = Sequence { shadow: Shadow::with(Settings::default()), marked };
    let (mut peak, mut reserve) = (0, 0);
    let mut before = client.shadow.stats();
    for (index, words) in lengths(order, seed).into_iter().enumerate() {
        if index == WARM_UP {
            before = client.shadow.stats();
            client.shadow.forget_most_reserved();
        }
        client.mark();
        peak = peak.max(iterate(kind, words, 16 << 10, &mut client));
        reserve = client.shadow.most_reserved_bytes();
    }
    let stats = client.shadow.stats();
    let planned = (stats.planned - before.planned) as f64 / (stats.requests - before.requests) as f64;
    Figures { planned, reserve: reserve as f64 / peak as f64 }
}

fn pool(kind: Kind, order: Order, marked: bool, seed: u64) -> Figures {
    let memory = Counted::default();
    let mut client = Queue { pool: Pool::new(memory.clone(), Settings::default()), marked };
    let mut peak = 0;
    let mut before = client.pool.stats().0;
    for (index, words) in lengths(order, seed).into_iter().enumerate() {
        if index == WARM_UP {
            before = client.pool.stats().0;
            memory.most.set(memory.now.get());
        }
        client.mark();
        peak = peak.max(iterate(kind, words, 16 << 10, &mut client));
    }
    let stats = client.pool.stats().0;
    let planned = (stats.planned - before.planned) as f64 / (stats.requests - before.requests) as f64;
    Figures { planned, reserve: memory.most.get() as f64 / peak as f64 }
}

/// Every kind, order and seed, marked and not.
fn each(seeds: std::ops::Range<u64>, mut check: impl FnMut(Kind, Order, bool, u64)) {
    for seed in seeds {
        for (kind, order) in KINDS.into_iter().flat_map(|kind| ORDERS.map(|order| (kind, order))) {
            check(kind, order, true, seed);
            check(kind, order, false, seed);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "300 iterations of up to 360 requests take Miri hours")]
fn lengths_from_10_to_50_are_planned_in_little_more_than_the_longest() {
    each(1..11, |kind, order, marked, seed| {
        let figures = sequence(kind, order, marked, seed);
        figures.assert(1.25, (kind, order, marked, seed));
    });
}

#[test]
#[cfg_attr(miri, ignore = "300 iterations of up to 360 requests take Miri hours")]
fn a_pool_takes_little_more_than_the_longest_iteration() {
    each(41..46, |kind, order, marked, seed| {
        let figures = pool(kind, order, marked, seed);
        figures.assert(1.25, (kind, order, marked, seed));
    });
}

/// A plan after one iteration, and the next one has it (section 4.1). What the program excludes does not count.
#[test]
fn the_second_marked_iteration_is_planned_as_a_whole() {
    let mut client = Sequence { shadow: Shadow::new(), marked: true };
    for _ in 0..3 {
        client.mark();
        iterate(Kind::Steps, 6, 4096, &mut client);
        client.shadow.sequence.interrupt();
        let other = client.shadow.request(123_456, 64);
        client.shadow.free(other);
        client.shadow.sequence.resume();
    }
    let stats = client.shadow.stats();
    let requests = stats.requests - stats.interrupted;
    assert_eq!((stats.planned, stats.plans, stats.mismatches), (requests / 3 * 2, 1, 0), "{stats:?}");
}

/// A request beyond the plan's end is served by the fallback once (section 4.3).
#[test]
fn what_a_longer_iteration_adds_is_planned_in_the_next() {
    let mut client = Sequence { shadow: Shadow::new(), marked: true };
    let mut run = |words| {
        client.mark();
        let before = client.shadow.stats();
        iterate(Kind::Steps, words, 4096, &mut client);
        let stats = client.shadow.stats();
        (stats.planned - before.planned, stats.requests - before.requests)
    };
    let all = |(planned, requests)| planned == requests;
    run(6);
    assert!(all(run(6)) && all(run(4)) && !all(run(7)));
    assert!(all(run(7)) && all(run(5)) && all(run(6)) && all(run(7)));
}

/// A block that is freed in the next iteration has a slot once that is known.
#[test]
fn blocks_that_live_into_the_next_iteration_are_planned() {
    let mut shadow = Shadow::new();
    let mut kept = None;
    let mut last = shadow.stats();
    for i in 0..12usize {
        shadow.sequence.mark_iteration();
        let before = shadow.stats();
        let first = shadow.request(8192 + 64 * (i % 5), 64);
        let scratch = shadow.request(4096, 64);
        kept.replace(shadow.request(2048 + 64 * (i * 3 % 7), 64))
            .into_iter()
            .for_each(|block| shadow.free(block));
        shadow.free(scratch);
        shadow.free(first);
        last = shadow.stats();
        last.planned -= before.planned;
    }
    // The block that is kept has never a slot: it is alive when its request recurs. The others have.
    assert_eq!(last.planned, 2, "{last:?}");
}
