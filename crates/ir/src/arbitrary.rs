//! Generators for tests: small traces, legal plans for them, and plans broken in a single place.
//!
//! They draw from [`Unstructured`], so that a property test can be shrunk and replayed. The cases are small (a few ops, tensors of a few
//! bytes) but contain every feature of traces and plans: mutations, permitted and chosen reuse, several outputs, tensors read twice, ops
//! that draw random numbers, ops that must not be recomputed, persistent tensors that end as another tensor; orders other than the trace's;
//! tensors kept, offloaded, evicted and recomputed; boundary states on the device, on the host and on both, and boundary buffers that are
//! released and taken again.

mod change;
mod placement;
mod plan;
mod trace;

use std::sync::Arc;

use ::arbitrary::{Result, Unstructured};

pub use change::changed;
pub use placement::placement;
pub use plan::plan;
pub use trace::trace;

use crate::machine::Machine;
use crate::plan::Plan;
use crate::trace::Trace;

/// A trace, a legal plan for it, and the machine on which the plan is legal.
#[derive(Clone, Debug)]
pub struct Case {
    /// The trace.
    pub trace: Arc<Trace>,
    /// A machine with just enough memory for the plan, or a little more.
    pub machine: Machine,
    /// The plan.
    pub plan: Plan,
}

impl Case {
    /// Draws a case.
    pub fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        let trace = trace(u)?;
        let (machine, plan) = plan(u, &trace)?;
        Ok(Self { trace: Arc::new(trace), machine, plan })
    }

    /// The same case with its plan changed in one place. Most changes break the plan; some make no difference.
    pub fn changed(&self, u: &mut Unstructured<'_>) -> Result<Self> {
        let plan = changed(u, &self.trace, &self.plan)?;
        Ok(Self { trace: self.trace.clone(), machine: self.machine.clone(), plan })
    }
}
