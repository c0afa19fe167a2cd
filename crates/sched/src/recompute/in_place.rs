//! `none`, `inplace` and `sharing`: Chen et al., section 3. Reuse of the buffers of dying inputs, without any eviction.
//!
//! `none` gives every tensor a buffer of its own. `inplace` lets an output take the buffer of an input that dies there, wherever the
//! trace permits it. `sharing` decides the same; the rest of it, reuse of whole buffers whose tensors are dead (Fig. 2), is done by the packer
//! of that name.

use std::collections::BTreeSet;

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};
use elbowroom_ir::trace::Trace;

use crate::policy::{Boundary, Policy, Reuses};
use crate::recompute::answer;

/// Every tensor has its own buffer. See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Separate;

/// Outputs take the buffers of dying inputs. See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct InPlace;

/// The same, for the packer that shares whole buffers. See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sharing;

impl Planner for Separate {
    fn name(&self) -> &'static str {
        "none"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        answer(request, Some(&separate(request.trace)), 1)
    }
}

impl Planner for InPlace {
    fn name(&self) -> &'static str {
        "inplace"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        answer(request, Some(&Policy::keep(request.trace)), 1)
    }
}

impl Planner for Sharing {
    fn name(&self) -> &'static str {
        "sharing"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        answer(request, Some(&Policy::keep(request.trace)), 1)
    }
}

/// Keeps everything and reuses nothing, unless the end of a persistent tensor can be in the buffer of its beginning only by reuse.
fn separate(trace: &Trace) -> Policy {
    let mut policy = Policy::keep(trace);
    let at_boundaries = trace.persistent().iter().zip(&policy.boundaries);
    let bound: BTreeSet<_> = at_boundaries
        .filter(|(pair, boundary)| {
            **boundary != Boundary::Host && trace.storage(pair.begin) != trace.storage(pair.end)
        })
        .map(|(pair, _)| pair.end)
        .collect();
    policy.reuses = if bound.is_empty() { Reuses::Never } else { Reuses::Only(bound) };
    policy
}
