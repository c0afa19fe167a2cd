//! Where a training's host copies lie: by default on a disk, because memory of this process would be no saving on the CPU.

use std::path::{Path, PathBuf};

use elbowroom_engine::{HostOptions, HostPlace};
use elbowroom_ir::Bytes;
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::Freedom;

use crate::explain::HostShortage;
use crate::report::HostKind;

/// Folders for large temporary files (Filesystem Hierarchy Standard, 5.15 and 3.18). The second is in memory on many systems.
const FOLDERS: [&str; 2] = ["/var/tmp", "/tmp"];

/// The setting.
#[derive(Clone, Debug)]
pub(super) enum HostSetting {
    /// In the first of these folders that lies on a disk and can be written to. If there is none, nothing is offloaded.
    Disk { folders: Vec<PathBuf>, link: Option<(Channel, Channel)> },
    /// As given.
    Given(HostOptions),
}

/// The host tier of a training.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub options: HostOptions,
    pub kind: HostKind,
    /// Bytes that its folder has left.
    available: Option<Bytes>,
}

impl Default for HostSetting {
    fn default() -> Self {
        Self::Disk { folders: FOLDERS.map(PathBuf::from).to_vec(), link: None }
    }
}

impl HostSetting {
    /// The link to which copies are slowed down, if there is one.
    pub fn link(&self) -> Option<(Channel, Channel)> {
        match self {
            Self::Disk { link, .. } => *link,
            Self::Given(options) => options.link,
        }
    }

    /// Decides where host copies lie.
    pub fn resolve(&self) -> Result<Host, elbowroom_engine::HostError> {
        let options = match self {
            Self::Given(options) => options.clone(),
            Self::Disk { folders, link } => match folders.iter().find(|folder| is_on_disk(folder)) {
                Some(folder) => HostOptions::default().place(HostPlace::Folder(folder.clone())).link(*link),
                None => {
                    let options = HostOptions::default().link(*link);
                    return Ok(Host { options, kind: HostKind::None, available: Some(Bytes::ZERO) });
                }
            },
        };
        let available = options.available()?;
        let kind = match &options.place {
            HostPlace::Memory => HostKind::Memory,
            // A folder that cannot be examined fails when the tier is opened, with the reason.
            place if place.is_in_memory().unwrap_or(false) => HostKind::FolderInMemory,
            HostPlace::Folder(_) => HostKind::Disk,
        };
        Ok(Host { options, kind, available })
    }
}

impl Host {
    /// The machine with the host memory that the tier can give.
    pub fn limit(&self, machine: &Machine) -> Machine {
        let host_memory = self.available.map_or(machine.host_memory, |bytes| bytes.min(machine.host_memory));
        Machine { host_memory, ..machine.clone() }
    }

    /// Says that plans need more host memory than there is.
    pub fn shortage(&self, needed: Bytes, available: Bytes) -> HostShortage {
        // What limits is the smaller of both.
        let is_folder = self.kind != HostKind::None && self.available == Some(available);
        HostShortage { needed, available, folder: is_folder.then(|| self.name()) }
    }

    /// What plans may decide with this tier.
    pub fn freedom(&self, freedom: Freedom) -> Freedom {
        Freedom { offload: freedom.offload && self.kind != HostKind::None, ..freedom }
    }

    /// Its name for people.
    pub fn name(&self) -> String {
        match (&self.options.place, self.kind) {
            (_, HostKind::None) => "none".to_owned(),
            (HostPlace::Memory, _) => "memory".to_owned(),
            (HostPlace::Folder(folder), _) => folder.display().to_string(),
        }
    }
}

/// Whether files of this folder lie on a disk, and one can be made now.
fn is_on_disk(folder: &Path) -> bool {
    let place = HostPlace::Folder(folder.to_owned());
    let on_disk = place.is_in_memory().is_ok_and(|in_memory| !in_memory);
    on_disk && HostOptions::default().place(place).open(Bytes::ZERO).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(folders: &[&Path]) -> Host {
        let folders = folders.iter().map(|folder| folder.to_path_buf()).collect();
        HostSetting::Disk { folders, link: None }.resolve().unwrap()
    }

    #[test]
    fn folders_in_memory_and_missing_ones_are_passed_over() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (memory, missing) = (Path::new("/dev/shm"), folder.path().join("missing"));
        let none = disk(&[memory, &missing]);
        assert_eq!((none.kind, none.name().as_str()), (HostKind::None, "none"));
        assert!(!none.freedom(Freedom::ALL).offload, "what has no place is not offloaded");
        if is_on_disk(folder.path()) {
            let found = disk(&[memory, &missing, folder.path()]);
            assert_eq!((found.kind, found.name()), (HostKind::Disk, folder.path().display().to_string()));
            assert!(found.freedom(Freedom::ALL).offload);
        }
        let given = HostOptions::default().place(HostPlace::Folder(memory.to_owned()));
        if memory.is_dir() {
            let host = HostSetting::Given(given).resolve().unwrap();
            assert_eq!(host.kind, HostKind::FolderInMemory, "what is asked for is done, and said");
        }
    }

    #[test]
    fn a_plan_keeps_to_the_space_that_the_folder_has() {
        let machine = elbowroom_sim::presets::machine("cpu").unwrap();
        let mut host = HostSetting::Given(HostOptions::default()).resolve().unwrap();
        assert_eq!(host.limit(&machine).host_memory, machine.host_memory);
        host.available = Some(Bytes(1000));
        assert_eq!(host.limit(&machine).host_memory, Bytes(1000));
    }
}
