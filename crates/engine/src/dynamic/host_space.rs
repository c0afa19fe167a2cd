//! Bytes of the host tier during a dynamic iteration. A host copy takes any free bytes: one range where one is large enough, several where none
//! is. The sum of the sizes of all copies is therefore all that has to fit.

use std::collections::BTreeMap;

use elbowroom_graph::Graph;
use elbowroom_ir::order::{Order, OrderIndex};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{StorageId, Table};

use crate::arena::Extent;

/// Whether and how tensors of a storage may be offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostUse {
    /// Never: a persistent tensor whose storage differs between start and end of the iteration.
    Never,
    /// To one range of bytes, because a persistent tensor stays on the host after the iteration.
    OneRange,
    /// To any bytes.
    Anywhere,
}

/// What the storages of a trace need on the host.
#[derive(Debug)]
pub(crate) struct HostNeeds {
    pub uses: Table<StorageId, HostUse>,
    /// No dynamic iteration has more bytes on the host at once.
    pub most: usize,
}

impl HostNeeds {
    /// The needs of a trace whose ops run in this order.
    pub fn new(graph: &Graph, trace: &Trace, order: &Order) -> Self {
        let mut uses = Table::filled(trace.storages().len(), HostUse::Anywhere);
        let mut persistent = 0;
        for parameter in &graph.persistent {
            let (begin, end) = (trace.storage(parameter.begin), trace.storage(parameter.end));
            let kind = if begin == end { HostUse::OneRange } else { HostUse::Never };
            (uses[begin], uses[end]) = (kind, kind);
            persistent += trace.bytes(parameter.begin).get() as usize;
        }
        let mut until: Table<StorageId, OrderIndex> = Table::filled(trace.storages().len(), 0);
        for value in trace.tensors().ids() {
            let storage = trace.storage(value);
            until[storage] = until[storage].max(order.last_use(value));
        }
        let mut counted = Table::filled(trace.storages().len(), false);
        let mut ending: BTreeMap<OrderIndex, usize> = BTreeMap::new();
        let (mut live, mut most) = (0, 0);
        for (place, &op) in (0..).zip(order.ops()) {
            while let Some(entry) = ending.first_entry().filter(|entry| *entry.key() < place) {
                live -= entry.remove();
            }
            for &output in &trace.ops()[op].outputs {
                let storage = trace.storage(output);
                if uses[storage] == HostUse::Anywhere && !counted[storage] {
                    let bytes = trace.storages()[storage].bytes.get() as usize;
                    counted[storage] = true;
                    live += bytes;
                    *ending.entry(until[storage]).or_default() += bytes;
                }
            }
            most = most.max(live);
        }
        Self { uses, most: persistent + most }
    }
}

/// The free bytes of a host tier.
#[derive(Debug)]
pub(crate) struct HostSpace {
    /// Offset and length of every free range; no two touch.
    holes: BTreeMap<usize, usize>,
}

impl HostSpace {
    /// A tier of this many bytes, all free.
    pub fn new(size: usize) -> Self {
        Self { holes: (size > 0).then_some((0, size)).into_iter().collect() }
    }

    /// Length of the largest free range.
    pub fn largest(&self) -> usize {
        self.holes.values().copied().max().unwrap_or(0)
    }

    /// Takes a range. Returns false if not all of it is free.
    pub fn take(&mut self, range: Extent) -> bool {
        if range.len == 0 {
            return true;
        }
        let hole =
            self.holes.range(..=range.offset).next_back().map(|(&offset, &len)| Extent { offset, len });
        let Some(hole) = hole.filter(|hole| range.end() <= hole.end()) else { return false };
        self.holes.remove(&hole.offset);
        self.insert(Extent { offset: hole.offset, len: range.offset - hole.offset });
        self.insert(Extent { offset: range.end(), len: hole.end() - range.end() });
        true
    }

    /// Takes as many bytes: from the smallest range that has them, or else, unless it has to be one range, from the largest ones. `None` if
    /// there are too few.
    pub fn allocate(&mut self, bytes: usize, one_range: bool) -> Option<Vec<Extent>> {
        if bytes == 0 {
            return Some(Vec::new());
        }
        let enough = self.holes.iter().filter(|&(_, &len)| len >= bytes).min_by_key(|&(&at, &len)| (len, at));
        if let Some((&offset, _)) = enough {
            let range = Extent { offset, len: bytes };
            return self.take(range).then(|| vec![range]);
        }
        let free: usize = self.holes.values().sum();
        if one_range || free < bytes {
            return None;
        }
        let mut holes: Vec<(usize, usize)> = self.holes.iter().map(|(&offset, &len)| (len, offset)).collect();
        holes.sort_unstable_by_key(|&(len, offset)| (std::cmp::Reverse(len), offset));
        let (mut pieces, mut missing) = (Vec::new(), bytes);
        for (len, offset) in holes {
            let piece = Extent { offset, len: len.min(missing) };
            if piece.len > 0 && self.take(piece) {
                pieces.push(piece);
                missing -= piece.len;
            }
        }
        Some(pieces)
    }

    /// Returns ranges that were taken.
    pub fn free(&mut self, pieces: &[Extent]) {
        for &piece in pieces.iter().filter(|piece| piece.len > 0) {
            let mut range = piece;
            if let Some(len) = self.holes.remove(&piece.end()) {
                range.len += len;
            }
            let before = self.holes.range(..piece.offset).next_back().map(|(&offset, &len)| (offset, len));
            if let Some((offset, len)) = before.filter(|(offset, len)| offset + len == piece.offset) {
                self.holes.remove(&offset);
                range = Extent { offset, len: len + range.len };
            }
            self.insert(range);
        }
    }

    fn insert(&mut self, range: Extent) {
        if range.len > 0 {
            self.holes.insert(range.offset, range.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_fit_as_long_as_their_sum_does() {
        let mut space = HostSpace::new(1000);
        let mut copies: Vec<Vec<Extent>> = Vec::new();
        let mut state = 1_u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (bytes, remove) = ((state >> 40) as usize % 300, state >> 63 == 1);
            let used: usize = copies.iter().flatten().map(|piece| piece.len).sum();
            if remove && !copies.is_empty() {
                let copy = copies.swap_remove((state >> 33) as usize % copies.len());
                space.free(&copy);
                continue;
            }
            match space.allocate(bytes, false) {
                Some(copy) => {
                    assert_eq!(copy.iter().map(|piece| piece.len).sum::<usize>(), bytes);
                    copies.push(copy);
                }
                None => assert!(used + bytes > 1000, "{used} and {bytes} would fit"),
            }
            let mut all: Vec<Extent> = copies.iter().flatten().copied().collect();
            all.sort_unstable_by_key(|piece| piece.offset);
            assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].offset), "{all:?}");
            assert!(all.last().is_none_or(|last| last.end() <= 1000));
        }
        copies.iter().for_each(|copy| space.free(copy));
        assert_eq!((space.largest(), space.holes.len()), (1000, 1), "all is free and in one range");
    }

    #[test]
    fn what_needs_one_range_gets_one_or_nothing() {
        let mut space = HostSpace::new(100);
        assert!(space.take(Extent { offset: 40, len: 10 }));
        assert!(!space.take(Extent { offset: 45, len: 10 }));
        assert_eq!(space.allocate(60, true), None);
        assert_eq!(space.allocate(60, false).map(|pieces| pieces.len()), Some(2));
        assert_eq!(space.allocate(0, true), Some(Vec::new()));
    }
}
