//! Initial values of parameters: functions of a seed, the same on any number of threads.

use crate::normal::{pair, unit};
use crate::philox::philox;

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
    pub fn fill(&self, seed: u64, start: usize, part: &mut [f32]) {
        match *self {
            Self::Constant(value) => part.fill(value),
            Self::Normal { std, stream } => {
                // Two words make two normals.
                draw(seed, stream, start, part, |[a, b, c, d]| {
                    let ([a, b], [c, d]) = (pair(a, b), pair(c, d));
                    [std * a, std * b, std * c, std * d]
                });
            }
            Self::Uniform { bound, stream } => {
                let value = |word| bound * (2.0 * unit(word) - 1.0);
                draw(seed, stream, start, part, |[a, b, c, d]| [value(a), value(b), value(c), value(d)]);
            }
        }
    }
}

/// The iteration number used for initial values. No run reaches it, so no dropout mask repeats their words.
const BEFORE_ALL: u32 = u32::MAX;

fn draw(seed: u64, stream: u32, start: usize, part: &mut [f32], four: impl Fn([u32; 4]) -> [f32; 4]) {
    let key = [seed as u32, (seed >> 32) as u32];
    let values = |block: usize| four(philox([block as u32, stream, BEFORE_ALL, BEFORE_ALL], key));
    // Elements that precede the first whole block of four.
    let (skipped, before) = (start % 4, start.next_multiple_of(4) - start);
    let (head, rest) = part.split_at_mut(before.min(part.len()));
    if !head.is_empty() {
        head.copy_from_slice(&values(start / 4)[skipped..][..head.len()]);
    }
    for (block, chunk) in rest.chunks_mut(4).enumerate() {
        chunk.copy_from_slice(&values(start.div_ceil(4) + block)[..chunk.len()]);
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
