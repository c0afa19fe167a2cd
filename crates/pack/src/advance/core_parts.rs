//! The *core*: the items that are alive where memory is nearly full.
//!
//! A hundredth to a tenth of a long problem is core, and mostly it consists of several parts that are apart in time. Nothing but the core decides how low a
//! placement can be: everything else has bytes to spare. In an order of time, what does not matter takes the bytes that the core needs later. So the parts
//! of the core are placed first, each outwards from a peak of its own, and everything else around them. What does not find a place there becomes core, together with
//! all that is alive with it where memory is as full.

use std::sync::Arc;

use crate::instance::{Instance, Span};
use crate::order_keys::peak_live;
use crate::overlap::OverlapIndex;
use crate::sweep::Split;

use super::leg::Field;

/// An item is core if at its fullest section as many bytes are free at most as it has itself, and this share of the peak memory.
const NEARLY_FULL: u64 = 50;
/// If more than this share of the items is core, all are.
const MOSTLY: f64 = 0.8;

/// The core of an instance.
pub(super) struct Core {
    /// In order of time. Where the core becomes larger, those that stay as they are are shared with the smaller one.
    pub(super) parts: Vec<Arc<Part>>,
    /// The items on each side of the instance's peak, in the order of the side.
    sides: [Vec<u32>; 2],
    contains: Vec<bool>,
    /// For every item, the most live memory of any section in which it is alive.
    peaks: Arc<Vec<u64>>,
}

/// Items of the core that no boundary in time divides, as an instance.
pub(super) struct Part {
    /// For each item, its index in the whole instance.
    pub(super) items: Vec<u32>,
    pub(super) instance: Instance,
    split: Split,
    overlaps: OverlapIndex,
}

impl Part {
    fn new(instance: &Instance, items: Vec<u32>, window: Span) -> Option<Self> {
        let instance = instance.restrict(&items, window);
        let (split, overlaps) = (Split::new(&instance)?, OverlapIndex::new(&instance));
        Some(Self { items, instance, split, overlaps })
    }

    pub(super) fn field(&self) -> Field<'_> {
        Field { instance: &self.instance, split: &self.split, overlaps: &self.overlaps, given: None }
    }
}

impl Core {
    /// The core of an instance. `None` if an item is fixed or has gaps.
    pub(super) fn new(field: &Field<'_>) -> Option<Self> {
        let instance = field.instance;
        let peaks = Arc::new(peak_live(instance));
        let most = peaks.iter().copied().max()?;
        let is_core = |i: usize| most - peaks[i] <= most / NEARLY_FULL + instance.items[i].size;
        let mut contains: Vec<bool> = (0..instance.len()).map(is_core).collect();
        let count = contains.iter().filter(|&&is_core| is_core).count();
        if count as f64 > MOSTLY * instance.len() as f64 {
            contains.fill(true);
        }
        Self::cut(field, contains, peaks, &[])
    }

    /// Cuts the core at every boundary that none of its items crosses. `former` are parts that there are already.
    fn cut(
        field: &Field<'_>,
        contains: Vec<bool>,
        peaks: Arc<Vec<u64>>,
        former: &[Arc<Part>],
    ) -> Option<Self> {
        let Field { instance, split, overlaps, .. } = *field;
        let is_core = |&i: &u32| contains[i as usize];
        let hull = |i: u32| instance.items[i as usize].hull;
        let part = |items: Vec<u32>, window: Span| match former.iter().find(|part| part.items == items) {
            Some(part) => Some(Arc::clone(part)),
            None => Part::new(instance, items, window).map(Arc::new),
        };
        let mut parts = Vec::new();
        let (mut items, mut window) = (Vec::new(), Span { lo: 0, hi: 0 });
        for i in overlaps.in_time().iter().copied().filter(is_core) {
            if hull(i).lo >= window.hi && !items.is_empty() {
                parts.push(part(std::mem::take(&mut items), window)?);
            }
            if items.is_empty() {
                window = hull(i);
            }
            window.hi = window.hi.max(hull(i).hi);
            items.push(i);
        }
        parts.push(part(items, window)?);
        let sides = [0, 1].map(|side: usize| split.sides[side].iter().copied().filter(is_core).collect());
        Some(Self { parts, sides, contains, peaks })
    }

    /// The core with one more item, and with all that is alive with it where memory is as full.
    pub(super) fn with(&self, field: &Field<'_>, item: u32) -> Option<Self> {
        let mut contains = self.contains.clone();
        field.overlaps.each_in(field.instance.items[item as usize].hull, |i| {
            contains[i as usize] |= self.peaks[i as usize] >= self.peaks[item as usize];
        });
        Self::cut(field, contains, Arc::clone(&self.peaks), &self.parts)
    }

    /// Whether an item is core.
    pub(super) fn contains(&self, item: u32) -> bool {
        self.contains[item as usize]
    }

    /// The whole instance, where the core has its offsets already.
    pub(super) fn around<'a>(&'a self, field: &Field<'a>) -> Field<'a> {
        Field { given: Some(&self.sides), ..*field }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::{Block, Problem};

    use super::*;
    use crate::random::Random;

    /// 400 blocks; memory is nearly full in up to three places.
    pub(in crate::advance) fn hills(random: &mut Random) -> Problem {
        let blocks = (0..400).map(|at| {
            let hill = [100, 300, 500][random.below(3)];
            let start = if at % 4 == 0 { random.below(600) } else { hill + random.below(30) } as u64;
            Block::new(start, start + 1 + random.below(20) as u64, Bytes(1 + random.below(50) as u64))
        });
        Problem { blocks: blocks.collect(), capacity: None }
    }

    pub(in crate::advance) fn with_field(seed: u64, mut test: impl FnMut(&Problem, &Field<'_>, &mut Random)) {
        let mut random = Random::new(seed, 0);
        let problem = hills(&mut random);
        let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
        let split = Split::new(&instance).expect("no block is fixed or has gaps");
        let overlaps = OverlapIndex::new(&instance);
        let field = Field { instance: &instance, split: &split, overlaps: &overlaps, given: None };
        test(&problem, &field, &mut random);
    }

    /// The core's items, after a look at its parts: they have the sizes and lifetimes of the whole, and are apart in time.
    fn checked_items(core: &Core, whole: &Instance) -> Vec<u32> {
        let mut end = 0;
        for part in &core.parts {
            let hulls = || part.items.iter().map(|&i| whole.items[i as usize].hull);
            let [lo, hi] = [hulls().map(|hull| hull.lo).min(), hulls().map(|hull| hull.hi).max()];
            let (lo, hi) = (lo.expect("a part has items"), hi.expect("a part has items"));
            assert!(end <= lo, "parts are apart in time");
            end = hi;
            for (own, &i) in part.instance.items.iter().zip(&part.items) {
                let item = &whole.items[i as usize];
                assert_eq!(
                    (own.size, own.hull.lo + lo, own.hull.hi + lo),
                    (item.size, item.hull.lo, item.hull.hi)
                );
            }
        }
        let mut items: Vec<u32> = core.parts.iter().flat_map(|part| part.items.iter().copied()).collect();
        items.sort_unstable();
        let contained: Vec<u32> = (0..whole.len() as u32).filter(|&i| core.contains(i)).collect();
        assert_eq!(items, contained);
        items
    }

    #[test]
    fn the_core_is_what_is_alive_where_memory_is_nearly_full() {
        let mut divided = 0;
        for seed in 0..50 {
            with_field(seed, |_, field, _| {
                let core = Core::new(field).expect("no block is fixed");
                let items = checked_items(&core, field.instance);
                assert!(field.split.stack.iter().all(|&i| core.contains(i)), "seed {seed}");
                assert!(items.len() < field.instance.len(), "seed {seed}");
                divided += usize::from(core.parts.len() > 1);
            });
        }
        assert!(divided > 5, "{divided}");
    }

    #[test]
    fn a_larger_core_contains_the_item_and_what_is_alive_with_it_where_memory_is_as_full() {
        for seed in 0..50 {
            with_field(seed, |_, field, random| {
                let core = Core::new(field).expect("no block is fixed");
                let item = random.below(field.instance.len()) as u32;
                let larger = core.with(field, item).expect("no block is fixed");
                checked_items(&larger, field.instance);
                let peaks = peak_live(field.instance);
                for i in 0..field.instance.len() as u32 {
                    let joins = field.instance.conflict(item as usize, i as usize)
                        && peaks[i as usize] >= peaks[item as usize];
                    assert_eq!(larger.contains(i), core.contains(i) || i == item || joins, "seed {seed}");
                }
            });
        }
    }
}
