//! Durations of single ops, without a graph or a plan.

use std::time::Instant;

use elbowroom_graph::OpKind;
use elbowroom_graph::signature::Size;
use elbowroom_ir::{Bytes, Nanos};
use rayon::ThreadPool;

use crate::error::EngineError;
use crate::kernels::owned::{Memory, run_with};
use crate::kernels::{Context, workspace};

/// Times ops on operands of its own.
pub struct Stopwatch {
    pool: ThreadPool,
}

impl Stopwatch {
    /// A stopwatch with `threads` compute threads; at least one.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn new(threads: usize) -> Result<Self, EngineError> {
        let threads = threads.max(1);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        Ok(Self { pool: pool.map_err(|error| EngineError::Threads { threads, why: error.to_string() })? })
    }

    /// Bytes that [`time`](Self::time) needs for an op: operands, results and workspace.
    pub fn bytes(kind: &OpKind) -> Bytes {
        let signature = kind.signature();
        let inputs = signature.inputs.iter().map(|&(size, dtype)| (len(size) * dtype.size()) as u64);
        let outputs = signature.outputs.iter().map(|(shape, dtype)| shape.bytes(*dtype).get());
        Bytes(inputs.chain(outputs).sum()) + workspace(kind)
    }

    /// Runs an op twice on operands of zeros and returns the shorter duration. Zero for ops that exchange data with the host.
    pub fn time(&self, kind: &OpKind) -> Nanos {
        if matches!(kind, OpKind::Input { .. } | OpKind::Output { .. }) {
            return Nanos::ZERO;
        }
        let signature = kind.signature();
        let inputs = signature.inputs.iter().map(|&(size, dtype)| Memory::zeroed(len(size) * dtype.size()));
        let mut memory: Vec<Memory> = inputs.collect();
        let reads: Vec<usize> = (0..memory.len()).collect();
        let mutations = kind.mutations();
        let mut writes = Vec::new();
        for (output, (shape, dtype)) in signature.outputs.iter().enumerate() {
            match mutations.iter().find(|(_, mutated)| *mutated == output) {
                Some(&(input, _)) => writes.push(input),
                None => {
                    writes.push(memory.len());
                    memory.push(Memory::zeroed(shape.bytes(*dtype).get() as usize));
                }
            }
        }
        let outputs = |_: usize, _: &[u8]| ();
        let context =
            Context { pool: &self.pool, seed: 0, iteration: 0, rate: 1.0, inputs: &[], outputs: &outputs };
        let mut scratch = Memory::zeroed(workspace(kind).get() as usize);
        let mut run = || {
            let started = Instant::now();
            run_with(kind, &mut memory, &reads, &writes, &mut scratch, &context);
            Nanos::from(started.elapsed())
        };
        self.pool.install(|| run().min(run()))
    }
}

/// The smallest number of elements that the operand may have.
const fn len(size: Size) -> usize {
    match size {
        Size::Exactly(len) | Size::AtLeast(len) => len,
    }
}
