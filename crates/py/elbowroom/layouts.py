"""The strides that kernels return, where PyTorch states others for tensors without memory.

While a step is traced, PyTorch computes the results of some operators by Python definitions, whose intermediate results order the dimensions
otherwise than the compiled kernel does, if arguments are laid out differently. A view that is traced with such strides may be impossible in the
running step. So the kernel itself is asked: it runs once on a few numbers that are laid out in the same order.
"""

from __future__ import annotations

import contextlib

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

#: Operators whose stated strides differ from those of their kernels for some layouts of their arguments. None draws random numbers.
OPERATORS = {
    "_log_softmax_backward_data",
    "_prelu_kernel_backward",
    "binary_cross_entropy_backward",
    "complex",
    "copysign",
    "elu_backward",
    "floor_divide",
    "hardsigmoid_backward",
    "hardswish_backward",
    "hardtanh_backward",
    "heaviside",
    "huber_loss_backward",
    "ldexp",
    "leaky_relu_backward",
    "log_sigmoid_backward",
    "log_sigmoid_forward",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logit_backward",
    "mse_loss_backward",
    "native_dropout_backward",
    "pow",
    "rrelu_with_noise_backward",
    "smooth_l1_loss_backward",
    "soft_margin_loss_backward",
    "softplus_backward",
    "special_xlog1py",
    "threshold_backward",
    "xlogy",
}


@contextlib.contextmanager
def of_kernels():
    """Has tensors without memory returned with the strides that the kernels of :data:`OPERATORS` return."""
    stated = FakeTensorMode.dispatch

    def dispatch(mode, func, types, args=(), kwargs=None):
        result = stated(mode, func, types, args, kwargs)
        name = func._schema.name.removeprefix("aten::") if isinstance(func, torch._ops.OpOverload) else ""
        return _corrected(mode, func, args, kwargs or {}, result) if name in OPERATORS else result

    FakeTensorMode.dispatch = dispatch
    try:
        yield
    finally:
        FakeTensorMode.dispatch = stated


def _corrected(mode, func, args, kwargs, result):
    """A result with the strides of the kernel's."""
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if all(tensor.is_contiguous() for tensor in given + made) or any(type(size) is not int for tensor in given + made for size in tensor.shape):
        return result
    small = {size: number for number, size in enumerate(sorted({size for tensor in given for size in tensor.shape if size > 1}), start=2)}
    few = {id(tensor): _few(tensor, small) for tensor in given}
    if None in few.values():
        return result
    own_args, own_kwargs = tree_map(lambda leaf: few[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs))
    own_kwargs.pop("device", None)
    with _disable_current_modes(), torch.no_grad():
        shown = [leaf for leaf in tree_leaves(func(*own_args, **own_kwargs)) if isinstance(leaf, torch.Tensor)]
    strides = {id(tensor): _like(one, tensor) for tensor, one in zip(made, shown, strict=True)}

    def restrided(leaf):
        wanted = strides.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None
        if wanted is None or wanted == leaf.stride():
            return leaf
        with mode:
            return torch.empty_strided(leaf.shape, wanted, dtype=leaf.dtype, device=leaf.device)

    return tree_map(restrided, result)


def _ascending(tensor: torch.Tensor) -> list[int]:
    """The dimensions of a tensor from the innermost to the outermost."""
    return sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), tensor.shape[dim] > 1))


def _few(tensor: torch.Tensor, small: dict[int, int]) -> torch.Tensor | None:
    """Ones, laid out in the order of a tensor: dimensions of the sizes that stand for its own, repeated and with gaps where it is. ``None``
    if elements of the tensor overlap otherwise."""
    shape, strides = [small.get(size, size) for size in tensor.shape], [0] * tensor.dim()
    dense = own = 1
    for dim in _ascending(tensor):
        stride = tensor.stride(dim)
        if stride == 0:
            continue
        if stride < dense:
            return None
        if stride > dense:
            own *= 2
        strides[dim] = own
        dense, own = stride * tensor.shape[dim], own * shape[dim]
    with _disable_current_modes():
        return torch.ones(max(1, own), dtype=tensor.dtype).as_strided(shape, strides)


def _like(one: torch.Tensor, tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of a dense tensor whose dimensions are ordered as those of ``one``; ``None`` if that has gaps."""
    strides, dense, own = [0] * tensor.dim(), 1, 1
    for dim in _ascending(one):
        if one.stride(dim) != own:
            return None
        strides[dim] = dense
        dense, own = dense * tensor.shape[dim], own * one.shape[dim]
    return tuple(strides)
