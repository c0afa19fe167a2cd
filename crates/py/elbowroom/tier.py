"""A host tier in a file without a name, for CPUs.

The bytes of an offloaded tensor are written to the file and its memory is freed; a prefetch reads them into new memory. One thread for each
direction makes the copies, in order. Files of tmpfs are memory, so such folders are refused. The system may cache what is written; its cache
does not belong to the process and shrinks when memory is short.

Parameters, optimizer state and stored gradients are *mapped*: their bytes are pages of the file, so that every program can read them at any
time. Only what a step touches is resident, and it stops being resident when the plan releases it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import os
import tempfile
import time
import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from .errors import ElbowroomError, UnsupportedError

#: Values of ``host``.
HOSTS = ("auto", "file", "pinned", None)

_PAGE = mmap.PAGESIZE
#: Copies of up to this many bytes end before another thread would begin them.
_INLINE = 128 << 10
#: The file grows by at least this many bytes.
_GROWTH = 16 << 20
#: Bytes by which rates are measured, and bytes of one copy.
_MEASURED, _PIECE = 16 << 20, 1 << 20
#: Parameters of glibc's `mallopt`, and the size from which a block is mapped by itself.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _LARGE_BLOCK = -1, -3, 256 << 10
#: File systems whose files are memory.
_IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"}


class TierError(ElbowroomError):
    """The file of the host tier cannot be made, written or read."""


def check_host(host, model) -> None:
    """Refuses a host tier that does not exist, or that the model's device cannot use."""
    if host not in HOSTS:
        raise ValueError(f"there is no host tier {host!r}; the host tiers are 'auto', 'file', 'pinned' and None")
    devices = {parameter.device for parameter in model.parameters()}
    if host == "file" and any(device.type != "cpu" for device in devices):
        raise UnsupportedError("a file is a host tier for CPUs; the model is on an accelerator, whose host tier is pinned memory (host='pinned')")
    if host == "pinned" and (len(devices) != 1 or next(iter(devices)).type == "cpu"):
        raise UnsupportedError("pinned memory is a host tier for one accelerator; the model is not on one")


def several_processes() -> bool:
    """Whether this is one process of several that train together."""
    return torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def file_system(folder: str) -> str:
    """The type of the file system that a folder lies on; an empty string where the system does not list it."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8") as lines:
        for line in lines:
            left, _, right = line.partition(" - ")
            if left.split()[2] == number:
                return right.split()[0]
    return ""


def choose_folder(folder: str | os.PathLike | None) -> str:
    """The folder for the file: the one given, or the first of the temporary folders that lies on a disk."""
    if folder is not None:
        folder = os.fspath(folder)
        if not os.path.isdir(folder):
            raise TierError(f"{folder} is no folder; `folder` names an existing folder on a disk")
        kind = file_system(folder)
        if kind in _IN_MEMORY:
            raise TierError(f"{folder} lies in memory (files of {kind} are memory), so writing tensors there frees nothing; give a folder on a disk")
        return folder
    for found in (tempfile.gettempdir(), "/var/tmp", os.getcwd()):
        if os.path.isdir(found) and os.access(found, os.W_OK) and file_system(found) not in _IN_MEMORY:
            return found
    raise TierError("no temporary folder lies on a disk; name one with `folder=`")


def keep_returning_memory() -> None:
    """Has the C library map every large block of memory by itself, so that freeing it lowers the resident memory of the process.

    Otherwise glibc raises the size of such blocks to that of the largest block freed, up to 32 MiB, and keeps the memory of smaller ones.
    The price is that the system clears the pages of every large tensor. Where the C library is another one, nothing changes.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
        library.mallopt(_M_TRIM_THRESHOLD, _LARGE_BLOCK)
        library.malloc_trim(0)


def trim() -> None:
    """Has the C library give free memory back to the system, also between blocks that are in use."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def bytes_of(storage: torch.UntypedStorage) -> memoryview:
    """The bytes of a storage, which must outlive the view."""
    return memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")


class HostCopy:
    """The bytes of a storage in the file, and the tensors that show them. The space is free again when the last reference is gone."""

    __slots__ = ("tier", "offset", "bytes", "shown", "written")

    def __init__(self, tier, offset, count, shown):
        self.tier, self.offset, self.bytes, self.shown, self.written = tier, offset, count, shown, None

    def wait(self) -> None:
        """Returns when all bytes are in the file."""
        if self.written is not None:
            self.written.result()

    def __del__(self):
        self.tier.free(self.offset, self.bytes)


class Mapped:
    """A tensor whose bytes are pages of the file, and which of them a step has made resident: one range, counted in bytes."""

    def __init__(self, pages: mmap.mmap, count: int):
        self.pages, self.bytes = weakref.ref(pages), count
        self.first = self.last = 0
        self.watchers = weakref.WeakSet()

    @property
    def resident(self) -> int:
        """Bytes that count as memory."""
        return self.last - self.first

    def touch(self, first: int = 0, last: int | None = None) -> None:
        """Makes a range of bytes resident, with everything between it and what is resident already."""
        last = self.bytes if last is None else last
        if self.first <= first and last <= self.last or last <= first:
            return
        before = self.resident
        self.first, self.last = (min(self.first, first), max(self.last, last)) if before else (first, last)
        for watcher in tuple(self.watchers):
            watcher.changed(self.resident - before)

    def prefetch(self) -> None:
        """Makes everything resident; the system begins to read what is not in its cache."""
        pages = self.pages()
        if pages is not None and self.resident < self.bytes:
            pages.madvise(mmap.MADV_WILLNEED)
        self.touch()

    def release(self) -> None:
        """Gives the memory back; the bytes stay in the file."""
        pages = self.pages()
        if pages is not None:
            pages.madvise(mmap.MADV_DONTNEED)
        before, self.first, self.last = self.resident, 0, 0
        if before:
            for watcher in tuple(self.watchers):
                watcher.changed(-before)


#: What is mapped, by its first address.
_mapped: dict[int, Mapped] = {}


def mapped(tensor: torch.Tensor) -> Mapped | None:
    """The pages of the file that hold a tensor; ``None`` if it lies in memory."""
    if not _mapped or type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return None
    return _mapped.get(tensor.untyped_storage().data_ptr())


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor shows: first, and one past the last."""
    if not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = tensor.storage_offset()
    return first * tensor.element_size(), (first + last + 1) * tensor.element_size()


class _Pages(mmap.mmap):
    """A mapping that can be referred to weakly."""


class FileTier:
    """The file, its free space and the threads that copy. ``capacity`` limits the bytes in use; by default it is the free space of the disk."""

    def __init__(self, folder=None, capacity: int | None = None):
        self.folder = choose_folder(folder)
        try:
            if hasattr(os, "O_TMPFILE"):
                self._file = os.open(self.folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            else:
                raise OSError
        except OSError:
            try:
                with tempfile.TemporaryFile(dir=self.folder) as unnamed:
                    self._file = os.dup(unnamed.fileno())
            except OSError as error:
                raise TierError(f"cannot make a file in {self.folder}: {error.strerror}") from None
        weakref.finalize(self, os.close, self._file)
        space = os.statvfs(self.folder)
        self.capacity = capacity if capacity is not None else space.f_bavail * space.f_frsize * 63 // 64
        self.size = self.used = 0
        self.written_bytes = self.read_bytes = 0
        #: Free ranges, by offset: first byte and bytes.
        self._free: list[list[int]] = []
        # Memory may be collected in the middle of any operation, so freed ranges are only noted and joined later.
        self._noted: deque[tuple[int, int]] = deque()
        self._threads: dict[str, tuple[int, ThreadPoolExecutor]] = {}

    # --- space ----------------------------------------------------------------------------------------------------------------------

    def reserve(self, count: int) -> int:
        """The offset of a free range of at least ``count`` bytes. Its blocks exist on the disk, so that a full disk is reported here."""
        count = -(-count // _PAGE) * _PAGE
        self._join()
        if self.used + count > self.capacity:
            raise TierError(f"the host tier may hold {self.capacity} bytes; {self.used + count} are needed (`host_memory=`, or the free space of {self.folder})")
        for position, free in enumerate(self._free):
            if free[1] >= count:
                break
        else:
            position = len(self._free) - 1
            if position < 0 or sum(self._free[position]) != self.size:
                position += 1
                self._free.append([self.size, 0])
            free = self._free[position]
            more = min(max(count - free[1], _GROWTH), max(count - free[1], self.capacity - self.size))
            try:
                os.posix_fallocate(self._file, self.size, more)
            except OSError as error:
                raise TierError(f"cannot reserve {more} bytes in {self.folder}: {error.strerror}") from None
            self.size += more
            free[1] += more
        offset = free[0]
        free[0] += count
        free[1] -= count
        if not free[1]:
            del self._free[position]
        self.used += count
        return offset

    def free(self, offset: int, count: int) -> None:
        """Gives a range back."""
        self._noted.append((offset, -(-count // _PAGE) * _PAGE))

    def _join(self) -> None:
        if not self._noted:
            return
        while self._noted:
            offset, count = self._noted.popleft()
            self.used -= count
            self._free.append([offset, count])
        self._free.sort()
        joined: list[list[int]] = []
        for first, count in self._free:
            if joined and sum(joined[-1]) == first:
                joined[-1][1] += count
            else:
                joined.append([first, count])
        self._free = joined

    # --- copies ---------------------------------------------------------------------------------------------------------------------

    def offload(self, *tensors: torch.Tensor) -> HostCopy:
        """Begins to write the storage that all of these tensors show. Its memory must stay until the copy has been waited for."""
        storage = tensors[0].untyped_storage()
        shown = [(tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()) for tensor in tensors]
        copy = HostCopy(self, self.reserve(storage.nbytes()), storage.nbytes(), shown)
        copy.written = self._begin("write", copy.bytes, self._write, copy, storage)
        return copy

    def prefetch(self, copy: HostCopy):
        """New tensors, one if one was offloaded, and what to wait for before they are read."""
        storage = torch.UntypedStorage(copy.bytes)
        with torch.no_grad():
            made = [torch.empty(0, dtype=dtype).set_(storage, offset, size, stride) for dtype, size, stride, offset in copy.shown]
        future = self._begin("read", copy.bytes, self._read, copy, storage)
        return made[0] if len(made) == 1 else tuple(made), future

    def _begin(self, direction: str, count: int, work, *args) -> Future | None:
        if count <= _INLINE:
            work(*args)
            return _DONE
        process, threads = self._threads.get(direction, (None, None))
        if process != os.getpid():  # Threads do not survive a fork.
            threads = ThreadPoolExecutor(1, f"elbowroom-{direction}")
            self._threads[direction] = os.getpid(), threads
        return threads.submit(work, *args)

    def _write(self, copy: HostCopy, storage: torch.UntypedStorage) -> None:
        self.store(bytes_of(storage), copy.offset)

    def _read(self, copy: HostCopy, storage: torch.UntypedStorage) -> None:
        copy.wait()
        self.load(bytes_of(storage), copy.offset)

    def load(self, rest: memoryview, offset: int) -> None:
        """Reads bytes from an offset."""
        self.read_bytes += len(rest)
        while rest:
            try:
                count = os.preadv(self._file, [rest], offset)
            except OSError as error:
                raise TierError(f"cannot read {len(rest)} bytes of the file in {self.folder}: {error.strerror}") from None
            if not count:
                raise TierError(f"the file in {self.folder} ends before the bytes that were written to it")
            rest, offset = rest[count:], offset + count

    def store(self, rest: memoryview, offset: int) -> None:
        """Writes bytes at an offset."""
        self.written_bytes += len(rest)
        while rest:
            try:
                count = os.pwrite(self._file, rest, offset)
            except OSError as error:
                raise TierError(f"cannot write {len(rest)} bytes to the file in {self.folder}: {error.strerror}") from None
            rest, offset = rest[count:], offset + count

    # --- mapped tensors -------------------------------------------------------------------------------------------------------------

    def map(self, values: torch.Tensor, strides) -> torch.Tensor:
        """A tensor whose bytes are pages of the file, with the shape and the values of another and with these strides; none is resident. The
        elements must fill the storage without holes in both."""
        made, record, offset = self._map(values.shape, strides, values.dtype)
        if values.stride() == tuple(strides):
            first, last = extent(values)
            self.store(bytes_of(values.untyped_storage())[first:last], offset)
        else:
            record.touch()
            with torch.no_grad():
                made.copy_(values)
            record.release()
        return made

    def zeros(self, shape, strides, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of zeros whose bytes are pages of the file; none is resident."""
        made, record, offset = self._map(shape, strides, dtype)
        self._zero(offset, record.bytes)
        return made

    def _map(self, shape, strides, dtype):
        count = math.prod(shape) * dtype.itemsize
        offset = self.reserve(count)
        pages = _Pages(self._file, -(-count // _PAGE) * _PAGE, mmap.MAP_SHARED, offset=offset)
        flat = torch.frombuffer(pages, dtype=dtype, count=math.prod(shape))
        record = _mapped[flat.data_ptr()] = Mapped(pages, count)
        weakref.finalize(pages, self._unmapped, flat.data_ptr(), offset, record)
        return flat.as_strided(shape, strides), record, offset

    def _zero(self, offset: int, count: int) -> None:
        zeros = memoryview(bytes(_PIECE))
        for first in range(0, count, _PIECE):
            self.store(zeros[: min(_PIECE, count - first)], offset + first)

    def _unmapped(self, address: int, offset: int, record: Mapped) -> None:
        _mapped.pop(address, None)
        record.release()
        self.free(offset, record.bytes)

    # --- rates ----------------------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def rates(self) -> tuple[int, int, int]:
        """Bytes per second to the file and back, and the nanoseconds of the smallest copy. The rates are those of the disk, without the
        system's cache; the faster of two passes counts."""
        shortest, piece = [float("inf")] * 2, memoryview(bytearray(_PIECE))
        offset = self.reserve(_MEASURED)
        places = range(offset, offset + _MEASURED, _PIECE)
        for _ in range(2):
            started = time.perf_counter()
            for place in places:
                self.store(piece, place)
            os.fdatasync(self._file)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
            stored = time.perf_counter()
            for place in places:
                self.load(piece, place)
            shortest = [min(shortest[0], stored - started), min(shortest[1], time.perf_counter() - stored)]
        started = time.perf_counter()
        for _ in range(8):
            self._begin("write", _INLINE + 1, self.store, piece[:_PAGE], offset).result()
        latency = (time.perf_counter() - started) / 8
        self.free(offset, _MEASURED)
        self.written_bytes = self.read_bytes = 0
        return max(1, int(_MEASURED / shortest[0])), max(1, int(_MEASURED / shortest[1])), int(1e9 * latency)


class _Done(Future):
    def __init__(self):
        super().__init__()
        self.set_result(None)


_DONE = _Done()
