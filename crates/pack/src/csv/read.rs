//! Reads a table of buffers.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use elbowroom_ir::packing::{Block, Interval, Problem, Window};
use elbowroom_ir::{Bytes, Table};

use super::dialect::{Column, Dialect, fields};
use super::{Buffers, CsvError};

/// Reads buffers from text in MiniMalloc's format.
///
/// # Errors
/// The first line that is not as the format has it, by its number.
pub fn read(text: &str) -> Result<Buffers, CsvError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let wanted = |&(_, line): &(usize, &str)| {
        let start = line.trim_start();
        !start.is_empty() && !start.starts_with('#')
    };
    let mut lines = (1..).zip(text.lines()).filter(wanted).peekable();
    let &(line, first) = lines.peek().ok_or(CsvError::Empty)?;
    let dialect = Dialect::of(first, line)?;
    if dialect.has_header {
        lines.next();
    }
    let mut buffers = Buffers { delimiter: dialect.delimiter, ..Buffers::default() };
    let mut blocks = Vec::new();
    // The names are those of the text, not copied again.
    let mut seen: HashMap<Cow<'_, str>, usize> = HashMap::new();
    for (line, text) in lines {
        if blocks.len() as u64 >= u64::from(u32::MAX) {
            return Err(CsvError::TooMany { line });
        }
        let (name, block) = row(&dialect, line, text, &mut buffers.other_fields)?;
        let name = if dialect.has_ids() { name } else { blocks.len().to_string().into() };
        buffers.names.push(name.clone().into_owned());
        if !name.is_empty() {
            match seen.entry(name) {
                Entry::Occupied(first) => {
                    let id = first.key().clone().into_owned();
                    return Err(CsvError::DuplicateId { line, first: *first.get(), id });
                }
                Entry::Vacant(place) => drop(place.insert(line)),
            }
        }
        blocks.push(block);
    }
    buffers.other_columns = dialect.others;
    buffers.problem = Problem { blocks: Table::from(blocks), capacity: None };
    buffers.problem.validate()?;
    Ok(buffers)
}

fn row<'t>(
    dialect: &Dialect,
    line: usize,
    text: &'t str,
    others: &mut Vec<String>,
) -> Result<(Cow<'t, str>, Block), CsvError> {
    let mut name = Cow::Borrowed("");
    let mut gaps = None;
    let (mut lower, mut upper) = (0, 0);
    let mut block = Block::new(0, 1, Bytes::ZERO);
    let mut columns = dialect.columns.iter();
    let mut count = 0;
    for field in fields(text, dialect.delimiter) {
        count += 1;
        let Some((column, title)) = columns.next() else { continue };
        let number = || {
            let parsed = field.parse::<u64>().ok().filter(|&number| number < 1 << 63);
            parsed.ok_or_else(|| CsvError::Number {
                line,
                column: title.clone(),
                text: field.clone().into_owned(),
            })
        };
        match column {
            Column::Other(_) => others.push(field.into_owned()),
            Column::Id => name = field,
            Column::Lower => lower = number()?,
            Column::Upper => upper = number()? + dialect.inclusive,
            Column::Size => block.size = Bytes(number()?),
            Column::Hint if field == "-1" => {}
            Column::Alignment if !field.is_empty() => block.align = Bytes(number()?),
            Column::Offset if !field.is_empty() => block.fixed = Some(Bytes(number()?)),
            Column::Hint if !field.is_empty() => block.hint = Some(Bytes(number()?)),
            Column::Alignment | Column::Offset | Column::Hint => {}
            Column::Gaps => gaps = Some(field),
        }
    }
    if count != dialect.columns.len() {
        return Err(CsvError::FieldCount { line, fields: count, columns: dialect.columns.len() });
    }
    if lower >= upper {
        return Err(CsvError::NeverAlive { line });
    }
    block.alive[0] = Interval::new(lower, upper);
    if let Some(gaps) = gaps.filter(|gaps| !gaps.is_empty()) {
        cut_gaps(&mut block, &gaps, dialect.inclusive, line)?;
    }
    if block.align.is_zero() {
        return Err(CsvError::ZeroAlignment { line });
    }
    if let Some(offset) = block.fixed.filter(|offset| offset.get() % block.align.get() != 0) {
        return Err(CsvError::OffsetMisaligned { line, offset: offset.get(), align: block.align.get() });
    }
    Ok((name, block))
}

/// Takes the gaps out of the block's only interval.
fn cut_gaps(block: &mut Block, gaps: &str, inclusive: u64, line: usize) -> Result<(), CsvError> {
    let Interval { start: lower, end: upper } = block.alive[0];
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
        let mut occupied = None;
        if let Some(window) = window {
            let (first, last) = window.split_once(':').ok_or_else(malformed)?;
            let (first, last) = (number(first)?, number(last)?);
            if last > block.size.get() {
                return Err(CsvError::WindowOutside { line, text: text.to_owned(), size: block.size.get() });
            }
            // An empty window occupies nothing.
            occupied = (first < last).then_some((Bytes(first), Bytes(last)));
        }
        found.push((Interval::new(from, to), occupied, text));
    }
    found.sort_unstable();
    block.alive.clear();
    let mut start = lower;
    for (gap, occupied, text) in found {
        if gap.start < start {
            return Err(CsvError::GapOutside { line, text: text.to_owned() });
        }
        if start < gap.start {
            block.alive.push(Interval::new(start, gap.start));
        }
        if let Some((from, to)) = occupied {
            block.windows.push(Window { during: gap, from, to });
        }
        start = gap.end;
    }
    if start < upper {
        block.alive.push(Interval::new(start, upper));
    }
    if block.alive.is_empty() && block.windows.is_empty() {
        return Err(CsvError::NeverAlive { line });
    }
    Ok(())
}
