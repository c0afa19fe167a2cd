//! Writing files whole or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Writes a file beside its final place, flushes it to disk and only then renames it over what was there: whoever kills the process, at
/// whatever moment, finds the old file or the new one, whole. On an error the old one is untouched and nothing is left behind.
///
/// What is not a regular file (`/dev/stdout`, a pipe) cannot be renamed over and is written to directly.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    if path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
        let mut out = BufWriter::new(File::options().write(true).open(path)?);
        write(&mut out)?;
        return out.flush();
    }
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
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
