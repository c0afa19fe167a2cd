//! The planner dqn as the user sets it, and the files that it starts from and writes. Without the feature `dqn` there is no such planner, and
//! nothing to read or write.

#[cfg(feature = "dqn")]
pub use with::{Learned, planner, save, warning};
#[cfg(not(feature = "dqn"))]
pub use without::{Learned, planner, save, warning};

#[cfg(feature = "dqn")]
mod with {
    use std::any::Any;
    use std::fmt::Write;
    use std::path::Path;
    use std::sync::OnceLock;

    use anyhow::{Context, Result, bail};
    use elbowroom::dqn::network::Weights;
    use elbowroom::dqn::{Dqn, Episode, OutOfReach, Trained};
    use elbowroom::ir::planning::Planner;
    use elbowroom::registry;

    use crate::args::{DqnArgs, DqnFiles};
    use crate::files;

    /// More than any network of 256 hidden units: a guard against reading a disk image by mistake.
    const LARGEST: u64 = 1 << 26;

    /// The planner with the settings of the command line, of which a process has one.
    static AS_SET: OnceLock<Dqn> = OnceLock::new();

    /// The planner of a name, where `dqn` has the user's settings.
    pub fn planner(name: &str, args: &DqnArgs) -> Result<&'static dyn Planner> {
        let known = registry::planner(name)?;
        // A file that cannot be read is an error even where another planner was named.
        let initial = args.from.as_deref().map(read).transpose()?;
        if known.name() != Dqn::NAME || args.settings.is_none() && initial.is_none() {
            return Ok(known);
        }
        Ok(AS_SET.get_or_init(|| Dqn::new(args.settings.clone().unwrap_or_default(), initial)))
    }

    fn read(path: &Path) -> Result<Weights> {
        let bytes = files::bounded(path, LARGEST)?;
        Weights::from_safetensors(&bytes)
            .with_context(|| format!("{} holds no network of the planner dqn", path.display()))
    }

    /// The sentence that the user reads at once if a note says that nothing will be trained.
    pub fn warning(note: &dyn Any) -> Option<String> {
        let reason = note.downcast_ref::<OutOfReach>()?;
        Some(format!("dqn trains no network, a fixed rule answers: {reason}"))
    }

    /// What the planner has reported about its training.
    #[derive(Clone, Default)]
    pub struct Learned {
        /// The episodes, each with the number of its search.
        episodes: Vec<(usize, Episode)>,
        /// Searches that have begun.
        searches: usize,
        /// The network of the last search that trained one.
        trained: Option<Weights>,
    }

    impl Learned {
        /// Another search begins.
        pub fn restart(&mut self) {
            self.searches += 1;
        }

        /// Takes over a note of the planner; notes of other planners are ignored.
        pub fn note(&mut self, note: &dyn Any) {
            if let Some(episode) = note.downcast_ref::<Episode>() {
                self.episodes.push((self.searches, *episode));
            }
            if let Some(Trained(weights)) = note.downcast_ref::<Trained>() {
                self.trained = Some(weights.clone());
            }
        }

        /// The last episode of this search, for the line of progress; empty before the first.
        pub fn line(&self) -> String {
            let current = self.episodes.last().filter(|(search, _)| *search == self.searches);
            current.map_or_else(String::new, |(_, episode)| {
                let Episode { number, of, exploration, gain, .. } = episode;
                format!(", episode {number}/{of} ε {exploration:.2} return {gain:.2}")
            })
        }
    }

    /// Writes the files that the user requested.
    pub fn save(args: &DqnFiles, learned: &Learned) -> Result<()> {
        if let Some(path) = &args.save {
            let Some(weights) = &learned.trained else {
                bail!(
                    "nothing was trained: the planner is not dqn, or a fixed rule needs no time already \
                     (--dqn through=1 trains all the same)"
                );
            };
            files::write_bytes(path, &weights.to_safetensors()?)?;
        }
        if let Some(path) = &args.curve {
            files::write(Some(path), &csv(&learned.episodes))?;
        }
        Ok(())
    }

    /// The episodes as comma-separated values with a head.
    fn csv(episodes: &[(usize, Episode)]) -> String {
        let mut out = String::from("search,episode,exploration,gain,cost_ns,fits,best_ns\n");
        for (search, episode) in episodes {
            let Episode { number, exploration, gain, cost, fits, best, .. } = episode;
            let best = best.map_or_else(String::new, |best| best.to_string());
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{search},{number},{exploration:.4},{gain:.6},{cost},{fits},{best}");
        }
        out
    }
}

#[cfg(not(feature = "dqn"))]
mod without {
    use std::any::Any;

    use anyhow::Result;
    use elbowroom::ir::planning::Planner;
    use elbowroom::registry;

    use crate::args::{DqnArgs, DqnFiles};

    /// The planner of a name.
    pub fn planner(name: &str, _: &DqnArgs) -> Result<&'static dyn Planner> {
        Ok(registry::planner(name)?)
    }

    /// No planner learns, none warns.
    pub fn warning(_: &dyn Any) -> Option<String> {
        None
    }

    /// No planner learns.
    #[derive(Clone, Default)]
    pub struct Learned;

    impl Learned {
        /// Another search begins.
        pub fn restart(&mut self) {}

        /// No planner sends notes.
        pub fn note(&mut self, _: &dyn Any) {}

        /// Nothing to add to the line of progress.
        pub fn line(&self) -> String {
            String::new()
        }
    }

    /// There is nothing to write.
    pub fn save(_: &DqnFiles, _: &Learned) -> Result<()> {
        Ok(())
    }
}
