//! Persistent values between iterations: read from and written to their homes piece by piece, so that no copy of one is ever whole.

use std::sync::{Arc, PoisonError};

use elbowroom_graph::Graph;
use elbowroom_ir::schedule::Lane;
use rayon::prelude::*;

use crate::error::EngineError;
use crate::lanes::Shared;
use crate::program::PersistentHome;

/// Bytes moved at once.
pub(crate) const PIECE: usize = 1 << 20;
/// Initial values drawn by one task; a multiple of four, as `Init::fill` wants.
const DRAWN: usize = 1 << 14;

/// The persistent values of a graph in their homes. Used between iterations only.
pub(crate) struct Persistent {
    shared: Arc<Shared>,
    /// In the graph's order.
    homes: Vec<PersistentHome>,
}

impl Persistent {
    pub fn new(shared: Arc<Shared>, homes: Vec<PersistentHome>) -> Self {
        Self { shared, homes }
    }

    /// Size of a value.
    pub fn bytes(&self, index: usize) -> usize {
        self.homes[index].bytes
    }

    /// Writes the values that a training begins with. The threads of the pool must be free.
    pub fn initialize(&self, graph: &Graph, seed: u64, pool: &rayon::ThreadPool) -> Result<(), EngineError> {
        let (mut values, mut bytes) = (vec![0f32; PIECE / 4], vec![0; PIECE]);
        for (index, parameter) in graph.persistent.iter().enumerate() {
            for skip in (0..self.bytes(index)).step_by(PIECE) {
                let count = PIECE.min(self.bytes(index) - skip) / 4;
                let values = &mut values[..count];
                pool.install(|| {
                    values.par_chunks_mut(DRAWN).enumerate().for_each(|(chunk, values)| {
                        parameter.init.fill(seed, skip / 4 + chunk * DRAWN, values);
                    });
                });
                for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(4)) {
                    bytes.copy_from_slice(&value.to_ne_bytes());
                }
                self.write(index, skip, &bytes[..4 * count])?;
            }
        }
        Ok(())
    }

    /// Reads a part of a value, from `skip` on, from one of its homes.
    pub fn read(&self, index: usize, skip: usize, bytes: &mut [u8]) -> Result<(), EngineError> {
        let home = &self.homes[index];
        if let Some(extent) = home.device {
            self.shared.device.read(extent.part(skip, bytes.len()), bytes);
        } else if let Some(offset) = self.host_offset(home) {
            self.shared.device.host().load(offset + skip, bytes)?;
        }
        Ok(())
    }

    /// Writes a part of a value, from `skip` on, to all of its homes.
    pub fn write(&self, index: usize, skip: usize, bytes: &[u8]) -> Result<(), EngineError> {
        let home = &self.homes[index];
        if let Some(extent) = home.device {
            let part = extent.part(skip, bytes.len());
            self.shared.recording.touch(Lane::ToDevice, part.end());
            self.shared.device.write(part, bytes);
        }
        if let Some(offset) = self.host_offset(home) {
            self.shared.device.host().store(offset + skip, bytes)?;
        }
        Ok(())
    }

    fn host_offset(&self, home: &PersistentHome) -> Option<usize> {
        let copies = self.shared.copies.read().unwrap_or_else(PoisonError::into_inner);
        home.host.map(|copy| copies.offsets[copy])
    }
}
