//! Runs an entry: builds its program, fills its command line for each case, and keeps the fields of its output that the manifest lists.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use crate::data::{Data, Run, placeholders};
use crate::externals::{External, Externals};
use crate::fields;
use crate::manifest::{Entry, Fields, Program, fill};
use crate::place::{Commit, Machine};

/// Builds programs and runs entries.
#[derive(Debug)]
pub struct Runner {
    root: PathBuf,
    externals: Externals,
    built: BTreeMap<Program, PathBuf>,
}

impl Runner {
    /// A runner for the workspace in `root`.
    #[must_use]
    pub fn new(root: &Path, externals: Externals) -> Self {
        Self { root: root.to_owned(), externals, built: BTreeMap::new() }
    }

    /// What the entry needs and this machine lacks.
    #[must_use]
    pub fn lacks(&self, entry: &Entry) -> Option<External> {
        entry.needs().find(|&external| self.externals.path(external).is_none())
    }

    /// Runs every case of an entry. `progress` gets a line before each.
    ///
    /// # Errors
    ///
    /// If a program cannot be built, refuses its arguments, or prints what is not JSON.
    pub fn run(&mut self, entry: &Entry, progress: &mut dyn FnMut(&str)) -> Result<Data> {
        let command = self.build(&Program::Command)?;
        let program = self.build(&entry.program)?;
        let machine = Machine::now();
        let folder = tempfile::tempdir()?;
        let mut runs = Vec::new();
        for case in entry.cases() {
            for line in &entry.prepare {
                let line = fill(line, &case, &self.externals)?;
                progress(&format!("elbowroom {line}"));
                execute(&command, &line, folder.path())?;
            }
            let line = fill(&entry.command, &case, &self.externals)?;
            progress(&line);
            let output = execute(&program, &line, folder.path())?;
            let records = records(&output, entry).with_context(|| format!("the output of `{line}`"))?;
            runs.push(Run { case: placeholders(entry, &case), records });
        }
        let commit = Commit::now(&self.root)?;
        Ok(Data { entry: entry.id.clone(), commit, machine, commands: entry.lines(), runs })
    }

    /// Builds a program in release mode, once, and returns its path.
    fn build(&mut self, program: &Program) -> Result<PathBuf> {
        if let Some(path) = self.built.get(program) {
            return Ok(path.clone());
        }
        let arguments: Vec<&str> = match program {
            Program::Command => vec!["build", "--release", "--package", "elbowroom-cli"],
            Program::Example { package, name } => {
                vec!["build", "--release", "--package", package, "--example", name]
            }
            Program::Bench { package, name } => {
                vec!["bench", "--no-run", "--package", package, "--bench", name]
            }
        };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(arguments)
            .args(["--quiet", "--message-format", "json-render-diagnostics"])
            .current_dir(&self.root)
            .stderr(Stdio::inherit())
            .output()
            .context("running cargo")?;
        ensure!(output.status.success(), "cargo could not build {program:?}");
        let executable = serde_json::Deserializer::from_slice(&output.stdout)
            .into_iter::<Value>()
            .filter_map(|message| message.ok()?.get("executable")?.as_str().map(PathBuf::from))
            .last()
            .with_context(|| format!("cargo named no executable for {program:?}"))?;
        self.built.insert(program.clone(), executable.clone());
        Ok(executable)
    }
}

/// Runs a program and returns what it prints. Exit status 1 is an answer (infeasible, not equal); anything else but 0 is an error.
fn execute(program: &Path, line: &str, folder: &Path) -> Result<Vec<u8>> {
    let output = Command::new(program)
        .args(line.split_whitespace())
        .current_dir(folder)
        .output()
        .with_context(|| format!("running {}", program.display()))?;
    let status = output.status.code();
    if !matches!(status, Some(0 | 1)) {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` ended with {}: {}", output.status, error.trim());
    }
    Ok(output.stdout)
}

/// The records of what a command has printed: JSON objects, one or several. No output is a refusal: one record without fields.
fn records(output: &[u8], entry: &Entry) -> Result<Vec<Fields>> {
    let mut records = Vec::new();
    for object in serde_json::Deserializer::from_slice(output).into_iter::<Map<String, Value>>() {
        let object = object.context("is not a JSON object")?;
        match &entry.records {
            None => records.push(fields::keep(&object, &object, &entry.keep)),
            Some(list) => {
                let rows = object.get(list).and_then(Value::as_array);
                for row in rows.with_context(|| format!("has no list `{list}`"))? {
                    let row =
                        row.as_object().with_context(|| format!("`{list}` holds what is not an object"))?;
                    records.push(fields::keep(&object, row, &entry.keep));
                }
            }
        }
    }
    if records.is_empty() {
        records.push(Fields::new());
    }
    for name in &entry.keep {
        let found = records.iter().any(|record| record.contains_key(name));
        ensure!(found || records.iter().all(Fields::is_empty), "has no field `{name}`");
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Section;

    fn entry(text: &str) -> Entry {
        let text = format!(
            "title = 'T'\n[[entry]]\nid = 'e'\ntitle = 'E'\nkind = 'exact'\ncommand = 'x'\n{text}\n\
             [[entry.table]]\nrows = []\ncells = [{{ field = 'a' }}]"
        );
        Section::parse("s", &text).unwrap().entries.remove(0)
    }

    #[test]
    fn records_are_objects_or_the_rows_of_one() {
        let single = entry("keep = ['a']");
        let found = records(b"{\"a\": 1, \"b\": 2} {\"a\": 3}", &single).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].len(), 1);
        let rows = entry("keep = ['a', 't']\nrecords = 'rows'");
        let found = records(b"{\"t\": \"x\", \"rows\": [{\"a\": 1}, {\"a\": 2}]}", &rows).unwrap();
        assert_eq!(found[1]["a"], 2);
        assert_eq!(found[1]["t"], "x");
    }

    #[test]
    fn a_refusal_is_a_record_without_fields_and_a_renamed_field_an_error() {
        let single = entry("keep = ['a']");
        assert!(records(b"", &single).unwrap()[0].is_empty());
        assert!(records(b"not json", &single).is_err());
        let both = entry("keep = ['a', 'gone']");
        assert!(records(b"{\"a\": 1}", &both).unwrap_err().to_string().contains("gone"));
    }
}
