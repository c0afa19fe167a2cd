//! Short sequences of requests, by which an abandoned plan is recognized.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::request::Request;

/// Requests in a gram.
pub(crate) const GRAM: usize = 8;

/// A gram's hash is a polynomial in this base, so that it follows from that of the gram one request before.
const BASE: u64 = 0x0100_0000_01b3;

/// By what the request before the gram is removed from the hash.
const OLDEST_FACTOR: u64 = BASE.wrapping_pow(GRAM as u32);

/// The latest requests of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct Recent {
    /// A ring; the oldest is at `len % GRAM` once it is full.
    requests: [Request; GRAM],
    len: usize,
    hash: u64,
}

impl Recent {
    pub const fn new() -> Self {
        Self { requests: [Request::new(0, 1); GRAM], len: 0, hash: 0 }
    }

    /// Adds the latest request.
    #[inline]
    pub fn push(&mut self, request: Request) {
        let oldest = std::mem::replace(&mut self.requests[self.len % GRAM], request);
        self.hash = self.hash.wrapping_mul(BASE).wrapping_add(request.token());
        if self.len >= GRAM {
            self.hash = self.hash.wrapping_sub(oldest.token().wrapping_mul(OLDEST_FACTOR));
        }
        self.len += 1;
    }

    pub fn clear(&mut self) {
        (self.len, self.hash) = (0, 0);
    }

    /// The hash of the latest gram; `None` before there is one.
    #[inline]
    pub fn hash(&self) -> Option<u64> {
        (self.len >= GRAM).then_some(self.hash)
    }

    /// The requests of the latest gram, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Request> {
        (0..GRAM).map(|i| self.requests[(self.len + i) % GRAM])
    }
}

/// The grams of an iteration, and where the last request of each is.
#[derive(Clone, Debug)]
pub(crate) struct Grams(HashMap<u64, Option<u32>, BuildHasherDefault<AsItIs>>);

impl Grams {
    /// The grams of an iteration that repeats. A gram that occurs twice is ambiguous, so its position is `None`.
    pub fn new(iteration: &[Request]) -> Self {
        let n = iteration.len();
        let mut grams = HashMap::with_capacity_and_hasher(n, BuildHasherDefault::default());
        let mut recent = Recent::new();
        // The end of the iteration comes before its beginning.
        (0..if n == 0 { 0 } else { GRAM - 1 })
            .for_each(|i| recent.push(iteration[(n * GRAM + i + 1 - GRAM) % n]));
        for (end, &request) in iteration.iter().enumerate() {
            recent.push(request);
            grams.entry(recent.hash).and_modify(|at| *at = None).or_insert(Some(end as u32));
        }
        Self(grams)
    }

    /// Where the last request of the gram with this hash is, if the gram occurs at one place.
    #[inline]
    pub fn end(&self, hash: u64) -> Option<usize> {
        self.0.get(&hash).copied().flatten().map(|end| end as usize)
    }
}

/// Gram hashes need no further mixing: tokens are mixed.
#[derive(Clone, Copy, Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(i: usize) -> Request {
        Request::new(1_000 + 64 * (i * i % 101), 16)
    }

    #[test]
    fn a_gram_is_found_at_its_place_however_it_was_reached() {
        let iteration: Vec<Request> = (0..60).map(request).collect();
        let grams = Grams::new(&iteration);
        let mut recent = Recent::new();
        (0..1_000).for_each(|i| recent.push(Request::new(7 * i, 1 << (i % 5))));
        let mut found = 0;
        for i in 0..3 * iteration.len() {
            recent.push(iteration[i % iteration.len()]);
            let end = grams.end(recent.hash().unwrap());
            assert!(end.is_none_or(|end| i >= GRAM - 1 && end == i % iteration.len()), "{i}: {end:?}");
            found += usize::from(end.is_some());
            let expected = (0..GRAM).map(|back| iteration[(i + 61 * iteration.len() + back + 1 - GRAM) % 60]);
            assert!(i < GRAM - 1 || recent.iter().eq(expected));
        }
        assert!(found > 2 * iteration.len(), "{found}");
    }

    #[test]
    fn a_gram_that_occurs_twice_has_no_place() {
        let iteration = [request(1); 3];
        let mut recent = Recent::new();
        assert_eq!(recent.hash(), None);
        (0..GRAM).for_each(|_| recent.push(request(1)));
        assert_eq!(Grams::new(&iteration).end(recent.hash().unwrap()), None);
        let mut other = Recent::new();
        (0..GRAM).for_each(|_| other.push(request(2)));
        assert_eq!(Grams::new(&iteration).end(other.hash().unwrap()), None);
        assert!(Grams::new(&iteration[..1]).end(recent.hash().unwrap()).is_some());
        recent.clear();
        assert_eq!(recent.hash(), None);
    }
}
