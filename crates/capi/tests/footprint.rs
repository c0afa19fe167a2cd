//! Resident memory and processor time of small programs under the preloaded library, without it, and under jemalloc and mimalloc where they
//! are installed. Prints one table; fails if the library needs more than 1.05 × glibc's peak, or leaves more anonymous memory than glibc does
//! (the rest of what stays is code, which processes share).
//!
//! `ELBOWROOM_TEST_SCALE=4 cargo test --release -p elbowroom-capi --test footprint` runs four times as much of everything.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

const PROGRAM: &str = "ELBOWROOM_TEST_PROGRAM";
/// What a program prints when it has done its work.
const RESTS: &str = "rests\n";

/// A block whose pages have been written.
struct Written(*mut u8);

impl Written {
    fn new(size: usize) -> Self {
        // SAFETY: a call of the C library, and writes within the block.
        unsafe {
            let block = libc::malloc(size).cast::<u8>();
            assert!(!block.is_null());
            (0..size).step_by(4096).for_each(|at| block.add(at).write_volatile(1));
            Self(black_box(block))
        }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // SAFETY: the block is this value's.
        unsafe { libc::free(self.0.cast()) };
    }
}

fn scale() -> usize {
    std::env::var("ELBOWROOM_TEST_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1)
}

/// 64 blocks of 250 MB in all, freed in each round.
fn rounds() {
    for _ in 0..10 {
        let size = |i: usize| scale() * (3_900_000 + 4_096 * (i * 7 % 11));
        let blocks: Vec<Written> = (0..64).map(|i| Written::new(size(i))).collect();
        drop(blocks);
    }
}

/// Eight threads with 20 MB each at a time, which end.
fn threads() {
    let barrier = std::sync::Arc::new(std::sync::Barrier::new(8));
    let threads = (0..8).map(|_| {
        let barrier = barrier.clone();
        std::thread::spawn(move || {
            for _ in 0..12 {
                let blocks: Vec<Written> =
                    (0..64).map(|i| Written::new(scale() * (300_000 + 4096 * (i % 7)))).collect();
                barrier.wait();
                drop(blocks);
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

/// A phase that repeats, and another one of other sizes.
fn phases() {
    for phase in 0..3usize {
        for _ in 0..8 {
            let size = |i: usize| scale() * (1_500_000 + 400_000 * phase + 64 * ((i * 7 + phase) % 11));
            let blocks: Vec<Written> = (0..64).map(|i| Written::new(size(i))).collect();
            drop(blocks);
        }
    }
}

/// As `phases`, with a rest before the last phase, in which the arenas of the others are given back.
fn later() {
    for phase in 0..3usize {
        if phase == 2 {
            std::thread::sleep(Duration::from_millis(2_500));
        }
        for _ in 0..8 {
            let size = |i: usize| scale() * (1_500_000 + 400_000 * phase + 64 * ((i * 7 + phase) % 11));
            let blocks: Vec<Written> = (0..64).map(|i| Written::new(size(i))).collect();
            drop(blocks);
        }
    }
}

/// Larson's server: each of two threads replaces one of its blocks after the other by one of another size, 1 to 60 KB.
fn larson() {
    let threads = (0..2u64).map(|thread| {
        std::thread::spawn(move || {
            let mut seed = thread + 1;
            let mut random = || {
                seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (seed >> 33) as usize
            };
            let size = |random: usize| 1_000 + random % 59_000;
            let new = |size: usize| {
                // SAFETY: a call of the C library, and a write within the block.
                unsafe {
                    let block = libc::malloc(size).cast::<u8>();
                    block.write(1);
                    Written(black_box(block))
                }
            };
            let mut blocks: Vec<Written> = (0..1_000).map(|_| new(size(random()))).collect();
            for _ in 0..scale() * 1_000_000 {
                let at = random() % blocks.len();
                blocks[at] = new(size(random()));
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

/// A loop as in training: kept blocks, and activations that live until their backward.
fn training() {
    let _weights: Vec<Written> = (0..20).map(|_| Written::new(scale() * 2_000_000)).collect();
    for _ in 0..60 {
        let mut kept = Vec::new();
        for layer in 0..20 {
            kept.push(Written::new(scale() * (1_800_000 + 128_000 * (layer * 7 % 11))));
            drop(Written::new(scale() * (600_000 + 8_192 * layer)));
        }
        while let Some(activation) = kept.pop() {
            drop(Written::new(scale() * (1_000_000 + 8_192 * kept.len())));
            drop(activation);
        }
    }
}

/// A program that hardly uses memory, as most are.
fn nothing() {}

/// An interpreter: sequences of requests that occurred before, in ever another order, with requests between them that did not.
fn pieces() {
    let mut seed = 7usize;
    let mut random = || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        seed >> 33
    };
    let mut kept: Vec<Written> = (0..64).map(|_| Written::new(1_024)).collect();
    for _ in 0..scale() * 1_500 {
        let (piece, fresh) = (random() % 10, random());
        for i in 0..40 {
            let at = random() % kept.len();
            kept[at] = Written::new(1_024 + 1_000 * piece + 64 * (i * i % 13));
        }
        drop(Written::new(1_024 + fresh % 30_000));
    }
}

/// Eight threads at a time, forty times, each with requests of its own.
fn servers() {
    for generation in 0..40 {
        let threads = (0..8).map(|thread| {
            std::thread::spawn(move || {
                let mut seed: usize = 8 * generation + thread + 1;
                let mut kept: Vec<Written> = Vec::new();
                for i in 0..scale() * 4_000 {
                    seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    let size = if i % 16 == 0 { 20_000 + (seed >> 40) % 60_000 } else { 16 + (seed >> 50) };
                    let block = Written::new(size);
                    if kept.len() < 50 {
                        kept.push(block);
                    } else {
                        kept[(seed >> 20) % 50] = block;
                    }
                }
            })
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

const PROGRAMS: [(&str, fn()); 9] = [
    ("nothing", nothing),
    ("pieces", pieces),
    ("servers", servers),
    ("rounds", rounds),
    ("threads", threads),
    ("phases", phases),
    ("later", later),
    ("larson", larson),
    ("training", training),
];

const SMALL: [&str; 3] = ["nothing", "pieces", "servers"];

/// Bytes that the kernel reports for this process under a name.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("the process's own status");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line of this name");
    let kib: u64 = line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().expect("a number of KiB");
    kib << 10
}

/// Processor time of this process so far, in milliseconds.
fn processor_ms() -> u64 {
    // SAFETY: zeros are a valid `rusage`, and the call writes one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let ms = |time: libc::timeval| time.tv_sec as u64 * 1_000 + time.tv_usec as u64 / 1_000;
    ms(usage.ru_utime) + ms(usage.ru_stime)
}

#[derive(Clone, Copy)]
struct Measured {
    peak: u64,
    end: u64,
    /// Of `end`: what belongs to no file.
    anonymous: u64,
    ms: u64,
}

/// A program that has done its work and now rests. The next one may run meanwhile.
struct Resting {
    program: &'static str,
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Resting {
    /// Runs a program until it rests.
    fn run(program: &'static str, preload: Option<&Path>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.env(PROGRAM, program).env_remove("LD_PRELOAD").stdout(Stdio::piped());
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        let mut process = command.spawn().expect("the program starts");
        let mut output = BufReader::new(process.stdout.take().expect("its output is read"));
        let mut line = String::new();
        output.read_line(&mut line).expect("text");
        assert_eq!(line, RESTS, "{program}");
        Self { program, process, output }
    }

    /// What it measures at its end.
    fn measured(mut self) -> Measured {
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("text");
        let program = self.program;
        assert!(self.process.wait().expect("the program ends").success(), "{program}");
        let numbers: Vec<u64> =
            text.split_whitespace().map(|number| number.parse().expect("a number")).collect();
        let [peak, end, anonymous, ms] = numbers[..] else { panic!("{program}: {text}") };
        Measured { peak, end, anonymous, ms }
    }
}

/// Several runs of a program that uses little memory, of which the order of its threads is a large part; one run of others.
fn runs(program: &'static str, preload: Option<&Path>) -> Vec<Resting> {
    let runs = if SMALL.contains(&program) { 3 } else { 1 };
    (0..runs).map(|_| Resting::run(program, preload)).collect()
}

/// The least of what several runs measure.
fn least(runs: Vec<Resting>) -> Measured {
    let all: Vec<Measured> = runs.into_iter().map(Resting::measured).collect();
    let least = |of: fn(&Measured) -> u64| all.iter().map(of).min().expect("a run");
    Measured {
        peak: least(|run| run.peak),
        end: least(|run| run.end),
        anonymous: least(|run| run.anonymous),
        ms: least(|run| run.ms),
    }
}

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(PROGRAM) {
        let (_, program) = PROGRAMS.iter().find(|(n, _)| *n == name).expect("a program of this name");
        program();
        let ms = processor_ms();
        print!("{RESTS}");
        std::io::stdout().flush().expect("the output is read");
        // Time to notice that nothing is going on.
        std::thread::sleep(Duration::from_millis(3_500));
        println!("{} {} {} {ms}", status("VmHWM"), status("VmRSS"), status("RssAnon"));
        return ExitCode::SUCCESS;
    }
    if !cfg!(target_os = "linux") {
        println!("no program ran: LD_PRELOAD exists on Linux only");
        return ExitCode::SUCCESS;
    }
    let own = std::env::current_exe().expect("this program has a path");
    let built = own.parent().expect("it lies in a folder").join("libelbowroom_capi.so");
    let ours = std::env::var_os("ELBOWROOM_TEST_LIBRARY").map_or(built, PathBuf::from);
    assert!(ours.exists(), "{} is missing", ours.display());
    let installed = |name: &str| {
        let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/aarch64-linux-gnu"];
        folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
    };
    let others = [("jemalloc", installed("libjemalloc.so.2")), ("mimalloc", installed("libmimalloc.so.2"))];
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    println!("| program | allocator | peak, MB | at the end, MB | of it anonymous | processor time, ms |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let row = |program: &str, allocator: &str, measured: Measured| {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let Measured { peak, end, anonymous, ms } = measured;
        println!(
            "| {program} | {allocator} | {:.1} | {:.1} | {:.2} | {ms} |",
            mb(peak),
            mb(end),
            mb(anonymous)
        );
        measured
    };
    let mut failed = Vec::new();
    // One program runs at a time, while those before it rest.
    let resting: Vec<_> = PROGRAMS
        .into_iter()
        .filter(|(name, _)| name.contains(&filter))
        .map(|(program, _)| {
            let [glibc, planned] = [None, Some(&*ours)].map(|library| runs(program, library));
            let others = others.iter().filter_map(|(name, library)| Some((*name, library.as_deref()?)));
            let others: Vec<_> =
                others.map(|(name, library)| (name, Resting::run(program, Some(library)))).collect();
            (program, glibc, planned, others)
        })
        .collect();
    for (program, glibc, planned, others) in resting {
        let glibc = row(program, "glibc", least(glibc));
        let planned = row(program, "elbowroom", least(planned));
        for (name, other) in others {
            row(program, name, other.measured());
        }
        // The library's own code, which processes share, and its tables. Programs with large blocks have no such allowance.
        const OWN: u64 = 2_000_000;
        // Eight threads record at a time, and the machine decides how much of that overlaps: 0.6 to 4.9 MB were seen.
        const THREADS: u64 = 6_000_000;
        // Its tables and plans.
        const LEFT: u64 = 400_000;
        // Those of eight threads at a time, which have no plans.
        const LEFT_BY_SERVERS: u64 = 1_500_000;
        // This program ends in the middle of what may become an iteration, which is recorded.
        const RECORD: u64 = 800_000;
        let own = match program {
            "servers" => THREADS,
            small if SMALL.contains(&small) => OWN,
            _ => 0,
        };
        let left = match program {
            "servers" => LEFT_BY_SERVERS,
            // The heaps of ended threads with plans keep less than they do without the library.
            "threads" => 0,
            "pieces" => RECORD,
            _ => LEFT,
        };
        if planned.peak > glibc.peak * 105 / 100 + own {
            failed.push(format!("{program}: peak {} of glibc's {}", planned.peak, glibc.peak));
        }
        if planned.anonymous > glibc.anonymous * 105 / 100 + left {
            failed.push(format!("{program}: {} left, of glibc's {}", planned.anonymous, glibc.anonymous));
        }
        if planned.end > planned.anonymous + (glibc.end - glibc.anonymous) + OWN {
            failed.push(format!("{program}: {} left, {} of it anonymous", planned.end, planned.anonymous));
        }
    }
    failed.iter().for_each(|failed| println!("FAILED {failed}"));
    ExitCode::from(u8::from(!failed.is_empty()))
}
