//! Iterations of different lengths under the preloaded library, and in a pool of the C interface.

#[path = "../../../alloc/tests/lengths/mod.rs"]
mod lengths;

use std::ffi::{CStr, c_void};
use std::hint::black_box;

use lengths::{Client, KINDS, Kind, ORDERS, Order, WARM_UP, iterate, lengths};

use super::{Stats, stats};

/// A function of the preloaded library.
fn function(name: &CStr) -> *mut c_void {
    // SAFETY: a look-up without conditions.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!function.is_null(), "{name:?} is missing");
    function
}

/// A function of the library without arguments.
fn call(name: &CStr) {
    // SAFETY: the header has functions of these names and this type.
    let function: extern "C" fn() = unsafe { std::mem::transmute(function(name)) };
    function();
}

struct Malloc {
    marked: bool,
}

impl Client for Malloc {
    fn allocate(&mut self, size: usize) -> usize {
        // SAFETY: a plain call; the block is written to within its size.
        unsafe {
            let block = black_box(libc::malloc(size)).cast::<u8>();
            assert!(!block.is_null());
            block.write(1);
            block.add(size - 1).write(1);
            block as usize
        }
    }
    fn free(&mut self, block: usize) {
        // SAFETY: a block of `allocate`, freed once.
        unsafe { libc::free(block as *mut c_void) };
    }
    fn mark(&mut self) {
        if self.marked {
            call(c"elbowroom_mark_iteration");
        }
    }
}

type Reserve = extern "C" fn(*mut c_void, usize, usize) -> *mut c_void;
type GiveBack = extern "C" fn(*mut c_void, *mut c_void, usize);

/// Imaginary memory that counts what is reserved.
#[derive(Default)]
struct Counted {
    next: usize,
    now: usize,
    most: usize,
}

extern "C" fn reserve(context: *mut c_void, bytes: usize, align: usize) -> *mut c_void {
    // SAFETY: the context of `Queue::new`, which one thread uses.
    let memory = unsafe { &mut *context.cast::<Counted>() };
    let address = memory.next.max(1 << 20).next_multiple_of(align);
    memory.next = address + bytes;
    memory.now += bytes;
    memory.most = memory.most.max(memory.now);
    address as *mut c_void
}

extern "C" fn give_back(context: *mut c_void, _: *mut c_void, bytes: usize) {
    // SAFETY: as above.
    unsafe { (*context.cast::<Counted>()).now -= bytes };
}

const QUEUE: u64 = 5;

/// A queue of a pool of the C interface.
struct Queue {
    pool: *mut c_void,
    memory: *mut Counted,
    marked: bool,
}

impl Queue {
    fn new(marked: bool) -> Self {
        let memory = Box::into_raw(Box::<Counted>::default());
        // SAFETY: the header's types.
        let new: extern "C" fn(Reserve, GiveBack, *mut c_void, usize) -> *mut c_void =
            unsafe { std::mem::transmute(function(c"elbowroom_pool_new")) };
        let pool = new(reserve, give_back, memory.cast(), 64);
        assert!(!pool.is_null());
        Self { pool, memory, marked }
    }

    fn stats(&self) -> Stats {
        // SAFETY: the header's types.
        let read: extern "C" fn(*const c_void, *mut Stats) =
            unsafe { std::mem::transmute(function(c"elbowroom_pool_stats")) };
        let mut stats = Stats::default();
        read(self.pool, &mut stats);
        stats
    }

    /// A function of the library for a queue of a pool.
    fn call(pool: *mut c_void, name: &CStr) {
        // SAFETY: the header has functions of these names and this type.
        let function: extern "C" fn(*const c_void, u64) = unsafe { std::mem::transmute(function(name)) };
        function(pool, QUEUE);
    }
}

impl Client for Queue {
    fn allocate(&mut self, size: usize) -> usize {
        // SAFETY: the header's types.
        let take: extern "C" fn(*const c_void, u64, usize, usize) -> *mut c_void =
            unsafe { std::mem::transmute(function(c"elbowroom_pool_take")) };
        take(self.pool, QUEUE, size, 64) as usize
    }
    fn free(&mut self, block: usize) {
        // SAFETY: the header's types.
        let give: extern "C" fn(*const c_void, *mut c_void) -> i32 =
            unsafe { std::mem::transmute(function(c"elbowroom_pool_give")) };
        assert_eq!(give(self.pool, block as *mut c_void), 0);
    }
    fn mark(&mut self) {
        if self.marked {
            Self::call(self.pool, c"elbowroom_pool_mark_iteration");
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the header's types; neither the pool nor its memory is used any more.
        unsafe {
            let free: extern "C" fn(*mut c_void) = std::mem::transmute(function(c"elbowroom_pool_free"));
            free(self.pool);
            let memory = Box::from_raw(self.memory);
            assert_eq!(memory.now, 0, "all memory is given back");
        }
    }
}

fn assert_planned(before: Stats, after: Stats, reserve: f64, what: impl std::fmt::Debug) {
    let planned = (after.planned - before.planned) as f64 / (after.requests - before.requests) as f64;
    assert!(planned >= 0.95 && reserve <= 1.25, "{what:?}: {planned} planned, {reserve} {after:?}");
}

/// One program in this process.
fn process(kind: Kind, order: Order, marked: bool) {
    let lengths = lengths(order, 77);
    let mut client = Malloc { marked };
    let (mut peak, mut before, mut arena) = (0, Stats::default(), 0);
    for (index, words) in lengths.into_iter().enumerate() {
        if index == WARM_UP {
            (before, arena) = (stats(), 0);
        }
        client.mark();
        peak = peak.max(iterate(kind, words, 16 << 10, &mut client));
        arena = arena.max(stats().height);
    }
    assert_planned(before, stats(), arena as f64 / peak as f64, (kind, order, marked));
}

pub fn marked() {
    process(Kind::Both, Order::Random, true);
}

pub fn marked_sizes() {
    process(Kind::Sizes, Order::Ascending, true);
}

pub fn unmarked() {
    process(Kind::Steps, Order::Random, false);
}

pub fn unmarked_sizes() {
    process(Kind::Sizes, Order::Bimodal, false);
}

pub fn pools() {
    for (kind, order) in KINDS.into_iter().flat_map(|kind| ORDERS.map(|order| (kind, order))) {
        for marked in [true, false] {
            let mut queue = Queue::new(marked);
            let (mut peak, mut before) = (0, Stats::default());
            for (index, words) in lengths(order, 99).into_iter().enumerate() {
                if index == WARM_UP {
                    before = queue.stats();
                    // SAFETY: the memory lives as long as the queue, and nothing else refers to it now.
                    unsafe { (*queue.memory).most = (*queue.memory).now };
                }
                queue.mark();
                peak = peak.max(iterate(kind, words, 16 << 10, &mut queue));
            }
            // SAFETY: as above.
            let most = unsafe { (*queue.memory).most };
            assert_planned(before, queue.stats(), most as f64 / peak as f64, (kind, order, marked));
        }
    }
}

/// Marked iterations, each with more requests that the program excludes than the one before.
fn with_interruptions(client: &mut impl Client, interrupt: &dyn Fn(), resume: &dyn Fn()) {
    for i in 0..6 {
        client.mark();
        iterate(Kind::Steps, 8, 16 << 10, client);
        interrupt();
        for j in 0..i {
            let block = client.allocate(20_000 + 77 * i + 1_000 * j);
            client.free(block);
        }
        resume();
    }
}

/// What a program excludes changes no plan, in the process and in a pool.
pub fn interrupted() {
    let mut malloc = Malloc { marked: true };
    with_interruptions(&mut malloc, &|| call(c"elbowroom_interrupt"), &|| call(c"elbowroom_resume"));
    let of_process = stats();
    let mut queue = Queue::new(true);
    let pool = queue.pool;
    let on_pool = |name: &CStr| Queue::call(pool, name);
    with_interruptions(&mut queue, &|| on_pool(c"elbowroom_pool_interrupt"), &|| {
        on_pool(c"elbowroom_pool_resume")
    });
    for stats in [of_process, queue.stats()] {
        assert_eq!((stats.planned, stats.mismatches), (5 * (8 * 7 + 7), 0), "{stats:?}");
    }
}
