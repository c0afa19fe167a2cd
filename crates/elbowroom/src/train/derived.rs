//! Plans that are derived from the plan of the largest structure, for structures that are parts of it.
//!
//! A network that leaves out blocks at random hardly ever runs the same structure twice, so that a search for each would be in vain. The plan of
//! the largest structure serves all of them: see [`elbowroom_sched::derive`].

use std::collections::HashMap;
use std::sync::Arc;

use elbowroom_engine::reserved_host_bytes;
use elbowroom_ir::Nanos;
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::planning::{CostSource, Costs};
use elbowroom_ir::trace::Fingerprint;
use elbowroom_sched::derive::same_ops;

use super::execution::UnderLimit;
use crate::pipeline::{Task, derived_plan};

/// What follows for a structure from the plan of the largest one.
#[derive(Clone)]
pub(super) enum Derivation {
    /// This plan.
    Plan(Arc<CheckedPlan>),
    /// Nothing.
    Refused,
}

impl Derivation {
    /// The plan, if there is one.
    pub(super) fn plan(&self) -> Option<&Arc<CheckedPlan>> {
        match self {
            Self::Plan(plan) => Some(plan),
            Self::Refused => None,
        }
    }
}

impl UnderLimit<'_> {
    /// Derives the plan of a structure, unless that has been tried.
    pub(super) fn derive(&mut self, key: Fingerprint) {
        let largest = &self.known[&self.main];
        let Some(known) = self.known.get(&key).filter(|known| known.derived.is_none() && !largest.unplanned)
        else {
            return;
        };
        let whole = &largest.planned.as_ref().unwrap_or(&self.estimated).plan;
        let (trace, machine) = (&known.task.trace, whole.machine());
        let derived = derived_plan(whole, trace, self.training.method.packer, self.observer);
        let derived = match derived {
            Ok(plan) if reserved_host_bytes(&plan) <= machine.host_memory => Ok(plan),
            Ok(_) => Err(format!("its host copies do not fit in {}", machine.host_memory)),
            Err(why) => Err(why.to_string()),
        };
        let derivation = match derived {
            Ok(plan) => {
                self.execution.derived_plans += 1;
                Derivation::Plan(Arc::new(plan))
            }
            Err(why) => {
                self.underived = Some(why);
                Derivation::Refused
            }
        };
        if let Some(known) = self.known.get_mut(&key) {
            known.derived = Some(derivation);
        }
    }

    /// The durations of the ops of the largest structure, as its parts have shown them. An op that no part had takes as much longer than
    /// estimated as the others of its kind do. `None` if no part ran.
    pub(super) fn costs_of_parts(&self, largest: &Task) -> Option<Costs> {
        let ops = largest.trace.ops();
        let mut nanos: Vec<Option<Nanos>> = vec![None; ops.len()];
        for part in self.known.values().filter(|known| known.runs > 0) {
            let Ok(same) = same_ops(&largest.trace, &part.task.trace) else { continue };
            let measured = part.costs.clone().median();
            for ((nanos, op), &same) in nanos.iter_mut().zip(ops.values()).zip(same.values()) {
                // A part of smaller tensors does less work.
                let same = same.filter(|&same| part.task.trace.ops()[same].work == op.work);
                *nanos = nanos.or(same.map(|same| measured.nanos[same]));
            }
        }
        // By kind, and under the empty name for all kinds: measured and estimated durations.
        let mut sums: HashMap<&str, [u128; 2]> = HashMap::new();
        for ((nanos, op), estimated) in nanos.iter().zip(ops.values()).zip(largest.costs.nanos.values()) {
            let Some(nanos) = nanos else { continue };
            for kind in [op.kind.as_str(), ""] {
                let [measured, predicted] = sums.entry(kind).or_default();
                *measured += u128::from(nanos.get());
                *predicted += u128::from(estimated.get());
            }
        }
        sums.get("").filter(|[measured, _]| *measured > 0)?;
        let scaled = |kind: &str, estimated: Nanos| {
            let known = [kind, ""].into_iter().filter_map(|kind| sums.get(kind)).find(|sums| sums[1] > 0);
            let Some([measured, predicted]) = known else { return estimated };
            Nanos(u64::try_from(u128::from(estimated.get()) * measured / predicted).unwrap_or(u64::MAX))
        };
        let estimated = ops.values().zip(largest.costs.nanos.values());
        let nanos = nanos.into_iter().zip(estimated);
        let nanos =
            nanos.map(|(nanos, (op, &estimated))| nanos.unwrap_or_else(|| scaled(&op.kind, estimated)));
        Some(Costs { nanos: nanos.collect(), source: CostSource::Measured })
    }
}
