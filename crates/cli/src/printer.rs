//! Output on standard output: sections and aligned tables for people, one JSON object for programs.

use std::io::{self, Stdout, Write};

use elbowroom::layout::{self, Columns};
pub use elbowroom::layout::{Row, SizeUnit, TimeUnit, counted, grouped, head, percent, printable, row};
use elbowroom::report::Evaluation;
use serde::Serialize;

/// Standard output, whose errors name it: a full disk behind it must not read like one behind another file.
pub struct Output(Stdout);

/// Standard output.
pub fn output() -> Output {
    Output(io::stdout())
}

/// An error of the same kind that says what cannot be written.
pub fn unwritable(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write {what}: {error}"))
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(|error| match error.kind() {
            // Callers repeat the call.
            io::ErrorKind::Interrupted => error,
            _ => unwritable("standard output", &error),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(|error| unwritable("standard output", &error))
    }
}

/// Prints one JSON object on a line of its own.
pub fn json(value: &impl Serialize) -> io::Result<()> {
    let mut out = output();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)
}

/// Prints one line.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = output();
    writeln!(out, "{}", printable(text.trim_end()))?;
    out.flush()
}

/// Prints lines that are laid out.
pub fn text(lines: &str) -> io::Result<()> {
    let mut out = output();
    out.write_all(lines.as_bytes())?;
    out.flush()
}

/// Prints rows under a short heading, with an empty line before it. Long notes are wrapped.
pub fn section(heading: &str, rows: &[Row]) -> io::Result<()> {
    text(&layout::section(heading, rows))
}

/// Prints one row by itself, aligned with those of sections.
pub fn item(row: &Row) -> io::Result<()> {
    line(&row.line())
}

/// A table whose lines are printed one by one.
pub struct Table(Columns);

impl Table {
    /// Prints the head, whose first line names the columns and whose second their units. `widths` are the smallest widths of the columns.
    pub fn begin(left: usize, head: &[Vec<String>], widths: &[usize]) -> io::Result<Self> {
        let table = Self(Columns::new(left, head, widths));
        for line in head {
            table.print(line)?;
        }
        Ok(table)
    }

    /// Prints one line, with as many cells as the head has.
    pub fn print(&self, cells: &[String]) -> io::Result<()> {
        line(&self.0.line(cells))
    }
}

/// Prints a whole table.
pub fn table(left: usize, head: &[Vec<String>], rows: &[Vec<String>]) -> io::Result<()> {
    text(&layout::table(left, head, rows))
}

/// How near a plan is to the lower bound on the iteration time.
pub fn optimality(ratio: f64) -> String {
    if ratio <= 1.0 {
        "reached: no plan is faster at this limit".to_owned()
    } else {
        format!("this plan takes at most {:.1} % longer than the fastest", 100.0 * (ratio - 1.0))
    }
}

/// What an evaluation gave.
pub fn evaluation(evaluation: &Evaluation) -> Row {
    let Evaluation { iterations, samples, loss, accuracy, .. } = *evaluation;
    let perplexity =
        evaluation.perplexity().map_or_else(String::new, |value| format!("perplexity {value:.3}, "));
    let note = format!(
        "{perplexity}accuracy {:.2} % on {} after {}",
        100.0 * accuracy,
        counted(samples, "sample"),
        counted(iterations, "iteration")
    );
    row("evaluation", format!("loss {loss:.6}"), note)
}

/// Why a search stopped, in words.
pub fn stopped(reason: &str) -> &str {
    match reason {
        "optimal" => "proved optimal",
        "finished" => "search completed",
        "evaluations" => "evaluation budget used up",
        "time" => "time budget used up",
        "interrupted" => "interrupted",
        "gave-up" => "gave up",
        "too-slow" => "too slow",
        other => other,
    }
}
