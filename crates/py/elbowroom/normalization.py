"""Batch normalization as cuDNN computes it, which is what plain execution runs on a GPU in float32.

While a step is traced, PyTorch replaces ``cudnn_batch_norm`` by kernels of its own, which round differently: its schema does not say that it writes
to the running statistics. Here it is an operator that returns them, so that it may run again.
"""

from __future__ import annotations

import contextlib

import torch

aten = torch.ops.aten

_KEY = torch._C.DispatchKey.Autograd
_SCHEMA = "(Tensor input, Tensor weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps)"

_ops = torch.library.Library("elbowroom", "FRAGMENT")
_ops.define(f"cudnn_batch_norm_functional{_SCHEMA} -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
_operator = torch.ops.elbowroom.cudnn_batch_norm_functional.default


def _compute(inputs, weight, bias, mean, variance, training, momentum, eps):
    """Result, mean and deviation of the batch, what the backward pass needs, and the new running statistics, which have no bytes if there are none."""
    if training and mean is not None:
        new = mean, variance = mean.clone(), variance.clone()
    else:
        new = inputs.new_empty(0), inputs.new_empty(0)
    return *aten.cudnn_batch_norm.default(inputs, weight, bias, mean, variance, training, momentum, eps), *new


def _shapes(inputs, weight, bias, mean, variance, training, momentum, eps):
    """The results as tensors without memory."""
    made = torch.empty_like(inputs, memory_format=torch._prims_common.suggest_memory_format(inputs))
    batch = [weight.new_empty(inputs.shape[1] if training else 0) for _ in range(2)]
    kept = torch._C._get_cudnn_batch_norm_reserve_space_size(inputs, training) if inputs.device.type == "cuda" else 0
    reserve = inputs.new_empty(kept, dtype=torch.uint8)
    replaced = training and mean is not None
    return made, *batch, reserve, *(torch.empty_like(statistic) if replaced else inputs.new_empty(0) for statistic in (mean, variance))


def _keep(ctx, inputs, output):
    values, weight, _, mean, variance, training, _, eps = inputs
    ctx.training, ctx.eps = training, eps
    ctx.mark_non_differentiable(*output[1:])
    # In training the kernel does not read the running statistics.
    ctx.save_for_backward(values, weight, *((None, None) if training else (mean, variance)), *output[1:4])


def _backward(ctx, gradient, *_):
    inputs, weight, mean, variance, batch_mean, batch_deviation, reserve = ctx.saved_tensors
    if ctx.training:
        gradient = gradient.contiguous(memory_format=torch._prims_common.suggest_memory_format(inputs))
        found = aten.cudnn_batch_norm_backward.default(inputs, gradient, weight, None, None, batch_mean, batch_deviation, ctx.eps, reserve)
    else:
        wanted = [*ctx.needs_input_grad[:3]]
        found = aten.native_batch_norm_backward.default(gradient, inputs, weight, mean, variance, batch_mean, batch_deviation, False, ctx.eps, wanted)
    return *found, None, None, None, None, None


_ops.impl("cudnn_batch_norm_functional", _compute, "CompositeExplicitAutograd")
torch.library.register_fake("elbowroom::cudnn_batch_norm_functional", _shapes, lib=_ops)
torch.library.register_autograd("elbowroom::cudnn_batch_norm_functional", _backward, setup_context=_keep, lib=_ops)


def _traced(inputs, weight, bias, mean, variance, training, momentum, eps):
    """Stands for ``aten.cudnn_batch_norm`` while a step is traced."""
    *results, new_mean, new_variance = _operator(inputs, weight, bias, mean, variance, training, momentum, eps)
    if training and mean is not None:
        mean.copy_(new_mean.detach())
        variance.copy_(new_variance.detach())
    return tuple(results)


@contextlib.contextmanager
def as_computed():
    """Has batch normalization traced as the kernel that plain execution runs."""
    overload = aten.cudnn_batch_norm.default
    stated = overload.py_kernels.get(_KEY)
    overload.py_kernels[_KEY] = _traced
    overload._dispatch_cache.clear()
    try:
        yield
    finally:
        if stated is None:
            del overload.py_kernels[_KEY]
        else:
            overload.py_kernels[_KEY] = stated
        overload._dispatch_cache.clear()
