//! `elbowroom pack --minimalloc`: the command line of MiniMalloc, so that it can be replaced in a build without other changes.
//!
//! Flags, exit status and output file are those of its `main.cc`: `--input` is a table, `--output` the same table with the column `offset`;
//! 0 if a placement fits the capacity, 1 if none was found or anything else went wrong.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use elbowroom::ir::Bytes;
use elbowroom::ir::packing::{Packer, Problem};
use elbowroom::ir::search::Budget;
use elbowroom::pack::csv::{self, Buffers};
use elbowroom::pack::{Auto, validate};

use super::{buffers, refusal};
use crate::progress::Progress;
use crate::{Answer, files, one_sentence, signals};

/// Flags that take a value.
const VALUES: [&str; 5] = ["capacity", "input", "output", "timeout", "preordering_heuristics"];
/// Flags that are on or off. Those from the fourth on choose among MiniMalloc's own techniques and change nothing here.
const SWITCHES: [&str; 12] = [
    "validate",
    "minimize_capacity",
    "print_solution",
    "canonical_only",
    "section_inference",
    "dynamic_ordering",
    "check_dominance",
    "unallocated_floor",
    "static_preordering",
    "dynamic_decomposition",
    "monotonic_floor",
    "hatless_pruning",
];

/// The flags as Abseil reads them: `--name=value`, `--name value`, one dash or two, `--switch` and `--noswitch`; other words are passed over.
fn flags(words: &[String]) -> Result<BTreeMap<&'static str, String>, String> {
    let mut found = BTreeMap::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        let Some(flag) = word.strip_prefix("--").or(word.strip_prefix('-')).filter(|flag| !flag.is_empty())
        else {
            continue;
        };
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        if let Some(&name) = VALUES.iter().find(|known| **known == name) {
            let value = value.map(str::to_owned).or_else(|| words.next().cloned());
            found.insert(name, value.ok_or_else(|| format!("Missing the value for the flag '{name}'"))?);
        } else if let Some(&name) = SWITCHES.iter().find(|known| **known == name) {
            found.insert(name, value.unwrap_or("true").to_owned());
        } else if let Some(&name) = SWITCHES.iter().find(|known| Some(**known) == name.strip_prefix("no"))
            && value.is_none()
        {
            found.insert(name, "false".to_owned());
        } else {
            return Err(format!("Unknown command line flag '{name}'"));
        }
    }
    Ok(found)
}

/// A duration as Abseil writes it: `1h30m`, `2.5s`, `300ms`, `inf`; `None` for no limit.
fn duration(text: &str) -> Option<Option<Duration>> {
    if text == "inf" || text == "+inf" {
        return Some(None);
    }
    if text == "0" {
        return Some(Some(Duration::ZERO));
    }
    const UNITS: [(&str, f64); 6] =
        [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit = &rest[digits..];
        let letters = unit.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(unit.len());
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == &unit[..letters])?;
        seconds += number * factor;
        rest = &unit[letters..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(seconds).ok())
}

/// What the flags ask for.
struct Request {
    capacity: Option<Bytes>,
    minimize: bool,
    validate: bool,
    timeout: Option<Duration>,
    input: String,
    output: String,
}

impl Request {
    fn read(words: &[String]) -> Result<Self, String> {
        let flags = flags(words)?;
        let illegal = |name: &str| {
            format!("Illegal value '{}' specified for flag '{name}'", flags.get(name).map_or("", |v| v))
        };
        let switch = |name: &str| match flags.get(name).map(|value| value.to_ascii_lowercase()).as_deref() {
            None | Some("false" | "f" | "no" | "n" | "0") => Ok(false),
            Some("true" | "t" | "yes" | "y" | "1") => Ok(true),
            Some(_) => Err(illegal(name)),
        };
        for name in &SWITCHES[3..] {
            switch(name)?;
        }
        if switch("print_solution")? {
            return Err("--print_solution is not supported; --output has the offsets".to_owned());
        }
        let capacity: i64 =
            flags.get("capacity").map_or(Ok(0), |text| text.parse()).map_err(|_| illegal("capacity"))?;
        let timeout = match flags.get("timeout") {
            Some(text) => duration(text).ok_or_else(|| illegal("timeout"))?,
            None => None,
        };
        let text = |name: &str| flags.get(name).cloned().unwrap_or_default();
        Ok(Self {
            capacity: u64::try_from(capacity).ok().map(Bytes),
            minimize: switch("minimize_capacity")?,
            validate: switch("validate")?,
            timeout,
            input: text("input"),
            output: text("output"),
        })
    }
}

/// Runs the command; the exit status is that of MiniMalloc.
pub(super) fn run(words: &[String]) -> Answer {
    let request = match Request::read(words) {
        Ok(request) => request,
        Err(sentence) => return Answer::No(sentence),
    };
    match place(&request) {
        Ok(()) => Answer::Yes,
        Err(error) => Answer::No(one_sentence(&error)),
    }
}

/// A line of MiniMalloc's log, which has no prefix.
fn log(line: &str) {
    // A closed standard error is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn place(request: &Request) -> anyhow::Result<()> {
    let mut table = buffers(Path::new(&request.input))?;
    signals::catch();
    // MiniMalloc writes commas, and only the columns that it knows.
    table = Buffers::new(std::mem::take(&mut table.names), std::mem::take(&mut table.problem));
    let Some(capacity) = request.capacity else {
        anyhow::bail!("a negative capacity holds nothing");
    };
    table.problem.capacity = Some(capacity);
    let budget = Budget { evaluations: None, time: request.timeout, ..Budget::default() };
    let progress = Progress::new(format!("placing {} buffers", table.problem.blocks.len()));
    let started = Instant::now();
    let capped = if request.minimize { None } else { Some(capacity) };
    let mut outcome = Auto.pack(&Problem { capacity: capped, ..table.problem.clone() }, &budget, &progress);
    // The lowest height is looked for within the capacity.
    outcome.best = outcome.best.filter(|best| best.height <= capacity);
    drop(progress);
    log(&format!("Elapsed time {:.3}s", started.elapsed().as_secs_f64()));
    let Some(placement) = outcome.best else {
        anyhow::bail!("{}", refusal(&table, &outcome.stop));
    };
    validate(&table.problem, &placement)?;
    if request.validate {
        log(&format!("Validation PASS, height {}", placement.height.get()));
    }
    if !request.output.is_empty() {
        files::write_parts(Path::new(&request.output), |out| csv::write_to(out, &table, &placement))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_abseil() {
        let seconds = |text: &str| duration(text).map(|limit| limit.map(|limit| limit.as_secs_f64()));
        assert_eq!(seconds("1m30s"), Some(Some(90.0)));
        assert_eq!(seconds("1.5s"), Some(Some(1.5)));
        assert_eq!(
            (seconds("300ms"), seconds("0"), seconds("inf")),
            (Some(Some(0.3)), Some(Some(0.0)), Some(None))
        );
        assert!(["5", "", "s", "1x", "1s5", "é"].iter().all(|text| seconds(text).is_none()));
    }

    #[test]
    fn flags_are_read_as_abseil_reads_them() {
        let read = |line: &str| flags(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let found = read("-capacity 12 --novalidate --input=a.csv other --minimize_capacity=yes").unwrap();
        let expected =
            [("capacity", "12"), ("input", "a.csv"), ("minimize_capacity", "yes"), ("validate", "false")];
        assert!(found.iter().map(|(name, value)| (*name, value.as_str())).eq(expected), "{found:?}");
        assert_eq!(read("--foo=1").unwrap_err(), "Unknown command line flag 'foo'");
        assert_eq!(read("--input").unwrap_err(), "Missing the value for the flag 'input'");
    }
}
