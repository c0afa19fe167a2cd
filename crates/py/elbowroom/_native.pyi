from collections.abc import Sequence
from typing import Literal

__version__: str

class InfeasibleError(RuntimeError):
    """No schedule exists within the limit, or none was found."""

class Planned:
    """A checked schedule with its predictions."""

    actions: list[tuple[int, int, list[int], list[int]]]
    """``(kind, id, reads, writes)``. Kinds: 0 compute op ``id``, 1 recompute op ``id``, 2 offload tensor ``id`` from the buffer in ``reads``,
    3 prefetch tensor ``id`` to the buffer in ``writes``, 4 release buffer ``id``, 5 discard the host copy of tensor ``id``."""
    waits: list[list[int]]
    """For each action, the positions of the earlier actions on other streams that must finish before it starts. Ops, copies to the host and copies
    from it are three streams, each of which runs its actions in order; releases run on none."""
    trace: str
    """Hash of the trace."""
    fingerprint: str
    """Hash of the trace, the actions and their waits as they were checked."""
    boundary: list[tuple[int | None, bool]]
    """Where each persistent tensor is between two iterations, in ascending order: its device buffer, if any, and whether there is a host copy."""
    limit_bytes: int
    peak_bytes: int
    nanos: int
    unlimited_nanos: int
    bound_nanos: int
    recomputed: int
    offloaded_bytes: int
    evaluations: int
    stop: Literal["optimal", "finished", "evaluations", "time", "interrupted"]
    explanation: str
    def objection(self, waits: Sequence[Sequence[int]]) -> str | None:
        """What the checker objects to in this schedule with other waits; ``None`` if it is legal with them, too."""

class Iteration:
    """One iteration: its ops in execution order, and the tensors that they read and write.

    ``flags`` of an op are the sum of 1 (may run only once), 2 (backward) and 4 (update). Sizes and workspaces are in bytes.
    ``persistent`` tensors, each with its name, exist before the iteration and after it; ``mutates`` lists those that an op reads and
    overwrites; ``lines`` are the lines of the user's program that call the ops; ``reuses`` lists pairs of a tensor that an op reads and one that
    it makes, which may take the bytes of the first if nothing else needs them.
    """

    fingerprint: str
    def __init__(
        self,
        name: str,
        sizes: Sequence[int],
        reads: Sequence[Sequence[int]],
        outputs: Sequence[Sequence[int]],
        nanos: Sequence[int],
        workspaces: Sequence[int],
        flags: Sequence[int],
        names: Sequence[str],
        kinds: Sequence[str],
        persistent: Sequence[tuple[int, str]] = (),
        mutates: Sequence[Sequence[int]] | None = None,
        lines: Sequence[str] | None = None,
        reuses: Sequence[Sequence[tuple[int, int]]] | None = None,
    ) -> None: ...
    def text(self) -> str:
        """The trace with its durations in the text format of the command's trace files."""
    def pin(self, pins: Sequence[tuple[str, str]], *, offload: bool, unmatched: bool = False) -> tuple[Iteration, list[tuple[int, int]]]:
        """This iteration under decisions, each a verb and a pattern, that no plan may change, and what each covers: a number of tensors or
        ops, and their bytes. Unless some may be ``unmatched``, a pattern that covers nothing is a :class:`ValueError`."""
    def keep(self) -> Planned:
        """The schedule that keeps every tensor until its last use, each in bytes of its own."""
    def largest_op(self) -> tuple[str, int]:
        """The largest op, and the bytes that it needs at once: no limit below can be met."""
    def plan(
        self,
        limit: int,
        *,
        link: tuple[int, int] | None = None,
        latency: int = 0,
        host_memory: int | None = None,
        evaluations: int | None = None,
        seconds: float | None = None,
        seed: int = 0,
        threads: int = 1,
        planner: str = "auto",
    ) -> Planned:
        """A schedule within ``limit`` bytes of live memory. ``link`` is bytes per second to the host and back, ``latency`` the fixed
        nanoseconds of a copy; without a link nothing is offloaded. Raises :class:`InfeasibleError`."""
    def smallest(
        self,
        *,
        link: tuple[int, int] | None = None,
        latency: int = 0,
        host_memory: int | None = None,
        evaluations: int | None = None,
        seconds: float | None = None,
        seed: int = 0,
        threads: int = 1,
        planner: str = "auto",
    ) -> Planned:
        """The schedule at the smallest limit that the search finds, to within half a percent."""

def parse_pins(text: str) -> list[tuple[Literal["keep", "never-recompute", "host"], str]]:
    """The decisions of a text, one a line: verb and pattern. Raises :class:`ValueError`."""

def fingerprint(trace: str, actions: Sequence[tuple[int, int, list[int], list[int]]], waits: Sequence[Sequence[int]]) -> str:
    """Hash of the actions of a schedule and their waits, for the trace with this fingerprint."""

def place(
    sizes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    aligns: Sequence[int],
    capacity: int | None,
    packer: str,
    evaluations: int | None,
    seconds: float | None,
    seed: int,
) -> tuple[list[int], int, str]: ...

def why(content: bytes, name: str, machine: str, seconds: float) -> tuple[str, str]:
    """Why the peak of the snapshot or trace in the bytes of a file is where it is, as text and as JSON. Only on Linux."""
