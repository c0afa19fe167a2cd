//! What the user has decided, whatever the planner decided: a tensor that is kept has no gaps, and a persistent tensor is where it was put.

use std::borrow::Cow;

use elbowroom_ir::TensorId;
use elbowroom_ir::planning::{Pins, Request};

use crate::policy::{Boundary, GapAction, Policy, Touches};

/// The policy that obeys the request's pins.
pub(crate) fn obeying<'a>(request: &Request<'_>, policy: &'a Policy) -> Cow<'a, Policy> {
    let Some(pins) = request.pins else { return Cow::Borrowed(policy) };
    let mut policy = policy.clone();
    policy.gaps.retain(|gap, _| !pins.kept.contains(&gap.value));
    let pairs = request.trace.persistent().iter().zip(&mut policy.boundaries).enumerate();
    for (index, (pair, boundary)) in pairs {
        if pins.hosted.contains(&index) {
            *boundary = Boundary::Host;
        } else if pins.kept.contains(&pair.begin) || pins.kept.contains(&pair.end) {
            *boundary = Boundary::Device;
        }
    }
    Cow::Owned(policy)
}

/// The same for the actions of gaps, listed by touch.
pub(crate) fn actions<'a>(
    pins: Option<&Pins>,
    touches: &Touches,
    actions: &'a [Option<GapAction>],
) -> Cow<'a, [Option<GapAction>]> {
    let Some(pins) = pins else { return Cow::Borrowed(actions) };
    let mut actions = actions.to_vec();
    for &TensorId(value) in &pins.kept {
        let numbers = touches.numbers(TensorId(value));
        actions[numbers.start as usize..numbers.end as usize].fill(None);
    }
    Cow::Owned(actions)
}
