//! The host tier: where offloaded values wait. In memory, or in a file; the way there can be slowed down.
//!
//! A tier is a range of bytes, `0..size`. Which value lies where is decided before the first iteration; the tier only
//! stores and loads. Both directions may be used at the same time, on ranges that do not overlap.

mod file;
pub(crate) mod link;
mod memory;
pub(crate) mod slots;

use std::path::PathBuf;

use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Channel;

pub use file::FileTier;
pub use memory::MemoryTier;

use crate::error::HostError;

/// A place for offloaded values.
pub trait HostTier: Send + Sync {
    /// Keeps bytes at an offset.
    fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), HostError>;
    /// Brings bytes back from an offset.
    fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), HostError>;
}

/// Which tier a session uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostPlace {
    /// Process memory.
    #[default]
    Memory,
    /// A file without a name in this folder: the system removes it when the process ends, however it ends.
    Folder(PathBuf),
}

/// The tier and the link to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostOptions {
    /// Where values wait.
    pub place: HostPlace,
    /// Slows the copies of iterations down to these channels, device → host and host → device; `None` runs at full speed. Initial values
    /// and checkpoints are not held up: they are not the plan's.
    pub link: Option<(Channel, Channel)>,
}

impl HostOptions {
    /// Opens a tier of `size` bytes. All of it is reserved now: a full disk is found out here and not in the middle of training.
    pub fn open(&self, size: Bytes) -> Result<Box<dyn HostTier>, HostError> {
        match &self.place {
            HostPlace::Memory => Ok(Box::new(MemoryTier::new(size)?)),
            HostPlace::Folder(folder) => Ok(Box::new(FileTier::new(folder, size)?)),
        }
    }
}
