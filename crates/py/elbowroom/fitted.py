"""``fit``: a model whose training step keeps to a limit."""

from __future__ import annotations

import functools
import warnings
from dataclasses import asdict, dataclass, field

import torch

from . import size
from .backend import Graph, make
from .errors import InfeasibleError, UnsupportedError, VersionError
from .joint import Joint, estimate
from .meter import Bytes
from .program import Program, Writer
from .state import predict, state_bytes

#: The oldest PyTorch that is accepted, and the one that the tests run with.
OLDEST, TESTED = (2, 12), (2, 15)

#: Steps of every plan whose bytes are counted.
_METERED_STEPS = 3


@dataclass
class Report:
    """What was planned and what was seen; bytes are bytes of tensors."""

    limit_bytes: int = 0
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0
    unlimited_peak_bytes: int = 0
    overhead: float = 0.0
    """Predicted: time of a step under the plan ÷ time of a step that keeps everything − 1."""
    graphs: int = 0
    plans: int = 0
    recomputed: int = 0
    """Ops that run a second time in a step."""
    graph_breaks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class _Plan:
    program: Program
    metered: Program
    nanos: int
    unlimited_nanos: int
    peak_bytes: int
    steps: int = 0


def _storages(tensors):
    """Bytes of distinct storages, by storage."""
    found = {}
    for tensor in tensors:
        if tensor is not None and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            found[storage._cdata] = storage.nbytes()
    return found


class Step:
    """The training step of one model: its graphs, the limit that they share, and what was measured."""

    def __init__(self, model, memory, optimizer, evaluations, seconds, seed):
        self.model, self.memory, self.optimizer = model, memory, optimizer
        self.evaluations, self.seconds, self.seed = evaluations, seconds, seed
        self.graphs: list[Graph] = []
        self.reason = None
        self.report = Report()
        self._plans: dict[tuple, _Plan] = {}
        self._keeps: dict[int, object] = {}
        self._iterations: dict[int, object] = {}
        self._bytes: Bytes | None = None
        self.runs = 0
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer_bytes = None

    def __getstate__(self):
        # A model is saved without its plans; they are made again for the process that loads it.
        return {"memory": self.memory}

    def __repr__(self):
        return f"<elbowroom step: {self.report}>"

    # --- called by graphs -----------------------------------------------------------------------------------------------------------

    def add(self, graph: Graph) -> None:
        self.graphs.append(graph)
        self.report.graphs = len(self.graphs)
        reason = graph.reason
        if reason is not None and getattr(reason, "graph_break", False):
            stack = getattr(reason, "user_stack", None)
            where = f" at {stack[-1].filename}:{stack[-1].lineno}" if stack else ""
            self.report.graph_breaks.append(f"{reason.reason.splitlines()[0]}{where}")
            warnings.warn(
                f"elbowroom: PyTorch captured the model in parts; what runs between them is not planned, and the limit holds for each part "
                f"and what the others keep. The capture ended{where}: {reason.reason.splitlines()[0]}",
                stacklevel=2,
            )

    def program(self, graph: Graph, args) -> tuple[Program, object]:
        """The program for the state in which the step begins, planned the first time that it occurs."""
        grads = sum(p.grad is not None for p in self._parameters)
        others = sum(
            context.program.saved_bytes
            for other in self.graphs
            for context in other.contexts.values()
        )
        key = (graph.number, grads, others)
        plan = self._plans.get(key)
        self.runs += 1
        if plan is None:
            base = self.base(graph, args) + others
            plan = self._plans[key] = self.plan(graph, base)
            self.report.plans = len(self._plans)
            plan.steps = 0
        graph.program = plan.program
        if plan.steps < _METERED_STEPS:
            plan.steps += 1
            if self._bytes is None or not self._live():
                self._bytes = Bytes()
                self._bytes.add(*self.existing(args))
            return plan.metered, self._bytes.add
        self._bytes = None
        return plan.program, None

    def meter(self):
        return self._bytes.add if self._bytes is not None else _ignore

    def returned(self, graph) -> None:
        self._measured()

    def went_back(self, graph) -> None:
        self._measured()
        changed = graph.joint.correct()
        if changed:
            # The figures are those of the plans that follow.
            self.report.notes.append(
                f"{changed} tensors of {graph.joint.name} have more bytes than PyTorch states for them; the first step, planned without them, "
                f"measured {self.report.measured_peak_bytes} bytes, and the plan was made again"
            )
            self._plans = {key: plan for key, plan in self._plans.items() if key[0] != graph.number}
            self._iterations.pop(graph.number, None)
            self._keeps.pop(graph.number, None)
            self.report.measured_peak_bytes = self.report.predicted_peak_bytes = self.report.unlimited_peak_bytes = 0

    def _measured(self):
        if self._bytes is not None:
            # The state of an optimizer that has not made a step is planned for and does not exist yet.
            self.report.measured_peak_bytes = max(self.report.measured_peak_bytes, self._bytes.peak + self._missing_state())

    def _live(self) -> bool:
        return any(graph.contexts for graph in self.graphs)

    # --- bytes ----------------------------------------------------------------------------------------------------------------------

    def existing(self, args=()):
        """Tensors that exist before the step."""
        yield from self.model.parameters()
        yield from self.model.buffers()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                yield parameter.grad
        if self.optimizer is not None:
            for state in self.optimizer.state.values():
                yield from (leaf for leaf in state.values() if isinstance(leaf, torch.Tensor))
        yield from (arg for arg in args if isinstance(arg, torch.Tensor))

    def _missing_state(self) -> int:
        if self.optimizer is None:
            return 0
        if self._optimizer_bytes is None:
            self._optimizer_bytes = predict(self.optimizer)
        return max(0, self._optimizer_bytes[0] - state_bytes(self.optimizer))

    def _update_bytes(self) -> int:
        """Bytes of the optimizer's step beyond what exists during the whole step: gradients, and what the update makes and frees."""
        if self.optimizer is None:
            return 0
        missing = (p for p in self._parameters if p.grad is None)
        self._missing_state()
        return sum(p.numel() * p.element_size() for p in missing) + self._optimizer_bytes[1]

    def base(self, graph: Graph, args) -> int:
        """Bytes that exist during the whole step."""
        return sum(_storages(self.existing(args)).values()) + graph.joint.constant_bytes() + self._missing_state()

    # --- plans ----------------------------------------------------------------------------------------------------------------------

    def without_gradients(self, joint: Joint) -> Program:
        """The program of a graph without a backward pass: everything is freed after its last use."""
        return Writer(joint, joint.iteration(estimate).keep(), False).write()

    def plan(self, graph: Graph, base: int) -> _Plan:
        """Plans a graph on top of what exists, and simulates its program to the byte."""
        joint = graph.joint
        iteration = self._iterations.get(graph.number)
        if iteration is None:
            iteration = self._iterations[graph.number] = joint.iteration(estimate)
            self._keeps[graph.number] = iteration.keep()
        keep = self._keeps[graph.number]
        kept = Writer(joint, keep, False).write()
        unlimited = max(base + kept.peak_bytes, base + self._update_bytes())
        self.report.unlimited_peak_bytes = max(self.report.unlimited_peak_bytes, unlimited)
        limit = size.resolve(self.memory, self.report.unlimited_peak_bytes)
        options = dict(evaluations=self.evaluations, seconds=self.seconds, seed=self.seed)
        if limit is None:
            planned = iteration.smallest(**options)
            program = Writer(joint, planned, False).write()
            limit = base + program.peak_bytes
        elif unlimited <= limit:
            planned, program = keep, kept
        else:
            room = limit - base
            for _ in range(4):
                planned = self._at(iteration, room, base, limit, options)
                program = Writer(joint, planned, False).write()
                excess = base + program.peak_bytes - limit
                if excess <= 0:
                    break
                # Recorded generator states are known only with the plan.
                room -= excess
            else:
                raise InfeasibleError(f"no plan was found within {size.show(limit)}")
        update = base + self._update_bytes()
        if update > limit and self.memory != "min":
            raise InfeasibleError(
                f"no plan exists within {size.show(limit)}: the optimizer's step needs {update} bytes ({size.show(update)}) for parameters, "
                "gradients, its state and its largest update"
            )
        limit = max(limit, update)
        self.report.limit_bytes = limit
        self.report.predicted_peak_bytes = max(self.report.predicted_peak_bytes, base + program.peak_bytes, update)
        self.report.recomputed = max(self.report.recomputed, program.recomputed)
        metered = Writer(joint, planned, True).write()
        plan = _Plan(program, metered, planned.nanos, planned.unlimited_nanos, base + program.peak_bytes)
        total = sum(p.unlimited_nanos for p in [*self._plans.values(), plan])
        self.report.overhead = sum(p.nanos for p in [*self._plans.values(), plan]) / total - 1 if total else 0.0
        return plan

    def _at(self, iteration, room, base, limit, options):
        if room <= 0:
            raise InfeasibleError(
                f"no plan exists within {size.show(limit)}: parameters, buffers, gradients, optimizer state and inputs take "
                f"{size.show(base)} by themselves"
            )
        try:
            return iteration.plan(room, **options)
        except InfeasibleError as error:
            smallest = iteration.smallest(evaluations=min(self.evaluations or 200, 200), seed=self.seed).peak_bytes
            raise InfeasibleError(
                f"{error} (on top of {size.show(base)} of parameters, buffers, gradients, optimizer state and inputs); the smallest limit "
                f"for which a plan was found is {base + smallest} bytes ({size.show(base + smallest)})"
            ) from None


def _ignore(*_):
    pass


def _check_version(report: Report) -> None:
    """Refuses a PyTorch that lacks what the backend needs, and notes one that was never tested."""
    version = torch.__version__
    release = tuple(int(part) for part in version.split(".")[:2])
    if release < OLDEST:
        raise VersionError(f"elbowroom needs PyTorch {OLDEST[0]}.{OLDEST[1]} or later; this is {version}")
    if release != TESTED:
        report.notes.append(f"tested with PyTorch {TESTED[0]}.{TESTED[1]}; this is {version}")


def fit(model, memory, optimizer=None, mode="exact", *, evaluations=2000, seconds=None, seed=0):
    """Makes the training step of ``model`` keep to ``memory``, and returns the model. The training loop stays as it is.

    ``memory`` is a number of bytes, a size like ``"6GiB"``, a share of the unlimited peak like ``"70%"``, or ``"min"``. It covers parameters,
    buffers, gradients, the inputs, every tensor of the forward and backward pass, and, if an ``optimizer`` is given, its state. Results equal
    those of the model as it was, to the bit. ``evaluations`` and ``seed`` determine the plan, on every machine and every rank.

    The figures are in ``model.elbowroom.report``. Raises :class:`InfeasibleError` at the first step if the limit cannot be met and
    :class:`UnsupportedError` if the model cannot be planned without a risk to its results.
    """
    if mode != "exact":
        raise UnsupportedError(f"there is no mode {mode!r}; the mode is 'exact'")
    size.resolve(memory, 1)
    step = Step(model, memory, optimizer, evaluations, seconds, seed)
    _check_version(step.report)
    compiled = torch.compile(model._call_impl, backend=make(step), dynamic=False)

    @functools.wraps(model._call_impl)
    def call(*args, **kwargs):
        try:
            runs = step.runs
            with torch._dynamo.config.patch(recompile_limit=64):
                result = compiled(*args, **kwargs)
            if step.runs == runs and not torch.compiler.is_compiling():
                raise UnsupportedError(
                    "PyTorch ran the model without capturing it, so the limit was not kept: a dispatch mode is active, compilation is "
                    "switched off (TORCHDYNAMO_DISABLE), or the model's forward is marked as not to be compiled"
                )
            return result
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if isinstance(error.inner_exception, (UnsupportedError, InfeasibleError)):
                raise error.inner_exception from None
            raise

    model._compiled_call_impl = call
    model.elbowroom = step
    return model
