//! What a malloc and its free cost on a recorded iteration: planned memory, glibc, jemalloc and mimalloc in one run.
//!
//! `cargo run --release --manifest-path crates/alloc/bench/Cargo.toml -- FILE`, with a file that `elbowroom-import` reads. Each allocator
//! has a process of its own. First the iteration is replayed without touching memory: time per pair of malloc and free. Then every page of
//! every block is written when the block is made: page faults and time per iteration, as a program would see them.

#[path = "../../examples/replay/events.rs"]
#[expect(dead_code, reason = "the example uses the rest")]
mod events;

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::process::Command;
use std::time::Instant;

use elbowroom_alloc::Planned;
use events::{Event, Iteration};

const NAMES: [&str; 4] = ["planned", "glibc", "jemalloc", "mimalloc"];

/// Iterations before measuring, measured untouched, and measured with every page written.
const WARM: usize = 6;
const UNTOUCHED: usize = 300;
const TOUCHED: usize = 4;

const PAGE: usize = 4096;

/// What PyTorch aligns host memory to.
const ALIGN: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let file = arguments.get(1).ok_or("name a recorded iteration")?;
    if let Some(name) = arguments.get(2) {
        let iteration = Iteration::read(file.as_ref())?;
        match name.as_str() {
            "planned" => measure(name, &Planned::system(), &iteration),
            "glibc" => measure(name, &System, &iteration),
            "jemalloc" => measure(name, &tikv_jemallocator::Jemalloc, &iteration),
            _ => measure(name, &mimalloc::MiMalloc, &iteration),
        }
        return Ok(());
    }
    println!(
        "| allocator | ns per pair, median | CPU ns per pair | faults per iteration | CPU ms per iteration, pages written | peak resident |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for name in NAMES {
        let status = Command::new(&arguments[0]).args([file, name]).status()?;
        if !status.success() {
            return Err(format!("{name} failed: {status}").into());
        }
    }
    Ok(())
}

/// CPU seconds, minor page faults and peak resident bytes of this process so far.
fn usage() -> (f64, i64, i64) {
    // SAFETY: zeros are a valid `rusage`, and the call writes one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime) + seconds(usage.ru_stime), usage.ru_minflt, usage.ru_maxrss * 1024)
}

fn iterate(allocator: &impl GlobalAlloc, iteration: &Iteration, blocks: &mut [(*mut u8, usize)], touch: bool) {
    for event in &iteration.events {
        match *event {
            Event::Malloc { block, bytes } => {
                let size = bytes as usize;
                // SAFETY: recorded sizes are not zero and the alignment is a power of two; pages are written within the block.
                unsafe {
                    let address = allocator.alloc(Layout::from_size_align_unchecked(size, ALIGN));
                    assert!(!address.is_null(), "out of memory");
                    if touch {
                        (0..size).step_by(PAGE).for_each(|at| address.add(at).write_volatile(1));
                    }
                    blocks[block] = (std::hint::black_box(address), size);
                }
            }
            Event::Free { block } => {
                let (address, size) = blocks[block];
                // SAFETY: the block was made above with this layout, and is freed once.
                unsafe { allocator.dealloc(address, Layout::from_size_align_unchecked(size, ALIGN)) };
            }
        }
    }
}

fn measure(name: &str, allocator: &impl GlobalAlloc, iteration: &Iteration) {
    let mut blocks = vec![(std::ptr::null_mut(), 0); iteration.blocks];
    let pairs = iteration.events.iter().filter(|event| matches!(event, Event::Free { .. })).count() as f64;
    (0..WARM).for_each(|_| iterate(allocator, iteration, &mut blocks, false));
    let mut nanos = Vec::with_capacity(UNTOUCHED);
    let (cpu, ..) = usage();
    for _ in 0..UNTOUCHED {
        let start = Instant::now();
        iterate(allocator, iteration, &mut blocks, false);
        nanos.push(start.elapsed().as_nanos() as f64 / pairs);
    }
    let cpu_per_pair = (usage().0 - cpu) * 1e9 / (UNTOUCHED as f64 * pairs);
    nanos.sort_by(f64::total_cmp);

    iterate(allocator, iteration, &mut blocks, true);
    let (cpu, faults, _) = usage();
    (0..TOUCHED).for_each(|_| iterate(allocator, iteration, &mut blocks, true));
    let (cpu_after, faults_after, resident) = usage();
    println!(
        "| {name} | {:.1} | {cpu_per_pair:.1} | {} | {:.1} | {resident} |",
        nanos[UNTOUCHED / 2],
        (faults_after - faults) / TOUCHED as i64,
        1e3 * (cpu_after - cpu) / TOUCHED as f64,
    );
}
