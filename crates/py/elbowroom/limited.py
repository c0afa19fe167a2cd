"""``limit``: a training step that cannot be captured, within a limit on tensor bytes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from . import size, version
from .eager import Eager


@dataclass
class LimitReport:
    """What the steps under a limit took; bytes are bytes of tensors."""

    limit_bytes: int = 0
    measured_peak_bytes: int = 0
    predicted_peak_bytes: int = 0
    """Of the last plan; 0 without a plan."""
    unlimited_peak_bytes: int = 0
    """Of the last step that was planned."""
    overhead: float = 0.0
    """Predicted by the last plan: time of a step ÷ time of a step that evicts nothing − 1."""
    steps: int = 0
    planned_steps: int = 0
    """Steps that followed a plan to their end."""
    plans: int = 0
    evicted_bytes: int = 0
    """Bytes written to the file so far."""
    notes: list[str] = field(default_factory=list)

    def _repr_html_(self) -> str:
        return size.table(self, bytes=("limit", "predicted_peak", "measured_peak", "unlimited_peak", "evicted"), shares=("overhead",))


class Limit:
    """One step at a time, ``with`` it. See :func:`limit`."""

    def __init__(self, eager: Eager, limit_bytes: int):
        self._eager = eager
        self.report = LimitReport(limit_bytes, notes=version.check())

    def __repr__(self):
        return f"<elbowroom limit: {self.report}>"

    def __enter__(self) -> Limit:
        if self._eager.active:
            raise RuntimeError("this limit is in force already; one entry is one step")
        self._eager.begin(self.report)
        return self

    def __exit__(self, kind, *_) -> None:
        self._eager.end(kind is None)


#: What is known of the steps at each place of the program that asks for a limit.
_places: dict[tuple, Eager] = {}


def limit(memory, *, folder=None, evaluations=200, seconds=None, seed=0) -> Limit:
    """A limit on tensor bytes for a training step that PyTorch cannot capture: ``with elbowroom.limit("6GiB"):`` around forward pass, backward
    pass and update. One entry is one step. The same place in a program is given the same limit, so that it may stand inside the loop.

    ``memory`` is a number of bytes or a size like ``"6GiB"``. Saved tensors are evicted to a file in ``folder``, by default that for temporary
    files; it must lie on a disk. The limit counts every tensor that Python can find when the first step begins, and every one that an operator
    reads or makes afterwards. Bits equal those without the limit. After two equal steps, steps like them follow a plan, which ``evaluations``,
    ``seconds`` and ``seed`` determine as for ``fit``; figures are in ``report``.

    The step raises :class:`InfeasibleError`, which names what is alive, where it cannot be held within the limit, and
    :class:`UnsupportedError` for tensors outside of the CPU. A PyTorch that is too old raises :class:`VersionError`.
    """
    if isinstance(memory, str) and (memory.strip().endswith("%") or memory.strip().lower() == "min"):
        raise ValueError(f"{memory!r} is relative to a peak that is not known before the step has run; give bytes or a size like '6GiB'")
    limit_bytes = size.resolve(memory, 1)
    frame = sys._getframe(1)
    place = (frame.f_code, frame.f_lasti, limit_bytes, folder, evaluations, seconds, seed)
    eager = _places.get(place)
    if eager is None or eager.active:
        eager = _places[place] = Eager(folder, dict(evaluations=evaluations, seconds=seconds, seed=seed))
    return Limit(eager, limit_bytes)
