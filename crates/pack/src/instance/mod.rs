//! The form of a problem that all packers use: time compressed to sections, and fixed blocks checked against each other.
//!
//! A *section* is a maximal run of positions in which no block ends before another starts. Two blocks are alive together if and only if they
//! share a section, and the set of blocks alive at any other position is a subset of that of some section. Dropping those positions therefore
//! keeps every optimum (MiniMalloc's sweeper does the same). The compression costs one sort of the interval ends.

mod part;

use elbowroom_ir::packing::{Placement, Problem};
use elbowroom_ir::search::{Infeasible, Observer, Outcome, StopReason};
use elbowroom_ir::{BufferId, Bytes, Id, Table};

pub(crate) use part::Rectangle;

/// The lowest placement found where none fits the capacity. Packers pass it to the observer as a [note](Observer::note).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed(pub Placement);

/// A half-open range of sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) lo: u32,
    pub(crate) hi: u32,
}

impl Span {
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        self.lo as usize..self.hi as usize
    }
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.lo < other.hi && other.lo < self.hi
    }
}

/// One block of at least one byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// Its index in the problem.
    pub(crate) block: u32,
    /// Bytes, rounded up to [`Instance::unit`]: the bytes that no conflicting item can use.
    pub(crate) size: u64,
    /// Bytes as the problem states them: what counts towards the height.
    pub(crate) bytes: u64,
    pub(crate) align: u64,
    /// First to last section, gaps included.
    pub(crate) hull: Span,
    /// First position alive, in the problem's own time.
    pub(crate) first_position: u64,
    /// Number of positions alive, in the problem's own time.
    pub(crate) lifetime: u64,
    pub(crate) fixed: Option<u64>,
    /// An offset to try first.
    pub(crate) hint: Option<u64>,
    /// Index of its first span in [`Instance::spans`]; the span of an item with only one is its `hull`.
    first_span: u32,
    span_count: u32,
}

impl Item {
    /// The lowest multiple of the item's alignment at or above an offset.
    #[inline]
    pub(crate) fn align_up(&self, offset: u64) -> u64 {
        let align = self.align;
        // The inner loop of every greedy packer; a division takes longer than all else in it.
        if align.is_power_of_two() {
            (offset + (align - 1)) & !(align - 1)
        } else {
            offset.next_multiple_of(align)
        }
    }
}

/// A problem made ready.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) items: Vec<Item>,
    spans: Vec<Span>,
    /// Greatest common divisor of all alignments: every offset is a multiple of it.
    pub(crate) unit: u64,
    /// Load of every section, in bytes, sizes rounded up to the unit.
    pub(crate) live: Vec<u64>,
    /// No placement is lower: the peak load, its blocks rounded up to the unit except for the one on top, and the ends of fixed blocks.
    pub(crate) bound: u64,
    pub(crate) capacity: Option<u64>,
    /// Whether any item is fixed.
    pub(crate) any_fixed: bool,
    /// Whether any item has more than one span.
    pub(crate) any_gaps: bool,
    /// Whether any item has a stricter alignment than the unit.
    pub(crate) any_align: bool,
}

impl Instance {
    /// The mean load as a share of the highest: 1 if blocks fill the time at the peak load.
    pub(crate) fn filled(&self) -> f64 {
        let peak = self.live.iter().copied().max().unwrap_or_default().max(1) as f64;
        self.live.iter().map(|&live| live as f64 / peak).sum::<f64>() / self.live.len().max(1) as f64
    }

    /// Compresses time and rejects problems that are infeasible for every packer; the error is the outcome to return.
    pub(crate) fn new(problem: &Problem) -> Result<Self, Outcome<Placement>> {
        Self::usable(Self::cut(problem), problem)
    }

    /// The same over the problem's own time: a section begins at every position at which a block starts or ends, so that a row of sections
    /// differs from the row of positions in nothing that a skyline can see.
    pub(crate) fn on_original_time(problem: &Problem) -> Result<Self, Outcome<Placement>> {
        Self::usable(Self::cut_at(problem, true), problem)
    }

    fn usable(instance: Self, problem: &Problem) -> Result<Self, Outcome<Placement>> {
        if let Some((a, b)) = instance.fixed_clash() {
            let pair = [a, b].map(|i| instance.items[i]);
            let needed = pair.iter().filter_map(|item| Some(item.fixed? + item.bytes)).max().unwrap_or(0) + 1;
            return Err(infeasible(pair.map(|item| item.block).to_vec(), needed, problem.capacity));
        }
        if let Some(capacity) = instance.capacity
            && capacity < instance.bound
        {
            let (blocks, needed) = instance.bound_witness(problem);
            return Err(infeasible(blocks, needed, problem.capacity));
        }
        Ok(instance)
    }

    pub(crate) fn cut(problem: &Problem) -> Self {
        Self::cut_at(problem, false)
    }

    /// Cuts time into sections: where a block starts after another has ended, or at every start and end.
    fn cut_at(problem: &Problem, everywhere: bool) -> Self {
        let mut events: Vec<(u64, bool, u32)> = Vec::with_capacity(2 * problem.blocks.len());
        let mut items = Vec::with_capacity(problem.blocks.len());
        let mut spans: Vec<Span> = Vec::with_capacity(problem.blocks.len());
        let mut bound = 0;
        let unit = problem.blocks.values().fold(0, |unit, block| gcd(unit, block.align.get())).max(1);
        for (id, block) in problem.blocks.iter() {
            bound = bound.max(block.fixed.unwrap_or_default().get() + block.size.get());
            if block.size.is_zero() {
                continue;
            }
            let first_span = spans.len() as u32;
            for interval in &block.alive {
                let span = spans.len() as u32;
                events.push((interval.start, true, span));
                events.push((interval.end, false, span));
                spans.push(Span { lo: 0, hi: 0 });
            }
            items.push(Item {
                block: id.index() as u32,
                size: block.size.get().next_multiple_of(unit),
                bytes: block.size.get(),
                align: block.align.get(),
                hull: Span { lo: 0, hi: 0 },
                first_position: block.alive[0].start,
                lifetime: block.alive.iter().map(|interval| interval.len()).sum(),
                fixed: block.fixed.map(Bytes::get),
                hint: block.hint.map(Bytes::get),
                first_span,
                span_count: spans.len() as u32 - first_span,
            });
        }
        // Ends sort before starts at equal positions, because `false < true`.
        events.sort_unstable();
        let sections = if everywhere {
            positions(&events, &mut spans)
        } else {
            let (mut section, mut after_end) = (0u32, false);
            for (_, starts, span) in events {
                if starts {
                    section += u32::from(after_end);
                    after_end = false;
                    spans[span as usize].lo = section;
                } else {
                    after_end = true;
                    spans[span as usize].hi = section + 1;
                }
            }
            if items.is_empty() { 0 } else { section as usize + 1 }
        };
        let mut difference = vec![0i64; sections + 1];
        for item in &mut items {
            // Adjacent intervals may become adjacent spans; keeping them separate changes nothing.
            let own = &spans[item.first_span as usize..][..item.span_count as usize];
            item.hull = Span { lo: own[0].lo, hi: own[own.len() - 1].hi };
        }
        // Two intervals of one block share a section if no other block changes between them: join them.
        let mut joined: Vec<Span> = Vec::with_capacity(spans.len());
        for item in &mut items {
            let first = joined.len();
            for &span in &spans[item.first_span as usize..][..item.span_count as usize] {
                match joined[first..].last_mut() {
                    Some(last) if span.lo <= last.hi => last.hi = last.hi.max(span.hi),
                    _ => joined.push(span),
                }
            }
            item.first_span = first as u32;
            item.span_count = (joined.len() - first) as u32;
            for span in &joined[first..] {
                difference[span.lo as usize] += item.size as i64;
                difference[span.hi as usize] -= item.size as i64;
            }
        }
        let mut running = 0i64;
        let live: Vec<u64> = difference[..sections]
            .iter()
            .map(|change| {
                running += change;
                running as u64
            })
            .collect();
        Self {
            any_fixed: items.iter().any(|item| item.fixed.is_some()),
            any_gaps: items.iter().any(|item| item.span_count > 1),
            any_align: items.iter().any(|item| item.align > unit),
            unit,
            items,
            spans: joined,
            live,
            bound,
            capacity: problem.capacity.map(Bytes::get),
        }
        .with_bound()
    }

    /// Raises the bound to the live memory of the fullest section. The topmost block of a section may use less than its rounded size.
    fn with_bound(mut self) -> Self {
        let spare = self.spare();
        let fullest = self.live.iter().zip(&spare).map(|(live, spare)| live - spare).max();
        self.bound = self.bound.max(fullest.unwrap_or(0));
        self
    }

    /// For every section, the most bytes by which a block alive there was rounded up. Items paint sections in descending order, and a painted
    /// section points past itself, so each section is visited about once.
    fn spare(&self) -> Vec<u64> {
        let mut spare = vec![0; self.sections()];
        let mut rounded: Vec<usize> =
            (0..self.len()).filter(|&i| self.items[i].size > self.items[i].bytes).collect();
        rounded.sort_by_key(|&i| std::cmp::Reverse(self.items[i].size - self.items[i].bytes));
        let mut next: Vec<u32> = (0..=self.sections() as u32).collect();
        for i in rounded {
            for &span in self.spans(i) {
                let mut section = unpainted(&mut next, span.lo);
                while section < span.hi {
                    spare[section as usize] = self.items[i].size - self.items[i].bytes;
                    next[section as usize] = section + 1;
                    section = unpainted(&mut next, section + 1);
                }
            }
        }
        spare
    }

    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Number of sections.
    pub(crate) fn sections(&self) -> usize {
        self.live.len()
    }

    /// The spans in which an item is alive, ascending.
    pub(crate) fn spans(&self, item: usize) -> &[Span] {
        let item = &self.items[item];
        &self.spans[item.first_span as usize..][..item.span_count as usize]
    }

    /// Whether two items are alive together.
    pub(crate) fn conflict(&self, a: usize, b: usize) -> bool {
        let (x, y) = (&self.items[a], &self.items[b]);
        if !x.hull.overlaps(y.hull) {
            return false;
        }
        if x.span_count == 1 && y.span_count == 1 {
            return true;
        }
        let (xs, ys) = (self.spans(a), self.spans(b));
        let (mut i, mut j) = (0, 0);
        while i < xs.len() && j < ys.len() {
            if xs[i].overlaps(ys[j]) {
                return true;
            }
            if xs[i].hi <= ys[j].hi {
                i += 1;
            } else {
                j += 1;
            }
        }
        false
    }

    /// Two fixed items that overlap in bytes and time, found by one sweep over the sections.
    fn fixed_clash(&self) -> Option<(usize, usize)> {
        if !self.any_fixed {
            return None;
        }
        let mut events: Vec<(u32, bool, usize)> = Vec::new();
        for (i, item) in self.items.iter().enumerate() {
            if item.fixed.is_some() {
                for span in self.spans(i) {
                    events.push((span.lo, true, i));
                    events.push((span.hi, false, i));
                }
            }
        }
        events.sort_unstable();
        let mut alive: std::collections::BTreeMap<u64, usize> = std::collections::BTreeMap::new();
        for (_, starts, i) in events {
            let offset = self.items[i].fixed.unwrap_or_default();
            if !starts {
                alive.remove(&offset);
                continue;
            }
            let end = offset + self.items[i].bytes;
            if let Some((&below, &j)) = alive.range(..end).next_back()
                && below + self.items[j].bytes > offset
            {
                return Some((j, i));
            }
            alive.insert(offset, i);
        }
        None
    }

    /// The blocks that prove [`Self::bound`]: those of the fullest section, or the fixed block with the highest end.
    fn bound_witness(&self, problem: &Problem) -> (Vec<u32>, u64) {
        let spare = self.spare();
        if let Some(section) =
            (0..self.sections()).find(|&section| self.live[section] - spare[section] == self.bound)
        {
            let alive =
                (0..self.len()).filter(|&i| self.spans(i).iter().any(|span| span.range().contains(&section)));
            return (alive.map(|i| self.items[i].block).collect(), self.bound);
        }
        let end = |id: BufferId| problem.blocks[id].fixed.unwrap_or_default() + problem.blocks[id].size;
        let highest = problem.blocks.ids().max_by_key(|&id| end(id));
        (highest.iter().map(|id| id.0).collect(), self.bound)
    }

    /// A placement of the whole problem from the offsets of the items.
    pub(crate) fn placement(&self, problem: &Problem, offsets: &[u64]) -> Placement {
        let mut all: Vec<Bytes> =
            problem.blocks.values().map(|block| block.fixed.unwrap_or_default()).collect();
        for (item, &offset) in self.items.iter().zip(offsets) {
            all[item.block as usize] = Bytes(offset);
        }
        Placement::new(problem, Table::from(all))
    }

    /// The height of a placement of the items, in bytes.
    pub(crate) fn height(&self, offsets: &[u64]) -> u64 {
        self.items.iter().zip(offsets).map(|(item, &offset)| offset + item.bytes).max().unwrap_or(0)
    }

    /// The outcome of a packer that stopped with `stop` and these offsets. It is optimal at the lower bound and has no placement above the
    /// capacity; the observer then receives the placement as a [`Missed`].
    pub(crate) fn conclude(
        &self,
        problem: &Problem,
        offsets: &[u64],
        evaluations: u64,
        observer: &dyn Observer,
        stop: StopReason,
    ) -> Outcome<Placement> {
        let best = self.placement(problem, offsets);
        if self.capacity.is_some_and(|capacity| best.height.get() > capacity) {
            return missed(best, evaluations, observer);
        }
        let stop = if best.height.get() <= self.bound { StopReason::Optimal } else { stop };
        Outcome { best: Some(best), evaluations, stop }
    }
}

/// Sections between consecutive positions at which something starts or ends; returns their number.
fn positions(events: &[(u64, bool, u32)], spans: &mut [Span]) -> usize {
    let (mut section, mut last) = (0u32, None);
    for &(position, starts, span) in events {
        section += u32::from(last.is_some_and(|last| last != position));
        last = Some(position);
        if starts {
            spans[span as usize].lo = section;
        } else {
            spans[span as usize].hi = section;
        }
    }
    section as usize
}

/// The first section at or after `section` that is not painted. Halves the path on the way.
fn unpainted(next: &mut [u32], mut section: u32) -> u32 {
    while next[section as usize] != section {
        next[section as usize] = next[next[section as usize] as usize];
        section = next[section as usize];
    }
    section
}

/// Greatest common divisor; 0 divides nothing.
pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The outcome of a search whose lowest placement is above the capacity.
pub(crate) fn missed(best: Placement, evaluations: u64, observer: &dyn Observer) -> Outcome<Placement> {
    let stop = StopReason::GaveUp { best: Some(best.height) };
    observer.note(&Missed(best));
    Outcome { best: None, evaluations, stop }
}

/// The outcome for blocks that cannot be placed together.
pub(crate) fn infeasible(blocks: Vec<u32>, needed: u64, capacity: Option<Bytes>) -> Outcome<Placement> {
    let stop = StopReason::Infeasible(Box::new(Infeasible::Blocks {
        blocks: blocks.into_iter().map(BufferId).collect(),
        needed: Bytes(needed),
        limit: capacity.unwrap_or(Bytes::MAX),
    }));
    Outcome { best: None, evaluations: 0, stop }
}
