//! Synthetic data with something to learn in it, so that a falling loss means that training works.

use super::batch::Kind;
use super::order::mix;
use super::{Batch, DataError, Dataset, ImageShape, TokenShape};

/// Data computed from a seed, without an end: images whose class is a coarse pattern under noise, images with a class for every pixel, points
/// around a few centres, token sequences in which each token determines the next, and numbers with targets that follow from them.
#[derive(Clone, Copy, Debug)]
pub struct Synthetic {
    /// Determines every sample.
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
    /// Images to be segmented: every patch of an image has a class, and the patch's pixels show it under noise.
    fn segments(self, indices: &[u64], shape: ImageShape, pixels: &mut [f32], labels: &mut [i32]) {
        let plane = shape.height * shape.width;
        let images = pixels
            .chunks_exact_mut((shape.channels * plane).max(1))
            .zip(labels.chunks_exact_mut(plane.max(1)));
        for ((image, labels), &index) in images.zip(indices) {
            let sample = mix(self.seed, index);
            for (j, label) in labels.iter_mut().enumerate() {
                let (row, column) = (j / shape.width / PATCH, j % shape.width / PATCH);
                let patch = (row * shape.width.div_ceil(PATCH) + column) as u64;
                *label = (mix(sample, patch) % shape.classes.max(1) as u64) as i32;
            }
            for (j, x) in image.iter_mut().enumerate() {
                let colour = mix(self.seed ^ 0xc01, labels[j % plane] as u64);
                *x =
                    0.5 * uniform(mix(sample ^ 0x9015e, j as u64)) + uniform(mix(colour, (j / plane) as u64));
            }
        }
    }

    /// Points of `width` columns around a few centres.
    fn points(self, indices: &[u64], width: usize, points: &mut [f32]) {
        for (point, &index) in points.chunks_exact_mut(width.max(1)).zip(indices) {
            let sample = mix(self.seed, index);
            let centre = mix(self.seed ^ 0xce, sample % CENTRES);
            for (j, x) in point.iter_mut().enumerate() {
                *x = 2.0 * uniform(mix(centre, j as u64)) + 0.2 * uniform(mix(sample, j as u64));
            }
        }
    }

    /// Images with a class each, which their coarse pattern shows under noise.
    fn images(self, indices: &[u64], shape: ImageShape, pixels: &mut [f32], labels: &mut [i32]) {
        let size = shape.channels * shape.height * shape.width;
        for (i, (image, &index)) in pixels.chunks_exact_mut(size.max(1)).zip(indices).enumerate() {
            let sample = mix(self.seed, index);
            let class = sample % shape.classes.max(1) as u64;
            if let Some(label) = labels.get_mut(i) {
                *label = class as i32;
            }
            let pattern = mix(self.seed ^ 0x5eed, class);
            for (j, x) in image.iter_mut().enumerate() {
                // The pattern is coarse (8×8 patches), so that convolutions with strides still see it.
                let (row, column) = (j / shape.width, j % shape.width);
                let patch = uniform(mix(pattern, (row / 8 * shape.width.div_ceil(8) + column / 8) as u64));
                *x = 0.5 * uniform(mix(sample, j as u64)) + patch;
            }
        }
    }

    /// Numbers with targets, each of which is the mean of two of them.
    fn targets(self, indices: &[u64], sizes: [usize; 2], [reals, targets]: [&mut [f32]; 2]) {
        let [size, wanted] = sizes.map(|size| size.max(1));
        let samples = reals.chunks_exact_mut(size).zip(targets.chunks_exact_mut(wanted));
        for ((reals, targets), &index) in samples.zip(indices) {
            let sample = mix(self.seed, index);
            reals.iter_mut().enumerate().for_each(|(j, x)| *x = uniform(mix(sample, j as u64)));
            for (j, target) in targets.iter_mut().enumerate() {
                *target = 0.5 * (reals[j % size] + reals[(j + 1) % size]);
            }
        }
    }

    /// Sequences in which each token determines the next.
    fn tokens(self, indices: &[u64], shape: TokenShape, tokens: &mut [i32], following: &mut [i32]) {
        let vocabulary = shape.vocabulary.max(1) as u64;
        let next = |token: u64| mix(self.seed ^ 0x7ab1e, token) % vocabulary;
        for (row, (tokens, &index)) in tokens.chunks_exact_mut(shape.length.max(1)).zip(indices).enumerate() {
            let mut token = mix(self.seed, index) % vocabulary;
            for (j, here) in tokens.iter_mut().enumerate() {
                *here = token as i32;
                token = next(token);
                if let Some(after) = following.get_mut(row * shape.length + j) {
                    *after = token as i32;
                }
            }
        }
    }
}

impl Dataset for Synthetic {
    fn samples(&self) -> Option<u64> {
        None
    }

    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        let kind = batch.kind();
        match kind {
            Some(Kind::Tokens(shape)) => {
                let inputs = batch.tokens("synthetic data")?;
                self.tokens(indices, shape, inputs.tokens, inputs.following);
            }
            Some(Kind::Targets(sizes)) => {
                let inputs = batch.reals_and_targets().ok_or_else(unknown)?;
                self.targets(indices, sizes, inputs);
            }
            Some(kind) => {
                let Some((reals, labels)) = batch.reals_and_labels() else { return Err(unknown()) };
                match kind {
                    Kind::Images(shape) => self.images(indices, shape, reals, labels),
                    Kind::Segments(shape) => self.segments(indices, shape, reals, labels),
                    Kind::Points([_, width]) => self.points(indices, width, reals),
                    Kind::Targets(_) | Kind::Tokens(_) => return Err(unknown()),
                }
            }
            None => return Err(unknown()),
        }
        Ok(())
    }
}

fn unknown() -> DataError {
    DataError::Mismatch("there is no synthetic data for the inputs that it takes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_differ_and_repeat() {
        let shape = ImageShape { batch: 2, channels: 3, height: 9, width: 9, classes: 4 };
        let fill = |iteration| {
            let (mut pixels, mut labels) = (vec![0.0; 2 * 243], vec![0; 2]);
            Synthetic { seed: 3 }.images(&[iteration, iteration + 1], shape, &mut pixels, &mut labels);
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
        Synthetic { seed: 3 }.segments(&[5, 6], shape, &mut pixels, &mut labels);
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
        let indices: Vec<u64> = (5..1005).collect();
        Synthetic { seed: 3 }.points(&indices, 3, &mut points);
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
