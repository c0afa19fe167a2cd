"""The quickest call of an operator: PyTorch's own function of the same name, where it is proved to be the same call.

An overload called as ``torch.ops.aten.mul.Tensor(a, b)`` matches its arguments against its schema each time; ``torch.mul(a, b)`` has a parser
that was compiled for it and takes about half as long. The functions are not the operators: they choose between overloads, fill in defaults
and decompose. So both are called once with the traced arguments under a mode that records what reaches the dispatcher and computes
nothing, and the function is used only if the two records are the same.
"""

from __future__ import annotations

import functools

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from .costs import overload_name

_BUILTIN = type(torch.mul)
_METHOD = type(torch.Tensor.view)


class _Recorded(Exception):
    """Carries a call out of the dispatcher."""


class _Recorder(TorchDispatchMode):
    """Ends every operator before it computes."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise _Recorded(func, args, kwargs or {})


def _record(call, args, kwargs):
    """What reaches the dispatcher first, or ``None``."""
    try:
        with _Recorder():
            call(*args, **kwargs)
    except _Recorded as recorded:
        return recorded.args
    except Exception:  # A function whose signature differs from the schema refuses the arguments.
        return None
    return None


def _same(one, two) -> bool:
    """Whether two records are the same call: tensors by identity, everything else by type and value."""
    if one is None or two is None or one[0] is not two[0]:
        return False
    (first, first_shape), (second, second_shape) = tree_flatten(one[1:]), tree_flatten(two[1:])
    if first_shape != second_shape:
        return False
    return all(a is b or (not isinstance(a, torch.Tensor) and type(a) is type(b) and a == b) for a, b in zip(first, second))


@functools.cache
def _candidate(name: str):
    """PyTorch's function or method of this name, if it is compiled code."""
    for place, kind in ((torch, _BUILTIN), (torch.Tensor, _METHOD)):
        found = getattr(place, name, None)
        if isinstance(found, kind):
            return found
    return None


def quickest(node: fx.Node):
    """What to call with the node's arguments: PyTorch's function, or the operator itself."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return target
    function = _candidate(overload_name(target))
    if function is None:
        return target
    args, kwargs = tree_map(lambda leaf: leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf, (node.args, node.kwargs))
    with torch.no_grad():
        operator = _record(target, args, kwargs)
        # An operator that is made of others reaches the dispatcher as the first of them only, which proves nothing about the rest.
        proved = operator is not None and operator[0] is target and _same(operator, _record(function, args, kwargs))
    return function if proved else target
