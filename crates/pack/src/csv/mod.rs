//! Reads and writes MiniMalloc's CSV format, with all of its columns.
//!
//! The first line names the columns, in any order: `id` (or `buffer`, `buffer_id`), `lower` (or `start`, `begin`), `upper` (exclusive)
//! or `end` (inclusive), `size`, and optionally `alignment`, `offset` (the buffer is fixed there), `hint` (an offset from an earlier run, with
//! which searches begin; -1 means none) and `gaps`: intervals `lower-upper`, separated by spaces, in which the buffer is not alive; their ends
//! are inclusive if the column is `end`. An empty optional field means none. A gap with a window, `lower-upper@from:to`, states that bytes
//! `from..to` of the buffer stay occupied ([`Window`]).
//!
//! ```text
//! id,lower,upper,size,alignment,gaps
//! weights,0,9,4096,512,3-6@0:512
//! scratch,3,5,1000,1,
//! ```
//!
//! Fields are separated by commas, semicolons or tabs and may stand in quotation marks. Blank lines, lines that begin with `#` and a byte
//! order mark are passed over. Without a line of names, the columns are `id,lower,upper,size`, or `lower,upper,size`. Columns of other names
//! are kept and written back.

mod dialect;
mod read;
mod write;

#[cfg(doc)]
use elbowroom_ir::packing::Window;
use elbowroom_ir::packing::{Problem, ProblemError};

pub use read::read;
pub use write::{write, write_offsets_to, write_to};

/// The buffers of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Buffers {
    /// The names of the `id` column, in the order of the blocks.
    pub names: Vec<String>,
    /// The placement problem. Its capacity is `None`, because the format has none.
    pub problem: Problem,
    /// The character between two fields.
    pub delimiter: char,
    /// The names of the columns that packing does not use.
    pub other_columns: Vec<String>,
    /// Their fields, row by row: as many for each block as there are other columns.
    pub other_fields: Vec<String>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self::new(Vec::new(), Problem::default())
    }
}

impl Buffers {
    /// Buffers with names, in the order of the problem's blocks.
    pub fn new(names: Vec<String>, problem: Problem) -> Self {
        Self { names, problem, delimiter: ',', other_columns: Vec::new(), other_fields: Vec::new() }
    }
}

/// Why a text is not a list of buffers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CsvError {
    /// The text has no lines.
    #[error("the file is empty; its first line must name the columns id,lower,upper,size")]
    Empty,
    /// The first line names columns, but not one that every file needs.
    #[error(
        "line {line}: there is no column `{name}`; the first line must name the columns id,lower,upper,size (or end, inclusive, for upper)"
    )]
    MissingColumn {
        /// Line, from 1.
        line: usize,
        /// The missing column.
        name: &'static str,
    },
    /// The first line has numbers, but not those of a file without column names.
    #[error(
        "line {line}: {fields} numbers and no column names; without a line of names, the columns are id,lower,upper,size or lower,upper,size"
    )]
    NoHeader {
        /// Line, from 1.
        line: usize,
        /// Fields on it.
        fields: usize,
    },
    /// Two columns that mean the same.
    #[error("line {line}: column `{name}` is given twice; keep one of them")]
    DuplicateColumn {
        /// Line, from 1.
        line: usize,
        /// The second of the two.
        name: String,
    },
    /// Two buffers with the same id.
    #[error(
        "line {line}: the id `{id}` is that of the buffer on line {first}; give each buffer an id of its own"
    )]
    DuplicateId {
        /// Line of the second buffer, from 1.
        line: usize,
        /// Line of the first buffer.
        first: usize,
        /// The id.
        id: String,
    },
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
    /// A window that leaves the buffer.
    #[error("line {line}: the window of gap `{text}` ends above the buffer's size of {size} bytes")]
    WindowOutside {
        /// Line, from 1.
        line: usize,
        /// The text of the field.
        text: String,
        /// The size of the buffer, in bytes.
        size: u64,
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

#[cfg(test)]
mod tests {
    use elbowroom_ir::packing::{Interval, Placement, Window};
    use elbowroom_ir::{Bytes, Table};

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
            read("buffer,start,upper,size,alignment,offset,hint,gaps\na,0,9,4,2,6,0,3-5 7-8\nb,0,9,4,,,,\nc,0,9,4,,,-1,\n")
                .unwrap();
        assert_eq!(intervals(&full), [vec![(0, 3), (5, 7), (8, 9)], vec![(0, 9)], vec![(0, 9)]]);
        let blocks = full.problem.blocks.as_slice();
        assert_eq!(
            (blocks[0].align, blocks[0].fixed, blocks[0].hint),
            (Bytes(2), Some(Bytes(6)), Some(Bytes(0)))
        );
        assert_eq!((blocks[1].align, blocks[1].fixed, blocks[1].hint), (Bytes(1), None, None));
        assert_eq!(blocks[2].hint, None);
    }

    #[test]
    fn every_dialect_gives_the_same_buffers() {
        let plain = read("id,lower,upper,size\n0,1,4,7\n1,0,2,3\n").unwrap();
        for text in [
            "\u{feff}id,lower,upper,size\n0,1,4,7\n1,0,2,3",
            "# made by hand\n\nid,lower,upper,size\n0,1,4,7\n  # the second\n1,0,2,3\n",
            "0,1,4,7\n1,0,2,3\n",
            "1,4,7\n0,2,3\n",
            "\"id\",\"lower\",\"upper\",\"size\"\n\"0\",1,4,7\n\"1\",0,2,3\n",
        ] {
            assert_eq!(read(text).expect(text), plain, "{text:?}");
        }
        for delimiter in [';', '\t'] {
            let text = "id,lower,upper,size\n0,1,4,7\n1,0,2,3\n".replace(',', &delimiter.to_string());
            assert_eq!(read(&text).expect(&text), Buffers { delimiter, ..plain.clone() });
            let placement = Placement::new(&plain.problem, Table::from(vec![Bytes(0), Bytes(7)]));
            let written = write(&read(&text).unwrap(), &placement);
            assert!(
                written.ends_with(&format!("1{delimiter}0{delimiter}2{delimiter}3{delimiter}7\n")),
                "{written}"
            );
        }
    }

    #[test]
    fn other_columns_are_kept_and_written_back() {
        let text = "op;id;lower;upper;size;shape\nconv;a;0;2;4;2,2\n\"x;y\";b;0;2;8; \n";
        let buffers = read(text).unwrap();
        assert_eq!(
            (&buffers.other_columns[..], buffers.other_fields.len()),
            (&["op".into(), "shape".into()][..], 4)
        );
        let placement = Placement::new(&buffers.problem, Table::from(vec![Bytes(0), Bytes(4)]));
        let written = write(&buffers, &placement);
        assert_eq!(written, "id;lower;upper;size;op;shape;offset\na;0;2;4;conv;2,2;0\nb;0;2;8;\"x;y\";;4\n");
        let again = read(&written).unwrap();
        assert_eq!((again.other_columns, again.other_fields), (buffers.other_columns, buffers.other_fields));
    }

    #[test]
    fn inclusive_ends_reach_into_gaps_and_their_windows() {
        let buffers =
            read("id,start,end,size,gaps\na,0,9,4,2-3\nb,0,9,4,2-3@0:0\nc,0,9,4,2-3@1:2\n").unwrap();
        assert_eq!(intervals(&buffers), vec![vec![(0, 2), (4, 10)]; 3]);
        let windows: Vec<_> = buffers.problem.blocks.values().map(|block| block.windows.clone()).collect();
        let window = Window { during: Interval::new(2, 4), from: Bytes(1), to: Bytes(2) };
        assert_eq!(windows, [vec![], vec![], vec![window]]);
    }

    #[test]
    fn what_is_written_reads_back_pinned() {
        let text = "id,lower,upper,size,alignment,gaps\na,0,9,4,2,3-5 5-6@1:2 8-9@0:1\nb,3,5,4,1,\n";
        let buffers = read(text).unwrap();
        let placement = Placement::new(&buffers.problem, Table::from(vec![Bytes(0), Bytes(2)]));
        let written = write(&buffers, &placement);
        assert_eq!(
            written,
            "id,lower,upper,size,alignment,gaps,offset\na,0,9,4,2,3-5 5-6@1:2 8-9@0:1,0\nb,3,5,4,1,,2\n"
        );
        let again = read(&written).unwrap();
        assert_eq!(again.problem.blocks.as_slice()[1].fixed, Some(Bytes(2)));
        assert_eq!(again.problem.blocks.as_slice()[0].windows, buffers.problem.blocks.as_slice()[0].windows);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, message) in [
            ("", "the file is empty"),
            ("# only this\n\n", "the file is empty"),
            ("id,lower,upper\n", "line 1: there is no column `size`"),
            ("\n# x\nid,lower,upper\n", "line 3: there is no column `size`"),
            ("1,2,3,4,5\n", "line 1: 5 numbers and no column names"),
            ("id,lower,start,upper,size\n", "line 1: column `start` is given twice"),
            ("id,lower,upper,size,x,x\n", "line 1: column `x` is given twice"),
            ("id,lower,upper,size\na,0,1,2\nb,0,1\n", "line 3: 3 fields where the first line names 4"),
            ("id,lower,upper,size\na,0,1,2\nb,0,1,2,3\n", "line 3: 5 fields where the first line names 4"),
            (
                "id,lower,upper,size\na,0,1,2\nb,0,1,2\na,0,1,2\n",
                "line 4: the id `a` is that of the buffer on line 2",
            ),
            ("id,lower,upper,size\na,0,1,-2\n", "line 2: size `-2` is not a whole number"),
            ("id,lower,upper,size,hint\na,0,1,2,-2\n", "line 2: hint `-2` is not a whole number"),
            ("id,lower,upper,size\na,0,1,9223372036854775808\n", "line 2: size"),
            ("id,lower,upper,size\n\na,5,5,2\n", "line 3: the buffer is never alive"),
            ("id,lower,upper,size,gaps\na,0,5,2,3\n", "line 2: gap `3` is not of the form"),
            ("id,lower,upper,size,gaps\na,0,5,2,3-7\n", "line 2: gap `3-7` is empty, overlaps"),
            ("id,lower,upper,size,gaps\na,0,5,2,1-3 2-4\n", "line 2: gap `2-4` is empty, overlaps"),
            ("id,lower,upper,size,gaps\na,0,5,2,1-3@0:3\n", "line 2: the window of gap `1-3@0:3` ends above"),
            ("id,lower,upper,size,gaps\na,0,5,2,0-5\n", "line 2: the buffer is never alive"),
            ("id,lower,upper,size,alignment\na,0,5,2,0\n", "line 2: the alignment is 0"),
            ("id,lower,upper,size,alignment,offset\na,0,5,2,4,6\n", "line 2: offset 6 is not a multiple"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.starts_with(message), "{text:?}: {error}");
        }
    }
}
