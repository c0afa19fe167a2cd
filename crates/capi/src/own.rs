//! The library's own memory: records, plans and what making a plan takes.
//!
//! It does not come from the program's heaps. A plan that is made while the program's blocks are alive would lie behind them and outlive
//! them, and the C library returns the end of a thread's heap only in one piece: what is free before and behind a plan would stay with the
//! process, up to two of the largest blocks for each thread.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, UnsafeCell};

use dlmalloc::Dlmalloc;

/// Bytes freed after which free pages are returned to the system: they are what an attempt to plan took.
const TRIMMED_AFTER: usize = 64 << 10;

/// A heap in pages of its own, and its lock: the C library's, because a child may release what its parent acquired, and because a thread that
/// waits sleeps. The heap maps and unmaps pages while it is held, for longer than the allocator's own lock is meant for.
struct Own {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    heap: UnsafeCell<Dlmalloc>,
    /// Bytes freed since free pages were last returned.
    freed: Cell<usize>,
    /// Whether there are blocks of a heap that a fork has left half changed. They are not told apart, so that none is freed from then on.
    has_lost_blocks: Cell<bool>,
}

// SAFETY: the heap and what is known of it are used only while the lock is held.
unsafe impl Sync for Own {}

#[global_allocator]
static OWN: Own = Own {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    heap: UnsafeCell::new(Dlmalloc::new()),
    freed: Cell::new(0),
    has_lost_blocks: Cell::new(false),
};

impl Own {
    fn acquire(&self) {
        // SAFETY: a mutex that lives as long as the library. No thread that holds it comes here: the heap asks nothing but the system.
        unsafe { libc::pthread_mutex_lock(self.lock.get()) };
    }

    fn release(&self) {
        // SAFETY: this thread holds it.
        unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
    }

    fn with<T>(&self, action: impl FnOnce(&mut Dlmalloc) -> T) -> T {
        self.acquire();
        // SAFETY: the lock is held, and `action` is one call of the heap.
        let result = action(unsafe { &mut *self.heap.get() });
        self.release();
        result
    }
}

// SAFETY: a heap behind a lock.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size may be asked for, and the alignment is a power of two.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.with(|heap| {
            if !self.has_lost_blocks.get() {
                // SAFETY: the caller's promise: a living block of this layout.
                return unsafe { heap.realloc(block, layout.size(), layout.align(), size) };
            }
            // SAFETY: as in `alloc`.
            let new = unsafe { heap.malloc(size, layout.align()) };
            if !new.is_null() {
                // SAFETY: both blocks are at least this long, and the new one is new.
                unsafe { new.copy_from_nonoverlapping(block, size.min(layout.size())) };
            }
            new
        })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.with(|heap| {
            if self.has_lost_blocks.get() {
                return;
            }
            // SAFETY: as in `realloc`.
            unsafe { heap.free(block, layout.size(), layout.align()) };
            self.freed.set(self.freed.get() + layout.size());
            if self.freed.get() >= TRIMMED_AFTER {
                self.freed.set(0);
                // SAFETY: any number of bytes may be left at the top.
                unsafe { heap.trim(0) };
            }
        });
    }
}

thread_local! {
    /// Whether this thread acquired the lock before the fork that it is in.
    static ACQUIRED: Cell<bool> = const { Cell::new(false) };
}

/// Acquires the lock, so that no other thread is within the heap when the process forks. A process with one thread does not: a handler that
/// runs later may start a thread and wait for what it does.
unsafe extern "C" fn before_fork() {
    if !elbowroom_alloc::is_single_threaded() {
        OWN.acquire();
        ACQUIRED.set(true);
    }
}

unsafe extern "C" fn after_fork_in_parent() {
    if ACQUIRED.take() {
        OWN.release();
    }
}

/// A thread that the child does not have may have been within the heap, and left it half changed: then the child begins another heap.
unsafe extern "C" fn after_fork_in_child() {
    let acquired = ACQUIRED.take();
    if !acquired && elbowroom_alloc::is_single_threaded() {
        // There was no other thread. To try the lock would write to a page that parent and child share.
        return;
    }
    // SAFETY: a mutex that lives as long as the library.
    if acquired || unsafe { libc::pthread_mutex_trylock(OWN.lock.get()) } == 0 {
        return OWN.release();
    }
    // SAFETY: the child has no other thread, and this one is not within the heap: it is forking.
    unsafe {
        OWN.heap.get().write(Dlmalloc::new());
        OWN.lock.get().write(libc::PTHREAD_MUTEX_INITIALIZER);
    }
    OWN.has_lost_blocks.set(true);
}

/// Makes the heap usable in the children of this process.
pub fn register() {
    // SAFETY: the handlers may be called around any fork, in any thread.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
}
