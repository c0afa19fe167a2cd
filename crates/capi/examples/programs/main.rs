//! Real programs under the preloaded library and under glibc, jemalloc and mimalloc: peak resident memory, what stays resident once the work is
//! done, processor time, and whether they end and print the same. Prints one table.
//!
//! ```text
//! cargo build --release -p elbowroom-capi
//! cargo run --release -p elbowroom-capi --example programs -- target/release/libelbowroom_capi.so [NAME] [ROUNDS] [--write FILE]
//! ```
//!
//! Processor time is the median of the rounds (3 unless given; one for programs that take longer than 12 s), and so is memory; peak and time include child processes, the
//! largest of them for the peak. What stays is that of the program's own process, two and a half seconds later. Programs that are not
//! installed are named below the table. With `--write`, the table replaces what stands between the marks `programs: begin` and
//! `programs: end` in a file, one row for each program. `ELBOWROOM_PYTHON` names the Python that has numpy,
//! pytest and hypothesis. Exit status 1 if a program ends or prints otherwise than with glibc.

mod larson;
mod prepared;
mod threads;

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use prepared::{Prepared, programs};

/// A program that takes longer runs once under each allocator.
const LONG_SECONDS: f64 = 12.0;

/// One run of a program.
struct Run {
    peak_bytes: u64,
    /// Of programs that go on after their work.
    left_bytes: Option<u64>,
    seconds: f64,
    /// As `wait` reports it.
    status: i32,
    output: String,
}

fn run(prepared: &Prepared, library: Option<&Path>, folder: &Path) -> Result<Run, Box<dyn Error>> {
    let (printed, left) = (folder.join("printed"), folder.join(prepared::LEFT));
    let _ = std::fs::remove_file(&left);
    let mut command = Command::new(&prepared.command[0]);
    command.args(&prepared.command[1..]).current_dir(folder).env_remove("LD_PRELOAD");
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    let log = File::create(folder.join("errors"))?;
    let child = command.stdin(Stdio::null()).stdout(File::create(&printed)?).stderr(log).spawn()?;
    let pid = libc::pid_t::try_from(child.id())?;
    let mut status = 0;
    // SAFETY: zeros are a valid `rusage`; the call writes it and the status. The child is waited for here alone.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        if libc::wait4(pid, &mut status, 0, &mut usage) != pid {
            return Err(std::io::Error::last_os_error().into());
        }
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let output = String::from_utf8_lossy(&std::fs::read(&printed)?).into_owned();
    let status_file = std::fs::read_to_string(&left).unwrap_or_default();
    let resident = status_file.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(Run {
        peak_bytes: usage.ru_maxrss as u64 * 1024,
        left_bytes: kib.map(|kib| kib * 1024),
        seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        status,
        output: (prepared.comparable)(&output),
    })
}

/// Several runs of a program under one allocator.
struct Runs {
    name: &'static str,
    runs: Vec<Run>,
}

impl Runs {
    fn median(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let mut all: Vec<f64> = self.runs.iter().filter_map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    }

    /// Peak and rest in MB, and processor time in seconds.
    fn measures(&self) -> [Option<f64>; 3] {
        [
            self.median(|run| Some(run.peak_bytes as f64 / 1e6)),
            self.median(|run| run.left_bytes.map(|bytes| bytes as f64 / 1e6)),
            self.median(|run| Some(run.seconds)),
        ]
    }

    /// Whether all runs ended and printed as one of `others` did.
    fn equal(&self, others: &Runs) -> bool {
        self.runs.iter().all(|run| {
            others.runs.iter().any(|other| (run.status, &run.output) == (other.status, &other.output))
        })
    }
}

/// Measures of a program under an allocator as a cell of the table of [`write_table`]: absolute for the first allocator, then as ratios to it.
fn cell(runs: &Runs, first: Option<&Runs>) -> String {
    let measures = runs.measures();
    let texts = match first {
        None => [" MB", " MB", " s"]
            .iter()
            .zip(measures)
            .map(|(unit, value)| match value {
                Some(value) if *unit == " s" => format!("{value:.2}{unit}"),
                Some(value) => format!("{value:.1}{unit}"),
                None => "–".to_owned(),
            })
            .collect::<Vec<_>>(),
        Some(first) => measures
            .iter()
            .zip(first.measures())
            .map(|(value, first)| match (value, first) {
                (Some(value), Some(first)) => format!("{:.2}", value / first),
                _ => "–".to_owned(),
            })
            .collect(),
    };
    texts.join(", ")
}

/// Replaces what stands between the marks in a file.
fn write_table(file: &str, table: &str) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string(file)?;
    let missing = || format!("{file}: the marks `programs: begin` and `programs: end` are missing");
    let begin = text.find("<!-- programs: begin").ok_or_else(missing)?;
    let begin = begin + text[begin..].find('\n').ok_or_else(missing)? + 1;
    let end = begin + text[begin..].find("<!-- programs: end").ok_or_else(missing)?;
    std::fs::write(file, format!("{}{table}{}", &text[..begin], &text[end..]))?;
    Ok(())
}

/// What a program prints as its version.
fn version(command: &str, argument: &str) -> Option<String> {
    let output = Command::new(command).arg(argument).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // `git version 2.39.5 (Apple Git-154)`, `cargo 1.89.0 (c24e10642 2025-06-23)`: what stands in brackets is no version.
    let line = text.lines().next()?.split('(').next()?;
    Some(line.split_whitespace().filter(|word| *word != "version").collect::<Vec<_>>().join(" "))
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let own = match arguments.first().map(String::as_str) {
        Some(threads::ARGUMENT) => Some(threads::work()),
        Some(larson::ARGUMENT) => Some(larson::work()),
        _ => None,
    };
    if let Some(sum) = own {
        println!("{sum}");
        prepared::leave_status()?;
        return Ok(ExitCode::SUCCESS);
    }
    let written = match arguments.iter().position(|argument| argument == "--write") {
        Some(at) if at + 1 < arguments.len() => arguments.drain(at..at + 2).nth(1),
        Some(_) => return Err("--write needs a file".into()),
        None => None,
    };
    let ours = arguments.first().ok_or("name the library that is to be preloaded")?;
    let ours = std::fs::canonicalize(ours).map_err(|error| format!("{ours}: {error}"))?;
    let filter = arguments.get(1).map_or("", String::as_str);
    let rounds: usize = arguments.get(2).map_or(Ok(3), |rounds| rounds.parse())?;
    let installed = |name: &str| {
        let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/aarch64-linux-gnu"];
        folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
    };
    let allocators: [(&str, Option<PathBuf>); 4] = [
        ("glibc", None),
        ("elbowroom", Some(ours)),
        ("jemalloc", installed("libjemalloc.so.2")),
        ("mimalloc", installed("libmimalloc.so.2")),
    ];
    println!(
        "| program | allocator | peak, MB | ÷ glibc | stays, MB | ÷ glibc | processor time, s | ÷ glibc | ends and prints as with glibc |"
    );
    println!("| --- | --- | --: | --: | --: | --: | --: | --: | --- |");
    let (mut left_out, mut differ, mut rows) = (Vec::new(), false, String::new());
    for (name, prepare) in programs().into_iter().filter(|(name, _)| name.contains(filter)) {
        let folder = tempfile::tempdir()?;
        let prepared = match prepare(folder.path()) {
            Ok(prepared) => prepared,
            Err(why) => {
                left_out.push(format!("{name} is left out: {why}"));
                continue;
            }
        };
        let chosen = allocators.iter().filter(|(name, library)| *name == "glibc" || library.is_some());
        let mut all: Vec<(&Option<PathBuf>, Runs)> =
            chosen.map(|(name, library)| (library, Runs { name, runs: Vec::new() })).collect();
        for _ in 0..rounds.max(1) {
            for (library, runs) in &mut all {
                runs.runs.push(run(&prepared, library.as_deref(), folder.path())?);
            }
            if all[0].1.runs[0].seconds > LONG_SECONDS {
                break;
            }
        }
        let glibc = &all[0].1;
        let cells: Vec<String> = allocators
            .iter()
            .map(|(name, _)| match all.iter().find(|(_, runs)| runs.name == *name) {
                Some((_, runs)) => cell(runs, (*name != "glibc").then_some(glibc)),
                None => "not installed".to_owned(),
            })
            .collect();
        rows += &format!("| {name} | {} |\n", cells.join(" | "));
        for (_, runs) in &all {
            let equal = runs.equal(glibc);
            differ |= !equal && runs.name == "elbowroom";
            let ends = match runs.runs.iter().find(|run| run.status != 0) {
                Some(failed) => {
                    format!("{}, status {:#x}", if equal { "yes" } else { "**no**" }, failed.status)
                }
                None => if equal { "yes" } else { "**no**" }.to_owned(),
            };
            let columns = runs.measures().into_iter().zip(glibc.measures()).map(|(value, first)| {
                value.zip(first).map_or("– | –".to_owned(), |(value, first)| {
                    format!("{value:.2} | {:.2}", value / first)
                })
            });
            println!("| {name} | {} | {} | {ends} |", runs.name, columns.collect::<Vec<_>>().join(" | "));
        }
    }
    let absent = allocators[2..].iter().filter(|(_, library)| library.is_none());
    left_out.extend(absent.map(|(name, _)| format!("{name} is left out: not installed")));
    left_out.iter().for_each(|line| println!("\n{line}"));
    if let Some(file) = written {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load: Vec<&str> = load.split_whitespace().take(3).collect();
        let versions = [("node", "--version"), ("git", "--version"), ("cargo", "--version")];
        let versions = versions.iter().filter_map(|(command, argument)| version(command, argument));
        let table = format!(
            "| program | glibc: peak, stays, time | elbowroom ÷ glibc | jemalloc ÷ glibc | mimalloc ÷ glibc |\n| --- | --- | --- | --- | --- |\n{rows}\n\
             Medians of {} rounds in turn (one round of programs of more than {LONG_SECONDS} s) on {} processors; load at the end {}. {}.\n",
            rounds.max(1),
            std::thread::available_parallelism()?,
            load.join(", "),
            versions.collect::<Vec<_>>().join(", "),
        );
        write_table(&file, &table)?;
    }
    Ok(ExitCode::from(u8::from(differ)))
}
