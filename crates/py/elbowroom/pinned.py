"""Pinned host memory as the host tier of an accelerator.

Copies to the host run on one stream, copies to the device on another, and kernels on the stream that is current when the step runs. Only events
order the three, and a program records and awaits those that its checked plan names. What a step offloads lies in one slab of pinned memory, at
offsets that a packer chose.

Blocks of device memory belong to the stream of the kernels, also those that a copy fills: the plan orders every use of freed bytes behind
their last use, so PyTorch's allocator may give them away as soon as the plan releases them.
"""

from __future__ import annotations

import functools
import os
import time

import torch

from .errors import ElbowroomError

#: Bytes by which rates are measured.
_MEASURED = 32 << 20


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


#: The copies are operators, so that timelines name them.
_ops = torch.library.Library("elbowroom", "FRAGMENT")
for _name in ("to_host", "to_device"):
    _ops.define(f"{_name}(Tensor source, Tensor(a!) target) -> ()")
    _ops.impl(_name, _copy, "CompositeExplicitAutograd")
_to_host, _to_device = torch.ops.elbowroom.to_host.default, torch.ops.elbowroom.to_device.default


class Slab:
    """Pinned memory of one step that is under way. It serves another one when the last reference is gone; that step's copies to it
    are behind kernels that are behind all uses of it."""

    __slots__ = ("tier", "memory")

    def __init__(self, tier: PinnedTier, memory: torch.Tensor):
        self.tier, self.memory = tier, memory

    def part(self, offset: int, count: int) -> torch.Tensor:
        """A range of its bytes."""
        return self.memory[offset : offset + count]

    def __del__(self):
        self.tier.free.append(self.memory)


class HostCopy:
    """Where the bytes of an offloaded storage are, and the tensors that show them. What lies on the host anyway stays where it is."""

    __slots__ = ("slab", "part", "shown")

    def __init__(self, slab: Slab, part: torch.Tensor, tensors):
        self.slab, self.part = slab, part
        self.shown = [(tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()) for tensor in tensors]


class PinnedTier:
    """The slabs and the two streams of one device. ``capacity`` limits the bytes of a slab; by default it is half of the machine's memory."""

    def __init__(self, device: torch.device, capacity: int | None = None):
        self.device = device
        self.capacity = capacity if capacity is not None else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        self.to_host, self.to_device = torch.Stream(device=device), torch.Stream(device=device)
        self.free: list[torch.Tensor] = []

    def streams(self) -> tuple[torch.Stream, torch.Stream, torch.Stream]:
        """The stream of the kernels, that of copies to the host, and that of copies to the device."""
        return torch.accelerator.current_stream(self.device), self.to_host, self.to_device

    def slab(self, count: int) -> Slab:
        """Pinned memory of at least ``count`` bytes."""
        while self.free:
            memory = self.free.pop()
            if memory.numel() >= count:
                return Slab(self, memory)
        try:
            return Slab(self, torch.empty(count, dtype=torch.uint8, pin_memory=True))
        except RuntimeError as error:
            raise ElbowroomError(f"the system gives no {count} bytes of pinned memory: {error}") from error

    def offload(self, compute: torch.Stream, slab: Slab, offset: int, *tensors: torch.Tensor) -> HostCopy:
        """Issues the copy to the host of the storage that all of these tensors show."""
        if tensors[0].device.type == "cpu":
            return HostCopy(slab, tensors, ())
        source = self._whole(tensors[0].untyped_storage())
        copy = HostCopy(slab, slab.part(offset, source.numel()), tensors)
        torch.accelerator.set_stream(self.to_host)
        try:
            _to_host(source, copy.part)
        finally:
            torch.accelerator.set_stream(compute)
        return copy

    def prefetch(self, compute: torch.Stream, copy: HostCopy):
        """New tensors, one if one was offloaded, and issues the copy that fills them."""
        if isinstance(copy.part, tuple):
            return copy.part[0] if len(copy.part) == 1 else copy.part
        with torch.no_grad():
            # `torch.empty` may fill what it returns, on the stream of the kernels (`torch.use_deterministic_algorithms`), and overwrite the copy.
            storage = torch.UntypedStorage(copy.part.numel(), device=self.device)
            target = self._whole(storage)
            made = [torch.empty(0, dtype=dtype, device=self.device).set_(storage, offset, size, stride) for dtype, size, stride, offset in copy.shown]
            torch.accelerator.set_stream(self.to_device)
            try:
                _to_device(copy.part, target)
            finally:
                torch.accelerator.set_stream(compute)
        return made[0] if len(made) == 1 else tuple(made)

    def drain(self) -> None:
        """Orders what follows behind all copies: after a step that failed, whose memory is free without its plan's waits."""
        compute, *sides = self.streams()
        for side in sides:
            compute.wait_event(side.record_event())

    def _whole(self, storage: torch.UntypedStorage) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)

    @functools.cached_property
    def rates(self) -> tuple[int, int, int]:
        """Bytes per second to the host and back, and the nanoseconds of the smallest copy; the faster of two passes counts."""
        shortest, least = [float("inf")] * 2, float("inf")
        on_device, slab = torch.empty(_MEASURED, dtype=torch.uint8, device=self.device), self.slab(_MEASURED)
        for _ in range(2):
            for at, (source, target) in enumerate(((on_device, slab.memory), (slab.memory, on_device))):
                for count in (1, _MEASURED):
                    torch.accelerator.synchronize(self.device)
                    started = time.perf_counter()
                    target[:count].copy_(source[:count], non_blocking=True)
                    torch.accelerator.synchronize(self.device)
                    passed = time.perf_counter() - started
                    if count == 1:
                        least = min(least, passed)
                    else:
                        shortest[at] = min(shortest[at], passed)
        return max(1, int(_MEASURED / shortest[0])), max(1, int(_MEASURED / shortest[1])), int(1e9 * least)
