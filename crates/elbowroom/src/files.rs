//! Writing files whole or not at all.
//!
//! A new content is written to a file without a name, which gets a temporary name in the same folder when it is complete and then takes the
//! place of the old one: a process that ends while it writes, in any way, leaves nothing. One that is killed between those two steps, or writes
//! to a file system without such files, leaves its temporary file, which the next write to that folder removes: every temporary file is locked
//! while its process lives, and the system releases the lock of a process that ends.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD};
use tempfile::NamedTempFile;

/// Names of temporary files: this, some letters and digits, and [`SUFFIX`].
const PREFIX: &str = ".elbowroom-";
/// End of the names of temporary files.
const SUFFIX: &str = ".part";
/// Letters and digits between [`PREFIX`] and [`SUFFIX`].
const RANDOM: usize = 6;

/// Checks that [`write_whole`] could write a file now, before the long work whose result it is. Creates no file, and removes what killed
/// processes left as [`write_whole`] does.
///
/// # Errors
///
/// The error that writing would have, as it is known now: the path is a folder, its folder is missing or not writable, or the file is
/// read-only.
pub fn expect_writable(path: &Path) -> io::Result<()> {
    match Target::of(path)? {
        Target::Stream => File::options().write(true).open(path).map(drop),
        Target::File { path, .. } => {
            let probe = tempfile::tempfile_in(folder_of(&path))?;
            remove_stale(folder_of(&path), probe.metadata()?.uid());
            Ok(())
        }
    }
}

/// Writes a temporary file, flushes it to disk and only then renames it over the old one: if the process ends at any moment, the old file or
/// the new one is there, complete. On an error the old file is untouched and no temporary file remains. Temporary files that killed
/// processes left in the folder are removed.
///
/// The new file keeps the permissions and, if the system allows it, the owner of the old one. A read-only file is not replaced. A symbolic
/// link stays, and the file to which it leads is replaced. A path that exists and is not a regular file (`/dev/stdout`, a pipe) is written
/// to directly, because it cannot be replaced.
///
/// # Errors
///
/// Those of the system, and those of `write`.
pub fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>,
) -> io::Result<()> {
    let (path, old) = match Target::of(path)? {
        Target::Stream => {
            let mut out = BufWriter::new(File::options().write(true).open(path)?);
            write(&mut out)?;
            return out.flush();
        }
        Target::File { path, old } => (path, old),
    };
    let folder = folder_of(&path);
    // Dropping the temporary file on any error removes it.
    let mut temporary = Temporary::new(folder, old.is_some())?;
    let file = temporary.file();
    remove_stale(folder, file.metadata()?.uid());
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    out.flush()?;
    drop(out);
    if let Some(old) = old {
        // Only a privileged process may give a file away; what counts is that no other user may read more than before.
        let _ = fchown(file, Some(old.uid()), Some(old.gid()));
        file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
    }
    file.sync_all()?;
    temporary.persist(folder, &path)?;
    // The new name itself must survive a power cut. A folder that may be written but not read cannot be synchronized.
    File::open(folder).map_or(Ok(()), |folder| folder.sync_all())
}

/// What a path means for writing.
enum Target {
    /// Something that is written to directly.
    Stream,
    /// A regular file, behind all symbolic links, with the metadata of the old one if there is one.
    File { path: PathBuf, old: Option<Metadata> },
}

impl Target {
    fn of(path: &Path) -> io::Result<Self> {
        let old = match path.metadata() {
            Ok(metadata) if metadata.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            Ok(metadata) if !metadata.is_file() => return Ok(Self::Stream),
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        // The links form no circle, for then there would be another error above.
        let mut path = path.to_owned();
        while let Ok(link) = fs::read_link(&path) {
            path = folder_of(&path).join(link);
        }
        if let Some(old) = &old {
            // Opening such a file succeeds for the superuser, who should not lose a protected file either.
            if old.mode() & 0o222 == 0 {
                return Err(io::Error::new(ErrorKind::PermissionDenied, "the file is read-only"));
            }
            File::options().write(true).open(&path)?;
        }
        Ok(Self::File { path, old })
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file without a name, which only Linux has, and not on every file system.
fn nameless(folder: &Path, private: bool) -> Option<File> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use rustix::fs::{Mode, OFlags};
        let mode = Mode::from_raw_mode(if private { 0o600 } else { 0o666 });
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(folder, flags, mode).ok().map(File::from)
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        let _ = (folder, private);
        None
    }
}

/// A locked file that is not yet complete, private if it replaces a file whose permissions it is to get. Otherwise it has those of any new file.
enum Temporary {
    Nameless(File),
    Named(NamedTempFile),
}

impl Temporary {
    fn new(folder: &Path, private: bool) -> io::Result<Self> {
        match nameless(folder, private) {
            Some(file) => {
                // Where files cannot be locked, none are removed.
                let _ = file.lock();
                Ok(Self::Nameless(file))
            }
            // Errors that have other reasons come again.
            None => named(folder, private).map(Self::Named),
        }
    }

    fn file(&mut self) -> &File {
        match self {
            Self::Nameless(file) => file,
            Self::Named(file) => file.as_file(),
        }
    }

    /// Takes the place of `path` in this folder.
    fn persist(self, folder: &Path, path: &Path) -> io::Result<()> {
        let mut file = match self {
            Self::Named(named) => return named.persist(path).map(drop).map_err(|error| error.error),
            Self::Nameless(file) => file,
        };
        // A link cannot replace a file, so that it is made under a temporary name first.
        let link = Path::new("/proc/self/fd").join(file.as_raw_fd().to_string());
        let linked = tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).rand_bytes(RANDOM).make_in(
            folder,
            |temporary| {
                let linked = rustix::fs::linkat(CWD, &link, CWD, temporary, AtFlags::SYMLINK_FOLLOW);
                Ok(linked?)
            },
        );
        match linked {
            Ok(linked) => linked.into_temp_path().persist(path).map_err(|error| error.error),
            // Without /proc, or where a file cannot get a name later, the content is copied.
            Err(_) => {
                let metadata = file.metadata()?;
                let mut copy = named(folder, true)?;
                file.seek(SeekFrom::Start(0))?;
                io::copy(&mut file, &mut copy)?;
                let _ = fchown(copy.as_file(), Some(metadata.uid()), Some(metadata.gid()));
                copy.as_file().set_permissions(Permissions::from_mode(metadata.mode() & 0o7777))?;
                copy.as_file().sync_all()?;
                copy.persist(path).map(drop).map_err(|error| error.error)
            }
        }
    }
}

/// A locked temporary file with a name.
fn named(folder: &Path, private: bool) -> io::Result<NamedTempFile> {
    let mode = if private { 0o600 } else { 0o666 };
    loop {
        let temporary = tempfile::Builder::new()
            .prefix(PREFIX)
            .suffix(SUFFIX)
            .rand_bytes(RANDOM)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder)?;
        // Another process may have removed the file between its creation and its lock. Where files cannot be locked, none are removed.
        if temporary.as_file().lock().is_err() || temporary.as_file().metadata()?.nlink() > 0 {
            return Ok(temporary);
        }
    }
}

/// Removes the temporary files of this user whose processes have ended, which no process has locked. Files that cannot be removed stay.
fn remove_stale(folder: &Path, user: u32) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_temporary)) {
        let path = entry.path();
        if entry.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.uid() == user)
            && let Ok(file) = File::open(&path)
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether [`named`] makes such names.
fn is_temporary(name: &str) -> bool {
    let random = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    random.is_some_and(|random| {
        random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(path: &Path, text: &str) -> io::Result<()> {
        write_whole(path, |file| file.write_all(text.as_bytes()))
    }

    #[test]
    fn a_file_has_no_name_before_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let supported = matches!(Temporary::new(folder.path(), false).unwrap(), Temporary::Nameless(_));
        for old in [&[][..], &["m"]] {
            write_whole(&path, |file| {
                file.write_all(&[1; 100_000])?;
                // What a killed process leaves.
                assert!(!supported || names(folder.path()) == old, "{:?}", names(folder.path()));
                Ok(())
            })
            .unwrap();
            assert_eq!(fs::read(&path).unwrap().len(), 100_000);
            assert_eq!(names(folder.path()), ["m"]);
        }
        let failed = write_whole(&path, |file| {
            file.write_all(&[2; 100_000])?;
            Err(ErrorKind::StorageFull.into())
        });
        assert!(failed.is_err() && fs::read(&path).unwrap() == [1; 100_000]);
        assert_eq!(names(folder.path()), ["m"]);
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_can_be_written_is_known_before() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("new");
        expect_writable(&inside).unwrap();
        assert!(!inside.exists());
        assert!(expect_writable(folder.path()).is_err());
        assert!(expect_writable(&folder.path().join("nowhere/new")).is_err());
        expect_writable(Path::new("/dev/null")).unwrap();
        let circle = folder.path().join("circle");
        symlink(&circle, &circle).unwrap();
        assert!(expect_writable(&circle).is_err() && write(&circle, "text").is_err());
    }

    #[test]
    fn a_link_stays_and_the_file_behind_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [store, file, link, chain] =
            ["store", "store/file", "link", "chain"].map(|name| folder.path().join(name));
        fs::create_dir(&store).unwrap();
        symlink("store/file", &link).unwrap();
        symlink("link", &chain).unwrap();
        // The first one is written through links that lead nowhere yet.
        for text in ["one", "two"] {
            expect_writable(&chain).unwrap();
            write(&chain, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            assert_eq!(names(folder.path()), ["chain", "link", "store"]);
            assert_eq!(fs::read_link(&chain).unwrap(), Path::new("link"));
            assert_eq!(fs::read_link(&link).unwrap(), Path::new("store/file"));
        }
    }

    #[test]
    fn a_read_only_file_is_not_replaced_and_permissions_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for mode in [0o600, 0o640, 0o755] {
            write(&path, "before").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            write(&path, "after").unwrap();
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, mode);
        }
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        for error in [expect_writable(&path).unwrap_err(), write(&path, "never").unwrap_err()] {
            assert!(error.to_string().contains("read-only"), "{error}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn only_temporary_files_of_ended_processes_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let others =
            [".elbowroom-notes.part", ".elbowroom-a_c3e5.part", "elbowroom-abcdef.part", ".elbowroom-abcdef"];
        for name in others.iter().chain(&[".elbowroom-killed.part"]) {
            fs::write(at(name), "text").unwrap();
        }
        fs::create_dir(at(".elbowroom-folder.part")).unwrap();
        symlink(at(others[0]), at(".elbowroom-linked.part")).unwrap();
        let living = named(folder.path(), false).unwrap();
        write(&at("file"), "text").unwrap();
        let left = names(folder.path());
        assert!(living.path().exists() && !left.contains(&".elbowroom-killed.part".to_owned()), "{left:?}");
        assert_eq!(left.len(), others.len() + 4, "{left:?}");
        drop(living);
    }
}
