//! Augmentation of images: shifted and mirrored copies, decided by the seed and the position of the sample in the sequence of epochs alone, so
//! that a resumed training sees what an uninterrupted one would have seen.

use super::batch::ImageBatch;
use super::order::mix;

/// Separates the random words of augmentation from those of the order.
const STREAM: u64 = 0x6175_676d_656e_7421;

/// How images are changed before a training sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Augmentation {
    /// Whether half of the images are mirrored, left to right.
    pub flip: bool,
    /// Pixels by which an image is shifted at most in every direction, as if it were padded with zeros and cropped.
    pub crop: usize,
}

impl Augmentation {
    /// Changes the images of a batch whose first sample has this position.
    pub(super) fn apply(self, batch: &mut ImageBatch<'_>, seed: u64, first: u64) {
        let shape = batch.shape;
        let plane = (shape.height * shape.width).max(1);
        let mut moved = vec![0.0; plane];
        for (at, image) in batch.pixels.chunks_exact_mut(plane * shape.channels.max(1)).enumerate() {
            let word = mix(seed ^ STREAM, first + at as u64);
            let flip = self.flip && word & 1 == 1;
            let span = 2 * self.crop as u64 + 1;
            let shift = |word: u64| (word % span) as isize - self.crop as isize;
            let (down, right) = (shift(word >> 1 & 0xffff_ffff), shift(word >> 33));
            for pixels in image.chunks_exact_mut(plane) {
                for (y, row) in moved.chunks_exact_mut(shape.width).enumerate() {
                    for (x, out) in row.iter_mut().enumerate() {
                        let x = if flip { shape.width - 1 - x } else { x };
                        let from = (y.checked_add_signed(down), x.checked_add_signed(right));
                        *out = match from {
                            (Some(y), Some(x)) if y < shape.height && x < shape.width => {
                                pixels[y * shape.width + x]
                            }
                            _ => 0.0,
                        };
                    }
                }
                pixels.copy_from_slice(&moved);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::zoo::{self, Options};

    use super::super::Batch;
    use super::*;

    #[test]
    fn images_are_shifted_and_mirrored_by_seed_and_position() {
        let graph = zoo::build("resnet20", &Options::new(64).image(4)).unwrap();
        let augmented = |augmentation: Augmentation, first: u64| {
            let mut batch = Batch::new(&graph);
            for (i, x) in batch.reals("images", &[3, 4, 4]).unwrap().iter_mut().enumerate() {
                *x = (i % 16 + 1) as f32;
            }
            augmentation.apply(&mut batch.images("a test").unwrap(), 9, first);
            batch.reals("images", &[3, 4, 4]).unwrap().to_vec()
        };
        let plain: Vec<f32> = (1..=16).map(|x| x as f32).collect();
        let mirrored: Vec<f32> = plain.chunks(4).flat_map(|row| row.iter().rev().copied()).collect();
        let flipped = augmented(Augmentation { flip: true, crop: 0 }, 0);
        let count = flipped.chunks(48).filter(|image| image[..16] == mirrored).count();
        assert!((16..48).contains(&count), "{count}");
        assert!(flipped.chunks(16).all(|plane| plane == plain || plane == mirrored));
        assert!(flipped.chunks(48).all(|image| image[..16] == image[16..32]), "channels move together");
        let cropped = augmented(Augmentation { flip: false, crop: 2 }, 0);
        for image in cropped.chunks(48) {
            let kept: Vec<f32> = image[..16].iter().copied().filter(|x| *x != 0.0).collect();
            assert!(kept.len() >= 4 && kept.is_sorted());
        }
        let both = Augmentation { flip: true, crop: 2 };
        assert_eq!(
            augmented(both, 32)[..48 * 32],
            augmented(both, 0)[48 * 32..],
            "the position decides, not the batch"
        );
        assert_eq!(augmented(Augmentation::default(), 0)[..16], plain[..]);
    }
}
