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

/// Height and width of the patches of one class in [`Synthetic::segments`].
const PATCH: usize = 8;

/// Centres around which [`Synthetic::points`] lie.
const CENTRES: u64 = 32;

impl Synthetic {
    /// One iteration's images to be segmented: every patch of an image has a class, which its pixels show under noise.
    pub(super) fn segments(self, first: u64, shape: ImageShape, pixels: &mut [f32], labels: &mut [i32]) {
        let plane = shape.height * shape.width;
        let images = pixels.chunks_exact_mut(shape.channels * plane).zip(labels.chunks_exact_mut(plane));
        for (i, (image, labels)) in images.enumerate() {
            let sample = mix(self.seed, first + i as u64);
            for (j, label) in labels.iter_mut().enumerate() {
                let (row, column) = (j / shape.width / PATCH, j % shape.width / PATCH);
                let patch = (row * shape.width.div_ceil(PATCH) + column) as u64;
                *label = (mix(sample, patch) % shape.classes as u64) as i32;
            }
            for (j, x) in image.iter_mut().enumerate() {
                let colour = mix(self.seed ^ 0xc01, labels[j % plane] as u64);
                *x =
                    0.5 * uniform(mix(sample ^ 0x9015e, j as u64)) + uniform(mix(colour, (j / plane) as u64));
            }
        }
    }

    /// One iteration's points, of so many columns each, around a few centres.
    pub(super) fn points(self, first: u64, [_, width]: [usize; 2], points: &mut [f32]) {
        for (i, point) in points.chunks_exact_mut(width).enumerate() {
            let sample = mix(self.seed, first + i as u64);
            let centre = mix(self.seed ^ 0xce, sample % CENTRES);
            for (j, x) in point.iter_mut().enumerate() {
                *x = 2.0 * uniform(mix(centre, j as u64)) + 0.2 * uniform(mix(sample, j as u64));
            }
        }
    }
}

impl Images for Synthetic {
    fn fill(
        &mut self,
        first: u64,
        shape: ImageShape,
        pixels: &mut [f32],
        labels: &mut [i32],
    ) -> Result<(), DataError> {
        let size = shape.channels * shape.height * shape.width;
        for (i, (image, label)) in pixels.chunks_exact_mut(size).zip(labels).enumerate() {
            let sample = mix(self.seed, first + i as u64);
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
        first: u64,
        shape: TokenShape,
        tokens: &mut [i32],
        following: &mut [i32],
    ) -> Result<(), DataError> {
        let vocabulary = shape.vocabulary as u64;
        let next = |token: u64| mix(self.seed ^ 0x7ab1e, token) % vocabulary;
        let rows = tokens.chunks_exact_mut(shape.length).zip(following.chunks_exact_mut(shape.length));
        for (i, (tokens, following)) in rows.enumerate() {
            let mut token = mix(self.seed, first + i as u64) % vocabulary;
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

    #[test]
    fn pixels_show_their_class_and_points_their_centre() {
        let shape = ImageShape { batch: 2, channels: 3, height: 20, width: 20, classes: 4 };
        let (mut pixels, mut labels) = (vec![0.0; 2 * 1200], vec![0; 2 * 400]);
        Synthetic { seed: 3 }.segments(5, shape, &mut pixels, &mut labels);
        assert!(
            (0..4).all(|class| labels.contains(&class)) && labels.iter().all(|class| (0..4).contains(class))
        );
        // Pixels of one class differ by noise alone, wherever they are.
        for class in 0..4 {
            let of_class: Vec<f32> = (0..400).filter(|&i| labels[i] == class).map(|i| pixels[i]).collect();
            let least = of_class.iter().copied().fold(f32::INFINITY, f32::min);
            assert!(of_class.iter().all(|x| x - least <= 1.0));
        }

        let mut points = vec![0.0; 1000 * 3];
        Synthetic { seed: 3 }.points(5, [1000, 3], &mut points);
        // Two points of one centre differ by noise alone.
        let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 0.4);
        let mut found: Vec<&[f32]> = Vec::new();
        for point in points.chunks_exact(3) {
            if !found.iter().any(|other| near(point, other)) {
                found.push(point);
            }
        }
        assert!((8..=CENTRES as usize).contains(&found.len()), "{} centres", found.len());
    }
}
