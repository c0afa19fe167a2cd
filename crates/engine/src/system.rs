//! What differs between operating systems. Everything here is advice: where a system does not take it, results are the same, and only more memory or
//! time is used, or a stray write is not found.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::mm::Advice;

/// Advice for pages that only some systems take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Make them huge where they are accessed.
    Huge,
    /// Commit them now.
    Commit,
    /// Return them to the system. They read as zeros afterwards.
    Return,
}

impl Pages {
    /// The system's name for it.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub const fn advice(self) -> Option<Advice> {
        Some(match self {
            Self::Huge => Advice::LinuxHugepage,
            Self::Commit => Advice::LinuxPopulateWrite,
            Self::Return => Advice::LinuxDontNeed,
        })
    }

    /// The system's name for it: it has none.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub const fn advice(self) -> Option<Advice> {
        None
    }
}

/// The offset of the first page of a range that is committed, in memory or in swap space. The range starts at a page.
///
/// # Errors
/// The system does not report it: only Linux does.
pub fn first_committed(address: usize, len: usize) -> io::Result<Option<usize>> {
    /// Bits 62 and 63 of an entry (`Documentation/admin-guide/mm/pagemap.rst`): swapped out, present.
    const COMMITTED: u64 = 3 << 62;
    const ENTRY: usize = 8;
    let page = rustix::param::page_size();
    let map = File::open("/proc/self/pagemap")?;
    let mut entries = vec![0; (len.div_ceil(page) * ENTRY).min(64 << 10)];
    let mut done = 0;
    while done < len {
        let count = ((len - done).div_ceil(page) * ENTRY).min(entries.len());
        let entries = &mut entries[..count];
        map.read_exact_at(entries, ((address + done) / page * ENTRY) as u64)?;
        let committed =
            |entry: &[u8]| entry.try_into().is_ok_and(|entry| u64::from_ne_bytes(entry) & COMMITTED != 0);
        if let Some(index) = entries.chunks_exact(ENTRY).position(committed) {
            return Ok(Some(done + index * page));
        }
        done += count / ENTRY * page;
    }
    Ok(None)
}

/// Makes later reads of a file, which has been synchronized, read the disk instead of the system's cache.
pub fn drop_cache(file: &File) {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    #[cfg(target_vendor = "apple")]
    let _ = rustix::fs::fcntl_nocache(file, true);
    let _ = file;
}

/// Sleeps as exactly as the system permits.
pub fn sleep(time: Duration) {
    // Linux may otherwise delay a wake-up by 50 µs in order to combine several. A refusal only makes the sleep less exact.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    std::thread::sleep(time);
}
