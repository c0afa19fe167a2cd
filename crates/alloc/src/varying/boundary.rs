//! Where iterations of different lengths begin, without marks: where least memory is alive.
//!
//! Almost everything that an iteration requests is freed until its end. Drawn over time, live memory has a hill for each iteration, and a valley
//! between two. A loop within an iteration makes no such valley, because what was made before it stays alive.
//!
//! ```text
//! live ▲      ╱╲            ╱╲
//!      │    ╱    ╲  ╱╲    ╱    ╲
//!      │──╱────────╳────╳────────╲───  low + (top − low) / 16: a hill is higher
//!      │─╱──────────────────────── ╲──  low + (top − low) / 32: a valley is lower
//!      └─┴─────────┴────┴──────────┴─▶ requests
//! ```

use crate::record::ProfiledRequest;

/// A hill is higher than this part of the highest's height, and a valley lower than half of that: what is between belongs to either, so that
/// scratch memory at the foot of a hill makes no valley.
const DEPTH: usize = 16;

/// An iteration has at least this part of the requests of the longest.
const SHORTEST_PART: usize = 16;

/// Requests at the beginning of iterations that are compared.
const BEGINNING: usize = 8;

/// Iterations that must have ended before they are believed, if nothing else tells that they vary.
pub(crate) const ENOUGH: usize = 3;

/// Live memory up to which there is a valley, and from which on there is a hill.
#[derive(Clone, Copy, Debug)]
struct Levels {
    valley: usize,
    hill: usize,
}

impl Levels {
    fn new(low: usize, top: usize) -> Self {
        let height = top.saturating_sub(low);
        Self { valley: low + height / (2 * DEPTH), hill: low + height / DEPTH }
    }
}

/// Observes live memory and tells when an iteration has ended.
#[derive(Clone, Debug)]
pub(crate) struct Valleys {
    levels: Levels,
    /// Live memory of the latest hills.
    top: usize,
    /// Whether this iteration has had its hill, and the highest of it.
    is_hill: bool,
    highest: usize,
    /// The lowest live memory since the hill, and the requests of the iteration before its latest occurrence.
    low: Option<(usize, usize)>,
}

impl Valleys {
    /// For the requests after those of a record.
    pub fn new(found: &Segments) -> Self {
        let Segments { starts, low, top, valley } = found;
        let last = starts.last().copied().unwrap_or(0);
        let valley = valley.map(|(low, at)| (low, at.saturating_sub(last)));
        Self { levels: Levels::new(*low, *top), top: *top, is_hill: true, highest: 0, low: valley }
    }

    /// Observes a request, before which `live` bytes are alive, and which follows `requests` others of its iteration. `longest` is the length of
    /// the plan, and `is_next` whether the plan's first request is next. Returns how many of the `requests` belonged to the iteration that
    /// has ended.
    pub fn observe(&mut self, live: usize, requests: usize, longest: usize, is_next: bool) -> Option<usize> {
        if live > self.levels.hill {
            if let Some((low, at)) = self.low.take() {
                self.end(low);
                self.highest = live;
                return Some(at);
            }
            self.is_hill |= SHORTEST_PART * requests >= longest;
            self.highest = self.highest.max(live);
            return None;
        }
        if !self.is_hill || live > self.levels.valley {
            return None;
        }
        if is_next {
            self.end(live);
            self.low = None;
            return Some(requests);
        }
        if self.low.is_none_or(|(low, _)| live <= low) {
            self.low = Some((live, requests));
        }
        None
    }

    fn end(&mut self, low: usize) {
        self.top = self.highest.max(self.top - self.top / DEPTH);
        self.levels = Levels::new(low, self.top);
        (self.is_hill, self.highest) = (false, 0);
    }
}

/// Iterations found in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    /// Indices of the first requests of iterations; the last one is in progress.
    pub starts: Vec<usize>,
    /// The lowest and the highest live memory.
    pub low: usize,
    pub top: usize,
    /// If the iteration in progress has had its hill: the lowest live memory since, and where.
    pub valley: Option<(usize, usize)>,
}

/// Live memory before each of `n` requests. Blocks that are alive at the end count if they were requested at or after `from`.
fn live(n: usize, record: impl Fn(usize) -> ProfiledRequest, from: usize) -> Vec<isize> {
    const MOST: usize = isize::MAX as usize >> 24;
    let mut live = vec![0isize; n];
    for index in 0..n {
        let ProfiledRequest { request, span } = record(index);
        let end = match span {
            Some(span) => (index + span).min(n),
            None if index >= from => n,
            None => continue,
        };
        let size = request.size.min(MOST) as isize;
        if end > index + 1 {
            live[index + 1] += size;
            if end < n {
                live[end] -= size;
            }
        }
    }
    let mut now = 0;
    for live in &mut live {
        now += *live;
        *live = now;
    }
    live
}

/// The lowest points between hills.
fn cut(live: &[isize]) -> Option<Segments> {
    let bytes = |live: &isize| live.unsigned_abs();
    let top = live.iter().map(bytes).max()?;
    let low = live[live.len() / 2..].iter().map(bytes).min()?;
    if 2 * low > top || top == 0 {
        return None;
    }
    let levels = Levels::new(low, top);
    let mut starts = Vec::new();
    let mut is_hill = false;
    let mut lowest: Option<(usize, usize)> = None;
    for (index, live) in live.iter().map(bytes).enumerate() {
        if live > levels.hill {
            starts.extend(lowest.take().map(|(_, at)| at));
            is_hill = true;
        } else if is_hill && live <= levels.valley && lowest.is_none_or(|(low, _)| live <= low) {
            lowest = Some((live, index));
        }
    }
    // Short pieces belong to what follows them.
    let longest = starts.windows(2).map(|pair| pair[1] - pair[0]).max()?;
    let mut kept: Vec<usize> = Vec::with_capacity(starts.len());
    for start in starts {
        if kept.last().is_none_or(|&last| SHORTEST_PART * (start - last) >= longest) {
            kept.push(start);
        }
    }
    Some(Segments { starts: kept, low, top, valley: lowest })
}

/// Requests in an order that depends on nothing but which they are.
fn sorted(part: &[ProfiledRequest]) -> Vec<(usize, usize)> {
    let mut requests: Vec<_> = part.iter().map(|entry| (entry.request.size, entry.request.align)).collect();
    requests.sort_unstable();
    requests
}

/// Whether most requests of each of two parts occur in the other.
fn share(one: &[(usize, usize)], other: &[(usize, usize)]) -> bool {
    let occurs = |part: &[(usize, usize)], known: &[(usize, usize)]| {
        let count = part.iter().filter(|request| known.binary_search(request).is_ok()).count();
        4 * count >= 3 * part.len()
    };
    occurs(one, other) && occurs(other, one)
}

/// Whether two iterations are different, but most requests of each occur in the other, or both have equally many. A loop within an iteration
/// is no iteration that varies with it, although it has the same requests.
pub(crate) fn vary(one: &[ProfiledRequest], other: &[ProfiledRequest]) -> bool {
    if is_loop_in(one, other) || is_loop_in(other, one) {
        return false;
    }
    let (one, other) = (sorted(one), sorted(other));
    one != other && (one.len() == other.len() || share(&one, &other))
}

/// Whether an iteration has requests that come twice in a row, as many as a part has and mostly the same.
fn is_loop_in(part: &[ProfiledRequest], iteration: &[ProfiledRequest]) -> bool {
    let period = part.len();
    let part = sorted(part);
    let mut run = 0;
    (period..iteration.len()).any(|at| {
        let equal = iteration[at].request == iteration[at - period].request;
        run = if equal { run + 1 } else { 0 };
        run == period && share(&part, &sorted(&iteration[at - period..at]))
    })
}

/// Whether two iterations begin in the same way, or have equally many requests: what is alike by chance does neither.
fn begin_alike(one: &[ProfiledRequest], other: &[ProfiledRequest]) -> bool {
    let pairs = one.iter().zip(other).take(BEGINNING);
    one.len() == other.len()
        || 2 * pairs.filter(|(one, other)| one.request == other.request).count() >= BEGINNING
}

/// The iterations of a record of `n` requests, if at least `enough` have ended. Of several, the latest three vary or are the same, and not all
/// are the same.
pub(crate) fn segments(
    n: usize,
    record: impl Fn(usize) -> ProfiledRequest,
    enough: usize,
) -> Option<Segments> {
    let longest = |segments: &Segments| segments.starts.windows(2).map(|pair| pair[1] - pair[0]).max();
    // Blocks that are alive now are those of the iteration in progress, or stay forever.
    let first = cut(&live(n, &record, n))?;
    let mut segments = cut(&live(n, &record, n.saturating_sub(2 * longest(&first)?)))?;
    // Before the first of them, blocks may have lived that are older than the record: it may not begin there.
    segments.starts.remove(0);
    let ended: Vec<Vec<ProfiledRequest>> = segments
        .starts
        .windows(2)
        .rev()
        .take(ENOUGH)
        .map(|pair| (pair[0]..pair[1]).map(&record).collect())
        .collect();
    let pairs = || ended.windows(2).map(|pair| (&pair[0], &pair[1]));
    let same = |one: &[ProfiledRequest], other: &[ProfiledRequest]| sorted(one) == sorted(other);
    let all = pairs().all(|(one, other)| begin_alike(one, other) && (vary(one, other) || same(one, other)));
    let is_varying = all && (enough < ENOUGH || pairs().any(|(one, other)| vary(one, other)));
    (ended.len() >= enough && is_varying).then_some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;

    /// An iteration forward and backward, with scratch memory in each step.
    fn sentence(words: usize, base: usize) -> Vec<ProfiledRequest> {
        let entry = |size, span| ProfiledRequest { request: Request::new(size, 64), span: Some(span) };
        let forward =
            (0..words).flat_map(|i| [entry(base, 2 * (words - i) + 2 * (words - 1 - i)), entry(base / 2, 1)]);
        let backward = (0..words).flat_map(|_| [entry(base / 2 + 64, 1), entry(base / 4, 1)]);
        forward.chain(backward).collect()
    }

    fn find(record: &[ProfiledRequest]) -> Option<Segments> {
        segments(record.len(), |index| record[index], ENOUGH)
    }

    #[test]
    fn iterations_of_different_lengths_begin_where_nothing_lives() {
        let lengths = [10, 43, 27, 50, 12, 30];
        let record: Vec<ProfiledRequest> = lengths.iter().flat_map(|&words| sentence(words, 4096)).collect();
        let found = find(&record).expect("six iterations");
        let ends: Vec<usize> = lengths
            .iter()
            .scan(0, |end, words| {
                *end += 4 * words;
                Some(*end)
            })
            .collect();
        assert_eq!(found.starts, ends[1..5]);
    }

    #[test]
    fn a_loop_within_an_iteration_does_not_vary_with_it() {
        let entry = |size| ProfiledRequest { request: Request::new(size, 64), span: Some(1) };
        let steps = |count: usize| (0..count).flat_map(|_| [640, 64, 128].map(entry));
        let once: Vec<ProfiledRequest> = steps(1).collect();
        let whole: Vec<ProfiledRequest> = steps(20).chain([entry(4096)]).collect();
        assert!(!vary(&once, &whole) && !vary(&whole, &once));
        // Unrolled, or planned with a larger request, it is the same loop.
        let mut larger: Vec<ProfiledRequest> = steps(2).collect();
        larger[0] = entry(704);
        assert!(!vary(&larger, &whole));
        // A sentence of 10 words is none of a sentence of 43, though each of its words is.
        assert!(vary(&sentence(10, 4096), &sentence(43, 4096)));
        assert!(vary(&steps(19).collect::<Vec<_>>(), &whole));
    }

    #[test]
    fn equal_iterations_and_noise_are_left_to_others() {
        let equal: Vec<ProfiledRequest> = (0..8).flat_map(|_| sentence(20, 4096)).collect();
        assert_eq!(find(&equal), None);
        let flat: Vec<ProfiledRequest> = (0..1_000)
            .map(|i| ProfiledRequest { request: Request::new(64 + i, 64), span: Some(3) })
            .collect();
        assert_eq!(find(&flat), None);
        assert_eq!(find(&[]), None);
        let forever: Vec<ProfiledRequest> =
            (0..1_000).map(|i| ProfiledRequest { request: Request::new(64 + i, 64), span: None }).collect();
        assert_eq!(find(&forever), None);
    }
}
