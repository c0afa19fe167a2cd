"""The accelerator of `accelerator.cpp` for tests: builds it, loads it, and shows what PyTorch's generic parts need of a device.

Streams, events, autograd, ``torch.accelerator`` and pinned memory are PyTorch's own; a test that names no device but ``accelerator.device()`` runs on
CUDA unchanged where there is a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("accelerator.cpp")
_FLAGS = ["-std=c++20", "-O1", "-shared", "-fPIC", "-Wno-interference-size"]
#: No limit, in bytes.
_UNLIMITED = 1 << 33


def missing() -> str | None:
    """Why the accelerator cannot be built here; ``None`` if it can."""
    if sys.platform != "linux":
        return "the simulated accelerator needs Linux"
    if _compiler() is None:
        return "the simulated accelerator needs a C++ compiler (g++, or $CXX)"
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):
        return "the simulated accelerator needs PyTorch 2.15 or later"
    return None


def _compiler():
    return shutil.which(os.environ.get("CXX", "g++"))


def _library() -> Path:
    """The compiled library, which is kept for this source and this PyTorch."""
    command = [_compiler(), *_FLAGS]
    key = hashlib.sha256(repr((command, torch.__version__, sys.prefix)).encode() + SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elbowroom"
    kept = folder / f"accelerator-{key}.so"
    if kept.exists():
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(torch.__file__).parent
    includes = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
    with tempfile.TemporaryDirectory(dir=folder) as made:
        target = Path(made) / "accelerator.so"
        subprocess.run([*command, *includes, str(SOURCE), "-o", str(target), f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"], check=True)
        # Two processes may build at once; each puts a whole file there.
        target.replace(kept)
    return kept


@functools.cache
def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_library()))
    library.accelerator_begin.argtypes = [ctypes.c_uint64, ctypes.c_int64, ctypes.c_int]
    library.accelerator_used.restype = library.accelerator_peak.restype = ctypes.c_uint64
    library.accelerator_log.restype = ctypes.c_char_p
    pointer = ctypes.POINTER(ctypes.c_uint64)
    library.accelerator_rng.argtypes = [pointer, pointer, ctypes.c_int]

    def generator(values=None):
        seed, offset = (ctypes.c_uint64(v) for v in (values or (0, 0)))
        library.accelerator_rng(seed, offset, int(values is not None))
        return seed.value, offset.value

    module = types.ModuleType("torch.simulated")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.manual_seed_all = lambda seed: generator((seed % 2**64, 0)) and None
    module.get_rng_state = lambda device=None: torch.tensor([_signed(v) for v in generator()]).view(torch.uint8)
    module.set_rng_state = lambda state, device=None: generator([v % 2**64 for v in state.view(torch.int64).tolist()]) and None
    module.synchronize = lambda device=None: torch.accelerator.synchronize()
    torch.utils.rename_privateuse1_backend("simulated")
    torch._register_device_module("simulated", module)
    return library


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


class Simulated:
    """The simulated device."""

    name = "simulated:0"

    def __init__(self):
        self._library = _load()

    def begin(self, seed: int | None = None, limit: int = _UNLIMITED, log: bool = False) -> None:
        """Ends all work. From now on the device has ``limit`` bytes, and ``seed`` draws the order of its streams; without one, work ends when
        it is issued."""
        self._library.accelerator_begin(limit, -1 if seed is None else seed, int(log))

    @property
    def used(self) -> int:
        """Bytes of the tensors that are alive."""
        return self._library.accelerator_used()

    @property
    def peak(self) -> int:
        """The most bytes of tensors that were alive at once since :meth:`begin`."""
        return self._library.accelerator_peak()

    @property
    def log(self) -> list[str]:
        """What ran, and what waited, in order: ``run STREAM BEGIN END WHAT``, ``record STREAM event ID.TIME``, ``wait STREAM event ID.TIME of STREAM``."""
        torch.accelerator.synchronize()
        return self._library.accelerator_log().decode().splitlines()


class Cuda:
    """A GPU, with the interface of the simulated device: there are no seeds, and the limit is a share of the GPU's memory."""

    name = "cuda:0"

    def begin(self, seed=None, limit=None, log=False) -> None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    used = property(lambda self: torch.cuda.memory_stats()["requested_bytes.all.current"])
    peak = property(lambda self: torch.cuda.memory_stats()["requested_bytes.all.peak"])
    log = property(lambda self: [])


@functools.cache
def device() -> Simulated | Cuda:
    """The GPU if there is one, or the simulated device."""
    return Cuda() if torch.cuda.is_available() else Simulated()


@contextlib.contextmanager
def on(stream):
    """Issues work to a stream."""
    before = torch.accelerator.current_stream()
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
