//! Fork handlers.
//!
//! They are registered when the library is loaded, never by a request: the C library allocates while it registers handlers, and holds a
//! lock then. Handlers that are registered earlier run, before the fork, while our lock is held, and may allocate and free. The forking
//! thread is therefore *busy* between our handlers: its requests go to the fallback, and its frees are not recorded. No other lock is
//! needed, because our lock is never held while another allocator is called.
//!
//! Where the C library says that the process has a single thread, no other can hold our lock, so that it is not acquired: that would
//! write to a page that parent and child share, and the system would copy it for both. Should a handler between ours start a thread, the
//! child frees the locks that it holds, and forgets what they guard.
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
use super::tracked::TrackedBlocks;
use super::{PROCESS, Process};
use crate::arena::Arena;
use crate::pages::PageVec;
use crate::sequence::Sequence;

pub use single::is_single_threaded;

/// Requests of a band that a child does not record, and fewer of which between two forks a parent does not record: as many as a short
/// iteration must repeat for before it is believed.
const UNRECORDED: u64 = 64;

impl Process {
    fn before_fork(&self) {
        THREAD.with(|thread| {
            if thread.fork.get().is_none() {
                let busy = thread.busy.replace(true);
                let alone = single::is_single_threaded();
                let locked = !alone && self.lock.acquire(thread.token());
                let discarding = !alone && self.discarding.acquire(thread.token());
                thread.fork.set(Some(BeforeFork { busy, alone, locked, discarding }));
            }
        });
    }

    fn after_fork(&self, is_child: bool) {
        THREAD.with(|thread| {
            let Some(before) = thread.fork.take() else { return };
            if is_child && !(before.alone && single::is_single_threaded()) {
                if before.alone {
                    self.free_locks_of_lost_threads(thread);
                }
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

    /// In the child of a process that had a single thread before the first handler: frees the locks of threads that later handlers
    /// started. What the lock guards may be half changed: it is forgotten, and its memory is not given back.
    fn free_locks_of_lost_threads(&self, thread: &ThreadState) {
        if self.lock.is_held_by_other_than(thread.token()) {
            // SAFETY: the child has no other thread, and this one does not hold the lock, so that nothing else uses the table.
            unsafe { self.tracked.get().write(TrackedBlocks::new()) };
            self.hints.clear();
            // SAFETY: as above, for the frees that are not processed yet.
            self.for_each_sequence(|owner| unsafe { owner.freed.get().write(PageVec::new()) });
            self.lock.release();
        }
        if self.discarding.is_held_by_other_than(thread.token()) {
            self.discarding.release();
        }
    }

    /// In the child, while no other thread holds the lock: stops the recording of threads that exist in the parent only.
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

/// The handlers, in the order of `pthread_atfork`. Where nothing registers them, they are compiled all the same.
#[used]
static HANDLERS: [extern "C" fn(); 3] = [before_fork, after_fork_in_parent, after_fork_in_child];

/// Whether the process has a single thread, as the C library knows it.
#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
mod single {
    use std::ffi::{c_char, c_void};
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicPtr, Ordering};

    /// `__libc_single_threaded`; null before it is looked up, and in a C library that has none (glibc before 2.32).
    static KNOWN: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

    unsafe extern "C" {
        fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    }

    /// Looks the variable up. Takes the dynamic linker's lock and may allocate, so that it is called when the library is loaded, and never
    /// by a request.
    pub fn look_up() {
        // SAFETY: a name ended by zero; a null library stands for all that are loaded.
        let found = unsafe { dlsym(null_mut(), c"__libc_single_threaded".as_ptr()) };
        KNOWN.store(found.cast(), Ordering::Relaxed);
    }

    /// Whether the process has a single thread, as the C library knows it. False if that is not known.
    pub fn is_single_threaded() -> bool {
        let known = KNOWN.load(Ordering::Relaxed);
        // SAFETY: the C library's variable of this name is a `char`, which changes only while this thread starts or joins another.
        !known.is_null() && unsafe { known.read_volatile() } != 0
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
mod single {
    #[cfg(all(target_os = "linux", not(miri)))]
    pub fn look_up() {}

    /// Whether the process has a single thread, as the C library knows it. False if that is not known.
    pub fn is_single_threaded() -> bool {
        false
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod load {
    use std::ffi::c_int;

    type Handler = extern "C" fn();

    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    }

    extern "C" fn register() {
        super::single::look_up();
        let [prepare, parent, child] = super::HANDLERS;
        // SAFETY: the handlers may be called around any fork, in any thread.
        unsafe { pthread_atfork(prepare, parent, child) };
    }

    /// The dynamic linker calls the functions of this section when it loads the program or library.
    #[used]
    // SAFETY: the section holds pointers to functions without arguments.
    #[unsafe(link_section = ".init_array")]
    static REGISTER: Handler = register;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::band::{Band, BandSequence};
    use crate::request::{RequestTime, Ticket};

    /// A handler between ours started a thread, which was freeing a block when the process forked.
    #[test]
    fn a_child_does_not_wait_for_a_thread_that_it_does_not_have() {
        static OTHER: Process = Process::new();
        let owner = Box::into_raw(Box::new(BandSequence::new(Band::Middle, &OTHER.directory)));
        OTHER.sequences.store(owner, Ordering::Release);
        // SAFETY: sequences are never freed.
        let owner = unsafe { &*owner };
        owner.recording.store(true, Ordering::Relaxed);
        OTHER.recording.store(1, Ordering::Relaxed);
        OTHER.track(4096, owner, Ticket(0));
        assert!(OTHER.hints.may_contain(4096));
        // SAFETY: no other thread knows the sequence.
        assert!(unsafe { &mut *owner.freed.get() }.push((Ticket(0), RequestTime(1))).is_some());

        THREAD.with(|thread| {
            thread.fork.set(Some(BeforeFork { busy: false, alone: true, locked: false, discarding: false }));
        });
        let lost = 1;
        assert!(OTHER.lock.acquire(lost) && OTHER.discarding.acquire(lost));
        OTHER.after_fork(true);
        let own = THREAD.with(ThreadState::token);
        assert!(!OTHER.lock.is_held_by_other_than(own) && !OTHER.discarding.is_held_by_other_than(own));
        assert_eq!(OTHER.with_tracked(|tracked| tracked.remove(4096, |_| RequestTime(1))), Some(None));
        assert!(!OTHER.hints.may_contain(4096));
        // SAFETY: as above.
        assert!(unsafe { &*owner.freed.get() }.is_empty(), "a list that was half changed");
        assert!(!owner.recording.load(Ordering::Relaxed) && OTHER.recording.load(Ordering::Relaxed) == 0);
    }
}
