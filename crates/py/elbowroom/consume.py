"""Gradients that the optimizer consumes as they are made, so that they never exist all at once.

The optimizer's own step runs for one parameter at a time, in the backward pass, where the gradient is complete and nothing reads the parameter
any more. Optimizers that treat every parameter by itself give the same bits so.
"""

from __future__ import annotations

import torch

from .errors import UnsupportedError
from .state import predict

#: Optimizers whose update of a parameter depends on this parameter, its gradient and its state only.
SEPARATE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
)


class Consumer:
    """Updates parameters one by one, and refuses loops in which this would change the results."""

    def __init__(self, model, optimizer):
        if type(optimizer) not in SEPARATE:
            raise UnsupportedError(f"{type(optimizer).__name__} may not treat every parameter by itself, so its gradients cannot be consumed one by one")
        self.optimizer = optimizer
        self.groups = {}
        for group in optimizer.param_groups:
            if group.get("foreach") or group.get("fused") or group.get("differentiable"):
                raise UnsupportedError("gradients are consumed one by one only without foreach, fused and differentiable")
            for parameter in group["params"]:
                self.groups[parameter] = group
        self.parameters = {}
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter not in self.groups:
                raise UnsupportedError(f"{name} is no parameter of the optimizer, so its gradient cannot be consumed")
            if parameter.device.type != "cpu" and self.groups[parameter].get("foreach") is None:
                raise UnsupportedError("on an accelerator give the optimizer foreach=False, so that both runs use the same kernels")
            if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
                raise UnsupportedError(f"{name} has a hook on its gradient, which is not called if the gradient is consumed")
            self.parameters[parameter.untyped_storage()._cdata] = parameter
        if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise UnsupportedError("gradients of several processes are averaged before the update, so they cannot be consumed as they come")
        self.pending = False
        self._temporary: dict[tuple, int] = {}
        optimizer.register_step_pre_hook(self._before_step)

    def _before_step(self, *_):
        if not self.pending:
            return
        self.pending = False
        if any(parameter.grad is not None for parameter in self.groups):
            raise UnsupportedError("a parameter has a second gradient that does not come from the model; do not use consume_gradients with this loop")

    def begin(self) -> None:
        """Checks that the update of the last backward pass was asked for, as a loop that accumulates gradients does not."""
        if self.pending:
            raise UnsupportedError("optimizer.step() was not called after the last backward pass; gradients that are consumed cannot be accumulated")
        if any(parameter.grad is not None for parameter in self.parameters.values()):
            raise UnsupportedError("a gradient exists before the backward pass; gradients that are consumed cannot be accumulated")

    def parameter(self, tensor) -> torch.nn.Parameter | None:
        """The parameter whose bytes a tensor shows."""
        return self.parameters.get(tensor.untyped_storage()._cdata)

    def temporary_bytes(self, parameter) -> int:
        """Bytes that the update of one parameter makes and frees."""
        key = (parameter.shape, parameter.dtype, id(self.groups[parameter]))
        if key not in self._temporary:
            self._temporary[key] = self._alone(parameter, lambda: predict(self.optimizer)[1])
        return self._temporary[key]

    def update(self, parameter, gradient) -> None:
        """One parameter's part of the optimizer's step."""
        self.pending = True
        parameter.grad = gradient.detach()
        try:
            step = type(self.optimizer).step
            self._alone(parameter, lambda: getattr(step, "__wrapped__", step)(self.optimizer))
        finally:
            parameter.grad = None

    def _alone(self, parameter, run):
        groups = self.optimizer.param_groups
        self.optimizer.param_groups = [{**self.groups[parameter], "params": [parameter]}]
        try:
            return run()
        finally:
            self.optimizer.param_groups = groups
