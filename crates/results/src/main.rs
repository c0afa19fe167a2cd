//! `cargo results`: measures, checks and renders the figures of `docs/results`.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use elbowroom_results::check;
use elbowroom_results::compare::broken;
use elbowroom_results::data::Data;
use elbowroom_results::externals::Externals;
use elbowroom_results::manifest::{Entry, Kind, Manifest};
use elbowroom_results::render;
use elbowroom_results::runner::Runner;

/// Measures, checks and renders the figures of docs/results
#[derive(Parser)]
#[command(name = "cargo results", bin_name = "cargo results")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
    /// The folder of the large data sets; entries that need it are left out where it is absent
    #[arg(long, global = true, value_name = "DIR", default_value = "../shared/data")]
    shared: PathBuf,
    /// A Python interpreter that has PyTorch; entries that measure PyTorch are left out without it
    #[arg(long, global = true, value_name = "FILE")]
    python: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Task {
    /// List the entries, and which of them have data
    List,
    /// Measure entries, write results/data/*.json and render the pages
    Run(Choice),
    /// Render the pages, the plots and the README's figures from the data files
    Render,
    /// Measure the quick exact entries again, and fail if a figure or a page differs
    Check {
        /// Check every exact entry, not only the quick ones
        #[arg(long)]
        all: bool,
    },
}

#[derive(Args)]
struct Choice {
    /// Only these entries
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Only the entries of this section
    #[arg(long, value_name = "SECTION")]
    section: Option<String>,
    /// Only exact entries
    #[arg(long)]
    exact: bool,
    /// Only entries without data for their present command
    #[arg(long)]
    missing: bool,
}

fn main() -> ExitCode {
    match work(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the command; returns whether every check passed.
fn work(arguments: &Arguments) -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .context("finding the workspace")?;
    let manifest = Manifest::load(&root.join("results"))?;
    let shared = root.join(&arguments.shared).canonicalize().ok();
    let python = arguments.python.as_deref().map(std::path::absolute).transpose()?;
    let mut runner = Runner::new(&root, Externals { shared, python });
    match &arguments.command {
        Task::List => list(&manifest, &root, &runner).map(|()| true),
        Task::Run(choice) => run(&manifest, &root, &mut runner, choice),
        Task::Render => render(&manifest, &root).map(|()| true),
        Task::Check { all } => check(&manifest, &root, &mut runner, *all),
    }
}

fn list(manifest: &Manifest, root: &Path, runner: &Runner) -> Result<()> {
    for (section, entry) in manifest.entries() {
        let data = Data::load(&root.join("results"), &entry.id)?;
        let state = match &data {
            Some(data) => {
                data.outdated(entry).unwrap_or_else(|| format!("measured at {}", data.commit.short()))
            }
            None => match runner.lacks(entry) {
                Some(external) => format!("not measured, needs {}", external.description()),
                None => "not measured".to_owned(),
            },
        };
        let kind = match entry.kind {
            Kind::Exact if entry.quick => "exact, quick",
            Kind::Exact => "exact",
            Kind::Timed => "timed",
        };
        println!("{:<12} {:<32} {kind:<14} {state}", section.id, entry.id);
    }
    Ok(())
}

/// Measures the chosen entries and renders. False if an entry breaks one of its requirements.
fn run(manifest: &Manifest, root: &Path, runner: &mut Runner, choice: &Choice) -> Result<bool> {
    let folder = root.join("results");
    for id in &choice.only {
        ensure!(
            manifest.entries().any(|(_, entry)| entry.id == *id),
            "there is no entry {id}; `list` names them"
        );
    }
    if let Some(id) = &choice.section {
        ensure!(manifest.sections.iter().any(|section| section.id == *id), "there is no section {id}");
    }
    let mut held = true;
    for (section, entry) in manifest.entries() {
        let named = choice.only.is_empty() || choice.only.contains(&entry.id);
        let inside = choice.section.as_ref().is_none_or(|id| *id == section.id);
        if !named || !inside || (choice.exact && entry.kind != Kind::Exact) {
            continue;
        }
        if choice.missing
            && Data::load(&folder, &entry.id)?.is_some_and(|data| data.outdated(entry).is_none())
        {
            continue;
        }
        if let Some(external) = runner.lacks(entry) {
            eprintln!("{}: left out, needs {}", entry.id, external.description());
            continue;
        }
        let started = Instant::now();
        let data = runner.run(entry, &mut |line| eprintln!("{}: {line}", entry.id));
        let data = data.with_context(|| format!("entry {}", entry.id))?;
        data.save(&folder)?;
        eprintln!("{}: {:.0} s", entry.id, started.elapsed().as_secs_f64());
        held &= report(entry, &broken(entry, &data));
    }
    render(manifest, root)?;
    Ok(held)
}

fn render(manifest: &Manifest, root: &Path) -> Result<()> {
    let measured = render::load(manifest, &root.join("results"))?;
    let pages = render::pages(manifest, &measured)?;
    let docs = root.join("docs/results");
    std::fs::create_dir_all(&docs)?;
    for name in check::files(&docs)?.into_iter().filter(|name| !pages.contains_key(Path::new(name))) {
        std::fs::remove_file(docs.join(name))?;
    }
    for (name, text) in &pages {
        std::fs::write(docs.join(name), text)?;
    }
    let path = root.join("README.md");
    let readme = std::fs::read_to_string(&path).context("reading README.md")?;
    std::fs::write(&path, render::readme(&readme, manifest, &measured)?)?;
    Ok(())
}

/// Compares the quick exact entries and all pages with what is recorded. True if nothing differs.
fn check(manifest: &Manifest, root: &Path, runner: &mut Runner, all: bool) -> Result<bool> {
    let measured = render::load(manifest, &root.join("results"))?;
    let mut held = true;
    for why in check::pages(manifest, &measured, root)? {
        println!("FAILED {why}");
        held = false;
    }
    let (mut checked, mut absent) = (0, 0);
    for (_, entry) in
        manifest.entries().filter(|(_, entry)| entry.quick || (all && entry.kind == Kind::Exact))
    {
        let Some(data) = measured.get(&entry.id) else { continue };
        if runner.lacks(entry).is_some() {
            absent += 1;
            continue;
        }
        let started = Instant::now();
        let found = check::entry(runner, entry, data, &mut |_| {});
        let found = found.with_context(|| format!("entry {}", entry.id))?;
        println!("{} ({:.0} s)", entry.id, started.elapsed().as_secs_f64());
        held &= report(entry, &found);
        checked += 1;
    }
    println!("{checked} entries measured again; {absent} left out, because what they need is absent");
    Ok(held)
}

/// Prints what is wrong with an entry. True if nothing is.
fn report(entry: &Entry, found: &[String]) -> bool {
    for why in found {
        println!("FAILED {}: {why}", entry.id);
    }
    found.is_empty()
}
