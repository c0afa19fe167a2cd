//! Fork handlers.
//!
//! They are registered when the library is loaded, never by a request: the C library allocates while it registers handlers, and holds a
//! lock then. Handlers that are registered earlier run, before the fork, while our lock is held, and may allocate and free. The forking
//! thread is therefore *busy* between our handlers: its requests go to the fallback, and its frees are not recorded. No other lock is
//! needed, because our lock is never held while another allocator is called.
//!
//! The child consists of the forking thread alone. The sequences of all others may be half changed, so they are never claimed again, and
//! their blocks are only freed.
//!
//! Most children make a few requests and end or become another program, as those of a shell do. To record a request writes to a dozen pages
//! that parent and child share, and the system copies each. A child therefore records nothing at first, and a parent records nothing while
//! it forks again and again.

use std::sync::atomic::Ordering;

use super::band::BANDS;
use super::thread::{BeforeFork, THREAD, ThreadState};
use super::{PROCESS, Process};
use crate::arena::Arena;
use crate::sequence::Sequence;

/// Requests of a band that a child does not record, and fewer of which between two forks a parent does not record: as many as a short
/// iteration must repeat for before it is believed.
const UNRECORDED: u64 = 64;

impl Process {
    fn before_fork(&self) {
        THREAD.with(|thread| {
            if thread.fork.get().is_none() {
                let busy = thread.busy.replace(true);
                let locked = self.lock.acquire(thread.token());
                let discarding = self.discarding.acquire(thread.token());
                thread.fork.set(Some(BeforeFork { busy, locked, discarding }));
            }
        });
    }

    fn after_fork(&self, is_child: bool) {
        THREAD.with(|thread| {
            let Some(before) = thread.fork.take() else { return };
            if is_child {
                self.disown_other_threads();
            }
            if before.discarding {
                self.discarding.release();
            }
            if before.locked {
                self.lock.release();
            }
            if !before.busy {
                Self::pause_after_fork(thread, is_child);
            }
            thread.busy.set(before.busy);
        });
    }

    /// Begins pauses of this thread's sequences that have no plans. The thread must be busy, and must not have been before the fork.
    fn pause_after_fork(thread: &ThreadState, is_child: bool) {
        for band in BANDS {
            // SAFETY: sequences are never freed.
            let owner = unsafe { thread.sequences[band as usize].get().as_ref() };
            // SAFETY: the owner is this thread's, and nothing else uses the sequence while the thread is busy.
            let sequence = owner.map(|owner| unsafe { &*owner.sequence.get() });
            let pause = &thread.pauses[band as usize];
            let requests = sequence.map_or(0, |sequence| sequence.stats_ref().requests) + pause.taken();
            let since = requests.saturating_sub(thread.requests_at_fork[band as usize].replace(requests));
            if (is_child || since < UNRECORDED) && sequence.is_none_or(Sequence::may_pause) {
                pause.extend(UNRECORDED);
            }
        }
    }

    /// In the child, while the lock is held: stops the recording of threads that exist in the parent only.
    fn disown_other_threads(&self) {
        let mut recording = 0;
        self.for_each_sequence(|owner| {
            let is_own = THREAD.with(|thread| {
                thread.sequences.iter().any(|sequence| std::ptr::eq(sequence.get().cast_const(), owner))
            });
            if !is_own {
                owner.recording.store(false, Ordering::Relaxed);
            }
            recording += usize::from(owner.recording.load(Ordering::Relaxed));
        });
        self.recording.store(recording, Ordering::Relaxed);
        // What watches for idle arenas is a thread of the parent.
        self.directory.arenas().for_each(Arena::set_idle);
        self.watched.store(false, Ordering::SeqCst);
    }
}

extern "C" fn before_fork() {
    PROCESS.before_fork();
}

extern "C" fn after_fork_in_parent() {
    PROCESS.after_fork(false);
}

extern "C" fn after_fork_in_child() {
    PROCESS.after_fork(true);
}

#[cfg(all(target_os = "linux", not(miri)))]
mod load {
    use std::ffi::c_int;

    type Handler = extern "C" fn();

    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    }

    extern "C" fn register() {
        // SAFETY: the handlers may be called around any fork, in any thread.
        unsafe {
            pthread_atfork(super::before_fork, super::after_fork_in_parent, super::after_fork_in_child)
        };
    }

    /// The dynamic linker calls the functions of this section when it loads the program or library.
    #[used]
    // SAFETY: the section holds pointers to functions without arguments.
    #[unsafe(link_section = ".init_array")]
    static REGISTER: Handler = register;
}
