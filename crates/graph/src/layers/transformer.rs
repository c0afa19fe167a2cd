//! Parts of today's transformers and of gated networks: products, root mean squares, rotary positions, attention with separate operands, and
//! losses and layers that belong to them.

use super::EPSILON;
use crate::builder::{BuildError, Builder, Mode, Var};
use crate::init::Init;
use crate::op::{Channels, OpKind, Products, Queries, Rotation};

impl Builder {
    /// The product of two tensors of the same size, element by element.
    pub fn mul(&mut self, name: &str, a: Var, b: Var) -> Result<Var, BuildError> {
        let y = self.push1(name, OpKind::Mul { len: a.shape.len() }, &[a.id, b.id])?;
        Ok(Var { id: y.id, shape: a.shape })
    }

    /// One matrix product for each member of a batch: of `a [.., rows, depth]` and `b [.., depth, columns]` with the same extents before these, which
    /// makes `[.., rows, columns]`. A factor that is transposed has its two last extents exchanged.
    ///
    /// # Errors
    /// The operands do not belong together.
    pub fn batched_product(
        &mut self,
        name: &str,
        [a, b]: [Var; 2],
        transposed: [bool; 2],
    ) -> Result<Var, BuildError> {
        let (a_dims, b_dims) = (a.shape.dims(), b.shape.dims());
        let ([members @ .., r, d], [others @ .., e, c]) = (a_dims, b_dims) else {
            let why = format!("extents {a_dims:?} and {b_dims:?} are no matrices");
            return Err(BuildError::Extents { node: name.to_owned(), why });
        };
        let [rows, depth] = if transposed[0] { [*d, *r] } else { [*r, *d] };
        let [same, columns] = if transposed[1] { [*c, *e] } else { [*e, *c] };
        if members != others || same != depth {
            let why = format!("matrices of extents {a_dims:?} and {b_dims:?} do not belong together");
            return Err(BuildError::Extents { node: name.to_owned(), why });
        }
        let products = Products { batch: members.iter().product(), rows, columns, depth, transposed };
        let y = self.push1(name, OpKind::BatchedProduct(products), &[a.id, b.id])?;
        let shape: Vec<usize> = members.iter().copied().chain([rows, columns]).collect();
        Ok(Var { id: y.id, shape: crate::Shape::new(&shape) })
    }

    /// The softmax over the last extent of `x`.
    pub fn softmax(&mut self, name: &str, x: Var) -> Result<Var, BuildError> {
        let width = x.shape.dims().last().copied().unwrap_or(1);
        let kind = OpKind::Softmax { rows: x.shape.len() / width.max(1), width };
        let y = self.push1(name, kind, &[x.id])?;
        Ok(Var { id: y.id, shape: x.shape })
    }

    /// Every plane of `x [batch, channels, …]` times its element of `factors [batch, channels]`.
    pub fn scale_planes(&mut self, name: &str, x: Var, factors: Var) -> Result<Var, BuildError> {
        let planes = factors.shape.len();
        let channels = Channels { batch: 1, channels: planes, spatial: x.shape.len() / planes.max(1) };
        let y = self.push1(name, OpKind::MulChannel(channels), &[x.id, factors.id])?;
        Ok(Var { id: y.id, shape: x.shape })
    }

    /// Every column of `x [.., width]` times a weight `name` of its own, `[width]`, that begins with this value.
    pub fn scale_columns(&mut self, name: &str, x: Var, begin: f32) -> Result<Var, BuildError> {
        let width = x.shape.dims().last().copied().unwrap_or(1);
        let weight = self.weight(name, [width], Init::Constant(begin));
        let channels = Channels { batch: x.shape.len() / width.max(1), channels: width, spatial: 1 };
        let y = self.push1(format!("{name}.mul"), OpKind::MulChannel(channels), &[x.id, weight.id])?;
        Ok(Var { id: y.id, shape: x.shape })
    }

    /// Leaves out the samples of `x [batch, …]` with this probability, each as a whole (stochastic depth of torchvision in its mode `row`): the
    /// identity in inference and at probability 0.
    pub fn drop_samples(&mut self, name: &str, x: Var, probability: f32) -> Result<Var, BuildError> {
        if self.mode() != Mode::Training || probability == 0.0 {
            return Ok(x);
        }
        let batch = x.dim(0);
        let ones = self.push1(format!("{name}.ones"), OpKind::Fill { len: batch, value: 1.0 }, &[])?;
        let kept = self.dropout(&format!("{name}.kept"), ones, probability)?;
        self.scale_planes(name, x, kept)
    }

    /// Layer normalization as [`layer_norm`](Self::layer_norm), with another ε.
    pub fn layer_norm_with(&mut self, name: &str, x: Var, epsilon: f32) -> Result<Var, BuildError> {
        let width = x.shape.dims().last().copied().unwrap_or(1);
        let gamma = self.weight(format!("{name}.weight"), [width], Init::Constant(1.0));
        let beta = self.weight(format!("{name}.bias"), [width], Init::Constant(0.0));
        let kind = OpKind::LayerNorm { rows: x.shape.len() / width.max(1), width, epsilon };
        let y = self.push1(name, kind, &[x.id, gamma.id, beta.id])?;
        Ok(Var { id: y.id, shape: x.shape })
    }

    /// Layer normalization over the last extent of `x`: `name.weight`, `name.bias`.
    pub fn layer_norm(&mut self, name: &str, x: Var) -> Result<Var, BuildError> {
        self.layer_norm_with(name, x, EPSILON)
    }

    /// Normalization of the last extent of `x` by its root mean square: `name.weight`.
    pub fn rms_norm(&mut self, name: &str, x: Var, epsilon: f32) -> Result<Var, BuildError> {
        let width = x.shape.dims().last().copied().unwrap_or(1);
        let gamma = self.weight(format!("{name}.weight"), [width], Init::Constant(1.0));
        let kind = OpKind::RmsNorm { rows: x.shape.len() / width.max(1), width, epsilon };
        let y = self.push1(name, kind, &[x.id, gamma.id])?;
        Ok(Var { id: y.id, shape: x.shape })
    }

    /// Rotary positions of `x [batch, tokens, heads · width]`.
    ///
    /// # Errors
    /// The columns of a head are no even number.
    pub fn rotary(&mut self, name: &str, x: Var, heads: usize, base: f32) -> Result<Var, BuildError> {
        let width = x.dim(2) / heads.max(1);
        if !width.is_multiple_of(2) || width * heads != x.dim(2) {
            let why = format!("{heads} heads of {} columns cannot turn in pairs", x.dim(2));
            return Err(BuildError::Extents { node: name.to_owned(), why });
        }
        let rotation = Rotation { batch: x.dim(0), tokens: x.dim(1), heads, width, base, back: false };
        let y = self.push1(name, OpKind::Rotary(rotation), &[x.id])?;
        Ok(Var { id: y.id, shape: x.shape })
    }

    /// Attention of queries `[batch, queries, heads · width]` to keys and values `[batch, keys, shared · width]`, where `heads / shared` neighbouring
    /// heads share keys and values: `[batch, queries, heads · width]`.
    ///
    /// # Errors
    /// The operands do not belong together.
    pub fn cross_attention(
        &mut self,
        name: &str,
        [q, k, v]: [Var; 3],
        [heads, shared]: [usize; 2],
        causal: bool,
    ) -> Result<Var, BuildError> {
        if shared == 0 || heads == 0 || !heads.is_multiple_of(shared) {
            let why = format!("{heads} heads cannot share {shared} of keys and values");
            return Err(BuildError::Extents { node: name.to_owned(), why });
        }
        let (batch, queries, keys, width) = (q.dim(0), q.dim(1), k.dim(1), q.dim(2) / heads);
        let extents = Queries { batch, queries, keys, heads, shared, width, causal };
        self.push1(name, OpKind::CrossAttention(extents), &[q.id, k.id, v.id])
    }

    /// `factor` times the sum of the squared differences of two tensors; in evaluation their mean for every sample, summed over the batch.
    pub fn squared_error(&mut self, name: &str, a: Var, b: Var, factor: f32) -> Result<Var, BuildError> {
        let len = a.shape.len();
        let evaluates = self.mode() == Mode::Evaluation;
        let factor = if evaluates { a.dim(0) as f32 / len.max(1) as f32 } else { factor };
        self.push1(name, OpKind::SquaredError { len, factor }, &[a.id, b.id])
    }

    /// The columns of `x [rows, columns]` in parts of these widths.
    pub fn split(&mut self, name: &str, x: Var, widths: &[usize]) -> Result<Vec<Var>, BuildError> {
        self.push(name, OpKind::Split { outer: x.dim(0), widths: widths.to_vec() }, &[x.id])
    }

    /// `x [batch, height, width, channels]` with the channels outside: `[batch, channels, height, width]`.
    pub fn channels_first(&mut self, name: &str, x: Var) -> Result<Var, BuildError> {
        let [batch, height, width, channels] = [0, 1, 2, 3].map(|axis| x.dim(axis));
        let kind = OpKind::Transpose { batch, rows: height * width, columns: channels, inner: 1 };
        let y = self.push1(name, kind, &[x.id])?;
        Ok(Var { id: y.id, shape: [batch, channels, height, width].into() })
    }

    /// A step in `0..steps` for each of `rows`, others in every iteration.
    pub fn random_steps(&mut self, name: &str, rows: usize, steps: usize) -> Result<Var, BuildError> {
        let stream = self.mask_stream();
        self.push1(name, OpKind::RandomSteps { rows, steps, stream }, &[])
    }

    /// Numbers from the standard normal distribution, others in every iteration.
    pub fn noise(&mut self, name: &str, shape: impl Into<crate::Shape>) -> Result<Var, BuildError> {
        let shape = shape.into();
        let stream = self.mask_stream();
        let e = self.push1(name, OpKind::Noise { len: shape.len(), stream }, &[])?;
        Ok(Var { id: e.id, shape })
    }
}
