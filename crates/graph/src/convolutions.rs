//! The same iteration with other arithmetic in its convolutions: Winograd's where windows are 3×3 at a stride of one and it saves time.
//!
//! Shapes alone decide, so that the bits of a result depend neither on the limit, nor on the machine or its clock.

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
    /// Winograd's minimal filtering ([`Algorithm::Winograd`]) where it saves a fifth of the time or more, in `f32`; it rounds differently.
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
/// What the transforms of one channel of a patch and of its results take, in multiply-adds of a matrix product.
const TRANSFORM: u128 = 100;
/// What the transform of the weights of one pair of channels takes, in the same unit.
const WEIGHTS: u128 = 200;

/// Whether Winograd's algorithm takes at most four fifths of the time of the plain one.
fn gains(kind: &OpKind) -> bool {
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
    let transforms = TRANSFORM * tiles * (filled[0] + filled[1]) + WEIGHTS * inputs * outputs;
    let winograd = 16 * tiles * filled[0] * filled[1] + transforms;
    let plain = 9 * batch * positions[0] * positions[1] * inputs * outputs;
    5 * winograd <= 4 * plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::{Conv, Window};
    use crate::precision::Precision;
    use crate::zoo::{self, Options};

    fn conv(batch: usize, [in_channels, out_channels]: [usize; 2], size: usize, window: Window) -> Conv {
        let out_size = window.output([size; 2]).unwrap();
        let algorithm = Algorithm::default();
        Conv { batch, in_channels, in_size: [size; 2], out_channels, out_size, window, algorithm }
    }

    #[test]
    fn what_gains_is_what_was_measured_to() {
        let square = Window::square(3, 1, 1);
        // Times on one thread of an AMD EPYC (Zen 4), divided by those of the plain ones, are in the comments.
        let gain = [
            conv(64, [64, 64], 32, square),  // 0.57
            conv(16, [512, 512], 7, square), // 0.68
            conv(8, [128, 32], 28, square),  // 0.55
            conv(1, [512, 512], 14, square), // 0.56
        ];
        let lose = [
            conv(4, [3, 64], 112, square), // 3.0
            conv(1, [512, 512], 7, square),
            conv(32, [16, 16], 32, square),
            conv(64, [64, 64], 32, Window::square(3, 2, 1)),
            conv(64, [64, 64], 32, Window::square(5, 1, 2)),
            conv(64, [64, 64], 32, Window::square(1, 1, 0)),
        ];
        for (conv, gaining) in gain.map(|conv| (conv, true)).into_iter().chain(lose.map(|conv| (conv, false)))
        {
            let kinds = [OpKind::Conv2d { conv, bias: false }, OpKind::Conv2dGradWeight(conv)];
            for kind in kinds.iter().chain([&OpKind::Conv2dGradInput(conv)]) {
                assert_eq!(gains(kind), gaining, "{kind:?}");
            }
        }
    }

    #[test]
    fn a_graph_changes_in_its_algorithms_alone() {
        let plain = zoo::build("resnet18", &Options::new(8)).unwrap();
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
        // Products of bf16 numbers stay as they are.
        let bf16 = plain.in_precision(Precision::Bf16).unwrap();
        assert_eq!(bf16.clone().with_convolutions(Convolutions::Winograd).nodes, bf16.nodes);
    }

    #[test]
    fn names_are_read_back() {
        for convolutions in Convolutions::ALL {
            assert_eq!(convolutions.name().parse(), Ok(convolutions));
        }
        assert!("direct".parse::<Convolutions>().unwrap_err().contains("plain or winograd"));
    }
}
