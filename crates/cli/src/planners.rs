//! Planners as the user sets them: with the options that only some of them take.

use std::path::Path;

use anyhow::{Context, Result, bail};
use elbowroom::ir::planning::Planner;
use elbowroom::sched::offload::autoswap;
use elbowroom::sched::recompute::marked::Marked;

use crate::args::{DqnArgs, PlannerOptions};
use crate::{files, learning};

/// More than any list of marks: a guard against reading a disk image by mistake.
const LARGEST: u64 = 1 << 26;

/// The planners of these names, each with the user's settings for it.
///
/// # Errors
///
/// An option that none of them takes, or a file that cannot be read.
pub fn planners<'n>(
    names: impl IntoIterator<Item = &'n str>,
    options: &PlannerOptions,
    network: &DqnArgs,
) -> Result<Vec<&'static dyn Planner>> {
    let (mut swap_least, mut marks) = (options.swap_least.is_some(), options.marks.is_some());
    let mut planners = Vec::new();
    for name in names {
        let thresholded = options.swap_least.and_then(|least| autoswap::with_threshold(name, least));
        planners.push(match (&options.marks, thresholded) {
            (Some(path), _) if name == "marked" => {
                marks = false;
                leak(Box::new(read(path)?))
            }
            (_, Some(planner)) => {
                swap_least = false;
                leak(planner)
            }
            _ => learning::planner(name, network)?,
        });
    }
    if swap_least {
        bail!("--swap-least is for the planners doa, aoa, wdoa, swdoa, autoswap, bo and bo-margin; name one");
    }
    if marks {
        bail!("--marks is for the planner marked; add --planner marked");
    }
    Ok(planners)
}

fn read(path: &Path) -> Result<Marked> {
    let bytes = files::bounded(path, LARGEST)?;
    let text = files::text(path, &bytes, "a list of marks")?;
    Marked::read(text).with_context(|| format!("{} cannot be used", path.display()))
}

/// Planners live as long as the process, which makes each of them once.
fn leak(planner: Box<dyn Planner>) -> &'static dyn Planner {
    Box::leak(planner)
}
