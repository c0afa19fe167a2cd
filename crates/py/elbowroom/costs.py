"""How long an operator takes, estimated by its work and the rates of a device. The same on every rank, because nothing is measured.

The rates of GPUs were measured: ``bench/rates.py`` trains networks on one and prints what each class of operators reached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from .rewrite import FUNCTIONS, values


@dataclass(frozen=True)
class Rates:
    """What a device does in a second, and the nanoseconds that any operator takes."""

    flops: float
    """Floating-point operations of operators without a rate of their own."""
    bytes: float
    """Bytes read or written."""
    launch: float
    by_class: dict[tuple[str, str], float] = field(default_factory=dict)
    """Floating-point operations by class and type (see :func:`classify`)."""
    passes: dict[tuple[str, str], float] = field(default_factory=dict)
    """How many times as long as its bytes alone an operator of a class and type takes."""


#: Kernels read these several times, or badly.
_PASSES = {"norm": ("norm",), "sum": ("sum", "mean", "softmax")}
_PRODUCTS, _CONVOLUTIONS = ("mm", "addmm", "bmm", "baddbmm"), ("convolution", "convolution_backward")

#: Rates by type of device. Those of GPUs are of an H200 with PyTorch 2.11: what operators of at least 60 µs reached in training steps of ViT-L/16,
#: ResNet-152 and a Qwen3 of 0.6 billion parameters. Other GPUs differ, but products, normalizations and copies differ from each other in much the same way.
RATES = {
    "cpu": Rates(60e9, 12e9, 3000),
    "cuda": Rates(
        50e12,
        3.6e12,
        8000,
        {
            ("product", "float64"): 55e12,
            ("product", "float32"): 51e12,
            ("product", "tf32"): 215e12,
            ("product", "16"): 320e12,
            ("convolution", "float64"): 25e12,
            ("convolution", "float32"): 27e12,
            ("convolution", "tf32"): 77e12,
            ("convolution", "16"): 105e12,
            ("attention", "float32"): 19e12,
            ("attention", "tf32"): 19e12,
            ("attention", "16"): 72e12,
        },
        {("norm", "float32"): 3.0, ("norm", "tf32"): 3.0, ("norm", "16"): 7.0, ("sum", "float32"): 1.4, ("sum", "tf32"): 1.4, ("sum", "16"): 3.5},
    ),
}


def rates_of(device: str, given=None) -> Rates:
    """The rates of a type of device, or those given: :class:`Rates`, or the first three of its numbers."""
    if given is None:
        return RATES.get(device, RATES["cpu"])
    return given if isinstance(given, Rates) else Rates(*given)


def tensors_of(value) -> list[torch.Tensor]:
    """The tensors in a value of nested containers."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def overload_name(target) -> str:
    """The operator's name without its namespace and overload."""
    if target in FUNCTIONS:
        return target.__name__
    return target._schema.name.split("::")[-1] if isinstance(target, torch._ops.OpOverload) else str(target)


def classify(target, result) -> tuple[str, str]:
    """The class of an operator, and the type in which it computes: ``16`` for both types of two bytes, ``tf32`` where tensor cores round the
    factors of float32 to fewer digits."""
    name = overload_name(target)
    if name in _PRODUCTS:
        kind = "product"
    elif name in _CONVOLUTIONS:
        kind = "convolution"
    elif "attention" in name:
        kind = "attention"
    else:
        kind = next((kind for kind, parts in _PASSES.items() if any(part in name for part in parts)), "other")
    floating = [tensor for tensor in tensors_of(result) if tensor.is_floating_point()]
    dtype = floating[0].dtype if floating else torch.float32
    if dtype.itemsize == 2:
        return kind, "16"
    rounded = torch.backends.cudnn.allow_tf32 if kind == "convolution" else torch.backends.cuda.matmul.allow_tf32
    return kind, "tf32" if dtype == torch.float32 and rounded else str(dtype).removeprefix("torch.")


def estimate(node: fx.Node, rates: Rates | tuple[float, float, float] | None = None) -> int:
    """Duration of a node in nanoseconds; without `rates`, by those of its device."""
    return appraise(node, rates)[0]


def appraise(node: fx.Node, rates: Rates | tuple[float, float, float] | None = None) -> tuple[int, Work]:
    """Duration of a node in nanoseconds, as :func:`estimate` gives it, and what the node does."""
    nanos, done = 0, Work()
    for target, args, kwargs, result in node.meta.get("stands_for") or [values(node)]:
        one = work(target, args, kwargs, result)
        nanos, done = nanos + _time(target, result, one, rates), done + one
    return nanos, done


#: Operators that make a tensor without writing it.
_ALLOCATIONS = ("empty", "new_empty")


@dataclass(frozen=True)
class Work:
    """What a call does, whatever the device."""

    flops: int = 0
    """Floating-point operations, as PyTorch counts them, but for those of ``half_flops``."""
    half_flops: int = 0
    """Floating-point operations on numbers of two bytes."""
    moved: int = 0
    """Bytes read and written."""

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.half_flops + other.half_flops, self.moved + other.moved)


def work(target, args, kwargs, result) -> Work:
    """What one call of an operator does."""
    moved = 0 if overload_name(target).startswith(_ALLOCATIONS) else moved_bytes(args, kwargs, tensors_of(result))
    operations = flops(target, args, kwargs, result)
    return Work(0, operations, moved) if classify(target, result)[1] == "16" else Work(operations, 0, moved)


def duration(target, args, kwargs, result, rates: Rates | tuple[float, float, float] | None = None) -> int:
    """Duration of one call of an operator in nanoseconds."""
    return _time(target, result, work(target, args, kwargs, result), rates)


def _time(target, result, done: Work, rates) -> int:
    made = tensors_of(result)
    known = rates_of(made[0].device.type if made else "cpu", rates)
    group = classify(target, result)
    arithmetic = (done.flops + done.half_flops) / known.by_class.get(group, known.flops)
    return math.ceil(known.launch + 1e9 * max(arithmetic, done.moved * known.passes.get(group, 1.0) / known.bytes))


def moved_bytes(args, kwargs, made) -> int:
    """Bytes that a call reads and writes. An argument that is read twice is loaded once, and one that receives the result not at all."""
    read = {id(tensor): tensor for tensor in tensors_of((args, {key: value for key, value in kwargs.items() if key != "out"}))}.values()
    return sum(tensor.numel() * tensor.element_size() for tensor in [*made, *read])


def flops(target, args, kwargs, result) -> int:
    """Floating-point operations of one call, as PyTorch counts them; 0 for operators that it has no formula for."""
    from torch.utils.flop_counter import flop_registry

    count = flop_registry.get(getattr(target, "overloadpacket", None))
    if count is None:
        return 0
    try:
        return int(count(*args, **kwargs, out_val=result))
    except Exception:  # A formula that does not cover this call only makes the estimate less exact.
        return _attention_flops(target, args)


def _attention_flops(target, args) -> int:
    """Operations of attention with fewer heads of keys than of queries, which PyTorch's formula refuses."""
    name = overload_name(target)
    if not name.startswith("_scaled_dot_product"):
        return 0
    backward = name.endswith("_backward")
    query, key, value = args[backward : backward + 3]
    one = 2 * query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    return one * (3 * query.shape[3] + 2 * value.shape[3]) if backward else one * (query.shape[3] + value.shape[3])
