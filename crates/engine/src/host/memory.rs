//! A host tier in process memory.

use std::sync::{Mutex, PoisonError};

use elbowroom_ir::Bytes;

use super::HostTier;
use crate::error::HostError;

/// Bytes under one lock. Copies in opposite directions share a chunk only if their tensors are neighbours, so they rarely wait for each
/// other, and locking costs nothing compared with copying a chunk.
const CHUNK: usize = 1 << 20;
/// Waking a thread takes about 8 µs of the waker's time on a virtual machine, and the thread runs after 30 µs. This many bytes are copied
/// in 8 µs.
const INLINE_COPY_LIMIT: usize = 128 << 10;

/// Process memory, in chunks with a lock each. Chunks that are never touched occupy no physical memory, because the allocator maps zero
/// pages.
#[derive(Debug)]
pub struct MemoryTier {
    chunks: Vec<Mutex<Vec<u8>>>,
}

impl MemoryTier {
    /// Reserves a tier of `size` bytes.
    ///
    /// # Errors
    /// The memory cannot be reserved.
    pub fn new(size: Bytes) -> Result<Self, HostError> {
        let mut tier = Self { chunks: Vec::new() };
        tier.resize(size)?;
        Ok(tier)
    }

    /// Calls `visit` for every part of the range that lies in one chunk, with its position in the range and its bytes.
    fn stretches(&self, offset: usize, len: usize, mut visit: impl FnMut(std::ops::Range<usize>, &mut [u8])) {
        let mut done = 0;
        while done < len {
            let (chunk, start) = ((offset + done) / CHUNK, (offset + done) % CHUNK);
            let count = (CHUNK - start).min(len - done);
            // A panic under the lock leaves bytes, which cannot be inconsistent.
            let mut chunk = self.chunks[chunk].lock().unwrap_or_else(PoisonError::into_inner);
            visit(done..done + count, &mut chunk[start..start + count]);
            done += count;
        }
    }
}

impl HostTier for MemoryTier {
    fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), HostError> {
        self.stretches(offset, bytes.len(), |place, stretch| stretch.copy_from_slice(&bytes[place]));
        Ok(())
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), HostError> {
        self.stretches(offset, bytes.len(), |place, stretch| bytes[place].copy_from_slice(stretch));
        Ok(())
    }

    fn resize(&mut self, size: Bytes) -> Result<(), HostError> {
        let failed = || HostError::Memory(size);
        let bytes = usize::try_from(size.get()).map_err(|_| failed())?;
        let (before, count) = (self.chunks.len(), bytes.div_ceil(CHUNK));
        self.chunks.try_reserve_exact(count.saturating_sub(before)).map_err(|_| failed())?;
        self.chunks.truncate(count);
        self.chunks.shrink_to_fit();
        let len = |chunk: usize| CHUNK.min(bytes - chunk * CHUNK);
        // The last chunk may have been shorter, or have to be.
        if let Some((chunk, last)) = self.chunks.iter_mut().enumerate().last() {
            let last = last.get_mut().unwrap_or_else(PoisonError::into_inner);
            last.resize(len(chunk), 0);
            last.shrink_to_fit();
        }
        self.chunks.extend((before..count).map(|chunk| Mutex::new(vec![0; len(chunk)])));
        Ok(())
    }

    fn inline_copy_limit(&self) -> usize {
        INLINE_COPY_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_across_chunks() {
        let tier = MemoryTier::new(Bytes(3 * CHUNK as u64 + 17)).unwrap();
        let value: Vec<u8> = (0..2 * CHUNK + 100).map(|i| (i % 251) as u8).collect();
        let mut back = vec![0; value.len()];
        for offset in [0, 1, CHUNK - 100, CHUNK - 83] {
            tier.store(offset, &value).unwrap();
            back.fill(0);
            tier.load(offset, &mut back).unwrap();
            assert!(back == value, "at {offset}");
        }
        tier.store(3 * CHUNK, &value[..17]).unwrap();
        tier.load(3 * CHUNK, &mut back[..17]).unwrap();
        assert_eq!(back[..17], value[..17]);
    }
}
