"""Ops that may write their result into an argument that nothing needs any more: the same kernel on the same numbers, and one tensor fewer.

Only pointwise ops may: each element of their result depends on the elements of the arguments at the same place, so their kernels permit a result
that is an argument. A form of the operator that writes into given bytes is used where the device has a kernel of its own for it; the
forms that PyTorch generates from the others compute a new tensor and copy it, which would save nothing.
"""

from __future__ import annotations

import functools

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

#: Devices whose kernels are known, with the names under which they are registered.
_KERNELS = {"cpu": "CPU", "cuda": "CUDA"}

#: Overloads that hand a number, as a tensor, to one that has a kernel.
_NUMBERS = {"add_.Scalar", "sub_.Scalar", "mul_.Scalar", "div_.Scalar"}


def _arguments(schema) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in schema.arguments if not argument.is_out]


@functools.cache
def _into(target, kernels: str):
    """The form of a pointwise operator that writes into given bytes: the overload and the name of the argument for its result, which is ``None``
    if it overwrites its first argument. ``None`` if there is no such form."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or torch.Tag.pointwise not in target.tags:
        return None
    has_kernel = lambda overload: torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), kernels)  # noqa: E731
    packet = target.overloadpacket
    for name in packet.overloads():
        overload = getattr(packet, name)
        given = [argument.name for argument in overload._schema.arguments if argument.is_out]
        if len(given) == 1 and _arguments(overload._schema) == _arguments(target._schema) and has_kernel(overload):
            return overload, given[0]
    in_place = getattr(torch.ops.aten, f"{packet.__name__}_", None)
    if isinstance(in_place, torch._ops.OpOverloadPacket) and target._overloadname in in_place.overloads():
        overload = getattr(in_place, target._overloadname)
        if _arguments(overload._schema) == _arguments(target._schema) and (has_kernel(overload) or str(overload).removeprefix("aten.") in _NUMBERS):
            return overload, None
    return None


def reusable(node: fx.Node) -> list[fx.Node]:
    """The arguments of a node whose bytes may receive its result, if nothing else reads them afterwards."""
    result = node.meta.get("val")
    if not isinstance(result, torch.Tensor) or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return []
    kernels = _KERNELS.get(result.device.type)
    form = _into(node.target, kernels) if kernels else None
    if form is None:
        return []
    arguments = [leaf for leaf in tree_leaves((node.args, node.kwargs)) if isinstance(leaf, fx.Node) and isinstance(leaf.meta.get("val"), torch.Tensor)]
    candidates = arguments if form[1] else [argument for argument in arguments[:1] if argument is node.args[0]]
    return [argument for argument in dict.fromkeys(candidates) if _fits(argument, arguments, result)]


def _fits(argument: fx.Node, arguments: list[fx.Node], result: torch.Tensor) -> bool:
    """Whether a result laid out as it would be by itself fills the bytes of an argument, and no other argument shows these bytes otherwise."""
    value = argument.meta["val"]
    storage = value.untyped_storage()
    if _layout(value) != _layout(result) or value.numel() * value.element_size() != storage.nbytes():
        return False
    others = (other.meta["val"] for other in arguments)
    return all(other.untyped_storage()._cdata != storage._cdata or _layout(other) == _layout(value) for other in others)


def _layout(tensor: torch.Tensor):
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.storage_offset()


def form(node: fx.Node):
    """What to call with the node's arguments so that the result takes the bytes of one, and the keyword that names it, if any."""
    return _into(node.target, _KERNELS[node.meta["val"].device.type])
