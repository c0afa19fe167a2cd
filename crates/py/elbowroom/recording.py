"""A step without a captured graph, as it was recorded: one row an operator, and the saved tensors that can be evicted between them.

Only bytes of records that nothing but autograd refers to are tensors of the iteration that the planner sees. All other bytes are part of the
workspace of the operators during which they exist, because nothing can be done about them.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from . import _native
from .joint import ONCE
from .program import OFFLOAD, PREFETCH, RECOMPUTE, RELEASE


@dataclass
class Row:
    """One operator of a step."""

    key: int
    """Number of the operator with its shapes."""
    nanos: int = 0
    fixed: int = 0
    """Bytes alive with its results that are no records."""
    makes: list[int] = field(default_factory=list)
    """Records that nothing but autograd refers to from here on."""
    reads: set[int] = field(default_factory=set)


class Recording:
    """The rows of one step, and the bytes of its records."""

    def __init__(self):
        self.rows: list[Row] = []
        self.bytes: list[int] = []

    def make(self, count: int, resident: bool) -> int:
        """A record of ``count`` bytes can be evicted from the last operator on; its number."""
        number = len(self.bytes)
        self.bytes.append(count)
        self.rows[-1].makes.append(number)
        # It was counted among the bytes about which nothing can be done.
        self.rows[-1].fixed -= count * resident
        return number

    def same(self, other: Recording | None) -> bool:
        """Whether both steps ran the same operators on the same shapes, and kept and read the same records."""
        if other is None or len(self.rows) != len(other.rows) or self.bytes != other.bytes:
            return False
        return all(a.key == b.key and a.makes == b.makes and a.reads == b.reads for a, b in zip(self.rows, other.rows))

    def iteration(self, before: Recording) -> _native.Iteration:
        """The step as the planner takes it; durations are the smaller ones of two equal steps."""
        rows = self.rows
        reads = [sorted(row.reads) for row in rows]
        nanos = [min(row.nanos, other.nanos) for row, other in zip(rows, before.rows)]
        fixed = [max(row.fixed, other.fixed, 0) for row, other in zip(rows, before.rows)]
        names = [f"op {number}" for number in range(len(rows))]
        flags = [ONCE] * len(rows)
        return _native.Iteration("step", self.bytes, reads, [row.makes for row in rows], nanos, fixed, flags, names, ["op"] * len(rows))


class StepPlan:
    """What to evict and prefetch before which operator of a recorded step."""

    def __init__(self, recording: Recording, before: Recording, limit: int, link: tuple[int, int], options: dict):
        self.recording = recording
        iteration = recording.iteration(before)
        self.unlimited_peak_bytes = iteration.keep().peak_bytes
        planned = iteration.plan(limit, link=link, **options)
        self.peak_bytes, self.overhead = planned.peak_bytes, planned.nanos / max(1, planned.unlimited_nanos) - 1
        self.offloaded_bytes = planned.offloaded_bytes
        #: Actions before each operator, and after the last one.
        self.actions: list[list[tuple[int, int]]] = [[] for _ in range(len(recording.rows) + 1)]
        self._place(planned.actions)
        #: The operators that read each record.
        self.uses: list[list[int]] = [[] for _ in recording.bytes]
        for position, row in enumerate(recording.rows):
            for number in row.reads:
                self.uses[number].append(position)

    def _place(self, actions) -> None:
        tensor_of: dict[int, int] = {}
        later = {tensor for kind, tensor, _, _ in actions if kind == PREFETCH}
        left = {tensor: sum(1 for kind, other, _, _ in actions if kind == PREFETCH and other == tensor) for tensor in later}
        position = 0
        for kind, number, reads, writes in actions:
            if kind < OFFLOAD:
                assert kind != RECOMPUTE, "every op of the step may run only once"
                tensor_of.update(zip(writes, self.recording.rows[number].makes))
                position = number + 1
            elif kind == OFFLOAD:
                self.actions[position].append((OFFLOAD, number))
            elif kind == PREFETCH:
                tensor_of[writes[0]] = number
                left[number] -= 1
                self.actions[position].append((PREFETCH, number))
            elif kind == RELEASE and left.get(tensor_of.get(number), 0):
                # A release after the last use is left to autograd.
                self.actions[position].append((RELEASE, tensor_of[number]))

    def next_use(self, number: int, position: int) -> int:
        """The operator that reads a record next, or one after the last."""
        uses = self.uses[number]
        at = bisect.bisect_left(uses, position)
        return uses[at] if at < len(uses) else len(self.recording.rows)

    def goes_on(self, rows: list[Row], row: Row) -> bool:
        """Whether the step goes on as planned: ``row`` runs next, and the last of ``rows`` made what it makes in the plan."""
        known, position = self.recording.rows, len(rows)
        return position < len(known) and known[position].key == row.key and known[position - 1].makes == rows[-1].makes

    def began_with(self, rows: list[Row]) -> bool:
        """Whether a step that began with ``rows`` may be this one."""
        known = self.recording.rows
        return len(rows) <= len(known) and all(a.key == b.key and a.makes == b.makes for a, b in zip(rows, known))

    def show(self, report) -> None:
        """Writes the predictions into a report."""
        report.predicted_peak_bytes, report.unlimited_peak_bytes, report.overhead = self.peak_bytes, self.unlimited_peak_bytes, self.overhead
