//! The manifest: which figures exist, how each is measured and how its page shows it.
//!
//! `results/manifest.toml` names the sections in the order of the index, and the headline figures of the README. Each section is a file
//! `results/sections/ID.toml` with the prose of its page and its entries. An entry holds a command with `{placeholders}`, the cases that fill
//! them, and the tables and plots that show the records which the command returns. See `results/README.md` for an example.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::externals::{External, Externals};
use crate::format::Format;

/// Named scalars: the placeholders of a command, and the fields of a record.
pub type Fields = BTreeMap<String, Value>;

/// Everything in `results/`: the sections in order, and the headline figures.
#[derive(Debug)]
pub struct Manifest {
    /// The prose above the index.
    pub intro: String,
    /// The sections, in the order of the index.
    pub sections: Vec<Section>,
    /// The rows of the README's table.
    pub headlines: Vec<Headline>,
}

/// One page of `docs/results`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// The name of its file in `results/sections` and of its page.
    #[serde(skip)]
    pub id: String,
    /// The page's heading.
    pub title: String,
    /// The prose above the first entry.
    #[serde(default)]
    pub intro: String,
    /// The entries, in the order of the page.
    #[serde(default, rename = "entry")]
    pub entries: Vec<Entry>,
}

/// Whether two machines must agree on a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Simulated times, bytes and evaluations: the same on every machine.
    Exact,
    /// Measured times: valid for one machine, and only as ratios within one run.
    Timed,
}

/// One measurement: a command for each case, and the tables and plots that show its records.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The name of its data file: lower case, digits and dashes, unique in the manifest.
    pub id: String,
    /// The heading on the page.
    pub title: String,
    /// What is measured, how to read it, and what is not comparable.
    #[serde(default)]
    pub text: String,
    /// Whether the figures are the same on every machine.
    pub kind: Kind,
    /// Whether `check` runs it again. Only exact entries may set this.
    #[serde(default)]
    pub quick: bool,
    /// The largest permitted relative difference of a number in `check`.
    #[serde(default)]
    pub tolerance: f64,
    /// The program that runs: `elbowroom`, `example PACKAGE NAME` or `bench PACKAGE NAME`.
    #[serde(default)]
    pub program: Program,
    /// Commands of `elbowroom` that make the files which `command` reads, run once for each case before it.
    #[serde(default)]
    pub prepare: Vec<String>,
    /// The arguments of the program, separated by spaces, with `{placeholders}`. `{shared}` is the folder of the large data sets,
    /// `{python}` a Python interpreter that has PyTorch.
    pub command: String,
    /// The field of the printed object that lists the records; without it the object itself is the record.
    #[serde(default)]
    pub records: Option<String>,
    /// The fields of a record that the data file keeps.
    pub keep: Vec<String>,
    /// The values of the placeholders, and the figures of papers and peers: one table for each run of the command.
    #[serde(default)]
    pub cases: Vec<Fields>,
    /// Placeholders that take each of several values in every case.
    #[serde(default)]
    pub vary: BTreeMap<String, Vec<Value>>,
    /// Where the figures of papers and peers come from.
    #[serde(default)]
    pub sources: Vec<String>,
    /// What must hold for every record. `run` and `check` fail where it does not.
    #[serde(default)]
    pub require: Vec<Requirement>,
    /// The tables of the page.
    #[serde(default, rename = "table")]
    pub tables: Vec<Table>,
    /// The plots of the page.
    #[serde(default, rename = "plot")]
    pub plots: Vec<Plot>,
}

/// The program of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum Program {
    /// The `elbowroom` command.
    #[default]
    Command,
    /// An example of a crate.
    Example {
        /// The package.
        package: String,
        /// The example.
        name: String,
    },
    /// A benchmark of a crate.
    Bench {
        /// The package.
        package: String,
        /// The benchmark.
        name: String,
    },
}

impl TryFrom<String> for Program {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["elbowroom"] => Ok(Self::Command),
            ["example", package, name] => {
                Ok(Self::Example { package: package.to_owned(), name: name.to_owned() })
            }
            ["bench", package, name] => {
                Ok(Self::Bench { package: package.to_owned(), name: name.to_owned() })
            }
            _ => Err(format!("`{text}` is not `elbowroom`, `example PACKAGE NAME` or `bench PACKAGE NAME`")),
        }
    }
}

/// A condition on a field of every record: a bound, or equality with another field.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// The field.
    pub field: String,
    /// Only records whose fields have these values.
    #[serde(default, rename = "where")]
    pub filter: Fields,
    /// Its largest permitted value.
    #[serde(default)]
    pub at_most: Option<f64>,
    /// Its smallest permitted value.
    #[serde(default)]
    pub at_least: Option<f64>,
    /// Its value, or the name of the field whose value it must have.
    #[serde(default)]
    pub equals: Option<Value>,
}

/// A table of the page: the records of one row have the same values in the fields of `rows`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// A sentence above the table.
    #[serde(default)]
    pub caption: String,
    /// Only records whose fields have these values.
    #[serde(default, rename = "where")]
    pub filter: Fields,
    /// The columns that identify a row.
    pub rows: Vec<Column>,
    /// Fields whose values become columns: the cells are repeated for each combination.
    #[serde(default)]
    pub pivot: Vec<Column>,
    /// The measured columns.
    pub cells: Vec<Column>,
    /// Columns after the pivoted ones, which belong to the whole row: figures of papers and peers, for instance.
    #[serde(default)]
    pub after: Vec<Column>,
}

/// A column: a field and how its values are written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// The field of the record or of its case.
    pub field: String,
    /// The heading. In a pivoted table it follows the pivot's value and may be empty.
    #[serde(default)]
    pub head: String,
    /// How the value is written, and in which unit.
    #[serde(default)]
    pub format: Format,
    /// Digits after the point, where not the format's own number.
    #[serde(default)]
    pub digits: Option<usize>,
    /// A field by whose value this one is divided before it is written.
    #[serde(default)]
    pub over: Option<String>,
    /// Which of several values a cell shows.
    #[serde(default)]
    pub take: Take,
}

/// What a cell shows of several values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Take {
    /// There may be only one distinct value.
    #[default]
    Only,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The lower median.
    Median,
}

/// Lines or bars drawn as SVG: one series for each value of a field.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// The end of the file name, after the entry's id.
    pub id: String,
    /// A sentence above the picture, also its alternative text.
    pub caption: String,
    /// Only records whose fields have these values.
    #[serde(default, rename = "where")]
    pub filter: Fields,
    /// The horizontal axis. Numbers make lines, names make groups of bars.
    pub x: Column,
    /// The vertical axis.
    pub y: Column,
    /// The field whose values are the series; without it there is one.
    #[serde(default)]
    pub series: Option<String>,
    /// Further fields drawn as series of their own: figures of papers and peers.
    #[serde(default)]
    pub others: Vec<Column>,
}

/// A row of the README's table of headline figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Headline {
    /// The caption of the figure.
    pub text: String,
    /// The entry whose records it is taken from.
    pub entry: String,
    /// Only records whose fields have these values.
    #[serde(default, rename = "where")]
    pub filter: Fields,
    /// The field, its unit, and which value is shown.
    pub value: Column,
    /// The figure of a paper or a peer, if there is one.
    #[serde(default)]
    pub other: Option<Column>,
    /// What the other figure is.
    #[serde(default)]
    pub other_text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    intro: String,
    sections: Vec<String>,
    #[serde(default, rename = "headline")]
    headlines: Vec<Headline>,
}

impl Manifest {
    /// Reads `manifest.toml` and its sections from a folder.
    ///
    /// # Errors
    ///
    /// If a file is missing or is not what this module describes; the message names the file and the entry.
    pub fn load(folder: &Path) -> Result<Self> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
        };
        let path = folder.join("manifest.toml");
        let file: File = toml::from_str(&read(&path)?).with_context(|| path.display().to_string())?;
        let mut sections = Vec::new();
        for id in file.sections {
            let path = folder.join(format!("sections/{id}.toml"));
            sections.push(Section::parse(&id, &read(&path)?).with_context(|| path.display().to_string())?);
        }
        let manifest = Self { intro: file.intro, sections, headlines: file.headlines };
        manifest.validate()?;
        Ok(manifest)
    }

    /// All entries, section by section.
    pub fn entries(&self) -> impl Iterator<Item = (&Section, &Entry)> {
        self.sections.iter().flat_map(|section| section.entries.iter().map(move |entry| (section, entry)))
    }

    /// Names are unique, and headlines name entries.
    fn validate(&self) -> Result<()> {
        let mut ids = BTreeSet::new();
        for (_, entry) in self.entries() {
            ensure!(ids.insert(entry.id.as_str()), "two entries have the id {}", entry.id);
        }
        for headline in &self.headlines {
            ensure!(
                ids.contains(headline.entry.as_str()),
                "a headline names the unknown entry {}",
                headline.entry
            );
        }
        Ok(())
    }
}

impl Section {
    /// Reads a section from the text of its file.
    ///
    /// # Errors
    ///
    /// If the text is not a section, or an entry contradicts itself.
    pub fn parse(id: &str, text: &str) -> Result<Self> {
        let mut section: Self = toml::from_str(text)?;
        id.clone_into(&mut section.id);
        for entry in &section.entries {
            entry.validate().with_context(|| format!("entry {}", entry.id))?;
        }
        Ok(section)
    }
}

impl Entry {
    /// The cases, each combined with every choice of the varied placeholders.
    #[must_use]
    pub fn cases(&self) -> Vec<Fields> {
        let mut cases = if self.cases.is_empty() { vec![Fields::new()] } else { self.cases.clone() };
        for (name, values) in &self.vary {
            let with = |case: &Fields, value: &Value| {
                let mut case = case.clone();
                case.insert(name.clone(), value.clone());
                case
            };
            cases = cases.iter().flat_map(|case| values.iter().map(move |value| with(case, value))).collect();
        }
        cases
    }

    /// What it needs that is not part of the repository.
    pub fn needs(&self) -> impl Iterator<Item = External> {
        let needed = |external: &External| {
            let placeholder = format!("{{{}}}", external.placeholder());
            self.prepare.iter().chain([&self.command]).any(|line| line.contains(&placeholder))
        };
        External::ALL.into_iter().filter(needed)
    }

    /// The command lines as the data file records them, with placeholders.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let prepare = self.prepare.iter().map(|line| format!("elbowroom {line}"));
        let program = match &self.program {
            Program::Command => "elbowroom".to_owned(),
            Program::Example { package, name } => {
                format!("cargo run --release --package {package} --example {name} --")
            }
            Program::Bench { package, name } => format!("cargo bench --package {package} --bench {name} --"),
        };
        prepare.chain([format!("{program} {}", self.command)]).collect()
    }

    fn validate(&self) -> Result<()> {
        let simple = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        ensure!(
            !self.id.is_empty() && self.id.chars().all(simple),
            "an id has lower case, digits and dashes only"
        );
        ensure!(!self.quick || self.kind == Kind::Exact, "only exact entries can be quick: times differ");
        ensure!((0.0..1.0).contains(&self.tolerance), "the tolerance is a share from 0 to 1");
        ensure!(!self.tables.is_empty() || !self.plots.is_empty(), "nothing shows its records");
        for require in &self.require {
            let bounds = require.at_most.is_some() || require.at_least.is_some() || require.equals.is_some();
            ensure!(bounds, "the requirement on {} demands nothing", require.field);
        }
        for case in self.cases() {
            for line in self.prepare.iter().chain([&self.command]) {
                fill(line, &case, &Externals::default())?;
            }
            if let Some(both) = self.keep.iter().find(|&name| case.contains_key(name)) {
                bail!("{both} is a field of the command and of a case");
            }
        }
        for name in self.shown() {
            let known = self.keep.contains(name) || self.cases().iter().any(|case| case.contains_key(name));
            ensure!(known, "{name} is shown, but is neither kept nor in a case");
        }
        Ok(())
    }

    /// Every field that a table, a plot or a requirement names.
    fn shown(&self) -> impl Iterator<Item = &String> {
        let of_tables = self.tables.iter().flat_map(|table| {
            let columns = table.rows.iter().chain(&table.pivot).chain(&table.cells).chain(&table.after);
            columns.flat_map(Column::fields).chain(table.filter.keys())
        });
        let of_plots = self.plots.iter().flat_map(|plot| {
            let columns = [&plot.x, &plot.y].into_iter().chain(&plot.others);
            columns.flat_map(Column::fields).chain(&plot.series).chain(plot.filter.keys())
        });
        let of_requirements =
            self.require.iter().flat_map(|require| require.filter.keys().chain([&require.field]));
        of_tables.chain(of_plots).chain(of_requirements)
    }
}

impl Column {
    fn fields(&self) -> impl Iterator<Item = &String> {
        [&self.field].into_iter().chain(&self.over)
    }
}

/// Puts the values of a case and the paths of external things into the placeholders of a command line.
///
/// # Errors
///
/// If a placeholder has no value, or a brace is not closed.
pub fn fill(line: &str, case: &Fields, externals: &Externals) -> Result<String> {
    let mut filled = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, tail) =
            after.split_once('}').with_context(|| format!("a brace is not closed in `{line}`"))?;
        filled.push_str(before);
        let external = External::ALL.into_iter().find(|external| external.placeholder() == name);
        match (external, case.get(name)) {
            (Some(external), _) => {
                filled +=
                    &externals.path(external).map_or_else(String::new, |path| path.display().to_string());
            }
            (None, Some(Value::String(text))) => filled.push_str(text),
            (None, Some(value)) => filled.push_str(&value.to_string()),
            (None, None) => bail!("`{line}` names {{{name}}}, which a case does not have"),
        }
        rest = tail;
    }
    Ok(filled + rest)
}

/// Whether a record's fields have the values of a filter.
#[must_use]
pub fn matches(record: &Fields, filter: &Fields) -> bool {
    filter.iter().all(|(name, value)| record.get(name) == Some(value))
}
