//! Errors of the engine: the machine fails, or the caller passes arguments that do not belong together.

use std::io;
use std::path::PathBuf;

use elbowroom_ir::trace::{Fingerprint, TraceError};
use elbowroom_ir::{ActionId, Bytes, OpId, TensorId};

/// Why a session cannot be opened, or why an iteration stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The arena cannot be reserved.
    #[error("cannot reserve an arena of {limit}: {source}")]
    Arena {
        /// Bytes requested.
        limit: Bytes,
        /// The operating system's error.
        source: io::Error,
    },
    /// The threads cannot be started.
    #[error("cannot start {threads} threads: {why}")]
    Threads {
        /// Number requested.
        threads: usize,
        /// The operating system's error.
        why: String,
    },
    /// The host tier failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The host tier failed during a copy of the plan.
    #[error("{action} could not copy {value}: {source}")]
    Copy {
        /// The copy.
        action: ActionId,
        /// The tensor.
        value: TensorId,
        /// The cause.
        source: HostError,
    },
    /// The host tier failed during a copy of a dynamic iteration.
    #[error("{value} could not be copied: {source}")]
    Swap {
        /// The tensor.
        value: TensorId,
        /// The cause.
        source: HostError,
    },
    /// A dynamic iteration reached an op that does not fit, and no tensor can be evicted or offloaded.
    #[error("dynamic execution: {op} does not fit within {limit}; {missing} more would have to be freed")]
    OutOfMemory {
        /// The op.
        op: OpId,
        /// Bytes that are missing; zero if the iteration was given up because it kept recomputing what it had evicted.
        missing: Bytes,
        /// Size of the arena.
        limit: Bytes,
    },
    /// A decider chose a tensor that was no candidate, or a removal that the candidate does not permit.
    #[error("the decider chose {value}, which cannot be removed that way")]
    IllegalVictim {
        /// The tensor.
        value: TensorId,
    },
    /// A graph has other persistent tensors than the session.
    #[error("{graph} has other parameters than the network in training: {what}")]
    ParameterMismatch {
        /// Name of the graph.
        graph: String,
        /// The first one that differs.
        what: String,
    },
    /// A plan was proved for another arena size.
    #[error("the plan is for an arena of {plan}, but the session's arena has {arena}")]
    ArenaMismatch {
        /// Memory of the plan's machine.
        plan: Bytes,
        /// Size of the session's arena.
        arena: Bytes,
    },
    /// The order was made for another graph's trace.
    #[error("the execution order does not belong to the trace of {0}")]
    ForeignOrder(String),
    /// The session has no plan.
    #[error("the session has no plan to run")]
    NoPlan,
    /// The graph was changed after a [`Builder`](elbowroom_graph::Builder) made it, so that kernels may not run it.
    #[error("{graph} cannot run: {why}")]
    Graph {
        /// Name of the graph.
        graph: String,
        /// The first fault.
        why: String,
    },
    /// The graph has no trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The plan was proved for another trace than the graph's.
    #[error("the plan is for trace {plan}, but the network has trace {graph}")]
    ForeignPlan {
        /// Fingerprint of the plan's trace.
        plan: Fingerprint,
        /// Fingerprint of the graph's trace.
        graph: Fingerprint,
    },
    /// The machine's alignment is too small: kernels need every tensor at a multiple of its element size.
    #[error("the plan's machine aligns buffers to {align} bytes, but kernels need a multiple of {needed}")]
    Alignment {
        /// Alignment of the machine that the plan was proved for.
        align: u64,
        /// Alignment that kernels need.
        needed: u64,
    },
    /// A buffer has another size than the persistent tensor.
    #[error("{what} has {expected} bytes, but {found} were given")]
    WrongSize {
        /// The tensor.
        what: String,
        /// Its size.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A stream panicked: a defect of this library.
    #[error("defect in the {stream} stream: {why}")]
    Defect {
        /// The stream.
        stream: &'static str,
        /// The panic's message.
        why: String,
    },
    /// An earlier iteration failed, so the arena holds an incomplete state.
    #[error("the session failed earlier and cannot continue; open a new one from the last checkpoint")]
    Broken,
}

/// Errors of the host tier.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The spill file cannot be created.
    #[error("cannot make a spill file in {}: {source}", folder.display())]
    Create {
        /// The folder.
        folder: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The disk has no space for the spill file.
    #[error("cannot reserve {bytes} ({} bytes) for spilling in {}: {source}", bytes.get(), folder.display())]
    Reserve {
        /// The folder.
        folder: PathBuf,
        /// Bytes requested.
        bytes: Bytes,
        /// The operating system's error.
        source: io::Error,
    },
    /// A write failed.
    #[error("cannot write {bytes} bytes to the spill file in {}: {source}", folder.display())]
    Write {
        /// The folder.
        folder: PathBuf,
        /// Bytes of the write.
        bytes: usize,
        /// The operating system's error.
        source: io::Error,
    },
    /// A read failed.
    #[error("cannot read {bytes} bytes from the spill file in {}: {source}", folder.display())]
    Read {
        /// The folder.
        folder: PathBuf,
        /// Bytes of the read.
        bytes: usize,
        /// The operating system's error.
        source: io::Error,
    },
    /// The host memory of the machine is too small.
    #[error("{needed} of host copies do not fit in the {limit} that may be reserved for them")]
    Limit {
        /// Bytes needed.
        needed: Bytes,
        /// The machine's host memory.
        limit: Bytes,
    },
    /// The memory cannot be reserved.
    #[error("cannot reserve {0} of host memory for offloaded tensors")]
    Memory(Bytes),
}
