//! The live memory over the places of a sequence, with the two operations that prefetches need: find the last place before a use at which a
//! tensor does not fit, and add its bytes to a range. A segment tree with lazy additions; both take O(log n).

/// Live memory at every place of a sequence.
#[derive(Debug)]
pub(crate) struct LiveProfile {
    /// Places, rounded up to a power of two; the tree's leaves are `size..2·size`.
    size: usize,
    /// Largest live memory in the node's range, without what is added at its ancestors.
    most: Vec<u64>,
    /// Added to the whole range of the node.
    added: Vec<u64>,
}

impl LiveProfile {
    pub(crate) fn new(live_bytes: &[u64]) -> Self {
        let size = live_bytes.len().next_power_of_two();
        let mut most = vec![0; 2 * size];
        most[size..size + live_bytes.len()].copy_from_slice(live_bytes);
        for node in (1..size).rev() {
            most[node] = most[2 * node].max(most[2 * node + 1]);
        }
        Self { size, most, added: vec![0; 2 * size] }
    }

    /// Adds to the live memory of the places `from..to`.
    pub(crate) fn add(&mut self, from: usize, to: usize, bytes: u64) {
        if from < to {
            self.add_in(1, 0, self.size, from, to, bytes);
        }
    }

    fn add_in(&mut self, node: usize, low: usize, high: usize, from: usize, to: usize, bytes: u64) {
        if from <= low && high <= to {
            self.most[node] += bytes;
            self.added[node] += bytes;
            return;
        }
        let middle = low.midpoint(high);
        if from < middle {
            self.add_in(2 * node, low, middle, from, to, bytes);
        }
        if middle < to {
            self.add_in(2 * node + 1, middle, high, from, to, bytes);
        }
        self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.added[node];
    }

    /// The last place in `from..to` whose live memory exceeds `limit`.
    pub(crate) fn last_above(&self, from: usize, to: usize, limit: u64) -> Option<usize> {
        if from < to { self.last_in(1, 0, self.size, from, to, limit) } else { None }
    }

    fn last_in(
        &self,
        node: usize,
        low: usize,
        high: usize,
        from: usize,
        to: usize,
        limit: u64,
    ) -> Option<usize> {
        if to <= low || high <= from || self.most[node] <= limit {
            return None;
        }
        if node >= self.size {
            return Some(low);
        }
        // Below this node its own addition is always there, so the limit shrinks by it. It may be larger than the limit: then every
        // place counts, except that the children's own live memory are at least zero.
        let Some(rest) = limit.checked_sub(self.added[node]) else { return Some(to.min(high) - 1) };
        let middle = low.midpoint(high);
        self.last_in(2 * node + 1, middle, high, from, to, rest)
            .or_else(|| self.last_in(2 * node, low, middle, from, to, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_array() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for len in [1usize, 2, 5, 16, 37] {
            let mut plain: Vec<u64> = (0..len).map(|_| random(50)).collect();
            let mut room = LiveProfile::new(&plain);
            for _ in 0..200 {
                let (a, b) = (random(len as u64 + 1) as usize, random(len as u64 + 1) as usize);
                let (from, to) = (a.min(b), a.max(b));
                let limit = random(300);
                let last = (from..to).rev().find(|&place| plain[place] > limit);
                assert_eq!(room.last_above(from, to, limit), last);
                let bytes = random(20);
                room.add(from, to, bytes);
                plain[from..to].iter_mut().for_each(|live_bytes| *live_bytes += bytes);
            }
        }
    }
}
