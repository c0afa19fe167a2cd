"""The execution of a step whose operators are seen one by one, within a limit.

Every operator is seen before it runs. Tensors that autograd saves are written to a file while nothing else refers to them, those that the
backward pass reads last first, and are read back when the backward pass asks for them. Steps that equal an earlier pair of equal steps follow
a plan of the Rust planner instead, and go on without it where they differ. No operator is changed, so neither are the bits.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from . import size
from .errors import InfeasibleError, UnsupportedError
from .meter import Bytes
from .operators import Operators, flatten
from .program import OFFLOAD, PREFETCH
from .recording import Recording, Row, StepPlan
from .saved import SMALLEST, Handle, Record, Records

#: Records below this size are evicted only if larger ones do not free enough.
_WORTHWHILE = 1 << 16

#: Recordings and plans that are kept for steps that begin with the same operator.
_VARIANTS = 8

#: An operator whose results PyTorch does not state exactly makes at most this many times the bytes of its arguments.
_GENEROUS = 32

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Counter(Bytes):
    """Counts storages on the CPU, each with what a person may know it by."""

    def __init__(self):
        super().__init__()
        self.labels: dict[int, tuple] = {}

    def add_as(self, tensor: torch.Tensor, label: str, func=None) -> int:
        """Counts one tensor; the bytes that are new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or tensor.layout != torch.strided or tensor.device.type == "meta":
            return 0
        before = self.now
        self.add(tensor)
        self.labels[key] = label, func, tensor.dtype, tuple(tensor.shape)
        return self.now - before

    def largest(self, count: int = 5) -> str:
        """What is alive, in groups, and the largest of it."""
        alive = sorted(self.alive().items(), key=lambda item: -item[1])
        sums: dict[str, int] = {}
        listed = []
        for key, length in alive:
            label, func, dtype, shape = self.labels[key]
            sums[label] = sums.get(label, 0) + length
            if len(listed) < count:
                made = f" of {func}" if func else ""
                listed.append(f"a {label}{made}, {str(dtype).removeprefix('torch.')} {list(shape)}: {size.show(length)}")
        groups = ", ".join(f"{size.show(length)} of {label}s" for label, length in sorted(sums.items(), key=lambda item: -item[1]))
        return f"{groups}; the largest are: {'; '.join(listed)}"


class _Mode(TorchDispatchMode):
    """Hands every operator to the execution."""

    def __init__(self, eager: Eager):
        super().__init__()
        self.eager = eager

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # Nothing is compiled while this mode is active, and the guard would take longer than the rest.

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.eager._run(func, args, kwargs or {})


class Eager:
    """The steps at one place of a program: what is known of them, and the step that runs."""

    def __init__(self, folder, options: dict):
        self.options = options
        self.report = None
        self._records = Records(folder)
        self._records.on_end = self._ended
        self._bytes = Counter()
        self._operators = Operators()
        self.active = self._own = False
        self._pool: ThreadPoolExecutor | None = None
        #: Recordings and plans, by the first operator of their step, the latest first.
        self._recordings: dict[int, list[Recording]] = {}
        self._plans: dict[int, list[StepPlan]] = {}
        self._scanned = False
        self._reset()

    def _reset(self) -> None:
        self._step = Recording()
        self._plan: StepPlan | None = None
        #: Records that something else than autograd referred to when they were last seen, in the order in which they were saved.
        self._pending: dict[Record, None] = {}
        #: Records whose tensors an operator may be using.
        self._in_use: dict[Record, None] = {}
        #: The records of the step by their numbers, and the bytes of those that are resident.
        self._numbered: list[weakref.ref] = []
        self._numbered_bytes = 0
        #: Actions are done up to this operator.
        self._acted = -1

    # --- steps ------------------------------------------------------------------------------------------------------------------------

    def begin(self, report) -> None:
        """Begins a step under the limit of a report."""
        self.report = report
        self._reset()
        self._scan()
        self._hooks, self._mode = saved_tensors_hooks(self._pack, self._unpack), _Mode(self)
        self._hooks.__enter__()
        self._mode.__enter__()
        self.active = True

    def end(self, complete: bool) -> None:
        """Ends the step; one that was not ``complete`` teaches nothing."""
        self.active = False
        self._mode.__exit__(None, None, None)
        self._hooks.__exit__(None, None, None)
        for record in list(self._records.resident.values()):
            self._records.finish(record)
        if complete and self._step.rows:
            self._finish()
        self._records.trim()
        for reference in self._numbered:
            if (record := reference()) is not None:
                record.number = None
        self._reset()

    def _finish(self) -> None:
        step, report = self._step, self.report
        for number, reference in enumerate(self._numbered):
            if reference() is not None:
                step.rows[-1].reads.add(number)  # Autograd holds it after the step.
        report.steps += 1
        plan, first = self._plan, step.rows[0].key
        if plan is not None and len(step.rows) == len(plan.recording.rows):
            report.planned_steps += 1
            plan.show(report)
            return
        known = self._recordings.setdefault(first, [])
        for before in known:
            if step.same(before):
                known.remove(before)
                self._make_plan(step, before)
                break
        known.insert(0, step)
        del known[_VARIANTS:]

    def _make_plan(self, step: Recording, before: Recording) -> None:
        report = self.report
        try:
            plan = StepPlan(step, before, report.limit_bytes, self._records.spill.rates(), self.options)
        except InfeasibleError as error:
            note = f"two equal steps could not be planned, and steps like them go on without a plan: {error}"
            if note not in report.notes:
                report.notes.append(note)
            return
        known = self._plans.setdefault(step.rows[0].key, [])
        known.insert(0, plan)
        del known[_VARIANTS:]
        report.plans += 1
        plan.show(report)

    # --- bytes ------------------------------------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Counts what exists before a step: everything at the first step, what is new at later ones."""
        found = gc.get_objects() if not self._scanned else [*gc.get_objects(generation=0), *gc.get_objects(generation=1)]
        self._scanned = True
        for tensor in [item for item in found if type(item) in _PLAIN]:
            self._existing(tensor)
            if tensor.is_leaf and tensor.grad is not None:
                self._existing(tensor.grad, "gradient")

    def _existing(self, tensor: torch.Tensor, label: str | None = None) -> None:
        if type(tensor) not in _PLAIN or tensor.layout != torch.strided:
            return
        if tensor.device.type not in ("cpu", "meta"):
            if self.active:
                raise UnsupportedError(f"a limit without a captured graph holds on the CPU only; a tensor lies on {tensor.device}")
            return
        self._bytes.add_as(tensor, label or ("parameter" if type(tensor) is torch.nn.Parameter else "tensor"))

    def _room(self, needed: int, what: str) -> None:
        """Evicts until ``needed`` more bytes fit."""
        limit = self.report.limit_bytes
        if self._bytes.now + needed <= limit:
            return
        self._evict_until(lambda: self._bytes.now + needed <= limit)
        if self._bytes.now + needed > limit:
            gc.collect()  # Tensors in cycles.
            self._evict_until(lambda: self._bytes.now + needed <= limit)
        if self._bytes.now + needed > limit:
            self._refuse(f"{what} needs {size.show(needed)} more", needed)

    def _refuse(self, what: str, needed: int) -> None:
        now = self._bytes.now
        raise InfeasibleError(
            f"the step does not fit within {size.show(self.report.limit_bytes)}: {what} while {size.show(now)} ({now} bytes) cannot be evicted, "
            f"so that it takes {now + needed} bytes. Alive are {self._bytes.largest()}"
        )

    def _evict_until(self, enough) -> None:
        position = len(self._step.rows)

        def order(record):
            # Without a plan, what was saved first is read last.
            if self._plan is not None and record.number is not None:
                return self._plan.next_use(record.number, position), -record.order
            return sys.maxsize, -record.order

        self._own, before = True, self._own
        try:
            candidates = sorted((record for record in self._records.resident.values() if record.alone()), key=order, reverse=True)
            for worthwhile in (True, False):
                for record in candidates:
                    if enough():
                        return
                    if (record.bytes >= _WORTHWHILE) == worthwhile and record.resident:
                        self._evict(record)
        finally:
            self._own = before

    # --- operators --------------------------------------------------------------------------------------------------------------------

    def _run(self, func, args, kwargs):
        if self._own:
            return func(*args, **kwargs)
        leaves = flatten(args, kwargs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(type(tensor) not in _PLAIN for tensor in tensors):
            return func(*args, **kwargs)
        for tensor in tensors:
            self._existing(tensor)
        key = self._operators.key(func, leaves)
        self._observe()
        row = Row(key)
        self._compare(row)
        self._act()
        expected = self._operators.bytes(key, func, args, kwargs)
        if expected is None and not self._plenty(func, tensors):
            self._evict_until(lambda: False)
        self._room(expected or 0, func)
        start = time.perf_counter_ns()
        result = func(*args, **kwargs)
        row.nanos = time.perf_counter_ns() - start
        made = 0
        for leaf in (result,) if type(result) is torch.Tensor else flatten((result,)):
            if isinstance(leaf, torch.Tensor):
                if leaf.device.type not in ("cpu", "meta"):
                    raise UnsupportedError(f"a limit without a captured graph holds on the CPU only; {func} makes a tensor on {leaf.device}")
                made += self._bytes.add_as(leaf, "result", func)
        self._operators.learn(key, func, args, kwargs, made)
        self._step.rows.append(row)
        row.fixed = self._bytes.now - self._numbered_bytes
        for record in self._in_use:
            if record.number is not None:
                row.reads.add(record.number)
        self.report.measured_peak_bytes = max(self.report.measured_peak_bytes, self._bytes.now)
        if self._bytes.now > self.report.limit_bytes:
            del result
            self._refuse(f"{func} returned {size.show(made)}", 0)
        return result

    def _plenty(self, func, tensors) -> bool:
        """Whether an operator that has not been seen may make many times what it reads. Where the size depends on values, nothing is certain."""
        if torch.Tag.dynamic_output_shape in func.tags or not tensors:
            return False
        read = sum(tensor.untyped_storage().nbytes() for tensor in tensors if tensor.device.type == "cpu")
        return self._bytes.now + _GENEROUS * read <= self.report.limit_bytes

    def _observe(self) -> None:
        """Numbers records that nothing but autograd refers to any more."""
        for record in [record for record in self._pending if record.storage is None or record.alone()] if self._pending else ():
            del self._pending[record]
            if self._step.rows:
                record.number = self._step.make(record.bytes, record.resident)
                self._numbered.append(weakref.ref(record))
                self._numbered_bytes += record.bytes * record.resident
        for record in [record for record in self._in_use if not record.handles or record.alone()] if self._in_use else ():
            del self._in_use[record]

    def _compare(self, row: Row) -> None:
        """Takes up a plan at the first operator of a step, and another one or none where the step differs."""
        rows = self._step.rows
        if not rows:
            self._plan = next(iter(self._plans.get(row.key, ())), None)
        elif self._plan is not None and not self._plan.goes_on(rows, row):
            others = self._plans[rows[0].key]
            self._plan = next((plan for plan in others if plan.began_with(rows) and plan.goes_on(rows, row)), None)

    # --- the plan ---------------------------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Does what the plan says before the next operator."""
        position = len(self._step.rows)
        if self._plan is None or position <= self._acted or position >= len(self._plan.actions):
            return
        self._acted = position
        self._own, before = True, self._own
        try:
            for kind, number in self._plan.actions[position]:
                record = self._numbered[number]() if number < len(self._numbered) else None
                if record is None:
                    continue
                if kind == PREFETCH:
                    if not record.resident:
                        self._restore(record, self._threads())
                elif record.resident and record.alone():
                    if kind == OFFLOAD:
                        self._records.start_write(record, self._threads())
                    else:
                        self._evict(record)
        finally:
            self._own = before

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "elbowroom")
        return self._pool

    def _evict(self, record: Record) -> None:
        written = record.region is None
        self._records.evict(record)
        self.report.evicted_bytes += record.bytes * written
        if record.number is not None:
            self._numbered_bytes -= record.bytes

    def _restore(self, record: Record, pool=None) -> None:
        if self.active:
            self._room(record.bytes, "a tensor that the backward pass reads")
        self._records.restore(record, pool)
        if record.number is not None:
            self._numbered_bytes += record.bytes
        if self.active:
            self._bytes.add_as(record.live_handles()[0].tensor, "saved tensor")
            self.report.measured_peak_bytes = max(self.report.measured_peak_bytes, self._bytes.now)

    # --- saved tensors ----------------------------------------------------------------------------------------------------------------

    def _pack(self, tensor: torch.Tensor):
        if type(tensor) not in _PLAIN or tensor.layout != torch.strided or tensor.device.type != "cpu":
            return tensor
        self._own, before = True, self._own
        try:
            # A node that held its own result would never be freed.
            shown = tensor.detach()
            if shown.is_conj() or shown.is_neg():
                return shown
            handle = Handle(shown)
            if type(tensor) is torch.Tensor and shown.untyped_storage().nbytes() >= SMALLEST:
                record = self._records.add(handle)
                if record.number is None:
                    self._pending[record] = None
            return handle
        finally:
            self._own = before

    def _unpack(self, packed):
        if not isinstance(packed, Handle):
            return packed
        packed.check()
        record = packed.record
        if record is None:
            return packed.tensor
        if self.active:
            self._observe()
            self._act()
            self._in_use[record] = None
        self._own, before = True, self._own
        try:
            if not record.resident:
                self._restore(record)
            self._records.finish(record)
        finally:
            self._own = before
        return packed.tensor

    def _ended(self, record: Record) -> None:
        """The last handle of a record is gone; the operator before was the last that may have read it."""
        self._pending.pop(record, None)
        self._in_use.pop(record, None)
        if record.number is not None:
            self._numbered_bytes -= record.bytes * record.resident
            if self.active:
                self._step.rows[-1].reads.add(record.number)


