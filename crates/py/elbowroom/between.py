"""Ops that PyTorch runs outside of the captured graphs of a step."""

from __future__ import annotations

import torch
import torch._dynamo
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .errors import UnsupportedError

NOT_CAPTURED = (
    "PyTorch ran the model without capturing it, so the limit was not kept: a dispatch mode is active, compilation is switched off "
    "(TORCHDYNAMO_DISABLE), or the model's forward is marked as not to be compiled"
)


#: Where PyTorch defines functions with a backward pass of their own that a captured step may have: the graphs themselves, and wrappers of the model.
_OWN = ("torch._functorch", "torch._dynamo", "torch.nn.parallel")


def check_functions(results, inputs) -> None:
    """Refuses results that come from a ``torch.autograd.Function`` which PyTorch did not capture: no op of its forward pass shows gradients,
    so :class:`Between` does not refuse them, and the memory of its backward pass is in no plan."""
    pending = [leaf.grad_fn for leaf in results if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None]
    seen = {leaf.grad_fn for leaf in inputs if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None}
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and not function.__module__.startswith(_OWN):
            raise UnsupportedError(
                f"PyTorch runs the function {function.__module__}.{function.__qualname__} outside of the captured graphs, and the memory of its backward "
                "pass cannot be planned, so no limit would hold"
            )
        pending.extend(after for after, _ in node.next_functions if after is not None)


def capture_ends(before=None) -> dict[str, int]:
    """Why PyTorch ended captures so far, or since ``before``, and how often. It says so even where it then captures nothing at all."""
    found: dict[str, int] = {}
    for kind in ("unimplemented", "graph_break"):
        for reason, count in torch._dynamo.utils.counters[kind].items():
            lines = [line.strip() for line in reason.splitlines()[:2]]
            reason = ": ".join(line.removeprefix("Explanation: ") for line in lines if line)
            found[reason] = found.get(reason, 0) + count
    return {reason: count for reason, count in found.items() if count > (before or {}).get(reason, 0)}


class Between(TorchDispatchMode):
    """Sees the ops that PyTorch runs outside of the captured graphs, whose memory no plan covers.

    Bytes of those without gradients are counted. Those with gradients have a backward pass that cannot be planned, so they are refused.
    """

    def __init__(self, step):
        super().__init__()
        self.step = step

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if self.step.inside:
            return result
        made = [leaf for leaf in tree_leaves(result) if type(leaf) is torch.Tensor and leaf.device.type != "meta"]
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(type(leaf) not in (torch.Tensor, torch.nn.Parameter) for leaf in read):
            return result  # The compiler's own.
        other = next((leaf.layout for leaf in made + read if leaf.layout != torch.strided), None)
        if other is not None:
            raise UnsupportedError(f"PyTorch runs {func} outside of the captured graphs on a tensor of layout {other}; only strided tensors are planned")
        known = {leaf.untyped_storage()._cdata for leaf in read}
        fresh = [leaf for leaf in made if leaf.untyped_storage()._cdata not in known]
        if fresh and torch.is_grad_enabled() and any(leaf.requires_grad for leaf in read):
            if not self.step.graphs and torch._dynamo.config.disable:
                raise UnsupportedError(NOT_CAPTURED)
            breaks = "; ".join(self.step.report.graph_breaks or capture_ends(self.step.capture_ends)) or "the model calls what PyTorch does not capture"
            raise UnsupportedError(
                f"PyTorch runs {func} outside of the captured graphs, so its memory in the backward pass cannot be planned and no limit would "
                f"hold. Why the capture ended: {breaks}"
            )
        self.step.outside(fresh)
        return result
