//! The slow twins of ops in groups, of products, of separate queries, keys and values, and of diffusion.

use elbowroom_graph::OpKind;
use elbowroom_graph::op::{GroupedConv, Products, Queries, Rotation};
use elbowroom_graph::philox::philox;

use super::{each_element, log_sum_exp, pairs, per_channel, zip};

pub fn pointwise(kind: &OpKind, x: &[&[f64]]) -> Vec<Vec<f64>> {
    match *kind {
        OpKind::Mul { .. } => vec![zip(x[0], x[1], |a, b| a * b)],
        OpKind::MulChannel(c) => {
            let mut y = x[0].to_vec();
            each_element(c, |channel, i| y[i] *= x[1][channel]);
            vec![y]
        }
        OpKind::MulChannelGrad(c) => vec![per_channel(c, |_, i| x[0][i] * x[1][i])],
        OpKind::SquaredError { factor, .. } => {
            let sum: f64 = zip(x[0], x[1], |a, b| (a - b).powi(2)).iter().sum();
            vec![vec![f64::from(factor) * sum]]
        }
        OpKind::SquaredErrorGrad { factor, .. } => {
            vec![zip(x[0], x[1], |a, b| 2.0 * f64::from(factor) * x[2][0] * (a - b))]
        }
        OpKind::Split { ref widths, .. } => {
            let total: usize = widths.iter().sum();
            let mut start = 0;
            let part = |&width: &usize| {
                let columns = start..start + width;
                start += width;
                x[0].chunks(total).flat_map(|row| row[columns.clone()].to_vec()).collect()
            };
            widths.iter().map(part).collect()
        }
        _ => panic!("{kind:?} is not pointwise"),
    }
}

pub fn matrices(kind: &OpKind, x: &[&[f64]]) -> Vec<Vec<f64>> {
    match *kind {
        OpKind::BatchedProduct(p) => {
            let Products { batch, rows, columns, depth, transposed } = p;
            let a = |n: usize, i: usize, k: usize| match transposed[0] {
                false => x[0][(n * rows + i) * depth + k],
                true => x[0][(n * depth + k) * rows + i],
            };
            let b = |n: usize, k: usize, j: usize| match transposed[1] {
                false => x[1][(n * depth + k) * columns + j],
                true => x[1][(n * columns + j) * depth + k],
            };
            let sum = |n: usize, i: usize, j: usize| (0..depth).map(|k| a(n, i, k) * b(n, k, j)).sum();
            let each = (0..batch).flat_map(|n| pairs([rows, columns]).map(move |(i, j)| (n, i, j)));
            vec![each.map(|(n, i, j)| sum(n, i, j)).collect()]
        }
        OpKind::Softmax { width, .. } => {
            let row = |row: &[f64]| {
                let sum = log_sum_exp(row);
                row.iter().map(|x| (x - sum).exp()).collect::<Vec<f64>>()
            };
            vec![x[0].chunks(width).flat_map(row).collect()]
        }
        OpKind::SoftmaxGrad { width, .. } => {
            let row = |(dy, y): (&[f64], &[f64])| {
                let sum: f64 = zip(dy, y, |dy, y| dy * y).iter().sum();
                zip(dy, y, |dy, y| y * (dy - sum))
            };
            vec![x[0].chunks(width).zip(x[1].chunks(width)).flat_map(row).collect()]
        }
        _ => panic!("{kind:?} is no product and no softmax"),
    }
}

/// Every pair of an input element and a weight that meet in an output element: `f(at_x, at_w, at_y)`.
fn taps(grouped: &GroupedConv, mut f: impl FnMut(usize, usize, usize)) {
    let GroupedConv { conv, groups, dilation } = *grouped;
    let [inputs, outputs] = [conv.in_channels / groups, conv.out_channels / groups];
    let window = conv.window;
    for (n, o) in pairs([conv.batch, conv.out_channels]) {
        for (c, (p, q)) in (0..inputs).flat_map(|c| pairs(conv.out_size).map(move |at| (c, at))) {
            for (i, j) in pairs(window.kernel) {
                let h = (p * window.stride[0] + i * dilation[0]).wrapping_sub(window.padding[0]);
                let w = (q * window.stride[1] + j * dilation[1]).wrapping_sub(window.padding[1]);
                if h < conv.in_size[0] && w < conv.in_size[1] {
                    let channel = o / outputs * inputs + c;
                    f(
                        ((n * conv.in_channels + channel) * conv.in_size[0] + h) * conv.in_size[1] + w,
                        ((o * inputs + c) * window.kernel[0] + i) * window.kernel[1] + j,
                        ((n * conv.out_channels + o) * conv.out_size[0] + p) * conv.out_size[1] + q,
                    );
                }
            }
        }
    }
}

pub fn convolution(kind: &OpKind, x: &[&[f64]]) -> Vec<Vec<f64>> {
    match *kind {
        OpKind::GroupedConv2d { conv, bias } => {
            let mut y = vec![0.0; conv.conv.y().len()];
            let plane = conv.conv.out_size[0] * conv.conv.out_size[1];
            if bias {
                y.iter_mut().enumerate().for_each(|(i, y)| *y = x[2][i / plane % conv.conv.out_channels]);
            }
            taps(&conv, |at_x, at_w, at_y| y[at_y] += x[0][at_x] * x[1][at_w]);
            vec![y]
        }
        OpKind::GroupedConv2dGradInput(conv) => {
            let mut dx = vec![0.0; conv.conv.x().len()];
            taps(&conv, |at_x, at_w, at_y| dx[at_x] += x[0][at_y] * x[1][at_w]);
            vec![dx]
        }
        OpKind::GroupedConv2dGradWeight(conv) => {
            let mut dw = vec![0.0; conv.w().len()];
            taps(&conv, |at_x, at_w, at_y| dw[at_w] += x[0][at_x] * x[1][at_y]);
            vec![dw]
        }
        _ => panic!("{kind:?} is no convolution"),
    }
}

pub fn normalization(kind: &OpKind, x: &[&[f64]]) -> Vec<Vec<f64>> {
    match *kind {
        OpKind::GroupNorm { groups, epsilon } => {
            let (c, m) = (groups.channels, groups.len() as f64);
            let (mut means, mut roots) = (Vec::new(), Vec::new());
            for group in x[0].chunks(groups.len()) {
                let mean = group.iter().sum::<f64>() / m;
                let variance = group.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / m;
                means.push(mean);
                roots.push(1.0 / (variance + f64::from(epsilon)).sqrt());
            }
            let mut y = vec![0.0; c.len()];
            each_element(c, |channel, i| {
                let group = i / groups.len();
                y[i] = x[1][channel] * (x[0][i] - means[group]) * roots[group] + x[2][channel];
            });
            vec![y, means, roots]
        }
        OpKind::GroupNormGrad(groups) => {
            let [dy, x, mean, root, gamma] = x else { panic!("five operands") };
            let (c, m) = (groups.channels, groups.len() as f64);
            let unit = |i: usize| (x[i] - mean[i / groups.len()]) * root[i / groups.len()];
            let (mut sums, mut products) = (vec![0.0; groups.count()], vec![0.0; groups.count()]);
            each_element(c, |channel, i| {
                sums[i / groups.len()] += dy[i] * gamma[channel] / m;
                products[i / groups.len()] += dy[i] * gamma[channel] * unit(i) / m;
            });
            let mut dx = vec![0.0; c.len()];
            each_element(c, |channel, i| {
                let group = i / groups.len();
                dx[i] = root[group] * (dy[i] * gamma[channel] - sums[group] - unit(i) * products[group]);
            });
            vec![dx, per_channel(c, |_, i| dy[i] * unit(i)), per_channel(c, |_, i| dy[i])]
        }
        OpKind::RmsNorm { width, epsilon, .. } => {
            let (mut y, mut roots) = (Vec::new(), Vec::new());
            for row in x[0].chunks(width) {
                let mean = row.iter().map(|x| x * x).sum::<f64>() / width as f64;
                let root = 1.0 / (mean + f64::from(epsilon)).sqrt();
                y.extend((0..width).map(|i| x[1][i] * row[i] * root));
                roots.push(root);
            }
            vec![y, roots]
        }
        OpKind::RmsNormGrad { rows, width } => {
            let [dy, x, root, gamma] = x else { panic!("four operands") };
            let (mut dx, mut scale) = (Vec::new(), vec![0.0; width]);
            for r in 0..rows {
                let g = |i: usize| dy[r * width + i] * gamma[i];
                let unit = |i: usize| x[r * width + i] * root[r];
                let product = (0..width).map(|i| g(i) * unit(i)).sum::<f64>() / width as f64;
                for i in 0..width {
                    dx.push(root[r] * (g(i) - unit(i) * product));
                    scale[i] += dy[r * width + i] * unit(i);
                }
            }
            vec![dx, scale]
        }
        _ => panic!("{kind:?} normalizes nothing"),
    }
}

/// Positions in `q`, `k` and `lse` of one head of one sequence.
struct Place {
    extents: Queries,
    n: usize,
    head: usize,
}

impl Place {
    fn all(extents: Queries) -> impl Iterator<Item = Self> {
        pairs([extents.batch, extents.heads]).map(move |(n, head)| Self { extents, n, head })
    }
    fn q(&self, token: usize, column: usize) -> usize {
        let Queries { queries, heads, width, .. } = self.extents;
        ((self.n * queries + token) * heads + self.head) * width + column
    }
    fn k(&self, token: usize, column: usize) -> usize {
        let Queries { keys, heads, shared, width, .. } = self.extents;
        ((self.n * keys + token) * shared + self.head * shared / heads) * width + column
    }
    fn lse(&self, token: usize) -> usize {
        (self.n * self.extents.heads + self.head) * self.extents.queries + token
    }
    fn score(&self, x: &[&[f64]], i: usize, j: usize) -> f64 {
        if self.extents.causal && j > i {
            return f64::NEG_INFINITY;
        }
        let dot: f64 = (0..self.extents.width).map(|c| x[0][self.q(i, c)] * x[1][self.k(j, c)]).sum();
        dot / (self.extents.width as f64).sqrt()
    }
}

pub fn attention(extents: Queries, x: &[&[f64]]) -> Vec<Vec<f64>> {
    let (mut y, mut lse) = (vec![0.0; extents.q().len()], vec![0.0; extents.lse().len()]);
    for place in Place::all(extents) {
        for i in 0..extents.queries {
            let scores: Vec<f64> = (0..extents.keys).map(|j| place.score(x, i, j)).collect();
            let total = log_sum_exp(&scores);
            lse[place.lse(i)] = total;
            for (j, c) in pairs([extents.keys, extents.width]) {
                y[place.q(i, c)] += (scores[j] - total).exp() * x[2][place.k(j, c)];
            }
        }
    }
    vec![y, lse]
}

pub fn attention_grad(extents: Queries, x: &[&[f64]]) -> Vec<Vec<f64>> {
    let [q, k, v, y, lse, dy] = x else { panic!("six operands") };
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for place in Place::all(extents) {
        for (i, j) in pairs([extents.queries, extents.keys]) {
            let p = (place.score(x, i, j) - lse[place.lse(i)]).exp();
            let columns = 0..extents.width;
            let delta: f64 = columns.clone().map(|c| dy[place.q(i, c)] * y[place.q(i, c)]).sum();
            let dp: f64 = columns.clone().map(|c| dy[place.q(i, c)] * v[place.k(j, c)]).sum();
            let ds = p * (dp - delta) / (extents.width as f64).sqrt();
            for c in columns {
                dv[place.k(j, c)] += p * dy[place.q(i, c)];
                dq[place.q(i, c)] += ds * k[place.k(j, c)];
                dk[place.k(j, c)] += ds * q[place.q(i, c)];
            }
        }
    }
    vec![dq, dk, dv]
}

pub fn rotary(rotation: Rotation, x: &[f64]) -> Vec<Vec<f64>> {
    let Rotation { tokens, heads, width, base, back, .. } = rotation;
    let mut y = x.to_vec();
    for (i, y) in y.iter_mut().enumerate() {
        let (token, column, half) = (i / (heads * width) % tokens, i % width, width / 2);
        let exponent = -2.0 * (column % half) as f64 / width as f64;
        let angle = token as f64 * f64::from(base).powf(exponent) * if back { -1.0 } else { 1.0 };
        let (other, sign) = if column < half { (i + half, -1.0) } else { (i - half, 1.0) };
        *y = x[i] * angle.cos() + sign * x[other] * angle.sin();
    }
    vec![y]
}

pub fn diffusion(kind: &OpKind, x: &[&[f64]], seed: u64, iteration: u64) -> Vec<Vec<f64>> {
    let word = |stream: u32, i: usize| {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let [low, high] = halves(iteration);
        f64::from(philox([(i / 4) as u32, stream, low, high], halves(seed))[i % 4])
    };
    match *kind {
        OpKind::Noise { len, stream } => {
            let unit = |i: usize| (word(stream, i) + 0.5) / 4_294_967_296.0;
            let normal = |i: usize| {
                let (radius, angle) =
                    ((-2.0 * unit(i & !1).ln()).sqrt(), std::f64::consts::TAU * unit(i | 1));
                radius * if i.is_multiple_of(2) { angle.cos() } else { angle.sin() }
            };
            vec![(0..len).map(normal).collect()]
        }
        OpKind::RandomSteps { rows, steps, stream } => {
            vec![(0..rows).map(|i| (word(stream, i) * steps as f64 / 4_294_967_296.0).floor()).collect()]
        }
        OpKind::Diffuse(extents) => {
            let kept = |t: f64| -> f64 {
                let last = extents.steps as f64 - 1.0;
                let beta = |s: usize| 1e-4 + (0.02 - 1e-4) * s as f64 / last.max(1.0);
                (0..=t.clamp(0.0, last) as usize).map(|s| 1.0 - beta(s)).product()
            };
            let mixed = |i: usize| {
                let kept = kept(x[2][i / extents.size]);
                kept.sqrt() * x[0][i] + (1.0 - kept).sqrt() * x[1][i]
            };
            vec![(0..x[0].len()).map(mixed).collect()]
        }
        OpKind::Sinusoid { rows, width } => {
            let half = width / 2;
            let value = |(r, i): (usize, usize)| {
                let angle = x[0][r] * 10_000f64.powf(-((i % half) as f64) / half as f64);
                if i < half { angle.cos() } else { angle.sin() }
            };
            vec![pairs([rows, width]).map(value).collect()]
        }
        _ => panic!("{kind:?} has no part in diffusion"),
    }
}
