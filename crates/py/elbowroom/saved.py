"""Tensors that autograd saves for the backward pass, as records that can be evicted to a file.

A record stands for one storage. Autograd's nodes hold handles instead of tensors, one for every saved tensor; the handles of a resident record
hold tensors that show its storage. A record may be evicted while nothing but its handles refers to the storage.
"""

from __future__ import annotations

import weakref

import torch

from .errors import ElbowroomError
from .spill import Region, Spill
from .tier import keep_returning_memory, trim

#: After so many evicted bytes their memory is given back to the system.
_TRIMMED = 8 << 20

#: Smaller storages stay: a copy of them costs more than it frees.
SMALLEST = 1024


def _references(storage: torch.UntypedStorage) -> int:
    return torch._C._storage_Use_Count(storage._cdata)


def _own_references() -> int:
    """How many references to a storage exist apart from tensors while Python holds the storage itself; differs between versions of PyTorch."""
    tensor = torch.empty(1)
    storage = tensor.untyped_storage()
    return _references(storage) - 1


_OWN = _own_references()


class Handle:
    """One saved tensor: the tensor while its record is resident, or how it shows the storage."""

    __slots__ = ("record", "tensor", "version", "shows", "changed", "__weakref__")

    def __init__(self, tensor: torch.Tensor):
        self.record: Record | None = None
        self.tensor, self.version, self.changed = tensor, tensor._version, False
        self.shows = (tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())

    def check(self) -> None:
        """Raises what autograd raises without hooks if the tensor was overwritten after it was saved."""
        if self.changed or (self.tensor is not None and self.tensor._version != self.version):
            dtype, _, shape, _ = self.shows
            raise RuntimeError(
                f"one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of {dtype} and shape "
                f"{tuple(shape)}, saved at version {self.version}"
            )

    def show(self, typed: torch.Tensor) -> None:
        """Makes the tensor again, as a view of the record's bytes as elements of its type. All views of them share one version counter."""
        _, offset, shape, stride = self.shows
        self.tensor = typed.as_strided(shape, stride, offset)
        self.version = self.tensor._version

    def __del__(self):
        record = self.record
        if record is not None:
            self.tensor = None
            record.drop(self)


class Record:
    """The bytes of one storage that handles refer to."""

    __slots__ = ("bytes", "storage", "handles", "order", "region", "pending", "number", "owner", "__weakref__")

    def __init__(self, owner: Records, storage: torch.UntypedStorage, order: int):
        self.owner, self.order = owner, order
        self.bytes = storage.nbytes()
        self.storage: torch.UntypedStorage | None = storage
        #: Ids of the handles, each with a weak reference.
        self.handles: dict[int, weakref.ref] = {}
        self.region: Region | None = None
        #: A copy that another thread makes.
        self.pending = None
        #: Its number among the tensors of the recorded step.
        self.number: int | None = None

    def join(self, handle: Handle) -> None:
        handle.record = self
        self.handles[id(handle)] = weakref.ref(handle)

    def drop(self, handle: Handle) -> None:
        self.handles.pop(id(handle), None)
        if not self.handles:
            self.owner.ended(self)

    @property
    def resident(self) -> bool:
        return self.storage is not None

    def alone(self) -> bool:
        """Whether only the handles refer to the storage, so that evicting it frees its bytes."""
        if self.storage is None:
            return False
        others = _references(self.storage) - len(self.handles) - _OWN
        # Restored tensors are views of one more tensor of each type, which they keep.
        return others == 0 or others == len({handle.shows[0] for handle in self.live_handles() if handle.tensor._is_view()})

    def live_handles(self) -> list[Handle]:
        return [handle for handle in (reference() for reference in self.handles.values()) if handle is not None]


class Records:
    """All records of a limit, and their file."""

    def __init__(self, folder=None):
        self._folder = folder
        self._spill: Spill | None = None
        #: Resident records, by storage.
        self.resident: dict[int, Record] = {}
        self._orders = 0
        self.on_end = None
        #: Bytes evicted since free memory was given back to the system.
        self._evicted = 0

    @property
    def spill(self) -> Spill:
        """The file, made when it is needed."""
        if self._spill is None:
            self._spill = Spill(self._folder)
            keep_returning_memory()
        return self._spill

    def add(self, handle: Handle) -> Record:
        """The record of the storage that a handle's tensor shows."""
        storage = handle.tensor.untyped_storage()
        record = self.resident.get(storage._cdata)
        if record is None:
            self._orders += 1
            record = self.resident[storage._cdata] = Record(self, storage, self._orders)
        elif record.region is not None and record.pending is None and any(h.tensor._version != h.version for h in record.live_handles()):
            # The bytes were overwritten after they were written to the file.
            for other in record.live_handles():
                other.changed = other.changed or other.tensor._version != other.version
            self.spill.free(record.region)
            record.region = None
        record.join(handle)
        return record

    def write(self, record: Record) -> None:
        """Copies a record to the file, unless it is there."""
        if record.region is None:
            record.region = self.spill.write(record.storage)

    def start_write(self, record: Record, pool) -> None:
        """Has another thread copy a record to the file, unless it is there."""
        if record.region is None and record.pending is None:
            record.pending = pool.submit(self.spill.write, record.storage)

    def evict(self, record: Record) -> None:
        """Frees the bytes of a resident record; its file copy stays until its handles are gone."""
        self.finish(record)
        self.write(record)
        for handle in record.live_handles():
            handle.changed = handle.changed or handle.tensor._version != handle.version
            handle.tensor = None
        self.resident.pop(record.storage._cdata, None)
        record.storage = None
        self._evicted += record.bytes
        if self._evicted >= _TRIMMED:
            self.trim()

    def trim(self) -> None:
        """Gives the memory of evicted records back to the system."""
        if self._evicted:
            self._evicted = 0
            trim()

    @torch.no_grad()
    def restore(self, record: Record, pool=None) -> None:
        """Makes an evicted record resident; with a ``pool``, another thread reads the bytes."""
        # Allocated as a tensor, so that every meter sees it.
        whole = torch.empty(record.bytes, dtype=torch.uint8)
        typed: dict[torch.dtype, torch.Tensor] = {}
        for handle in record.live_handles():
            dtype = handle.shows[0]
            if dtype not in typed:
                typed[dtype] = whole[: record.bytes // dtype.itemsize * dtype.itemsize].view(dtype)
            handle.show(typed[dtype])
        record.storage = storage = whole.untyped_storage()
        self.resident[storage._cdata] = record
        if pool is None:
            self.spill.read(record.region, storage)
        else:
            record.pending = pool.submit(self.spill.read, record.region, storage)

    def finish(self, record: Record) -> None:
        """Waits for the copy that another thread makes."""
        if record.pending is not None:
            pending, record.pending = record.pending, None
            record.region = pending.result() or record.region

    def ended(self, record: Record) -> None:
        """Called when the last handle of a record is gone."""
        if self.on_end is not None:
            self.on_end(record)
        try:
            self.finish(record)
        except ElbowroomError:
            pass  # Nothing reads the copy that could not be made.
        if record.storage is not None:
            if self.resident.get(record.storage._cdata) is record:
                del self.resident[record.storage._cdata]
            record.storage = None
        if record.region is not None:
            self.spill.free(record.region)
            record.region = None
