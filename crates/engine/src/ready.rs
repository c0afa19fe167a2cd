//! A plan made ready for a session: its addresses looked up.

use elbowroom_graph::Graph;
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::trace::Fingerprint;

use crate::error::EngineError;
use crate::host::slots::Copies;
use crate::persistent::Place;
use crate::program::{PersistentHome, Program};

/// A plan made ready.
pub(crate) struct Ready {
    pub program: Program,
    pub copies: Copies,
    pub homes: Vec<PersistentHome>,
}

impl Ready {
    /// Looks up the addresses of a plan of this graph, whose own trace has the fingerprint `ours`.
    pub fn new(graph: &Graph, ours: Fingerprint, plan: &CheckedPlan) -> Result<Self, EngineError> {
        if ours != plan.trace().fingerprint() {
            return Err(EngineError::ForeignPlan { plan: plan.trace().fingerprint(), graph: ours });
        }
        let copies = Copies::place(plan);
        let program = Program::new(plan, &copies);
        let homes = graph.persistent.iter().map(|parameter| {
            let place = plan.trace().persistent().binary_search_by_key(&parameter.begin, |pair| pair.begin);
            // The fingerprints agree, so the trace has exactly the graph's persistent values.
            program.homes[place.unwrap_or_default()]
        });
        let homes = homes.collect();
        Ok(Self { program, copies, homes })
    }

    pub fn places(&self) -> Vec<Place> {
        self.homes.iter().map(|home| home.place(&self.copies)).collect()
    }
}

impl PersistentHome {
    pub fn place(&self, copies: &Copies) -> Place {
        Place { bytes: self.bytes, device: self.device, host: self.host.map(|copy| copies.offsets[copy]) }
    }
}
