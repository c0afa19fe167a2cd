//! The figures of this project, measured by commands and rendered from what these print.
//!
//! A *manifest* (`results/manifest.toml`, `results/sections/*.toml`) lists entries. An entry is a command, the cases that it runs for, the
//! fields of its JSON output that are kept, the figures of papers or peers that belong to it, and the tables and plots that show them.
//! [`Runner::run`](runner::Runner::run) measures an entry and returns its [`Data`](data::Data), which is saved in `results/data/ID.json`.
//! [`render`] makes `docs/results/*.md`, their SVG plots and the README's table from the manifest and the data files, and from nothing else.
//! [`check`] measures the quick exact entries again and compares.
//!
//! Figures are *exact* (simulated times, bytes and evaluations, which every machine must reproduce) or *timed* (measured times, recorded with
//! the machine and its load).
//!
//! # Example
//!
//! Every entry that has been measured, and at which commit:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use elbowroom_results::data::Data;
//! use elbowroom_results::manifest::Manifest;
//!
//! let results = Path::new("results");
//! for (section, entry) in Manifest::load(results)?.entries() {
//!     if let Some(data) = Data::load(results, &entry.id)? {
//!         println!("{} {}: {} runs at {}", section.id, entry.id, data.runs.len(), data.commit.short());
//!     }
//! }
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod check;
pub mod compare;
pub mod data;
pub mod externals;
pub mod fields;
pub mod format;
pub mod manifest;
pub mod place;
pub mod plot;
pub mod render;
pub mod runner;
pub mod table;
