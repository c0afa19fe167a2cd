//! Every operation once more, in `f64` and as its definition reads: slow, obvious loops without blocks, threads or workspace.

mod groups;

use elbowroom_graph::OpKind;
use elbowroom_graph::op::{Channels, Classification, Conv, Function, Heads, Lookup, Pool, Product, Response};

/// The results of an operation. Integers are given and returned as `f64` as well.
pub fn twin(kind: &OpKind, x: &[&[f64]], seed: u64, iteration: u64) -> Vec<Vec<f64>> {
    match *kind {
        OpKind::Mixed(_) => panic!("its results are those of its formula, rounded"),
        OpKind::Input { .. } => panic!("inputs come from the host"),
        OpKind::Output { .. } => Vec::new(),
        OpKind::Fill { len, value } => vec![vec![f64::from(value); len]],
        OpKind::Add { .. } | OpKind::Accumulate { .. } => vec![zip(x[0], x[1], |a, b| a + b)],
        OpKind::ScaleBy { .. } => vec![x[0].iter().map(|value| x[1][0] * value).collect()],
        OpKind::ClipFactor { max_norm } => {
            vec![vec![(f64::from(max_norm) / (x[0][0].sqrt() + 1e-6)).min(1.0)]]
        }
        OpKind::Scale { factor, .. } => vec![x[0].iter().map(|x| f64::from(factor) * x).collect()],
        OpKind::AddRow { inner, .. } => {
            vec![x[0].iter().enumerate().map(|(i, a)| a + x[1][i % inner]).collect()]
        }
        OpKind::Map { function, .. } => vec![x[0].iter().map(|&x| apply(function, x)).collect()],
        OpKind::MapGrad { function, .. } => vec![zip(x[0], x[1], |dy, s| dy * slope(function, s))],
        OpKind::Dropout(mask) => {
            let dropped = |i: usize| mask.dropped((i / 4) as u32, seed, iteration)[i % 4];
            let scaled = |(i, x): (usize, &f64)| if dropped(i) { 0.0 } else { f64::from(mask.scale) * x };
            vec![x[0].iter().enumerate().map(scaled).collect()]
        }
        OpKind::Conv2d { conv, bias } => {
            let mut y = vec![0.0; conv.y().len()];
            let plane = conv.out_size[0] * conv.out_size[1];
            if bias {
                y.iter_mut().enumerate().for_each(|(i, y)| *y = x[2][i / plane % conv.out_channels]);
            }
            taps(&conv, |at_x, at_w, at_y| y[at_y] += x[0][at_x] * x[1][at_w]);
            vec![y]
        }
        OpKind::Conv2dGradInput(conv) => {
            let mut dx = vec![0.0; conv.x().len()];
            taps(&conv, |at_x, at_w, at_y| dx[at_x] += x[0][at_y] * x[1][at_w]);
            vec![dx]
        }
        OpKind::Conv2dGradInputTile { conv, .. } => {
            let mut dx = x[2].to_vec();
            taps(&conv, |at_x, at_w, at_y| dx[at_x] += x[0][at_y] * x[1][at_w]);
            vec![dx]
        }
        OpKind::Conv2dGradWeight(conv) => {
            let mut dw = vec![0.0; conv.w().len()];
            taps(&conv, |at_x, at_w, at_y| dw[at_w] += x[0][at_x] * x[1][at_y]);
            vec![dw]
        }
        OpKind::BiasGrad(c) => vec![per_channel(c, |_, i| x[0][i])],
        OpKind::BatchNorm { channels: c, epsilon } => {
            let m = c.per_channel() as f64;
            let mean = per_channel(c, |_, i| x[0][i] / m);
            let variance = per_channel(c, |ch, i| (x[0][i] - mean[ch]).powi(2) / m);
            vec![normalize(c, x[0], &mean, &variance, (x[1], x[2]), epsilon), mean, variance]
        }
        OpKind::BatchNormGrad { channels: c, epsilon } => {
            let [dy, x, mean, variance, gamma] = x else { panic!("five operands") };
            let m = c.per_channel() as f64;
            let root = |ch: usize| 1.0 / (variance[ch] + f64::from(epsilon)).sqrt();
            let unit = |ch: usize, i: usize| (x[i] - mean[ch]) * root(ch);
            let beta = per_channel(c, |_, i| dy[i]);
            let scale = per_channel(c, |ch, i| dy[i] * unit(ch, i));
            let mut dx = vec![0.0; c.len()];
            each_element(c, |ch, i| {
                dx[i] = gamma[ch] * root(ch) * (dy[i] - beta[ch] / m - unit(ch, i) * scale[ch] / m)
            });
            vec![dx, scale, beta]
        }
        OpKind::RunningUpdate { count, momentum, .. } => {
            let u = f64::from(momentum);
            let unbiased = if count > 1 { count as f64 / (count - 1) as f64 } else { 1.0 };
            let mean = zip(x[0], x[2], |new, old| (1.0 - u) * old + u * new);
            vec![mean, zip(x[1], x[3], |new, old| (1.0 - u) * old + u * new * unbiased)]
        }
        OpKind::BatchNormInference { channels: c, epsilon } => {
            vec![normalize(c, x[0], x[3], x[4], (x[1], x[2]), epsilon)]
        }
        OpKind::LayerNorm { width, epsilon, .. } => {
            let (mut y, mut means, mut roots) = (Vec::new(), Vec::new(), Vec::new());
            for row in x[0].chunks(width) {
                let mean = row.iter().sum::<f64>() / width as f64;
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                let root = 1.0 / (variance + f64::from(epsilon)).sqrt();
                y.extend((0..width).map(|i| x[1][i] * (row[i] - mean) * root + x[2][i]));
                means.push(mean);
                roots.push(root);
            }
            vec![y, means, roots]
        }
        OpKind::LayerNormGrad { rows, width } => {
            let [dy, x, mean, root, gamma] = x else { panic!("five operands") };
            let unit = |r: usize, i: usize| (x[r * width + i] - mean[r]) * root[r];
            let (mut dx, mut scale, mut beta) = (Vec::new(), vec![0.0; width], vec![0.0; width]);
            for r in 0..rows {
                let g = |i: usize| dy[r * width + i] * gamma[i];
                let sum = (0..width).map(g).sum::<f64>() / width as f64;
                let product = (0..width).map(|i| g(i) * unit(r, i)).sum::<f64>() / width as f64;
                for i in 0..width {
                    dx.push(root[r] * (g(i) - sum - unit(r, i) * product));
                    beta[i] += dy[r * width + i];
                    scale[i] += dy[r * width + i] * unit(r, i);
                }
            }
            vec![dx, scale, beta]
        }
        OpKind::AddChannel(c) => {
            let mut y = x[0].to_vec();
            each_element(c, |channel, i| y[i] += x[1][channel]);
            vec![y]
        }
        OpKind::Sum { factor, .. } => vec![vec![f64::from(factor) * x[0].iter().sum::<f64>()]],
        OpKind::ResponseNorm(r) => {
            let mut scale = vec![f64::from(r.k); r.channels.len()];
            neighbours(r, |i, other| scale[i] += f64::from(r.alpha) * x[0][other].powi(2));
            vec![zip(x[0], &scale, |x, scale| x * scale.powf(-f64::from(r.beta))), scale]
        }
        OpKind::ResponseNormGrad(r) => {
            let [dy, x, scale] = x else { panic!("three operands") };
            let (alpha, beta) = (f64::from(r.alpha), f64::from(r.beta));
            let mut dx = zip(dy, scale, |dy, scale| dy * scale.powf(-beta));
            neighbours(r, |i, other| {
                let term = dy[other] * x[other] * scale[other].powf(-beta - 1.0);
                dx[i] -= 2.0 * alpha * beta * x[i] * term;
            });
            vec![dx]
        }
        OpKind::MaxPool(pool) => {
            let mut best: Vec<Option<(f64, usize)>> = vec![None; pool.y().len()];
            windows(&pool, |at_x, at_y, at| {
                if best[at_y].is_none_or(|(largest, _)| x[0][at_x] > largest) {
                    best[at_y] = Some((x[0][at_x], at));
                }
            });
            let best = best.into_iter().map(|best| best.expect("every window touches the input"));
            let (y, at): (Vec<f64>, Vec<usize>) = best.unzip();
            vec![y, at.into_iter().map(|at| at as f64).collect()]
        }
        OpKind::MaxPoolGrad(pool) => {
            let mut dx = vec![0.0; pool.x().len()];
            windows(&pool, |at_x, at_y, at| {
                if x[1][at_y] == at as f64 {
                    dx[at_x] += x[0][at_y];
                }
            });
            vec![dx]
        }
        OpKind::AveragePool { pool, count_padding } => {
            let counts = counts(&pool, count_padding);
            let mut y = vec![0.0; pool.y().len()];
            windows(&pool, |at_x, at_y, _| y[at_y] += x[0][at_x] / counts[at_y]);
            vec![y]
        }
        OpKind::AveragePoolGrad { pool, count_padding } => {
            let counts = counts(&pool, count_padding);
            let mut dx = vec![0.0; pool.x().len()];
            windows(&pool, |at_x, at_y, _| dx[at_x] += x[0][at_y] / counts[at_y]);
            vec![dx]
        }
        OpKind::Linear { product: p, bias } => {
            let mut y = vec![0.0; p.y().len()];
            if bias {
                y.iter_mut().enumerate().for_each(|(i, y)| *y = x[2][i % p.outputs]);
            }
            products(p, |at_x, at_w, at_y| y[at_y] += x[0][at_x] * x[1][at_w]);
            vec![y]
        }
        OpKind::LinearGradInput(p) => {
            let mut dx = vec![0.0; p.x().len()];
            products(p, |at_x, at_w, at_y| dx[at_x] += x[0][at_y] * x[1][at_w]);
            vec![dx]
        }
        OpKind::LinearGradInputTile { product: p, .. } => {
            let mut dx = x[2].to_vec();
            products(p, |at_x, at_w, at_y| dx[at_x] += x[0][at_y] * x[1][at_w]);
            vec![dx]
        }
        OpKind::LinearGradWeight { product: p, accumulate } => {
            let mut dw = if accumulate { x[2].to_vec() } else { vec![0.0; p.w().len()] };
            products(p, |at_x, at_w, at_y| dw[at_w] += x[0][at_x] * x[1][at_y]);
            vec![dw]
        }
        OpKind::Embedding(lookup) => {
            let mut y = vec![0.0; lookup.rows * lookup.width];
            looked_up(lookup, x[0], |at_table, at_y| y[at_y] = x[1][at_table]);
            vec![y]
        }
        OpKind::EmbeddingTile(lookup) => {
            let mut y = x[2].to_vec();
            looked_up(lookup, x[0], |at_table, at_y| y[at_y] = x[1][at_table]);
            vec![y]
        }
        OpKind::EmbeddingGrad { lookup, accumulate } => {
            let zeros = vec![0.0; lookup.vocabulary * lookup.width];
            let mut table = if accumulate { x[2].to_vec() } else { zeros };
            looked_up(lookup, x[0], |at_table, at_y| table[at_table] += x[1][at_y]);
            vec![table]
        }
        OpKind::LstmCell { batch, hidden } => lstm(batch, hidden, x),
        OpKind::LstmCellGrad { batch, hidden, .. } => lstm_grad(batch, hidden, x),
        OpKind::Attention(heads) => attention(heads, x[0]),
        OpKind::AttentionGrad(heads) => vec![attention_grad(heads, x)],
        OpKind::CrossEntropy(loss) => {
            let lse: Vec<f64> = x[0].chunks(loss.classes).map(log_sum_exp).collect();
            let total: f64 = (0..loss.rows)
                .filter_map(|r| Some(lse[r] - x[0][r * loss.classes + class(&loss, x[1], r)?]))
                .sum();
            vec![vec![f64::from(loss.scale) * total], lse]
        }
        OpKind::Hits(loss) => {
            let hit = |&r: &usize| {
                let row = &x[0][r * loss.classes..(r + 1) * loss.classes];
                let first = |best: usize, c: usize| if row[c] > row[best] { c } else { best };
                class(&loss, x[1], r) == Some((0..loss.classes).fold(0, first))
            };
            vec![vec![(0..loss.rows).filter(hit).count() as f64]]
        }
        OpKind::CrossEntropyGrad(loss) => {
            let mut d = vec![0.0; loss.rows * loss.classes];
            for r in 0..loss.rows {
                let Some(class) = class(&loss, x[1], r) else { continue };
                for c in 0..loss.classes {
                    let p = (x[0][r * loss.classes + c] - x[2][r]).exp();
                    d[r * loss.classes + c] =
                        x[3][0] * f64::from(loss.scale) * (p - f64::from(u8::from(c == class)));
                }
            }
            vec![d]
        }
        OpKind::Concat { outer, ref widths } => {
            let row = |o: usize| x.iter().zip(widths).flat_map(move |(x, &w)| x[o * w..(o + 1) * w].to_vec());
            vec![(0..outer).flat_map(row).collect()]
        }
        OpKind::Slice { total, start, width, .. } => {
            vec![x[0].chunks(total).flat_map(|row| row[start..start + width].to_vec()).collect()]
        }
        OpKind::Pad { total, start, width, .. } => {
            let padded = |row: &[f64]| {
                let mut wide = vec![0.0; total];
                wide[start..start + width].copy_from_slice(row);
                wide
            };
            vec![x[0].chunks(width).flat_map(padded).collect()]
        }
        OpKind::Transpose { batch, rows, columns, inner } => {
            let at =
                |n: usize, j: usize, i: usize, k: usize| x[0][((n * rows + i) * columns + j) * inner + k];
            let each = (0..batch).flat_map(|n| pairs([columns, rows]).map(move |(j, i)| (n, j, i)));
            vec![each.flat_map(|(n, j, i)| (0..inner).map(move |k| at(n, j, i, k))).collect()]
        }
        OpKind::RowSquares { width, .. } => {
            vec![x[0].chunks(width).map(|row| row.iter().map(|x| x * x).sum()).collect()]
        }
        OpKind::Nearest { clusters, .. } => {
            let best = |row: &[f64]| {
                let distances = zip(x[1], row, |square, product| square - 2.0 * product);
                let gap = distances.iter().copied().fold(f64::INFINITY, f64::min);
                (distances.iter().position(|&d| d == gap).expect("there is a centroid") as f64, gap)
            };
            let (nearest, gap) = x[0].chunks(clusters).map(best).unzip();
            vec![nearest, gap]
        }
        OpKind::CentroidUpdate { width, .. } => {
            let nearest = || x[2..].iter().flat_map(|part| part.iter());
            let count = |k: usize| nearest().filter(|&&nearest| nearest == k as f64).count() as f64;
            let mean = |(i, sum): (usize, &f64)| {
                let count = count(i / width);
                if count > 0.0 { sum / count } else { x[1][i] }
            };
            vec![x[0].iter().enumerate().map(mean).collect()]
        }
        OpKind::Indices { ref ids } => vec![ids.iter().map(|&id| id.into()).collect()],
        OpKind::Mul { .. }
        | OpKind::MulChannel(_)
        | OpKind::MulChannelGrad(_)
        | OpKind::SquaredError { .. }
        | OpKind::SquaredErrorGrad { .. }
        | OpKind::Split { .. } => groups::pointwise(kind, x),
        OpKind::GroupedConv2d { .. }
        | OpKind::GroupedConv2dGradInput(_)
        | OpKind::GroupedConv2dGradWeight(_) => groups::convolution(kind, x),
        OpKind::GroupNorm { .. }
        | OpKind::GroupNormGrad(_)
        | OpKind::RmsNorm { .. }
        | OpKind::RmsNormGrad { .. } => groups::normalization(kind, x),
        OpKind::BatchedProduct(_) | OpKind::Softmax { .. } | OpKind::SoftmaxGrad { .. } => {
            groups::matrices(kind, x)
        }
        OpKind::CrossAttention(extents) => groups::attention(extents, x),
        OpKind::CrossAttentionGrad(extents) => groups::attention_grad(extents, x),
        OpKind::Rotary(rotation) => groups::rotary(rotation, x[0]),
        OpKind::Noise { .. } | OpKind::RandomSteps { .. } | OpKind::Diffuse(_) | OpKind::Sinusoid { .. } => {
            groups::diffusion(kind, x, seed, iteration)
        }
        OpKind::SgdStep { sgd, .. } => {
            let d = zip(x[1], x[0], |g, w| g + f64::from(sgd.weight_decay) * w);
            if sgd.momentum == 0.0 {
                return vec![zip(x[0], &d, |w, d| w - f64::from(sgd.learning_rate) * d)];
            }
            let m = zip(x[2], &d, |m, d| f64::from(sgd.momentum) * m + d);
            vec![zip(x[0], &m, |w, m| w - f64::from(sgd.learning_rate) * m), m]
        }
        OpKind::AdamStep { adam, .. } => {
            let [beta1, beta2] = adam.betas.map(f64::from);
            let (rate, steps) = (f64::from(adam.learning_rate), iteration as i32 + 1);
            let m = zip(x[2], x[1], |m, g| beta1 * m + (1.0 - beta1) * g);
            let v = zip(x[3], x[1], |v, g| beta2 * v + (1.0 - beta2) * g * g);
            let step = zip(&m, &v, |m, v| {
                let (m, v) = (m / (1.0 - beta1.powi(steps)), v / (1.0 - beta2.powi(steps)));
                m / (v.sqrt() + f64::from(adam.epsilon))
            });
            let w = zip(x[0], &step, |w, s| w * (1.0 - rate * f64::from(adam.weight_decay)) - rate * s);
            vec![w, m, v]
        }
    }
}

fn zip(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The normal distribution, by the series of its density around zero.
fn normal(x: f64) -> f64 {
    if x.abs() > 8.0 {
        return f64::from(u8::from(x > 0.0));
    }
    // Φ(x) = ½ + φ(x)·(x + x³/3 + x⁵/(3·5) + …)
    let (mut term, mut sum) = (x, x);
    for k in 1..400 {
        term *= x * x / f64::from(2 * k + 1);
        sum += term;
    }
    0.5 + sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

const GELU: f64 = 0.797_884_560_802_865_4;

fn apply(function: Function, x: f64) -> f64 {
    match function {
        Function::Relu => x.max(0.0),
        Function::Gelu => 0.5 * x * (1.0 + (GELU * (x + 0.044_715 * x.powi(3))).tanh()),
        Function::Tanh => x.tanh(),
        Function::Sigmoid => sigmoid(x),
        Function::Relu6 => x.clamp(0.0, 6.0),
        Function::Silu => x * sigmoid(x),
        Function::GeluExact => x * normal(x),
        Function::Clamp { least, most } => x.clamp(least.into(), most.into()),
        Function::Elu { alpha } => x.max(0.0) + f64::from(alpha) * x.min(0.0).exp_m1(),
        Function::HardSigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Function::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Function::LeakyRelu { slope } => x.max(0.0) + f64::from(slope) * x.min(0.0),
        Function::Abs => x.abs(),
        Function::Exp => x.exp(),
        Function::Log => x.ln(),
        Function::Reciprocal => x.recip(),
        Function::Softplus => x.exp().ln_1p(),
        Function::Sqrt => x.sqrt(),
        Function::Step { bound } => f64::from(u8::from(x > bound.into())),
    }
}

fn slope(function: Function, s: f64) -> f64 {
    match function {
        Function::Relu => f64::from(u8::from(s > 0.0)),
        Function::Gelu => {
            let t = (GELU * (s + 0.044_715 * s.powi(3))).tanh();
            0.5 * (1.0 + t) + 0.5 * s * (1.0 - t * t) * GELU * (1.0 + 3.0 * 0.044_715 * s * s)
        }
        Function::Tanh => 1.0 - s * s,
        Function::Sigmoid => s * (1.0 - s),
        Function::Relu6 => f64::from(u8::from(s > 0.0 && s < 6.0)),
        Function::Silu => sigmoid(s) * (1.0 + s * (1.0 - sigmoid(s))),
        Function::Clamp { least, most } => f64::from(u8::from(s > least.into() && s < most.into())),
        Function::Elu { .. } if s > 0.0 => 1.0,
        Function::Elu { alpha } => s + f64::from(alpha),
        Function::HardSigmoid => f64::from(u8::from(s > 0.0 && s < 1.0)) / 6.0,
        Function::HardSwish if s < -3.0 => 0.0,
        Function::HardSwish if s > 3.0 => 1.0,
        Function::HardSwish => s / 3.0 + 0.5,
        Function::LeakyRelu { slope } => f64::from(if s > 0.0 { 1.0 } else { slope }),
        Function::Abs if s == 0.0 => 0.0,
        Function::Abs => s.signum(),
        Function::Exp => s,
        Function::Log => s.recip(),
        Function::Reciprocal => -s * s,
        Function::Softplus => sigmoid(s),
        Function::Sqrt if s == 0.0 => 0.0,
        Function::Sqrt => 0.5 / s,
        Function::Step { .. } => 0.0,
        Function::GeluExact => normal(s) + s * (-0.5 * s * s).exp() / (2.0 * std::f64::consts::PI).sqrt(),
    }
}

/// Every pair of an input element and a weight that meet in an output element: `f(at_x, at_w, at_y)`.
fn taps(conv: &Conv, mut f: impl FnMut(usize, usize, usize)) {
    let (window, [height, width], [out_height, out_width]) = (conv.window, conv.in_size, conv.out_size);
    let [kernel_height, kernel_width] = window.kernel;
    for n in 0..conv.batch {
        for o in 0..conv.out_channels {
            for c in 0..conv.in_channels {
                for (p, q) in pairs(conv.out_size) {
                    for (i, j) in pairs(window.kernel) {
                        let h = (p * window.stride[0] + i).wrapping_sub(window.padding[0]);
                        let w = (q * window.stride[1] + j).wrapping_sub(window.padding[1]);
                        if h < height && w < width {
                            f(
                                ((n * conv.in_channels + c) * height + h) * width + w,
                                ((o * conv.in_channels + c) * kernel_height + i) * kernel_width + j,
                                ((n * conv.out_channels + o) * out_height + p) * out_width + q,
                            );
                        }
                    }
                }
            }
        }
    }
}

fn pairs([height, width]: [usize; 2]) -> impl Iterator<Item = (usize, usize)> {
    (0..height).flat_map(move |y| (0..width).map(move |x| (y, x)))
}

/// Every input element in every window: `f(at_x, at_y, position in the window)`.
fn windows(pool: &Pool, mut f: impl FnMut(usize, usize, usize)) {
    for plane in 0..pool.planes {
        for (p, q) in pairs(pool.out_size) {
            for (i, j) in pairs(pool.window.kernel) {
                let h = (p * pool.window.stride[0] + i).wrapping_sub(pool.window.padding[0]);
                let w = (q * pool.window.stride[1] + j).wrapping_sub(pool.window.padding[1]);
                if h < pool.in_size[0] && w < pool.in_size[1] {
                    f(
                        (plane * pool.in_size[0] + h) * pool.in_size[1] + w,
                        (plane * pool.out_size[0] + p) * pool.out_size[1] + q,
                        i * pool.window.kernel[1] + j,
                    );
                }
            }
        }
    }
}

/// The divisors of an average pooling.
fn counts(pool: &Pool, count_padding: bool) -> Vec<f64> {
    let mut counts = vec![0.0; pool.y().len()];
    if !count_padding {
        windows(pool, |_, at_y, _| counts[at_y] += 1.0);
        return counts;
    }
    let area = pool.out_size[0] * pool.out_size[1];
    for (at, count) in counts.iter_mut().enumerate() {
        let (p, q) = (at % area / pool.out_size[1], at % pool.out_size[1]);
        let exists = |(i, j): &(usize, usize)| {
            p * pool.window.stride[0] + i < pool.in_size[0] + 2 * pool.window.padding[0]
                && q * pool.window.stride[1] + j < pool.in_size[1] + 2 * pool.window.padding[1]
        };
        *count = pairs(pool.window.kernel).filter(exists).count() as f64;
    }
    counts
}

fn products(p: Product, mut f: impl FnMut(usize, usize, usize)) {
    for r in 0..p.rows {
        for (o, i) in pairs([p.outputs, p.inputs]) {
            f(r * p.inputs + i, o * p.inputs + i, r * p.outputs + o);
        }
    }
}

fn each_element(c: Channels, mut f: impl FnMut(usize, usize)) {
    (0..c.len()).for_each(|i| f(i / c.spatial % c.channels, i));
}

/// Every element with every element at its place in a neighbouring channel.
fn neighbours(r: Response, mut f: impl FnMut(usize, usize)) {
    each_element(r.channels, |channel, i| {
        for other in r.neighbours(channel) {
            f(i, i + other * r.channels.spatial - channel * r.channels.spatial);
        }
    });
}

fn per_channel(c: Channels, f: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let mut sums = vec![0.0; c.channels];
    each_element(c, |channel, i| sums[channel] += f(channel, i));
    sums
}

fn normalize(
    c: Channels,
    x: &[f64],
    mean: &[f64],
    variance: &[f64],
    (gamma, beta): (&[f64], &[f64]),
    epsilon: f32,
) -> Vec<f64> {
    let mut y = vec![0.0; c.len()];
    each_element(c, |ch, i| {
        y[i] = gamma[ch] * (x[i] - mean[ch]) / (variance[ch] + f64::from(epsilon)).sqrt() + beta[ch];
    });
    y
}

fn looked_up(lookup: Lookup, ids: &[f64], mut f: impl FnMut(usize, usize)) {
    for (r, i) in pairs([lookup.rows, lookup.width]) {
        let id = ids[lookup.places.of(r)] - lookup.first as f64;
        if id >= 0.0 && id < lookup.vocabulary as f64 {
            f(id as usize * lookup.width + i, r * lookup.width + i);
        }
    }
}

fn class(loss: &Classification, labels: &[f64], row: usize) -> Option<usize> {
    let label = labels[loss.places.of(row)];
    (label >= 0.0 && label < loss.classes as f64).then_some(label as usize)
}

fn log_sum_exp(xs: &[f64]) -> f64 {
    let largest = xs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + xs.iter().map(|x| (x - largest).exp()).sum::<f64>().ln()
}

fn lstm(batch: usize, hidden: usize, x: &[&[f64]]) -> Vec<Vec<f64>> {
    let (mut h, mut next, mut gates) =
        (vec![0.0; batch * hidden], vec![0.0; batch * hidden], vec![0.0; 4 * batch * hidden]);
    for (r, j) in pairs([batch, hidden]) {
        let sum = |k: usize| x[0][(r * 4 + k) * hidden + j] + x[1][(r * 4 + k) * hidden + j];
        let parts = [sigmoid(sum(0)), sigmoid(sum(1)), sum(2).tanh(), sigmoid(sum(3))];
        let c = parts[1] * x[2][r * hidden + j] + parts[0] * parts[2];
        next[r * hidden + j] = c;
        h[r * hidden + j] = parts[3] * c.tanh();
        (0..4).for_each(|k| gates[(r * 4 + k) * hidden + j] = parts[k]);
    }
    vec![h, next, gates]
}

fn lstm_grad(batch: usize, hidden: usize, x: &[&[f64]]) -> Vec<Vec<f64>> {
    let (mut d, mut dc) = (vec![0.0; 4 * batch * hidden], vec![0.0; batch * hidden]);
    for (r, j) in pairs([batch, hidden]) {
        let at = r * hidden + j;
        let [i, f, g, o] = [0, 1, 2, 3].map(|k| x[0][(r * 4 + k) * hidden + j]);
        let t = x[2][at].tanh();
        let e = x[3][at] * o * (1.0 - t * t) + x.get(4).map_or(0.0, |carry| carry[at]);
        dc[at] = e * f;
        let parts = [
            e * g * i * (1.0 - i),
            e * x[1][at] * f * (1.0 - f),
            e * i * (1.0 - g * g),
            x[3][at] * t * o * (1.0 - o),
        ];
        (0..4).for_each(|k| d[(r * 4 + k) * hidden + j] = parts[k]);
    }
    vec![d, dc]
}

/// Positions in `qkv`, `y` and `lse` of one head of one sequence.
struct Place {
    heads: Heads,
    n: usize,
    head: usize,
}

impl Place {
    fn all(heads: Heads) -> impl Iterator<Item = Self> {
        pairs([heads.batch, heads.heads]).map(move |(n, head)| Self { heads, n, head })
    }
    fn qkv(&self, part: usize, token: usize, column: usize) -> usize {
        let Heads { tokens, heads, width, .. } = self.heads;
        ((self.n * tokens + token) * 3 + part) * heads * width + self.head * width + column
    }
    fn y(&self, token: usize, column: usize) -> usize {
        let Heads { tokens, heads, width, .. } = self.heads;
        (self.n * tokens + token) * heads * width + self.head * width + column
    }
    fn lse(&self, token: usize) -> usize {
        (self.n * self.heads.heads + self.head) * self.heads.tokens + token
    }
    fn score(&self, qkv: &[f64], i: usize, j: usize) -> f64 {
        if self.heads.causal && j > i {
            return f64::NEG_INFINITY;
        }
        let dot: f64 = (0..self.heads.width).map(|c| qkv[self.qkv(0, i, c)] * qkv[self.qkv(1, j, c)]).sum();
        dot / (self.heads.width as f64).sqrt()
    }
}

fn attention(heads: Heads, qkv: &[f64]) -> Vec<Vec<f64>> {
    let (mut y, mut lse) = (vec![0.0; heads.y().len()], vec![0.0; heads.lse().len()]);
    for place in Place::all(heads) {
        for i in 0..heads.tokens {
            let scores: Vec<f64> = (0..heads.tokens).map(|j| place.score(qkv, i, j)).collect();
            let total = log_sum_exp(&scores);
            lse[place.lse(i)] = total;
            for (j, c) in pairs([heads.tokens, heads.width]) {
                y[place.y(i, c)] += (scores[j] - total).exp() * qkv[place.qkv(2, j, c)];
            }
        }
    }
    vec![y, lse]
}

fn attention_grad(heads: Heads, x: &[&[f64]]) -> Vec<f64> {
    let [qkv, y, lse, dy] = x else { panic!("four operands") };
    let mut d = vec![0.0; heads.qkv().len()];
    for place in Place::all(heads) {
        for (i, j) in pairs([heads.tokens; 2]) {
            let p = (place.score(qkv, i, j) - lse[place.lse(i)]).exp();
            let columns = 0..heads.width;
            let delta: f64 = columns.clone().map(|c| dy[place.y(i, c)] * y[place.y(i, c)]).sum();
            let dp: f64 = columns.clone().map(|c| dy[place.y(i, c)] * qkv[place.qkv(2, j, c)]).sum();
            let ds = p * (dp - delta) / (heads.width as f64).sqrt();
            for c in columns {
                d[place.qkv(2, j, c)] += p * dy[place.y(i, c)];
                d[place.qkv(0, i, c)] += ds * qkv[place.qkv(1, j, c)];
                d[place.qkv(1, j, c)] += ds * qkv[place.qkv(0, i, c)];
            }
        }
    }
    d
}
