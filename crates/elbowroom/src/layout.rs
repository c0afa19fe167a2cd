//! How reports are laid out as text: sections of figures with notes, aligned tables, one unit for a column.

use std::borrow::Cow;

use elbowroom_ir::{Bytes, Nanos};

/// Columns of a terminal into which sections fit.
const WIDTH: usize = 80;
/// Least widths of the first two columns of a section, so that the sections of one report are aligned with each other.
const NAMES: usize = 20;
const FIGURES: usize = 12;

/// A text with escapes in place of the characters that a terminal obeys instead of showing: control characters, line ends and those that
/// change the direction of writing. Names come from files, and a file must not be able to rewrite what the command prints.
pub fn printable(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(obeyed) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match obeyed(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown.into()
}

/// One line of a section: a name, one figure, and what the figure is relative to.
pub struct Row {
    /// What the figure is.
    pub name: String,
    /// The figure with its unit.
    pub figure: String,
    /// What it is relative to, or what it means; may be empty.
    pub note: String,
}

/// Makes a row.
pub fn row(name: &str, figure: impl ToString, note: impl Into<String>) -> Row {
    Row { name: name.to_owned(), figure: figure.to_string(), note: note.into() }
}

/// Rows under a short heading, with an empty line before it. Long notes are wrapped.
pub fn section(heading: &str, rows: &[Row]) -> String {
    let width = |least: usize, cell: fn(&Row) -> &str| {
        rows.iter().map(|row| cell(row).chars().count()).max().unwrap_or(0).max(least)
    };
    let names = width(NAMES, |row| &row.name);
    // A figure without a note may be as long as it likes.
    let figures = rows.iter().filter(|row| !row.note.is_empty()).map(|row| row.figure.chars().count());
    let figures = figures.max().unwrap_or(0).max(FIGURES);
    let indent = names + figures + 6;
    let mut text = format!("\n{heading}\n");
    for Row { name, figure, note } in rows {
        let (name, figure) = (printable(name), printable(figure));
        let note = wrapped(&printable(note), WIDTH.saturating_sub(indent).max(24), indent);
        text += format!("  {name:<names$}  {figure:<figures$}  {note}").trim_end();
        text.push('\n');
    }
    text
}

impl Row {
    /// The row by itself, aligned with those of sections.
    pub fn line(&self) -> String {
        let Self { name, figure, note } = self;
        format!("  {name:<NAMES$}  {figure:<FIGURES$}  {note}")
    }
}

/// A text in lines of at most `width` columns, except for longer words, the lines after the first indented.
fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

/// The columns of a table.
pub struct Columns {
    widths: Vec<usize>,
    /// Columns that are flush left; the others, which hold numbers, are flush right.
    left: usize,
}

impl Columns {
    /// Columns for this head, whose first line names the columns and whose second their units. `widths` are the smallest widths.
    pub fn new(left: usize, head: &[Vec<String>], widths: &[usize]) -> Self {
        let width = |column: usize| {
            let cells = head.iter().map(|line| line[column].chars().count());
            cells.chain(widths.get(column).copied()).max().unwrap_or(0)
        };
        Self { widths: (0..head.first().map_or(0, Vec::len)).map(width).collect(), left }
    }

    /// One line, with as many cells as the head has.
    pub fn line(&self, cells: &[String]) -> String {
        let cells = cells.iter().zip(&self.widths).enumerate().map(|(column, (cell, &width))| {
            if column < self.left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        printable(line.trim_end()).into_owned()
    }
}

/// A whole table, its `left` first columns flush left.
pub fn table(left: usize, head: &[Vec<String>], rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.first().map_or(0, Vec::len)).map(width).collect();
    let columns = Columns::new(left, head, &widths);
    head.iter().chain(rows).map(|cells| columns.line(cells) + "\n").collect()
}

/// Turns names and units into the two lines of a head.
pub fn head<'a>(columns: impl AsRef<[(&'a str, &'a str)]>) -> Vec<Vec<String>> {
    let line = |pick: fn(&(&str, &str)) -> String| columns.as_ref().iter().map(pick).collect::<Vec<_>>();
    vec![line(|(name, _)| (*name).to_owned()), line(|(_, unit)| (*unit).to_owned())]
}

/// One unit for all sizes of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeUnit {
    /// Its name.
    pub name: &'static str,
    bytes: u64,
}

impl SizeUnit {
    /// The unit in which a size of this magnitude reads best.
    pub fn for_size(size: Bytes) -> Self {
        const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        let found = UNITS.into_iter().find(|&(_, bytes)| size.get() >= bytes);
        let (name, bytes) = found.unwrap_or(("B", 1));
        Self { name, bytes }
    }

    /// An amount of bytes × seconds as a number of this unit × seconds.
    pub fn byte_seconds(self, amount: f64) -> String {
        format!("{:.3}", amount / self.bytes as f64)
    }

    /// A size as a number of this unit.
    pub fn number(self, size: Bytes) -> String {
        if self.bytes == 1 {
            size.get().to_string()
        } else {
            format!("{:.2}", size.get() as f64 / self.bytes as f64)
        }
    }
}

/// One unit for all times of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeUnit {
    /// Its name.
    pub name: &'static str,
    nanos: f64,
}

impl TimeUnit {
    /// Milliseconds.
    pub const MILLISECONDS: Self = Self { name: "ms", nanos: 1e6 };
    /// Seconds.
    pub const SECONDS: Self = Self { name: "s", nanos: 1e9 };

    /// The unit in which a time of this magnitude reads best.
    pub fn for_time(time: Nanos) -> Self {
        const UNITS: [(&str, f64); 3] = [("s", 1e10), ("ms", 1e6), ("µs", 1e3)];
        let found = UNITS.into_iter().find(|&(_, least)| time.get() as f64 >= least);
        match found {
            Some(("s", _)) => Self::SECONDS,
            Some((name, nanos)) => Self { name, nanos },
            None => Self { name: "ns", nanos: 1.0 },
        }
    }

    /// A time as a number of this unit.
    pub fn number(self, time: Nanos, decimals: usize) -> String {
        format!("{:.decimals$}", time.get() as f64 / self.nanos)
    }
}

/// A count with a comma between groups of three digits: `11,173,962`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun: `1 op`, `12 ops`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// A share as a percentage with a sign, for overheads: `+12.3 %`.
pub fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 7, 2), "one two\n  three");
        assert_eq!(wrapped("extraordinary", 3, 2), "extraordinary");
        assert_eq!(wrapped("", 3, 2), "");
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(printable("a é 😀 \\"), "a é 😀 \\");
        assert_eq!(printable("a\u{1b}[31m\r\nb\u{85}\u{202e}"), "a\\u{1b}[31m\\r\\nb\\u{85}\\u{202e}");
    }

    #[test]
    fn one_unit_serves_a_column() {
        let unit = SizeUnit::for_size(Bytes(3 << 20));
        assert_eq!((unit.name, unit.number(Bytes(1 << 10))), ("MiB", "0.00".to_owned()));
        assert_eq!(SizeUnit::for_size(Bytes(12)).number(Bytes(7)), "7");
        let unit = TimeUnit::for_time(Nanos(579_600_000));
        assert_eq!((unit.name, unit.number(Nanos(1_500_000_000), 1)), ("ms", "1500.0".to_owned()));
        assert_eq!(TimeUnit::for_time(Nanos(60_000_000_000)), TimeUnit::SECONDS);
    }

    #[test]
    fn counts_are_grouped_and_have_a_plural() {
        assert_eq!((grouped(999), grouped(1_000)), ("999".to_owned(), "1,000".to_owned()));
        assert_eq!((counted(1, "op"), counted(0, "op")), ("1 op".to_owned(), "0 ops".to_owned()));
    }
}
