//! The planner dqn as the user sets it, and the files it learns from and leaves.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use elbowroom::dqn::network::Weights;
use elbowroom::dqn::{DQN, Dqn};
use elbowroom::ir::planning::Scheduler;
use elbowroom::ir::search::Episode;
use elbowroom::registry;

use crate::args::{DqnArgs, PlanArgs};
use crate::files;
use crate::progress::Progress;

/// More than any network of 256 hidden units: a guard against reading a disk image by mistake.
const LARGEST: u64 = 1 << 26;

/// The planner dqn with these settings.
pub fn planner(args: &DqnArgs) -> Result<&'static Dqn> {
    if args.settings.is_none() && args.from.is_none() {
        return Ok(&DQN);
    }
    let initial = args.from.as_deref().map(read).transpose()?;
    // Planners are looked up as constants of the program; one that the user has set lives as long as the command.
    Ok(Box::leak(Box::new(Dqn::new(args.settings.clone().unwrap_or_default(), initial))))
}

/// The planner of a name, where `dqn` is the one that the user has set.
pub fn scheduler(name: &str, network: &'static Dqn) -> Result<&'static dyn Scheduler> {
    let known = registry::scheduler(name)?;
    Ok(if known.name() == network.name() { network } else { known })
}

fn read(path: &Path) -> Result<Weights> {
    let context = || format!("cannot read {}", path.display());
    if fs::metadata(path).with_context(context)?.len() > LARGEST {
        bail!("{} is too large to be a network of the planner dqn", path.display());
    }
    let bytes = fs::read(path).with_context(context)?;
    Weights::from_safetensors(&bytes)
        .with_context(|| format!("{} holds no network of the planner dqn", path.display()))
}

/// Writes what the user wants to keep of the learning.
pub fn save(args: &PlanArgs, network: &Dqn, progress: &Progress) -> Result<()> {
    if let Some(path) = &args.dqn_save {
        let Some(weights) = network.trained() else {
            bail!(
                "nothing was trained: the planner is not dqn, or a fixed rule needs no time already \
                 (--dqn through=1 trains all the same)"
            );
        };
        let bytes = weights.to_safetensors()?;
        fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.dqn_curve {
        files::write(Some(path), &csv(&progress.episodes()))?;
    }
    Ok(())
}

/// The episodes as comma-separated values with a head.
fn csv(episodes: &[Episode]) -> String {
    let mut out = String::from("episode,exploration,gain,cost_ns,fits,best_ns\n");
    for Episode { number, exploration, gain, cost, fits, best, .. } in episodes {
        let best = best.map_or_else(String::new, |best| best.to_string());
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{number},{exploration:.4},{gain:.6},{cost},{fits},{best}");
    }
    out
}
