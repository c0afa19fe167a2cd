//! `none`, `inplace` and `sharing`: Chen et al., section 3 and the first three allocation algorithms of section 5.1. Nothing is evicted.
//!
//! | planner | an output takes the bytes of a dying input | bytes of dead tensors are used again |
//! | --- | --- | --- |
//! | `none` | no | no |
//! | `inplace` | wherever the trace permits it | no |
//! | `sharing` | wherever the trace permits it | yes |
//!
//! `none` and `inplace` release nothing before the end of the iteration, so that every packer gives each of their buffers bytes of its own; only
//! workspaces, which the paper does not count, are shared. The packer `sharing` is the paper's way to use dead bytes again (Fig. 2).

use std::collections::BTreeSet;

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};
use elbowroom_ir::trace::Trace;

use crate::policy::{Boundary, Policy, Releases, Reuses};
use crate::recompute::answer;

/// Every tensor has its own buffer. See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Separate;

/// Outputs take the buffers of dying inputs. See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct InPlace;

/// The same, and the bytes of dead tensors are used again. See the [module](self).
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
        let policy = Policy { releases: Releases::End, ..Policy::keep(request.trace) };
        answer(request, Some(&policy), 1)
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

/// Keeps everything to the end and reuses nothing, unless the end of a persistent tensor can be in the buffer of its beginning only by reuse.
fn separate(trace: &Trace) -> Policy {
    let mut policy = Policy { releases: Releases::End, ..Policy::keep(trace) };
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
