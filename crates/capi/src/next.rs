//! The next allocator: the one that would be called without this library.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory for requests made while the next allocator's functions are being looked up: the look-up itself may allocate.
const BOOTSTRAP: usize = 64 << 10;

#[repr(align(64))]
struct Bootstrap(std::cell::UnsafeCell<[u8; BOOTSTRAP]>);

// SAFETY: each byte is given out once, by an atomic counter.
unsafe impl Sync for Bootstrap {}

static MEMORY: Bootstrap = Bootstrap(std::cell::UnsafeCell::new([0; BOOTSTRAP]));
static USED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LOOKING_UP: Cell<bool> = const { Cell::new(false) };
}

/// Zeroed memory that is never freed; null when it is exhausted.
fn bootstrap(size: usize, align: usize) -> *mut c_void {
    let Some(len) = size.max(1).checked_add(align) else { return std::ptr::null_mut() };
    let start = USED.fetch_add(len.next_multiple_of(64).min(BOOTSTRAP), Ordering::Relaxed);
    if align > 4096 || start.saturating_add(len) > BOOTSTRAP {
        return std::ptr::null_mut();
    }
    let base = MEMORY.0.get() as usize;
    (base + start).next_multiple_of(align) as *mut c_void
}

fn is_bootstrap(block: *mut c_void) -> bool {
    (block as usize).wrapping_sub(MEMORY.0.get() as usize) < BOOTSTRAP
}

/// Bytes from a bootstrap block to the end of the bootstrap memory: an upper bound of its size.
fn bootstrap_bytes(block: *mut c_void) -> usize {
    MEMORY.0.get() as usize + BOOTSTRAP - block as usize
}

/// A function of the next library.
struct Next {
    name: &'static CStr,
    /// Its address; 0 before the look-up, or if there is none.
    address: AtomicUsize,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicUsize::new(0) }
    }

    /// Its address; 0 during the look-up, or if there is none.
    #[inline]
    fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            0 => self.look_up(),
            found => found,
        }
    }

    #[cold]
    #[inline(never)]
    fn look_up(&self) -> usize {
        if LOOKING_UP.replace(true) {
            return 0;
        }
        // SAFETY: a name ended by zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        self.address.store(found, Ordering::Relaxed);
        LOOKING_UP.set(false);
        found
    }
}

static MALLOC: Next = Next::new(c"malloc");
static CALLOC: Next = Next::new(c"calloc");
static FREE: Next = Next::new(c"free");
static REALLOC: Next = Next::new(c"realloc");
static POSIX_MEMALIGN: Next = Next::new(c"posix_memalign");
static MEMALIGN: Next = Next::new(c"memalign");
static MALLOC_USABLE_SIZE: Next = Next::new(c"malloc_usable_size");
static MALLOC_TRIM: Next = Next::new(c"malloc_trim");

/// A function of the next allocator, with its type.
macro_rules! next {
    ($function:ident, $type:ty) => {
        // SAFETY: the C library's function of this name has this type; 0 is `None`.
        unsafe { transmute::<usize, Option<$type>>($function.address()) }
    };
}

pub fn malloc(size: usize) -> *mut c_void {
    match next!(MALLOC, unsafe extern "C" fn(usize) -> *mut c_void) {
        // SAFETY: any size may be asked for.
        Some(malloc) => unsafe { malloc(size) },
        None => bootstrap(size, 16),
    }
}

pub fn calloc(count: usize, size: usize) -> *mut c_void {
    match next!(CALLOC, unsafe extern "C" fn(usize, usize) -> *mut c_void) {
        // SAFETY: any size may be asked for.
        Some(calloc) => unsafe { calloc(count, size) },
        None => count.checked_mul(size).map_or(std::ptr::null_mut(), |bytes| bootstrap(bytes, 16)),
    }
}

/// # Safety
/// The block is null, or one of this module's that lives.
pub unsafe fn free(block: *mut c_void) {
    if is_bootstrap(block) {
        return;
    }
    if let Some(free) = next!(FREE, unsafe extern "C" fn(*mut c_void)) {
        // SAFETY: the caller's promise.
        unsafe { free(block) };
    }
}

/// # Safety
/// The block is null, or one of this module's that lives.
pub unsafe fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if is_bootstrap(block) {
        let new = malloc(size);
        if !new.is_null() {
            // SAFETY: both blocks are at least this long, and the new one is new.
            unsafe { new.copy_from_nonoverlapping(block, size.min(bootstrap_bytes(block))) };
        }
        return new;
    }
    match next!(REALLOC, unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void) {
        // SAFETY: the caller's promise.
        Some(realloc) => unsafe { realloc(block, size) },
        None => bootstrap(size, 16),
    }
}

pub fn posix_memalign(out: &mut *mut c_void, align: usize, size: usize) -> c_int {
    match next!(POSIX_MEMALIGN, unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int) {
        // SAFETY: the place is ours; any alignment and size may be asked for.
        Some(posix_memalign) => unsafe { posix_memalign(out, align, size) },
        None => {
            *out = bootstrap(size, align);
            if out.is_null() { libc::ENOMEM } else { 0 }
        }
    }
}

pub fn memalign(align: usize, size: usize) -> *mut c_void {
    match next!(MEMALIGN, unsafe extern "C" fn(usize, usize) -> *mut c_void) {
        // SAFETY: any alignment and size may be asked for.
        Some(memalign) => unsafe { memalign(align, size) },
        None => bootstrap(size, align.max(16)),
    }
}

/// # Safety
/// The block is null, or one of this module's that lives.
pub unsafe fn malloc_usable_size(block: *mut c_void) -> usize {
    if is_bootstrap(block) {
        return 0;
    }
    match next!(MALLOC_USABLE_SIZE, unsafe extern "C" fn(*mut c_void) -> usize) {
        // SAFETY: the caller's promise.
        Some(usable) => unsafe { usable(block) },
        None => 0,
    }
}

/// Returns free pages to the system, if the next allocator is libc's.
pub extern "C" fn trim() {
    if let Some(trim) = next!(MALLOC_TRIM, unsafe extern "C" fn(usize) -> c_int) {
        // SAFETY: any number of bytes may be left at the top.
        unsafe { trim(0) };
    }
}

/// Looks up all functions, so that none is looked up later: the look-up takes the dynamic linker's lock, which another thread may hold when
/// the program forks. None is called: a program that never allocates needs no heap.
pub fn look_up_all() {
    for function in
        [&MALLOC, &CALLOC, &FREE, &REALLOC, &POSIX_MEMALIGN, &MEMALIGN, &MALLOC_USABLE_SIZE, &MALLOC_TRIM]
    {
        function.address();
    }
}
