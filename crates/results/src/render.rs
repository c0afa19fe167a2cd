//! Renders the pages of `docs/results` and the README's figures from the manifest and the data files alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::data::Data;
use crate::externals::External;
use crate::manifest::{Entry, Fields, Headline, Kind, Manifest, Section, matches};
use crate::{plot, table};

/// Where the README's figures begin.
pub const BEGIN: &str = "<!-- results: begin (written by `cargo results render`) -->\n";
/// Where they end.
pub const END: &str = "<!-- results: end -->";

/// The data files, by entry.
pub type Measured = BTreeMap<String, Data>;

/// Reads the data of every entry that has a data file.
///
/// # Errors
///
/// If a data file cannot be read.
pub fn load(manifest: &Manifest, folder: &Path) -> Result<Measured> {
    let mut measured = Measured::new();
    for (_, entry) in manifest.entries() {
        if let Some(data) = Data::load(folder, &entry.id)? {
            measured.insert(entry.id.clone(), data);
        }
    }
    Ok(measured)
}

/// The files of `docs/results` with their texts, by name.
///
/// # Errors
///
/// If a table or a plot does not fit its records.
pub fn pages(manifest: &Manifest, measured: &Measured) -> Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    files.insert(PathBuf::from("README.md"), index(manifest, measured));
    for section in &manifest.sections {
        files.insert(PathBuf::from(format!("{}.md", section.id)), page(section, measured)?);
        for entry in &section.entries {
            for (name, picture) in plots(entry, measured)? {
                files.insert(PathBuf::from(name), picture);
            }
        }
    }
    Ok(files)
}

const GENERATED: &str = "<!-- Written by `cargo results render` from results/. Do not edit. -->\n\n";

fn index(manifest: &Manifest, measured: &Measured) -> String {
    let mut text = format!("{GENERATED}# Results\n\n{}\n", manifest.intro.trim());
    for section in &manifest.sections {
        text += &format!("\n## [{}]({}.md)\n\n", section.title, section.id);
        for entry in &section.entries {
            let state = match (measured.get(&entry.id), entry.kind) {
                (None, _) => "not measured".to_owned(),
                (Some(data), Kind::Exact) => format!("exact, commit {}", data.commit.short()),
                (Some(data), Kind::Timed) => format!("timed, commit {}", data.commit.short()),
            };
            text += &format!("- [{}]({}.md#{}): {state}\n", entry.title, section.id, entry.id);
        }
    }
    text
}

fn page(section: &Section, measured: &Measured) -> Result<String> {
    let mut text = format!("{GENERATED}# {}\n", section.title);
    if !section.intro.is_empty() {
        text += &format!("\n{}\n", section.intro.trim());
    }
    for entry in &section.entries {
        let body = body(entry, measured.get(&entry.id)).with_context(|| format!("entry {}", entry.id))?;
        text += &format!("\n<a id=\"{}\"></a>\n\n## {}\n\n{body}", entry.id, entry.title);
    }
    Ok(text)
}

fn body(entry: &Entry, data: Option<&Data>) -> Result<String> {
    let mut text = String::new();
    if !entry.text.is_empty() {
        text += &format!("{}\n\n", entry.text.trim());
    }
    text += &format!("```sh\n{}\n```\n", entry.lines().join("\n"));
    text += &cases(entry);
    for external in entry.needs() {
        text += match external {
            External::Shared => {
                "\n`{shared}` is the folder of the large data sets, which are not part of the repository.\n"
            }
            External::Python => "\n`{python}` is a Python interpreter that has PyTorch.\n",
        };
    }
    for source in &entry.sources {
        text += &format!("\nSource: {source}\n");
    }
    let Some(data) = data else {
        return Ok(text + "\n*Not measured.*\n");
    };
    let records = data.records(entry);
    for each in &entry.tables {
        if !each.caption.is_empty() {
            text += &format!("\n{}\n", each.caption.trim());
        }
        text += &format!("\n{}", table::markdown(each, &records)?);
    }
    for each in &entry.plots {
        text += &format!("\n![{0}]({1})\n\n{0}\n", each.caption.trim(), picture(entry, &each.id));
    }
    let commit = data.commit.short();
    text += &match entry.kind {
        Kind::Exact => format!("\nExact: the same on every machine. Commit {commit}.\n"),
        Kind::Timed => format!("\nTimed: {}. Commit {commit}.\n", data.machine.describe()),
    };
    Ok(text)
}

/// The values of an entry's placeholders: a sentence where there is one placeholder, else a folded list of the runs.
fn cases(entry: &Entry) -> String {
    let cases: Vec<Fields> =
        entry.cases().iter().map(|case| crate::data::placeholders(entry, case)).collect();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let names: BTreeSet<&String> = cases.iter().flat_map(Fields::keys).collect();
    let mut names = names.into_iter();
    match (names.next(), names.next()) {
        (None, _) => String::new(),
        (Some(name), None) => {
            let values: Vec<String> = cases.iter().filter_map(|case| case.get(name).map(text)).collect();
            format!("\nThe values of `{{{name}}}`: {}.\n", values.join(", "))
        }
        _ => {
            let line = |case: &Fields| {
                let pairs: Vec<String> =
                    case.iter().map(|(name, value)| format!("`{{{name}}}` = {}", text(value))).collect();
                format!("- {}\n", pairs.join(", "))
            };
            let lines: String = cases.iter().map(line).collect();
            let runs =
                if cases.len() == 1 { "The run".to_owned() } else { format!("The {} runs", cases.len()) };
            format!("\n<details><summary>{runs}</summary>\n\n{lines}\n</details>\n")
        }
    }
}

fn picture(entry: &Entry, plot: &str) -> String {
    format!("{}-{plot}.svg", entry.id)
}

fn plots(entry: &Entry, measured: &Measured) -> Result<Vec<(String, String)>> {
    let Some(data) = measured.get(&entry.id) else { return Ok(Vec::new()) };
    let records = data.records(entry);
    let draw = |each: &crate::manifest::Plot| {
        let svg = plot::svg(each, &records).with_context(|| format!("plot {} of {}", each.id, entry.id))?;
        Ok((picture(entry, &each.id), svg))
    };
    entry.plots.iter().map(draw).collect()
}

/// The README with its figures between the markers replaced.
///
/// # Errors
///
/// If the markers are missing, or a headline's field has several values.
pub fn readme(old: &str, manifest: &Manifest, measured: &Measured) -> Result<String> {
    let (before, rest) = old.split_once(BEGIN).with_context(|| format!("README.md has no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("README.md has no line {END}"))?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", headlines(manifest, measured)?))
}

fn headlines(manifest: &Manifest, measured: &Measured) -> Result<String> {
    let mut text = String::from("| what | Elbowroom | published or peer |\n| --- | --: | --- |\n");
    for headline in &manifest.headlines {
        let (section, entry) = manifest
            .entries()
            .find(|(_, entry)| entry.id == headline.entry)
            .with_context(|| format!("there is no entry {}", headline.entry))?;
        let [value, other] =
            figures(headline, entry, measured.get(&entry.id)).with_context(|| headline.text.clone())?;
        text += &format!(
            "| [{}](docs/results/{}.md#{}) | {value} | {other} |\n",
            headline.text, section.id, entry.id
        );
    }
    Ok(text)
}

/// Our figure, and the other one with what it is.
fn figures(headline: &Headline, entry: &Entry, data: Option<&Data>) -> Result<[String; 2]> {
    let Some(data) = data else { return Ok(["not measured".to_owned(), String::new()]) };
    let records: Vec<Fields> = data.records(entry);
    let chosen: Vec<&Fields> = records.iter().filter(|record| matches(record, &headline.filter)).collect();
    anyhow::ensure!(!chosen.is_empty(), "no record has the values of `where`");
    let with_unit = |column: &crate::manifest::Column| {
        table::cell(column, &chosen).map(|text| text + column.format.unit())
    };
    let other = headline.other.as_ref().map(with_unit).transpose()?;
    let other = [other.unwrap_or_default(), headline.other_text.clone()].join(" ");
    Ok([with_unit(&headline.value)?, other.trim().to_owned()])
}
