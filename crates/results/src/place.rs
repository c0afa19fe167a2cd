//! Where a figure was measured: the commit, and for measured times the machine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// The state of the source tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The full hash.
    pub hash: String,
    /// Whether tracked files other than results differed from it.
    pub dirty: bool,
}

/// The computer, and what else it was doing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors that the program may use.
    pub threads: usize,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// The operating system and the architecture.
    pub system: String,
    /// The load average of the minute before the measurement: 0 is an idle machine.
    pub load_average: Option<f64>,
}

impl Commit {
    /// Reads from git the state of the tree that contains a folder. Files that this program writes do not count as changes.
    ///
    /// # Errors
    ///
    /// If git is missing or the folder is not in a repository.
    pub fn now(root: &Path) -> Result<Self> {
        let git = |arguments: &[&str]| -> Result<String> {
            let output =
                Command::new("git").args(arguments).current_dir(root).output().context("running git")?;
            ensure!(
                output.status.success(),
                "git {}: {}",
                arguments[0],
                String::from_utf8_lossy(&output.stderr).trim()
            );
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let hash = git(&["rev-parse", "HEAD"])?;
        let ours = [":!results", ":!docs/results", ":!README.md"];
        let changes =
            git(&[&["status", "--porcelain", "--untracked-files=no", "--", "."], &ours[..]].concat())?;
        Ok(Self { hash, dirty: !changes.is_empty() })
    }

    /// The first digits of the hash, and whether there were changes.
    #[must_use]
    pub fn short(&self) -> String {
        let hash = self.hash.get(..10).unwrap_or(&self.hash);
        if self.dirty { format!("{hash} with uncommitted changes") } else { hash.to_owned() }
    }
}

impl Machine {
    /// Reads the description of this computer from the operating system.
    #[must_use]
    pub fn now() -> Self {
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let after_colon = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            line.split_once(':').map(|(_, value)| value.trim().to_owned())
        };
        let memory = after_colon(&file("/proc/meminfo"), "MemTotal");
        let kib = memory.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        Self {
            processor: after_colon(&file("/proc/cpuinfo"), "model name")
                .unwrap_or_else(|| "unknown".to_owned()),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.map(|kib| kib * 1024),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            load_average: file("/proc/loadavg").split_whitespace().next().and_then(|text| text.parse().ok()),
        }
    }

    /// One sentence for the page.
    #[must_use]
    pub fn describe(&self) -> String {
        let memory = self
            .memory_bytes
            .map_or_else(String::new, |bytes| format!(", {:.0} GB of memory", bytes as f64 / 1e9));
        let load = self.load_average.map_or_else(
            || "load average unknown".to_owned(),
            |load| format!("load average {load:.2} before the run"),
        );
        format!("{} ({}), {} threads{memory}, {load}", self.processor, self.system, self.threads)
    }
}
