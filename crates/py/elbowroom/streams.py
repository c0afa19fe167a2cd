"""The order of streams in a program whose copies run on an accelerator: which events it records and which it awaits.

A schedule orders its actions by three streams and by waits, and the checker proves that this suffices wherever a buffer lies. The program
that is written obeys exactly these waits. What the checker leaves to the executor is added here:

- host memory of a released copy is written again only behind the prefetches of that copy;
- what runs after the forward or the backward pass, of which no plan knows, is ordered behind the copies whose device memory is free by then;
- what ran between both passes is part of the action ``loss``.
"""

from __future__ import annotations

from . import _native, pack
from .errors import InfeasibleError

COMPUTE, RECOMPUTE, OFFLOAD, PREFETCH, RELEASE, HOST_RELEASE = range(6)

#: Names of the streams in programs, and the stream of each kind of action that has one.
NAMES = ("compute", "to_host", "to_device")
_STREAM = {COMPUTE: 0, RECOMPUTE: 0, OFFLOAD: 1, PREFETCH: 2}

#: Offsets in host memory are multiples of this many bytes, and a packer may search for this long.
_ALIGN, _EVALUATIONS = 256, 2000


class Streams:
    """The events of one program, and the offsets of its copies in host memory."""

    def __init__(self, planned, joint):
        self.planned = planned
        # Whoever asks a plan for a column gets a new list: each is asked for once.
        self.actions, self.waits = planned.actions, planned.waits
        self.stream = [_STREAM.get(kind) for kind, *_ in self.actions]
        #: For each stream, the last action of every stream that it is ordered behind.
        self._known = [[-1] * 3 for _ in NAMES]
        self._after: dict[int, list[int]] = {}
        #: The last action that was issued to each stream, and the device buffers that copies to the host have read, with the last such copy.
        self._last, self._reads = [-1] * 3, {}
        self._issued: list[int] = []
        #: What actions wait for that no plan says, as the head of this file lists it.
        self.added: dict[int, list[int]] = {}
        self._host(joint)

    def _host(self, joint) -> None:
        """Places the host copies in one slab, and finds the prefetches that a copy to the same bytes has to follow."""
        copies, prefetches = [], []
        open_copies: dict[int, int] = {}
        for at, (kind, number, _, _) in enumerate(self.actions):
            if kind == OFFLOAD:
                open_copies[number] = len(copies)
                copies.append([at, len(self.actions), joint.tensors[number].bytes])
                prefetches.append([])
            elif kind == PREFETCH:
                prefetches[open_copies[number]].append(at)
            elif kind == HOST_RELEASE:
                copies[open_copies.pop(number)][1] = at
        self.slab_bytes, self.offsets, self._reused = 0, {}, {}
        if not copies:
            return
        sizes = [-(-count // _ALIGN) * _ALIGN for _, _, count in copies]
        placed = pack.place(sizes, [at for at, _, _ in copies], [end for _, end, _ in copies], evaluations=_EVALUATIONS, seconds=None)
        self.slab_bytes = placed.height
        for index, (at, _, _) in enumerate(copies):
            self.offsets[at] = first = placed.offsets[index]
            earlier = [
                fill
                for other, (_, end, _) in enumerate(copies[:index])
                if end <= at and placed.offsets[other] < first + sizes[index] and first < placed.offsets[other] + sizes[other]
                for fill in prefetches[other]
            ]
            if earlier:
                self._reused[at] = max(earlier)

    def check_capacity(self, capacity: int) -> None:
        """Refuses a slab above the host memory that may be used."""
        if self.slab_bytes > capacity:
            raise InfeasibleError(f"the copies on the host take {self.slab_bytes} bytes, and the host tier may hold {capacity}")

    # --- lines of the program -------------------------------------------------------------------------------------------------------

    def enter(self, body: str) -> list[str]:
        """The first lines of the forward or the backward pass."""
        lines = ["    compute, to_host, to_device = streams()"]
        if body == "forward" and self.slab_bytes:
            lines.append(f"    slab = slab_of({self.slab_bytes})")
        return lines

    def before(self, at: int) -> list[str]:
        """What an action waits for."""
        self._issued.append(at)
        planned = [self._await(self.stream[at], wait) for wait in self.waits[at]]
        return planned + self._add(at, [self._reused[at]] if at in self._reused else [])

    def _add(self, at: int, waits: list[int]) -> list[str]:
        """What an action waits for besides its plan."""
        self.added.setdefault(at, []).extend(waits)
        return [self._await(self.stream[at], wait) for wait in waits]

    def _await(self, stream: int, action: int) -> str:
        known = self._known[stream]
        known[:] = map(max, known, self._after[action])
        return f"{NAMES[stream]}.wait_event(e{action})"

    def after(self, at: int) -> list[str]:
        """The event of an action that has been issued; those that nothing awaits are removed by :meth:`prune`."""
        stream = self.stream[at]
        if stream is None:
            return []
        kind, _, reads, _ = self.actions[at]
        if kind == OFFLOAD:
            self._reads[reads[0]] = at
        self._known[stream][stream] = self._last[stream] = at
        self._after[at] = list(self._known[stream])
        return [f"e{at} = {NAMES[stream]}.record_event()"]

    def leave(self, live) -> list[str]:
        """Orders what follows the forward pass behind the copies whose device memory may be free: all but that of ``live`` buffers."""
        last_read = max((at for buffer, at in self._reads.items() if buffer not in live), default=-1)
        return self._join(self._issued[-1], last_read, self._last[2])

    def finish(self, at: int) -> list[str]:
        """Orders what follows the backward pass behind all copies, and proves that what has been written is the plan that was checked."""
        lines = self._join(at, self._last[1], self._last[2])
        issued = [*self._issued, *range(at + 1, len(self.actions))]
        found = _native.fingerprint(self.planned.trace, [self.actions[i] for i in issued], [self.waits[i] for i in issued])
        if found != self.planned.fingerprint:
            raise AssertionError(f"the program is of plan {found}, and plan {self.planned.fingerprint} was checked: a fault in elbowroom")
        return lines

    def _join(self, at: int, to_host: int, to_device: int) -> list[str]:
        return self._add(at, [last for side, last in ((1, to_host), (2, to_device)) if last > self._known[0][side]])

    def prune(self, forward: list[str], backward: list[str]) -> list[str]:
        """Removes events that nothing awaits. Returns the names that the backward pass needs of the forward pass."""
        awaited = {line.rsplit("(", 1)[1][:-1] for line in forward + backward if ".wait_event(e" in line}
        for lines in (forward, backward):
            lines[:] = [line for line in lines if not line.endswith(".record_event()") or line.split(" ", 1)[0] in awaited]
        recorded = [line.split(" ", 1)[0] for line in forward if line.endswith(".record_event()")]
        return recorded + ["slab"] if self.slab_bytes else recorded
