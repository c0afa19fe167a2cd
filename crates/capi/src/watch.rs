//! A thread that returns the memory of idle arenas to the system. It runs only while there are arenas to watch.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use elbowroom_alloc::PROCESS;

/// An arena from which nothing is served for one to two of these intervals is idle.
const INTERVAL: libc::timespec = libc::timespec { tv_sec: 1, tv_nsec: 0 };

/// Room for the C library's own needs; the loop needs little.
const STACK: usize = 256 << 10;

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    loop {
        // SAFETY: reads a constant.
        unsafe { libc::nanosleep(&INTERVAL, null_mut()) };
        if !PROCESS.discard_idle() {
            return null_mut();
        }
    }
}

/// Starts the thread. It takes no signals of the program. Without a thread, idle memory stays with the process.
pub extern "C" fn start() {
    // SAFETY: plain calls of the C library with variables that live, initialized before use.
    unsafe {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        libc::sigfillset(all.as_mut_ptr());
        let mut attributes = MaybeUninit::uninit();
        if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
            return;
        }
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        // The new thread inherits the mask.
        if libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0 {
            let mut thread = MaybeUninit::uninit();
            libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, null_mut());
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
        }
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
}
