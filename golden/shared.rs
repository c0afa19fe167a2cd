//! Where tests find the larger data sets, which are not part of the repository; a module of each test that needs them, by path.

use std::path::PathBuf;

/// A file or folder of the folder `shared` next to the checkout. Panics if it is missing; so a test that is asked to run does not pass by
/// doing nothing.
pub fn shared(place: &str) -> PathBuf {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")).join(place);
    assert!(path.exists(), "this test needs the shared data, and {} is missing", path.display());
    path
}
