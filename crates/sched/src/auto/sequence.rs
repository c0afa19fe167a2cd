//! From repeats to a policy: the sequence, and every value dropped in each gap at whose end it is made again.

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Id, OpId, TensorId};

use super::search::Repeats;
use crate::policy::{Away, Policy, Touches};

/// The policy that runs these ops again, each before the op of the trace that is its stage.
pub(crate) fn policy(request: &Request<'_>, repeats: &Repeats) -> Policy {
    let mut policy = Policy::keep(request.trace);
    policy.sequence.clear();
    let mut again = repeats.iter().peekable();
    for op in request.trace.ops().ids() {
        while let Some(&(_, repeat)) = again.next_if(|&&(stage, _)| stage == op.0) {
            policy.sequence.push(OpId(repeat));
        }
        policy.sequence.push(op);
    }
    drop_made_again(request, &mut policy);
    policy
}

fn drop_made_again(request: &Request<'_>, policy: &mut Policy) {
    let touches = Touches::of(request.trace, &policy.sequence);
    for value in (0..request.trace.tensors().len()).map(TensorId::new) {
        for (gap, end) in touches.gaps(value) {
            if end.made {
                policy.send(gap, Away::Drop);
            }
        }
    }
}
