"""Which op decides how small a limit can be: the one at which the plan with the smallest limit has most bytes alive."""

from __future__ import annotations

import torch

from . import size
from .joint import Joint, Op, Storage, place
from .program import COMPUTE, PREFETCH, RECOMPUTE, RELEASE


def deciding(joint: Joint, planned) -> str:
    """A sentence on the op with most bytes alive in a schedule of a joint graph."""
    sizes: dict[int, Storage] = {}
    live: dict[int, Storage] = {}
    peak, decides, largest = -1, None, []
    tangents = list(dict.fromkeys(joint.storage[node] for node in joint.tangents if node in joint.storage and joint.storage[node].tensor is not None))
    for kind, number, _, writes in planned.actions:
        op = None
        if kind in (COMPUTE, RECOMPUTE):
            op = joint.op_numbers[number]
            makes = [s for s in op.makes if s.tensor is not None] if isinstance(op, Op) else tangents if op == "loss" else []
            sizes.update(zip(writes, makes))
        elif kind == PREFETCH and number < len(joint.tensors):
            sizes[writes[0]] = joint.tensors[number]
        if kind == RELEASE:
            live.pop(number, None)
        live.update((buffer, sizes[buffer]) for buffer in writes if buffer in sizes)
        alive = sum(storage.bytes for storage in live.values()) + (op.workspace if isinstance(op, Op) else 0)
        if isinstance(op, Op) and alive > peak:
            peak, decides = alive, op.node
            largest = sorted(live.values(), key=lambda storage: -storage.bytes)[:3]
    if decides is None:
        return ""
    where = place(decides)
    called = f", called at {where}" if where else ""
    target = decides.target if isinstance(decides.target, torch._ops.OpOverload) else decides.target.__name__
    named = ", ".join(f"{storage.node} ({size.show(storage.bytes)})" for storage in largest)
    return (
        f"; there {decides} ({target}{called}) decides, with {size.show(peak)} of the step's tensors alive "
        f"at once, the largest of which are {named}"
    )
