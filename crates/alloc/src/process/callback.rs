//! A function that is set once, without the code of `OnceLock`: a process that never calls it need not load that.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

type Function = extern "C" fn();

/// A function, or none.
#[derive(Debug)]
pub(super) struct Callback(AtomicPtr<()>);

impl Callback {
    pub const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// Sets the function, unless there is one.
    pub fn set(&self, function: Function) {
        // The first one stays.
        let _ =
            self.0.compare_exchange(null_mut(), function as *mut (), Ordering::Release, Ordering::Relaxed);
    }

    pub fn get(&self) -> Option<Function> {
        let function = self.0.load(Ordering::Acquire);
        // SAFETY: null is `None`; anything else was a function of this type in `set`.
        unsafe { std::mem::transmute::<*mut (), Option<Function>>(function) }
    }
}
