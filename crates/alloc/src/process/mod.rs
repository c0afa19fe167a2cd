//! Planned memory of a whole process: the sequences of each thread, the directory of arenas, and the state of each thread.
//!
//! # Bands
//!
//! A thread's requests are divided into two *bands*: large ones, such as the tensors of a training, and middle ones, such as the scratch
//! memory of a matrix product or Python's dictionaries. Each band is a sequence of its own. There are about a hundred middle requests for
//! each large one, and an interpreter changes them often; separate sequences keep these changes from disturbing the plan of the large
//! requests.
//!
//! # Threads
//!
//! For each band, a thread owns a [`BandSequence`], with plans and arenas of its own. Serving a request from a plan touches no shared data
//! and takes no lock. Any thread may free a block. Freeing a planned block is one atomic exchange. Freeing a recorded block takes a lock. A
//! table that counts recorded blocks by a hash of their addresses lets all other frees skip the lock, except for hash collisions. When a
//! thread ends, its band sequences become available to the next new thread, which uses their plans if it does the same work.
//!
//! Repetition is detected per thread. A thread whose requests never repeat is served by the fallback, and is watched in ever rarer windows:
//! between them a request costs a comparison and a count ([`Pause`](thread::Pause)), and its free a comparison with the range of all arenas.
//!
//! # Reentrancy
//!
//! Recording and planning allocate memory. During either a thread is *busy*: all its requests go to the fallback, including those of a
//! signal handler that interrupts it there.
//!
//! # Fork
//!
//! Arenas are private pages, which the child inherits. If there are other threads, the module `fork` acquires the locks before a
//! fork, so that none of them holds one in the child.

mod band;
mod callback;
mod fork;
mod global;
mod hints;
mod lock;
mod stats;
mod thread;
mod tracked;

use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use band::{BANDS, Band, BandSequence, HostSequence};
use callback::Callback;
use hints::Hints;
use lock::Lock;
use thread::{THREAD, THREAD_EXIT, ThreadState};
use tracked::TrackedBlocks;

pub use fork::is_single_threaded;
pub use global::Planned;
pub use stats::ProcessStats;

use crate::arena::{Arena, Release};
use crate::directory::Directory;
use crate::memory::{Backing, HostMemory};
use crate::pages::Forever;
use crate::request::{Request, RequestTime, Ticket};
use crate::sequence::Answer;

/// The band sequences of all threads and their shared state. The only instance is [`PROCESS`].
#[derive(Debug)]
pub struct Process {
    directory: Directory,
    /// All band sequences, the latest first. They are never freed.
    sequences: AtomicPtr<BandSequence>,
    /// Where they lie.
    places: Forever,
    /// Band sequences that record. Only if there are any must frees of unplanned blocks be recorded.
    recording: AtomicUsize,
    threshold: AtomicUsize,
    /// Requests below the threshold and their bytes, as last reported by the threads.
    small: AtomicU64,
    small_bytes: AtomicU64,
    /// Addresses in a planned range that were freed twice or never allocated.
    bad_frees: AtomicU64,
    /// Called when a thread gets a new plan.
    on_plan: Callback,
    /// Called at the end of a thread that had a plan for large requests.
    on_thread_end: Callback,
    /// Called when arenas are in use and nothing watches for idle ones.
    on_watch: Callback,
    watched: AtomicBool,
    /// Requests of all sequences with plans at the last look for idle arenas, and whether there were new ones at that look.
    looked_at: AtomicU64,
    was_busy: AtomicBool,
    /// Held while free pages of one idle arena are discarded.
    discarding: Lock,
    lock: Lock,
    /// Guarded by `lock`.
    tracked: UnsafeCell<TrackedBlocks>,
    /// The addresses of tracked blocks.
    hints: Hints,
}

// SAFETY: `tracked` is touched only while `lock` is held; everything else is atomic.
unsafe impl Sync for Process {}

/// Planned memory of this process.
pub static PROCESS: Process = Process::new();

/// Smaller requests are not worth planning and go to the fallback.
pub const DEFAULT_THRESHOLD: usize = 1 << 10;

/// At the end of an iteration the counters are published if at least this many requests have been served since.
const PUBLISH_AFTER: u64 = 64;

/// Without iterations, they are published after this many.
const PUBLISH_ALWAYS_AFTER: u64 = 1 << 10;

/// The fallback is trimmed whenever recorded blocks of this many bytes, or of 1/32 of the arena, have been freed: for that long the process
/// has the memory twice.
const MIN_TRIMMED: usize = 1 << 18;

/// Arenas of fewer bytes alone need no watching.
const MIN_WATCHED: usize = 1 << 20;

/// A thread reports its small requests whenever it has made this many.
const REPORT_AFTER: u64 = 1 << 10;

impl Process {
    const fn new() -> Self {
        Self {
            directory: Directory::new(),
            sequences: AtomicPtr::new(null_mut()),
            places: Forever::new(),
            recording: AtomicUsize::new(0),
            threshold: AtomicUsize::new(DEFAULT_THRESHOLD),
            small: AtomicU64::new(0),
            small_bytes: AtomicU64::new(0),
            bad_frees: AtomicU64::new(0),
            on_plan: Callback::new(),
            on_thread_end: Callback::new(),
            on_watch: Callback::new(),
            watched: AtomicBool::new(false),
            looked_at: AtomicU64::new(0),
            was_busy: AtomicBool::new(false),
            discarding: Lock::new(),
            lock: Lock::new(),
            tracked: UnsafeCell::new(TrackedBlocks::new()),
            hints: Hints::new(),
        }
    }

    /// Requests of fewer bytes go to the fallback and are not recorded.
    pub fn threshold(&self) -> usize {
        self.threshold.load(Ordering::Relaxed)
    }

    /// Sets the threshold. To a plan in use, the affected requests appear as missing or extra ones.
    pub fn set_threshold(&self, bytes: usize) {
        self.threshold.store(bytes.max(1), Ordering::Relaxed);
    }

    /// Allocates a block from a plan or, if there is none, through `fallback`, which may return null. The contents of a planned block are
    /// arbitrary.
    #[inline]
    pub fn allocate(&'static self, request: Request, fallback: impl FnOnce() -> *mut u8) -> *mut u8 {
        if request.size < self.threshold.load(Ordering::Relaxed) {
            self.count_small(request.size);
            return fallback();
        }
        let band = Band::of(request.size);
        if THREAD.with(|thread| thread.busy.get() || thread.pauses[band as usize].take(request.size)) {
            return fallback();
        }
        self.allocate_from(band, request, fallback)
    }

    /// Allocates a block of the band's sequence. The thread must not be busy. Not inlined, so that other requests need save no registers for
    /// it.
    #[inline(never)]
    fn allocate_from(
        &'static self,
        band: Band,
        request: Request,
        fallback: impl FnOnce() -> *mut u8,
    ) -> *mut u8 {
        let answer = THREAD.with(|thread| {
            thread.busy.set(true);
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
            let owner = self.band_sequence(thread, band);
            let answer = owner.map(|owner| (owner, self.request_from(thread, owner, request)));
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
            thread.busy.set(false);
            answer
        });
        match answer {
            Some((_, Answer::Planned(address, None))) => std::ptr::with_exposed_provenance_mut(address),
            Some((owner, Answer::Planned(address, Some(ticket)))) => {
                self.track(address, owner, ticket);
                std::ptr::with_exposed_provenance_mut(address)
            }
            None | Some((_, Answer::Fallback(None))) => {
                if self.directory.take_woken() {
                    self.busy(|| self.watch());
                }
                fallback()
            }
            Some((owner, Answer::Fallback(Some(ticket)))) => {
                let block = fallback();
                if !block.is_null() {
                    self.track(block as usize, owner, ticket);
                }
                block
            }
        }
    }

    #[inline]
    fn count_small(&self, bytes: usize) {
        THREAD.with(|thread| {
            thread.small.set(thread.small.get() + 1);
            thread.small_bytes.set(thread.small_bytes.get() + bytes as u64);
            if thread.small.get() >= REPORT_AFTER {
                self.report_small(thread);
            }
        });
    }

    #[cold]
    #[inline(never)]
    fn report_small(&self, thread: &ThreadState) {
        self.small.fetch_add(thread.small.replace(0), Ordering::Relaxed);
        self.small_bytes.fetch_add(thread.small_bytes.replace(0), Ordering::Relaxed);
    }

    /// Requests memory from this thread's sequence.
    #[inline]
    fn request_from(&self, thread: &ThreadState, owner: &'static BandSequence, request: Request) -> Answer {
        // SAFETY: the owner is this thread's, and the thread is busy, so that nothing it calls comes here again.
        let sequence = unsafe { &mut *owner.sequence.get() };
        self.end_pause(thread, owner, sequence);
        if !owner.recording.load(Ordering::Relaxed) {
            let answer = sequence.request(request);
            let stats = sequence.stats_ref();
            let published = owner.published.get();
            let is_new = (published.plans, published.lost) != (stats.plans, stats.lost);
            // An iteration may be a single request, so the counters are not published after every iteration.
            let since = stats.requests - published.requests;
            let is_due = since >= PUBLISH_AFTER
                && (published.iterations != stats.iterations || since >= PUBLISH_ALWAYS_AFTER);
            // With a ticket, recording has resumed after a pause.
            let is_recorded = matches!(answer, Answer::Fallback(Some(_)) | Answer::Planned(_, Some(_)));
            if is_new || is_due || is_recorded {
                self.publish(owner, sequence);
            }
            if answer == Answer::Fallback(None) {
                thread.pauses[owner.band as usize].begin(sequence.pause());
            }
            return answer;
        }
        self.request_recording(owner, sequence, request)
    }

    /// Ends this thread's pause in a band, if there is one. The thread must be busy.
    #[inline]
    fn end_pause(&self, thread: &ThreadState, owner: &BandSequence, sequence: &mut HostSequence) {
        if let Some((requests, bytes)) = thread.pauses[owner.band as usize].end() {
            sequence.skip(requests, bytes);
            self.publish(owner, sequence);
        }
    }

    #[cold]
    fn request_recording(
        &self,
        owner: &'static BandSequence,
        sequence: &mut HostSequence,
        request: Request,
    ) -> Answer {
        self.take_frees(owner, sequence);
        let answer = sequence.request(request);
        owner.clock.store(sequence.now().0, Ordering::Relaxed);
        self.publish(owner, sequence);
        answer
    }

    /// Reports the frees of recorded blocks to their sequence.
    fn take_frees(&self, owner: &BandSequence, sequence: &mut HostSequence) {
        if owner.has_frees.swap(false, Ordering::Acquire) {
            self.with_tracked(|_| {
                // SAFETY: the lock is held.
                let freed = unsafe { &mut *owner.freed.get() };
                freed.iter().for_each(|&(ticket, at)| sequence.freed(ticket, at));
                freed.clear();
            });
            if sequence.take_left(MIN_TRIMMED.max(sequence.stats_ref().arena_bytes / 32)) {
                self.trim();
            }
        }
    }

    /// Publishes a band sequence's counters and whether it records.
    #[cold]
    fn publish(&self, owner: &BandSequence, sequence: &HostSequence) {
        let stats = sequence.stats();
        let published = owner.published.get();
        if stats.plans > published.plans && owner.band == Band::Large {
            self.trim();
        }
        // After a loss, the fallback serves what the arena did.
        if (stats.plans, stats.lost) != (published.plans, published.lost) && stats.arena_bytes >= MIN_WATCHED
        {
            self.watch();
        }
        owner.published.set(stats);
        owner.stats.publish(&stats);
        if sequence.is_recording() {
            if !owner.recording.swap(true, Ordering::Relaxed) {
                owner.clock.store(sequence.now().0, Ordering::Relaxed);
                self.recording.fetch_add(1, Ordering::Release);
            }
        } else if owner.recording.load(Ordering::Relaxed) {
            self.stop_recording(owner);
            if owner.band == Band::Large && stats.plans > 0 {
                // The plan is confirmed: the last recorded blocks have left the fallback.
                self.trim();
            }
        }
    }

    /// Lets the fallback return its free memory to the system.
    fn trim(&self) {
        if let Some(on_plan) = self.on_plan.get() {
            on_plan();
        }
    }

    /// Starts what watches for idle arenas, if it does not run. The thread must be busy.
    #[cold]
    fn watch(&self) {
        if let Some(on_watch) = self.on_watch.get().filter(|_| !self.watched.swap(true, Ordering::SeqCst)) {
            on_watch();
        }
    }

    /// Sets a function that is called when arenas are in use and nothing watches for idle ones. It should start a thread that calls
    /// [`discard_idle`](Self::discard_idle) every second or so until that returns false. Only the first call has an effect. Requests of the
    /// function go to the fallback. A panic in it ends the process.
    pub fn on_watch(&self, call: extern "C" fn()) {
        self.on_watch.set(call);
    }

    /// Returns the free pages of arenas to the system from which nothing was served since the last call, and those of the fallback once
    /// threads that have plans make no more requests. Returns whether to call again; after false, the function that
    /// [`on_watch`](Self::on_watch) sets is called when an arena is in use again.
    pub fn discard_idle(&'static self) -> bool {
        let look = || {
            let mut again = self.was_busy_since_last_look();
            // A phase without a plan of its own leaves its blocks in the fallback, where later small ones may keep them from the system.
            let mut discarded = self.was_busy.swap(again, Ordering::Relaxed) && !again;
            for arena in self.directory.arenas() {
                self.discarding.acquire(THREAD.with(ThreadState::token));
                again |= arena.discard_if_idle(|address, bytes| {
                    // SAFETY: no block is live in the range, and none becomes live meanwhile.
                    unsafe { HostMemory.discard(address, bytes) };
                    discarded = true;
                });
                self.discarding.release();
            }
            if discarded {
                // What the fallback served between two plans is idle as well.
                self.trim();
            }
            if !again {
                self.watched.store(false, Ordering::SeqCst);
                // An arena may have become active before this, when it counted as watched.
                again = self.directory.arenas().any(Arena::is_active)
                    && !self.watched.swap(true, Ordering::SeqCst);
            }
            again
        };
        self.busy(look).unwrap_or(true)
    }

    /// Whether threads that have plans have made requests since this was last called.
    fn was_busy_since_last_look(&'static self) -> bool {
        let mut requests = 0;
        self.for_each_sequence(|owner| {
            let stats = owner.stats.read();
            requests += if stats.plans > 0 { stats.requests } else { 0 };
        });
        self.looked_at.swap(requests, Ordering::Relaxed) != requests
    }

    fn stop_recording(&self, owner: &BandSequence) {
        if owner.recording.swap(false, Ordering::Relaxed) {
            self.recording.fetch_sub(1, Ordering::Release);
            self.with_tracked(|tracked| {
                tracked.remove_all_of(owner, |address| self.hints.remove(address));
                if tracked.is_empty() {
                    self.hints.clear();
                }
                // SAFETY: the lock is held.
                unsafe { &mut *owner.freed.get() }.clear();
            });
        }
    }

    /// This thread's band sequence. The thread must be busy. `None` while the thread is ending.
    #[inline]
    fn band_sequence(&'static self, thread: &ThreadState, band: Band) -> Option<&'static BandSequence> {
        // SAFETY: sequences are never freed.
        unsafe { thread.sequences[band as usize].get().as_ref() }.or_else(|| self.claim(thread, band))
    }

    #[cold]
    fn claim(&'static self, thread: &ThreadState, band: Band) -> Option<&'static BandSequence> {
        let mine = &thread.sequences[band as usize];
        THREAD_EXIT.try_with(|_| ()).ok()?;
        let mut owner = self.sequences.load(Ordering::Acquire);
        // SAFETY: here and below, sequences are never freed, and `before` never changes once a band sequence is in the list.
        while let Some(free) = unsafe { owner.as_ref() } {
            let take = || free.claimed.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed);
            if free.band == band && take().is_ok() {
                // SAFETY: the owner has just become this thread's.
                self.publish(free, unsafe { &*free.sequence.get() });
                mine.set(owner);
                return Some(free);
            }
            owner = free.before;
        }
        let new: *mut BandSequence = self.places.place(BandSequence::new(band, &self.directory))?;
        let mut latest = self.sequences.load(Ordering::Acquire);
        loop {
            // SAFETY: until the exchange succeeds, only this thread knows the owner.
            unsafe { (*new).before = latest };
            match self.sequences.compare_exchange(latest, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(other) => latest = other,
            }
        }
        mine.set(new);
        // SAFETY: the owner was made above and is never freed.
        let owner: &'static BandSequence = unsafe { &*new };
        // SAFETY: the owner is this thread's.
        self.publish(owner, unsafe { &*owner.sequence.get() });
        Some(owner)
    }

    /// Calls a function with every band sequence.
    fn for_each_sequence(&self, mut action: impl FnMut(&'static BandSequence)) {
        let mut owner = self.sequences.load(Ordering::Acquire);
        // SAFETY: sequences are never freed, and `before` never changes once a band sequence is in the list.
        while let Some(this) = unsafe { owner.as_ref() } {
            action(this);
            owner = this.before;
        }
    }

    /// Runs a function under the lock. Returns `None`, without running it, if this thread holds the lock already. The function must not
    /// allocate: a fork handler of another allocator may hold that allocator's locks while ours waits for this one.
    fn with_tracked<T>(&self, use_it: impl FnOnce(&mut TrackedBlocks) -> T) -> Option<T> {
        if !self.lock.acquire(THREAD.with(ThreadState::token)) {
            return None;
        }
        // SAFETY: the lock is held, by this call alone.
        let result = use_it(unsafe { &mut *self.tracked.get() });
        self.lock.release();
        Some(result)
    }

    /// Runs a function while this thread's requests go to the fallback. Returns `None`, without running it, if they already do.
    fn busy<T>(&self, run: impl FnOnce() -> T) -> Option<T> {
        THREAD.with(|thread| {
            if thread.busy.replace(true) {
                return None;
            }
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
            let result = run();
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
            thread.busy.set(false);
            Some(result)
        })
    }

    #[cold]
    fn track(&self, address: usize, owner: &'static BandSequence, ticket: Ticket) {
        self.busy(|| {
            self.with_tracked(|tracked| {
                if owner.recording.load(Ordering::Relaxed) && tracked.insert(address, owner, ticket) {
                    self.hints.add(address);
                }
            });
        });
    }

    /// Frees the planned block that begins at an address. `Release::Elsewhere` means that the block belongs to the fallback, which must
    /// free it after this call.
    ///
    /// ```compile_fail,E0133
    /// let block = vec![0u8; 1 << 20];
    /// elbowroom_alloc::PROCESS.release(block.as_ptr() as usize);
    /// ```
    ///
    /// # Safety
    /// If a block begins at the address, nothing uses its bytes any more.
    #[inline]
    pub unsafe fn release(&self, address: usize) -> Release {
        let is_hinted = self.recording.load(Ordering::Relaxed) > 0 && self.hints.may_contain(address);
        if !is_hinted && !self.directory.spans(address) {
            return Release::Elsewhere;
        }
        // SAFETY: the caller's promise.
        unsafe { self.release_known(address, is_hinted) }
    }

    /// As [`release`](Self::release), for an address that may be tracked, if it is hinted, or planned. Not inlined, so that frees of all other
    /// blocks need save no registers for it.
    ///
    /// # Safety
    /// If a block begins at the address, nothing uses its bytes any more.
    #[inline(never)]
    unsafe fn release_known(&self, address: usize, is_hinted: bool) -> Release {
        if is_hinted {
            self.untrack(address);
        }
        // SAFETY: the caller's promise.
        let release = unsafe { self.directory.release(address) };
        if release == Release::Nothing {
            self.bad_frees.fetch_add(1, Ordering::Relaxed);
        }
        release
    }

    /// Records a free if a band sequence tracks the block. Must precede the free itself, because afterwards the address may belong to
    /// another block.
    #[cold]
    fn untrack(&self, address: usize) {
        self.busy(|| {
            self.with_tracked(|tracked| {
                let now = |owner: *const BandSequence| {
                    // SAFETY: sequences are never freed.
                    RequestTime(unsafe { &*owner }.clock.load(Ordering::Relaxed))
                };
                let Some((owner, ticket)) = tracked.remove(address, now) else { return };
                self.hints.remove(address);
                // SAFETY: as above.
                let owner = unsafe { &*owner };
                if !owner.recording.load(Ordering::Relaxed) {
                    // The block of a thread that this process does not have.
                    return;
                }
                // SAFETY: the lock is held.
                let freed = unsafe { &mut *owner.freed.get() };
                // Without memory the free is not recorded, and the block counts as never freed.
                let _ = freed.push((ticket, RequestTime(owner.clock.load(Ordering::Relaxed))));
                owner.has_frees.store(true, Ordering::Release);
            });
        });
    }

    /// Usable bytes of a planned block; `None` if the address belongs to the fallback.
    #[inline]
    pub fn capacity(&self, address: usize) -> Option<usize> {
        self.directory.capacity(address)
    }

    /// Calls a function with each of this thread's sequences. Has no effect during planning. Private, because the function could put
    /// another sequence in the place of one that has live blocks.
    fn with_sequences(&'static self, mut action: impl FnMut(&mut HostSequence)) {
        self.busy(|| {
            for band in BANDS {
                let Some(owner) = THREAD.with(|thread| self.band_sequence(thread, band)) else { return };
                // SAFETY: the owner is this thread's, and the thread is busy.
                let sequence = unsafe { &mut *owner.sequence.get() };
                THREAD.with(|thread| self.end_pause(thread, owner, sequence));
                self.take_frees(owner, sequence);
                action(sequence);
                owner.clock.store(sequence.now().0, Ordering::Relaxed);
                self.publish(owner, sequence);
            }
        });
    }

    /// Marks the start of an iteration of this thread; see [`Sequence::mark_iteration`](crate::Sequence::mark_iteration).
    pub fn mark_iteration(&'static self) {
        self.with_sequences(HostSequence::mark_iteration);
    }

    /// Excludes this thread's following requests from the iteration until [`resume`](Self::resume). Interruptions nest.
    pub fn interrupt(&'static self) {
        self.with_sequences(HostSequence::interrupt);
    }

    /// Ends an interruption.
    pub fn resume(&'static self) {
        self.with_sequences(HostSequence::resume);
    }

    /// Sets a function that is called whenever a thread gets a new plan for large requests, so that the fallback can return its free memory
    /// to the system. Only the first call has an effect. Requests of the function go to the fallback. A panic in it ends the process.
    pub fn on_plan(&self, call: extern "C" fn()) {
        self.on_plan.set(call);
    }

    /// Sets a function that is called at the end of each thread that had a plan for large requests, in that thread, so that the fallback can
    /// return what it keeps for the thread to the system. Only the first call has an effect. Requests of the function go to the fallback. A
    /// panic in it ends the process.
    pub fn on_thread_end(&self, call: extern "C" fn()) {
        self.on_thread_end.set(call);
    }
}
