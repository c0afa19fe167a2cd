"""How many bytes an operator makes, before it runs."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map


def flatten(args, kwargs=None) -> list:
    """The leaves of an operator's arguments or results, which are nested in lists, tuples and dictionaries only."""
    leaves = []
    for item in args:
        if isinstance(item, (list, tuple)):
            leaves += flatten(item)
        elif isinstance(item, dict):
            leaves += flatten(item.values())
        else:
            leaves.append(item)
    if kwargs:
        leaves += flatten(kwargs.values())
    return leaves


class Operators:
    """Operators with the shapes of their arguments, and the bytes that each was seen to make."""

    def __init__(self):
        self._numbers: dict[tuple, int] = {}
        self._bytes: dict[int, int | None] = {}
        #: Whether the sizes that PyTorch states for an operator were those that it had, wherever it ran.
        self._stated: dict[object, bool] = {}

    def key(self, func, leaves) -> int:
        """The number of an operator on these arguments. Numbers that only scale values leave it as it is."""
        tensors = any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        shown = [func]
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                shown.append((leaf.dtype, leaf.shape, leaf.stride()))
            elif isinstance(leaf, float) and tensors:
                shown.append(float)
            elif isinstance(leaf, (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))):
                shown.append((type(leaf), leaf))
            else:
                shown.append(type(leaf))
        return self._numbers.setdefault(tuple(shown), len(self._numbers))

    def bytes(self, key: int, func, args, kwargs) -> int | None:
        """Bytes of new storages that the call will make; ``None`` if that is not certain."""
        if key in self._bytes:
            return self._bytes[key]
        if torch.Tag.dynamic_output_shape in func.tags or not self._stated.get(func, False):
            return None
        return self._predict(func, args, kwargs)

    def learn(self, key: int, func, args, kwargs, made: int) -> None:
        """Notes what a call made."""
        if torch.Tag.dynamic_output_shape in func.tags:
            return
        if key not in self._bytes:
            if self._stated.get(func, True):
                self._stated[func] = self._predict(func, args, kwargs) == made
            self._bytes[key] = made
        elif self._bytes[key] != made:
            self._bytes[key] = None
            self._stated[func] = False

    @staticmethod
    def _predict(func, args, kwargs) -> int | None:
        """The bytes by the operator's definition on tensors without memory."""
        known: dict[int, torch.Tensor] = {}
        mode = FakeTensorMode()

        def fake(leaf):
            # Detached outside of the mode, which refuses tensors that have memory.
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return known.setdefault(id(leaf), mode.from_tensor(leaf.detach(), static_shapes=True))

        try:
            fake_args, fake_kwargs = tree_map(fake, (args, kwargs))
            there = {tensor.untyped_storage()._cdata for tensor in known.values()}
            made = {}
            with mode:
                results = flatten((func(*fake_args, **fake_kwargs),))
            for leaf in results:
                if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in there:
                    made[leaf.untyped_storage()._cdata] = leaf.untyped_storage().nbytes()
            return sum(made.values())
        except Exception:  # The call then counts as one of unknown size, for which everything is evicted.
            return None
