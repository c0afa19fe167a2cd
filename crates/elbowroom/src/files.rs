//! Writing files whole or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Checks that [`write_whole`] could write a file now, before the long work whose result it is. Creates no file.
///
/// # Errors
///
/// The error that writing would have, as it is known now: the path is a folder, or its folder is missing or not writable.
pub fn expect_writable(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => File::options().write(true).open(path).map(drop),
        _ => tempfile::tempfile_in(folder_of(path)).map(drop),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a temporary file, flushes it to disk and only then renames it over the old one: if the process ends at any moment, the old file or
/// the new one is there, complete. On an error the old file is untouched and no temporary file remains.
///
/// A path that exists and is not a regular file (`/dev/stdout`, a pipe) is written to directly, because it cannot be replaced.
///
/// # Errors
///
/// Those of the system, and those of `write`.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    if path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
        let mut out = BufWriter::new(File::options().write(true).open(path)?);
        write(&mut out)?;
        return out.flush();
    }
    let folder = folder_of(path);
    // Dropping the temporary file on any error removes it. Files are made readable as any program makes them, not private as
    // temporary files are.
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    let temporary =
        tempfile::Builder::new().prefix(".elbowroom-").permissions(permissions).tempfile_in(folder)?;
    let mut out = BufWriter::new(temporary.as_file());
    write(&mut out)?;
    out.flush()?;
    drop(out);
    temporary.as_file().sync_all()?;
    temporary.persist(path).map_err(|e| e.error)?;
    // The new name itself must survive a power cut.
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_written_is_known_before() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("new");
        expect_writable(&inside).unwrap();
        assert!(!inside.exists());
        assert!(expect_writable(folder.path()).is_err());
        assert!(expect_writable(&folder.path().join("nowhere/new")).is_err());
        expect_writable(Path::new("/dev/null")).unwrap();
    }
}
