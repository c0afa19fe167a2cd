//! Runs the commands of the book, and compares what they print with what the book shows.
//!
//! Each page of `docs/` gets an empty folder, and its fenced blocks are worked through in order. The first word after the fence says what a
//! block is, words after a comma give options:
//!
//! | block | meaning |
//! | --- | --- |
//! | `console` | commands after `$ `, each followed by its output; a command that ends in `# exit 1` must exit with that status |
//! | `console,measured` | the same, but the output contains measured times: only the exit status is compared |
//! | `sh` | every line that begins with `elbowroom` must succeed; other lines are not run |
//! | `text,file=NAME` | the content of a file for later commands |
//! | `rust,source=PATH` | must be the content of that file of the tree |
//!
//! `[..]` in an output stands for any characters of one line, and a line `...` for any further lines. With `BLESS=1` in the environment the test
//! writes what the commands printed and what the files contain into the book instead of comparing.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A fenced block: the words of its fence, and its lines.
struct Block {
    info: String,
    lines: Vec<String>,
}

impl Block {
    fn kind(&self) -> &str {
        self.info.split(',').next().unwrap_or("")
    }

    /// The value of `key=value` in the fence.
    fn value(&self, key: &str) -> Option<&str> {
        self.info.split(',').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }
}

/// A page: text lines and blocks, in order.
enum Part {
    Line(String),
    Block(Block),
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn parse(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some("")) => parts.extend(open.take().map(Part::Block)),
            (Some(block), _) => block.lines.push(line.to_owned()),
            (None, Some(info)) => open = Some(Block { info: info.to_owned(), lines: Vec::new() }),
            (None, None) => parts.push(Part::Line(line.to_owned())),
        }
    }
    assert!(open.is_none(), "a block is not closed");
    parts
}

fn print(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Line(line) => text += &format!("{line}\n"),
            Part::Block(block) => {
                text += &format!("```{}\n", block.info);
                text.extend(block.lines.iter().map(|line| format!("{line}\n")));
                text += "```\n";
            }
        }
    }
    text
}

/// Whether a line is as written, `[..]` standing for anything.
fn matches(line: &str, written: &str) -> bool {
    let mut pieces = written.split("[..]");
    let first = pieces.next().unwrap_or("");
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut last = None;
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
        last = Some(piece);
    }
    match last {
        None => rest.is_empty(),
        Some(piece) => piece.is_empty() || rest.is_empty(),
    }
}

fn agree(printed: &[String], written: &[String]) -> bool {
    match written.split_last() {
        Some((last, before)) if last == "..." => {
            printed.len() >= before.len() && agree(&printed[..before.len()], before)
        }
        _ => {
            printed.len() == written.len()
                && printed.iter().zip(written).all(|(line, written)| matches(line, written))
        }
    }
}

/// Splits a command line at spaces; quotes hold a word together.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' | '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Runs `elbowroom ...`, requires the exit status that the line states, and returns the lines printed: standard output, and standard error
/// where the command fails.
fn run(line: &str, folder: &Path) -> Vec<String> {
    let (command, status) = match line.split_once("# exit ") {
        Some((command, status)) => (command, status.trim().parse().expect("an exit status")),
        None => (line.split(" #").next().unwrap_or(line), 0),
    };
    let words = words(command);
    assert_eq!(words.first().map(String::as_str), Some("elbowroom"), "only elbowroom is run: {line}");
    let output =
        Command::new(env!("CARGO_BIN_EXE_elbowroom")).args(&words[1..]).current_dir(folder).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(status), "{line}\n{out}{err}");
    let shown = if status == 0 { out } else { out + &err };
    shown.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// `line` with the `[..]` at the end of `written` in the same column, where a column begins there in `line` too: measured times stand last in
/// the tables of the command, and a page must not claim them.
fn keep_open_end(line: String, written: &str) -> String {
    match written.strip_suffix("[..]") {
        Some(kept) if line.as_bytes().get(kept.len()) == Some(&b' ') => {
            format!("{}[..]", &line[..kept.len()])
        }
        _ => line,
    }
}

/// Runs a console block and returns it as it should be written: a command's lines are replaced only where they differ.
fn console(block: &Block, folder: &Path) -> Vec<String> {
    let measured = block.info.split(',').any(|word| word == "measured");
    let mut result = Vec::new();
    let mut at = 0;
    while at < block.lines.len() {
        let command = block.lines[at].strip_prefix("$ ").expect("a console block begins with a command");
        let end = (at + 1..block.lines.len()).find(|&i| block.lines[i].starts_with("$ "));
        let written = &block.lines[at + 1..end.unwrap_or(block.lines.len())];
        let printed = run(command, folder);
        result.push(block.lines[at].clone());
        if measured || agree(&printed, written) {
            result.extend_from_slice(written);
        } else {
            let same_length = printed.len() == written.len();
            result.extend(printed.into_iter().enumerate().map(|(i, line)| {
                // A line that still matches keeps its `[..]`; one in the same place whose left part changed keeps the `[..]` at its end.
                let still =
                    written.iter().find(|written| written.contains("[..]") && matches(&line, written));
                match still {
                    Some(written) => written.clone(),
                    None if same_length => keep_open_end(line, &written[i]),
                    None => line,
                }
            }));
        }
        at = end.unwrap_or(block.lines.len());
    }
    result
}

/// Works through a page and returns what it should be.
fn page(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut parts = parse(text);
    for part in &mut parts {
        let Part::Block(block) = part else { continue };
        match block.kind() {
            "console" => block.lines = console(block, folder.path()),
            "sh" => {
                for line in block.lines.iter().filter(|line| line.starts_with("elbowroom")) {
                    run(line, folder.path());
                }
            }
            "text" => {
                if let Some(name) = block.value("file") {
                    std::fs::write(folder.path().join(name), block.lines.join("\n") + "\n").unwrap();
                }
            }
            "rust" => {
                if let Some(path) = block.value("source") {
                    let source = std::fs::read_to_string(root().join(path)).unwrap();
                    block.lines = source.lines().map(str::to_owned).collect();
                }
            }
            _ => {}
        }
    }
    print(&parts)
}

#[test]
fn the_books_commands_print_what_the_book_shows() {
    let bless = std::env::var_os("BLESS").is_some();
    let mut pages: Vec<PathBuf> = std::fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    pages.sort();
    let mut stale = Vec::new();
    for path in pages {
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = page(&text);
        if expected == text {
            continue;
        }
        if bless {
            std::fs::write(&path, &expected).unwrap();
            let again = page(&expected);
            if again != expected {
                let changed = again.lines().zip(expected.lines()).find(|(a, b)| a != b);
                stale.push(format!(
                    "{} differs between two runs, write [..] there: {changed:?}",
                    path.display()
                ));
            }
        } else {
            let changed = expected.lines().zip(text.lines()).find(|(a, b)| a != b);
            stale.push(format!("{}: {changed:?}", path.display()));
        }
    }
    assert!(
        stale.is_empty(),
        "BLESS=1 writes what the commands print now (printed, written):\n{}",
        stale.join("\n")
    );
}

#[test]
fn wildcards_match_within_a_line() {
    assert!(matches("planning 12 ms", "planning [..]"));
    assert!(matches("a 1 b 2 c", "a [..] b [..] c"));
    assert!(!matches("a 1 b", "a [..] c") && !matches("ab", "a") && matches("a", "a"));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(keep_open_end("50  auto  19  0.061".to_owned(), "40  auto  17[..]"), "50  auto  19[..]");
    assert_eq!(keep_open_end("50  auto  119".to_owned(), "40  auto  1[..]"), "50  auto  119");
    assert!(agree(&lines("a\nb\nc"), &lines("a\n...")) && !agree(&lines("b"), &lines("a\n...")));
}
