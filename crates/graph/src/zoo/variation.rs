//! What changes about a network from one iteration to the next.

use super::{resnet, seq2seq};
use crate::builder::Mode;

/// How the structure of a network varies between iterations. The parameters are the same in every structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Variation {
    /// Parts of the network are left out at random: [`Options::draw`](super::Options::draw) decides which.
    Random,
    /// Sequences have other lengths in every batch: [`Options::length`](super::Options::length) and
    /// [`Options::target`](super::Options::target).
    Lengths {
        /// Tokens of the longest sequence if the user names none.
        longest: usize,
    },
}

/// How the network of this name varies between iterations; `None` if it does not, or if no network has this name.
pub fn variation(name: &str, mode: Mode) -> Option<Variation> {
    if name == seq2seq::NAME {
        return Some(seq2seq::variation(mode));
    }
    name.starts_with(resnet::STOCHASTIC).then(|| resnet::variation(mode)).flatten()
}

#[cfg(test)]
mod tests {
    use super::super::{NAMES, Options, build};
    use super::*;

    #[test]
    fn a_network_varies_exactly_if_its_options_change_its_graph() {
        for name in NAMES.iter().map(|name| name.replace("resnetN", "resnet20")) {
            for mode in [Mode::Training, Mode::Inference] {
                let options = Options::new(1).mode(mode);
                let nodes = |options: &Options| build(&name, options).unwrap().nodes;
                let drawn = (0..4).any(|draw| nodes(&options.clone().draw(draw)) != nodes(&options));
                assert_eq!(drawn, variation(&name, mode) == Some(Variation::Random), "{name} {mode:?}");
                let target = nodes(&options.clone().target(3)) != nodes(&options);
                let lengths = matches!(variation(&name, mode), Some(Variation::Lengths { .. }));
                assert_eq!(target, lengths, "{name} {mode:?}");
            }
        }
        assert_eq!(variation("seq2seq", Mode::Inference), Some(Variation::Lengths { longest: 100 }));
        assert_eq!(variation("no such network", Mode::Training), None);
    }
}
