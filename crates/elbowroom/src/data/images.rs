//! Images in JPEG and PNG files: a folder for each class, or a table of paths and labels.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use image::imageops::FilterType;
use image::{ImageReader, Limits};

use super::batch::ImageBatch;
use super::{Batch, DataError, Dataset, read_at_most};

/// Ends of the names of files that are read, in lower case.
const ENDS: [&str; 3] = ["jpg", "jpeg", "png"];
/// Mean and standard deviation per channel of pixels scaled to 0..1: those of ImageNet, which pretrained networks expect.
const NORMAL: [(f32, f32); 3] = [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)];
/// Largest height and width of a file, and most bytes that its decoder may reserve: a small file can promise a huge image.
const LARGEST_SIDE: u32 = 1 << 14;
const DECODER_BYTES: u64 = 256 << 20;
/// Most bytes of a table: some millions of rows.
const TABLE_BYTES: u64 = 256 << 20;

/// Image files with a class each. They are decoded when a batch needs them, resized to the network's images if they have another size, and
/// normalized with ImageNet's mean and deviation; grey images are repeated over the channels.
#[derive(Debug)]
pub struct Images {
    path: PathBuf,
    /// Names of the classes, in the order of their numbers.
    classes: Vec<String>,
    files: Vec<(PathBuf, u32)>,
}

impl Images {
    /// Whether a path is a folder with a folder of images in it.
    pub fn is_in(path: &Path) -> bool {
        let folders = entries(path).unwrap_or_default();
        folders.iter().any(|folder| folder.is_dir() && images_in(folder).is_ok_and(|files| !files.is_empty()))
    }

    /// Opens a folder with one folder of images for each class. Classes are numbered in the order of their names.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if a folder cannot be read, [`DataError::Unknown`] if no folder holds images.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let (mut classes, mut files) = (Vec::new(), Vec::new());
        for folder in entries(path).map_err(DataError::io(path))?.into_iter().filter(|entry| entry.is_dir()) {
            let images = images_in(&folder).map_err(DataError::io(&folder))?;
            if images.is_empty() {
                continue;
            }
            let class = classes.len() as u32;
            classes.push(
                folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            );
            files.extend(images.into_iter().map(|image| (image, class)));
        }
        if files.is_empty() {
            return Err(DataError::Unknown(path.to_owned()));
        }
        Ok(Self { path: path.to_owned(), classes, files })
    }

    /// Opens a table of two columns separated by a comma: the path of an image, relative to the folder of the table, and its label. A first
    /// line whose file does not exist is a head if its label is `label` or `class` or if its path is not named like an image. Labels that are
    /// all whole numbers are the numbers of the classes; otherwise classes are numbered in the order of their names.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if the table cannot be read, [`DataError::Format`] if a line has no two columns or names no file, or if there are no
    /// lines.
    pub fn open_table(path: &Path) -> Result<Self, DataError> {
        let format =
            |why: String| DataError::Format { path: path.to_owned(), format: "table of images", why };
        let text = String::from_utf8(read_at_most(path, TABLE_BYTES, "table of images")?)
            .map_err(|_| format("it is no text; write lines of PATH,LABEL in UTF-8".to_owned()))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut rows = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let Some((file, label)) = columns(line.trim()) else {
                return Err(format(format!("line {} has no comma; write PATH,LABEL", number + 1)));
            };
            let (Some(file), Some(label)) = (unquoted(file), unquoted(label)) else {
                let why = format!("line {} has a quote without its other one; write PATH,LABEL", number + 1);
                return Err(format(why));
            };
            let head = number == 0
                && (["label", "class"].contains(&label.to_lowercase().as_str())
                    || !Self::is_image(Path::new(file)));
            if folder.join(file).is_file() {
                rows.push((folder.join(file), label.to_owned()));
            } else if !head {
                return Err(format(format!(
                    "line {} names {file}, and there is no file {}; write paths relative to the folder of the table",
                    number + 1,
                    folder.join(file).display()
                )));
            }
        }
        if rows.is_empty() {
            return Err(format("it names no image; write one line PATH,LABEL for each".to_owned()));
        }
        if let Some((_, label)) =
            rows.iter().find(|(_, label)| label.parse::<i64>().is_ok_and(|label| label < 0))
        {
            return Err(format(format!(
                "it has label {label}; number the classes from 0, or give them names"
            )));
        }
        let numbers: Option<Vec<u32>> = rows.iter().map(|(_, label)| label.parse().ok()).collect();
        let (classes, labels) = match numbers {
            Some(numbers) => {
                let count = numbers.iter().max().map_or(0, |&most| u64::from(most) + 1);
                if count > 1 << 20 {
                    return Err(format(format!(
                        "label {} is too large; number the classes from 0",
                        count - 1
                    )));
                }
                ((0..count).map(|class| class.to_string()).collect(), numbers)
            }
            None => {
                let names: BTreeSet<&str> = rows.iter().map(|(_, label)| label.as_str()).collect();
                let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
                let number = |label: &String| names.binary_search(label).unwrap_or(0) as u32;
                let labels = rows.iter().map(|(_, label)| number(label)).collect();
                (names, labels)
            }
        };
        let files = rows.into_iter().map(|(file, _)| file).zip(labels).collect();
        Ok(Self { path: path.to_owned(), classes, files })
    }

    /// Whether a path is named like an image that is read.
    pub(super) fn is_image(path: &Path) -> bool {
        let end = path.extension().map(|end| end.to_string_lossy().to_lowercase());
        end.is_some_and(|end| ENDS.contains(&end.as_str()))
    }

    /// Names of the classes, in the order of their numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Decodes a file as `channels` planes of this height and width.
    fn decode(file: &Path, [channels, height, width]: [usize; 3], out: &mut [f32]) -> Result<(), DataError> {
        let broken = |why: image::ImageError| match why {
            image::ImageError::IoError(source) => DataError::Io { path: file.to_owned(), source },
            why => {
                let why = format!("{why}; replace it, or remove it from the data");
                DataError::Format { path: file.to_owned(), format: "JPEG or PNG", why }
            }
        };
        let mut reader = ImageReader::open(file).map_err(DataError::io(file))?;
        let mut limits = Limits::default();
        limits.max_image_width = Some(LARGEST_SIDE);
        limits.max_image_height = Some(LARGEST_SIDE);
        limits.max_alloc = Some(DECODER_BYTES);
        reader.limits(limits);
        let reader = reader.with_guessed_format().map_err(DataError::io(file))?;
        let mut pixels = reader.decode().map_err(broken)?.into_rgb8();
        if (pixels.width() as usize, pixels.height() as usize) != (width, height) {
            pixels = image::imageops::resize(&pixels, width as u32, height as u32, FilterType::Triangle);
        }
        for (channel, plane) in out.chunks_exact_mut((height * width).max(1)).take(channels).enumerate() {
            let (mean, deviation) = NORMAL[channel % NORMAL.len()];
            for (x, pixel) in plane.iter_mut().zip(pixels.pixels()) {
                *x = (f32::from(pixel.0[channel % NORMAL.len()]) / 255.0 - mean) / deviation;
            }
        }
        Ok(())
    }
}

/// What a folder holds, in the order of the names.
fn entries(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The image files of a folder.
fn images_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    Ok(entries(folder)?.into_iter().filter(|path| Images::is_image(path)).collect())
}

/// The two columns of a line of a table. A label in quotes may hold commas.
fn columns(line: &str) -> Option<(&str, &str)> {
    let quoted = line.strip_suffix('"').and_then(|rest| rest.rfind('"'));
    let quoted = quoted.and_then(|open| Some((line[..open].trim_end().strip_suffix(',')?, &line[open..])));
    quoted.or_else(|| line.rsplit_once(','))
}

/// A column without its quotes, if it has two or none.
fn unquoted(column: &str) -> Option<&str> {
    let column = column.trim();
    let inner = column.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(column);
    (!inner.starts_with('"') && !inner.ends_with('"')).then_some(inner)
}

/// Whether classes are called by their own numbers.
fn are_numbers(names: &[String]) -> bool {
    names.iter().enumerate().all(|(number, name)| *name == number.to_string())
}

impl Dataset for Images {
    fn class_names(&self) -> Option<Vec<String>> {
        Some(self.classes.clone())
    }

    fn number_classes_as(&mut self, names: &[String]) -> Result<(), DataError> {
        // Numbers mean the same in both.
        if are_numbers(names) && are_numbers(&self.classes) {
            return Ok(());
        }
        let number = |name: &String| {
            let found = names.iter().position(|other| other == name);
            found.map(|number| number as u32).ok_or_else(|| {
                DataError::Mismatch(format!(
                    "{} has a class {name}, and the training data only {}; use the same names in both",
                    self.path.display(),
                    names.join(", ")
                ))
            })
        };
        let numbers = self.classes.iter().map(number).collect::<Result<Vec<u32>, _>>()?;
        for (_, class) in &mut self.files {
            *class = numbers[*class as usize];
        }
        names.clone_into(&mut self.classes);
        Ok(())
    }

    fn samples(&self) -> Option<u64> {
        Some(self.files.len() as u64)
    }

    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        let ImageBatch { shape, pixels, labels } = batch.images("a folder of images")?;
        if shape.classes < self.classes.len() {
            return Err(DataError::Mismatch(format!(
                "{} has {} classes, and the network {}; use --classes {}",
                self.path.display(),
                self.classes.len(),
                shape.classes,
                self.classes.len()
            )));
        }
        let size = (shape.channels * shape.height * shape.width).max(1);
        for (i, (image, &index)) in pixels.chunks_exact_mut(size).zip(indices).enumerate() {
            let sample = usize::try_from(index).ok().and_then(|index| self.files.get(index));
            let samples = self.files.len() as u64;
            let (file, class) = sample.ok_or(DataError::Index { index, samples })?;
            Self::decode(file, [shape.channels, shape.height, shape.width], image)?;
            if let Some(label) = labels.get_mut(i) {
                *label = *class as i32;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::zoo::{self, Options};
    use image::RgbImage;

    use super::*;

    fn batch(classes: usize) -> Batch {
        let options = Options::new(2).image(8).classes(classes);
        Batch::new(&zoo::build("resnet20", &options).unwrap())
    }

    fn write(path: &Path, side: u32, value: u8) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        RgbImage::from_pixel(side, side, image::Rgb([value; 3])).save(path).unwrap();
    }

    #[test]
    fn folders_are_classes_and_images_take_the_networks_size() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write(&at("cat/b.png"), 8, 255);
        write(&at("cat/a.JPG"), 20, 0);
        write(&at("ant/c.jpeg"), 8, 0);
        std::fs::create_dir(at("empty")).unwrap();
        std::fs::write(at("notes.txt"), "no image").unwrap();
        assert!(Images::is_in(folder.path()) && !Images::is_in(&at("cat")));
        let mut images = Images::open(folder.path()).unwrap();
        assert_eq!(
            (images.classes(), images.samples()),
            (&["ant".to_owned(), "cat".to_owned()][..], Some(3))
        );
        let mut batch = batch(2);
        images.fill(&[2, 1], &mut batch).unwrap();
        assert_eq!(batch.classes("labels", &[]).unwrap(), [1, 1]);
        let pixels = batch.reals("images", &[3, 8, 8]).unwrap();
        assert!((pixels[0] - (1.0 - 0.485) / 0.229).abs() < 1e-6 && pixels[192] < -2.0);
        assert!(matches!(images.fill(&[3, 0], &mut batch), Err(DataError::Index { index: 3, samples: 3 })));
        let error = Images::open(&at("empty")).unwrap_err();
        assert!(matches!(error, DataError::Unknown(_)), "{error}");
        for class in ["dog", "eel"] {
            write(&at(&format!("{class}/1.png")), 8, 9);
        }
        let error = Images::open(folder.path()).unwrap().fill(&[0, 1], &mut self::batch(2)).unwrap_err();
        assert!(error.to_string().contains("--classes 4"), "{error}");
        std::fs::write(at("cat/b.png"), b"\x89PNG\r\n\x1a\nbroken").unwrap();
        let error = Images::open(folder.path()).unwrap().fill(&[2, 2], &mut self::batch(4)).unwrap_err();
        assert!(error.to_string().contains("b.png"), "{error}");
    }

    #[test]
    fn a_table_names_images_and_labels() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write(&at("x/1.png"), 8, 1);
        let table = |text: &str| {
            std::fs::write(at("t.csv"), text).unwrap();
            Images::open_table(&at("t.csv"))
        };
        let named = table("path,label\nx/1.png,zebra\nx/1.png,ape\n").unwrap();
        assert_eq!((named.classes.join(" ").as_str(), named.files[0].1), ("ape zebra", 1));
        let mut numbered = table("x/1.png, 2\n\n\"x/1.png\",0").unwrap();
        assert_eq!(numbered.classes.len(), 3);
        numbered.fill(&[0, 1], &mut batch(3)).unwrap();
        std::fs::File::create(at("t.csv")).unwrap().set_len(TABLE_BYTES + 1).unwrap();
        assert!(
            Images::open_table(&at("t.csv")).unwrap_err().to_string().contains("more than 268435456 bytes")
        );
        let quoted = table("\"x/1.png\",\"ape, old\"\nx/1.png,\"bee\"\nx/1.png , \"cow\"").unwrap();
        assert_eq!(quoted.classes, ["ape, old", "bee", "cow"]);
        for text in ["\"x/1.png,0\n", "x/1.png\",0\n", "x/1.png,\"0\n", "x/1.png,0\"\n"] {
            let error = table(text).err().unwrap().to_string();
            assert!(error.contains("line 1 has a quote without its other one"), "{text}: {error}");
        }
        for text in ["", "x/1.png\n", "path,label\n", "x/1.png,4000000000\n"] {
            assert!(table(text).is_err(), "{text}");
        }
        let error = table("x/1.png,0\ny/2.png,0").unwrap_err().to_string();
        assert!(error.contains("2.png") && error.contains("line 2"), "{error}");
    }
}
