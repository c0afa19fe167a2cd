//! The dialect of a table: its delimiter, its columns, and how a line is cut into fields.

use std::borrow::Cow;

use super::CsvError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Id,
    Lower,
    Upper,
    Size,
    Alignment,
    Offset,
    Hint,
    Gaps,
    /// A column that packing does not use: its number among those.
    Other(usize),
}

const REQUIRED: [(Column, &str); 4] =
    [(Column::Id, "id"), (Column::Lower, "lower"), (Column::Upper, "upper"), (Column::Size, "size")];

/// The column with a name, and whether its upper ends are inclusive.
fn known(name: &str) -> Option<(Column, bool)> {
    let column = match name.to_ascii_lowercase().as_str() {
        "id" | "buffer" | "buffer_id" => Column::Id,
        "lower" | "start" | "begin" => Column::Lower,
        "upper" => Column::Upper,
        "end" => return Some((Column::Upper, true)),
        "size" => Column::Size,
        "alignment" => Column::Alignment,
        "offset" => Column::Offset,
        "hint" => Column::Hint,
        "gaps" => Column::Gaps,
        _ => return None,
    };
    Some((column, false))
}

/// How the lines of a table are read.
pub(super) struct Dialect {
    pub(super) delimiter: char,
    pub(super) columns: Vec<(Column, String)>,
    /// 1 where upper ends are inclusive.
    pub(super) inclusive: u64,
    /// The names of the columns that packing does not use.
    pub(super) others: Vec<String>,
    /// Whether the first line names the columns.
    pub(super) has_header: bool,
}

/// The character that separates the fields of a line: the most frequent of comma, semicolon and tab, a comma if there is none.
fn delimiter_of(line: &str) -> char {
    let count = |delimiter: &char| line.matches(*delimiter).count();
    [';', '\t', ','].into_iter().max_by_key(count).filter(|delimiter| count(delimiter) > 0).unwrap_or(',')
}

impl Dialect {
    /// The dialect that the first line of a table shows, the line of this number in its file.
    pub(super) fn of(first: &str, line: usize) -> Result<Self, CsvError> {
        let delimiter = delimiter_of(first);
        let names: Vec<String> = fields(first, delimiter).map(Cow::into_owned).collect();
        let plain = |columns: &[(Column, &str)]| Self {
            delimiter,
            columns: columns.iter().map(|&(column, name)| (column, name.to_owned())).collect(),
            inclusive: 0,
            others: Vec::new(),
            has_header: false,
        };
        let numbers = |names: &[String]| names.iter().all(|name| name.parse::<u64>().is_ok());
        if names.iter().all(|name| known(name).is_none()) && numbers(&names[names.len().min(1)..]) {
            return match names.len() {
                4 => Ok(plain(&REQUIRED)),
                3 if numbers(&names) => Ok(plain(&REQUIRED[1..])),
                fields => Err(CsvError::NoHeader { line, fields }),
            };
        }
        let mut dialect = Self { has_header: true, ..plain(&[]) };
        for name in names {
            let (column, inclusive) = known(&name).unwrap_or((Column::Other(dialect.others.len()), false));
            dialect.inclusive += u64::from(inclusive && dialect.inclusive == 0);
            if dialect.columns.iter().any(|(other, title)| *other == column || *title == name) {
                return Err(CsvError::DuplicateColumn { line, name });
            }
            if let Column::Other(_) = column {
                dialect.others.push(name.clone());
            }
            dialect.columns.push((column, name));
        }
        for (column, name) in REQUIRED {
            if !dialect.columns.iter().any(|(known, _)| *known == column) {
                return Err(CsvError::MissingColumn { line, name });
            }
        }
        Ok(dialect)
    }

    /// Whether the file names its buffers.
    pub(super) fn has_ids(&self) -> bool {
        self.columns.iter().any(|(column, _)| *column == Column::Id)
    }
}

/// The fields of a line without the spaces and the quotation marks around them.
pub(super) fn fields(line: &str, delimiter: char) -> Fields<'_> {
    Fields { rest: Some(line), delimiter }
}

/// An iterator over the fields of a line.
pub(super) struct Fields<'a> {
    rest: Option<&'a str>,
    delimiter: char,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Cow<'a, str>;

    fn next(&mut self) -> Option<Cow<'a, str>> {
        let rest = self.rest?;
        // A tab may be the delimiter and is then no space.
        let start = rest.trim_start_matches(|c: char| c != self.delimiter && c.is_whitespace());
        if let Some(quoted) = start.strip_prefix('"')
            && let Some(end) = closing_quote(quoted)
        {
            let field = &quoted[..end];
            let after = &quoted[end + 1..];
            self.rest = after.find(self.delimiter).map(|at| &after[at + self.delimiter.len_utf8()..]);
            return Some(if field.contains('"') { field.replace("\"\"", "\"").into() } else { field.into() });
        }
        let (field, rest) = match rest.split_once(self.delimiter) {
            Some((field, rest)) => (field, Some(rest)),
            None => (rest, None),
        };
        self.rest = rest;
        Some(field.trim().into())
    }
}

/// The position of the quotation mark that ends a field; two in a row stand for one within it.
fn closing_quote(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'"' {
            at += 1;
        } else if bytes.get(at + 1) == Some(&b'"') {
            at += 2;
        } else {
            return Some(at);
        }
    }
    None
}

/// A field as it is written: in quotation marks if it could be read in another way.
pub(super) fn quoted(field: &str, delimiter: char) -> Cow<'_, str> {
    let special = |c: char| c == delimiter || c == '"';
    let comment = field.starts_with('#');
    if comment || field.contains(special) || field.trim() != field {
        format!("\"{}\"", field.replace('"', "\"\"")).into()
    } else {
        field.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_cut_at_delimiters_outside_quotation_marks() {
        fn cut(line: &str, delimiter: char) -> Vec<String> {
            fields(line, delimiter).map(Cow::into_owned).collect()
        }
        assert_eq!(cut(" a , \"b,\"\"c\"\" \",,d\r", ','), ["a", "b,\"c\" ", "", "d"]);
        assert_eq!(cut("a\t \t\"b", '\t'), ["a", "", "\"b"]);
        for field in ["a,b", "x\"y", " z", "#1", ""] {
            assert_eq!(cut(&quoted(field, ','), ','), [field]);
        }
    }
}
