//! The same iteration with other arithmetic in its convolutions: Winograd's where windows are 3×3 at a stride of one and it saves time.
//!
//! Shapes and the precision decide, so that the bits of a result depend neither on the limit, nor on the machine or its clock.

use std::str::FromStr;

use crate::extents::Algorithm;
use crate::graph::Graph;
use crate::op::OpKind;

/// The arithmetic of convolutions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Convolutions {
    /// Sums of products, as the definition has them.
    #[default]
    Plain,
    /// Winograd's minimal filtering ([`Algorithm::Winograd`]) where it saves a fifth of the time or more; it rounds differently.
    Winograd,
}

impl Convolutions {
    /// All.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Winograd];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Winograd => "winograd",
        }
    }
}

impl FromStr for Convolutions {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|convolutions| convolutions.name() == name);
        found.ok_or_else(|| format!("`{name}` is no arithmetic of convolutions: give plain or winograd"))
    }
}

impl Graph {
    /// This iteration with another arithmetic in its convolutions and their gradients; this graph has the plain one.
    pub fn with_convolutions(mut self, convolutions: Convolutions) -> Self {
        if convolutions == Convolutions::Winograd {
            for op in self.nodes.ids() {
                let kind = &self.nodes[op].kind;
                if gains(kind)
                    && let Some(kind) = kind.computed_by(Algorithm::Winograd)
                {
                    self.nodes[op].kind = kind;
                }
            }
        }
        self
    }

    /// The arithmetic of its convolutions.
    pub fn convolutions(&self) -> Convolutions {
        let mut convolutions = self.nodes.values().filter_map(|node| node.kind.conv());
        match convolutions.all(|conv| conv.algorithm.has_usual_bits()) {
            true => Convolutions::Plain,
            false => Convolutions::Winograd,
        }
    }
}

/// Inputs and outputs are filled up to multiples of these.
const MULTIPLES: [u128; 2] = [16, 32];

/// What transforms take, in multiply-adds of the matrix product.
struct Transforms {
    /// Those of one channel of a patch and of its results.
    channel: u128,
    /// That of the weights of one pair of channels, or of their sums.
    weights: u128,
}

impl Transforms {
    /// As measured on an AMD EPYC (Zen 4), whose matrix product takes half of the time for bf16 numbers. Sums of weights are a table that is
    /// larger than a cache.
    const fn of(bf16: bool, to_weights: bool) -> Self {
        let (channel, weights) = match (bf16, to_weights) {
            (false, false) => (100, 200),
            (false, true) => (100, 700),
            (true, false) => (180, 300),
            (true, true) => (250, 1400),
        };
        Self { channel, weights }
    }
}

/// Whether Winograd's algorithm takes at most four fifths of the time of the plain one.
fn gains(kind: &OpKind) -> bool {
    let (bf16, kind) = (matches!(kind, OpKind::Mixed(_)), kind.formula());
    let (conv, [inputs, outputs], positions) = match kind {
        OpKind::Conv2d { conv, .. } | OpKind::Conv2dGradWeight(conv) => {
            (conv, [conv.in_channels, conv.out_channels], conv.out_size)
        }
        OpKind::Conv2dGradInput(conv) => (conv, [conv.out_channels, conv.in_channels], conv.in_size),
        _ => return false,
    };
    if !conv.suits_winograd() {
        return false;
    }
    // Extents may be those of a network that no memory holds.
    let [batch, inputs, outputs] = [conv.batch, inputs, outputs].map(|extent| extent as u128);
    let positions = positions.map(|extent| extent as u128);
    let tiles = batch * positions[0].div_ceil(2) * positions[1].div_ceil(2);
    let filled = [inputs.next_multiple_of(MULTIPLES[0]), outputs.next_multiple_of(MULTIPLES[1])];
    let transforms = Transforms::of(bf16, matches!(kind, OpKind::Conv2dGradWeight(_)));
    let transforms =
        transforms.channel * tiles * (filled[0] + filled[1]) + transforms.weights * inputs * outputs;
    let winograd = 16 * tiles * filled[0] * filled[1] + transforms;
    let plain = 9 * batch * positions[0] * positions[1] * inputs * outputs;
    5 * winograd <= 4 * plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::{Conv, Window};
    use crate::op::Mixed;
    use crate::precision::Precision;
    use crate::shape::DType;
    use crate::zoo::{self, Options};

    fn conv(batch: usize, [in_channels, out_channels]: [usize; 2], size: usize, window: Window) -> Conv {
        let out_size = window.output([size; 2]).unwrap();
        let algorithm = Algorithm::default();
        Conv { batch, in_channels, in_size: [size; 2], out_channels, out_size, window, algorithm }
    }

    /// A convolution, its gradient to the input, and that to the weights.
    fn kinds(conv: Conv) -> [OpKind; 3] {
        [OpKind::Conv2d { conv, bias: false }, OpKind::Conv2dGradInput(conv), OpKind::Conv2dGradWeight(conv)]
    }

    #[test]
    fn what_gains_is_what_was_measured_to() {
        let square = Window::square(3, 1, 1);
        // Times on one thread of an AMD EPYC (Zen 4), divided by those of the plain ones, are in the comments: in f32, and in bf16.
        let cases = [
            // 0.54, 0.54, 0.60; 0.60, 0.58, 0.71
            (conv(64, [64, 64], 32, square), [true; 3], [true; 3]),
            // 0.61, 0.62, 0.75; 0.66, 0.66, 0.82
            (conv(16, [512, 512], 7, square), [true; 3], [true, true, false]),
            // 0.53, 0.59, 0.63; 0.58, 0.64, 0.47
            (conv(8, [128, 32], 28, square), [true; 3], [true; 3]),
            // 0.57, 0.56, 0.82; 0.71, 0.68, 1.09
            (conv(1, [512, 512], 14, square), [true, true, false], [true, true, false]),
            // 2.83, 1.95, 3.37; 2.68, 1.39, 4.29
            (conv(4, [3, 64], 112, square), [false; 3], [false; 3]),
            // 0.70, 0.65, 1.70; 1.04, 0.68, 2.44
            (conv(1, [512, 512], 7, square), [false; 3], [false; 3]),
            // 1.03, 1.03, 0.90; 1.06, 1.06, 0.96
            (conv(64, [16, 16], 32, square), [false; 3], [false; 3]),
            (conv(64, [64, 64], 32, Window::square(3, 2, 1)), [false; 3], [false; 3]),
            (conv(64, [64, 64], 32, Window::square(5, 1, 2)), [false; 3], [false; 3]),
            (conv(64, [64, 64], 32, Window::square(1, 1, 0)), [false; 3], [false; 3]),
        ];
        for (conv, in_f32, in_bf16) in cases {
            assert_eq!(kinds(conv).map(|kind| gains(&kind)), in_f32, "{conv:?}");
            let mixed = |kind: OpKind| {
                let signature = kind.signature();
                let inputs = vec![DType::Bf16; signature.inputs.len()];
                OpKind::Mixed(Box::new(Mixed { kind, inputs, outputs: vec![DType::F32] }))
            };
            assert_eq!(kinds(conv).map(|kind| gains(&mixed(kind))), in_bf16, "{conv:?}");
        }
    }

    #[test]
    fn a_graph_changes_in_its_algorithms_alone() {
        let floats = zoo::build("resnet18", &Options::new(64)).unwrap();
        for precision in [Precision::F32, Precision::Bf16] {
            let plain = floats.in_precision(precision).unwrap();
            let graph = plain.clone().with_convolutions(Convolutions::Winograd);
            assert_eq!([plain.convolutions(), graph.convolutions()], Convolutions::ALL);
            let mut changed = 0;
            for (node, before) in graph.nodes.values().zip(plain.nodes.values()) {
                if node.kind == before.kind {
                    continue;
                }
                assert_eq!(node.kind.computed_by(Algorithm::default()).as_ref(), Some(&before.kind));
                changed += 1;
            }
            assert!(changed > 30, "{changed}");
            assert_eq!(plain.clone().with_convolutions(Convolutions::Plain).nodes, plain.nodes);
        }
    }

    #[test]
    fn names_are_read_back() {
        for convolutions in Convolutions::ALL {
            assert_eq!(convolutions.name().parse(), Ok(convolutions));
        }
        assert!("direct".parse::<Convolutions>().unwrap_err().contains("plain or winograd"));
    }
}
