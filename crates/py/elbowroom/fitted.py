"""``fit``: a model whose training step keeps to a limit."""

from __future__ import annotations

import functools
import logging
import warnings
from dataclasses import asdict, dataclass, field

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import size
from .backend import Graph, make
from .consume import Consumer
from .errors import InfeasibleError, UnsupportedError, VersionError
from .joint import Joint, estimate
from .meter import Bytes
from .program import Program, Writer
from .state import predict, state_bytes

#: The oldest PyTorch that is accepted, and the one that the tests run with.
OLDEST, TESTED = (2, 12), (2, 15)

_NOT_CAPTURED = (
    "PyTorch ran the model without capturing it, so the limit was not kept: a dispatch mode is active, compilation is switched off "
    "(TORCHDYNAMO_DISABLE), or the model's forward is marked as not to be compiled"
)

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

    def __init__(self, model, memory, optimizer, evaluations, seconds, seed, consumer=None):
        self.model, self.memory, self.optimizer = model, memory, optimizer
        self.evaluations, self.seconds, self.seed = evaluations, seconds, seed
        self.graphs: list[Graph] = []
        self.reason = None
        self.report = Report()
        self.consumer = consumer
        self._plans: dict[tuple, _Plan] = {}
        self._keeps: dict[int, object] = {}
        #: Peaks of the graphs without a plan and with all gradients.
        self._plain: dict[int, int] = {}
        self._iterations: dict[int, object] = {}
        self._bytes: Bytes | None = None
        self.runs = 0
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        #: Whether a captured graph runs, and whether the ops between graphs are watched.
        self.inside, self.watching = False, True
        self._outside = Bytes()
        self._inputs: list[torch.Tensor] = []
        self._running: list[int] = []
        self._after: dict[int, list[Graph]] = {}
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
        if graph.breaks:
            stack = getattr(reason, "user_stack", None)
            where = f" at {stack[-1].filename}:{stack[-1].lineno}" if stack else ""
            self.report.graph_breaks.append(f"{reason.reason.splitlines()[0]}{where}")
            warnings.warn(
                f"elbowroom: PyTorch captured the model in parts, which share the limit. The capture ended{where}: {reason.reason.splitlines()[0]}",
                stacklevel=2,
            )

    def program(self, graph: Graph, args) -> tuple[Program, object]:
        """The program for the state in which the step begins, planned the first time that it occurs."""
        grads = sum(p.grad is not None for p in self._parameters)
        contexts = [context for other in self.graphs for context in other.contexts.values()]
        others = sum(context.program.saved_bytes for context in contexts)
        self._follow(graph, bool(contexts))
        after = self._after.get(graph.number, ())
        key = (graph.number, grads, others, tuple(other.number for other in after))
        plan = self._plans.get(key)
        self.runs += 1
        if plan is None:
            if self.consumer is not None:
                self._consume(graph, args)
            graph.base_bytes = self.base(graph, args, contexts)
            plan = self._plans[key] = self.plan(graph, graph.base_bytes + others, after)
            self.report.plans = len(self._plans)
            plan.steps = 0
            self.watching = True
        graph.program = plan.program
        if plan.steps < _METERED_STEPS:
            plan.steps += 1
            if self._bytes is None or not self._live():
                self._bytes = Bytes()
                self._bytes.add(*self.existing([*args, *self._inputs]))
            return plan.metered, self._bytes.add
        self._bytes = None
        return plan.program, None

    def _consume(self, graph: Graph, args) -> None:
        """Marks the gradients of a graph that its backward pass consumes."""
        joint, consumer = graph.joint, self.consumer
        if graph.breaks or len(self.graphs) > 1 and any(other.contexts for other in self.graphs):
            raise UnsupportedError("gradients are consumed only if PyTorch captures the model in one graph")
        if joint.updates or len(joint.gradients) != len(joint.primals):
            return
        parameters = {}
        for index, (node, arg) in enumerate(zip(joint.gradients, args)):
            parameter = consumer.parameter(arg) if isinstance(arg, torch.Tensor) and isinstance(node, fx.Node) else None
            if parameter is not None:
                parameters[index] = parameter
                joint.updates[index] = consumer.temporary_bytes(parameter)
        joint.consume = lambda index, gradient: consumer.update(parameters[index], gradient)

    def _follow(self, graph: Graph, joins: bool) -> None:
        """Notes which graphs run after which in one step."""
        if not joins:
            self._running = []
        for number in self._running:
            known = self._after.setdefault(number, [])
            if number != graph.number and graph not in known:
                known.append(graph)
        self._running.append(graph.number)

    def outside(self, tensors) -> None:
        """Counts what is made between graphs."""
        self._outside.add(*tensors)
        if self._bytes is not None:
            self._bytes.add(*tensors)

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
            if self.report.measured_peak_bytes > self.report.limit_bytes and not any(graph.joint.corrections for graph in self.graphs):
                warnings.warn(
                    f"elbowroom: a step took {self.report.measured_peak_bytes} bytes, more than the limit of {self.report.limit_bytes}", stacklevel=2
                )

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

    def base(self, graph: Graph, args, contexts=()) -> int:
        """Bytes that exist during the whole step, without those that another graph's plan counts."""
        found = {**self._outside.alive(), **_storages(self.existing([*args, *self._inputs]))}
        for context in contexts:
            for storage in context.results:
                if storage() is not None:
                    found.pop(storage()._cdata, None)
        return sum(found.values()) + graph.joint.constant_bytes() + self._missing_state() + self._buckets()

    def _buckets(self) -> int:
        """Bytes in which DistributedDataParallel collects the gradients that it averages."""
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return 0
        if torch.nn.parallel.DistributedDataParallel._get_active_ddp_module() is None:
            return 0
        return sum(p.numel() * p.element_size() for p in self._parameters)

    # --- plans ----------------------------------------------------------------------------------------------------------------------

    def without_gradients(self, joint: Joint) -> Program:
        """The program of a graph without a backward pass: everything is freed after its last use."""
        return Writer(joint, joint.iteration(estimate).keep(), False).write()

    def plan(self, graph: Graph, base: int, after=()) -> _Plan:
        """Plans a graph on top of what exists, and simulates its program to the byte. The graphs that run ``after`` it share the limit."""
        joint = graph.joint
        iteration, keep = self._iteration(graph)
        kept = Writer(joint, keep, False).write()
        parts = graph.breaks and self.memory != "100%"
        if graph.breaks:
            # The gradients of later graphs are there when this graph's backward pass begins.
            base += sum(other.joint.gradient_bytes() for other in after) if after else sum(p.numel() * p.element_size() for p in self._parameters)
        unlimited = base + self._plain[graph.number]
        saved = kept.saved_bytes
        for other in after:
            _, other_keep = self._iteration(other)
            other_kept = Writer(other.joint, other_keep, False).write()
            unlimited = max(unlimited, other.base_bytes + saved + other_kept.peak_bytes)
            saved += other_kept.saved_bytes
        unlimited = max(unlimited, base + self._update_bytes())
        self.report.unlimited_peak_bytes = max(self.report.unlimited_peak_bytes, unlimited)
        limit = size.resolve(self.memory, self.report.unlimited_peak_bytes)
        if limit is None:
            planned = iteration.smallest(**self._options)
            program = Writer(joint, planned, False).write()
            limit = max(self.report.limit_bytes, base + program.peak_bytes)
        elif parts and not after:
            # More graphs follow, and nothing is known of them: this step leaves them as much as it can.
            planned = iteration.smallest(**self._options)
            program = Writer(joint, planned, False).write()
            if base + program.peak_bytes > limit:
                self._at(iteration, limit - base, base, limit)
        elif after:
            planned, program = self._share(graph, base, after, limit, keep, kept)
        else:
            planned, program = self._within(graph, base, limit)
        update = base + (0 if joint.updates else self._update_bytes())
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

    @property
    def _options(self):
        return dict(evaluations=self.evaluations, seconds=self.seconds, seed=self.seed)

    def _iteration(self, graph: Graph):
        """The iteration of a graph, and the schedule that keeps everything."""
        if graph.number not in self._iterations:
            updates, graph.joint.updates = graph.joint.updates, {}
            self._plain[graph.number] = Writer(graph.joint, graph.joint.iteration(estimate).keep(), False).write().peak_bytes
            graph.joint.updates = updates
            iteration = self._iterations[graph.number] = graph.joint.iteration(estimate)
            self._keeps[graph.number] = iteration.keep()
        return self._iterations[graph.number], self._keeps[graph.number]

    def _within(self, graph: Graph, base: int, limit: int):
        """A schedule and its program within a limit."""
        iteration, keep = self._iteration(graph)
        program = Writer(graph.joint, keep, False).write()
        if base + program.peak_bytes <= limit:
            return keep, program
        room = limit - base
        for _ in range(4):
            planned = self._at(iteration, room, base, limit, graph.joint.updated_bytes())
            program = Writer(graph.joint, planned, False).write()
            excess = base + program.peak_bytes - limit
            if excess <= 0:
                return planned, program
            # Recorded generator states are known only with the plan.
            room -= excess
        raise InfeasibleError(f"no plan was found within {size.show(limit)}")

    def _share(self, graph: Graph, base: int, after, limit: int, keep, kept):
        """The fastest of several divisions of the limit between a graph and those that run after it in a step."""
        best = refusal = None
        for eighths in range(8, 1, -1):
            try:
                own = base + (limit - base) * eighths // 8
                planned, program = self._within(graph, base, own)
                nanos, saved = planned.nanos, program.saved_bytes
                for other in after:
                    planned_other, program_other = self._within(other, other.base_bytes + saved, limit)
                    nanos += planned_other.nanos
                    saved += program_other.saved_bytes
            except InfeasibleError as error:
                refusal = refusal or str(error)  # The error itself would hold this frame, and with it the step's tensors.
                continue
            if best is None or nanos < best[0]:
                best = nanos, planned, program
        if best is None:
            raise InfeasibleError(refusal)
        return best[1:]

    def _at(self, iteration, room, base, limit, parameters=0):
        if room <= 0:
            raise InfeasibleError(
                f"no plan exists within {size.show(limit)}: parameters, buffers, gradients, optimizer state and inputs take "
                f"{size.show(base)} by themselves"
            )
        try:
            return iteration.plan(room + parameters, **self._options)
        except InfeasibleError as error:
            smallest = iteration.smallest(evaluations=min(self.evaluations or 200, 200), seed=self.seed).peak_bytes - parameters
            raise InfeasibleError(
                f"{error} (on top of {size.show(base)} of parameters, buffers, gradients, optimizer state and inputs); the smallest limit "
                f"for which a plan was found is {base + smallest} bytes ({size.show(base + smallest)})"
            ) from None


def _ignore(*_):
    pass


class _Between(TorchDispatchMode):
    """Sees the ops that PyTorch runs outside of the captured graphs, whose memory no plan covers.

    Bytes of those without gradients are counted. Those with gradients have a backward pass that cannot be planned, so they are refused.
    """

    def __init__(self, step: Step):
        super().__init__()
        self.step = step

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if self.step.inside:
            return result
        made = [leaf for leaf in tree_leaves(result) if type(leaf) is torch.Tensor and leaf.device.type != "meta"]
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(type(leaf) not in (torch.Tensor, torch.nn.Parameter) for leaf in read):
            return result  # The compiler's own.
        known = {leaf.untyped_storage()._cdata for leaf in read}
        fresh = [leaf for leaf in made if leaf.untyped_storage()._cdata not in known]
        if fresh and torch.is_grad_enabled() and any(leaf.requires_grad for leaf in read):
            if not self.step.graphs and torch._dynamo.config.disable:
                raise UnsupportedError(_NOT_CAPTURED)
            breaks = "; ".join(self.step.report.graph_breaks) or "the model calls what PyTorch does not capture, such as torch.nn.LSTM"
            raise UnsupportedError(
                f"PyTorch runs {func} outside of the captured graphs, so its memory in the backward pass cannot be planned and no limit would "
                f"hold. Why the capture ended: {breaks}"
            )
        self.step.outside(fresh)
        return result


def _check_version(report: Report) -> None:
    """Refuses a PyTorch that lacks what the backend needs, and notes one that was never tested."""
    version = torch.__version__
    release = tuple(int(part) for part in version.split(".")[:2])
    if release < OLDEST:
        raise VersionError(f"elbowroom needs PyTorch {OLDEST[0]}.{OLDEST[1]} or later; this is {version}")
    if release != TESTED:
        report.notes.append(f"tested with PyTorch {TESTED[0]}.{TESTED[1]}; this is {version}")


def fit(model, memory, optimizer=None, mode="exact", *, consume_gradients=False, evaluations=2000, seconds=None, seed=0):
    """Makes the training step of ``model`` keep to ``memory``, and returns the model. The training loop stays as it is.

    ``memory`` is a number of bytes, a size like ``"6GiB"``, a share of the unlimited peak like ``"70%"``, or ``"min"``. It covers parameters,
    buffers, gradients, the inputs, every tensor of the forward and backward pass, and, if an ``optimizer`` is given, its state. Results equal
    those of the model as it was, to the bit. ``evaluations`` and ``seed`` determine the plan, on every machine and every rank.

    With ``consume_gradients`` the optimizer updates every parameter in the backward pass, as soon as its gradient is complete, and frees the
    gradient; ``optimizer.step()`` then finds nothing left to do. The loop must call it after every backward pass, and must not read, clip
    or scale gradients.

    The figures are in ``model.elbowroom.report``. Raises :class:`InfeasibleError` at the first step if the limit cannot be met and
    :class:`UnsupportedError` if the model cannot be planned without a risk to its results.
    """
    if mode != "exact":
        raise UnsupportedError(f"there is no mode {mode!r}; the mode is 'exact'")
    size.resolve(memory, 1)
    if consume_gradients and optimizer is None:
        raise ValueError("consume_gradients needs the optimizer")
    step = Step(model, memory, optimizer, evaluations, seconds, seed, Consumer(model, optimizer) if consume_gradients else None)
    _check_version(step.report)
    compiled = torch.compile(model._call_impl, backend=make(step), dynamic=False)

    # A message in the model's forward would end the capture there.
    ignored = torch._dynamo.config.ignore_logging_functions | {value for value in vars(logging.Logger).values() if callable(value)}
    # DistributedDataParallel would have the graph split at its buckets. The settings are made once: that takes most of a millisecond.
    settings = torch._dynamo.config.patch(recompile_limit=64, ignore_logging_functions=ignored, optimize_ddp=False, allow_rnn=True)

    @functools.wraps(model._call_impl)
    def call(*args, **kwargs):
        try:
            runs = step.runs
            with settings:
                step._inputs = tree_leaves((args, kwargs))
                if step.watching:
                    plans = len(step._plans)
                    with _Between(step):
                        result = compiled(*args, **kwargs)
                    step.watching = len(step._plans) > plans
                else:
                    result = compiled(*args, **kwargs)
            if step.runs == runs and not torch.compiler.is_compiling():
                raise UnsupportedError(_NOT_CAPTURED)
            return result
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if isinstance(error.inner_exception, (UnsupportedError, InfeasibleError)):
                raise error.inner_exception from None
            raise
        finally:
            step._inputs = []

    model._compiled_call_impl = call
    model.elbowroom = step
    return model
