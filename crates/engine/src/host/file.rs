//! A host tier in a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use elbowroom_ir::Bytes;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::HostTier;
use crate::error::HostError;
use crate::system;

/// A file without a name: the system frees it when the process ends, even after a crash.
#[derive(Debug)]
pub struct FileTier {
    file: File,
    folder: PathBuf,
}

impl FileTier {
    /// Creates a file of `size` bytes in a folder. All blocks are reserved now, so that a full disk is reported here; file systems without
    /// reservation get zeros written instead.
    ///
    /// # Errors
    /// The file cannot be created, or the disk has not enough space.
    pub fn new(folder: &Path, size: Bytes) -> Result<Self, HostError> {
        let create = |source| HostError::Create { folder: folder.to_owned(), source };
        // Opened without a name where the system supports it, otherwise unlinked at once.
        let file = tempfile::tempfile_in(folder).map_err(create)?;
        let mut tier = Self { file, folder: folder.to_owned() };
        tier.resize(size)?;
        Ok(tier)
    }
}

/// Reserves the bytes from `offset` to `size`, which must be more.
fn reserve(file: &File, offset: u64, size: u64) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::empty(), offset, size - offset) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return write_zeros(file, offset, size),
            Err(error) => return Err(error.into()),
        }
    }
}

fn write_zeros(file: &File, mut offset: u64, size: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    while offset < size {
        let count = (size - offset).min(zeros.len() as u64);
        file.write_all_at(&zeros[..count as usize], offset)?;
        offset += count;
    }
    Ok(())
}

impl HostTier for FileTier {
    fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), HostError> {
        self.file.write_all_at(bytes, offset as u64).map_err(|source| HostError::Write {
            folder: self.folder.clone(),
            bytes: bytes.len(),
            source,
        })
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), HostError> {
        let len = bytes.len();
        self.file.read_exact_at(bytes, offset as u64).map_err(|source| HostError::Read {
            folder: self.folder.clone(),
            bytes: len,
            source,
        })
    }

    fn resize(&mut self, size: Bytes) -> Result<(), HostError> {
        let before = self.file.metadata().map(|metadata| metadata.len());
        let changed = before.and_then(|before| {
            if size.get() > before {
                let reserved = reserve(&self.file, before, size.get());
                // What was reserved of it is given back.
                return reserved.inspect_err(|_| drop(self.file.set_len(before)));
            }
            self.file.set_len(size.get())
        });
        changed.map_err(|source| HostError::Reserve { folder: self.folder.clone(), bytes: size, source })
    }

    fn drop_cache(&self) -> Result<(), HostError> {
        let failed = |source| HostError::Write { folder: self.folder.clone(), bytes: 0, source };
        self.file.sync_data().map_err(failed)?;
        // Advice: where the system does not take it, the rate measured is that of its cache.
        system::drop_cache(&self.file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_and_the_folder_stays_empty() {
        let folder = tempfile::tempdir().unwrap();
        let tier = FileTier::new(folder.path(), Bytes(1 << 20)).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a crash would leave nothing");
        let value: Vec<u8> = (0..100_000).map(|i| (i % 241) as u8).collect();
        tier.store(12_345, &value).unwrap();
        let mut back = vec![0; value.len()];
        tier.load(12_345, &mut back).unwrap();
        assert!(back == value);
    }

    #[test]
    fn folders_that_cannot_hold_a_file_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let error = FileTier::new(&missing, Bytes(10)).unwrap_err().to_string();
        assert!(error.contains("missing") && error.starts_with("cannot make a spill file"), "{error}");
        let plain = folder.path().join("plain");
        std::fs::write(&plain, b"").unwrap();
        assert!(matches!(FileTier::new(&plain, Bytes(10)), Err(HostError::Create { .. })));
    }

    #[test]
    fn more_bytes_than_any_disk_has_are_refused_before_the_first_copy() {
        let folder = tempfile::tempdir().unwrap();
        let error = FileTier::new(folder.path(), Bytes(1 << 55)).unwrap_err();
        assert!(matches!(error, HostError::Reserve { bytes: Bytes(b), .. } if b == 1 << 55), "{error}");
        assert!(error.to_string().contains("36028797018963968 bytes"), "{error}");
    }

    #[test]
    fn a_read_past_the_end_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let tier = FileTier::new(folder.path(), Bytes(100)).unwrap();
        assert!(matches!(tier.load(90, &mut [0; 20]), Err(HostError::Read { bytes: 20, .. })));
    }
}
