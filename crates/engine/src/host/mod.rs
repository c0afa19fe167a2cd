//! The host tier: where offloaded tensors are stored, in memory or in a file. The link to it can be slowed down.
//!
//! A tier is a range of bytes, `0..size`. The offset of every tensor is fixed before the first iteration; the tier only stores and loads.
//! Both directions may be used at the same time, on ranges that do not overlap.

mod file;
pub(crate) mod link;
mod memory;
pub(crate) mod slots;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Channel;

pub use file::FileTier;
pub use memory::MemoryTier;

use crate::error::HostError;

/// Storage for offloaded tensors.
pub trait HostTier: Send + Sync {
    /// Writes bytes at an offset.
    fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), HostError>;
    /// Reads bytes from an offset.
    fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), HostError>;
    /// Copies of up to this many bytes finish before a sleeping thread would run; the compute stream makes them itself.
    fn inline_copy_limit(&self) -> usize {
        0
    }
}

/// The kind of tier that a session uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostPlace {
    /// Process memory.
    #[default]
    Memory,
    /// A file without a name in this folder: the system frees it when the process ends, even after a crash.
    Folder(PathBuf),
}

/// The tier and the link to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostOptions {
    /// Where offloaded tensors are stored.
    pub place: HostPlace,
    /// Slows the copies of iterations down to these channels, device → host and host → device; `None` means full speed. Initial values and
    /// checkpoints are not slowed down.
    pub link: Option<(Channel, Channel)>,
}

impl HostOptions {
    /// Chooses where offloaded tensors are stored.
    #[must_use]
    pub fn place(self, place: HostPlace) -> Self {
        Self { place, ..self }
    }

    /// Slows copies down to these channels, device → host and host → device.
    #[must_use]
    pub fn link(self, link: impl Into<Option<(Channel, Channel)>>) -> Self {
        Self { link: link.into(), ..self }
    }

    /// Opens a tier of `size` bytes. All of it is reserved now, so that a full disk is reported here and not during training.
    ///
    /// # Errors
    /// Memory or disk space cannot be reserved.
    pub fn open(&self, size: Bytes) -> Result<Box<dyn HostTier>, HostError> {
        match &self.place {
            HostPlace::Memory => Ok(Box::new(MemoryTier::new(size)?)),
            HostPlace::Folder(folder) => Ok(Box::new(FileTier::new(folder, size)?)),
        }
    }

    /// Measures the channels of this tier, device → host and host → device, on a small tier of the same kind. The faster of two passes
    /// counts in each direction, because the first one includes page faults. If [`link`](Self::link) is set, returns that.
    ///
    /// # Errors
    /// The tier cannot be opened, or a copy fails.
    pub fn measure(&self) -> Result<(Channel, Channel), HostError> {
        if let Some(link) = self.link {
            return Ok(link);
        }
        let tier = self.open(Bytes((PIECES * PIECE) as u64))?;
        // Copying one piece repeatedly would measure the innermost cache, where tensors do not lie.
        let mut values = vec![0x5A; PIECES * PIECE];
        let mut shortest = [Duration::MAX; 2];
        for _ in 0..2 {
            let started = Instant::now();
            for (at, piece) in values.chunks(PIECE).enumerate() {
                tier.store(at * PIECE, piece)?;
            }
            let stored = started.elapsed();
            for (at, piece) in values.chunks_mut(PIECE).enumerate() {
                tier.load(at * PIECE, piece)?;
            }
            shortest = [shortest[0].min(stored), shortest[1].min(started.elapsed() - stored)];
        }
        let [to_host, to_device] = shortest.map(|time| {
            let rate = (PIECES * PIECE) as u128 * 1_000_000_000 / time.as_nanos().max(1);
            Channel::with_rate(u64::try_from(rate).unwrap_or(u64::MAX).max(1))
        });
        Ok((to_host, to_device))
    }
}

/// Bytes per copy when a tier is measured: a common tensor size.
const PIECE: usize = 1 << 20;
/// Copies per pass.
const PIECES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_say_how_fast_they_are() {
        let folder = tempfile::tempdir().unwrap();
        for place in [HostPlace::Memory, HostPlace::Folder(folder.path().to_owned())] {
            let (to_host, to_device) = HostOptions::default().place(place).measure().unwrap();
            // Slower than any disk in use, and faster than any memory, would be wrong.
            for channel in [to_host, to_device] {
                assert!((100_000..1 << 50).contains(&channel.rate), "{channel:?}");
            }
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let slow = Channel::with_rate(1000);
        let options = HostOptions::default().place(HostPlace::Memory).link((slow, slow));
        assert_eq!(options.measure().unwrap(), (slow, slow));
        let missing = HostPlace::Folder(folder.path().join("missing"));
        assert!(HostOptions::default().place(missing).measure().is_err());
    }
}
