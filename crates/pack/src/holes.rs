//! Cuts the free bytes below a ceiling into rectangles, as if they were blocks that are not listed.
//!
//! ```text
//!  free    ┌──┐                       ┌──┐              How many bytes are free is known for every time, and not where they are. When fewer
//!  bytes   │  └───┐        ──▶        └──┘              become free, a hole ends that is as large as the difference, or two are, or a part of
//!  ▲    ┌──┘      └──┐              ┌─────────┐         a larger one, whose rest ends too or goes on.
//!  └──▶ └────────────┘              └─────────┴──┐
//! ```
//!
//! Where blocks were taken from a rectangle that they filled, most holes are found as they were: few of them start or end at the same time, and
//! sizes differ. What is ambiguous is drawn.

use std::collections::BTreeMap;

use crate::instance::{Instance, Rectangle};
use crate::random::Random;

/// One of this many times, no holes of the right size are looked for.
const BLIND: usize = 8;

/// A time, and the first section that has not ended then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    time: u64,
    section: u32,
}

/// A rectangle of free bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hole {
    start: Moment,
    end: Moment,
    size: u64,
}

impl Hole {
    /// The rectangle, as if it were the first item.
    pub(crate) fn rectangle(&self) -> Rectangle {
        Rectangle {
            item: 0,
            lo: self.start.section,
            hi: self.end.section,
            size: self.size,
            bytes: self.size,
            lifetime: self.end.time - self.start.time,
        }
    }
}

/// By how much the number of free bytes changes at every time.
pub(crate) type Profile = BTreeMap<Moment, i64>;

/// The free bytes below a ceiling. Items may have no gaps.
pub(crate) fn profile(instance: &Instance, ceiling: u64) -> Profile {
    let ceiling = (ceiling / instance.unit * instance.unit) as i64;
    let mut profile = Profile::new();
    for item in &instance.items {
        let (start, end) = (item.first_position, item.first_position + item.lifetime);
        *profile.entry(Moment { time: start, section: item.hull.lo }).or_default() -= item.size as i64;
        *profile.entry(Moment { time: end, section: item.hull.hi }).or_default() += item.size as i64;
    }
    if let Some(mut first) = profile.first_entry() {
        *first.get_mut() += ceiling;
    }
    if let Some(mut last) = profile.last_entry() {
        *last.get_mut() -= ceiling;
    }
    profile
}

/// The bytes that holes are.
pub(crate) fn profile_of(holes: &[Hole]) -> Profile {
    let mut profile = Profile::new();
    for hole in holes {
        *profile.entry(hole.start).or_default() += hole.size as i64;
        *profile.entry(hole.end).or_default() -= hole.size as i64;
    }
    profile
}

/// Holes that fill a profile, in a random way. Those that fill no section whole are left out.
pub(crate) fn cut(profile: Profile, random: &mut Random) -> Vec<Hole> {
    let mut holes: Vec<Hole> = Vec::new();
    // Start and size of those that have not ended.
    let mut open: Vec<(Moment, u64)> = Vec::new();
    for (now, change) in profile {
        if change > 0 {
            open.push((now, change as u64));
        }
        let mut ending = (-change).max(0) as u64;
        let mut close = |(start, size): (Moment, u64), end: Moment| {
            if start.section < end.section {
                holes.push(Hole { start, end, size });
            }
        };
        if ending > 0
            && random.below(BLIND) > 0
            && let Some(found) = of_size(&open, ending, random)
        {
            // Of two, the earlier one may have ended when the later one began, together with another one of its size.
            let last = found.iter().map(|&one| open[one].0).max().unwrap_or(now);
            for one in found {
                let (start, size) = open.swap_remove(one);
                close((start, size), last);
                close((last, size), now);
            }
            ending = 0;
        }
        while ending > 0 && !open.is_empty() {
            let larger: Vec<usize> = (0..open.len()).filter(|&one| open[one].1 > ending).collect();
            let one =
                if larger.is_empty() { random.below(open.len()) } else { larger[random.below(larger.len())] };
            let (start, size) = open.swap_remove(one);
            if size > ending && random.below(2) == 0 {
                open.push((start, size - ending));
            } else if size > ending {
                close((start, size - ending), now);
                open.push((now, size - ending));
            }
            close((start, size.min(ending)), now);
            ending -= size.min(ending);
        }
    }
    holes
}

/// One or two holes of a size in all, in descending order.
fn of_size(open: &[(Moment, u64)], size: u64, random: &mut Random) -> Option<Vec<usize>> {
    let n = open.len();
    let first = random.below(n.max(1));
    let from_first = || (0..n).map(|k| (first + k) % n);
    if let Some(one) = from_first().find(|&one| open[one].1 == size) {
        return Some(vec![one]);
    }
    let mut pairs = from_first().flat_map(|a| (0..a).map(move |b| [a, b]));
    pairs.find(|&[a, b]| open[a].1 + open[b].1 == size).map(Vec::from)
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::{Block, Problem};

    use super::*;

    #[test]
    fn holes_fill_every_section_up_to_the_ceiling() {
        for seed in 0..2_000 {
            let mut random = Random::new(seed, 5);
            let mut block = || {
                let start = random.below(30) as u64;
                let end = start + 1 + random.below(10) as u64;
                Block {
                    align: Bytes(1 + seed % 3),
                    ..Block::new(start, end, Bytes(1 + random.below(9) as u64))
                }
            };
            let blocks: Vec<Block> = (0..12).map(|_| block()).collect();
            let problem = Problem { blocks: blocks.into(), capacity: None };
            let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
            let peak = instance.live.iter().copied().max().unwrap_or_default();
            let ceiling = peak + seed % 5;
            let mut filled = instance.live.clone();
            let first = cut(profile(&instance, ceiling), &mut random);
            // What is cut once more fills the same bytes.
            let holes = if seed % 2 == 0 { cut(profile_of(&first), &mut random) } else { first };
            for hole in &holes {
                let Rectangle { lo, hi, size, lifetime, .. } = hole.rectangle();
                assert!(lo < hi && size > 0 && lifetime > 0, "{hole:?}");
                filled[lo as usize..hi as usize].iter_mut().for_each(|bytes| *bytes += size);
            }
            let ceiling = ceiling / instance.unit * instance.unit;
            assert!(filled.iter().all(|&bytes| bytes == ceiling), "seed {seed}: {filled:?} of {ceiling}");
        }
    }

    #[test]
    fn the_holes_of_missing_blocks_are_those_blocks() {
        // (0..10) × 6 is full; 3 bytes are missing in 2..5, and 2 in 4..8.
        let [a, b, c] = [(0, 2, 3), (5, 10, 3), (0, 4, 2)].map(|(s, e, n)| Block::new(s, e, Bytes(n)));
        let (d, through) = (Block::new(8, 10, Bytes(2)), Block::new(0, 10, Bytes(1)));
        // Something must happen at all these times, or sections are larger.
        let clocks = (0..10).map(|at| Block::new(at, at + 1, Bytes(1)));
        let blocks: Vec<Block> = [a, b, c, d, through].into_iter().chain(clocks).collect();
        let Ok(instance) = Instance::new(&Problem { blocks: blocks.into(), capacity: None }) else {
            panic!("no block is fixed")
        };
        let mut found = 0;
        for seed in 0..100 {
            let holes = cut(profile(&instance, 7), &mut Random::new(seed, 0));
            let mut holes: Vec<(u64, u64, u64)> =
                holes.iter().map(|hole| (hole.start.time, hole.end.time, hole.size)).collect();
            holes.sort_unstable();
            found += usize::from(holes == [(2, 5, 3), (4, 8, 2)]);
        }
        assert!(found > 60, "{found} of 100");
    }
}
