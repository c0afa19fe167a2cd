//! The host tier: where offloaded tensors are stored, in memory or in a file. The link to it can be slowed down.
//!
//! A tier is a range of bytes, `0..size`. The offset of every tensor is fixed before the first iteration; the tier only stores and loads.
//! Both directions may be used at the same time, on ranges that do not overlap.

mod file;
pub(crate) mod link;
mod memory;
pub(crate) mod slots;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Channel;
use rustix::io::Errno;

pub use file::FileTier;
pub use memory::MemoryTier;

use crate::error::HostError;

/// Storage for offloaded tensors.
pub trait HostTier: Send + Sync {
    /// Writes bytes at an offset.
    fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), HostError>;
    /// Reads bytes from an offset.
    fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), HostError>;
    /// Changes the size. Bytes below both sizes keep their contents. What is added is reserved now.
    ///
    /// # Errors
    /// Memory or disk space cannot be reserved; the tier has its old size then.
    fn resize(&mut self, size: Bytes) -> Result<(), HostError>;
    /// Copies of up to this many bytes finish before a sleeping thread would run; the compute stream makes them itself.
    fn inline_copy_limit(&self) -> usize {
        0
    }
    /// Makes later loads read the disk instead of the system's cache, if the tier lies on a disk.
    fn drop_cache(&self) -> Result<(), HostError> {
        Ok(())
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

    /// Bytes that the tier can take: the free space of the folder less one part in 64, which file systems need for themselves; `None` for
    /// memory of the process.
    ///
    /// # Errors
    /// The folder does not exist or cannot be examined.
    pub fn available(&self) -> Result<Option<Bytes>, HostError> {
        let HostPlace::Folder(folder) = &self.place else { return Ok(None) };
        let failed = |error: Errno| HostError::Create { folder: folder.clone(), source: error.into() };
        let free = rustix::fs::statvfs(folder).map_err(failed)?;
        let bytes = free.f_bavail.saturating_mul(free.f_frsize);
        Ok(Some(Bytes(bytes - bytes / 64)))
    }

    /// Measures the channels of this tier, device → host and host → device, on a tier of the same kind with at most `at_most` bytes, fewer
    /// where the folder has no space for more. The faster of two passes counts in each direction, because the first one includes page faults.
    /// For a folder, the rate is the disk's and not that of the system's cache, which is memory. If [`link`](Self::link) is set, returns that.
    /// `None` if there are too few bytes to measure on.
    ///
    /// # Errors
    /// The tier cannot be opened, or a copy fails.
    pub fn measure(&self, at_most: Bytes) -> Result<Option<(Channel, Channel)>, HostError> {
        if self.link.is_some() {
            return Ok(self.link);
        }
        let mut bytes = MEASURED.min(usize::try_from(at_most.get()).unwrap_or(usize::MAX));
        let tier = loop {
            if bytes < SMALLEST_MEASURED {
                return Ok(None);
            }
            match self.open(Bytes(bytes as u64)) {
                Err(HostError::Reserve { source, .. }) if is_full(&source) => bytes /= 2,
                outcome => break outcome?,
            }
        };
        // Copying one piece repeatedly would measure the innermost cache, where tensors do not lie.
        let mut values = vec![0x5A; bytes];
        let mut shortest = [Duration::MAX; 2];
        for _ in 0..2 {
            let started = Instant::now();
            for (at, piece) in values.chunks(PIECE).enumerate() {
                tier.store(at * PIECE, piece)?;
            }
            tier.drop_cache()?;
            let stored = started.elapsed();
            for (at, piece) in values.chunks_mut(PIECE).enumerate() {
                tier.load(at * PIECE, piece)?;
            }
            shortest = [shortest[0].min(stored), shortest[1].min(started.elapsed() - stored)];
        }
        let [to_host, to_device] = shortest.map(|time| {
            let rate = bytes as u128 * 1_000_000_000 / time.as_nanos().max(1);
            Channel::with_rate(u64::try_from(rate).unwrap_or(u64::MAX).max(1))
        });
        Ok(Some((to_host, to_device)))
    }
}

impl HostPlace {
    /// Whether host copies take memory: memory of the process, or a folder whose files are in memory (tmpfs or ramfs).
    ///
    /// # Errors
    /// The folder does not exist or cannot be examined.
    pub fn is_in_memory(&self) -> io::Result<bool> {
        let Self::Folder(folder) = self else { return Ok(true) };
        // The type has another width and sign on each platform; the numbers have 32 bits.
        let kind = rustix::fs::statfs(folder)?.f_type as u32;
        Ok(MEMORY_FILE_SYSTEMS.contains(&kind))
    }
}

/// Whether a disk, a quota or the largest size of a file leaves too few bytes.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// File systems whose files are in memory: tmpfs, ramfs and hugetlbfs (`linux/magic.h`).
const MEMORY_FILE_SYSTEMS: [u32; 3] = [0x0102_1994, 0x8584_58F6, 0x9584_58F6];
/// Bytes per copy when a tier is measured: a common tensor size.
const PIECE: usize = 1 << 20;
/// Bytes copied per pass.
const MEASURED: usize = 16 * PIECE;
/// Fewer bytes than a page measure the fixed costs of a copy.
const SMALLEST_MEASURED: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: Bytes = Bytes(1 << 20);

    #[test]
    fn tiers_report_how_fast_they_are() {
        let folder = tempfile::tempdir().unwrap();
        for place in [HostPlace::Memory, HostPlace::Folder(folder.path().to_owned())] {
            let options = HostOptions::default().place(place);
            let (to_host, to_device) = options.measure(MIB * 16).unwrap().unwrap();
            // Slower than any disk in use, and faster than any memory, would be wrong.
            for channel in [to_host, to_device] {
                assert!((100_000..1 << 50).contains(&channel.rate), "{channel:?}");
            }
            assert!(options.measure(Bytes(4096)).unwrap().is_some());
            assert_eq!(options.measure(Bytes(100)).unwrap(), None);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let slow = Channel::with_rate(1000);
        let options = HostOptions::default().place(HostPlace::Memory).link((slow, slow));
        assert_eq!(options.measure(Bytes::ZERO).unwrap(), Some((slow, slow)));
        let missing = HostPlace::Folder(folder.path().join("missing"));
        assert!(HostOptions::default().place(missing.clone()).measure(MIB).is_err());
        assert!(HostOptions::default().place(missing.clone()).available().is_err());
        assert!(missing.is_in_memory().is_err());
    }

    #[test]
    fn folders_in_memory_are_noticed() {
        assert!(HostPlace::Memory.is_in_memory().unwrap());
        let shm = std::path::Path::new("/dev/shm");
        if shm.is_dir() {
            assert!(HostPlace::Folder(shm.to_owned()).is_in_memory().unwrap());
        }
        let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).to_owned();
        assert!(HostPlace::Folder(own.clone()).is_in_memory().is_ok());
        let available = HostOptions::default().place(HostPlace::Folder(own)).available().unwrap();
        assert!(available.is_some_and(|bytes| bytes > MIB));
        assert_eq!(HostOptions::default().available().unwrap(), None);
    }
}
