//! Independent tasks on the caller's thread pool, how work is cut into them, and the pointers that they share.

use std::ops::Range;

use rayon::prelude::*;

/// Elements of one task: 64 KiB of floats.
pub const CHUNK: usize = 1 << 14;

/// Columns of one task of sums over rows: their sums stay in registers.
pub const COLUMNS: usize = 64;

/// Runs `task(0)`, …, `task(count − 1)`, in any order and at the same time. Tasks must not depend on each other and must cut the work by
/// its extents alone: then the result does not depend on the number of threads.
pub fn each(pool: &rayon::ThreadPool, count: usize, task: impl Fn(usize) + Sync + Send) {
    if count <= 1 || pool.current_num_threads() <= 1 {
        (0..count).for_each(task);
    } else {
        pool.install(|| (0..count).into_par_iter().with_max_len(1).for_each(task));
    }
}

/// [`each`] on a pool, if there is one, or on this thread.
pub fn each_with(pool: Option<&rayon::ThreadPool>, count: usize, task: impl Fn(usize) + Sync + Send) {
    match pool {
        Some(pool) => each(pool, count, task),
        None => (0..count).for_each(task),
    }
}

/// Cuts `len` elements into tasks: `task(start, len)`.
pub fn chunks(pool: &rayon::ThreadPool, len: usize, task: impl Fn(usize, usize) + Sync + Send) {
    each(pool, len.div_ceil(CHUNK), |chunk| {
        let start = chunk * CHUNK;
        task(start, CHUNK.min(len - start));
    });
}

/// Cuts `outer` rows of `width` elements into tasks over ranges of rows.
pub fn over_rows(
    pool: &rayon::ThreadPool,
    outer: usize,
    width: usize,
    task: impl Fn(Range<usize>) + Sync + Send,
) {
    let rows = CHUNK.div_ceil(width.max(1));
    each(pool, outer.div_ceil(rows), |chunk| task(chunk * rows..((chunk + 1) * rows).min(outer)));
}

/// Cuts `width` columns into tasks of at most [`COLUMNS`]: `task(start, columns)`. A task that owns columns sums over all rows, in order.
pub fn over_columns(pool: &rayon::ThreadPool, width: usize, task: impl Fn(usize, usize) + Sync + Send) {
    each(pool, width.div_ceil(COLUMNS), |part| {
        let start = part * COLUMNS;
        task(start, COLUMNS.min(width - start));
    });
}

/// A pointer that tasks may share because each of them accesses bytes of its own.
pub struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: the pointer alone is harmless; callers of `add`, `slice` and `view` promise that their accesses do not conflict.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Shares the memory that starts here.
    pub fn new(start: *mut T) -> Self {
        Self(start)
    }

    /// The address `offset` elements further on.
    ///
    /// # Safety
    /// It lies in the same allocation.
    pub unsafe fn add(self, offset: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
    }

    /// The elements `offset .. offset + len`.
    ///
    /// # Safety
    /// They lie in the same allocation, and while the slice lives nothing else reads or writes them.
    pub unsafe fn slice<'a>(self, offset: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(offset), len) }
    }

    /// The elements `offset .. offset + len`, to be read.
    ///
    /// # Safety
    /// They lie in the same allocation, and while the slice lives nothing writes them.
    pub unsafe fn view<'a>(self, offset: usize, len: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0.add(offset), len) }
    }
}
