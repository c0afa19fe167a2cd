//! Plans changed in a single place: the checker must reject each of them unless the change makes no difference.

use ::arbitrary::{Result, Unstructured};

use crate::plan::Plan;
use crate::schedule::{Action, BoundaryState, Schedule, Step};
use crate::trace::{Fingerprint, Trace};
use crate::{ActionId, BufferId, Bytes, Id, OpId, Table, TensorId};

/// Draws one change of a plan. The result differs from the plan unless the plan offers nothing to change.
pub fn changed(u: &mut Unstructured<'_>, trace: &Trace, plan: &Plan) -> Result<Plan> {
    for _ in 0..20 {
        let mut result = plan.clone();
        change(u, trace, &mut result)?;
        if result != *plan {
            return Ok(result);
        }
    }
    // The data to draw from are exhausted.
    let mut result = plan.clone();
    result.trace = Fingerprint(!plan.trace.0);
    Ok(result)
}

fn change(u: &mut Unstructured<'_>, trace: &Trace, plan: &mut Plan) -> Result<()> {
    let kind = u.int_in_range(0..=19)?;
    let schedule = &mut plan.schedule;
    let (buffers, steps) = (schedule.buffers.len(), schedule.steps.len());
    match kind {
        // Offsets and sizes.
        0 | 1 if buffers > 0 => {
            let offset = &mut plan.placement.offsets[BufferId::new(u.choose_index(buffers)?)];
            let by = *u.choose(&[8, 4, 1, 16])?;
            *offset = Bytes(if u.arbitrary()? { offset.get() + by } else { offset.get().saturating_sub(by) });
        }
        2 if buffers > 0 => {
            let (a, b) = (BufferId::new(u.choose_index(buffers)?), BufferId::new(u.choose_index(buffers)?));
            let offsets = &mut plan.placement.offsets;
            if u.arbitrary()? {
                (offsets[a], offsets[b]) = (offsets[b], offsets[a]);
            } else {
                offsets[a] = offsets[b];
            }
        }
        3 => plan.placement.height = Bytes(u.int_in_range(0..=2 * plan.placement.height.get())?),
        4 if buffers > 0 => {
            let bytes = &mut schedule.buffers[BufferId::new(u.choose_index(buffers)?)].bytes;
            *bytes = Bytes(u.int_in_range(0..=2 * bytes.get())?);
        }
        // Order and waits.
        5 if steps > 0 => {
            let mut order: Vec<usize> = (0..steps).collect();
            order.remove(u.choose_index(steps)?);
            reorder(schedule, &order);
        }
        6 if steps > 0 => {
            let mut order: Vec<usize> = (0..steps).collect();
            let step = u.choose_index(steps)?;
            let copy = u.int_in_range(step + 1..=steps)?;
            order.insert(copy, step);
            reorder(schedule, &order);
            let action = &mut schedule.steps[ActionId::new(copy)].action;
            if let Action::Compute(launch) = action
                && u.arbitrary()?
            {
                *action = Action::Recompute(launch.clone());
            }
        }
        7 | 8 if steps > 1 => {
            let mut order: Vec<usize> = (0..steps).collect();
            let a = u.choose_index(steps - 1)?;
            let b = if u.ratio(2, 3)? { a + 1 } else { u.choose_index(steps)? };
            order.swap(a, b);
            reorder(schedule, &order);
        }
        9 if steps > 1 => {
            let mut order: Vec<usize> = (0..steps).collect();
            let step = order.remove(u.choose_index(steps)?);
            order.insert(u.choose_index(steps)?, step);
            reorder(schedule, &order);
        }
        10..=12 if steps > 0 => waits(u, schedule)?,
        // Actions.
        13..=17 if steps > 0 => {
            let id = ActionId::new(u.choose_index(steps)?);
            action(u, trace, buffers, &mut schedule.steps[id].action)?;
        }
        // The boundary.
        18 if !schedule.boundary.is_empty() => {
            let index = u.choose_index(schedule.boundary.len())?;
            let at_boundary = schedule.boundary[index];
            schedule.boundary[index] = match u.int_in_range(0..=2)? {
                0 => BoundaryState { host: !at_boundary.host, ..at_boundary },
                1 if at_boundary.device.is_some() => BoundaryState { device: None, ..at_boundary },
                _ => BoundaryState { device: Some(buffer(u, buffers)?), ..at_boundary },
            };
        }
        19 if !schedule.boundary.is_empty() => {
            let last = schedule.boundary.len() - 1;
            match u.int_in_range(0..=2)? {
                0 => schedule.boundary.truncate(last),
                1 => schedule.boundary.swap(0, last),
                _ => schedule.boundary.push(BoundaryState::HOST),
            }
        }
        _ => {}
    }
    Ok(())
}

/// Reorders steps, with repetitions and omissions. Waits follow the actions that they name.
fn reorder(schedule: &mut Schedule, order: &[usize]) {
    let old = std::mem::take(&mut schedule.steps);
    let position = |wait: ActionId| order.iter().position(|&step| step == wait.index()).map(ActionId::new);
    let steps = order.iter().map(|&step| {
        let Step { action, waits } = &old.as_slice()[step];
        Step { action: action.clone(), waits: waits.iter().filter_map(|&wait| position(wait)).collect() }
    });
    schedule.steps = steps.collect::<Table<ActionId, Step>>();
}

fn waits(u: &mut Unstructured<'_>, schedule: &mut Schedule) -> Result<()> {
    let steps = schedule.steps.len();
    let with_waits: Vec<ActionId> =
        schedule.steps.iter().filter(|(_, step)| !step.waits.is_empty()).map(|(id, _)| id).collect();
    if with_waits.is_empty() || u.ratio(1, 8)? {
        let id = ActionId::new(u.choose_index(steps)?);
        schedule.steps[id].waits.push(ActionId::new(u.choose_index(steps)?));
        return Ok(());
    }
    let waits = &mut schedule.steps[*u.choose(&with_waits)?].waits;
    let index = u.choose_index(waits.len())?;
    if u.ratio(2, 3)? {
        waits.remove(index);
    } else {
        waits[index] = ActionId::new(u.choose_index(steps)?);
    }
    Ok(())
}

/// A buffer of the schedule, or sometimes one past the last.
fn buffer(u: &mut Unstructured<'_>, buffers: usize) -> Result<BufferId> {
    Ok(BufferId::new(u.int_in_range(0..=buffers)?))
}

fn action(u: &mut Unstructured<'_>, trace: &Trace, buffers: usize, action: &mut Action) -> Result<()> {
    match action {
        Action::Compute(launch) | Action::Recompute(launch) => match u.int_in_range(0..=7)? {
            0 => {
                let launch = launch.clone();
                let first = matches!(action, Action::Compute(_));
                *action = if first { Action::Recompute(launch) } else { Action::Compute(launch) };
            }
            1 => launch.op = OpId::new(u.int_in_range(0..=trace.ops().len())?),
            2 | 3 if !launch.reads.is_empty() => {
                let index = u.choose_index(launch.reads.len())?;
                launch.reads[index] = buffer(u, buffers)?;
            }
            4 if launch.reads.len() > 1 => launch.reads.reverse(),
            5 if !launch.writes.is_empty() => {
                let index = u.choose_index(launch.writes.len())?;
                launch.writes[index] = buffer(u, buffers)?;
            }
            6 => launch.workspace = if u.arbitrary()? { Some(buffer(u, buffers)?) } else { None },
            7 if launch.writes.len() > 1 => launch.writes.reverse(),
            _ => {
                launch.writes.pop();
            }
        },
        Action::Offload { tensor: value, from: buffer_of }
        | Action::Prefetch { tensor: value, to: buffer_of } => {
            if u.arbitrary()? {
                *value = TensorId::new(u.int_in_range(0..=trace.tensors().len())?);
            } else {
                *buffer_of = buffer(u, buffers)?;
            }
        }
        Action::Release { buffer: released } => *released = buffer(u, buffers)?,
        Action::HostRelease { tensor: value } => {
            *value = TensorId::new(u.int_in_range(0..=trace.tensors().len())?)
        }
    }
    Ok(())
}
