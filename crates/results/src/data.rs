//! The data files: the records of an entry with the commit and the machine that they come from.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::manifest::{Entry, Fields, Take};
use crate::place::{Commit, Machine};

/// What one run of an entry has measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// The entry.
    pub entry: String,
    /// The source tree.
    pub commit: Commit,
    /// The computer.
    pub machine: Machine,
    /// The command lines, with their placeholders.
    pub commands: Vec<String>,
    /// The runs, in the order of the manifest's cases.
    pub runs: Vec<Run>,
}

/// One run of the command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The values of the placeholders.
    pub case: Fields,
    /// What the command printed, reduced to the fields that the manifest keeps.
    pub records: Vec<Fields>,
}

/// The file of an entry.
#[must_use]
pub fn path(folder: &Path, entry: &str) -> PathBuf {
    folder.join(format!("data/{entry}.json"))
}

impl Data {
    /// Reads the file of an entry; nothing if there is none.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is not of this form.
    pub fn load(folder: &Path, entry: &str) -> Result<Option<Self>> {
        let path = path(folder, entry);
        if !path.exists() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).map(Some).with_context(|| path.display().to_string())
    }

    /// Writes the file: one line for each record, so that a change shows as a change of that line.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let path = path(folder, &self.entry);
        std::fs::create_dir_all(folder.join("data"))?;
        std::fs::write(&path, self.text()?).with_context(|| path.display().to_string())
    }

    fn text(&self) -> Result<String> {
        let mut text = String::from("{\n");
        text += &format!("\"entry\": {},\n", serde_json::to_string(&self.entry)?);
        text += &format!("\"commit\": {},\n", serde_json::to_string(&self.commit)?);
        text += &format!("\"machine\": {},\n", serde_json::to_string(&self.machine)?);
        text += &format!("\"commands\": {},\n\"runs\": [", serde_json::to_string(&self.commands)?);
        for (at, run) in self.runs.iter().enumerate() {
            text += if at > 0 { ",\n" } else { "\n" };
            text += &format!("{{\"case\": {}, \"records\": [", serde_json::to_string(&run.case)?);
            for (at, record) in run.records.iter().enumerate() {
                text += if at > 0 { ",\n  " } else { "\n  " };
                text += &serde_json::to_string(record)?;
            }
            text += "]}";
        }
        text += "\n]\n}\n";
        Ok(text)
    }

    /// Why the data do not belong to the entry as the manifest has it now; nothing if they do.
    #[must_use]
    pub fn outdated(&self, entry: &Entry) -> Option<String> {
        if self.commands != entry.lines() {
            return Some("the data come from another command".to_owned());
        }
        let wanted = entry.cases();
        let same = wanted.len() == self.runs.len()
            && wanted.iter().zip(&self.runs).all(|(case, run)| placeholders(entry, case) == run.case);
        (!same).then(|| "the data come from other cases".to_owned())
    }

    /// All records, each with the values of its case, which the manifest may have extended by figures of papers and peers since.
    #[must_use]
    pub fn records(&self, entry: &Entry) -> Vec<Fields> {
        let joined = |(run, case): (&Run, Fields)| {
            run.records
                .iter()
                .map(move |record| {
                    let mut fields = case.clone();
                    fields.extend(record.clone());
                    fields
                })
                .collect::<Vec<_>>()
        };
        self.runs.iter().zip(entry.cases()).flat_map(joined).collect()
    }
}

/// The values of a case that its command lines use. Others are figures to compare with, which belong to the manifest alone.
#[must_use]
pub fn placeholders(entry: &Entry, case: &Fields) -> Fields {
    let lines = entry.lines().join(" ");
    let used = |name: &str| lines.contains(&format!("{{{name}}}"));
    case.iter().filter(|(name, _)| used(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Chooses one of several values of a field. Missing ones are passed over, unless all are missing.
///
/// # Errors
///
/// If only one distinct value is permitted and there are several.
pub fn take(values: &[Option<Value>], which: Take) -> Result<Option<Value>> {
    let mut present: Vec<&Value> = values.iter().flatten().filter(|value| !value.is_null()).collect();
    if which == Take::Only {
        present.dedup();
        anyhow::ensure!(
            present.len() < 2,
            "a cell has several values: {present:?}; its column must select one"
        );
        return Ok(present.first().map(|&value| value.clone()));
    }
    let mut numbers: Vec<(f64, &Value)> =
        present.iter().filter_map(|value| Some((value.as_f64()?, *value))).collect();
    numbers.sort_by(|a, b| a.0.total_cmp(&b.0));
    let last = numbers.len().saturating_sub(1);
    let at = match which {
        Take::Only | Take::Min => 0,
        Take::Max => last,
        Take::Median => last / 2,
    };
    Ok(numbers.get(at).map(|(_, value)| (*value).clone()))
}
