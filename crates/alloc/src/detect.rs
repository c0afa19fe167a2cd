//! Detects an iteration in a stream of requests (Zhang, section V): two equal consecutive subsequences.
//!
//! A *period* `n` holds over a *run* of `r` requests if each of the last `r` equals the one `n` before it; two equal consecutive
//! subsequences are a run of at least `n`. Testing every period would take quadratic time. Instead, each of three tracks looks up where the
//! last `k` requests occurred most recently, takes the distance as its period, and keeps it as long as the run continues. Three values of
//! `k` cover loops of all lengths that occur in training: the largest recognizes the iteration by a part in which layers differ from each
//! other. Each request takes constant time.
//!
//! Programs start with noise, and iterations contain inner loops (twelve equal layers). A run counts as *the* iteration only if it has 64
//! requests and covers a third of the history, or two periods if the history is much longer. After a wrong detection, the caller can
//! [require](Detector::require_run) a longer run.

use crate::pages::PageVec;
use crate::request::{Request, short};

/// Lengths of the requests by which the tracks recognize a position.
const GRAMS: [usize; 3] = [1, 8, 64];

/// History counts against a run up to this many periods.
const HISTORY_PERIODS: usize = 6;

/// The shortest accepted run: three equal requests are not an iteration.
pub(crate) const SHORTEST: usize = 64;

/// Observes requests and reports when the last ones form an iteration.
#[derive(Clone, Debug)]
pub struct Detector {
    /// Of each request, a number in few bits: a record holds many.
    tokens: PageVec<u32>,
    /// Tokens that the tracks have observed: fewer than all after [`defer`](Self::defer).
    observed: usize,
    tracks: [Track; GRAMS.len()],
    required_run: usize,
}

#[derive(Clone, Debug)]
struct Track {
    /// Number of tokens by which it recognizes a position.
    gram: usize,
    /// Hash of the last `gram` tokens.
    hash: u64,
    /// `BASE` to the power of `gram`, by which the oldest token is removed from the hash.
    oldest_factor: u64,
    /// For each gram, where it ended most recently.
    last: LatestPositions,
    /// The current period; 0 for none.
    period: usize,
    /// How many of the last requests equal the one a period before.
    run: usize,
    /// How many positions had occurred before.
    recurred: usize,
}

const BASE: u64 = 0x0100_0000_01b3;

impl Track {
    fn new(gram: usize) -> Self {
        let oldest_factor = (0..gram).fold(1u64, |power, _| power.wrapping_mul(BASE));
        Self { gram, hash: 0, oldest_factor, last: LatestPositions::new(), period: 0, run: 0, recurred: 0 }
    }

    /// The hash of the gram that ends at a position, from that of the gram before.
    fn roll(&self, hash: u64, tokens: &[u32], at: usize) -> u64 {
        let oldest = if at >= self.gram { u64::from(tokens[at - self.gram]) } else { 0 };
        hash.wrapping_mul(BASE)
            .wrapping_add(u64::from(tokens[at]))
            .wrapping_sub(oldest.wrapping_mul(self.oldest_factor))
    }

    /// Observes the latest token. `None` if the system has no memory.
    fn observe(&mut self, tokens: &[u32]) -> Option<()> {
        let at = tokens.len() - 1;
        if self.period != 0 && tokens[at - self.period] == tokens[at] {
            self.run += 1;
        } else {
            self.period = 0;
            self.run = 0;
        }
        self.hash = self.roll(self.hash, tokens, at);
        if at + 1 < self.gram {
            return Some(());
        }
        if self.last.is_full() {
            self.grow(&tokens[..at])?;
        }
        let before = self.last.insert(self.hash, self.gram, tokens)?;
        self.recurred += usize::from(before.is_some());
        if let Some(before) = before.filter(|_| self.period == 0) {
            self.period = at - before;
            self.run = self.gram.min(at + 1 - self.period);
        }
        Some(())
    }

    /// Makes a larger table of the grams in `tokens`.
    #[cold]
    fn grow(&mut self, tokens: &[u32]) -> Option<()> {
        self.last = self.last.larger()?;
        let mut hash = 0;
        for end in 1..=tokens.len() {
            hash = self.roll(hash, tokens, end - 1);
            if end >= self.gram {
                self.last.insert(hash, self.gram, &tokens[..end])?;
            }
        }
        Some(())
    }
}

/// For each gram of a sequence of tokens, where it ended most recently. An open hash table, at most three quarters full, that holds positions
/// alone: grams are compared where they occurred.
#[derive(Clone, Debug)]
struct LatestPositions {
    /// A position plus 1, and above it some bits of the gram's hash; or 0.
    slots: PageVec<u32>,
    used: usize,
}

/// Bits of a slot that hold the position.
const POSITION_BITS: u32 = 22;

impl LatestPositions {
    const fn new() -> Self {
        Self { slots: PageVec::new(), used: 0 }
    }

    fn is_full(&self) -> bool {
        4 * (self.used + 1) > 3 * self.slots.len()
    }

    /// An empty table of twice the length.
    fn larger(&self) -> Option<Self> {
        Some(Self { slots: PageVec::zeroed((2 * self.slots.len()).max(1 << 8))?, used: 0 })
    }

    /// Sets the position of the gram that ends with the last token, and has this hash. Returns the position before; `None` if positions have too
    /// few bits. The table must not be full.
    fn insert(&mut self, hash: u64, gram: usize, tokens: &[u32]) -> Option<Option<usize>> {
        let end = u32::try_from(tokens.len()).ok().filter(|&end| end >> POSITION_BITS == 0)?;
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (tag, mask) = ((mixed >> 32) as u32 >> POSITION_BITS, self.slots.len() - 1);
        let latest = &tokens[tokens.len() - gram..];
        let mut at = (mixed >> 24) as usize & mask;
        loop {
            let slot = &mut self.slots[at];
            let before = (*slot & ((1 << POSITION_BITS) - 1)) as usize;
            if before == 0 || (*slot >> POSITION_BITS == tag && tokens[before - gram..before] == *latest) {
                *slot = end | tag << POSITION_BITS;
                self.used += usize::from(before == 0);
                return Some(before.checked_sub(1));
            }
            at = (at + 1) & mask;
        }
    }
}

impl Default for Detector {
    fn default() -> Self {
        Self::new()
    }
}

impl Detector {
    /// A detector without history.
    pub fn new() -> Self {
        Self { tokens: PageVec::new(), observed: 0, tracks: GRAMS.map(Track::new), required_run: 0 }
    }

    /// Observes a request. Returns the length of the iteration, in requests, if the last requests are that iteration at least twice.
    pub fn observe(&mut self, request: Request) -> Option<usize> {
        self.observe_token(request.token())
    }

    /// As [`observe`](Self::observe), for anything that a number identifies.
    pub fn observe_token(&mut self, token: u64) -> Option<usize> {
        if self.tokens.push(short(token)).and_then(|()| self.catch_up()).is_none() {
            self.clear();
            return None;
        }
        let observed = self.tokens.len();
        let convincing = |track: &&Track| {
            track.period != 0
                && track.run >= track.period.max(self.required_run).max(SHORTEST)
                && 3 * track.run >= observed.min(HISTORY_PERIODS * track.period)
        };
        self.tracks.iter().filter(convincing).map(|track| track.period).min()
    }

    /// Lets the tracks observe what they have not observed yet. `None` if the system has no memory.
    fn catch_up(&mut self) -> Option<()> {
        for end in self.observed + 1..=self.tokens.len() {
            for track in &mut self.tracks {
                track.observe(&self.tokens[..end])?;
            }
        }
        self.observed = self.tokens.len();
        Some(())
    }

    /// Adds a request, by its short token, that the tracks observe only together with the next one that is [observed](Self::observe). Until
    /// then they hold no memory. `None` if the system has none.
    pub(crate) fn defer(&mut self, token: u32) -> Option<()> {
        if self.observed > 0 {
            (self.observed, self.tracks) = (0, GRAMS.map(Track::new));
        }
        self.tokens.push(token)
    }

    /// Bytes of the pages that it has written.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        let tables = self.tracks.iter().map(|track| size_of_val(&track.last.slots[..])).sum::<usize>();
        size_of_val(&self.tokens[..]) + tables
    }

    /// The short tokens of the requests so far.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Requests observed since the start or the last [`clear`](Self::clear).
    pub fn observed(&self) -> usize {
        self.tokens.len()
    }

    /// Whether hardly any sequence of eight requests has occurred twice.
    pub(crate) fn is_all_new(&self) -> bool {
        let [_, eight, _] = &self.tracks;
        128 * eight.recurred < self.tokens.len()
    }

    /// Requires a run of at least this many requests from now on.
    pub fn require_run(&mut self, run: usize) {
        self.required_run = run;
    }

    /// The minimum run that a detection requires.
    pub fn required_run(&self) -> usize {
        self.required_run
    }

    /// Clears the history. The required run stays.
    pub fn clear(&mut self) {
        *self = Self { required_run: self.required_run, ..Self::new() };
    }

    /// Whether the last `2 × period` requests are two equal subsequences. Takes time linear in the period.
    pub fn repeats(&self, period: usize) -> bool {
        let tail = self.tokens.len().checked_sub(2 * period).map(|start| &self.tokens[start..]);
        tail.is_some_and(|tail| tail[..period] == tail[period..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(detector: &mut Detector, sizes: impl IntoIterator<Item = usize>) -> Option<usize> {
        sizes.into_iter().find_map(|size| detector.observe(Request::new(size, 64)))
    }

    #[test]
    fn two_equal_iterations_are_found_at_their_end() {
        let mut detector = Detector::new();
        assert_eq!(observe(&mut detector, (1..=99).chain(1..=98)), None);
        assert_eq!(observe(&mut detector, [99]), Some(99));
        assert!(detector.repeats(99));
    }

    #[test]
    fn noise_before_delays_and_does_not_prevent() {
        // Miri is a few hundred times slower.
        let noises: &[usize] = if cfg!(miri) { &[0, 10, 100] } else { &[0, 10, 100, 1_000, 5_000] };
        for &noise in noises {
            let mut detector = Detector::new();
            assert_eq!(observe(&mut detector, (0..noise).map(|i| 10_000 + i)), None);
            let iterations = (0..6).find(|_| observe(&mut detector, 1..=99).is_some());
            // The first iteration is never enough; a run of three periods always is.
            assert!(iterations.is_some_and(|i| (1..=4).contains(&i)), "{noise}: {iterations:?}");
        }
    }

    #[test]
    fn loops_inside_an_iteration_are_not_the_iteration() {
        // Twelve equal layers forward, twelve backward, and a short epilogue.
        let layer = [7usize, 8, 9, 8, 7, 5];
        let back = [17usize, 18, 17, 16];
        let iteration: Vec<usize> = (0..12)
            .flat_map(|_| layer)
            .chain([1, 2, 3])
            .chain((0..12).flat_map(|_| back))
            .chain([100, 101])
            .collect();
        let mut detector = Detector::new();
        let mut found = None;
        for i in 0..5 * iteration.len() {
            let size = iteration[i % iteration.len()];
            if let Some(period) = detector.observe(Request::new(size, 64)) {
                if period == iteration.len() {
                    found = Some(i);
                    break;
                }
                // The layers at the very beginning are all there is so far: a caller acts on that, and learns required_run.
                assert!(i < layer.len() * 12 + 1, "period {period} at {i}");
                detector.require_run(layer.len() * 24);
            }
        }
        assert!(found.is_some_and(|at| at < 4 * iteration.len()), "{found:?}");
    }

    #[test]
    fn what_never_repeats_is_never_found() {
        let mut detector = Detector::new();
        let many = if cfg!(miri) { 300 } else { 100_000 };
        assert_eq!(observe(&mut detector, 0..many), None);
        assert_eq!(detector.observed(), many);
        detector.clear();
        assert_eq!(detector.observed(), 0);
    }

    #[test]
    fn the_same_size_for_long_has_period_one() {
        let mut detector = Detector::new();
        assert_eq!(observe(&mut detector, [5; SHORTEST]), None);
        assert_eq!(observe(&mut detector, [5]), Some(1));
    }
}
