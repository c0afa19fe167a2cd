//! What entries may need besides the repository: large data sets, peers.

use std::path::{Path, PathBuf};

/// What entries may need besides the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum External {
    /// The folder of the large data sets.
    Shared,
    /// A Python interpreter that has PyTorch.
    Python,
}

impl External {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Shared, Self::Python];

    /// Its placeholder in a command line, without braces.
    #[must_use]
    pub const fn placeholder(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Python => "python",
        }
    }

    /// What is missing where it is absent.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Shared => "the shared data",
            Self::Python => "a Python with PyTorch (--python)",
        }
    }
}

/// Where the external things are on this machine.
#[derive(Debug, Clone, Default)]
pub struct Externals {
    /// The folder of the large data sets.
    pub shared: Option<PathBuf>,
    /// The Python interpreter.
    pub python: Option<PathBuf>,
}

impl Externals {
    /// Where one is, if it is there.
    #[must_use]
    pub fn path(&self, external: External) -> Option<&Path> {
        match external {
            External::Shared => self.shared.as_deref(),
            External::Python => self.python.as_deref(),
        }
    }
}
