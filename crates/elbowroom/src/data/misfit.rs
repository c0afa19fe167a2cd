//! Why a network cannot read a path: what was found there, what was expected, and what to give.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use image::ImageFormat;

use super::{Cifar10, DataError, Images, Mnist, Text};

/// What a network for images takes.
const IMAGES: &str = "a folder with the files of CIFAR-10 or MNIST, a folder with a folder of JPEG or PNG images for each class, or a table of images \
                      that ends in .csv";

/// The error for a path that is no data of images.
pub(super) fn for_images(path: &Path) -> DataError {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(source) => return DataError::io(path)(source),
    };
    let name = path.display();
    let found = if metadata.is_dir() { found_in_folder(path) } else { found_in_file(path) };
    DataError::Mismatch(match found {
        Some((found, give)) => format!("it takes images, and {name} {found}; {give}"),
        None if metadata.is_dir() => format!("it takes images, and {name} holds none; give {IMAGES}"),
        None => format!("it takes images, and {name} is a file; give {IMAGES}"),
    })
}

/// Whether a path is not read as text: an image, or a folder without a text or with data of images, next to which a text is a description.
pub(super) fn is_no_text(path: &Path) -> bool {
    holds_images(path) || path.is_dir() && !Text::is_in(path)
}

/// The error for a path that is no text.
pub(super) fn for_text(path: &Path) -> DataError {
    let name = path.display();
    if let Some(text) = path.is_dir().then(|| Text::first_in(path).ok().flatten()).flatten() {
        let give = give(&text, "the text file if that is meant");
        return DataError::Mismatch(format!("it reads text, and {name} holds images; {give}"));
    }
    let found = match (path.is_dir(), images_directly_in(path)) {
        (true, 0) if is_empty(path) => "is an empty folder",
        (true, 0) if !holds_images(path) => "holds no file whose name ends in .txt",
        (true, _) => "holds images",
        (false, _) => "is an image",
    };
    DataError::Mismatch(format!("it reads text, and {name} {found}; give a text file"))
}

/// Whether a path is an image or holds data of images.
fn holds_images(path: &Path) -> bool {
    Cifar10::is_in(path)
        || Mnist::is_in(path)
        || Images::is_in(path)
        || is_image(path)
        || of_known_set(path).is_some()
}

/// What a folder holds, and what to do.
fn found_in_folder(path: &Path) -> Option<(String, String)> {
    if Text::is_in(path) {
        return Some(("holds text".to_owned(), format!("give {IMAGES}")));
    }
    let images = images_directly_in(path);
    if images > 0 {
        let whole = above(path).filter(|whole| has_classes(whole));
        return Some(match whole {
            Some(whole) => ("holds the images of one class".to_owned(), give(&whole, "the folder of all classes")),
            None => (
                format!("holds {images} images, but no folder of images for each class"),
                "move the images of each class to a folder of its own, or give a table (.csv) of PATH,LABEL lines"
                    .to_owned(),
            ),
        });
    }
    if Cifar10::is_test_in(path) || Mnist::is_test_in(path) {
        let give = "give it as --eval-data, and training files as --data".to_owned();
        return Some(("holds test data only".to_owned(), give));
    }
    let folders: Vec<PathBuf> = entries(path).into_iter().filter(|entry| entry.is_dir()).collect();
    if let Some(inner) = folders.iter().find(|inner| is_image_data(inner)) {
        return Some(("holds no images itself".to_owned(), give(inner, "the folder in it that does")));
    }
    if is_empty(path) {
        return Some(("is an empty folder".to_owned(), format!("give {IMAGES}")));
    }
    folders.first().map(|first| {
        let count = folders.len();
        let found =
            format!("has {count} folders, like {}, without a JPEG or PNG image in them", first.display());
        (found, format!("give {IMAGES}"))
    })
}

/// What a file is, and what to do.
fn found_in_file(path: &Path) -> Option<(String, String)> {
    if let Some((set, folder)) = of_known_set(path) {
        return Some((format!("is one file of {set}"), give(&folder, "its folder")));
    }
    if !is_image(path) {
        return None;
    }
    let classes = above(path).and_then(|class| above(&class)).filter(|classes| has_classes(classes));
    Some((
        "is one image".to_owned(),
        match classes {
            Some(classes) => give(&classes, "the folder of all classes"),
            None => format!("give {IMAGES}"),
        },
    ))
}

fn give(path: &Path, what: impl Display) -> String {
    format!("give {what}, {}", path.display())
}

/// The set of images whose files lie next to a file of such a name, and their folder.
fn of_known_set(path: &Path) -> Option<(&'static str, PathBuf)> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    let folder = above(path).filter(|_| path.is_file())?;
    let cifar = name.ends_with(".bin") && (Cifar10::is_in(&folder) || Cifar10::is_test_in(&folder));
    let mnist = name.contains("-ubyte") && (Mnist::is_in(&folder) || Mnist::is_test_in(&folder));
    match (cifar, mnist) {
        (true, _) => Some(("CIFAR-10", folder)),
        (_, true) => Some(("MNIST", folder)),
        _ => None,
    }
}

fn is_image_data(path: &Path) -> bool {
    Cifar10::is_in(path) || Mnist::is_in(path) || Images::is_in(path)
}

/// Whether a file is a JPEG or PNG image by its first bytes or its name.
fn is_image(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = path.is_file().then(|| File::open(path).and_then(|file| file.take(16).read_to_end(&mut head)));
    let format = image::guess_format(&head).ok();
    read.is_some() && (matches!(format, Some(ImageFormat::Jpeg | ImageFormat::Png)) || Images::is_image(path))
}

fn images_directly_in(path: &Path) -> usize {
    entries(path).iter().filter(|entry| entry.is_file() && Images::is_image(entry)).count()
}

/// Whether a folder has folders of images for several classes.
fn has_classes(path: &Path) -> bool {
    entries(path).iter().filter(|entry| images_directly_in(entry) > 0).count() > 1
}

fn is_empty(path: &Path) -> bool {
    entries(path).is_empty()
}

/// What a folder holds, in the order of the names; nothing for what is no folder.
fn entries(path: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(path).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    entries
}

/// The folder that a path lies in, as the user would write it.
fn above(path: &Path) -> Option<PathBuf> {
    let above = path.parent()?;
    Some(if above.as_os_str().is_empty() { PathBuf::from(".") } else { above.to_owned() })
}
