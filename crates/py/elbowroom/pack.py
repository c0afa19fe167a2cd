"""Placement of buffers with known lifetimes in one arena."""

from __future__ import annotations

import sys
from typing import NamedTuple

from . import _native


class Placement(NamedTuple):
    """An offset for every buffer, in the order of the arguments."""

    offsets: list[int]
    """First byte of every buffer; an array of numpy if the sizes were one."""
    height: int
    """Arena size in bytes: the highest end of any buffer."""
    stop: str
    """Why the packer stopped; ``"optimal"`` if no placement can be lower."""


def _column(numbers):
    """A column as a list of integers; arrays of numpy and tensors have ``tolist``."""
    return numbers.tolist() if hasattr(numbers, "tolist") else list(numbers)


def _offsets(offsets):
    """Offsets of which some are missing."""
    if offsets is None:
        return None
    return [None if offset is None or offset < 0 else offset for offset in _column(offsets)]


def place(
    sizes,
    starts,
    ends,
    *,
    aligns=None,
    fixed=None,
    hints=None,
    capacity: int | None = None,
    packer: str = "auto",
    evaluations: int | None = None,
    seconds: float | None = 1.0,
    seed: int = 0,
) -> Placement:
    """Places buffers of ``sizes`` bytes that are alive in the half-open intervals ``starts[i]..ends[i]``.

    Sequences, arrays of numpy and tensors of integers are accepted; if ``sizes`` is an array of numpy, ``offsets`` is one too. ``fixed`` and
    ``hints`` have an offset for every buffer, or ``None`` or -1 for none: a fixed buffer lies there, a hint is tried first. Without a ``capacity`` the arena is made as small as the budget allows.
    With ``seconds=None`` and a number of ``evaluations``, the result is the same on every machine. Raises :class:`ValueError` for malformed
    buffers and :class:`elbowroom.InfeasibleError` if nothing fits the capacity.
    """
    # Where there is an array of numpy, numpy has been imported.
    like = sys.modules.get("numpy") if type(sizes).__module__ == "numpy" else None
    sizes = _column(sizes)
    aligns = [1] * len(sizes) if aligns is None else [aligns] * len(sizes) if isinstance(aligns, int) else _column(aligns)
    if any(end < 0 or start < 0 or size < 0 for size, start, end in zip(sizes, _column(starts), _column(ends))):
        raise ValueError("sizes, starts and ends must not be negative")
    offsets, height, stop = _native.place(
        sizes,
        _column(starts),
        _column(ends),
        aligns,
        _offsets(fixed),
        _offsets(hints),
        capacity,
        packer,
        evaluations,
        seconds,
        seed,
    )
    if like is not None:
        offsets = like.asarray(offsets, dtype=like.int64)
    return Placement(offsets, height, stop)
