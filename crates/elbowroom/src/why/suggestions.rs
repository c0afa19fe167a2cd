//! Ways to a lower peak, each with the figures of a plan or schedule that was made.

use elbowroom_ir::Bytes;
use elbowroom_ir::search::Observer;
use serde::Serialize;

use super::{Group, Kind, Means, Saving, Why, unlimited};
use crate::pipeline::{self, Planned, Task};
use crate::report::PlanReport;

/// Suggestions, at most.
const SUGGESTIONS: usize = 3;

/// Shares of the unconstrained peak that are planned, in percent, until one costs more than [`CHEAP`].
const SHARES: [u64; 7] = [90, 80, 70, 60, 50, 40, 30];

/// An overhead that most trainings can afford.
const CHEAP: f64 = 0.05;

/// One way to a lower peak.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Suggestion {
    /// What to do, in one sentence with its figures.
    pub text: String,
    /// The memory that is then needed: peak live memory of a treatment, or the limit of a plan.
    pub bytes: Bytes,
    /// Bytes less than now.
    pub saved_bytes: Bytes,
    /// Predicted overhead; `None` if a history of allocations does not tell it.
    pub overhead: Option<f64>,
}

/// Adds the suggestions and the smallest limit.
pub(super) fn complete(
    why: &mut Why,
    task: &Task,
    means: &Means<'_>,
    unconstrained: &Planned,
    observer: &dyn Observer,
) {
    let mut suggestions = if why.allocations_only {
        without(why)
    } else {
        let mut suggestions: Vec<Suggestion> = treatment(why).into_iter().collect();
        suggestions.extend(limits(why, task, means, unconstrained.height(), observer));
        suggestions
    };
    suggestions.truncate(SUGGESTIONS);
    why.suggestions = suggestions;
}

/// How a group is named in a sentence.
fn named(group: &Group) -> String {
    match group.kind {
        Kind::Allocation => format!("what is allocated at {}", group.module),
        kind => format!("{} of {}", plural(kind), group.module),
    }
}

const fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Parameter => "parameters",
        Kind::OptimizerState => "the optimizer state",
        Kind::Activation => "activations",
        Kind::Gradient => "gradients",
        Kind::Update => "temporaries of the update",
        Kind::Workspace => "workspace",
        Kind::Allocation => "allocations",
    }
}

fn percent(overhead: f64) -> String {
    format!("{:+.1} %", 100.0 * overhead)
}

/// The treatment of one group, or of the updates, that saves most; one that is cheap goes before one that is not.
fn treatment(why: &Why) -> Option<Suggestion> {
    let groups = why.groups.iter().flat_map(|group| {
        let offload = group.offload.as_ref().map(|saving| (format!("offload {}", named(group)), saving));
        let recompute =
            group.recompute.as_ref().map(|saving| (format!("recompute {}", named(group)), saving));
        offload.into_iter().chain(recompute)
    });
    let prompt = why.prompt_updates.as_ref();
    let prompt = prompt.map(|saving| ("run each update right behind its gradient".to_owned(), saving));
    let saves = |(_, saving): &(String, &Saving)| !saving.saved_bytes.is_zero();
    let (what, saving) = groups.chain(prompt).filter(saves).max_by(|(_, a), (_, b)| {
        let rank = |saving: &Saving| (saving.overhead <= CHEAP, saving.saved_bytes);
        rank(a).cmp(&rank(b)).then(b.overhead.total_cmp(&a.overhead))
    })?;
    Some(Suggestion {
        text: format!(
            "{what}: the peak falls by {} to {}, then at {} (overhead {})",
            saving.saved_bytes,
            saving.peak_bytes,
            saving.next_peak.op,
            percent(saving.overhead)
        ),
        bytes: saving.peak_bytes,
        saved_bytes: saving.saved_bytes,
        overhead: Some(saving.overhead),
    })
}

/// A cheap limit and the smallest one.
fn limits(
    why: &mut Why,
    task: &Task,
    means: &Means<'_>,
    peak: Bytes,
    observer: &dyn Observer,
) -> Vec<Suggestion> {
    let overhead = |planned: &Planned| PlanReport::overhead(planned.predicted.iteration, unlimited(task));
    let now = why.arena_bytes;
    let suggestion = |planned: &Planned, what: &str, memory: &str| {
        let limit = planned.plan.machine().memory;
        let cost = overhead(planned);
        let text = format!(
            "{what}: plan with --memory {memory} ({limit}, {:.0} % of the unconstrained peak; overhead {})",
            100.0 * limit.ratio(peak),
            percent(cost)
        );
        Suggestion { text, bytes: limit, saved_bytes: now.saturating_sub(limit), overhead: Some(cost) }
    };
    let mut cheap = None;
    for share in SHARES {
        let limit = Bytes(peak.get() / 100 * share);
        if observer.interrupted() || limit < why.floor_bytes {
            break;
        }
        match pipeline::plan(&task.with_memory(limit), means.method, observer) {
            Ok(planned) if overhead(&planned) <= CHEAP => cheap = Some(planned),
            _ => break,
        }
    }
    let smallest = pipeline::smallest(task, means.smallest, peak, observer).ok().map(|found| {
        let at_limit = task.with_memory(found.plan.machine().memory);
        match pipeline::plan(&at_limit, means.method, observer) {
            Ok(planned) if planned.predicted.iteration < found.predicted.iteration => planned,
            _ => found,
        }
    });
    let below = |planned: &&Planned| planned.plan.machine().memory < now;
    let cheap = cheap.as_ref().filter(below);
    let cheap = cheap.map(|planned| {
        suggestion(planned, "nearly for free", &planned.plan.machine().memory.get().to_string())
    });
    let smallest = smallest.as_ref().filter(|planned| planned.plan.machine().memory < peak);
    why.smallest_limit_bytes = smallest.map(|planned| planned.plan.machine().memory);
    let smallest =
        smallest.filter(below).map(|planned| suggestion(planned, "the smallest limit found", "min"));
    cheap.into_iter().chain(smallest).collect()
}

/// The groups without which the peak would be lowest. When a tensor of a history of allocations was used is unknown, so this is all that can be
/// said.
fn without(why: &Why) -> Vec<Suggestion> {
    let saved = |group: &Group| why.peak_live_bytes.saturating_sub(group.peak_without_bytes);
    let mut groups: Vec<&Group> = why.groups.iter().filter(|group| !saved(group).is_zero()).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(saved(group)));
    let suggestion = |group: &Group| Suggestion {
        text: format!(
            "release or offload {} before {}: the peak falls by {} at most, to {}, then at {}",
            named(group),
            why.peak.op,
            saved(group),
            group.peak_without_bytes,
            group.next_peak.op
        ),
        bytes: group.peak_without_bytes,
        saved_bytes: saved(group),
        overhead: None,
    };
    groups.into_iter().map(suggestion).collect()
}
