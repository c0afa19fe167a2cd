"""Bytes of an optimizer's state and of its update, before it has made any step."""

from __future__ import annotations

import copy

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .meter import Bytes


class _FakeBytes(Bytes):
    """Counts fake tensors, whose storages have sizes but no memory."""

    def add(self, *tensors):
        import weakref

        for tensor in tensors:
            storage = tensor.untyped_storage()
            key, count = storage._cdata, storage.nbytes()
            if count and key not in self._alive:
                self._alive[key] = weakref.ref(storage, lambda _, key=key, count=count: self._gone(key, count))
                self.now += count
        self.peak = max(self.peak, self.now)


class _FakeMeter(TorchDispatchMode):
    def __init__(self, counter):
        super().__init__()
        self.counter = counter

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.counter.add(*(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)))
        return result


def storages(tensors):
    """Bytes of distinct storages, by storage."""
    found = {}
    for tensor in tensors:
        if tensor is not None and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            found[storage._cdata] = storage.nbytes()
    return found


def state_bytes(optimizer: torch.optim.Optimizer, without=()) -> int:
    """Bytes of the state as it is, but for that of some parameters."""
    storages = {}
    for leaf in tree_leaves([state for parameter, state in optimizer.state.items() if parameter not in without]):
        if isinstance(leaf, torch.Tensor):
            storages[leaf.untyped_storage()._cdata] = leaf.untyped_storage().nbytes()
    return sum(storages.values())


def _foreach(group, device) -> dict[str, bool]:
    """The way in which an optimizer updates a group whose settings leave that to PyTorch. On a GPU it is all parameters at once, with temporary tensors as large
    as all of them; fake tensors would be updated one by one."""
    if group.get("foreach", False) is not None or group.get("fused") or group.get("differentiable"):
        return {}
    if isinstance(group.get("lr"), torch.Tensor) and not group.get("capturable"):
        return {}
    devices = {torch.device(device).type if device else parameter.device.type for parameter in group["params"]}
    return {"foreach": True} if devices and devices <= {*_get_foreach_kernels_supported_devices()} else {}


def predict(optimizer: torch.optim.Optimizer, param_groups=None, device=None, without=()) -> tuple[int, int]:
    """Bytes of the state after a step, and the most that a step needs at once beyond parameters, gradients and that state.

    ``param_groups`` replace those of the optimizer, ``device`` that of the parameters; parameters in ``without`` have no part in the step.
    Runs one step of an optimizer of the same class and settings on fake tensors. An optimizer that cannot be run so counts as it is now.
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            groups = []
            for group in param_groups or optimizer.param_groups:
                fake = []
                for parameter in group["params"]:
                    if not parameter.requires_grad or parameter in without:
                        continue
                    stand_in = torch.nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device=device or parameter.device))
                    stand_in.grad = torch.empty_like(stand_in)
                    fake.append(stand_in)
                groups.append({**{key: value for key, value in group.items() if key != "params"}, **_foreach(group, device), "params": fake})
            twin = copy.copy(optimizer)
            twin.__dict__ = {**optimizer.__dict__}
            twin.state = type(optimizer.state)(dict) if optimizer.state else type(optimizer.state)(dict)
            twin.param_groups = groups
            counter = _FakeBytes()
            for group in groups:
                counter.add(*group["params"], *(p.grad for p in group["params"]))
            before = counter.now
            with _FakeMeter(counter), torch.no_grad():
                type(optimizer).step.__wrapped__(twin) if hasattr(type(optimizer).step, "__wrapped__") else twin.step()
            state = state_bytes(twin)
            return state, max(0, counter.peak - before - state)
    except Exception:
        return state_bytes(optimizer, without), 0
