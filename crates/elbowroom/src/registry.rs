//! Names of planners and packers.

use elbowroom_ir::packing::Packer;
use elbowroom_ir::planning::Planner;
use elbowroom_sched::portfolio::BestOf;

/// The planner used when none is named.
pub const DEFAULT_PLANNER: &str = "auto";

/// The packer used when none is named.
pub const DEFAULT_PACKER: &str = "auto";

/// The planner that offloads and evicts as much as it can: it finds small limits within seconds.
pub const FRUGAL_PLANNER: &str = "floor";

/// The packer that goes with it.
pub const QUICK_PACKER: &str = "best-fit";

/// A name that nothing is registered under.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("there is no {kind} called `{name}`; there are: {}", .known.join(", "))]
pub struct UnknownName {
    /// `planner` or `packer`.
    pub kind: &'static str,
    /// The requested name.
    pub name: String,
    /// What there is.
    pub known: Vec<&'static str>,
}

/// Every planner but `best-of`, which runs others.
fn all() -> impl Iterator<Item = &'static dyn Planner> {
    elbowroom_sched::PLANNERS.iter().copied().chain(learned())
}

/// The planner that learns: with its default settings, and a network that starts at random.
#[cfg(feature = "dqn")]
fn learned() -> Option<&'static dyn Planner> {
    use elbowroom_dqn::{Dqn, settings::Settings};
    static DQN: Dqn = Dqn::new(Settings::DEFAULT, None);
    Some(&DQN)
}

#[cfg(not(feature = "dqn"))]
fn learned() -> Option<&'static dyn Planner> {
    None
}

/// The planner of a name.
pub fn planner(name: &str) -> Result<&'static dyn Planner, UnknownName> {
    let mut every = std::iter::once(&BestOf as &'static dyn Planner).chain(all());
    every.find(|planner| planner.name() == name).ok_or_else(|| {
        let known = std::iter::once(BestOf.name()).chain(planners());
        UnknownName { kind: "planner", name: name.to_owned(), known: known.collect() }
    })
}

/// The names of all planners but `best-of`, which runs others.
pub fn planners() -> Vec<&'static str> {
    all().map(|planner| planner.name()).collect()
}

/// The names of all planners, `best-of` included.
pub fn planner_names() -> Vec<&'static str> {
    let mut names = planners();
    names.push(BestOf.name());
    names
}

/// The packer of a name.
pub fn packer(name: &str) -> Result<&'static dyn Packer, UnknownName> {
    elbowroom_pack::packer(name).ok_or_else(|| UnknownName {
        kind: "packer",
        name: name.to_owned(),
        known: elbowroom_pack::PACKERS.iter().map(|p| p.name()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_registered_once() {
        let mut names = planners();
        names.push(BestOf.name());
        assert!(names.iter().all(|name| planner(name).is_ok()));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), planners().len() + 1);
        assert!(planner(DEFAULT_PLANNER).is_ok() && packer(DEFAULT_PACKER).is_ok());
    }
}
