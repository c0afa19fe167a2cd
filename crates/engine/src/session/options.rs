//! The options of a session, with a setter for each.

use crate::chaos::ChaosOptions;
use crate::host::HostOptions;

/// Options of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Compute threads; at least one. Results do not depend on it.
    pub threads: usize,
    /// Seed of initial values and of random ops.
    pub seed: u64,
    /// The host tier, and an optional artificial link to it.
    pub host: HostOptions,
    /// Fault injection for tests.
    pub chaos: Option<ChaosOptions>,
    /// Whether to guard the bytes between the plan's arena size and the limit, so that
    /// [`Session::first_overwritten`](crate::Session::first_overwritten) can report a write to them. This commits at most 2 MiB.
    pub paint: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { threads: 1, seed: 0, host: HostOptions::default(), chaos: None, paint: true }
    }
}

impl SessionOptions {
    /// Sets the number of compute threads; at least one.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Sets the seed of initial values and of random ops.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Chooses the host tier.
    #[must_use]
    pub fn host(self, host: HostOptions) -> Self {
        Self { host, ..self }
    }

    /// Injects faults, for tests.
    #[must_use]
    pub fn chaos(self, chaos: impl Into<Option<ChaosOptions>>) -> Self {
        Self { chaos: chaos.into(), ..self }
    }

    /// Chooses whether the bytes above the arena are guarded.
    #[must_use]
    pub fn paint(self, paint: bool) -> Self {
        Self { paint, ..self }
    }
}
