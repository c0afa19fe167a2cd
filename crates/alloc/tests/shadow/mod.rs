//! The oracle: an allocator's client that remembers every living block and every reserved range, and believes nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use elbowroom_alloc::{
    Answer, Backing, Directory, OutOfMemory, Release, Request, Sequence, Settings, Stats, Ticket,
};
use elbowroom_ir::search::Budget;

/// Ranges of nothing, reserved one behind the other. Knows which are reserved and which blocks live, and refuses to lend or take back
/// the bytes of a living one.
#[derive(Clone, Default)]
pub struct Imaginary {
    reserved: Rc<RefCell<BTreeMap<usize, usize>>>,
    next: Rc<RefCell<usize>>,
    living: Rc<RefCell<BTreeMap<usize, Block>>>,
    most: Rc<RefCell<usize>>,
}

impl Imaginary {
    /// Panics if a block lives in the range.
    fn assert_empty(&self, start: usize, bytes: usize) {
        let living = self.living.borrow();
        if let Some((_, block)) = living.range(..start + bytes).next_back() {
            assert!(block.address + block.bytes <= start, "{block:?} lives in {start}+{bytes}");
        }
    }
}

// SAFETY: ranges of nothing, which no code accesses; they never overlap.
unsafe impl Backing for Imaginary {
    fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory> {
        let mut next = self.next.borrow_mut();
        let base = (*next).max(1 << 40).next_multiple_of(align);
        *next = base + bytes + 4096;
        self.reserved.borrow_mut().insert(base, bytes);
        let all = self.reserved.borrow().values().sum::<usize>();
        let most = (*self.most.borrow()).max(all);
        *self.most.borrow_mut() = most;
        Ok(base)
    }
    unsafe fn release(&self, address: usize, bytes: usize, _: usize) {
        self.assert_empty(address, bytes);
        assert_eq!(
            self.reserved.borrow_mut().remove(&address),
            Some(bytes),
            "released what was not reserved"
        );
    }
    unsafe fn discard(&self, address: usize, bytes: usize) {
        self.assert_empty(address, bytes);
    }
}

/// A living block.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub address: usize,
    pub bytes: usize,
    ticket: Option<Ticket>,
}

pub struct Shadow {
    pub sequence: Sequence<Imaginary, Rc<Directory>>,
    pub directory: Rc<Directory>,
    /// Blocks whose frees were asked for.
    pub tickets: usize,
    backing: Imaginary,
    fallback: usize,
}

impl Shadow {
    pub fn new() -> Self {
        let budget = Budget::evaluations(if cfg!(miri) { 1 } else { 4 });
        Self::with(Settings::default().budget(budget))
    }

    pub fn with(settings: Settings) -> Self {
        let (directory, backing) = (Rc::new(Directory::new()), Imaginary::default());
        let sequence = Sequence::new(backing.clone(), directory.clone(), settings);
        Self { sequence, directory, tickets: 0, backing, fallback: 1 << 20 }
    }

    /// Asks, and checks what is given.
    pub fn request(&mut self, size: usize, align: usize) -> usize {
        let answer = self.sequence.request(Request::new(size, align));
        let (address, ticket) = match answer {
            Answer::Planned(address, ticket) => {
                assert_eq!(address % align, 0, "misaligned");
                let reserved = self.backing.reserved.borrow();
                let (&base, &bytes) =
                    reserved.range(..=address).next_back().expect("within a reserved range");
                assert!(address + size <= base + bytes, "past the end of its range");
                let capacity = self.directory.capacity(address);
                assert!(capacity.is_some_and(|capacity| capacity >= size), "{capacity:?} for {size}");
                (address, ticket)
            }
            Answer::Fallback(ticket) => {
                let address = self.fallback.next_multiple_of(align);
                self.fallback = address + size.max(1);
                (address, ticket)
            }
        };
        self.tickets += usize::from(ticket.is_some());
        let block = Block { address, bytes: size.max(1), ticket };
        let mut living = self.backing.living.borrow_mut();
        if let Some((_, before)) = living.range(..address + block.bytes).next_back() {
            assert!(before.address + before.bytes <= address, "{block:?} overlaps {before:?}");
        }
        living.insert(address, block);
        address
    }

    /// Gives back a living block, if one begins there.
    pub fn free(&mut self, address: usize) {
        let Some(block) = self.backing.living.borrow_mut().remove(&address) else { return };
        let release = self.release(address);
        match release {
            Release::Freed => {}
            Release::Elsewhere => assert!(address < 1 << 40, "a planned block was not found"),
            Release::Nothing => panic!("a living block was not known"),
        }
        if let Some(ticket) = block.ticket {
            self.sequence.freed(ticket, self.sequence.now());
        }
        assert_ne!(self.release(address), Release::Freed, "freed twice, and nobody noticed");
    }

    /// Releases an address in the directory, whatever it is.
    pub fn release(&self, address: usize) -> Release {
        // SAFETY: blocks of imaginary memory have no contents.
        unsafe { self.directory.release(address) }
    }

    pub fn living(&self) -> Vec<Block> {
        self.backing.living.borrow().values().copied().collect()
    }

    pub fn stats(&self) -> Stats {
        self.sequence.stats()
    }

    /// From now on, the most bytes that are reserved count.
    pub fn forget_most_reserved(&self) {
        *self.backing.most.borrow_mut() = self.backing.reserved.borrow().values().sum();
    }

    /// The most bytes that were reserved at one time.
    pub fn most_reserved_bytes(&self) -> usize {
        *self.backing.most.borrow()
    }

    /// Ranges reserved now.
    pub fn reserved(&self) -> usize {
        self.backing.reserved.borrow().len()
    }
}

/// One request of a pattern: size, and after how many requests it is freed.
pub type ReplayStep = (usize, usize);

/// Runs a pattern over and over; a block is freed just before the request that is `span` requests after its own.
pub struct Program {
    pub pattern: Vec<ReplayStep>,
    due: BTreeMap<usize, Vec<usize>>,
    clock: usize,
}

impl Program {
    pub fn new(pattern: Vec<ReplayStep>) -> Self {
        Self { pattern, due: BTreeMap::new(), clock: 0 }
    }

    pub fn request(&mut self, shadow: &mut Shadow, size: usize, span: usize) {
        for address in self.due.remove(&self.clock).unwrap_or_default() {
            shadow.free(address);
        }
        let address = shadow.request(size, 64);
        self.due.entry(self.clock + span.max(1)).or_default().push(address);
        self.clock += 1;
    }

    pub fn iterate(&mut self, shadow: &mut Shadow) {
        for (size, span) in self.pattern.clone() {
            self.request(shadow, size, span);
        }
    }
}

/// A pattern shaped like training: activations that live until their backward, gradients and scratch that are short.
pub fn training(layers: usize) -> Vec<ReplayStep> {
    let forward = (0..layers).flat_map(|i| {
        let size = 4096 * (1 + i * 7 % 11) + 64 * i;
        [(size, 2 * layers + 3 * (layers - i) - i), (size / 3 + 1, 1)]
    });
    let backward = (0..layers).flat_map(|i| {
        let size = 4096 * (1 + (layers - 1 - i) * 7 % 11) + 64 * i;
        [(size, 3), (size / 2 + 5, 1), (size + 7, 2)]
    });
    forward.chain(backward).collect()
}
