//! The library preloaded under this very program, which then misbehaves in every way it can think of.

mod varying;

use std::ffi::{c_char, c_int, c_void};
// The compiler knows `malloc` and leaves out pairs whose block it does not see used.
use std::hint::black_box;
use std::process::{Command, ExitCode, ExitStatus};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The library that cargo has built beside this program.
fn library() -> std::path::PathBuf {
    // To run the scenarios under another build of the library.
    if let Some(library) = std::env::var_os("ELBOWROOM_TEST_LIBRARY") {
        return library.into();
    }
    let own = std::env::current_exe().expect("this program has a path");
    let deps = own.parent().expect("it lies in a folder");
    deps.join("libelbowroom_capi.so")
}

/// Counts, as the header lays them out.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Stats {
    requests: u64,
    bytes: u64,
    planned: u64,
    planned_bytes: u64,
    mismatches: u64,
    late: u64,
    iterations: u64,
    plans: u64,
    reoptimized: u64,
    lost: u64,
    height: u64,
    peak_live: u64,
    small: u64,
    small_bytes: u64,
    bad_frees: u64,
    lanes: u64,
    middle: u64,
    middle_bytes: u64,
    middle_planned: u64,
    middle_planned_bytes: u64,
}

fn stats() -> Stats {
    // SAFETY: the preloaded library has a function of this name and type.
    unsafe {
        let function = libc::dlsym(libc::RTLD_DEFAULT, c"elbowroom_stats".as_ptr());
        assert!(!function.is_null(), "the library is not preloaded");
        let function: extern "C" fn(*mut Stats) = std::mem::transmute(function);
        let mut stats = Stats::default();
        function(&mut stats);
        stats
    }
}

/// A block full of one byte, by one of the family.
struct Filled {
    block: *mut u8,
    size: usize,
    byte: u8,
}

impl Filled {
    fn new(size: usize, byte: u8) -> Self {
        // SAFETY: plain calls of the family with valid arguments; the block is ours and has this size.
        unsafe {
            let block = match byte % 4 {
                0 => libc::malloc(size),
                1 => {
                    let zeros = libc::calloc(size, 1);
                    assert!(std::slice::from_raw_parts(zeros.cast::<u8>(), size).iter().all(|&b| b == 0));
                    zeros
                }
                2 => {
                    let mut block = null_mut();
                    assert_eq!(libc::posix_memalign(&mut block, 64, size), 0);
                    assert_eq!(block as usize % 64, 0);
                    block
                }
                _ => libc::aligned_alloc(4096, size.next_multiple_of(4096)),
            }
            .cast::<u8>();
            assert!(!block.is_null() && (block as usize).is_multiple_of(16));
            assert!(libc::malloc_usable_size(block.cast()) >= size);
            block.write_bytes(byte, size);
            Self { block, size, byte }
        }
    }

    fn check(&self) {
        // SAFETY: the block is ours and initialized.
        let bytes = unsafe { std::slice::from_raw_parts(self.block, self.size) };
        assert!(bytes.iter().all(|&b| b == self.byte), "somebody wrote to a living block");
    }
}

// SAFETY: a block may be used and freed by any thread.
unsafe impl Send for Filled {}

impl Drop for Filled {
    fn drop(&mut self) {
        self.check();
        // SAFETY: the block is ours.
        unsafe { libc::free(self.block.cast()) };
    }
}

fn iterate() {
    let mut living = std::collections::VecDeque::new();
    for i in 0..32usize {
        living.push_back(Filled::new(20_000 + 7_000 * (i * 5 % 9), i as u8));
        if living.len() > 5 {
            living.pop_front();
        }
    }
}

fn repeats() {
    (0..40).for_each(|_| iterate());
    let stats = stats();
    assert!(stats.planned >= 30 * 32 && stats.plans >= 1, "{stats:?}");
}

/// Middle requests that never repeat do not hide the large ones' iteration; those that do are planned as well.
fn bands() {
    let mut seed = 1u64;
    let mut any = || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        2_000 + (seed >> 40) as usize % 12_000
    };
    for _ in 0..40 {
        let mut living = std::collections::VecDeque::new();
        for i in 0..32usize {
            living.push_back(Filled::new(20_000 + 7_000 * (i * 5 % 9), i as u8));
            (0..10).for_each(|j| drop(Filled::new(any(), 1 + 4 * j)));
            if living.len() > 5 {
                living.pop_front();
            }
        }
    }
    let noisy = stats();
    assert!(noisy.planned >= 30 * 32 && noisy.middle >= 40 * 320 && noisy.middle_planned < 100, "{noisy:?}");
    for _ in 0..400 {
        let mut living = std::collections::VecDeque::new();
        for i in 0..40usize {
            living.push_back(Filled::new(2_000 + 700 * (i * 7 % 11), 2));
            if living.len() > 3 {
                living.pop_front();
            }
        }
    }
    let calm = stats();
    assert!(calm.middle_planned - noisy.middle_planned > 300 * 40, "{calm:?}");
    assert!(calm.middle_planned_bytes > noisy.middle_planned_bytes && calm.small > 0, "{calm:?}");
}

fn threads() {
    let workers: Vec<_> = (0..6).map(|_| std::thread::spawn(|| (0..60).for_each(|_| iterate()))).collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let (send, receive) = std::sync::mpsc::sync_channel::<Filled>(3);
    let consumer = std::thread::spawn(move || receive.into_iter().count());
    (0..3_000usize).for_each(|i| send.send(Filled::new(30_000 + 1_000 * (i % 7), i as u8)).unwrap());
    drop(send);
    assert_eq!(consumer.join().unwrap(), 3_000);
    assert!(stats().planned > 6 * 40 * 32, "{:?}", stats());
}

fn reallocates() {
    for i in 0..200usize {
        // SAFETY: calls of the family with blocks that live, and slices within them.
        unsafe {
            let block = libc::malloc(40_000).cast::<u8>();
            block.write_bytes(i as u8, 40_000);
            let grown = libc::realloc(block.cast(), 200_000).cast::<u8>();
            assert!(std::slice::from_raw_parts(grown, 40_000).iter().all(|&b| b == i as u8));
            let shrunk = libc::realloc(grown.cast(), 100).cast::<u8>();
            assert!(std::slice::from_raw_parts(shrunk, 100).iter().all(|&b| b == i as u8));
            libc::free(shrunk.cast());
            assert!(black_box(libc::calloc(black_box(usize::MAX), 2)).is_null());
            let mut block = null_mut();
            assert_eq!(libc::posix_memalign(&mut block, 3, 10), libc::EINVAL);
            assert!(black_box(libc::malloc(black_box(usize::MAX - 100))).is_null());
        }
    }
}

/// A planned block freed twice is counted, and its successor is untouched.
fn double_free() {
    (0..20).for_each(|_| iterate());
    let before = stats();
    // SAFETY: freeing twice is what is tested; for planned blocks the library defines it.
    unsafe {
        let mut seen = 0;
        for _ in 0..200 {
            let block = black_box(libc::malloc(20_000));
            libc::free(block);
            let now = stats();
            if now.planned > before.planned + seen {
                seen += 1;
                libc::free(block);
                assert_eq!(stats().bad_frees, before.bad_frees + seen, "{:?}", stats());
                libc::free(block.cast::<u8>().add(64).cast());
                assert_eq!(stats().bad_frees, before.bad_frees + seen + 1, "inside a planned range");
                return (0..20).for_each(|_| iterate());
            }
        }
        panic!("no request was planned: {:?}", stats());
    }
}

/// A pointer that libc made behind the library's back goes back to libc.
fn foreign_free() {
    (0..10).for_each(|_| iterate());
    for _ in 0..100 {
        // SAFETY: `valloc` is not in the family that the library replaces, so its block is libc's own.
        unsafe {
            let valloc = libc::dlsym(libc::RTLD_DEFAULT, c"valloc".as_ptr());
            let valloc: extern "C" fn(usize) -> *mut c_void = std::mem::transmute(valloc);
            let block = valloc(50_000);
            block.write_bytes(1, 50_000);
            libc::free(block);
        }
        iterate();
    }
}

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

/// Allocates, which a handler should not do; the library must at least not add to the danger. The handler runs only where the thread is in
/// the library's planned path or in this program, because libc's own locks are not safe here.
extern "C" fn handler(_: c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    drop(Filled::new(20_000, 2));
}

/// Signals at moments of the program's own choosing, between the requests of an iteration.
fn signals() {
    // SAFETY: installs a handler for a signal that only this program sends to itself.
    unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) };
    for i in 0..60usize {
        let mut living = Vec::new();
        for j in 0..24usize {
            living.push(Filled::new(20_000 + 7_000 * (j * 5 % 9), j as u8));
            if (i + j) % 5 == 0 {
                // SAFETY: sends the signal whose handler is above.
                unsafe { libc::raise(libc::SIGUSR1) };
            }
        }
    }
    assert!(SIGNALS.load(Ordering::Relaxed) > 200);
}

/// Waits for a child.
fn status_of(child: libc::pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: the call writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

/// Forks in the middle of an iteration, with other threads at work; both sides go on.
fn forks() {
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let others: Vec<_> = (0..2)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    iterate();
                    drop(Filled::new(16_384 + std::process::id() as usize % 4096, 3));
                }
            })
        })
        .collect();
    (0..10).for_each(|_| iterate());
    for _ in 0..20 {
        let held: Vec<Filled> = (0..5usize).map(|i| Filled::new(20_000 + 7_000 * i, i as u8)).collect();
        // SAFETY: the child only allocates, frees and leaves without running anybody's destructors.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            held.iter().for_each(Filled::check);
            drop(held);
            (0..10).for_each(|_| iterate());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        held.iter().for_each(Filled::check);
        assert_eq!(status_of(child), 0, "the child failed");
        drop(held);
        iterate();
    }
    stop.store(true, Ordering::Relaxed);
    others.into_iter().for_each(|other| other.join().unwrap());
}

/// Frees a block and makes another, both large enough to be recorded, as a handler of another library may.
extern "C" fn allocating_handler() {
    static HELD: std::sync::atomic::AtomicPtr<c_void> = std::sync::atomic::AtomicPtr::new(null_mut());
    HANDLED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: each block is freed once, by the handler that takes it out of the variable.
    unsafe {
        for size in [2_000, 20_000] {
            let block = libc::malloc(size);
            libc::free(HELD.swap(block, Ordering::Relaxed));
        }
    }
    assert!(stats().requests > 0);
}

/// Handlers that were registered before the library's, and the calls of the handler.
static HANDLERS: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicUsize = AtomicUsize::new(0);

/// Whether the thread of [`starting_handler`] makes requests, whether a signal holds it in the middle of one, and whether it is to end.
static STARTED: AtomicBool = AtomicBool::new(false);
static HELD: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);

/// Yields the processor until a variable is set. Safe in a signal handler.
fn wait_for(set: &AtomicBool) {
    while !set.load(Ordering::Relaxed) {
        // SAFETY: a call of the system without conditions.
        unsafe { libc::sched_yield() };
    }
}

extern "C" fn holding_handler(_: c_int) {
    HELD.store(true, Ordering::Relaxed);
    wait_for(&STOP);
}

/// Starts a thread whose requests are recorded, in the middle of a fork, as a handler of another library may.
///
/// glibc itself does not survive any such thread: a process that had a single thread when the fork began takes none of glibc's locks, so
/// that the child waits forever for those that the thread held. The thread therefore uses none of them: after one round it has a free
/// block of each size to itself.
extern "C" fn starting_handler() {
    extern "C" fn requests(_: *mut c_void) -> *mut c_void {
        const SIZES: usize = 9;
        let mut seed = 1u64;
        for i in 0usize.. {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let size = 1_024 + if i < SIZES { i } else { (seed >> 33) as usize % SIZES };
            // SAFETY: the block is freed at once.
            unsafe { libc::free(black_box(libc::malloc(black_box(size)))) };
            STARTED.store(i >= 1_000, Ordering::Relaxed);
            // What is never planned calls no allocator of the library's own.
            if i > 4_000 {
                wait_for(&STOP);
            }
            if STOP.load(Ordering::Relaxed) {
                break;
            }
        }
        null_mut()
    }
    HANDLED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: plain calls of the C library; the thread is never joined.
    unsafe {
        let mut thread = std::mem::zeroed();
        assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), requests, null_mut()), 0);
        libc::pthread_detach(thread);
        wait_for(&STARTED);
        libc::pthread_kill(thread, libc::SIGUSR1);
        wait_for(&HELD);
    }
}

extern "C" fn stopping_handler() {
    STOP.store(true, Ordering::Relaxed);
}

/// A process with a single thread forks, and a handler between the library's starts a thread that the child does not have.
fn a_handler_starts_a_thread() {
    let requests = || {
        for i in 0..300usize {
            drop(Filled::new(1_100 + 16 * (i * i % 401), 1));
        }
    };
    requests();
    // SAFETY: installs a handler for a signal that only this program sends to itself.
    unsafe { libc::signal(libc::SIGUSR1, holding_handler as *const () as libc::sighandler_t) };
    for trial in 0..60 {
        let held = Filled::new(2_000 + 16 * trial, 7);
        // The C library takes this process as single-threaded until it starts a thread, so that each trial needs a new one. It is made
        // without the handlers.
        // SAFETY: parent and child have a single thread.
        let process = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        assert!(process >= 0);
        if process > 0 {
            assert_eq!(status_of(process as libc::pid_t), 0, "trial {trial} failed");
            continue;
        }
        // SAFETY: as above, for the thread that runs Rust code.
        let child = unsafe { libc::fork() };
        let is_right = if child > 0 {
            status_of(child) == 0 && HANDLED.load(Ordering::Relaxed) == 1
        } else {
            held.check();
            requests();
            true
        };
        // SAFETY: the process ends at once.
        unsafe { libc::_exit(c_int::from(!is_right)) };
    }
}

/// Runs before the constructors of all libraries, so that its fork handlers are registered before the library's. The C library's own
/// variables are not set yet either.
extern "C" fn before_all_libraries(_: c_int, _: *const *const c_char, mut environment: *const *const c_char) {
    let mut scenario = c"";
    // SAFETY: an array of strings that ends with a null pointer.
    unsafe {
        while !(*environment).is_null() {
            let variable = std::ffi::CStr::from_ptr(*environment);
            if variable.to_bytes().starts_with(b"ELBOWROOM_TEST_SCENARIO=") {
                scenario = std::ffi::CStr::from_ptr(variable.as_ptr().add(SCENARIO.len() + 1));
            }
            environment = environment.add(1);
        }
    }
    let handlers = match scenario.to_bytes() {
        b"forks_with_handlers_that_allocate" => 1,
        // The C library's table of handlers grows by an allocation, under its lock.
        b"forks_with_many_handlers" => 300,
        _ => 0,
    };
    if scenario.to_bytes() == b"a_handler_starts_a_thread" {
        let (start, stop) =
            (starting_handler as unsafe extern "C" fn(), stopping_handler as unsafe extern "C" fn());
        // SAFETY: the handlers may be called at any fork.
        unsafe { libc::pthread_atfork(Some(start), Some(stop), Some(stop)) };
    }
    HANDLERS.store(handlers, Ordering::Relaxed);
    for _ in 0..handlers {
        let handler = Some(allocating_handler as unsafe extern "C" fn());
        // SAFETY: the handler may be called at any fork.
        unsafe { libc::pthread_atfork(handler, handler, handler) };
    }
}

#[cfg(target_os = "linux")]
#[used]
// SAFETY: the section holds pointers to functions that take a program's arguments.
#[unsafe(link_section = ".preinit_array")]
static BEFORE_ALL_LIBRARIES: extern "C" fn(c_int, *const *const c_char, *const *const c_char) =
    before_all_libraries;

/// Forks, with handlers that run while the library's lock is held.
fn forks_with_handlers() {
    forks();
    assert_eq!(HANDLED.load(Ordering::Relaxed), 2 * 20 * HANDLERS.load(Ordering::Relaxed));
    assert!(HANDLED.load(Ordering::Relaxed) > 0);
}

/// Pages that a child copies for a few requests of a size, in a process whose requests are recorded.
fn pages_copied(size: usize) -> i64 {
    // SAFETY: the child only allocates and leaves without running anybody's destructors; zeros are a valid `rusage`.
    unsafe {
        let faults = || {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage.ru_minflt
        };
        let child = libc::fork();
        if child == 0 {
            let before = faults();
            (0..8).for_each(|_| drop(Filled::new(size, 1)));
            libc::_exit(c_int::try_from(faults() - before).unwrap_or(c_int::MAX).min(255));
        }
        let status = status_of(child);
        assert!(libc::WIFEXITED(status), "the child was killed");
        i64::from(libc::WEXITSTATUS(status))
    }
}

/// A shell forks for most of what it does. Each child has its own copies of the pages that it writes to.
fn short_children_record_nothing() {
    for i in 0..500 {
        drop(Filled::new(1_100 + 16 * (i * i % 401), 1));
    }
    for _ in 0..10 {
        drop(Filled::new(900, 1));
        drop(Filled::new(2_000, 1));
        let (unrecorded, copied) = (pages_copied(900), pages_copied(2_000));
        assert!(copied <= unrecorded + 4, "{copied}, and {unrecorded} for requests that are never recorded");
    }
}

/// After a fork during which other threads record, a child makes plans in its own threads, old and new.
fn a_child_plans() {
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let recording = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            let mut seed = 1u64;
            while !stop.load(Ordering::Relaxed) {
                seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                drop(Filled::new(2_000 + (seed >> 40) as usize % 60_000, 3));
            }
        })
    };
    for _ in 0..20 {
        // SAFETY: the child allocates, runs threads of its own and leaves without running anybody's destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let before = stats();
            (0..20).for_each(|_| iterate());
            let worker = std::thread::spawn(|| (0..20).for_each(|_| iterate()));
            let ok = worker.join().is_ok() && stats().planned > before.planned + 2 * 10 * 32;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(c_int::from(!ok)) };
        }
        assert_eq!(status_of(child), 0, "the child failed");
    }
    stop.store(true, Ordering::Relaxed);
    recording.join().unwrap();
}

fn never_repeats() {
    let mut living = std::collections::VecDeque::new();
    for i in 0..30_000usize {
        living.push_back(Filled::new(16_384 + i % 17_011, i as u8));
        if living.len() > 3 + i % 7 {
            living.pop_front();
        }
    }
}

fn a_million_alternating_sizes() {
    for _ in 0..500_000 {
        // SAFETY: blocks are freed as they were made.
        unsafe {
            let (one, other) = (black_box(libc::malloc(20_000)), black_box(libc::malloc(3_000_000)));
            libc::free(one);
            libc::free(other);
        }
    }
    assert!(stats().planned > 900_000, "{:?}", stats());
}

fn without_a_driver_cuda_says_so() {
    // SAFETY: the preloaded library has functions of these names and types.
    unsafe {
        let error = libc::dlsym(libc::RTLD_DEFAULT, c"elbowroom_cuda_error".as_ptr());
        let error: extern "C" fn() -> *const std::ffi::c_char = std::mem::transmute(error);
        let alloc = libc::dlsym(libc::RTLD_DEFAULT, c"elbowroom_cuda_alloc".as_ptr());
        let alloc: extern "C" fn(isize, c_int, *mut c_void) -> *mut c_void = std::mem::transmute(alloc);
        let free = libc::dlsym(libc::RTLD_DEFAULT, c"elbowroom_cuda_free".as_ptr());
        let free: extern "C" fn(*mut c_void, isize, c_int, *mut c_void) = std::mem::transmute(free);
        let block = alloc(1 << 20, 0, null_mut());
        if error().is_null() {
            assert!(!block.is_null(), "a driver, and no memory");
            free(block, 1 << 20, 0, null_mut());
        } else {
            assert!(block.is_null());
            let text = std::ffi::CStr::from_ptr(error()).to_string_lossy();
            assert!(text.contains("CUDA driver"), "{text}");
        }
    }
}

/// Requests that pass unobserved are counted, and a loop that begins behind them is planned all the same.
fn repeats_after_long_noise() {
    const NOISE: u64 = 400_000;
    let before = stats();
    let (mut seed, mut bytes, mut large) = (1u64, 0, 0);
    for _ in 0..NOISE {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let size = 1_024 + (seed >> 33) as usize % 59_000;
        // SAFETY: the block is freed at once.
        unsafe { libc::free(black_box(libc::malloc(size))) };
        bytes += size as u64;
        large += u64::from(size >= 16 << 10);
    }
    let noisy = stats();
    let requests = |stats: &Stats| stats.requests + stats.middle;
    let sum = |stats: &Stats| stats.bytes + stats.middle_bytes;
    assert_eq!(noisy.planned + noisy.middle_planned, 0, "{noisy:?}");
    // The standard library makes some requests of its own.
    assert!((NOISE..NOISE + 10).contains(&(requests(&noisy) - requests(&before))), "{noisy:?}");
    assert!((bytes..bytes + 100_000).contains(&(sum(&noisy) - sum(&before))), "{noisy:?} {bytes}");
    let allowed = large / 5 / 32;
    let first = (1..=2 * allowed).find(|_| {
        iterate();
        stats().planned > 0
    });
    assert!(first.is_some_and(|iterations| iterations <= allowed), "{first:?} of {allowed}");
    (0..40).for_each(|_| iterate());
    assert!(stats().planned >= 30 * 32, "{:?}", stats());
}

const SCENARIOS: &[(&str, fn())] = &[
    ("repeats", repeats),
    ("bands", bands),
    ("threads", threads),
    ("reallocates", reallocates),
    ("double_free", double_free),
    ("foreign_free", foreign_free),
    ("signals", signals),
    ("forks", forks),
    ("short_children_record_nothing", short_children_record_nothing),
    ("forks_with_handlers_that_allocate", forks_with_handlers),
    ("forks_with_many_handlers", forks_with_handlers),
    ("a_handler_starts_a_thread", a_handler_starts_a_thread),
    ("a_child_plans", a_child_plans),
    ("never_repeats", never_repeats),
    ("repeats_after_long_noise", repeats_after_long_noise),
    ("a_million_alternating_sizes", a_million_alternating_sizes),
    ("without_a_driver_cuda_says_so", without_a_driver_cuda_says_so),
    ("marked_lengths", varying::marked),
    ("marked_sizes", varying::marked_sizes),
    ("unmarked_lengths", varying::unmarked),
    ("unmarked_sizes", varying::unmarked_sizes),
    ("a_pool_of_varying_lengths", varying::pools),
    ("interrupted", varying::interrupted),
];

/// The variable by which this program tells a copy of itself what to do.
const SCENARIO: &str = "ELBOWROOM_TEST_SCENARIO";

/// Longer than any scenario takes on a busy machine; one that is killed then hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs a command, and kills it at the time limit.
fn run(command: &mut Command) -> std::io::Result<ExitStatus> {
    let mut child = command.spawn()?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > LIMIT {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(SCENARIO) {
        let (_, scenario) = SCENARIOS.iter().find(|(n, _)| *n == name).expect("a scenario of this name");
        scenario();
        return ExitCode::SUCCESS;
    }
    if !cfg!(target_os = "linux") {
        println!("0 scenarios ran, {} ignored: LD_PRELOAD exists on Linux only", SCENARIOS.len());
        return ExitCode::SUCCESS;
    }
    assert!(library().exists(), "{} is missing", library().display());
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let own = std::env::current_exe().expect("this program has a path");
    let mut failed = 0;
    for (name, _) in SCENARIOS.iter().filter(|(name, _)| name.contains(&filter)) {
        let status = run(Command::new(&own).env(SCENARIO, name).env("LD_PRELOAD", library()));
        let ok = status.as_ref().is_ok_and(|status| status.success());
        println!("test {name} ... {}", if ok { "ok".to_owned() } else { format!("FAILED ({status:?})") });
        failed += usize::from(!ok);
    }
    println!("\n{failed} of {} scenarios failed", SCENARIOS.len());
    ExitCode::from(u8::from(failed > 0))
}
