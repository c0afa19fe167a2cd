//! CIFAR-10 in its binary version: files `data_batch_1.bin` … of records of one label byte and 3 × 32 × 32 pixel bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::order::EpochOrder;
use super::{DataError, ImageShape, Images};

const SIDE: usize = 32;
const CHANNELS: usize = 3;
const PIXELS: usize = CHANNELS * SIDE * SIDE;
const RECORD: usize = 1 + PIXELS;
const CLASSES: usize = 10;
/// Training files of the whole set.
const FILES: usize = 5;
/// Mean and standard deviation of the training set, per channel, of pixels scaled to 0..1.
const NORMAL: [(f32, f32); CHANNELS] = [(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)];

/// The training files of one folder.
#[derive(Debug)]
pub struct Cifar10 {
    files: Vec<(PathBuf, File, u32)>,
    order: EpochOrder,
    record: Vec<u8>,
}

impl Cifar10 {
    fn file(folder: &Path, number: usize) -> PathBuf {
        folder.join(format!("data_batch_{number}.bin"))
    }

    /// Whether a folder holds at least the first training file.
    pub fn is_in(folder: &Path) -> bool {
        Self::file(folder, 1).is_file()
    }

    /// Opens all training files that are there, and checks that each holds whole records.
    pub fn open(folder: &Path, seed: u64) -> Result<Self, DataError> {
        let mut files = Vec::new();
        let mut samples = 0u32;
        for path in (1..).map(|number| Self::file(folder, number)).take_while(|path| path.is_file()) {
            let file = File::open(&path).map_err(DataError::io(&path))?;
            let len = file.metadata().map_err(DataError::io(&path))?.len();
            let records = u32::try_from(len / RECORD as u64).unwrap_or(0);
            if len == 0 || len % RECORD as u64 != 0 || records == 0 {
                let why = format!("{len} bytes are no multiple of {RECORD}-byte records; download it again");
                return Err(DataError::Format { path, format: "CIFAR-10", why });
            }
            samples = samples.saturating_add(records);
            files.push((path, file, records));
        }
        if files.is_empty() {
            return Err(DataError::Unknown(folder.to_owned()));
        }
        // A part that is missing would go unnoticed: training would see fewer images.
        let missing = files.len() + 1;
        if let Some(later) = (missing + 1..=FILES).map(|n| Self::file(folder, n)).find(|p| p.is_file()) {
            let why = format!("it is missing, though {} is there", later.display());
            return Err(DataError::Format { path: Self::file(folder, missing), format: "CIFAR-10", why });
        }
        Ok(Self { files, order: EpochOrder::new(samples, seed), record: vec![0; RECORD] })
    }

    fn read(&mut self, sample: u32) -> Result<(), DataError> {
        let mut index = sample;
        for (path, file, records) in &self.files {
            if index < *records {
                let at = u64::from(index) * RECORD as u64;
                file.read_exact_at(&mut self.record, at).map_err(DataError::io(path))?;
                if usize::from(self.record[0]) < CLASSES {
                    return Ok(());
                }
                let why = format!("record {index} has label {}; labels are 0 to 9", self.record[0]);
                return Err(DataError::Format { path: path.clone(), format: "CIFAR-10", why });
            }
            index -= records;
        }
        unreachable!("the order counts the samples of these files")
    }
}

impl Images for Cifar10 {
    fn fill(
        &mut self,
        first: u64,
        shape: ImageShape,
        pixels: &mut [f32],
        labels: &mut [i32],
    ) -> Result<(), DataError> {
        if (shape.channels, shape.height, shape.width) != (CHANNELS, SIDE, SIDE) || shape.classes < CLASSES {
            return Err(DataError::Mismatch(format!(
                "CIFAR-10 has 3×32×32 images of 10 classes, the network takes {}×{}×{} of {}",
                shape.channels, shape.height, shape.width, shape.classes
            )));
        }
        for (i, (image, label)) in pixels.chunks_exact_mut(PIXELS).zip(labels).enumerate() {
            let sample = self.order.sample(first + i as u64);
            self.read(sample)?;
            *label = i32::from(self.record[0]);
            let planes = self.record[1..].chunks_exact(SIDE * SIDE);
            for ((plane, out), (mean, deviation)) in
                planes.zip(image.chunks_exact_mut(SIDE * SIDE)).zip(NORMAL)
            {
                for (&byte, x) in plane.iter().zip(out) {
                    *x = (f32::from(byte) / 255.0 - mean) / deviation;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ImageShape = ImageShape { batch: 3, channels: 3, height: 32, width: 32, classes: 10 };

    fn write(folder: &Path, number: usize, records: &[(u8, u8)]) {
        let bytes: Vec<u8> = records
            .iter()
            .flat_map(|&(label, pixel)| std::iter::once(label).chain(std::iter::repeat_n(pixel, PIXELS)))
            .collect();
        std::fs::write(Cifar10::file(folder, number), bytes).unwrap();
    }

    #[test]
    fn records_of_all_files_arrive_once_an_epoch() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 1, &[(0, 10), (1, 11)]);
        write(folder.path(), 2, &[(2, 12)]);
        let mut data = Cifar10::open(folder.path(), 1).unwrap();
        let (mut pixels, mut labels) = (vec![0.0; 3 * PIXELS], vec![0; 3]);
        data.fill(0, SHAPE, &mut pixels, &mut labels).unwrap();
        for (image, &label) in pixels.chunks(PIXELS).zip(&labels) {
            let expected = ((10 + label) as f32 / 255.0 - 0.4914) / 0.2470;
            assert_eq!(image[0], expected);
        }
        labels.sort_unstable();
        assert_eq!(labels, [0, 1, 2]);
    }

    #[test]
    fn truncated_files_and_wrong_labels_are_named() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 1, &[(0, 0)]);
        std::fs::write(Cifar10::file(folder.path(), 2), vec![0; RECORD - 1]).unwrap();
        let message = Cifar10::open(folder.path(), 0).unwrap_err().to_string();
        assert!(message.contains("data_batch_2.bin") && message.contains("3072 bytes"), "{message}");

        std::fs::remove_file(Cifar10::file(folder.path(), 2)).unwrap();
        write(folder.path(), 4, &[(0, 0)]);
        let message = Cifar10::open(folder.path(), 0).unwrap_err().to_string();
        assert!(message.contains("data_batch_2.bin") && message.contains("data_batch_4.bin"), "{message}");
        std::fs::remove_file(Cifar10::file(folder.path(), 4)).unwrap();

        write(folder.path(), 2, &[(77, 0)]);
        let mut data = Cifar10::open(folder.path(), 0).unwrap();
        let error = data.fill(0, SHAPE, &mut vec![0.0; 3 * PIXELS], &mut [0; 3]).unwrap_err();
        assert!(error.to_string().contains("label 77"), "{error}");
    }
}
