//! The network: structure2vec states of nodes, the graph's state, and the value of an action (equations 1 to 3), with derivatives.
//!
//! ```text
//! s_v(t+1) = ReLU(W1 x_v + W2 Σ_{u∈N(v)} s_u(t) + W3 Σ_{u∈N(v)} ReLU(W4 w(u,v)))     s_v(0) = 0, t < T      (1)
//! g        = [W5 Σ_u s_u(T), W6 s_c(T)]                                                                    (2)
//! Q(g, a)  = W7 ReLU([g, W8 s_a(T)])                                                                       (3)
//! ```
//!
//! Weights of edges are times and not negative, so ReLU(W4 w) = w ReLU(W4), and the last sum of equation 1 is one number per node times
//! a row that all nodes share. Of the features only the last, whether the node's action is still valid, changes within an episode; so
//! all but one column of W1 x and all of the last term are computed once per set of weights (`Fixed`), and what is left per state
//! are T − 1 products with W2. Vectors are rows here and matrices stand to their right, which transposes the paper's.

use crate::nodes::{FEATURES, Nodes};
use elbowroom_sched::random::Random;

/// Names of the parameters in files, with what they are in the paper.
pub const NAMES: [&str; 8] = ["w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8"];

/// The parameters, or something of their form: a gradient, a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    hidden: usize,
    /// W1 (6 × p), W2 and W3 (p × p), W4 (p), W5 and W6 (p × p), W7 (3p), W8 (p × p).
    pub(crate) parts: [Vec<f32>; 8],
}

impl Weights {
    /// Rows and columns of every parameter.
    pub fn shapes(hidden: usize) -> [[usize; 2]; 8] {
        let (p, square) = (hidden, [hidden, hidden]);
        [[FEATURES, p], square, square, [1, p], square, square, [1, 3 * p], square]
    }

    /// All zero.
    pub(crate) fn zero(hidden: usize) -> Self {
        Self { hidden, parts: Self::shapes(hidden).map(|[rows, columns]| vec![0.0; rows * columns]) }
    }

    /// Drawn evenly so that states keep their size from round to round (K. He et al., 2015).
    pub(crate) fn random(hidden: usize, random: &mut Random) -> Self {
        let mut weights = Self::zero(hidden);
        for (part, [rows, _]) in weights.parts.iter_mut().zip(Self::shapes(hidden)) {
            let bound = (3.0 / rows.max(1) as f64).sqrt();
            part.iter_mut().for_each(|w| *w = ((2.0 * random.unit() - 1.0) * bound) as f32);
        }
        // The last row starts small: at first no action seems better than another by much.
        let bound = (3.0 / (3 * hidden) as f64).sqrt();
        weights.parts[6].iter_mut().for_each(|w| *w = ((2.0 * random.unit() - 1.0) * bound) as f32);
        weights
    }

    /// From the values of every parameter; `None` unless each has the length of [`shapes`](Self::shapes).
    pub(crate) fn of(hidden: usize, parts: [Vec<f32>; 8]) -> Option<Self> {
        let fits = parts.iter().zip(Self::shapes(hidden)).all(|(part, [r, c])| part.len() == r * c);
        fits.then_some(Self { hidden, parts })
    }

    /// p.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// The values of every parameter, row by row, in the order of [`NAMES`].
    pub fn parts(&self) -> &[Vec<f32>; 8] {
        &self.parts
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (into, from) in self.parts.iter_mut().zip(&other.parts) {
            into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
        }
    }
}

/// The part of equation 1 that depends on the weights and the trace, and not on the state.
pub(crate) struct Fixed {
    /// W1 x_v without its last feature, plus the term of the edges; row by row.
    base: Vec<f32>,
}

/// The states of all nodes after every round, for one state of the environment.
#[derive(Debug, PartialEq)]
pub(crate) struct Embedding {
    /// s(1) … s(T).
    states: Vec<Vec<f32>>,
    /// The neighbour sums that rounds 2 … T took in.
    sums: Vec<Vec<f32>>,
    /// Sum of s(T) over the nodes ÷ their number: so that a network keeps its scale from one trace to another. With sums as in the paper, the sum.
    mean: Vec<f32>,
}

/// A node under execution, an action's node, and how the loss changes with the value of that action there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub at: u32,
    pub action: u32,
    pub slope: f32,
}

/// The features of all nodes: the same network sees another graph through other features.
pub(crate) struct Sight<'a> {
    pub nodes: &'a Nodes,
    /// Rows of [`FEATURES`]; the last feature is not used.
    pub features: &'a [f32],
    pub rounds: usize,
}

impl Sight<'_> {
    /// Computes what does not depend on the state.
    pub(crate) fn fix(&self, weights: &Weights) -> Fixed {
        let p = weights.hidden;
        let [w1, _, w3, w4, ..] = &weights.parts;
        let mut edge = vec![0.0; p];
        product(&w4.iter().map(|w| w.max(0.0)).collect::<Vec<_>>(), w3, p, &mut edge);
        let mut base = vec![0.0; self.nodes.len() * p];
        for (v, row) in base.chunks_exact_mut(p).enumerate() {
            let features = &self.features[v * FEATURES..][..FEATURES - 1];
            for (x, w) in features.iter().zip(w1.chunks_exact(p)) {
                axpy(*x, w, row);
            }
            axpy(self.nodes.weights[v], &edge, row);
        }
        Fixed { base }
    }

    /// Equation 1, all rounds. `valid` is the last feature of every node.
    pub(crate) fn embed(&self, weights: &Weights, fixed: &Fixed, valid: &[f32]) -> Embedding {
        let p = weights.hidden;
        let column = &weights.parts[0][(FEATURES - 1) * p..];
        let mut base = fixed.base.clone();
        for (row, &valid) in base.chunks_exact_mut(p).zip(valid) {
            axpy(valid, column, row);
        }
        let (mut states, mut sums) = (Vec::<Vec<f32>>::with_capacity(self.rounds), Vec::new());
        for round in 0..self.rounds {
            let mut state = base.clone();
            if let Some(before) = states.last() {
                let mut sum = vec![0.0; state.len()];
                self.nodes.gather(before, p, &mut sum);
                product(&sum, &weights.parts[1], p, &mut state);
                sums.push(sum);
            }
            // The last round's base is not needed again.
            if round + 1 == self.rounds {
                base = Vec::new();
            }
            state.iter_mut().for_each(|s| *s = s.max(0.0));
            states.push(state);
        }
        let mut embedding = Embedding { states, sums, mean: vec![0.0; p] };
        self.average(weights, &mut embedding);
        embedding
    }

    /// Takes the mean of the last round again.
    pub(crate) fn average(&self, weights: &Weights, embedding: &mut Embedding) {
        let Embedding { states, mean, .. } = embedding;
        mean.fill(0.0);
        let last = states.last().map_or(&[][..], Vec::as_slice);
        let share = self.nodes.share;
        last.chunks_exact(weights.hidden).for_each(|row| axpy(share, row, mean));
    }

    /// Computes one node's state after one round again, from those after the round before; returns whether it is another now.
    pub(crate) fn renew(
        &self,
        weights: &Weights,
        fixed: &Fixed,
        embedding: &mut Embedding,
        round: usize,
        (v, valid): (u32, f32),
    ) -> bool {
        let p = weights.hidden;
        let row = v as usize * p..(v as usize + 1) * p;
        let mut state = fixed.base[row.clone()].to_vec();
        axpy(valid, &weights.parts[0][(FEATURES - 1) * p..], &mut state);
        if round > 0 {
            let sum = &mut embedding.sums[round - 1][row.clone()];
            self.nodes.gather_one(&embedding.states[round - 1], v, sum);
            product(sum, &weights.parts[1], p, &mut state);
        }
        state.iter_mut().for_each(|s| *s = s.max(0.0));
        let known = &mut embedding.states[round][row];
        let moved = known != state;
        known.copy_from_slice(&state);
        moved
    }

    /// Equations 2 and 3: the value of an action node while a node is under execution.
    pub(crate) fn value(&self, weights: &Weights, embedding: &Embedding, at: u32, action: u32) -> f32 {
        let head = self.head(weights, embedding, at, action);
        head.iter().zip(&weights.parts[6]).map(|(h, w)| h.max(0.0) * w).sum()
    }

    /// [W5 Σ s, W6 s_c, W8 s_a].
    fn head(&self, weights: &Weights, embedding: &Embedding, at: u32, action: u32) -> Vec<f32> {
        let p = weights.hidden;
        let mut head = vec![0.0; 3 * p];
        for (part, (row, w)) in head.chunks_exact_mut(p).zip(self.inputs(weights, embedding, at, action)) {
            product(row, w, p, part);
        }
        head
    }

    /// The three rows that the head reads, each with its matrix.
    fn inputs<'e>(
        &self,
        weights: &'e Weights,
        embedding: &'e Embedding,
        at: u32,
        action: u32,
    ) -> [(&'e [f32], &'e [f32]); 3] {
        let p = weights.hidden;
        let [.., w5, w6, _, w8] = &weights.parts;
        let last = embedding.states.last().map_or(&[][..], Vec::as_slice);
        let row = |v: u32| &last[v as usize * p..][..p];
        [(embedding.mean.as_slice(), w5), (row(at), w6), (row(action), w8)]
    }

    /// Adds to a gradient what slopes of the values of these actions contribute: one pass through the rounds for all of them.
    pub(crate) fn derive(
        &self,
        weights: &Weights,
        embedding: &Embedding,
        valid: &[f32],
        points: &[Point],
        gradient: &mut Weights,
    ) {
        let mut slopes = vec![0.0; self.nodes.len() * weights.hidden];
        let mut mean = vec![0.0; weights.hidden];
        for point in points {
            self.derive_head(weights, embedding, point, (&mut slopes, &mut mean), gradient);
        }
        let share = self.nodes.share;
        slopes.chunks_exact_mut(weights.hidden).for_each(|row| axpy(share, &mean, row));
        self.derive_rounds(weights, embedding, valid, slopes, gradient);
    }

    /// The part of the head: adds to the slopes of s(T), and of its mean.
    fn derive_head(
        &self,
        weights: &Weights,
        embedding: &Embedding,
        &Point { at, action, slope }: &Point,
        (slopes, whole): (&mut [f32], &mut [f32]),
        gradient: &mut Weights,
    ) {
        let p = weights.hidden;
        let mut head = self.head(weights, embedding, at, action);
        for (h, g) in head.iter().zip(&mut gradient.parts[6]) {
            *g += slope * h.max(0.0);
        }
        for (h, w) in head.iter_mut().zip(&weights.parts[6]) {
            *h = if *h > 0.0 { slope * w } else { 0.0 };
        }
        let inputs = self.inputs(weights, embedding, at, action);
        let mut rows: [Vec<f32>; 3] = std::array::from_fn(|_| vec![0.0; p]);
        for (slot, ((input, w), head)) in inputs.into_iter().zip(head.chunks_exact(p)).enumerate() {
            outer(input, head, p, &mut gradient.parts[[4, 5, 7][slot]]);
            product_transposed(head, w, p, &mut rows[slot]);
        }
        let [mean, current, chosen] = &rows;
        axpy(1.0, mean, whole);
        axpy(1.0, current, &mut slopes[at as usize * p..][..p]);
        axpy(1.0, chosen, &mut slopes[action as usize * p..][..p]);
    }

    /// From slopes of s(T) through all rounds.
    fn derive_rounds(
        &self,
        weights: &Weights,
        embedding: &Embedding,
        valid: &[f32],
        mut slopes: Vec<f32>,
        gradient: &mut Weights,
    ) {
        let p = weights.hidden;
        let mut base = vec![0.0; slopes.len()];
        let mut back = vec![0.0; slopes.len()];
        for round in (0..self.rounds).rev() {
            for ((slope, state), base) in slopes.iter_mut().zip(&embedding.states[round]).zip(&mut base) {
                if *state > 0.0 {
                    *base += *slope;
                } else {
                    *slope = 0.0;
                }
            }
            if round > 0 {
                outer(&embedding.sums[round - 1], &slopes, p, &mut gradient.parts[1]);
                back.fill(0.0);
                product_transposed(&slopes, &weights.parts[1], p, &mut back);
                self.nodes.gather(&back, p, &mut slopes);
            }
        }
        let mut features = self.features.to_vec();
        features.chunks_exact_mut(FEATURES).zip(valid).for_each(|(row, &valid)| row[FEATURES - 1] = valid);
        outer(&features, &base, p, &mut gradient.parts[0]);
        let mut edge = vec![0.0; p];
        outer(&self.nodes.weights, &base, p, &mut edge);
        let relu: Vec<f32> = weights.parts[3].iter().map(|w| w.max(0.0)).collect();
        outer(&relu, &edge, p, &mut gradient.parts[2]);
        let mut slope = vec![0.0; p];
        product_transposed(&edge, &weights.parts[2], p, &mut slope);
        for ((g, slope), w) in gradient.parts[3].iter_mut().zip(slope).zip(&weights.parts[3]) {
            *g += if *w > 0.0 { slope } else { 0.0 };
        }
    }
}

fn axpy(factor: f32, row: &[f32], into: &mut [f32]) {
    into.iter_mut().zip(row).for_each(|(into, row)| *into += factor * row);
}

/// Adds to `out` the rows of `left` (any number of columns) times `right`, whose rows have `width` columns.
fn product(left: &[f32], right: &[f32], width: usize, out: &mut [f32]) {
    match width {
        8 => product_by::<8>(left, right, out),
        16 => product_by::<16>(left, right, out),
        32 => product_by::<32>(left, right, out),
        _ => {
            let inner = right.len() / width;
            for (row, out) in left.chunks_exact(inner).zip(out.chunks_exact_mut(width)) {
                row.iter().zip(right.chunks_exact(width)).for_each(|(x, w)| axpy(*x, w, out));
            }
        }
    }
}

/// The same with the width known, so that a row of the result stays in registers.
fn product_by<const WIDTH: usize>(left: &[f32], right: &[f32], out: &mut [f32]) {
    let right = right.as_chunks::<WIDTH>().0;
    for (row, out) in left.chunks_exact(right.len()).zip(out.as_chunks_mut::<WIDTH>().0) {
        let mut sums = *out;
        for (x, w) in row.iter().zip(right) {
            for i in 0..WIDTH {
                sums[i] += x * w[i];
            }
        }
        *out = sums;
    }
}

/// Adds to `out` the rows of `left`, of `width` columns, times the transpose of the square matrix `right`.
fn product_transposed(left: &[f32], right: &[f32], width: usize, out: &mut [f32]) {
    let mut transposed = vec![0.0; right.len()];
    for (i, row) in right.chunks_exact(width).enumerate() {
        row.iter().enumerate().for_each(|(j, &w)| transposed[j * width + i] = w);
    }
    product(left, &transposed, width, out);
}

/// Adds to `out` the transpose of `left` times `right`: the sum over rows of their outer products.
fn outer(left: &[f32], right: &[f32], width: usize, out: &mut [f32]) {
    match width {
        8 => outer_by::<8>(left, right, out),
        16 => outer_by::<16>(left, right, out),
        32 => outer_by::<32>(left, right, out),
        _ => {
            let inner = out.len() / width;
            for (left, right) in left.chunks_exact(inner).zip(right.chunks_exact(width)) {
                left.iter().zip(out.chunks_exact_mut(width)).for_each(|(x, out)| axpy(*x, right, out));
            }
        }
    }
}

/// The same with the width known. Each row of the result stays in registers while all of `right` goes by; the sums are the same.
fn outer_by<const WIDTH: usize>(left: &[f32], right: &[f32], out: &mut [f32]) {
    let right = right.as_chunks::<WIDTH>().0;
    let out = out.as_chunks_mut::<WIDTH>().0;
    let inner = out.len();
    for (column, out) in out.iter_mut().enumerate() {
        let mut sums = *out;
        for (left, row) in left.chunks_exact(inner).zip(right) {
            let x = left[column];
            for i in 0..WIDTH {
                sums[i] += x * row[i];
            }
        }
        *out = sums;
    }
}

/// Steps against a gradient whose norm is held to a bound: Adam (D. Kingma and J. Ba, 2015), or plain stochastic gradient descent.
pub(crate) struct Optimizer {
    /// The means of Adam.
    moments: Option<Moments>,
}

struct Moments {
    mean: Weights,
    square: Weights,
    steps: i32,
}

impl Optimizer {
    const MEAN: f32 = 0.9;
    const SQUARE: f32 = 0.999;

    pub(crate) fn new(hidden: usize, plain: bool) -> Self {
        let zero = || Weights::zero(hidden);
        Self { moments: (!plain).then(|| Moments { mean: zero(), square: zero(), steps: 0 }) }
    }

    pub(crate) fn step(&mut self, weights: &mut Weights, gradient: &Weights, rate: f32, clip: f32) {
        let squares = gradient.parts.iter().flatten().map(|g| f64::from(*g).powi(2));
        let norm = squares.sum::<f64>().sqrt() as f32;
        if !norm.is_finite() {
            return;
        }
        let scale = if norm > clip { clip / norm } else { 1.0 };
        let Some(Moments { mean, square, steps }) = &mut self.moments else {
            for (into, g) in weights.parts.iter_mut().flatten().zip(gradient.parts.iter().flatten()) {
                *into -= rate * scale * g;
            }
            return;
        };
        *steps = steps.saturating_add(1);
        let (mean_part, square_part) = (1.0 - Self::MEAN.powi(*steps), 1.0 - Self::SQUARE.powi(*steps));
        for part in 0..weights.parts.len() {
            let moments = mean.parts[part].iter_mut().zip(&mut square.parts[part]);
            let pairs = weights.parts[part].iter_mut().zip(&gradient.parts[part]);
            for ((w, g), (mean, square)) in pairs.zip(moments) {
                let g = g * scale;
                *mean += (1.0 - Self::MEAN) * (g - *mean);
                *square += (1.0 - Self::SQUARE) * (g * g - *square);
                *w -= rate * (*mean / mean_part) / ((*square / square_part).sqrt() + 1e-8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::TensorId;

    use super::*;
    use crate::nodes::{Kind, Node};

    fn graph() -> Nodes {
        let values = [0u32, 1, 0, 2, 1, 3, 2, 0, 1];
        let nodes = values.iter().enumerate().map(|(i, &value)| Node {
            kind: Kind::Read,
            value: TensorId(value),
            place: i as u32,
            time: 3 * i as u64,
        });
        Nodes::connect(nodes.collect(), 4)
    }

    #[test]
    fn derivatives_agree_with_differences() {
        for hidden in [5, 8] {
            let nodes = graph();
            let mut random = Random::new(3);
            let features: Vec<f32> = (0..nodes.len() * FEATURES).map(|_| random.unit() as f32).collect();
            let valid: Vec<f32> = (0..nodes.len()).map(|v| (v % 2) as f32).collect();
            let sight = Sight { nodes: &nodes, features: &features, rounds: 3 };
            let weights = Weights::random(hidden, &mut random);
            let value = |weights: &Weights| {
                let fixed = sight.fix(weights);
                let embedding = sight.embed(weights, &fixed, &valid);
                0.6 * sight.value(weights, &embedding, 4, 2) - 0.4 * sight.value(weights, &embedding, 1, 5)
            };
            let point = |at, action, slope| Point { at, action, slope };
            let mut gradient = Weights::zero(hidden);
            let embedding = sight.embed(&weights, &sight.fix(&weights), &valid);
            sight.derive(&weights, &embedding, &valid, &[point(4, 2, 0.6), point(1, 5, -0.4)], &mut gradient);
            let mut moving = 0;
            for part in 0..weights.parts.len() {
                for index in 0..weights.parts[part].len() {
                    let moved = |by: f32| {
                        let mut weights = weights.clone();
                        weights.parts[part][index] += by;
                        value(&weights)
                    };
                    let (step, found) = (2e-3, gradient.parts[part][index]);
                    let difference = (moved(step) - moved(-step)) / (2.0 * step);
                    // If a ReLU has its kink between the two points, the difference is not the derivative.
                    let (up, down) = (moved(step) - value(&weights), value(&weights) - moved(-step));
                    if (up - down).abs() < 1e-4 {
                        let error = (difference - found).abs();
                        assert!(error < 2e-3 + 2e-2 * found.abs(), "w{}[{index}]: {found}", part + 1);
                        moving += usize::from(found.abs() > 1e-3);
                    }
                }
            }
            assert!(moving > 25, "only {moving} weights mattered");
        }
    }

    #[test]
    fn a_small_network_learns_a_target() {
        let nodes = graph();
        let mut random = Random::new(1);
        let features: Vec<f32> = (0..nodes.len() * FEATURES).map(|_| random.unit() as f32).collect();
        let valid = vec![1.0; nodes.len()];
        let sight = Sight { nodes: &nodes, features: &features, rounds: 4 };
        let mut weights = Weights::random(8, &mut random);
        let mut adam = Optimizer::new(8, false);
        let wanted = [(0, 0.5), (3, -1.0), (6, 0.25)];
        let mut loss = f32::INFINITY;
        for _ in 0..400 {
            let mut gradient = Weights::zero(8);
            let embedding = sight.embed(&weights, &sight.fix(&weights), &valid);
            loss = 0.0;
            for (action, target) in wanted {
                let error = sight.value(&weights, &embedding, 1, action) - target;
                loss += error * error;
                let point = Point { at: 1, action, slope: error };
                sight.derive(&weights, &embedding, &valid, &[point], &mut gradient);
            }
            adam.step(&mut weights, &gradient, 1e-2, 1.0);
        }
        assert!(loss < 1e-3, "{loss}");
    }
}
