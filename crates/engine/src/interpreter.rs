//! The oracle: runs iterations with the same kernels but without a plan. Every storage has memory of its own from its first write to its
//! last use, so no error of a placement can affect the result. A planned run must equal it bit for bit.

use std::sync::Mutex;

use elbowroom_graph::Graph;
use elbowroom_ir::{Id, OpId, StorageId, Table, TensorId};
use rayon::ThreadPool;

use crate::kernels::Context;
use crate::kernels::owned::{Memory, run_owned};

/// Why the interpreter rejects an iteration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InterpretError {
    /// The number of inputs differs from the graph's.
    #[error("the graph `{graph}` takes {expected} inputs, but {found} were given")]
    Inputs {
        /// Name of the graph.
        graph: String,
        /// Inputs of the graph.
        expected: usize,
        /// Inputs given.
        found: usize,
    },
    /// An input has another size than the graph's.
    #[error("the input `{input}` takes {expected} bytes, but {found} were given")]
    InputBytes {
        /// Name of the input.
        input: String,
        /// Its size, in bytes.
        expected: u64,
        /// Bytes given.
        found: usize,
    },
}

/// A graph with separate memory for each storage.
pub struct Interpreter<'g> {
    graph: &'g Graph,
    seed: u64,
    iteration: u64,
    rate: f32,
    memory: Vec<Memory>,
    /// The last op that accesses a storage; `None` for storages that outlive the iteration.
    last: Table<StorageId, Option<OpId>>,
    keep: bool,
}

impl<'g> Interpreter<'g> {
    /// Prepares the first iteration: parameters are initialized from the seed.
    pub fn new(graph: &'g Graph, seed: u64) -> Self {
        let mut last = Table::filled(graph.storages.len(), None);
        for (id, node) in graph.nodes.iter() {
            for &value in node.inputs.iter().chain(&node.outputs) {
                last[graph.tensors[value].storage] = Some(id);
            }
        }
        let mut memory = vec![Memory::default(); graph.storages.len()];
        for parameter in &graph.persistent {
            let storage = graph.tensors[parameter.begin].storage;
            last[storage] = None;
            let mut values = Memory::poisoned(graph.storages[storage].get() as usize);
            parameter.fill(seed, 0, values.floats_mut());
            memory[storage.index()] = values;
        }
        Self { graph, seed, iteration: 0, rate: 1.0, memory, last, keep: false }
    }

    /// Keeps all tensors until the next iteration, for [`value`](Self::value). By default their memory is freed after their last use.
    pub fn keep_all_tensors(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Runs one iteration and returns the bytes of every output.
    ///
    /// # Errors
    /// The number or the sizes of the inputs differ from the graph's.
    pub fn run(&mut self, pool: &ThreadPool, inputs: &[&[u8]]) -> Result<Vec<Vec<u8>>, InterpretError> {
        self.check(inputs)?;
        let graph = self.graph;
        let outputs: Vec<Mutex<Vec<u8>>> = graph.outputs.iter().map(|_| Mutex::default()).collect();
        let take = |slot: usize, bytes: &[u8]| {
            if let Ok(mut output) = outputs[slot].lock() {
                bytes.clone_into(&mut output);
            }
        };
        let context = Context {
            pool,
            seed: self.seed,
            iteration: self.iteration,
            rate: self.rate,
            inputs,
            outputs: &take,
        };
        for (id, node) in graph.nodes.iter() {
            let place = |value: &TensorId| graph.tensors[*value].storage.index();
            let reads: Vec<usize> = node.inputs.iter().map(place).collect();
            let writes: Vec<usize> = node.outputs.iter().map(place).collect();
            for &write in writes.iter().filter(|write| !reads.contains(write)) {
                self.memory[write] = Memory::poisoned(graph.storages[StorageId::new(write)].get() as usize);
            }
            run_owned(&node.kind, &mut self.memory, &reads, &writes, &context);
            for &touched in reads.iter().chain(&writes) {
                if !self.keep && self.last[StorageId::new(touched)] == Some(id) {
                    self.memory[touched] = Memory::default();
                }
            }
        }
        self.iteration += 1;
        Ok(outputs.into_iter().map(|output| output.into_inner().unwrap_or_default()).collect())
    }

    /// Sets the factor of every learning rate from the next iteration on; 1 at first.
    pub fn set_rate(&mut self, rate: f32) {
        self.rate = rate;
    }

    /// Iterations run so far.
    pub fn iteration(&self) -> u64 {
        self.iteration
    }

    /// The current contents of the persistent tensor at a position of [`Graph::persistent`].
    pub fn persistent(&self, position: usize) -> &[f32] {
        let value = self.graph.persistent[position].begin;
        self.memory[self.graph.tensors[value].storage.index()].floats()
    }

    /// The persistent tensor at a position of [`Graph::persistent`], for changes between iterations.
    pub fn persistent_mut(&mut self, position: usize) -> &mut [f32] {
        let value = self.graph.persistent[position].begin;
        self.memory[self.graph.tensors[value].storage.index()].floats_mut()
    }

    /// The bytes of a tensor's storage after the last iteration; empty if they were freed.
    pub fn value(&self, value: TensorId) -> &Memory {
        &self.memory[self.graph.tensors[value].storage.index()]
    }

    fn check(&self, inputs: &[&[u8]]) -> Result<(), InterpretError> {
        if inputs.len() != self.graph.inputs.len() {
            return Err(InterpretError::Inputs {
                graph: self.graph.name.clone(),
                expected: self.graph.inputs.len(),
                found: inputs.len(),
            });
        }
        for (input, given) in self.graph.inputs.iter().zip(inputs) {
            let expected = self.graph.tensors[input.tensor].bytes().get();
            if given.len() as u64 != expected {
                return Err(InterpretError::InputBytes {
                    input: input.name.clone(),
                    expected,
                    found: given.len(),
                });
            }
        }
        Ok(())
    }
}
