//! Data made on the spot, with something to learn in it, so that a falling loss means that training works.

use super::order::mix;
use super::{DataError, ImageShape, Images, TokenShape, Tokens};

/// Images whose class is a coarse pattern under noise, and token sequences in which each token decides the next.
#[derive(Clone, Copy, Debug)]
pub struct Synthetic {
    /// Where the numbers start.
    pub seed: u64,
}

/// Uniform in −1..1 from the upper 24 bits.
fn uniform(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1u32 << 23) as f32 - 1.0
}

impl Images for Synthetic {
    fn fill(
        &mut self,
        iteration: u64,
        shape: ImageShape,
        pixels: &mut [f32],
        labels: &mut [i32],
    ) -> Result<(), DataError> {
        let size = shape.channels * shape.height * shape.width;
        for (i, (image, label)) in pixels.chunks_exact_mut(size).zip(labels).enumerate() {
            let sample = mix(self.seed, iteration * shape.batch as u64 + i as u64);
            let class = sample % shape.classes as u64;
            *label = class as i32;
            let pattern = mix(self.seed ^ 0x5eed, class);
            for (j, x) in image.iter_mut().enumerate() {
                // The pattern is coarse (8×8 patches), so that convolutions with strides still see it.
                let (row, column) = (j / shape.width, j % shape.width);
                let patch = uniform(mix(pattern, (row / 8 * shape.width.div_ceil(8) + column / 8) as u64));
                *x = 0.5 * uniform(mix(sample, j as u64)) + patch;
            }
        }
        Ok(())
    }
}

impl Tokens for Synthetic {
    fn fill(
        &mut self,
        iteration: u64,
        shape: TokenShape,
        tokens: &mut [i32],
        following: &mut [i32],
    ) -> Result<(), DataError> {
        let vocabulary = shape.vocabulary as u64;
        let next = |token: u64| mix(self.seed ^ 0x7ab1e, token) % vocabulary;
        let rows = tokens.chunks_exact_mut(shape.length).zip(following.chunks_exact_mut(shape.length));
        for (i, (tokens, following)) in rows.enumerate() {
            let mut token = mix(self.seed, iteration * shape.batch as u64 + i as u64) % vocabulary;
            for (here, after) in tokens.iter_mut().zip(following) {
                *here = token as i32;
                token = next(token);
                *after = token as i32;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_differ_and_repeat() {
        let shape = ImageShape { batch: 2, channels: 3, height: 9, width: 9, classes: 4 };
        let fill = |iteration| {
            let (mut pixels, mut labels) = (vec![0.0; 2 * 243], vec![0; 2]);
            Images::fill(&mut Synthetic { seed: 3 }, iteration, shape, &mut pixels, &mut labels).unwrap();
            (pixels, labels)
        };
        assert_eq!(fill(1), fill(1));
        assert_ne!(fill(1).0, fill(2).0);
        assert!(fill(1).0.iter().all(|x| x.abs() <= 1.5));
    }
}
