//! A plan prepared for a session: addresses resolved, host copies placed.

use elbowroom_graph::Graph;
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::trace::Trace;

use crate::error::EngineError;
use crate::host::slots::HostCopies;
use crate::persistent::PersistentLocation;
use crate::program::{PlannedLocation, Program};

/// A plan with its program and its host copies.
pub(crate) struct PreparedPlan {
    pub program: Program,
    pub copies: HostCopies,
    pub locations: Vec<PlannedLocation>,
}

impl PreparedPlan {
    /// Resolves the addresses of a plan of this graph; `ours` is the graph's trace. The plan was proved for its own trace, and kernels run on
    /// its addresses: the traces are compared as a whole, because two may be made to have the same fingerprint.
    pub fn new(graph: &Graph, ours: &Trace, plan: &CheckedPlan) -> Result<Self, EngineError> {
        if !std::ptr::eq(ours, &raw const **plan.trace()) && *ours != **plan.trace() {
            let (plan, graph) = (plan.trace().fingerprint(), ours.fingerprint());
            return Err(EngineError::ForeignPlan { plan, graph });
        }
        let copies = HostCopies::place(plan);
        let program = Program::new(plan, &copies);
        let locations = graph.persistent.iter().map(|parameter| {
            let place = plan.trace().persistent().binary_search_by_key(&parameter.begin, |pair| pair.begin);
            // The traces are equal, so the plan's has exactly the graph's persistent tensors.
            program.locations[place.unwrap_or_default()]
        });
        let locations = locations.collect();
        Ok(Self { program, copies, locations })
    }

    pub fn resolved_locations(&self) -> Vec<PersistentLocation> {
        self.locations.iter().map(|location| location.resolve(&self.copies)).collect()
    }
}

impl PlannedLocation {
    pub fn resolve(&self, copies: &HostCopies) -> PersistentLocation {
        PersistentLocation {
            bytes: self.bytes,
            device: self.device,
            host: self.host.map(|copy| copies.offsets[copy]),
        }
    }
}
