"""Traces with the kernels that plain execution runs.

PyTorch registers Python decompositions of some operators that take effect whenever a step is traced, whatever the backend. Plain execution does
not run them, and they differ: the gradient of ``upsample_nearest2d`` becomes an ``index_put`` that forgets the layout ``channels_last``, and
a convolution that reads it then adds in another order. While a step is traced here, these operators have their compiled kernels only,
others have the strides of theirs (see ``layouts``), and batch normalization is that of cuDNN where cuDNN computes it (see ``normalization``).
"""

from __future__ import annotations

import contextlib
import functools

import torch

from .layouts import of_kernels
from .normalization import as_computed

_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)

#: Operators whose decompositions compute otherwise than their kernels. Recurrent layers are replaced (see ``recurrent``); the decompositions of
#: others, such as ``matmul`` and ``dropout``, call the operators that their compiled forms call.
_DIFFERENT = ("upsample_", "_upsample_", "hardshrink", "softshrink", "multi_margin_loss", "multilabel_margin_loss")


@functools.cache
def _overloads():
    names = (name for name in dir(torch.ops.aten) if name.startswith(_DIFFERENT))
    packets = (getattr(torch.ops.aten, name) for name in names)
    found = [getattr(packet, overload) for packet in packets if isinstance(packet, torch._ops.OpOverloadPacket) for overload in packet.overloads()]
    return [overload for overload in found if any(key in overload.py_kernels for key in _KEYS)]


@contextlib.contextmanager
def compiled_only():
    """Suspends the decompositions of this module's operators."""
    import torch._decomp  # noqa: F401 - registers them

    suspended = []
    for overload in _overloads():
        for key in _KEYS:
            if key in overload.py_kernels:
                suspended.append((overload, key, overload.py_kernels.pop(key)))
        overload._dispatch_cache.clear()
    try:
        with of_kernels(), as_computed():
            yield
    finally:
        for overload, key, kernel in suspended:
            overload.py_kernels[key] = kernel
            overload._dispatch_cache.clear()
