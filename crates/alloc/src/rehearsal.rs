//! Iterations without their memory: how requests are answered, and how long that takes.

use std::cell::Cell;
use std::rc::Rc;

use crate::directory::Directory;
use crate::memory::{Backing, OutOfMemory};
use crate::request::Request;
use crate::sequence::{Answer, Sequence, Settings};
use crate::stats::Stats;

/// Ranges of nothing, one behind another.
#[derive(Debug)]
struct Imaginary {
    next: Cell<usize>,
}

// SAFETY: no range shares an address with another. Addresses stay in this file and in answers, which only safe code sees: no byte is accessed.
unsafe impl Backing for Imaginary {
    fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory> {
        let end = |address: usize| Some((address, address.checked_add(bytes)?));
        let range = self.next.get().checked_next_multiple_of(align).and_then(end);
        let (address, end) =
            range.ok_or_else(|| OutOfMemory { bytes, why: "no addresses are left".to_owned() })?;
        self.next.set(end);
        Ok(address)
    }

    unsafe fn release(&self, _: usize, _: usize, _: usize) {}
}

/// A [`Sequence`] whose blocks have no bytes: for programs that ask what a plan would save, not for memory. Freeing is therefore safe.
///
/// ```
/// use elbowroom_alloc::{Rehearsal, Request, Settings};
///
/// let mut rehearsal = Rehearsal::new(Settings::default());
/// for _ in 0..3 {
///     rehearsal.mark_iteration();
///     let blocks: Vec<_> = (1..9).map(|i| rehearsal.request(Request::new(i << 30, 512))).collect();
///     blocks.into_iter().for_each(|block| rehearsal.free(block));
/// }
/// assert_eq!(rehearsal.stats().peak_live, 36 << 30);
/// ```
pub struct Rehearsal {
    directory: Rc<Directory>,
    sequence: Sequence<Imaginary, Rc<Directory>>,
}

impl Rehearsal {
    /// No requests yet.
    pub fn new(settings: Settings) -> Self {
        let directory = Rc::new(Directory::new());
        let backing = Imaginary { next: Cell::new(1 << 40) };
        Self { sequence: Sequence::new(backing, directory.clone(), settings), directory }
    }

    /// As [`Sequence::mark_iteration`].
    pub fn mark_iteration(&mut self) {
        self.sequence.mark_iteration();
    }

    /// As [`Sequence::request`].
    pub fn request(&mut self, request: Request) -> Answer {
        self.sequence.request(request)
    }

    /// Frees what a request was given. What is free already stays so.
    pub fn free(&mut self, answer: Answer) {
        let ticket = match answer {
            Answer::Planned(address, ticket) => {
                // SAFETY: no code uses bytes of imaginary memory.
                let _ = unsafe { self.directory.release(address) };
                ticket
            }
            Answer::Fallback(ticket) => ticket,
        };
        if let Some(ticket) = ticket {
            self.sequence.freed(ticket, self.sequence.now());
        }
    }

    /// As [`Sequence::stats`].
    pub fn stats(&self) -> Stats {
        self.sequence.stats()
    }
}
