//! The plan of a part, [derived](elbowroom_sched::derive) from the plan of the whole, placed and checked.

use std::sync::Arc;

use elbowroom_ir::check::{self, CheckedPlan, Illegal};
use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::plan::Plan;
use elbowroom_ir::search::{Budget, Observer};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{BufferId, Bytes, Table};
use elbowroom_pack::BestFit;
use elbowroom_sched::derive::{Derived, Holding, Underivable, derive};
use elbowroom_sched::lower::waits;
use elbowroom_sched::retry::PACKING_EVALUATIONS;
use elbowroom_sim::liveness;

/// Evaluations of the packer where [`PACKING_EVALUATIONS`] were in vain. Persistent tensors that the plan of the whole has at odd offsets leave
/// little room; an iteration without a plan takes longer than this.
const PATIENT_EVALUATIONS: u64 = 50 * PACKING_EVALUATIONS;

/// Why no plan of a part was derived.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Underived {
    /// There is no schedule.
    #[error(transparent)]
    Schedule(#[from] Underivable),
    /// Tensors that this structure needs for longer than the planned one do not fit between the others.
    #[error("tensors that this structure needs for longer do not fit within the {height} of the plan")]
    NoRoom {
        /// Arena size of the plan of the whole.
        height: Bytes,
    },
    /// The checker refuses the plan.
    #[error("the derived plan is illegal: {0}")]
    Illegal(#[from] Illegal),
}

/// Derives the plan of a part from the plan of the whole. Its arena is no larger, and the persistent tensors are at the same offsets between two
/// iterations. The plan is checked against the trace of the part. No search: takes about as long as the check, unless the placement of what
/// the part needs for longer is hard.
///
/// # Errors
///
/// An [`Underived`] if there is no such plan.
pub fn derived_plan(
    whole: &CheckedPlan,
    part: &Arc<Trace>,
    packer: &dyn Packer,
    observer: &dyn Observer,
) -> Result<CheckedPlan, Underived> {
    use Holding::{AsShortAsPossible, WhereThePlanHasBytes};
    // Quick attempts first. The fewer buffers stay where they are, the fewer are in the way of the others.
    let best_fit = (&BestFit as &dyn Packer, PACKING_EVALUATIONS);
    let attempts = [
        (WhereThePlanHasBytes, Fixed::AllInThePlan, best_fit),
        (WhereThePlanHasBytes, Fixed::Boundary, best_fit),
        (AsShortAsPossible, Fixed::AllInThePlan, best_fit),
        (AsShortAsPossible, Fixed::Boundary, best_fit),
        (WhereThePlanHasBytes, Fixed::Boundary, (packer, PACKING_EVALUATIONS)),
        (AsShortAsPossible, Fixed::Boundary, (packer, PACKING_EVALUATIONS)),
        (WhereThePlanHasBytes, Fixed::Boundary, (packer, PATIENT_EVALUATIONS)),
        (AsShortAsPossible, Fixed::Boundary, (packer, PATIENT_EVALUATIONS)),
    ];
    let height = whole.placement().height;
    for (holding, fixed, (packer, evaluations)) in attempts {
        let derived = derive(whole, part, holding)?;
        let placement = complete(whole, &derived, fixed, packer, evaluations, observer);
        let Some(placement) = placement.filter(|placement| placement.height <= height) else { continue };
        let mut schedule = derived.schedule;
        waits::thin(&mut schedule, &placement);
        let plan = Plan { trace: part.fingerprint(), schedule, placement };
        return Ok(check::check(part.clone(), whole.machine().clone(), plan)?);
    }
    Err(Underived::NoRoom { height })
}

/// Which buffers keep the offsets that they have in the plan of the whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fixed {
    /// All that have one.
    AllInThePlan,
    /// Those of persistent tensors between two iterations.
    Boundary,
}

/// A placement in which these buffers keep their offsets and the packer places the others.
fn complete(
    whole: &CheckedPlan,
    derived: &Derived,
    fixed: Fixed,
    packer: &dyn Packer,
    evaluations: u64,
    observer: &dyn Observer,
) -> Option<Placement> {
    let Derived { schedule, offsets: known } = derived;
    let all: Option<Vec<Bytes>> = known.values().copied().collect();
    let offsets = match all {
        Some(offsets) if fixed == Fixed::AllInThePlan => Table::from(offsets),
        _ => {
            let machine = whole.machine();
            let capacity = Some(whole.placement().height.align_up(machine.align));
            let mut problem = Problem { capacity, ..liveness::problem(schedule, machine) };
            let at_boundary = schedule.boundary.iter().filter_map(|state| state.device);
            let buffers: Vec<BufferId> = match fixed {
                Fixed::AllInThePlan => known.ids().collect(),
                Fixed::Boundary => at_boundary.collect(),
            };
            for buffer in buffers {
                problem.blocks[buffer].fixed = known[buffer];
            }
            packer.pack(&problem, &Budget::evaluations(evaluations), observer).best?.offsets
        }
    };
    Some(Placement { height: liveness::height(schedule, &offsets), offsets })
}
