//! MNIST in its IDX files: `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, big-endian heads, one byte a pixel.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::batch::ImageBatch;
use super::{Batch, DataError, Dataset};

/// The file of test images.
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const IMAGES_MAGIC: u32 = 0x0803;
const LABELS_MAGIC: u32 = 0x0801;
const CLASSES: usize = 10;
/// Maximum height and width of an image, as of the networks. A file with holes states any size without having the bytes.
const LARGEST_SIDE: u32 = 1 << 14;
/// Mean and standard deviation of the training set, of pixels scaled to 0..1.
const MEAN: f32 = 0.1307;
const DEVIATION: f32 = 0.3081;

/// The training files of one folder.
#[derive(Debug)]
pub struct Mnist {
    images: (PathBuf, File),
    labels: (PathBuf, File),
    rows: usize,
    columns: usize,
    samples: u32,
    record: Vec<u8>,
}

/// Opens an IDX file and checks its head against its length; returns its dimensions.
fn open_idx<const N: usize>(path: &Path, magic: u32) -> Result<(File, [u32; N]), DataError> {
    let format = |why: String| DataError::Format { path: path.to_owned(), format: "MNIST", why };
    let file = File::open(path).map_err(DataError::io(path))?;
    let len = file.metadata().map_err(DataError::io(path))?.len();
    let word = |i: u64| {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 4 * i)
            .map_err(|_| format("its head is cut off; download it again".into()))?;
        Ok::<u32, DataError>(u32::from_be_bytes(bytes))
    };
    let found = word(0)?;
    if found != magic {
        return Err(format(format!(
            "it begins with {found:#010x} instead of {magic:#010x}; is it still compressed?"
        )));
    }
    let mut dimensions = [0; N];
    for (i, dimension) in dimensions.iter_mut().enumerate() {
        *dimension = word(1 + i as u64)?;
    }
    let bytes = dimensions.iter().try_fold(1u64, |product, &d| product.checked_mul(u64::from(d)));
    let expected = bytes.and_then(|bytes| bytes.checked_add(4 + 4 * N as u64));
    if dimensions.contains(&0) || expected != Some(len) {
        return Err(format(format!(
            "its head promises {dimensions:?}, but it has {len} bytes; download it again"
        )));
    }
    Ok((file, dimensions))
}

impl Mnist {
    fn images_file(folder: &Path) -> PathBuf {
        folder.join("train-images-idx3-ubyte")
    }

    /// Whether a folder holds the test images.
    pub fn is_test_in(folder: &Path) -> bool {
        folder.join(TEST_IMAGES).is_file()
    }

    /// Opens both test files, as [`open`](Self::open) opens the training files.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_test(folder: &Path) -> Result<Self, DataError> {
        Self::open_pair(folder.join(TEST_IMAGES), folder.join("t10k-labels-idx1-ubyte"))
    }

    /// Whether a folder holds the training images.
    pub fn is_in(folder: &Path) -> bool {
        Self::images_file(folder).is_file()
    }

    /// Opens both training files and checks that they have as many samples.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if a file is missing, [`DataError::Format`] if one is cut off or still compressed.
    pub fn open(folder: &Path) -> Result<Self, DataError> {
        Self::open_pair(Self::images_file(folder), folder.join("train-labels-idx1-ubyte"))
    }

    fn open_pair(images_path: PathBuf, labels_path: PathBuf) -> Result<Self, DataError> {
        let (images, [samples, rows, columns]) = open_idx(&images_path, IMAGES_MAGIC)?;
        let (labels, [labelled]) = open_idx(&labels_path, LABELS_MAGIC)?;
        if rows.max(columns) > LARGEST_SIDE {
            let why =
                format!("its images have {rows}×{columns} pixels; the largest have {LARGEST_SIDE} a side");
            return Err(DataError::Format { path: images_path, format: "MNIST", why });
        }
        if labelled != samples {
            let why = format!("it labels {labelled} images, but there are {samples}");
            return Err(DataError::Format { path: labels_path, format: "MNIST", why });
        }
        Ok(Self {
            images: (images_path, images),
            labels: (labels_path, labels),
            rows: rows as usize,
            columns: columns as usize,
            samples,
            record: vec![0; rows as usize * columns as usize],
        })
    }
}

impl Dataset for Mnist {
    fn samples(&self) -> Option<u64> {
        Some(self.samples.into())
    }

    /// Images are centred in a larger frame and repeated over the network's channels.
    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        let ImageBatch { shape, pixels, labels } = batch.images("MNIST")?;
        if shape.height < self.rows || shape.width < self.columns || shape.classes < CLASSES {
            return Err(DataError::Mismatch(format!(
                "MNIST has {}×{} images of 10 classes, the network takes {}×{} of {}; use --image {} --classes 10",
                self.rows,
                self.columns,
                shape.height,
                shape.width,
                shape.classes,
                self.rows.max(self.columns).max(shape.height)
            )));
        }
        let (top, left) = ((shape.height - self.rows) / 2, (shape.width - self.columns) / 2);
        let normal = |byte: u8| (f32::from(byte) / 255.0 - MEAN) / DEVIATION;
        let plane = shape.height * shape.width;
        for (i, (image, &sample)) in
            pixels.chunks_exact_mut((shape.channels * plane).max(1)).zip(indices).enumerate()
        {
            if sample >= self.samples.into() {
                return Err(DataError::Index { index: sample, samples: self.samples.into() });
            }
            let at = 16 + sample * self.record.len() as u64;
            self.images.1.read_exact_at(&mut self.record, at).map_err(DataError::io(&self.images.0))?;
            let mut byte = [0];
            self.labels.1.read_exact_at(&mut byte, 8 + sample).map_err(DataError::io(&self.labels.0))?;
            if usize::from(byte[0]) >= CLASSES {
                let why = format!("label {sample} is {}; labels are 0 to 9", byte[0]);
                return Err(DataError::Format { path: self.labels.0.clone(), format: "MNIST", why });
            }
            if let Some(label) = labels.get_mut(i) {
                *label = i32::from(byte[0]);
            }
            image.fill(normal(0));
            for channel in image.chunks_exact_mut(plane) {
                for (y, row) in self.record.chunks_exact(self.columns).enumerate() {
                    let start = (top + y) * shape.width + left;
                    for (x, &byte) in channel[start..start + self.columns].iter_mut().zip(row) {
                        *x = normal(byte);
                    }
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

    fn idx(magic: u32, dimensions: &[u32], data: &[u8]) -> Vec<u8> {
        std::iter::once(&magic)
            .chain(dimensions)
            .flat_map(|w| w.to_be_bytes())
            .chain(data.iter().copied())
            .collect()
    }

    #[test]
    fn images_are_centred_and_broken_heads_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let labels = folder.path().join("train-labels-idx1-ubyte");
        std::fs::write(Mnist::images_file(folder.path()), idx(IMAGES_MAGIC, &[1, 2, 2], &[255; 4])).unwrap();
        std::fs::write(&labels, idx(LABELS_MAGIC, &[1], &[7])).unwrap();
        let mut data = Mnist::open(folder.path()).unwrap();
        let options = zoo::Options::new(1).image(4).width(1);
        let mut batch = Batch::new(&zoo::build("resnet20", &options).unwrap());
        data.fill(&[0], &mut batch).unwrap();
        assert_eq!(batch.classes("labels", &[]).unwrap(), [7]);
        for channel in batch.reals("images", &[3, 4, 4]).unwrap().chunks(16) {
            let bright: Vec<usize> = (0..16).filter(|&i| channel[i] > 0.0).collect();
            assert_eq!(bright, [5, 6, 9, 10]);
        }
        let error = data.fill(&[1], &mut batch).unwrap_err();
        assert!(matches!(error, DataError::Index { index: 1, samples: 1 }), "{error}");

        let images = Mnist::images_file(folder.path());
        let whole = std::fs::read(&images).unwrap();
        std::fs::write(&images, idx(IMAGES_MAGIC, &[1, 1, 1 << 15], &[0; 1 << 15])).unwrap();
        assert!(Mnist::open(folder.path()).err().unwrap().to_string().contains("1×32768"));
        std::fs::write(&images, whole).unwrap();

        std::fs::write(&labels, idx(LABELS_MAGIC, &[2], &[7])).unwrap();
        assert!(Mnist::open(folder.path()).unwrap_err().to_string().contains("9 bytes"));
        std::fs::write(&labels, [0x1f, 0x8b, 8, 0]).unwrap();
        assert!(Mnist::open(folder.path()).unwrap_err().to_string().contains("still compressed"));
    }
}
