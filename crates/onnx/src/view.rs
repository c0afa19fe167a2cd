//! Axes over a dense tensor that lie in another order than its memory, so that transpositions and reshapes around attention cost nothing.
//!
//! The memory is a list of *factors*, outermost first. An axis is a list of factors. A transposition exchanges axes, a reshape regroups
//! factors and splits some; both leave the memory as it is. An op that needs the axes in the order of memory asks for [`View::moves`].
//!
//! ```text
//! memory   tokens of one head after another:   [batch 2, tokens 5, heads 4, width 8]
//! axes     for a product per head:             [batch, heads, tokens, width]     = factors [0] [2] [1] [3]
//! reshaped to [2, 4, 40]:                      [batch, heads, tokens · width]    = factors [0] [2] [1, 3]
//! ```

/// Axes over the factors of a tensor's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Extents in the order of memory, each above 1.
    factors: Vec<usize>,
    /// The factors of every axis, outermost first; none where the extent is 1.
    axes: Vec<Vec<usize>>,
}

/// One exchange of neighbouring blocks: `[batch, rows, columns, inner]` becomes `[batch, columns, rows, inner]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub batch: usize,
    pub rows: usize,
    pub columns: usize,
    pub inner: usize,
}

impl View {
    /// Axes of these extents in the order of memory. Extents are at least 1.
    pub fn dense(dims: &[usize]) -> Self {
        let (mut factors, mut axes) = (Vec::new(), Vec::new());
        for &extent in dims {
            if extent > 1 {
                axes.push(vec![factors.len()]);
                factors.push(extent);
            } else {
                axes.push(Vec::new());
            }
        }
        Self { factors, axes }
    }

    /// Extents of the axes.
    pub fn dims(&self) -> Vec<usize> {
        let product =
            |axis: &Vec<usize>| axis.iter().fold(1usize, |n, &factor| n.saturating_mul(self.factors[factor]));
        self.axes.iter().map(product).collect()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.factors.iter().fold(1usize, |n, &factor| n.saturating_mul(factor))
    }

    /// The factors in the order of the axes.
    fn order(&self) -> impl Iterator<Item = usize> + '_ {
        self.axes.iter().flatten().copied()
    }

    /// Whether the axes lie in the order of memory.
    pub fn is_dense(&self) -> bool {
        self.order().eq(0..self.factors.len())
    }

    /// The axes in another order: axis `i` is the earlier axis `order[i]`.
    pub fn permuted(&self, order: &[usize]) -> Self {
        let axes = order.iter().map(|&axis| self.axes[axis].clone()).collect();
        Self { factors: self.factors.clone(), axes }
    }

    /// The two last axes exchanged, of which there are two at least.
    pub fn transposed(&self) -> Self {
        let mut view = self.clone();
        let rank = view.axes.len();
        view.axes.swap(rank - 2, rank - 1);
        view
    }

    /// Other extents of the same elements in the order of the axes; `None` if a new axis would end inside a factor that it does not divide.
    pub fn reshaped(&self, dims: &[usize]) -> Option<Self> {
        let mut factors = self.factors.clone();
        let mut pending: Vec<usize> = self.order().collect();
        pending.reverse();
        let mut axes: Vec<Vec<usize>> = Vec::with_capacity(dims.len());
        for &extent in dims {
            let mut need = extent;
            axes.push(Vec::new());
            while need > 1 {
                let factor = pending.pop()?;
                let size = factors[factor];
                if need.is_multiple_of(size) {
                    need /= size;
                } else if size.is_multiple_of(need) {
                    cut(&mut factors, factor, need);
                    let later = pending.iter_mut().chain(axes.iter_mut().flatten());
                    later.filter(|other| **other > factor).for_each(|other| *other += 1);
                    pending.push(factor + 1);
                    need = 1;
                } else {
                    return None;
                }
                axes.last_mut()?.push(factor);
            }
        }
        pending.is_empty().then_some(Self { factors, axes })
    }

    /// Extents before, of and behind these neighbouring axes in memory; `None` if something else lies between them or they lie in another order.
    pub fn run(&self, axes: &[usize]) -> Option<[usize; 3]> {
        let run: Vec<usize> = axes.iter().flat_map(|&axis| &self.axes[axis]).copied().collect();
        let Some(&first) = run.first() else { return Some([self.len(), 1, 1]) };
        let last = first + run.len();
        let product = |part: &[usize]| part.iter().product();
        run.iter().copied().eq(first..last).then(|| {
            [
                product(&self.factors[..first]),
                product(&self.factors[first..last]),
                product(&self.factors[last..]),
            ]
        })
    }

    /// The view of what is left of the memory if a part of this extent is taken of one axis, which is a [`run`](Self::run).
    pub fn narrowed(&self, axis: usize, extent: usize) -> Option<Self> {
        self.run(&[axis])?;
        let mut view = self.clone();
        let Some(&first) = self.axes[axis].first() else { return (extent == 1).then_some(view) };
        let count = self.axes[axis].len();
        let kept = usize::from(extent > 1);
        view.factors.splice(first..first + count, std::iter::repeat_n(extent, kept));
        view.axes[axis] = if kept == 1 { vec![first] } else { Vec::new() };
        let removed = count - kept;
        for (other, factors) in view.axes.iter_mut().enumerate() {
            if other != axis {
                factors.iter_mut().filter(|factor| **factor > first).for_each(|factor| *factor -= removed);
            }
        }
        Some(view)
    }

    /// The view with another extent of one axis, which is a [`run`](Self::run): of the results of a layer whose rows keep their order.
    pub fn narrowed_to(&self, axis: usize, extent: usize) -> Option<Self> {
        match self.axes[axis].is_empty() && extent > 1 {
            true => {
                // An axis of extent 1 has no place in memory. Results lie innermost.
                let mut view = self.clone();
                view.axes[axis].push(view.factors.len());
                view.factors.push(extent);
                Some(view)
            }
            false => self.narrowed(axis, extent),
        }
    }

    /// The extent of the outermost factor of an axis.
    pub fn first_factor(&self, axis: usize) -> usize {
        self.axes[axis].first().map_or(1, |&factor| self.factors[factor])
    }

    /// The exchanges that bring the memory into the order of the axes.
    pub fn moves(&self) -> Vec<Move> {
        let (mut now, target): (Vec<usize>, Vec<usize>) =
            ((0..self.factors.len()).collect(), self.order().collect());
        let product = |part: &[usize]| part.iter().map(|&factor| self.factors[factor]).product();
        let mut moves = Vec::new();
        for at in 0..target.len() {
            let Some(from) = now.iter().position(|&factor| factor == target[at]) else { continue };
            if from <= at {
                continue;
            }
            let together =
                now[from..].iter().zip(&target[at..]).take_while(|(now, target)| now == target).count();
            moves.push(Move {
                batch: product(&now[..at]),
                rows: product(&now[at..from]),
                columns: product(&now[from..from + together]),
                inner: product(&now[from + together..]),
            });
            now[at..from + together].rotate_left(from - at);
        }
        moves
    }

    /// Both views with their factors cut alike, if their axes of equal extents then lie in the same order of memory.
    pub fn aligned(&self, other: &Self) -> bool {
        let (mut a, mut b) = (self.clone(), other.clone());
        if a.dims() != b.dims() {
            return false;
        }
        for axis in 0..a.axes.len() {
            let mut at = 0;
            while at < a.axes[axis].len() && at < b.axes[axis].len() {
                let (left, right) = (a.axes[axis][at], b.axes[axis][at]);
                let (first, second) = (a.factors[left], b.factors[right]);
                if first > second && first.is_multiple_of(second) {
                    a.split(left, second);
                } else if second > first && second.is_multiple_of(first) {
                    b.split(right, first);
                } else if first != second {
                    return false;
                }
                at += 1;
            }
        }
        a.order().eq(b.order())
    }

    /// Cuts a factor into two.
    fn split(&mut self, factor: usize, first: usize) {
        cut(&mut self.factors, factor, first);
        for axis in &mut self.axes {
            axis.iter_mut().filter(|other| **other > factor).for_each(|other| *other += 1);
            if let Some(at) = axis.iter().position(|&other| other == factor) {
                axis.insert(at + 1, factor + 1);
            }
        }
    }
}

/// The order that brings axes in this order back.
pub fn inverse(order: &[usize]) -> Vec<usize> {
    let mut back: Vec<usize> = (0..order.len()).collect();
    back.sort_by_key(|&place| order[place]);
    back
}

/// Cuts a factor into one of this extent and the rest behind it.
fn cut(factors: &mut Vec<usize>, factor: usize, first: usize) {
    let rest = factors[factor] / first;
    factors.splice(factor..=factor, [first, rest]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The elements of `0..` in the order of the axes, by the definition.
    fn elements(view: &View) -> Vec<usize> {
        let mut strides = vec![1; view.factors.len()];
        for factor in (1..view.factors.len()).rev() {
            strides[factor - 1] = strides[factor] * view.factors[factor];
        }
        view.order().fold(vec![0], |found, factor| {
            let (steps, stride) = (0..view.factors[factor], strides[factor]);
            found.iter().flat_map(|at| steps.clone().map(move |step| at + step * stride)).collect()
        })
    }

    fn exchanged(x: &[usize], Move { batch, rows, columns, inner }: Move) -> Vec<usize> {
        let mut y = Vec::new();
        for n in 0..batch {
            for j in 0..columns {
                for i in 0..rows {
                    y.extend_from_slice(&x[((n * rows + i) * columns + j) * inner..][..inner]);
                }
            }
        }
        y
    }

    #[test]
    fn moves_bring_memory_into_the_order_of_the_axes() {
        let base = View::dense(&[2, 3, 1, 4, 5]);
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 0, 2, 4, 3], [3, 0, 2, 4, 1], [2, 4, 0, 3, 1]] {
            let view = base.permuted(&order);
            let mut memory: Vec<usize> = (0..view.len()).collect();
            for step in view.moves() {
                memory = exchanged(&memory, step);
            }
            assert_eq!(memory, elements(&view), "{order:?}");
            assert_eq!(view.is_dense(), view.moves().is_empty());
        }
    }

    #[test]
    fn reshapes_keep_the_elements_or_are_refused() {
        let view = View::dense(&[2, 5, 32]).permuted(&[1, 0, 2]);
        for dims in [&[5, 2, 4, 8][..], &[10, 32], &[5, 64], &[5, 1, 2, 2, 16], &[320], &[10, 1, 2, 4, 4]] {
            let other = view.reshaped(dims).unwrap();
            assert_eq!(other.dims(), dims);
            assert_eq!(elements(&other), elements(&view), "{dims:?}");
        }
        assert_eq!(view.reshaped(&[2, 160]), None, "2 does not divide 5");
        assert_eq!(view.reshaped(&[5, 32]), None, "fewer elements");
        // The way of attention: heads are split off, exchanged with tokens and joined again, all without a move.
        let heads = View::dense(&[2, 5, 32]).reshaped(&[2, 5, 4, 8]).unwrap().permuted(&[0, 2, 1, 3]);
        let joined = heads.permuted(&[0, 2, 1, 3]).reshaped(&[10, 32]).unwrap();
        assert!(joined.is_dense() && !heads.is_dense());
    }

    #[test]
    fn parts_of_an_axis_are_ranges_of_memory() {
        let view = View::dense(&[2, 5, 3, 4]).permuted(&[2, 1, 0, 3]);
        assert_eq!(view.run(&[0]), Some([10, 3, 4]));
        assert_eq!(view.run(&[2, 1]), Some([1, 10, 12]));
        assert_eq!(view.run(&[1, 2]), None);
        let first = view.narrowed(0, 1).unwrap();
        assert_eq!(first.dims(), [1, 5, 2, 4]);
        assert_eq!(elements(&first), elements(&View::dense(&[2, 5, 4]).permuted(&[1, 0, 2])));
        assert_eq!(view.narrowed(0, 2).unwrap().dims(), [2, 5, 2, 4]);
    }

    #[test]
    fn views_are_aligned_if_their_memory_has_one_order() {
        let rows = View::dense(&[2, 5, 32]).permuted(&[1, 0, 2]);
        let split = View::dense(&[2, 5, 4, 8]).permuted(&[1, 0, 2, 3]).reshaped(&[5, 2, 32]).unwrap();
        assert!(rows.aligned(&split) && split.aligned(&rows));
        assert!(!rows.aligned(&View::dense(&[5, 2, 32])));
        assert!(!View::dense(&[4]).aligned(&View::dense(&[2, 2])));
    }
}
