"""Placement of buffers with known lifetimes in one arena."""

from __future__ import annotations

from typing import NamedTuple

from . import _native


class Placement(NamedTuple):
    """An offset for every buffer, in the order of the arguments."""

    offsets: list[int]
    """First byte of every buffer."""
    height: int
    """Arena size in bytes: the highest end of any buffer."""
    stop: str
    """Why the packer stopped; ``"optimal"`` if no placement can be lower."""


def _column(numbers):
    """A column as a list of integers; arrays of numpy and tensors have ``tolist``."""
    return numbers.tolist() if hasattr(numbers, "tolist") else list(numbers)


def place(
    sizes,
    starts,
    ends,
    *,
    aligns=None,
    capacity: int | None = None,
    packer: str = "auto",
    evaluations: int | None = None,
    seconds: float | None = 1.0,
    seed: int = 0,
) -> Placement:
    """Places buffers of ``sizes`` bytes that are alive in the half-open intervals ``starts[i]..ends[i]``.

    Sequences, arrays of numpy and tensors of integers are accepted. Without a ``capacity`` the arena is made as small as the budget allows.
    With ``seconds=None`` and a number of ``evaluations``, the result is the same on every machine. Raises :class:`ValueError` for malformed
    buffers and :class:`elbowroom.InfeasibleError` if nothing fits the capacity.
    """
    sizes = _column(sizes)
    aligns = [1] * len(sizes) if aligns is None else [aligns] * len(sizes) if isinstance(aligns, int) else _column(aligns)
    if any(end < 0 or start < 0 or size < 0 for size, start, end in zip(sizes, _column(starts), _column(ends))):
        raise ValueError("sizes, starts and ends must not be negative")
    found = _native.place(
        sizes, _column(starts), _column(ends), aligns, capacity, packer, evaluations, seconds, seed
    )
    return Placement(*found)
