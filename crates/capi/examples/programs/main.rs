//! Real programs under the preloaded library and under glibc, jemalloc and mimalloc: peak resident memory, processor time, and whether they end
//! and print the same. Prints one table.
//!
//! ```text
//! cargo build --release -p elbowroom-capi
//! cargo run --release -p elbowroom-capi --example programs -- target/release/libelbowroom_capi.so [NAME] [ROUNDS]
//! ```
//!
//! Processor time is the median of the rounds (3 unless given), peak resident memory the largest; both include child processes, the
//! largest of them for memory. Programs that are not installed are named below the table. `ELBOWROOM_PYTHON` names the Python that has numpy,
//! pytest and hypothesis. Exit status 1 if a program ends or prints otherwise than with glibc.

mod larson;
mod prepared;
mod threads;

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use prepared::{Prepared, programs};

/// One run of a program.
struct Run {
    peak_bytes: u64,
    seconds: f64,
    /// As `wait` reports it.
    status: i32,
    output: String,
}

fn run(prepared: &Prepared, library: Option<&Path>, folder: &Path) -> Result<Run, Box<dyn Error>> {
    let printed = folder.join("printed");
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
    Ok(Run {
        peak_bytes: usage.ru_maxrss as u64 * 1024,
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
    fn peak_mb(&self) -> f64 {
        self.runs.iter().map(|run| run.peak_bytes).max().unwrap_or(0) as f64 / 1e6
    }

    fn seconds(&self) -> f64 {
        let mut seconds: Vec<f64> = self.runs.iter().map(|run| run.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    }

    /// Whether all runs ended and printed as one of `others` did.
    fn equal(&self, others: &Runs) -> bool {
        self.runs.iter().all(|run| {
            others.runs.iter().any(|other| (run.status, &run.output) == (other.status, &other.output))
        })
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let own = match arguments.first().map(String::as_str) {
        Some(threads::ARGUMENT) => Some(threads::work()),
        Some(larson::ARGUMENT) => Some(larson::work()),
        _ => None,
    };
    if let Some(sum) = own {
        println!("{sum}");
        return Ok(ExitCode::SUCCESS);
    }
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
        "| program | allocator | peak, MB | ÷ glibc | processor time, s | ÷ glibc | ends and prints as with glibc |"
    );
    println!("| --- | --- | --: | --: | --: | --: | --- |");
    let (mut left_out, mut differ) = (Vec::new(), false);
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
        }
        let glibc = &all[0].1;
        for (_, runs) in &all {
            let equal = runs.equal(glibc);
            differ |= !equal && runs.name == "elbowroom";
            let ends = match runs.runs.iter().find(|run| run.status != 0) {
                Some(failed) => {
                    format!("{}, status {:#x}", if equal { "yes" } else { "**no**" }, failed.status)
                }
                None => if equal { "yes" } else { "**no**" }.to_owned(),
            };
            println!(
                "| {name} | {} | {:.1} | {:.2} | {:.2} | {:.2} | {ends} |",
                runs.name,
                runs.peak_mb(),
                runs.peak_mb() / glibc.peak_mb(),
                runs.seconds(),
                runs.seconds() / glibc.seconds(),
            );
        }
    }
    let absent = allocators[2..].iter().filter(|(_, library)| library.is_none());
    left_out.extend(absent.map(|(name, _)| format!("{name} is left out: not installed")));
    left_out.iter().for_each(|line| println!("\n{line}"));
    Ok(ExitCode::from(u8::from(differ)))
}
