"""The figures of a fitted model."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import size
from .pins import Pin


@dataclass
class Report:
    """What was planned and what was seen; bytes are bytes of tensors."""

    limit_bytes: int = 0
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0
    unlimited_peak_bytes: int = 0
    workspace_bytes: int = 0
    """The most that kernels took besides tensors, on a GPU; what the allocator adds to round sizes up is part of it."""
    overhead: float = 0.0
    """Predicted: time of a step under the plan ÷ time of a step that keeps everything − 1."""
    graphs: int = 0
    plans: int = 0
    recomputed: int = 0
    """Ops that run a second time in a step."""
    offloaded_bytes: int = 0
    """Bytes that a step writes to the host tier."""
    graph_breaks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pins: list[Pin] = field(default_factory=list)
    """The decisions that every plan obeys, and what each covers."""

    def _repr_html_(self) -> str:
        return size.table(self, bytes=("limit", "predicted_peak", "measured_peak", "unlimited_peak", "workspace"), shares=("overhead",))
