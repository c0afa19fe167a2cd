//! First-fit for very many items: the shelf cut into windows of time, so that an item meets only those placed near it.
//!
//! A window is a stretch of sections in which about as many items start as are alive at once. Each keeps the placed items that touch it in order
//! of offset. An item of one window scans one list; an item of several merges theirs. No list of conflicting pairs is built, and the
//! work grows with the number of items times the length of a window's list.

use crate::instance::Instance;

/// Items that start in a window.
const STARTS: usize = 192;

/// What is placed where, window by window.
pub(crate) struct Windows<'a> {
    instance: &'a Instance,
    window_of: Vec<u32>,
    /// Placed items of every window as (offset, end, item), ascending.
    placed: Vec<Vec<(u64, u64, u32)>>,
    merged: Vec<(u64, u64, u32)>,
    offsets: Vec<u64>,
}

impl<'a> Windows<'a> {
    fn new(instance: &'a Instance) -> Self {
        let mut starts = vec![0u32; instance.sections()];
        for i in 0..instance.len() {
            for span in instance.spans(i) {
                starts[span.lo as usize] += 1;
            }
        }
        let (mut window, mut count) = (0u32, 0);
        let window_of: Vec<u32> = starts
            .into_iter()
            .map(|starts| {
                if count >= STARTS {
                    (window, count) = (window + 1, 0);
                }
                count += starts as usize;
                window
            })
            .collect();
        Self {
            instance,
            window_of,
            placed: vec![Vec::new(); window as usize + 1],
            merged: Vec::new(),
            offsets: vec![0; instance.len()],
        }
    }

    fn insert(&mut self, item: usize, offset: u64) {
        let row = (offset, offset + self.instance.items[item].size, item as u32);
        let mut next = 0;
        for &span in self.instance.spans(item) {
            let (first, last) = (self.window_of[span.lo as usize], self.window_of[span.hi as usize - 1]);
            for list in &mut self.placed[first.max(next) as usize..=last as usize] {
                let at = list.partition_point(|placed| *placed < row);
                list.insert(at, row);
            }
            next = last + 1;
        }
        self.offsets[item] = offset;
    }

    /// Places an item at its lowest free offset.
    fn place(&mut self, item: usize) {
        let instance = self.instance;
        let hull = instance.items[item].hull;
        let (first, last) = (self.window_of[hull.lo as usize], self.window_of[hull.hi as usize - 1]);
        let offset = if first == last {
            lowest(instance, item, &self.placed[first as usize])
        } else {
            self.merged.clear();
            for list in &self.placed[first as usize..=last as usize] {
                self.merged
                    .extend(list.iter().filter(|row| instance.items[row.2 as usize].hull.overlaps(hull)));
            }
            self.merged.sort_unstable();
            lowest(instance, item, &self.merged)
        };
        self.insert(item, offset);
    }
}

/// The lowest free offset of an item among placed ones in order of offset.
fn lowest(instance: &Instance, item: usize, placed: &[(u64, u64, u32)]) -> u64 {
    let size = instance.items[item].size;
    let hull = instance.items[item].hull;
    let mut top = 0u64;
    for &(offset, end, other) in placed {
        if end <= top
            || !instance.items[other as usize].hull.overlaps(hull)
            || !instance.conflict(item, other as usize)
        {
            continue;
        }
        let start = instance.align_up(item, top);
        if start + size <= offset {
            return start;
        }
        top = end;
    }
    instance.align_up(item, top)
}

/// Places all items that are not fixed in the given order; `None` if told to stop on the way.
pub(crate) fn first_fit(instance: &Instance, order: &[u32], stop: &dyn Fn() -> bool) -> Option<Vec<u64>> {
    let mut windows = Windows::new(instance);
    for (i, item) in instance.items.iter().enumerate() {
        if let Some(offset) = item.fixed {
            windows.insert(i, offset);
        }
    }
    for (done, &item) in order.iter().enumerate() {
        if done % 1024 == 1023 && stop() {
            return None;
        }
        if instance.items[item as usize].fixed.is_none() {
            windows.place(item as usize);
        }
    }
    Some(windows.offsets)
}
