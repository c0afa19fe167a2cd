//! Layers in groups of channels: convolutions, transposed convolutions, and normalization.

use super::{ConvLayer, LinearWeights, no_fit};
use crate::builder::{BuildError, Builder, Var};
use crate::init::Init;
use crate::op::{Algorithm, Channels, Conv, GroupedConv, Groups, OpKind, Window};

/// Parameters of a transposed convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransposedLayer {
    /// Output channels, window, bias and initial values.
    pub layer: ConvLayer,
    /// Number of groups.
    pub groups: usize,
    /// Distance between neighbouring taps.
    pub dilation: [usize; 2],
    /// Lines and columns added behind the result, fewer than the stride: of several sizes that a convolution makes equal, the larger ones.
    pub extra: [usize; 2],
}

impl Builder {
    /// Convolution of `x [batch, channels, height, width]` in groups of channels, with a distance between the taps of its window. With one group
    /// and touching taps it is [`conv2d`](Self::conv2d). Its weight is `[channels, channels of x / groups, height, width]`.
    ///
    /// # Errors
    /// The groups do not divide both numbers of channels, or the window does not fit.
    pub fn grouped_conv2d(
        &mut self,
        name: &str,
        x: Var,
        layer: ConvLayer,
        groups: usize,
        dilation: [usize; 2],
    ) -> Result<Var, BuildError> {
        if groups == 1 && dilation == [1, 1] {
            return self.conv2d(name, x, layer);
        }
        let ConvLayer { channels, window, .. } = layer;
        let in_size = [x.dim(2), x.dim(3)];
        let fits = GroupedConv::span(window, dilation).output(in_size).filter(|_| whole(window, dilation));
        let out_size = fits.ok_or_else(|| no_fit(name, window, in_size))?;
        divided(name, groups, [x.dim(1), channels])?;
        let conv = Conv {
            batch: x.dim(0),
            in_channels: x.dim(1),
            in_size,
            out_channels: channels,
            out_size,
            window,
            algorithm: Algorithm::default(),
        };
        // Every output channel sees one group of the input.
        let LinearWeights { weight, bias } = self.conv_weights(name, x.dim(1) / groups, layer);
        let mut operands = vec![x.id, weight.id];
        operands.extend(bias.map(|bias| bias.id));
        let conv = GroupedConv { conv, groups, dilation };
        self.push1(name, OpKind::GroupedConv2d { conv, bias: bias.is_some() }, &operands)
    }

    /// Transposed convolution of `x [batch, channels, height, width]` in groups: the result has `stride · (size − 1) + dilation · (kernel − 1) + 1 −
    /// 2·padding + extra` rows and columns. Its weight is `[channels of x, channels / groups, height, width]`.
    ///
    /// # Errors
    /// The groups do not divide both numbers of channels, or no convolution from that size gives the size of `x`.
    pub fn grouped_conv_transpose2d(
        &mut self,
        name: &str,
        x: Var,
        transposed: TransposedLayer,
    ) -> Result<Var, BuildError> {
        let TransposedLayer { layer, groups, dilation, extra } = transposed;
        let ConvLayer { channels, window, bias, init } = layer;
        let (batch, in_channels, small) = (x.dim(0), x.dim(1), [x.dim(2), x.dim(3)]);
        divided(name, groups, [in_channels, channels])?;
        let span = GroupedConv::span(window, dilation);
        let size = [0, 1].map(|axis| {
            let spread = window.stride[axis].saturating_mul(small[axis].saturating_sub(1));
            let reach = spread.saturating_add(span.kernel[axis]).saturating_add(extra[axis]);
            reach.saturating_sub(2 * window.padding[axis])
        });
        // The convolution that this one transposes goes from the result to x.
        if !whole(window, dilation) || span.output(size) != Some(small) {
            return Err(no_fit(name, window, size));
        }
        let algorithm = Algorithm::default();
        let conv = Conv {
            batch,
            in_channels: channels,
            in_size: size,
            out_channels: in_channels,
            out_size: small,
            window,
            algorithm,
        };
        let grouped = GroupedConv { conv, groups, dilation };
        let (fan_in, fan_out) = (in_channels / groups * window.area(), channels / groups * window.area());
        let weight = init.weight(fan_in, fan_out, self.init_stream());
        let weight = self.weight(format!("{name}.weight"), grouped.w(), weight);
        let plain = groups == 1 && dilation == [1, 1];
        let kind =
            if plain { OpKind::Conv2dGradInput(conv) } else { OpKind::GroupedConv2dGradInput(grouped) };
        let mut y = self.push1(name, kind, &[x.id, weight.id])?;
        if bias {
            let init = init.bias(fan_in, self.init_stream());
            let bias = self.weight(format!("{name}.bias"), [channels], init);
            let extents = Channels { batch, channels, spatial: size[0] * size[1] };
            y = self.push1(format!("{name}.add-bias"), OpKind::AddChannel(extents), &[y.id, bias.id])?;
        }
        Ok(Var { id: y.id, shape: conv.x() })
    }

    /// Group normalization of `x [batch, channels, …]`: `name.weight`, `name.bias`, each `[channels]`.
    ///
    /// # Errors
    /// The groups do not divide the channels.
    pub fn group_norm(&mut self, name: &str, x: Var, groups: usize, epsilon: f32) -> Result<Var, BuildError> {
        let (batch, per) = (x.dim(0), x.dim(1));
        divided(name, groups, [per, per])?;
        let channels = Channels { batch, channels: per, spatial: x.shape.len() / (batch * per).max(1) };
        let gamma = self.weight(format!("{name}.weight"), [per], Init::Constant(1.0));
        let beta = self.weight(format!("{name}.bias"), [per], Init::Constant(0.0));
        let kind = OpKind::GroupNorm { groups: Groups { channels, groups }, epsilon };
        let y = self.push1(name, kind, &[x.id, gamma.id, beta.id])?;
        Ok(Var { id: y.id, shape: x.shape })
    }
}

/// Whether a window has taps, and steps between positions and taps.
fn whole(window: Window, dilation: [usize; 2]) -> bool {
    window.area() > 0 && window.stride.iter().chain(&dilation).all(|&step| step > 0)
}

fn divided(name: &str, groups: usize, channels: [usize; 2]) -> Result<(), BuildError> {
    if groups > 0 && channels.iter().all(|channels| channels.is_multiple_of(groups)) {
        return Ok(());
    }
    let why = format!("{groups} groups divide {} and {} channels unevenly", channels[0], channels[1]);
    Err(BuildError::Extents { node: name.to_owned(), why })
}
