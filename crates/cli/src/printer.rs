//! Output on standard output: aligned tables for people, one JSON object for programs.

use std::io::{self, Write};

use elbowroom::ir::Nanos;
use serde::Serialize;

/// Prints one JSON object on a line of its own.
pub fn json(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)
}

/// Prints names and values in two columns, names flush left.
pub fn pairs<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> io::Result<()> {
    let rows: Vec<_> = rows.into_iter().collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut out = io::stdout().lock();
    for (name, value) in rows {
        writeln!(out, "{name:width$}  {value}")?;
    }
    out.flush()
}

/// Prints a table with a head. The first two columns are flush left, the others, which hold numbers, flush right.
pub fn table<const N: usize>(
    head: &[&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> io::Result<()> {
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    grid(&head.map(str::to_owned), &rows)
}

/// The same with a number of columns that only the data know; every row has as many cells as the head.
pub fn grid(head: &[String], rows: &[Vec<String>]) -> io::Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut out = io::stdout().lock();
    for row in std::iter::once(head).chain(rows.iter().map(Vec::as_slice)) {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    out.flush()
}

/// Prints an empty line between two tables.
pub fn blank() -> io::Result<()> {
    writeln!(io::stdout().lock())
}

/// How far a time is from the shortest possible, as far as is known: `1.2 ms: at most 3.4 % above the shortest possible`.
pub fn bound(bound: Nanos, ratio: f64) -> String {
    if ratio <= 1.0 {
        format!("{bound}: no plan is shorter")
    } else {
        format!("{bound}: at most {:.1} % above the shortest possible", 100.0 * (ratio - 1.0))
    }
}

/// A share as a percentage with a sign, for overheads: `+12.3 %`.
pub fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}
