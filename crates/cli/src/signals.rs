//! Signals that ask a command to end: long work stops at the next evaluation or iteration and keeps what it has.

use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// What users, terminals, containers, service managers and batch systems send.
const SIGNALS: [(i32, &str); 3] = [(SIGINT, "SIGINT"), (SIGTERM, "SIGTERM"), (SIGHUP, "SIGHUP")];

/// Whether searches and training should end.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Number of the last signal that was received, or 0.
static RECEIVED: AtomicUsize = AtomicUsize::new(0);

/// A signal that was received.
pub struct Signal {
    /// Its name.
    pub name: &'static str,
    /// The exit status of a command that ended because of it.
    pub status: u8,
}

/// Makes signals end long work cleanly. A second Ctrl-C ends the process at once; further signals of the other kinds do not, because
/// service managers and terminals send several of them. Commands call this once they have read their input: a read from a pipe waits for its
/// writer, whom a signal that is caught does not replace.
pub fn catch() {
    static CAUGHT: Once = Once::new();
    // What is registered a second time would take the first Ctrl-C for the second one. Registering fails only for signals that no program
    // may handle.
    CAUGHT.call_once(|| drop(register()));
}

fn register() -> io::Result<()> {
    for (signal, _) in SIGNALS {
        // `nohup` starts programs with this signal ignored, so that they survive the end of their terminal.
        if signal == SIGHUP && is_ignored(signal) {
            continue;
        }
        if signal == SIGINT {
            flag::register_conditional_shutdown(signal, 128 + signal, &INTERRUPTED)?;
        }
        flag::register_usize(signal, &RECEIVED, signal as usize)?;
        flag::register(signal, &INTERRUPTED)?;
    }
    Ok(())
}

/// Turns a write beyond the limit on file sizes (`ulimit -f`) into an error; by default it ends the process.
pub fn survive_size_limits() {
    let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Whether the process that started this one had the signal ignored. Only Linux can be asked without unsafe code.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Whether long work should end.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Ends long work as a signal does, but is none: the reader of the output is gone, for example.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// Reads input in a thread of its own, so that a caught signal ends the wait for the writer of a pipe. Returns nothing if a signal came first;
/// the thread then ends with the process.
pub fn read_unless_interrupted<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    /// How long a signal may go unnoticed.
    const LOOK: Duration = Duration::from_millis(20);
    let reader = thread::current();
    let reading = thread::spawn(move || {
        let content = read();
        reader.unpark();
        content
    });
    while !reading.is_finished() {
        if interrupted() {
            return None;
        }
        thread::park_timeout(LOOK);
    }
    Some(reading.join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// The signal that was received, if any.
pub fn received() -> Option<Signal> {
    let number = i32::try_from(RECEIVED.load(Ordering::SeqCst)).ok()?;
    let &(_, name) = SIGNALS.iter().find(|&&(signal, _)| signal == number)?;
    Some(Signal { name, status: u8::try_from(128 + number).ok()? })
}
