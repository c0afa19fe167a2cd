//! Linux control groups that limit the memory of a process.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// A control group for memory, removed in the end.
pub struct ControlGroup {
    folder: PathBuf,
}

impl ControlGroup {
    /// A group of this many bytes without swap, or `None` where the system lets us make none. Both versions of control groups are tried.
    pub fn new(name: &str, bytes: u64) -> Option<Self> {
        let name = format!("elbowroom-{name}-{}", std::process::id());
        // The limits on memory, and on memory with swap or on swap.
        let versions = [
            (
                "/sys/fs/cgroup/memory",
                [("memory.limit_in_bytes", bytes), ("memory.memsw.limit_in_bytes", bytes)],
            ),
            ("/sys/fs/cgroup", [("memory.max", bytes), ("memory.swap.max", 0)]),
        ];
        versions.into_iter().find_map(|(root, [limit, swap])| {
            let folder = Path::new(root).join(&name);
            std::fs::create_dir(&folder).ok()?;
            let group = Self { folder };
            let write =
                |(file, bytes): (&str, u64)| std::fs::write(group.folder.join(file), bytes.to_string());
            write(limit).ok()?;
            // Where swap is not accounted for, there is none.
            let _ = write(swap);
            Some(group)
        })
    }

    /// A shell's command that moves the shell into the group.
    pub fn enter(&self) -> String {
        format!("echo $$ > '{}'", self.folder.join("cgroup.procs").display())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // A process that was killed may still be leaving.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
