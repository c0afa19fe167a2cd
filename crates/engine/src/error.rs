//! What can go wrong when a plan runs: the machine fails, or a caller hands over what does not belong together.

use std::io;
use std::path::PathBuf;

use elbowroom_ir::trace::{Fingerprint, TraceError};
use elbowroom_ir::{ActionId, Bytes, OpId, TensorId};

/// Why a session cannot be opened, or why an iteration stopped.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The arena cannot be reserved.
    #[error("cannot reserve an arena of {limit}: {source}")]
    Arena {
        /// Bytes asked for.
        limit: Bytes,
        /// What the system said.
        source: io::Error,
    },
    /// The threads cannot be started.
    #[error("cannot start {threads} threads: {why}")]
    Threads {
        /// Number asked for.
        threads: usize,
        /// What the system said.
        why: String,
    },
    /// The host tier failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The host tier failed while a value was copied.
    #[error("{action} could not copy {value}: {source}")]
    Copy {
        /// The copy.
        action: ActionId,
        /// The value.
        value: TensorId,
        /// What went wrong.
        source: HostError,
    },
    /// The host tier failed while a value was copied on demand.
    #[error("{value} could not be copied: {source}")]
    Fetch {
        /// The value.
        value: TensorId,
        /// What went wrong.
        source: HostError,
    },
    /// An iteration without a plan came to an op for which nothing more can leave.
    #[error("without a plan, {op} cannot run within {limit}: {missing} more would have to leave")]
    NoRoom {
        /// The op.
        op: OpId,
        /// Bytes that are missing; zero where too much would have to be made again and again.
        missing: Bytes,
        /// Bytes of arena.
        limit: Bytes,
    },
    /// A decider named a value that may not leave, or not that way.
    #[error("the decider sent {value} away, which was no candidate for that")]
    Victim {
        /// The value.
        value: TensorId,
    },
    /// A graph has other persistent values than the one before it.
    #[error("{graph} has other parameters than the network in training: {what}")]
    OtherParameters {
        /// Name of the graph.
        graph: String,
        /// The first that differs.
        what: String,
    },
    /// A plan was proved for an arena of another size.
    #[error("the plan is for an arena of {plan}, but this one has {arena}")]
    OtherArena {
        /// What the plan's machine has.
        plan: Bytes,
        /// What there is.
        arena: Bytes,
    },
    /// An order for another graph's ops.
    #[error("the order is not one of the ops of {0}")]
    ForeignOrder(String),
    /// There is no plan to run.
    #[error("no plan was given for this iteration")]
    NoPlan,
    /// The graph has no trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The plan was proved for another trace than the graph's.
    #[error("the plan belongs to trace {plan}, the network to trace {graph}")]
    ForeignPlan {
        /// Fingerprint of the plan's trace.
        plan: Fingerprint,
        /// Fingerprint of the graph's trace.
        graph: Fingerprint,
    },
    /// Kernels want every value at an address that is a multiple of its elements' size.
    #[error("the plan's machine aligns buffers to {align} bytes, but kernels need a multiple of {needed}")]
    Alignment {
        /// Alignment of the machine that the plan was proved for.
        align: u64,
        /// What kernels need.
        needed: u64,
    },
    /// Bytes for a value of another size.
    #[error("{what} has {expected} bytes, but {found} were given")]
    WrongSize {
        /// The value.
        what: String,
        /// Its size.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A lane panicked: a defect of ours.
    #[error("{lane} lane stopped by a defect: {why}")]
    Defect {
        /// The lane.
        lane: &'static str,
        /// The panic's message.
        why: String,
    },
    /// An earlier iteration failed, so the values in the arena are no longer those of any iteration.
    #[error("this session failed before and cannot go on; open a new one from the last checkpoint")]
    Broken,
}

/// Why bytes cannot be kept on the host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No spill file can be made in the folder.
    #[error("cannot make a spill file in {}: {source}", folder.display())]
    Create {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk has no room for the spill file.
    #[error("cannot reserve {bytes} ({} bytes) for spilling in {}: {source}", bytes.get(), folder.display())]
    Reserve {
        /// The folder.
        folder: PathBuf,
        /// Bytes asked for.
        bytes: Bytes,
        /// What the system said.
        source: io::Error,
    },
    /// A write failed.
    #[error("cannot write {bytes} bytes to the spill file in {}: {source}", folder.display())]
    Write {
        /// The folder.
        folder: PathBuf,
        /// Bytes of the write.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
    /// A read failed.
    #[error("cannot read {bytes} bytes from the spill file in {}: {source}", folder.display())]
    Read {
        /// The folder.
        folder: PathBuf,
        /// Bytes of the read.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The memory cannot be had.
    #[error("cannot reserve {0} of host memory for offloaded values")]
    Memory(Bytes),
}
