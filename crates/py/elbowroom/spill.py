"""Evicted tensors in the file of a :class:`FileTier`, and how fast they were copied."""

from __future__ import annotations

import threading
import time

import torch

from .tier import FileTier, TierError, bytes_of

Region = tuple[int, int]
"""Offset and length in bytes."""


class Spill:
    """Writes storages to the file and reads them back, from any thread, and measures how fast that is."""

    def __init__(self, folder=None):
        self._tier = FileTier(folder)
        self._lock = threading.Lock()
        self._write_seconds = self._read_seconds = 0.0

    def write(self, storage: torch.UntypedStorage) -> Region:
        """Copies a storage to the file."""
        length = storage.nbytes()
        with self._lock:
            region = self._tier.reserve(length), length
        start = time.perf_counter()
        try:
            self._tier.store(bytes_of(storage), region[0])
        except TierError:
            self.free(region)
            raise
        self._write_seconds += time.perf_counter() - start
        return region

    def read(self, region: Region, storage: torch.UntypedStorage) -> None:
        """Copies a region of the file into a storage of the same length."""
        start = time.perf_counter()
        self._tier.load(bytes_of(storage), region[0])
        self._read_seconds += time.perf_counter() - start

    def rates(self) -> tuple[int, int]:
        """Bytes per second to the file and from it: those of the copies so far."""
        tier = self._tier
        if not tier.written_bytes or not tier.read_bytes:
            probe = torch.UntypedStorage(1 << 22)
            region = self.write(probe)
            self.read(region, probe)
            self.free(region)
        return max(1, int(tier.written_bytes / max(self._write_seconds, 1e-9))), max(1, int(tier.read_bytes / max(self._read_seconds, 1e-9)))

    def free(self, region: Region) -> None:
        """Lets a region be used again. Takes no lock: memory may be collected in the middle of any operation, and a saved tensor ends then."""
        self._tier.free(*region)
