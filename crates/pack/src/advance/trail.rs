//! The front of an advance on one side, kept from attempt to attempt.

use crate::front::{Front, Side};
use crate::sweep::{Ahead, Pass, SideWay};

use super::leg::{Field, Meter};

/// This many items with known offsets are put into the lists of a front in the time in which one is placed.
const KNOWN_PER_PLACED: u64 = 4;

/// Items with their offsets, in ascending order of these.
pub(super) type Stacked = Vec<(u32, u64)>;

/// A front that goes back and forth. Where thousands of items are alive, a new one takes longer than an attempt.
pub(super) struct Trail<'a> {
    field: Field<'a>,
    side: usize,
    ceiling: u64,
    front: Front<'a>,
    /// It cannot go behind this section.
    start: u32,
    /// Up to this section, everything has the offsets of the advance.
    agrees: u32,
    /// Of all items. Those that are not placed do not count.
    offsets: Vec<u64>,
    /// The items placed by the attempt that is under way, in the order of the side.
    moved: Vec<u32>,
    /// The items that it placed before they begin.
    ahead: Vec<Ahead>,
}

impl<'a> Trail<'a> {
    /// A front at a section, counted in the direction of the side, with the items that are alive there.
    pub(super) fn new(
        field: &Field<'a>,
        (side, start): (usize, u32),
        ceiling: u64,
        alive: &Stacked,
        meter: &Meter<'_>,
    ) -> Self {
        meter.count(alive.len() as u64 / KNOWN_PER_PLACED);
        let mut offsets = vec![0; field.instance.len()];
        for &(i, offset) in alive {
            offsets[i as usize] = offset;
        }
        let stack: Vec<u32> = alive.iter().map(|&(i, _)| i).collect();
        let front = Front::new(field.instance, (Side::BOTH[side], start), ceiling, &stack, &offsets);
        let (moved, ahead) = (Vec::new(), Vec::new());
        Self { field: *field, side, ceiling, front, start, agrees: start, offsets, moved, ahead }
    }

    /// Whether it can go to a section.
    pub(super) fn reaches(&self, section: u32) -> bool {
        self.start <= section
    }

    /// Begins an attempt at a section, where everything has the offsets of the advance.
    pub(super) fn begin(&mut self, at: u32, offsets: &[u64], meter: &Meter<'_>) {
        self.front.go_back(at.min(self.agrees), &self.offsets);
        self.moved.clear();
        for Ahead { item, .. } in std::mem::take(&mut self.ahead) {
            self.front.release(item, self.offsets[item as usize]);
        }
        let items = &self.field.split.sides[self.side];
        let until = |section: u32| items.partition_point(|&i| self.field.begin(self.side, i) <= section);
        let known = &items[until(self.front.section())..until(at)];
        meter.count(known.len() as u64 / KNOWN_PER_PLACED);
        for &i in known {
            self.offsets[i as usize] = offsets[i as usize];
            self.front.place_at(i, &self.offsets);
        }
        self.front.advance(at, &self.offsets);
        self.agrees = at;
    }

    /// Goes back to a section within an attempt. What was placed before stays, and so do the items that were placed before they begin.
    pub(super) fn go_back(&mut self, to: u32) {
        self.front.go_back(to, &self.offsets);
        self.agrees = self.agrees.min(to);
        let begin = |i: u32| self.field.begin(self.side, i);
        self.moved.truncate(self.moved.partition_point(|&i| begin(i) <= to));
        let (front, offsets) = (&mut self.front, &self.offsets);
        self.ahead.retain(|&Ahead { item, since }| {
            let offset = offsets[item as usize];
            if since > to {
                front.release(item, offset);
            } else if begin(item) > to {
                front.reserve_at(item, offset);
            }
            since <= to
        });
    }

    /// Places the items of the side that begin before a section, until one does not fit. Returns how many of the side then have places, or
    /// `None` if it is to stop. `offsets` are those of the items that have them already.
    pub(super) fn run(
        &mut self,
        way: &SideWay,
        until: u32,
        offsets: &[u64],
        meter: &Meter<'_>,
    ) -> Option<usize> {
        let Field { instance, split, given, .. } = self.field;
        let given = given.map_or(&[][..], |given| &given[self.side]);
        let pass = Pass { split, instance, side: self.side, way, given: (given, offsets) };
        let mut stopped = false;
        let (field, ceiling, moved) = (&self.field, self.ceiling, &mut self.moved);
        let placed =
            pass.run(&mut self.front, until, &mut self.offsets, &mut self.ahead, &mut |i, offset| {
                meter.count(1);
                stopped = meter.stops();
                let fits = field.end(i, offset) <= ceiling;
                if fits {
                    moved.push(i);
                }
                fits && !stopped
            });
        (!stopped).then_some(placed)
    }

    /// The advance takes over what the attempt has placed, where `placed` items of the side have places.
    pub(super) fn adopt(&mut self, placed: usize) -> Vec<(u32, u64)> {
        let next = self.field.split.sides[self.side].get(placed);
        self.agrees = next.map_or(u32::MAX, |&i| self.field.begin(self.side, i) - 1);
        self.moved()
    }

    /// What the attempt has placed.
    pub(super) fn moved(&self) -> Vec<(u32, u64)> {
        self.moved.iter().map(|&i| (i, self.offsets[i as usize])).collect()
    }
}
