//! Iterations without a plan, with one heap buffer per storage: the baseline for the cost of memory management. Buffers are allocated once
//! and kept, so that only kernels are timed. (The interpreter frees and poisons memory during an iteration, because its purpose is to find
//! errors.)

use std::sync::{Arc, Mutex, PoisonError};

use elbowroom_graph::Graph;
use elbowroom_ir::{Id, TensorId};
use rayon::ThreadPool;

use super::owned::Memory;
use super::{Context, Operands, graph_fault, run, workspace};

/// A graph with a buffer for each storage.
pub struct HeapRun {
    graph: Arc<Graph>,
    memory: Vec<Memory>,
    scratch: Memory,
    pool: Arc<ThreadPool>,
    seed: u64,
}

impl HeapRun {
    /// Prepares the first iteration: parameters are initialized from the seed.
    ///
    /// # Panics
    /// The graph was changed after a [`Builder`](elbowroom_graph::Builder) made it, so that kernels may not run it.
    pub fn new(graph: Arc<Graph>, pool: Arc<ThreadPool>, seed: u64) -> Self {
        let fault = graph_fault(&graph);
        assert!(fault.is_none(), "{}", fault.unwrap_or_default());
        let mut memory: Vec<Memory> =
            graph.storages.values().map(|bytes| Memory::poisoned(bytes.get() as usize)).collect();
        let place = |value: &TensorId| graph.tensors[*value].storage;
        for parameter in &graph.persistent {
            let storage = place(&parameter.begin);
            parameter.fill(seed, 0, memory[storage.index()].floats_mut());
        }
        let mut scratch = 0;
        for node in graph.nodes.values() {
            scratch = scratch.max(workspace(&node.kind).get() as usize);
        }
        Self { graph, memory, scratch: Memory::poisoned(scratch), pool, seed }
    }

    /// Runs one iteration on a batch for every input slot and returns the bytes of every output.
    ///
    /// # Panics
    /// A batch is missing or has another size than its slot.
    pub fn run(&mut self, iteration: u64, inputs: &[&[u8]]) -> Vec<Vec<u8>> {
        let outputs: Vec<Mutex<Vec<u8>>> = self.graph.outputs.iter().map(|_| Mutex::default()).collect();
        let take = |slot: usize, bytes: &[u8]| {
            bytes.clone_into(&mut outputs[slot].lock().unwrap_or_else(PoisonError::into_inner));
        };
        let pool = Arc::clone(&self.pool);
        let context = Context { pool: &pool, seed: self.seed, iteration, rate: 1.0, inputs, outputs: &take };
        // As on the compute stream: one switch of threads for all ops.
        pool.install(|| self.operations(&context));
        outputs.into_iter().map(|output| output.into_inner().unwrap_or_default()).collect()
    }

    fn operations(&mut self, context: &Context<'_>) {
        let graph = Arc::clone(&self.graph);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for node in graph.nodes.values() {
            let at = |memory: &mut Memory| std::ptr::from_mut(memory.bytes_mut());
            reads.clear();
            writes.clear();
            for value in &node.inputs {
                let storage = graph.tensors[*value].storage.index();
                reads.push(at(&mut self.memory[storage]).cast_const());
            }
            for value in &node.outputs {
                let storage = graph.tensors[*value].storage.index();
                writes.push(at(&mut self.memory[storage]));
            }
            let operands = Operands {
                reads: &reads,
                writes: &writes,
                workspace: at(&mut self.scratch),
                factors_are_bf16: false,
            };
            // SAFETY: the memory is borrowed for this call alone and aligned; results share memory with operands only where their kind
            // permits it, as `new` checked; kernels check the sizes.
            unsafe { run(&node.kind, &operands, context) };
        }
    }

    /// The current contents of the persistent tensor at a position of [`Graph::persistent`].
    pub fn persistent(&self, position: usize) -> &[f32] {
        let value = self.graph.persistent[position].begin;
        self.memory[self.graph.tensors[value].storage.index()].floats()
    }
}
