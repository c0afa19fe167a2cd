//! Moves the persistent tensors from where one plan has them to where the next one expects them.
//!
//! Arena and host tier are one space here, because a tensor that comes into the arena may have to wait for one that goes to the host, which
//! waits for the first. Tensors move in pieces. A piece is written to a target as soon as the target covers no other piece that has yet to
//! leave. If all pieces wait for others, some of them wait in a circle, and a piece of that circle moves into a buffer. Pieces are then taken
//! along the circle, so that a buffered piece soon finds its target free: the buffers contain a few pieces for every tensor, never a whole
//! large tensor.
//!
//! ```text
//! A to the host, B into the arena:  A1 A2 A3 | B1 B2 B3   buffer: B1
//!                                   -- A2 A3 | A1 B2 B3   buffer: B1
//!                                   B1 A2 A3 | A1 B2 B3   buffer: none
//! ```

use std::collections::BTreeMap;

use elbowroom_ir::Bytes;

use super::{PIECE, PersistentLocation};
use crate::arena::Extent;
use crate::device::Device;
use crate::error::EngineError;

/// Bytes that the buffers are meant to stay below; the size of a piece follows from it.
const BUFFER: usize = 8 << 20;
/// Pieces of one tensor that may be in buffers at the same time: its neighbours in a circle begin and end at other bytes.
pub(super) const BUFFERED: usize = 4;
/// Smaller pieces would take more time for the calls than for the bytes.
const SMALLEST_PIECE: usize = 64 << 10;

/// Where the bytes of a piece begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// At this offset of the arena.
    Device(usize),
    /// At this offset of the host tier.
    Host(usize),
}

impl Place {
    /// The place that many bytes later.
    fn skip(self, bytes: usize) -> Self {
        match self {
            Self::Device(offset) => Self::Device(offset + bytes),
            Self::Host(offset) => Self::Host(offset + bytes),
        }
    }
}

/// The current bytes of a piece.
#[derive(Debug)]
enum Source {
    Place(Place),
    Buffer(Vec<u8>),
}

/// A part of a tensor.
#[derive(Debug)]
struct Piece {
    len: usize,
    source: Source,
    /// Where it has yet to be written.
    targets: [Option<Place>; 2],
}

impl Piece {
    fn is_settled(&self) -> bool {
        self.targets.iter().all(Option::is_none)
    }
}

/// Index of a piece.
type Index = usize;

/// What a relocation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Relocated {
    /// Bytes written to the new locations.
    pub moved: Bytes,
    /// Most bytes in buffers at the same time.
    pub buffered: Bytes,
}

/// Copies tensors from their current locations to new ones. The host tier is large enough for both. Nothing else lies in the arena or in the tier.
pub(crate) fn relocate(
    device: &dyn Device,
    from: &[PersistentLocation],
    to: &[PersistentLocation],
) -> Result<Relocated, EngineError> {
    let moving = from.iter().zip(to).filter(|(from, to)| !targets(from, to).is_empty()).count();
    let piece = (BUFFER / BUFFERED / moving.max(1)).clamp(SMALLEST_PIECE, PIECE);
    relocate_in_pieces(device, from, to, piece)
}

/// As [`relocate`], with pieces of this many bytes at most.
pub(super) fn relocate_in_pieces(
    device: &dyn Device,
    from: &[PersistentLocation],
    to: &[PersistentLocation],
    piece: usize,
) -> Result<Relocated, EngineError> {
    let mut relocation = Relocation::new(device, from, to, piece);
    relocation.run()?;
    Ok(relocation.relocated)
}

/// Where a tensor has to be written.
fn targets(from: &PersistentLocation, to: &PersistentLocation) -> Vec<Place> {
    let offset = |location: &PersistentLocation| location.device.map(|extent| extent.offset);
    let device = offset(to).filter(|_| offset(from) != offset(to)).map(Place::Device);
    let host = to.host.filter(|_| from.host != to.host).map(Place::Host);
    // To the host first, so that its place in the arena becomes free.
    host.into_iter().chain(device).collect()
}

struct Relocation<'a> {
    device: &'a dyn Device,
    pieces: Vec<Piece>,
    /// The pieces that have yet to leave, by where they begin. Disjoint.
    leaving: BTreeMap<Place, Index>,
    /// For each piece: those that wait until it has left.
    waiters: Vec<Vec<Index>>,
    /// For each piece: the last one that was found in its way.
    in_the_way: Vec<Option<Index>>,
    /// Pieces to be tried.
    ready: Vec<Index>,
    /// The piece that was last found to have to wait.
    last: Option<Index>,
    /// All pieces before this one are settled.
    unsettled: Index,
    buffered: usize,
    /// For copies between arena and host tier.
    copy: Vec<u8>,
    relocated: Relocated,
}

impl<'a> Relocation<'a> {
    fn new(
        device: &'a dyn Device,
        from: &[PersistentLocation],
        to: &[PersistentLocation],
        longest: usize,
    ) -> Self {
        let (mut pieces, mut leaving) = (Vec::new(), BTreeMap::new());
        for (from, to) in from.iter().zip(to) {
            let targets = targets(from, to);
            let source = match (from.device, from.host) {
                (Some(extent), _) => Place::Device(extent.offset),
                (None, Some(offset)) => Place::Host(offset),
                (None, None) => continue,
            };
            // A tensor that stays where it is blocks no other one.
            let stays = match source {
                Place::Device(offset) => to.device.is_some_and(|extent| extent.offset == offset),
                Place::Host(offset) => to.host == Some(offset),
            };
            if targets.is_empty() {
                continue;
            }
            for skip in (0..from.bytes).step_by(longest) {
                let target = |index: usize| targets.get(index).map(|target| target.skip(skip));
                let source = source.skip(skip);
                if !stays {
                    leaving.insert(source, pieces.len());
                }
                let len = longest.min(from.bytes - skip);
                pieces.push(Piece { len, source: Source::Place(source), targets: [target(0), target(1)] });
            }
        }
        let count = pieces.len();
        Self {
            device,
            pieces,
            leaving,
            waiters: vec![Vec::new(); count],
            in_the_way: vec![None; count],
            ready: (0..count).rev().collect(),
            last: None,
            unsettled: 0,
            buffered: 0,
            copy: Vec::new(),
            relocated: Relocated::default(),
        }
    }

    fn run(&mut self) -> Result<(), EngineError> {
        loop {
            while let Some(piece) = self.ready.pop() {
                self.try_to_settle(piece)?;
            }
            match self.piece_to_buffer() {
                Some(piece) => self.buffer(piece)?,
                None => return Ok(()),
            }
        }
    }

    /// Writes a piece to those of its targets that are free.
    fn try_to_settle(&mut self, piece: Index) -> Result<(), EngineError> {
        for index in 0..2 {
            let Some(target) = self.pieces[piece].targets[index] else { continue };
            if let Some(other) = self.covered_by(piece, target) {
                self.waiters[other].push(piece);
                self.in_the_way[piece] = Some(other);
                self.last = Some(piece);
                continue;
            }
            self.write(piece, target)?;
            self.pieces[piece].targets[index] = None;
            self.vacate(piece, Source::Place(target));
        }
        Ok(())
    }

    /// Another piece that has yet to leave the bytes at which this piece is to lie.
    fn covered_by(&self, piece: Index, target: Place) -> Option<Index> {
        let end = target.skip(self.pieces[piece].len);
        // Every place of the arena is less than every place of the host tier.
        let before = self.leaving.range(..target).next_back();
        let before = before.filter(|&(start, &other)| start.skip(self.pieces[other].len) > target);
        before
            .into_iter()
            .chain(self.leaving.range(target..end))
            .map(|(_, &other)| other)
            .find(|&o| o != piece)
    }

    /// The bytes of a piece are elsewhere from now on.
    fn vacate(&mut self, piece: Index, now: Source) {
        match std::mem::replace(&mut self.pieces[piece].source, now) {
            Source::Place(place) => {
                if self.leaving.get(&place) == Some(&piece) {
                    self.leaving.remove(&place);
                    self.ready.append(&mut self.waiters[piece]);
                }
            }
            Source::Buffer(bytes) => self.buffered -= bytes.len(),
        }
    }

    fn write(&mut self, piece: Index, target: Place) -> Result<(), EngineError> {
        let Piece { len, source, .. } = &self.pieces[piece];
        let (device, len) = (self.device, *len);
        let at = |offset: usize| Extent { offset, len };
        let bytes = match (source, target) {
            (Source::Buffer(bytes), _) => bytes.as_slice(),
            (Source::Place(Place::Device(source)), Place::Device(target)) => {
                device.move_within(at(*source), target);
                self.relocated.moved += Bytes(len as u64);
                return Ok(());
            }
            (Source::Place(place), _) => {
                self.copy.resize(len, 0);
                read(device, *place, &mut self.copy)?;
                self.copy.as_slice()
            }
        };
        match target {
            Place::Device(target) => device.write(at(target), bytes),
            Place::Host(target) => device.host().store(target, bytes)?,
        }
        self.relocated.moved += Bytes(len as u64);
        Ok(())
    }

    /// A piece that others wait for, if any piece waits: one of a circle. Another one in the way of the piece that waits already for a buffered
    /// one comes first, since it completes what that one began.
    fn piece_to_buffer(&mut self) -> Option<Index> {
        let last = self.last.filter(|&piece| !self.pieces[piece].is_settled());
        if self.buffered > 0
            && let Some(other) = last.and_then(|piece| self.in_the_way[piece])
            && self.is_leaving(other)
        {
            return Some(other);
        }
        while self.pieces.get(self.unsettled).is_some_and(Piece::is_settled) {
            self.unsettled += 1;
        }
        let start = last.unwrap_or(self.unsettled);
        // Brent (1980): `slow` stays until `fast` has walked twice as far.
        let (mut slow, mut fast) = (start, self.in_the_way.get(start).copied().flatten()?);
        let (mut steps, mut power) = (1, 1);
        while slow != fast {
            if steps == power {
                (slow, steps, power) = (fast, 0, 2 * power);
            }
            // A piece that is in the way has yet to leave and waits itself, since none is ready.
            fast = self.in_the_way[fast]?;
            steps += 1;
        }
        Some(fast)
    }

    fn is_leaving(&self, piece: Index) -> bool {
        match &self.pieces[piece].source {
            Source::Place(place) => self.leaving.get(place) == Some(&piece),
            Source::Buffer(_) => false,
        }
    }

    fn buffer(&mut self, piece: Index) -> Result<(), EngineError> {
        let Source::Place(place) = self.pieces[piece].source else { return Ok(()) };
        let mut bytes = vec![0; self.pieces[piece].len];
        read(self.device, place, &mut bytes)?;
        self.buffered += bytes.len();
        self.relocated.buffered = self.relocated.buffered.max(Bytes(self.buffered as u64));
        self.vacate(piece, Source::Buffer(bytes));
        Ok(())
    }
}

fn read(device: &dyn Device, place: Place, bytes: &mut [u8]) -> Result<(), EngineError> {
    match place {
        Place::Device(offset) => device.read(Extent { offset, len: bytes.len() }, bytes),
        Place::Host(offset) => device.host().load(offset, bytes)?,
    }
    Ok(())
}
