//! k-means (Lloyd, *Least squares quantization in PCM*, 1982) as a training iteration: the centroids are the persistent tensor, the loss is
//! the mean squared distance of the points to their nearest centroids, and the update moves every centroid to the mean of its points.
//!
//! Distances are computed as `|x|² − 2·x·cᵀ + |c|²`, so that almost all of the work is one matrix product.

use elbowroom_ir::trace::Phase;

use super::Options;
use crate::builder::{BuildError, Builder, Mode};
use crate::graph::{Content, Graph, Role};
use crate::init::Init;
use crate::op::{Lookup, OpKind, Product};

/// Columns of a point, unless the options say otherwise.
const WIDTH: usize = 64;
const CLUSTERS: usize = 100;

/// The iteration: [`Options::batch`] points of [`Options::width`] columns, [`Options::classes`] clusters.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let (rows, width) = (options.batch, options.width.unwrap_or(WIDTH));
    let clusters = options.classes.unwrap_or(CLUSTERS);
    let mut b = Builder::new(format!("{name} points {rows} clusters {clusters}"), options.mode);
    let points = b.input("points", [rows, width], Content::Real);
    let begin = Init::Normal { std: 1.0, stream: b.init_stream() };
    let centroids = b.persistent("centroids", [clusters, width], Role::Weight, begin);

    let product = Product { rows, inputs: width, outputs: clusters };
    let products =
        b.push1("products", OpKind::Linear { product, bias: false }, &[points.id, centroids.id])?;
    let squares =
        b.push1("centroids.squares", OpKind::RowSquares { rows: clusters, width }, &[centroids.id])?;
    let nearest = b.push("nearest", OpKind::Nearest { rows, clusters }, &[products.id, squares.id])?;
    if options.mode == Mode::Inference {
        return Ok(b.finish_inference(&[("nearest", nearest[0])]));
    }
    let lengths = b.push1("points.squares", OpKind::RowSquares { rows, width }, &[points.id])?;
    let distances = b.add("distances", lengths, nearest[1])?;
    let mean = OpKind::Sum { len: rows, factor: 1.0 / rows as f32 };
    let loss = b.push1("loss", mean, &[distances.id])?;
    b.output("loss", loss);

    b.phase = Phase::Update;
    let lookup = Lookup { rows, offset: 0, stride: 1, first: 0, vocabulary: clusters, width };
    let sums = OpKind::EmbeddingGrad { lookup, accumulate: false };
    let sums = b.push1("centroids.sums", sums, &[nearest[0].id, points.id])?;
    let step = OpKind::CentroidUpdate { rows, clusters, width };
    b.push("centroids.step", step, &[sums.id, nearest[0].id, centroids.id])?;
    Ok(b.finish())
}
