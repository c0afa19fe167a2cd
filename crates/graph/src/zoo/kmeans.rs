//! k-means (Lloyd, *Least squares quantization in PCM*, 1982) as a training iteration: the centroids are the persistent tensor, the loss is
//! the mean squared distance of the points to their nearest centroids, and the update moves every centroid to the mean of its points.
//!
//! Distances are computed as `|x|² − 2·x·cᵀ + |c|²`, so that almost all of the work is one matrix product for each part of the points.
//!
//! Training goes over the points twice, in parts that are inputs of their own (as in Shicheng et al., where k-means runs over blocks):
//!
//! ```text
//! assignment                                 update
//! part 0   part 1   …   part 15              sums of part 0, part 1, …, part 15   centroids
//! ```
//!
//! The points of a part are idle between the two, so that a limit below all points together has plans that offload them. The largest op needs
//! a part of the points and its products.

use elbowroom_ir::TensorId;
use elbowroom_ir::trace::Phase;

use super::Options;
use crate::builder::{BuildError, Builder, Mode, Var, part_suffix};
use crate::graph::{Content, Graph, Role};
use crate::init::Init;
use crate::op::{Lookup, OpKind, Places, Product};

/// Columns of a point, unless the options say otherwise.
const WIDTH: usize = 64;
const CLUSTERS: usize = 100;
/// Parts of the points in training, if there are as many points.
const PARTS: usize = 16;

/// The iteration: [`Options::batch`] points of [`Options::width`] columns, [`Options::classes`] clusters. Forward only, all points are one
/// input, and `nearest` names the cluster of each.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let (points, width) = (options.batch, options.width.unwrap_or(WIDTH));
    let clusters = options.classes.unwrap_or(CLUSTERS);
    let mut b = Builder::new(format!("{name} points {points} clusters {clusters}"), options.mode);
    let begin = Init::Normal { std: 1.0, stream: b.init_stream() };
    let centroids = b.persistent("centroids", [clusters, width], Role::Weight, begin);
    let squares =
        b.push1("centroids.squares", OpKind::RowSquares { rows: clusters, width }, &[centroids.id])?;
    if options.mode == Mode::Inference {
        let part = Part::assign(&mut b, "", points, centroids, squares)?;
        return Ok(b.finish_inference(&[("nearest", part.nearest)]));
    }

    let most = points.div_ceil(PARTS).max(1);
    let mut parts = Vec::new();
    let mut loss: Option<Var> = None;
    for (number, first) in (0..points).step_by(most).enumerate() {
        let suffix = part_suffix(number);
        let part = Part::assign(&mut b, &suffix, most.min(points - first), centroids, squares)?;
        let here = part.loss(&mut b, &suffix, points)?;
        loss = Some(match loss {
            None => here,
            Some(before) => b.add(&format!("loss{suffix}.sum"), before, here)?,
        });
        parts.push(part);
    }
    if let Some(loss) = loss {
        b.output("loss", loss);
    }

    b.phase = Phase::Update;
    let mut sums: Option<Var> = None;
    for (number, part) in parts.iter().enumerate() {
        let lookup = Lookup { rows: part.rows, places: Places::ALL, first: 0, vocabulary: clusters, width };
        let kind = OpKind::EmbeddingGrad { lookup, accumulate: sums.is_some() };
        let operands = [part.nearest.id, part.points.id].into_iter().chain(sums.map(|sums| sums.id));
        let operands: Vec<TensorId> = operands.collect();
        let suffix = part_suffix(number);
        sums = Some(b.push1(format!("centroids.sums{suffix}"), kind, &operands)?);
    }
    if let Some(sums) = sums {
        let kind =
            OpKind::CentroidUpdate { parts: parts.iter().map(|part| part.rows).collect(), clusters, width };
        let nearest = parts.iter().map(|part| part.nearest.id);
        let operands: Vec<TensorId> = [sums.id, centroids.id].into_iter().chain(nearest).collect();
        b.push("centroids.step", kind, &operands)?;
    }
    Ok(b.finish())
}

/// Points that pass through one op each.
struct Part {
    rows: usize,
    /// `[rows, width]`.
    points: Var,
    /// The nearest centroid of each point, `i32 [rows]`.
    nearest: Var,
    /// The squared distance to it less the square of the point, `[rows]`.
    gap: Var,
}

impl Part {
    /// Assigns the points of a new input to their nearest centroids.
    fn assign(
        b: &mut Builder,
        suffix: &str,
        rows: usize,
        centroids: Var,
        squares: Var,
    ) -> Result<Self, BuildError> {
        let &[clusters, width] = centroids.shape.dims() else { unreachable!("centroids are a matrix") };
        let points = b.input("points", [rows, width], Content::Real);
        let product = Product { rows, inputs: width, outputs: clusters };
        let kind = OpKind::Linear { product, bias: false };
        let products = b.push1(format!("products{suffix}"), kind, &[points.id, centroids.id])?;
        let kind = OpKind::Nearest { rows, clusters };
        let found = b.push(format!("nearest{suffix}"), kind, &[products.id, squares.id])?;
        Ok(Self { rows, points, nearest: found[0], gap: found[1] })
    }

    /// The part's share of the mean squared distance over `points` points, in f32.
    fn loss(&self, b: &mut Builder, suffix: &str, points: usize) -> Result<Var, BuildError> {
        let [rows, width] = [self.rows, self.points.shape.len() / self.rows.max(1)];
        let kind = OpKind::RowSquares { rows, width };
        let lengths = b.push1(format!("points{suffix}.squares"), kind, &[self.points.id])?;
        let distances = b.add(&format!("distances{suffix}"), lengths, self.gap)?;
        let share = OpKind::Sum { len: rows, factor: 1.0 / points as f32 };
        b.push1(format!("loss{suffix}"), share, &[distances.id])
    }
}
