//! Initial values of parameters: functions of a seed, the same on any number of threads.

use crate::normal::{LANES, Tables, pairs, unit};
use crate::philox::philox_lanes;

/// Initial values of a persistent tensor. Random ones are drawn by Philox with the run's seed as key, from the parameter's own stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All elements have this value.
    Constant(f32),
    /// Independent draws from a normal distribution around zero.
    Normal {
        /// Standard deviation.
        std: f32,
        /// Stream of random words.
        stream: u32,
    },
    /// Independent draws from `−bound..bound`.
    Uniform {
        /// Half the width.
        bound: f32,
        /// Stream of random words.
        stream: u32,
    },
}

impl Init {
    /// Writes the elements from `start` on into `part`. Parts of one tensor may be filled in any order.
    ///
    /// This is compiled along with its caller, which may enable wider vectors. What it calls is as well, so no iterator takes a closure there.
    #[inline(always)]
    pub fn fill(&self, seed: u64, start: usize, part: &mut [f32]) {
        let (distribution, scale, stream) = match *self {
            Self::Constant(value) => return part.fill(value),
            Self::Normal { std, stream } => (Distribution::Normal(Tables::get()), std, stream),
            Self::Uniform { bound, stream } => (Distribution::Uniform, bound, stream),
        };
        let draws = Draws { distribution, scale, stream, key: [seed as u32, (seed >> 32) as u32] };
        // Elements that precede the first whole group.
        let (skipped, before) = (start % GROUP, start.next_multiple_of(GROUP) - start);
        let (head, rest) = part.split_at_mut(before.min(part.len()));
        if !head.is_empty() {
            head.copy_from_slice(&draws.group(start / GROUP)[skipped..][..head.len()]);
        }
        for (index, chunk) in rest.chunks_mut(GROUP).enumerate() {
            chunk.copy_from_slice(&draws.group(start.div_ceil(GROUP) + index)[..chunk.len()]);
        }
    }
}

/// The iteration number used for initial values. No run reaches it, so no dropout mask repeats their words.
const BEFORE_ALL: u32 = u32::MAX;

/// Elements drawn together: those of a block of four words for each lane.
const GROUP: usize = 4 * LANES;

/// The random elements of one tensor. Element `i` is made of the words of block `i / 4`.
struct Draws<'a> {
    distribution: Distribution<'a>,
    scale: f32,
    stream: u32,
    key: [u32; 2],
}

enum Distribution<'a> {
    /// Standard normal: two words make two elements.
    Normal(&'a Tables),
    /// From `−1..1`: a word for each element.
    Uniform,
}

impl Draws<'_> {
    /// The elements from `GROUP · group` on.
    #[inline(always)]
    fn group(&self, group: usize) -> [f32; GROUP] {
        let first = (group * LANES) as u32;
        let words = philox_lanes(first, [self.stream, BEFORE_ALL, BEFORE_ALL], self.key);
        let columns = match self.distribution {
            Distribution::Normal(tables) => {
                let [a, b] = pairs(tables, &words[0], &words[1]);
                let [c, d] = pairs(tables, &words[2], &words[3]);
                [a, b, c, d]
            }
            Distribution::Uniform => {
                let mut columns = [[0.0; LANES]; 4];
                for (column, words) in columns.iter_mut().zip(&words) {
                    for (value, &word) in column.iter_mut().zip(words) {
                        *value = 2.0 * unit(word) - 1.0;
                    }
                }
                columns
            }
        };
        let mut elements = [0.0; GROUP];
        for (lane, block) in elements.chunks_exact_mut(4).enumerate() {
            for (element, column) in block.iter_mut().zip(&columns) {
                *element = self.scale * column[lane];
            }
        }
        elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_agree_with_the_whole_and_seeds_differ() {
        for init in [Init::Normal { std: 0.5, stream: 3 }, Init::Uniform { bound: 2.0, stream: 3 }] {
            let (mut whole, mut parts, mut other) = (vec![0.0; 1003], vec![0.0; 1003], vec![0.0; 1003]);
            init.fill(7, 0, &mut whole);
            init.fill(7, 402, &mut parts[402..]);
            init.fill(7, 401, &mut parts[401..402]);
            init.fill(7, 0, &mut parts[..401]);
            init.fill(8, 0, &mut other);
            assert_eq!(whole, parts);
            assert_ne!(whole, other);
        }
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let moments = |init: Init| {
            let mut values = vec![0.0; 1 << 18];
            init.fill(1, 0, &mut values);
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
            let square =
                values.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / values.len() as f64;
            (mean, square - mean * mean)
        };
        let (mean, variance) = moments(Init::Normal { std: 2.0, stream: 0 });
        assert!(mean.abs() < 0.02 && (variance - 4.0).abs() < 0.05, "{mean} {variance}");
        let (mean, variance) = moments(Init::Uniform { bound: 3.0, stream: 1 });
        assert!(mean.abs() < 0.02 && (variance - 3.0).abs() < 0.05, "{mean} {variance}");
    }
}
