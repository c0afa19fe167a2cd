//! What the search reads of an instance.

use super::Number;
use crate::instance::{Instance, Item, gcd};

/// An instance as the search sees it, for any ceiling.
pub(crate) struct Tree<N> {
    pub(super) size: Vec<N>,
    pub(super) bytes: Vec<u64>,
    pub(super) align: Vec<N>,
    pub(super) fixed: Vec<Option<N>>,
    pub(super) hull: Vec<(u32, u32)>,
    /// All spans of the items that have several; empty for the others.
    pub(super) spans: Vec<Vec<(u32, u32)>>,
    /// Items with the same spans that are rounded up by as many bytes have the same class, unless they are fixed or alignments make a difference.
    pub(super) class: Vec<u32>,
    /// The items that conflict with each item.
    pub(super) conflicts: Vec<Vec<u32>>,
    /// Bytes × sections of each item: the measure of how far a search came.
    pub(super) area: Vec<u64>,
    /// Bytes × positions, and positions, of each item.
    pub(super) shape: Vec<(u128, u64)>,
    pub(super) sections: usize,
    pub(super) scale: u64,
    pub(super) aligned: bool,
}

/// The greatest common divisor of all numbers whose sums are offsets.
pub(crate) fn scale_of(instance: &Instance) -> u64 {
    let parts = |i: &Item| [i.size, if i.align > instance.unit { i.align } else { 0 }, i.fixed.unwrap_or(0)];
    instance.items.iter().flat_map(parts).fold(0, gcd).max(1)
}

impl<N: Number> Tree<N> {
    pub(crate) fn new(instance: &Instance) -> Self {
        let n = instance.len();
        let scale = scale_of(instance);
        let scaled = |value: u64| N::from_u64(value / scale);
        let pairs = |i: usize| instance.spans(i).iter().map(|s| (s.lo, s.hi)).collect::<Vec<_>>();
        let mut classes = std::collections::BTreeMap::new();
        Self {
            size: instance.items.iter().map(|i| scaled(i.size)).collect(),
            bytes: instance.items.iter().map(|i| i.bytes).collect(),
            align: instance.items.iter().map(|i| scaled(i.align.max(scale))).collect(),
            fixed: instance.items.iter().map(|i| i.fixed.map(scaled)).collect(),
            hull: instance.items.iter().map(|i| (i.hull.lo, i.hull.hi)).collect(),
            spans: (0..n).map(|i| if instance.spans(i).len() > 1 { pairs(i) } else { Vec::new() }).collect(),
            class: (0..n)
                .map(|i| {
                    let next = classes.len() as u32;
                    let alone = instance.any_align || instance.items[i].fixed.is_some();
                    // Of two items that are exchanged, either may be the topmost and end at its own bytes: they must be rounded up equally.
                    let spare = instance.items[i].size - instance.items[i].bytes;
                    *classes.entry((pairs(i), spare, if alone { i } else { n })).or_insert(next)
                })
                .collect(),
            conflicts: (0..n)
                .map(|a| {
                    (0..n as u32).filter(|&b| b as usize != a && instance.conflict(a, b as usize)).collect()
                })
                .collect(),
            area: (0..n)
                .map(|i| {
                    instance.items[i].size / scale
                        * instance.spans(i).iter().map(|s| u64::from(s.hi - s.lo)).sum::<u64>()
                })
                .collect(),
            shape: instance
                .items
                .iter()
                .map(|i| (u128::from(i.size) * u128::from(i.lifetime), i.lifetime))
                .collect(),
            sections: instance.sections(),
            aligned: instance.any_align,
            scale,
        }
    }

    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        self.size.len()
    }

    /// Whether two items are alive together.
    pub(super) fn conflict(&self, a: u32, b: u32) -> bool {
        self.spans_of(a).any(|(lo, hi)| self.spans_of(b).any(|(from, to)| lo < to && from < hi))
    }

    /// The spans of an item.
    pub(super) fn spans_of(&self, item: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let spans = &self.spans[item as usize];
        if spans.is_empty() { std::slice::from_ref(&self.hull[item as usize]) } else { spans }.iter().copied()
    }
}
