//! The check of continuous integration: quick exact entries must give the recorded figures, and the pages must be rendered from the data.

use std::path::Path;

use anyhow::{Context, Result};

use crate::compare::{broken, differences};
use crate::data::Data;
use crate::manifest::{Entry, Manifest};
use crate::render::{self, Measured};
use crate::runner::Runner;

/// Measures an entry again and returns every difference from its data beyond the tolerance.
///
/// # Errors
///
/// If the entry cannot be run.
pub fn entry(
    runner: &mut Runner,
    entry: &Entry,
    recorded: &Data,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<String>> {
    if let Some(why) = recorded.outdated(entry) {
        return Ok(vec![why]);
    }
    let measured = runner.run(entry, progress)?;
    let mut found = differences(&recorded.runs, &measured.runs, entry.tolerance);
    found.extend(broken(entry, &measured));
    Ok(found)
}

/// Every rendered file that differs from what the data give, and every data file and page that no entry has.
///
/// # Errors
///
/// If a file cannot be read or rendered.
pub fn pages(manifest: &Manifest, measured: &Measured, root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let pages = render::pages(manifest, measured)?;
    let docs = root.join("docs/results");
    for (name, text) in &pages {
        let path = docs.join(name);
        if std::fs::read_to_string(&path).ok().as_ref() != Some(text) {
            found.push(format!("{} is not what `cargo results render` writes", path.display()));
        }
    }
    for name in files(&docs)?.into_iter().filter(|name| !pages.contains_key(Path::new(name))) {
        found.push(format!("docs/results/{name} belongs to no entry"));
    }
    for name in files(&root.join("results/data"))? {
        if !name.strip_suffix(".json").is_some_and(|id| measured.contains_key(id)) {
            found.push(format!("results/data/{name} belongs to no entry"));
        }
    }
    for (_, entry) in manifest.entries() {
        let why = measured.get(&entry.id).and_then(|data| data.outdated(entry));
        found.extend(
            why.map(|why| format!("{}: {why}; run `cargo results run --only {}`", entry.id, entry.id)),
        );
    }
    let readme = std::fs::read_to_string(root.join("README.md")).context("reading README.md")?;
    if render::readme(&readme, manifest, measured)? != readme {
        found.push("README.md's figures are not what `cargo results render` writes".to_owned());
    }
    Ok(found)
}

/// The names of the files of a folder, in order; none if it does not exist.
///
/// # Errors
///
/// If the folder cannot be read.
pub fn files(folder: &Path) -> Result<Vec<String>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
