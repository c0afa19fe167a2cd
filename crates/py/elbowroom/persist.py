"""Parameters, optimizer state and gradients in the host tier, between their uses and between steps.

They are mapped (see :mod:`elbowroom.tier`): every program still reads and writes them as tensors, and only what a step touches is resident.
The optimizer's step runs on pieces of a parameter, so that neither a whole parameter nor its state is resident then. Optimizers whose update
of an element depends on that element, its gradient and its state only give the same bits so.
"""

from __future__ import annotations

import weakref

import torch

from .consume import SEPARATE
from .errors import UnsupportedError
from .state import predict
from .tier import FileTier, extent, mapped

#: Smaller parameters stay in memory, with their state.
SMALLEST = 16 << 10
#: The most and the fewest elements of a parameter that are updated at once. Multiples of every vector's width, so that all but the last of a
#: parameter's elements go through the same instructions as in an update of the whole.
_LARGEST_PIECE, _SMALLEST_PIECE = 256 << 10, 4 << 10


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of a tensor without holes, in the order of its storage."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _is_dense(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    return tensor.layout == torch.strided and tensor.storage_offset() == 0 and extent(tensor) == (0, storage.nbytes()) and _fills(tensor)


def _fills(tensor: torch.Tensor) -> bool:
    first, last = extent(tensor)
    return last - first == tensor.numel() * tensor.element_size()


def _weakly(method):
    """A call of a method while its object exists. A parameter's hooks are held where the garbage collector does not look, so that a hook that
    held the parameter itself would keep both for ever."""
    reference = weakref.WeakMethod(method)

    def call(*args):
        method = reference()
        return method(*args) if method is not None else None

    return call


class Persistent:
    """What of a model lies in the host tier. Nothing does before :meth:`adopt`."""

    def __init__(self, model, optimizer, tier: FileTier):
        self.optimizer, self.tier = optimizer, tier
        self.groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
        tensors = [*model.parameters(), *model.buffers()]
        keys = [tensor.untyped_storage()._cdata for tensor in tensors if tensor.layout == torch.strided]
        self.parameters = [
            parameter
            for parameter in model.parameters()
            if type(parameter) is torch.nn.Parameter
            and parameter.device.type == "cpu"
            and parameter.numel() * parameter.element_size() >= SMALLEST
            and _is_dense(parameter)
            and keys.count(parameter.untyped_storage()._cdata) == 1
        ]
        self.known = set(self.parameters)
        largest = max((parameter.numel() for parameter in self.parameters), default=0)
        self.piece = min(_LARGEST_PIECE, max(_SMALLEST_PIECE, largest // 16 // _SMALLEST_PIECE * _SMALLEST_PIECE))
        self.adopted = self.stores = False
        self._figures: dict[tuple, tuple[int, int]] = {}
        self._hidden: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        self._hooks = []

    @staticmethod
    def refusal(optimizer) -> str:
        """Why an optimizer cannot update pieces of parameters; an empty string if it can."""
        if optimizer is None:
            return "no optimizer was given"
        if type(optimizer) not in SEPARATE:
            return f"{type(optimizer).__name__} may not treat every element by itself"
        if any(group.get("foreach") or group.get("fused") or group.get("differentiable") for group in optimizer.param_groups):
            return "the optimizer is foreach, fused or differentiable"
        return ""

    # --- bytes ----------------------------------------------------------------------------------------------------------------------

    def _figure(self, parameter) -> tuple[int, int]:
        """Bytes of state for each byte of a parameter, and what the update of a piece makes and frees."""
        group = self.groups[parameter]
        key = (parameter.dtype, id(group), min(parameter.numel(), self.piece))
        if key not in self._figures:
            piece = torch.nn.Parameter(torch.empty(key[2], dtype=parameter.dtype, device="meta"))
            state, temporary = predict(self.optimizer, [{**group, "params": [piece]}], "cpu")
            self._figures[key] = state // (piece.numel() * piece.element_size()), temporary
        return self._figures[key]

    def state_factor(self, parameter) -> int:
        """Bytes of state for each byte of a parameter."""
        return self._figure(parameter)[0] if parameter in self.groups else 0

    def update_bytes(self, parameter, copied: bool = False, stored: bool = False) -> int:
        """The most bytes that the update of a parameter needs at once, beyond a gradient in memory. ``copied``: the gradient is laid out
        otherwise than the parameter; ``stored``: it lies in the tier."""
        copies, temporary = self._figure(parameter)
        piece = min(parameter.numel(), self.piece) * parameter.element_size()
        # The piece, its state, and what the optimizer makes, or in the first step the state as the optimizer made it.
        whole = parameter.numel() * parameter.element_size() if copied else 0
        return piece * (1 + stored + copies) + max(temporary, piece * copies) + whole + 64 * (1 + copies)

    def filed_bytes(self, stored: bool) -> int:
        """Bytes that are not resident because they lie in the tier: parameters, their state (as if it existed), and existing gradients."""
        total = 0
        for parameter in self.parameters:
            count = parameter.numel() * parameter.element_size()
            total += count * (1 + self.state_factor(parameter))
            if stored and parameter.grad is not None:
                total += count
        return total

    def largest_gradient(self) -> int:
        """Bytes of the largest gradient that is stored."""
        return max((p.numel() * p.element_size() for p in self.parameters if p.requires_grad), default=0)

    # --- moving ---------------------------------------------------------------------------------------------------------------------

    def adopt(self, stores: bool, consumed: bool) -> None:
        """Moves parameters and their state to the tier, and with ``stores`` gradients too. Everything keeps its identity and its bits."""
        if not self.adopted:
            self.adopted = True
            if not consumed:
                self._hooks += [self.optimizer.register_step_pre_hook(self._before_step), self.optimizer.register_step_post_hook(self._after_step)]
        if stores and not self.stores:
            self.stores = True
            accumulated = _weakly(self._accumulated)
            self._hooks += [p.register_post_accumulate_grad_hook(accumulated) for p in self.parameters if p.requires_grad]
        self.refresh()

    def refresh(self) -> None:
        """Nothing of the tier is resident afterwards, whatever the loop has read or replaced since the last step."""
        for parameter in self.parameters:
            self._move(parameter)
            for key, leaf in self.optimizer.state.get(parameter, {}).items() if parameter in self.groups else ():
                if self._is_large(leaf, parameter) and self._release(leaf) is None:
                    self.optimizer.state[parameter][key] = self.tier.map(leaf, parameter.stride())
            if self.stores and parameter.grad is not None:
                self._accumulated(parameter)

    @staticmethod
    def _release(tensor):
        pages = mapped(tensor)
        if pages is not None:
            pages.release()
        return pages

    def _move(self, parameter) -> None:
        if self._release(parameter) is None and _is_dense(parameter):
            parameter.data = self.tier.map(parameter.detach(), parameter.stride())

    @staticmethod
    def _is_large(leaf, parameter) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.shape == parameter.shape

    def _accumulated(self, parameter) -> None:
        """After a gradient was added to the one that is there."""
        if self._release(parameter.grad) is None:
            parameter.grad = self.tier.map(parameter.grad.detach(), parameter.stride())

    def store(self, parameter, gradient) -> torch.Tensor:
        """A gradient in the tier, laid out as the parameter, as autograd adopts it without a copy."""
        return self.tier.map(gradient.detach(), parameter.stride())

    # --- updates --------------------------------------------------------------------------------------------------------------------

    def _before_step(self, optimizer, args, kwargs):
        if any(arg is not None for arg in args[1:]) or kwargs.get("closure") is not None:
            raise UnsupportedError("optimizer.step() was given a closure; with parameters in the host tier it must be called without one")
        self._hidden = [(p, p.grad) for p in self.parameters if p.grad is not None and p in self.groups]
        for parameter, gradient in self._hidden:
            parameter.grad = None
            self.update(parameter, gradient)

    def _after_step(self, *_):
        for parameter, gradient in self._hidden:
            parameter.grad = gradient
        self._hidden = []

    def update(self, parameter, gradient) -> None:
        """The optimizer's step of one parameter, piece by piece."""
        optimizer, group = self.optimizer, self.groups[parameter]
        state = optimizer.state[parameter]
        if gradient.stride() != parameter.stride():
            gradient = torch.empty_strided(parameter.shape, parameter.stride(), dtype=gradient.dtype).copy_(gradient)
        for key, leaf in state.items():
            if self._is_large(leaf, parameter) and mapped(leaf) is None:
                state[key] = self.tier.map(leaf, parameter.stride())
        large = {key: flat(leaf) for key, leaf in state.items() if self._is_large(leaf, parameter)}
        small = {key: leaf for key, leaf in state.items() if key not in large}
        fresh, values, gradients = not state, flat(parameter.detach()), flat(gradient.detach())
        step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
        groups, changed = optimizer.param_groups, {}
        for first in range(0, values.numel(), self.piece):
            part = slice(first, min(first + self.piece, values.numel()))
            touched = self._touch(part, values, gradients, *large.values())
            piece = torch.nn.Parameter(values[part], requires_grad=True)
            piece.grad = gradients[part]
            if not fresh:
                before = {key: leaf[part] for key, leaf in large.items()}
                before |= {key: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for key, leaf in small.items()}
                optimizer.state[piece] = dict(before)
            optimizer.param_groups = [{**group, "params": [piece]}]
            try:
                step(optimizer)
            finally:
                optimizer.param_groups = groups
                after = optimizer.state.pop(piece, {})
            for key, leaf in after.items():
                if not isinstance(leaf, torch.Tensor) or leaf.shape != piece.shape:
                    changed[key] = leaf
                    state.setdefault(key, leaf)  # The order of keys is that of a whole update.
                elif fresh and first == 0:
                    state[key] = self.tier.zeros(parameter.shape, parameter.stride(), leaf.dtype)
                    large[key] = flat(state[key])
                if key in large and (fresh or leaf is not before[key]):
                    touched += self._touch(part, large[key])
                    large[key][part].copy_(leaf)
            after = before = leaf = piece = None
            for pages in touched:
                pages.release()
        for key, leaf in changed.items():
            if isinstance(leaf, torch.Tensor) and isinstance(state[key], torch.Tensor):
                state[key].copy_(leaf)
            else:
                state[key] = leaf
        # Autograd sees that the parameter was written to.
        parameter.detach()[:0].zero_()

    @staticmethod
    def _touch(part: slice, *tensors) -> list:
        touched = []
        for tensor in tensors:
            pages = mapped(tensor)
            if pages is not None:
                pages.touch(part.start * tensor.element_size(), part.stop * tensor.element_size())
                touched.append(pages)
        return touched
