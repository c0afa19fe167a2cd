//! Iterations without a plan. Ops run one after another in a given order; when bytes are missing, something leaves: dropped, to be
//! computed again when it is read, or copied to the host, to be fetched then. What leaves and how, a [`Decider`] says; the engine knows
//! no rule. It knows what is safe, and asks about nothing else: so any decider gives the same bits as no limit at all.
//!
//! ```text
//! order ─▶ op ─▶ all it reads is there?   no: fetch it, or run its op again, after what that reads …
//!                room for what it makes?  no: free bytes lie scattered: move blocks together, if few are to be moved
//!                                             else: Decider::victim ─▶ drop or offload, and look again
//!                run
//! ```
//!
//! **What is safe.** A value is dropped only if its op may run again and can be given the same operands whenever the value could be
//! missing ([`Order::makes_again`](elbowroom_ir::order::Order::makes_again)): then it comes back with the same bits, for an op's bits depend on its operands, the seed and the
//! iteration alone. What an op reads that is about to run does not leave; what it will read once something else has been made again can
//! leave to the host, but is not dropped. Ops that write over something run once, at their place in the order.
//!
//! Nothing is ever outside the limit: values, results and workspaces are blocks of one arena, whose free bytes are moved together when
//! they lie scattered. Where that would move many times the bytes that are wanted, more leaves instead, until a thirty-second part of the
//! arena is free. Copies on the host stay within the machine's host memory, counted as plans count them: the sum of those that are
//! there. Where it is full, a copy of what is in the arena as well is given up first, and then values can only be dropped.

pub(crate) mod rehearsal;
mod room;
mod run;
pub(crate) mod slots;

use elbowroom_ir::order::Order;
use elbowroom_ir::planning::Freedom;
use elbowroom_ir::timeline::Traffic;
use elbowroom_ir::{Bytes, Nanos, OpId, TensorId};

pub(crate) use run::{Run, Setting};

/// How a value leaves the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// Without a copy: its op runs again when it is read.
    Drop,
    /// With a copy on the host, which is fetched when it is read.
    Offload,
}

/// A value that may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The value.
    pub value: TensorId,
    /// Bytes that it gives back.
    pub bytes: Bytes,
    /// Whether it may be dropped.
    pub may_drop: bool,
    /// Whether it may go to the host.
    pub may_offload: bool,
    /// Whether a copy of it is on the host already, so that nothing has to be copied there.
    pub kept: bool,
}

/// What happens while an iteration runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An op ran: it read what it reads and made what it makes.
    Ran {
        /// The op.
        op: OpId,
        /// How long it took.
        took: Nanos,
    },
    /// A value is there: it was there when the iteration began, was made, or was fetched.
    Arrived(TensorId),
    /// A value left, and comes back when it is read.
    Left(TensorId, How),
    /// A value left because nobody reads it any more, unless something else has to be made again.
    Done(TensorId),
}

/// Decides what leaves when bytes are missing.
pub trait Decider: Send {
    /// Hears what happens.
    fn note(&mut self, _event: Event) {}

    /// One of the candidates, and a way to leave that it has; `None` gives up. At least `missing` bytes are needed; it is asked again
    /// until they are there.
    fn victim(&mut self, missing: Bytes, candidates: &[Candidate]) -> Option<(TensorId, How)>;
}

/// How to run an iteration without a plan.
pub struct Improvise<'a> {
    /// The order in which ops run, for the trace of the session's graph.
    pub order: &'a Order,
    /// Which ways to leave there are.
    pub freedom: Freedom,
    /// Who decides.
    pub decider: &'a mut dyn Decider,
}

impl Improvise<'_> {
    /// The same for a shorter time.
    pub(crate) fn lent(&mut self) -> Improvise<'_> {
        Improvise { order: self.order, freedom: self.freedom, decider: &mut *self.decider }
    }
}

/// What an iteration without a plan was like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReactiveReport {
    /// Its length.
    pub iteration: Nanos,
    /// Largest end of any range handed to a kernel or a copy in this iteration.
    pub measured_peak: Bytes,
    /// Values dropped.
    pub dropped: usize,
    /// Values that left to the host, those included of which a copy was there already.
    pub offloaded: usize,
    /// Ops run again.
    pub recomputed: usize,
    /// Time spent in ops run again.
    pub recompute_time: Nanos,
    /// Bytes copied.
    pub traffic: Traffic,
    /// Most bytes that copies on the host took together.
    pub most_on_host: Bytes,
    /// Every copy to the host, with the time that it took.
    pub stores: Vec<(Bytes, Nanos)>,
    /// Every copy to the device, with the time that it took.
    pub loads: Vec<(Bytes, Nanos)>,
    /// How often blocks were moved together.
    pub compactions: usize,
    /// Bytes moved by that.
    pub moved: Bytes,
    /// Every run of an op, in order.
    pub ops: Vec<(OpId, Nanos)>,
}
