//! CIFAR-10 in its binary version: files `data_batch_1.bin` … of records of one label byte and 3 × 32 × 32 pixel bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::batch::ImageBatch;
use super::{Batch, DataError, Dataset};

const SIDE: usize = 32;
const CHANNELS: usize = 3;
const PIXELS: usize = CHANNELS * SIDE * SIDE;
const RECORD: usize = 1 + PIXELS;
const CLASSES: usize = 10;
/// Training files of the whole set.
const FILES: usize = 5;
/// Mean and standard deviation of the training set, per channel, of pixels scaled to 0..1.
const NORMAL: [(f32, f32); CHANNELS] = [(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)];

/// The file of test images.
const TEST: &str = "test_batch.bin";

/// Opens a file of whole records and counts them.
fn open_part(path: PathBuf) -> Result<(PathBuf, File, u64), DataError> {
    let file = File::open(&path).map_err(DataError::io(&path))?;
    let len = file.metadata().map_err(DataError::io(&path))?.len();
    let records = len / RECORD as u64;
    if len == 0 || len % RECORD as u64 != 0 {
        let why = format!("{len} bytes are no multiple of {RECORD}-byte records; download it again");
        return Err(DataError::Format { path, format: "CIFAR-10", why });
    }
    Ok((path, file, records))
}

/// The training files of one folder, or its test file.
#[derive(Debug)]
pub struct Cifar10 {
    /// The files with the number of records in each.
    files: Vec<(PathBuf, File, u64)>,
    samples: u64,
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

    /// Opens all training files in a folder, and checks that each holds whole records.
    ///
    /// # Errors
    ///
    /// [`DataError::Unknown`] if there is none, [`DataError::Format`] if one is cut off or missing.
    pub fn open(folder: &Path) -> Result<Self, DataError> {
        let mut files = Vec::new();
        let mut samples = 0;
        for path in (1..).map(|number| Self::file(folder, number)).take_while(|path| path.is_file()) {
            let part = open_part(path)?;
            samples += part.2;
            files.push(part);
        }
        if files.is_empty() {
            return Err(DataError::Unknown(folder.to_owned()));
        }
        // Nothing else would notice a missing part: training would see fewer images.
        let missing = files.len() + 1;
        if let Some(later) = (missing + 1..=FILES).map(|n| Self::file(folder, n)).find(|p| p.is_file()) {
            let why = format!("it is missing, though {} is there", later.display());
            return Err(DataError::Format { path: Self::file(folder, missing), format: "CIFAR-10", why });
        }
        Ok(Self { files, samples, record: vec![0; RECORD] })
    }

    /// Whether a folder holds the test file, or the path is a file that is named like it.
    pub fn is_test_in(path: &Path) -> bool {
        path.join(TEST).is_file() || path.is_file() && path.extension().is_some_and(|end| end == "bin")
    }

    /// Opens the test file in a folder, or one file of records, and checks that it holds whole records.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if it cannot be opened, [`DataError::Format`] if it is cut off.
    pub fn open_test(path: &Path) -> Result<Self, DataError> {
        let file = if path.is_file() { path.to_owned() } else { path.join(TEST) };
        let part = open_part(file)?;
        Ok(Self { samples: part.2, files: vec![part], record: vec![0; RECORD] })
    }

    /// Reads the record of a sample.
    fn read(&mut self, sample: u64) -> Result<(), DataError> {
        let mut index = sample;
        for (path, file, records) in &self.files {
            if index < *records {
                let at = index * RECORD as u64;
                file.read_exact_at(&mut self.record, at).map_err(DataError::io(path))?;
                if usize::from(self.record[0]) < CLASSES {
                    return Ok(());
                }
                let why = format!("record {index} has label {}; labels are 0 to 9", self.record[0]);
                return Err(DataError::Format { path: path.clone(), format: "CIFAR-10", why });
            }
            index -= records;
        }
        Err(DataError::Index { index: sample, samples: self.samples })
    }
}

impl Dataset for Cifar10 {
    fn samples(&self) -> Option<u64> {
        Some(self.samples)
    }

    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        let ImageBatch { shape, pixels, labels } = batch.images("CIFAR-10")?;
        if (shape.channels, shape.height, shape.width) != (CHANNELS, SIDE, SIDE) || shape.classes < CLASSES {
            return Err(DataError::Mismatch(format!(
                "CIFAR-10 has 3×32×32 images of 10 classes, the network takes {}×{}×{} of {}; use --image 32 --classes 10",
                shape.channels, shape.height, shape.width, shape.classes
            )));
        }
        for (i, (image, &index)) in pixels.chunks_exact_mut(PIXELS).zip(indices).enumerate() {
            self.read(index)?;
            if let Some(label) = labels.get_mut(i) {
                *label = i32::from(self.record[0]);
            }
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
    use elbowroom_graph::zoo;

    use super::*;

    /// The inputs of a network for three images.
    fn batch() -> Batch {
        let options = zoo::Options::new(3).width(1);
        Batch::new(&zoo::build("resnet20", &options).unwrap())
    }

    fn write(folder: &Path, number: usize, records: &[(u8, u8)]) {
        let bytes: Vec<u8> = records
            .iter()
            .flat_map(|&(label, pixel)| std::iter::once(label).chain(std::iter::repeat_n(pixel, PIXELS)))
            .collect();
        std::fs::write(Cifar10::file(folder, number), bytes).unwrap();
    }

    #[test]
    fn records_of_all_files_are_found_by_index() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 1, &[(0, 10), (1, 11)]);
        write(folder.path(), 2, &[(2, 12)]);
        let mut data = Cifar10::open(folder.path()).unwrap();
        assert_eq!(data.samples(), Some(3));
        let mut batch = batch();
        data.fill(&[2, 0, 1], &mut batch).unwrap();
        let labels = batch.classes("labels", &[]).unwrap().to_vec();
        assert_eq!(labels, [2, 0, 1]);
        let pixels = batch.reals("images", &[3, 32, 32]).unwrap();
        for (image, label) in pixels.chunks(PIXELS).zip(labels) {
            let expected = ((10 + label) as f32 / 255.0 - 0.4914) / 0.2470;
            assert_eq!(image[0], expected);
        }
        let error = data.fill(&[0, 3, 1], &mut batch).unwrap_err();
        assert!(matches!(error, DataError::Index { index: 3, samples: 3 }), "{error}");
    }

    #[test]
    fn truncated_files_and_wrong_labels_are_named() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 1, &[(0, 0)]);
        std::fs::write(Cifar10::file(folder.path(), 2), vec![0; RECORD - 1]).unwrap();
        let message = Cifar10::open(folder.path()).unwrap_err().to_string();
        assert!(message.contains("data_batch_2.bin") && message.contains("3072 bytes"), "{message}");

        std::fs::remove_file(Cifar10::file(folder.path(), 2)).unwrap();
        write(folder.path(), 4, &[(0, 0)]);
        let message = Cifar10::open(folder.path()).unwrap_err().to_string();
        assert!(message.contains("data_batch_2.bin") && message.contains("data_batch_4.bin"), "{message}");
        std::fs::remove_file(Cifar10::file(folder.path(), 4)).unwrap();

        write(folder.path(), 2, &[(77, 0)]);
        let mut data = Cifar10::open(folder.path()).unwrap();
        let error = data.fill(&[0, 1, 0], &mut batch()).unwrap_err();
        assert!(error.to_string().contains("label 77"), "{error}");
    }
}
