//! Watches, in ever rarer windows, whether a program that repeated nothing so far begins to.
//!
//! Short sequences of requests (grams) leave a bit each in a table. If all grams of some time have left theirs before, the requests recur.
//! Only one gram in about seven is looked at. The hash decides which, so that the same ones are *selected* whenever requests recur; where
//! none was for a while, more are, so that no short loop goes unseen. A request costs a few multiplications and comparisons.
//!
//! After a window in which hardly any gram recurred comes a pause, in which nothing is observed at all. It is an eighth as long as the whole
//! time before it, and a window is 1/128 of that, both within bounds. A program that begins to repeat itself is therefore noticed after an
//! eighth of the time in which it did not, and one that never does is observed for less than a tenth of its requests.

use crate::pages::PageVec;

/// The uppermost bits of a gram's hash decide whether it is selected: if they are zero, or, since the gap must end, at most as large as an
/// eighth of the requests since the last selected gram. So the same ones are selected in a loop that has none with zeros.
const DECIDING: u32 = 3;
/// A gram is also selected if none was among this many requests before it.
const LONGEST_GAP: u32 = 32;

/// Bits of the table, and how many grams are inserted before it is cleared: about 50,000 requests, more than the longest iteration.
const BITS: usize = 1 << 16;
const INSERTED: usize = 1 << 13;

/// Requests recur once all selected grams of this many requests have occurred before.
const RUN: u32 = 64;
/// There must be at least this many such grams.
const RUN_SELECTED: u32 = 8;

/// The longest pause, in longest windows.
const LONGEST_PAUSE: u64 = 16;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    seen: PageVec<u64>,
    inserted: usize,
    /// Of the last eight requests.
    hash: u64,
    /// Requests since a gram was selected.
    gap: u32,
    /// Requests and selected grams since the last new gram.
    run: u32,
    run_selected: u32,
    /// Requests left of this window.
    left: u32,
    /// Grams selected in this window, and those of them that had occurred before.
    selected: u32,
    recurred: u32,
    /// Requests up to the end of this window.
    elapsed: u64,
    shortest: u64,
    longest: u64,
}

/// What a request showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    Nothing,
    /// Requests recur.
    Recurring,
    /// Nothing recurred in the window that ends here: observe nothing for this many requests.
    Pause(u64),
}

impl Watch {
    /// A watch that begins after `elapsed` requests, for iterations of at most `iteration` requests. `None` if the system has no memory.
    pub fn new(elapsed: u64, iteration: usize) -> Option<Self> {
        let shortest = (iteration as u64 / 16).max(u64::from(4 * RUN));
        let mut watch = Self {
            seen: PageVec::zeroed(BITS / 64)?,
            inserted: 0,
            hash: 0,
            gap: 0,
            run: 0,
            run_selected: 0,
            left: 0,
            selected: 0,
            recurred: 0,
            elapsed,
            shortest,
            longest: shortest.max(iteration as u64 / 2),
        };
        watch.begin_window();
        Some(watch)
    }

    fn begin_window(&mut self) {
        let window = (self.elapsed / 128).clamp(self.shortest, self.longest);
        self.elapsed += window;
        (self.left, self.selected, self.recurred) = (window as u32, 0, 0);
    }

    /// Observes a request, by its short token.
    #[inline]
    pub fn observe(&mut self, token: u32) -> Observed {
        // Eight bits of each request: the ninth shift removes it. The product breaks up the pattern that tokens of evenly spaced sizes have.
        self.hash = (self.hash << 8) ^ (u64::from(token).wrapping_mul(0x94d0_49bb_1331_11eb) >> 56);
        let mixed = self.hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.gap += 1;
        self.run += 1;
        self.left = self.left.saturating_sub(1);
        let is_selected = (mixed >> (64 - DECIDING)) as u32 <= self.gap / 8 || self.gap >= LONGEST_GAP;
        if is_selected && self.select(mixed) {
            return Observed::Recurring;
        }
        if self.left == 0 { self.end_window() } else { Observed::Nothing }
    }

    /// Selects the latest gram. Returns whether requests recur.
    fn select(&mut self, mixed: u64) -> bool {
        self.gap = 0;
        self.selected += 1;
        // The upper bits of a selected hash are alike.
        let bit = ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as usize % BITS;
        let (word, mask) = (bit / 64, 1 << (bit % 64));
        if self.seen[word] & mask != 0 {
            self.recurred += 1;
            self.run_selected += 1;
            return self.run >= RUN && self.run_selected >= RUN_SELECTED;
        }
        self.seen[word] |= mask;
        (self.run, self.run_selected) = (0, 0);
        self.inserted += 1;
        if self.inserted == INSERTED {
            self.seen.fill(0);
            self.inserted = 0;
        }
        false
    }

    /// Bytes of the pages that it has written.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        size_of_val(&self.seen[..])
    }

    #[cold]
    fn end_window(&mut self) -> Observed {
        // Up to an eighth may seem to recur because other grams have set their bits.
        let is_quiet = 6 * self.recurred < self.selected;
        let pause = if is_quiet { (self.elapsed / 8).min(LONGEST_PAUSE * self.longest) } else { 0 };
        self.elapsed += pause;
        self.begin_window();
        if is_quiet { Observed::Pause(pause) } else { Observed::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;

    fn random(seed: &mut u64) -> usize {
        *seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (*seed >> 33) as usize
    }

    /// Requests until recurrence is noticed, of a loop of `length` requests.
    fn noticed(length: usize) -> u64 {
        let mut watch = Watch::new(8_192, 32_768).unwrap();
        let (mut seed, mut made) = (length as u64, 0);
        let iteration: Vec<Request> =
            (0..length).map(|_| Request::new(random(&mut seed) % 50_000, 16)).collect();
        loop {
            match watch.observe(iteration[(made % length as u64) as usize].short_token()) {
                Observed::Nothing => made += 1,
                Observed::Recurring => return made + 1,
                Observed::Pause(requests) => made += requests + 1,
            }
        }
    }

    #[test]
    fn short_loops_of_all_lengths_are_noticed_in_their_second_iteration() {
        for length in (1..140).chain([199, 999]) {
            let at = noticed(length);
            assert!(at <= 2 * length as u64 + 600, "{length}: {at}");
        }
    }

    #[test]
    fn a_loop_longer_than_the_window_is_noticed() {
        if cfg!(miri) {
            return;
        }
        for length in [3_000, 10_000, 20_011, 32_768] {
            let at = noticed(length);
            assert!(at <= 12 * length as u64, "{length}: {at}");
        }
    }

    #[test]
    fn what_never_recurs_is_watched_ever_more_rarely() {
        let mut watch = Watch::new(8_192, 8_192).unwrap();
        let (mut seed, mut observed, mut passed, mut pauses) = (1, 0u64, 0, Vec::new());
        let most = if cfg!(miri) { 4_096 } else { 30_000 };
        while observed < most {
            observed += 1;
            match watch.observe(Request::new(random(&mut seed) % 59_000, 16).short_token()) {
                Observed::Nothing => {}
                Observed::Recurring => unreachable!("after {observed}"),
                Observed::Pause(requests) => {
                    pauses.push(requests);
                    passed += requests;
                }
            }
        }
        assert!(pauses.is_sorted() && pauses.iter().all(|&pause| pause <= 16 * 4_096), "{pauses:?}");
        assert!(cfg!(miri) || passed > 9 * observed, "{passed} of {observed}");
    }

    #[test]
    fn evenly_spaced_sizes_do_not_recur() {
        for step in [1, 8, 64, 4096, 6_553] {
            let mut watch = Watch::new(0, 8_192).unwrap();
            for i in 0..if cfg!(miri) { 1_000 } else { 8_000 } {
                let observed = watch.observe(Request::new(4_096 + step * i, 16).short_token());
                assert_ne!(observed, Observed::Recurring, "{step}: {i}");
            }
        }
    }

    /// An interpreter: pieces that occurred before, in another order.
    #[test]
    fn recurring_pieces_prevent_pauses() {
        let mut watch = Watch::new(8_192, 8_192).unwrap();
        let mut seed = 3;
        for _ in 0..if cfg!(miri) { 50 } else { 2_000 } {
            let (piece, fresh) = (random(&mut seed) % 10, random(&mut seed));
            for i in 0..40 {
                let observed =
                    watch.observe(Request::new(1_000 * piece + 64 * (i * i % 13), 16).short_token());
                assert!(!matches!(observed, Observed::Pause(_)));
            }
            watch.observe(Request::new(100_000 + fresh, 16).short_token());
        }
    }
}
