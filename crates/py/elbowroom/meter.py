"""A meter of tensor bytes that knows nothing of any plan: it sees storages come and go.

A storage counts from the operator that returns it until its last reference is gone. Of tensors in the host tier, those bytes count that an
operator has read or written, until the tier releases them. Kernels' own workspace is not visible here: on the CPU
it is ordinary memory of the process.
"""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .tier import extent, mapped

class Bytes:
    """Counts the bytes of storages; each once, however many tensors show it."""

    def __init__(self):
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref] = {}

    def add(self, *tensors: torch.Tensor) -> None:
        """Counts the storages of tensors until they are freed."""
        for tensor in tensors:
            if tensor.layout != torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                continue
            storage = tensor.untyped_storage()
            key, count = storage._cdata, storage.nbytes()
            if not count or key in self._alive:
                continue
            pages = mapped(tensor)
            if pages is not None:
                if self not in pages.watchers:
                    pages.watchers.add(self)
                    self.changed(pages.resident)
                continue
            self._count(storage, key, count)
        self.peak = max(self.peak, self.now)

    def join(self, other: Bytes) -> None:
        """Counts the storages that ``other`` counts, until they are freed."""
        for key, reference in list(other._alive.items()):
            storage = reference()
            if storage is not None and key not in self._alive:
                self._count(storage, key, storage.nbytes())
        self.peak = max(self.peak, self.now)

    def _count(self, storage, key: int, count: int) -> None:
        self._alive[key] = weakref.ref(storage, lambda _, key=key, count=count: self._gone(key, count))
        self.now += count

    def changed(self, difference: int) -> None:
        """Bytes of the host tier have become resident, or are no longer."""
        self.now += difference
        self.peak = max(self.peak, self.now)

    def alive(self) -> dict[int, int]:
        """Bytes of the storages that exist, by storage."""
        return {key: storage().nbytes() for key, storage in self._alive.items() if storage() is not None}

    def _gone(self, key: int, count: int) -> None:
        if self._alive.pop(key, None) is not None:
            self.now -= count


def _shows(func) -> bool:
    """Whether an operator only returns views, so that it touches no bytes."""
    returns = func._schema.returns
    return bool(returns) and all(result.alias_info is not None and not result.alias_info.is_write for result in returns)


class Meter(TorchDispatchMode):
    """``with Meter(model.parameters()) as meter: step()``, then ``meter.peak`` bytes: everything that existed or was made meanwhile."""

    def __init__(self, *existing):
        super().__init__()
        self.bytes = Bytes()
        self.bytes.add(*(leaf for leaf in tree_leaves([list(e) if not isinstance(e, torch.Tensor) else e for e in existing]) if isinstance(leaf, torch.Tensor)))

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Lets PyTorch compile models inside this mode, which changes nothing that they compute."""
        return True

    @property
    def peak(self) -> int:
        """The largest number of bytes alive at once."""
        return self.bytes.peak

    @property
    def now(self) -> int:
        """Bytes alive."""
        return self.bytes.now

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not _shows(func):
            for leaf in tree_leaves((args, kwargs)):
                pages = mapped(leaf) if isinstance(leaf, torch.Tensor) else None
                if pages is not None:
                    self.bytes.add(leaf)
                    pages.touch(*extent(leaf))
        result = func(*args, **(kwargs or {}))
        self.bytes.add(*(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)))
        return result
