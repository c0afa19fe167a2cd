//! Reads and writes MiniMalloc's CSV format, with all of its columns.
//!
//! The first line names the columns, in any order: `id` (or `buffer`, `buffer_id`), `lower` (or `start`, `begin`), `upper` (exclusive)
//! or `end` (inclusive), `size`, and optionally `alignment`, `offset` (the buffer is fixed there), `hint` (an offset from an earlier run, read and ignored)
//! and `gaps`: intervals `lower-upper`, separated by spaces, in which the buffer is not alive; their ends are inclusive if the column is `end`.
//! An empty optional field means none. A gap with a window, `lower-upper@from:to`, states that bytes `from..to` of the buffer stay occupied. Blocks
//! cannot be partly alive, so the whole buffer then stays alive unless the window is empty: legal, but possibly higher.
//!
//! ```text
//! id,lower,upper,size,alignment,gaps
//! weights,0,9,4096,512,3-6
//! scratch,3,5,1000,1,
//! ```

use elbowroom_ir::packing::{Block, Interval, Placement, Problem, ProblemError};
use elbowroom_ir::{Bytes, Table};

/// The buffers of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffers {
    /// The names of the `id` column, in the order of the blocks.
    pub names: Vec<String>,
    /// The placement problem. Its capacity is `None`, because the format has none.
    pub problem: Problem,
}

/// Why a text is not a list of buffers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CsvError {
    /// The text has no lines.
    #[error("the file is empty; its first line must name the columns id,lower,upper,size")]
    Empty,
    /// The first line lacks a column that every file needs.
    #[error(
        "line 1: there is no column `{0}`; the first line must name the columns id,lower,upper,size (or end, inclusive, for upper)"
    )]
    MissingColumn(&'static str),
    /// The first line names a column that the format does not have.
    #[error(
        "line 1: unknown column `{0}`; the columns are id, lower (start, begin), upper or end, size, alignment, offset, hint, gaps"
    )]
    UnknownColumn(String),
    /// Two columns that mean the same.
    #[error("line 1: column `{0}` is given twice; keep one of them")]
    DuplicateColumn(String),
    /// More or fewer fields than columns.
    #[error("line {line}: {fields} fields where the first line names {columns}")]
    FieldCount {
        /// Line, from 1.
        line: usize,
        /// Fields on it.
        fields: usize,
        /// Columns of the first line.
        columns: usize,
    },
    /// A field that is not a whole number below 2^63.
    #[error("line {line}: {column} `{text}` is not a whole number from 0 to 2^63 - 1")]
    Number {
        /// Line, from 1.
        line: usize,
        /// Column, as the file names it.
        column: String,
        /// The text of the field.
        text: String,
    },
    /// A gap that is not `lower-upper` or `lower-upper@from:to`.
    #[error("line {line}: gap `{text}` is not of the form lower-upper or lower-upper@from:to")]
    Gap {
        /// Line, from 1.
        line: usize,
        /// The text of the field.
        text: String,
    },
    /// Gaps that are empty, overlap, are not sorted or exceed the lifetime.
    #[error("line {line}: gap `{text}` is empty, overlaps another one or leaves the buffer's lifetime")]
    GapOutside {
        /// Line, from 1.
        line: usize,
        /// The text of the field.
        text: String,
    },
    /// A lifetime of no position.
    #[error(
        "line {line}: the buffer is never alive; lower must be less than upper (exclusive), or at most end (inclusive), and gaps must leave something"
    )]
    NeverAlive {
        /// Line, from 1.
        line: usize,
    },
    /// More buffers than ids.
    #[error("line {line}: more than 2^32 - 1 buffers")]
    TooMany {
        /// Line, from 1.
        line: usize,
    },
    /// Alignment of zero.
    #[error("line {line}: the alignment is 0; the smallest is 1")]
    ZeroAlignment {
        /// Line, from 1.
        line: usize,
    },
    /// A fixed offset that is not a multiple of the alignment.
    #[error("line {line}: offset {offset} is not a multiple of the alignment {align}")]
    OffsetMisaligned {
        /// Line, from 1.
        line: usize,
        /// The offset, in bytes.
        offset: u64,
        /// The alignment, in bytes.
        align: u64,
    },
    /// The packers cannot take these buffers.
    #[error(transparent)]
    Problem(#[from] ProblemError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Id,
    Lower,
    Upper,
    Size,
    Alignment,
    Offset,
    Hint,
    Gaps,
}

const REQUIRED: [(Column, &str); 4] =
    [(Column::Id, "id"), (Column::Lower, "lower"), (Column::Upper, "upper"), (Column::Size, "size")];

struct Header {
    columns: Vec<(Column, String)>,
    /// 1 where upper ends are inclusive.
    inclusive: u64,
}

impl Header {
    fn parse(line: &str) -> Result<Self, CsvError> {
        let mut header = Self { columns: Vec::new(), inclusive: 0 };
        for name in line.split(',').map(str::trim) {
            let column = match name.to_ascii_lowercase().as_str() {
                "id" | "buffer" | "buffer_id" => Column::Id,
                "lower" | "start" | "begin" => Column::Lower,
                "upper" => Column::Upper,
                "end" => {
                    header.inclusive = 1;
                    Column::Upper
                }
                "size" => Column::Size,
                "alignment" => Column::Alignment,
                "offset" => Column::Offset,
                "hint" => Column::Hint,
                "gaps" => Column::Gaps,
                _ => return Err(CsvError::UnknownColumn(name.to_owned())),
            };
            if header.columns.iter().any(|(known, _)| *known == column) {
                return Err(CsvError::DuplicateColumn(name.to_owned()));
            }
            header.columns.push((column, name.to_owned()));
        }
        for (column, name) in REQUIRED {
            if !header.columns.iter().any(|(known, _)| *known == column) {
                return Err(CsvError::MissingColumn(name));
            }
        }
        Ok(header)
    }
}

/// Reads buffers from text in MiniMalloc's format. Blank lines and a byte order mark are passed over; fields may be surrounded by spaces.
pub fn read(text: &str) -> Result<Buffers, CsvError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, first) = lines.next().ok_or(CsvError::Empty)?;
    let header = Header::parse(first)?;
    let mut names = Vec::new();
    let mut blocks = Vec::new();
    for (index, text) in lines {
        let line = index + 1;
        if blocks.len() as u64 >= u64::from(u32::MAX) {
            return Err(CsvError::TooMany { line });
        }
        let (name, block) = row(&header, line, text)?;
        names.push(name);
        blocks.push(block);
    }
    let problem = Problem { blocks: Table::from(blocks), capacity: None };
    problem.validate()?;
    Ok(Buffers { names, problem })
}

fn row(header: &Header, line: usize, text: &str) -> Result<(String, Block), CsvError> {
    let fields = text.split(',').count();
    if fields != header.columns.len() {
        return Err(CsvError::FieldCount { line, fields, columns: header.columns.len() });
    }
    let mut name = String::new();
    let mut gaps = "";
    let (mut lower, mut upper) = (0, 0);
    let mut block = Block { size: Bytes::ZERO, alive: Vec::new(), align: Bytes(1), fixed: None };
    for ((column, title), field) in header.columns.iter().zip(text.split(',').map(str::trim)) {
        let number = || {
            let parsed = field.parse::<u64>().ok().filter(|&number| number < 1 << 63);
            parsed.ok_or_else(|| CsvError::Number { line, column: title.clone(), text: field.to_owned() })
        };
        match column {
            Column::Id => field.clone_into(&mut name),
            Column::Lower => lower = number()?,
            Column::Upper => upper = number()? + header.inclusive,
            Column::Size => block.size = Bytes(number()?),
            Column::Alignment if !field.is_empty() => block.align = Bytes(number()?),
            Column::Offset if !field.is_empty() => block.fixed = Some(Bytes(number()?)),
            Column::Hint if !field.is_empty() => drop(number()?),
            Column::Alignment | Column::Offset | Column::Hint => {}
            Column::Gaps => gaps = field,
        }
    }
    if lower >= upper {
        return Err(CsvError::NeverAlive { line });
    }
    block.alive = alive(lower, upper, gaps, header.inclusive, line)?;
    if block.align.is_zero() {
        return Err(CsvError::ZeroAlignment { line });
    }
    if let Some(offset) = block.fixed.filter(|offset| offset.get() % block.align.get() != 0) {
        return Err(CsvError::OffsetMisaligned { line, offset: offset.get(), align: block.align.get() });
    }
    Ok((name, block))
}

/// The intervals of a lifetime outside its gaps.
fn alive(lower: u64, upper: u64, gaps: &str, inclusive: u64, line: usize) -> Result<Vec<Interval>, CsvError> {
    let mut found = Vec::new();
    for text in gaps.split_ascii_whitespace() {
        let malformed = || CsvError::Gap { line, text: text.to_owned() };
        let number =
            |text: &str| text.parse::<u64>().ok().filter(|&number| number < 1 << 63).ok_or_else(malformed);
        let (gap, window) = text.split_once('@').map_or((text, None), |(gap, window)| (gap, Some(window)));
        let (from, to) = gap.split_once('-').ok_or_else(malformed)?;
        let (from, to) = (number(from)?, number(to)? + inclusive);
        if from >= to || from < lower || to > upper {
            return Err(CsvError::GapOutside { line, text: text.to_owned() });
        }
        if let Some(window) = window {
            let (first, last) = window.split_once(':').ok_or_else(malformed)?;
            if number(first)? < number(last)? {
                continue;
            }
        }
        found.push((from, to, text));
    }
    found.sort_unstable();
    let mut intervals = Vec::new();
    let mut start = lower;
    for (from, to, text) in found {
        if from < start {
            return Err(CsvError::GapOutside { line, text: text.to_owned() });
        }
        if start < from {
            intervals.push(Interval::new(start, from));
        }
        start = to;
    }
    if start < upper {
        intervals.push(Interval::new(start, upper));
    }
    if intervals.is_empty() {
        return Err(CsvError::NeverAlive { line });
    }
    Ok(intervals)
}

/// Writes buffers with the offsets of a placement, in order of their ids: columns `id,lower,upper,size`, `alignment` and `gaps` where any
/// buffer has them, and `offset`. Reading the result pins every buffer where it lies.
pub fn write(buffers: &Buffers, placement: &Placement) -> String {
    let blocks = &buffers.problem.blocks;
    let alignment = blocks.values().any(|block| block.align != Bytes(1));
    let gaps = blocks.values().any(|block| block.alive.len() > 1);
    let mut text = String::from("id,lower,upper,size");
    text.push_str(if alignment { ",alignment" } else { "" });
    text.push_str(if gaps { ",gaps" } else { "" });
    text.push_str(",offset\n");
    for ((block, name), offset) in blocks.values().zip(&buffers.names).zip(placement.offsets.values()) {
        let lower = block.alive.first().map_or(0, |interval| interval.start);
        let upper = block.alive.last().map_or(0, |interval| interval.end);
        text.push_str(&format!("{name},{lower},{upper},{}", block.size.get()));
        if alignment {
            text.push_str(&format!(",{}", block.align.get()));
        }
        if gaps {
            let found: Vec<String> =
                block.alive.windows(2).map(|pair| format!("{}-{}", pair[0].end, pair[1].start)).collect();
            text.push_str(&format!(",{}", found.join(" ")));
        }
        text.push_str(&format!(",{}\n", offset.get()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(buffers: &Buffers) -> Vec<Vec<(u64, u64)>> {
        buffers.problem.blocks.values().map(|b| b.alive.iter().map(|i| (i.start, i.end)).collect()).collect()
    }

    #[test]
    fn columns_come_in_any_order_and_under_any_name() {
        let plain = read("id,lower,upper,size\nx,1,4,7\n").unwrap();
        assert_eq!(intervals(&plain), [[(1, 4)]]);
        assert_eq!(read("size,end,begin,buffer_id\r\n 7 ,3,1,x\r\n\r\n").unwrap(), plain);
        let full =
            read("buffer,start,upper,size,alignment,offset,hint,gaps\na,0,9,4,2,6,0,3-5 7-8\nb,0,9,4,,,,\n")
                .unwrap();
        assert_eq!(intervals(&full), [vec![(0, 3), (5, 7), (8, 9)], vec![(0, 9)]]);
        let blocks = full.problem.blocks.as_slice();
        assert_eq!((blocks[0].align, blocks[0].fixed), (Bytes(2), Some(Bytes(6))));
        assert_eq!((blocks[1].align, blocks[1].fixed), (Bytes(1), None));
    }

    #[test]
    fn inclusive_ends_reach_into_gaps_and_windows_keep_the_buffer() {
        let buffers =
            read("id,start,end,size,gaps\na,0,9,4,2-3\nb,0,9,4,2-3@0:0\nc,0,9,4,2-3@1:2\n").unwrap();
        assert_eq!(intervals(&buffers), [vec![(0, 2), (4, 10)], vec![(0, 2), (4, 10)], vec![(0, 10)]]);
    }

    #[test]
    fn what_is_written_reads_back_pinned() {
        let buffers = read("id,lower,upper,size,alignment,gaps\na,0,9,4,2,3-5\nb,3,5,4,1,\n").unwrap();
        let placement = Placement::new(&buffers.problem, Table::from(vec![Bytes(0), Bytes(2)]));
        let text = write(&buffers, &placement);
        assert_eq!(text, "id,lower,upper,size,alignment,gaps,offset\na,0,9,4,2,3-5,0\nb,3,5,4,1,,2\n");
        let again = read(&text).unwrap();
        assert_eq!(again.problem.blocks.as_slice()[1].fixed, Some(Bytes(2)));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, message) in [
            ("", "the file is empty"),
            ("id,lower,upper\n", "line 1: there is no column `size`"),
            ("id,lower,upper,size,colour\n", "line 1: unknown column `colour`"),
            ("id,lower,start,upper,size\n", "line 1: column `start` is given twice"),
            ("id,lower,upper,size\na,0,1,2\nb,0,1\n", "line 3: 3 fields where the first line names 4"),
            ("id,lower,upper,size\na,0,1,-2\n", "line 2: size `-2` is not a whole number"),
            ("id,lower,upper,size\na,0,1,9223372036854775808\n", "line 2: size"),
            ("id,lower,upper,size\n\na,5,5,2\n", "line 3: the buffer is never alive"),
            ("id,lower,upper,size,gaps\na,0,5,2,3\n", "line 2: gap `3` is not of the form"),
            ("id,lower,upper,size,gaps\na,0,5,2,3-7\n", "line 2: gap `3-7` is empty, overlaps"),
            ("id,lower,upper,size,gaps\na,0,5,2,0-5\n", "line 2: the buffer is never alive"),
            ("id,lower,upper,size,alignment\na,0,5,2,0\n", "line 2: the alignment is 0"),
            ("id,lower,upper,size,alignment,offset\na,0,5,2,4,6\n", "line 2: offset 6 is not a multiple"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.starts_with(message), "{text:?}: {error}");
        }
    }
}
