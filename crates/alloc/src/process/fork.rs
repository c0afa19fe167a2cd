//! Fork handlers.
//!
//! They are registered when the library is loaded, never by a request: the C library allocates while it registers handlers, and holds a
//! lock then. Handlers that are registered earlier run, before the fork, while our lock is held, and may allocate and free. The forking
//! thread is therefore *busy* between our handlers: its requests go to the fallback, and its frees are not recorded. No other lock is
//! needed, because our lock is never held while another allocator is called.
//!
//! The child consists of the forking thread alone. The sequences of all others may be half changed, so they are never claimed again, and
//! their blocks are only freed.

use std::sync::atomic::Ordering;

use super::thread::{BeforeFork, THREAD};
use super::{PROCESS, Process};
use crate::arena::Arena;

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
            thread.busy.set(before.busy);
        });
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
