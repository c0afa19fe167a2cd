//! Holds that documents name only what exists: every relative link leads to a file, and to a heading where it names one, and every path
//! of the tree in backticks is there.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Folders whose paths documents name relative to the root.
const TOP: &[&str] = &["crates/", "docs/", ".ci/", ".github/", "results/", "golden/"];

/// The Markdown files of the root, of `docs`, and of the crates.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut pending = vec![root.join("docs"), root.join("crates")];
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.is_file());
    while let Some(folder) = pending.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if !path.is_dir() {
                found.push(path);
            } else if path.file_name().is_none_or(|name| name != "target") {
                pending.push(path);
            }
        }
    }
    found.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    found
}

/// The text without fenced code blocks, whose brackets and backticks are code.
fn prose(text: &str) -> String {
    let mut inside = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

/// Whether a document has what a link `#anchor` leads to: an element of that id, or a heading in lower case, spaces as hyphens, other marks
/// left out.
fn has_heading(text: &str, anchor: &str) -> bool {
    let slug = |line: &str| -> String {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    text.contains(&format!("id=\"{anchor}\""))
        || prose(text).lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor)
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut links = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        let folder = document.parent().unwrap();
        for link in prose(&text).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = if target.is_empty() { document.clone() } else { folder.join(target) };
            assert!(path.exists(), "{} links to {target}, which does not exist", document.display());
            if !anchor.is_empty() && path.extension().is_some_and(|extension| extension == "md") {
                let linked = std::fs::read_to_string(&path).unwrap();
                assert!(has_heading(&linked, anchor), "{}: no heading for {link}", document.display());
            }
            links += 1;
        }
    }
    assert!(links > 20, "found only {links} links");
}

#[test]
fn every_path_in_backticks_exists() {
    let root = root();
    for document in documents() {
        let text = prose(&std::fs::read_to_string(&document).unwrap());
        for quoted in text.split('`').skip(1).step_by(2) {
            if TOP.iter().any(|top| quoted.starts_with(top)) {
                let path = quoted.split(['{', '*', ' ', ':']).next().unwrap();
                assert!(
                    root.join(path).exists(),
                    "{} names {path}, which does not exist",
                    document.display()
                );
            }
        }
    }
}
