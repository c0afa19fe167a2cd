"""The training step of one model: its graphs, the limit that they share, and what was measured."""

from __future__ import annotations

import contextlib
import gc
import warnings
from dataclasses import dataclass

import torch
from torch import fx

from . import pins as _pins, size
from .backend import Graph
from .background import Background, Search
from .between import capture_ends
from .consume import Consumer
from .costs import estimate
from .deciding import deciding
from .errors import InfeasibleError, UnsupportedError
from .joint import Joint
from .meter import Bytes
from .persist import Persistent
from .pinned import PinnedTier
from .program import Program, Writer
from .report import Report
from .state import predict, state_bytes, storages
from .tier import FileTier, keep_returning_memory, several_processes
from .workspace import Workspaces

#: Steps of every plan whose bytes are counted.
_METERED_STEPS = 3

#: So often plans are made again because kernels take more than the room that was left for them.
_MOST_ROOMS = 3

#: So many bytes more of earlier steps' results do not have a step's bytes counted again.
_SLIGHT = 4096


@dataclass
class Plan:
    """What runs for one graph in one state of the step."""

    program: Program
    metered: Program
    nanos: int
    unlimited_nanos: int
    peak_bytes: int
    #: The checked schedule of which the programs are written.
    planned: object
    steps: int = 0
    #: Bytes of earlier steps' results that were alive when a step began whose bytes were counted.
    held: int = 0


class Step:
    """The training step of one model: its graphs, the limit that they share, and what was measured."""

    def __init__(self, model, memory, optimizer, evaluations, seconds, seed, consumer=None, background=True, host=None, host_memory=None, folder=None, pins=()):
        self.model, self.memory, self.optimizer = model, memory, optimizer
        self.host, self.host_memory, self.folder = host, host_memory, folder
        self.tier: FileTier | PinnedTier | None = None
        self.persist: Persistent | None = None
        self._level = 0
        self.evaluations, self.seconds, self.seed = evaluations, seconds, seed
        self.graphs: list[Graph] = []
        self.reason = None
        self.report = Report()
        #: Decisions of the user, and what they cover in each graph, by its number.
        self.pins, self._pinned = list(pins), {}
        self.consumer = consumer
        self.background = Background(background)
        self._plans: dict[tuple, Plan] = {}
        self._keeps: dict[int, object] = {}
        #: Peaks of the graphs without a plan and with all gradients.
        self._plain: dict[int, int] = {}
        self._iterations: dict[int, object] = {}
        self._bytes: Bytes | None = None
        self.runs = 0
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        #: Whether a captured graph runs, and whether the ops between graphs are watched.
        self.inside, self.watching = False, True
        #: Whether a plan was withdrawn, so that the report's peaks begin again with the next one.
        self._replanned = False
        #: Why captures of other models had ended before.
        self.capture_ends = capture_ends()
        self._outside = Bytes()
        #: Results of earlier steps, which the loop may hold while the next step runs, and what plans reserve for them.
        self._returned, self._held, self._reserved, self._exceeded = Bytes(), 0, 0, False
        #: What kernels of a GPU take besides tensors: what plans left for them so far, whether a step showed that they need more, and whether no
        #: plan can leave it.
        self._workspaces: Workspaces | None = None
        self._rooms, self._short, self._no_room = [0], False, False
        self._inputs: list[torch.Tensor] = []
        #: Whether a graph was compiled since the last step began.
        self._compiled = False
        self._running: list[int] = []
        self._after: dict[int, list[Graph]] = {}
        self._optimizer_bytes: dict[bool, tuple[int, int]] = {}

    def __getstate__(self):
        # A model is saved without its plans; they are made again for the process that loads it.
        return {"memory": self.memory}

    def __repr__(self):
        return f"<elbowroom step: {self.report}>"

    # --- called by graphs -----------------------------------------------------------------------------------------------------------

    def add(self, graph: Graph) -> None:
        self.graphs.append(graph)
        self._compiled = True
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
        if not contexts:
            self._begin(args)
        if self.persist is not None and self.persist.adopted and not contexts:
            self.persist.refresh()
        if plan is not None and not contexts and self.background.ready(key):
            # The search in the background has ended, and what it found is at hand.
            del self._plans[key]
            with contextlib.suppress(InfeasibleError):
                graph.base_bytes = self.base(graph, args, contexts)
                plan = self.plan(graph, graph.base_bytes, after)
            self._plans[key] = plan
        elif plan is None:
            self._match(graph, args)
            if self.consumer is not None:
                self._consume(graph)
            if self._replanned:
                self._replanned = False
                self.report.measured_peak_bytes = self.report.predicted_peak_bytes = self.report.unlimited_peak_bytes = 0
            with self.background.serve(key, first=not self._plans):
                plan = self._plans[key] = self._plan_with_room(graph, args, contexts, others, after)
            self.report.plans = len(self._plans)
            plan.steps = 0
            self.watching = True
        graph.program = plan.program
        if self._held > plan.held + _SLIGHT and plan.peak_bytes + self._held > self.report.limit_bytes + self._reserved:
            # This step may take more than those that were counted.
            plan.steps = 0
        if plan.steps < _METERED_STEPS:
            plan.steps += 1
            plan.held = max(plan.held, self._held)
            if self._bytes is None or not self._live():
                self._bytes = Bytes()
                self._bytes.add(*self.existing([*args, *self._inputs]))
                self._bytes.join(self._returned)
                self._begin_workspaces()
            return plan.metered, self._bytes.add
        self._bytes = None
        return plan.program, None

    def _plan_with_room(self, graph: Graph, args, contexts, others: int, after) -> Plan:
        """A plan that leaves room for what kernels take, if there is one."""
        while True:
            graph.base_bytes = self.base(graph, args, contexts)
            try:
                return self.plan(graph, graph.base_bytes + others, after)
            except InfeasibleError:
                if len(self._rooms) == 1:
                    raise
            self.report.notes.append(f"no plan was found that leaves {self._rooms.pop()} bytes for kernels: they come on top of the limit")
            self._no_room = True

    @property
    def _room(self) -> int:
        """Bytes that plans leave for what kernels take."""
        return self._rooms[-1]

    def _begin_workspaces(self) -> None:
        """Begins to count what kernels of a GPU take."""
        if self._workspaces is None:
            device = self._accelerator()
            if device is None or device.type != "cuda":
                return
            self._workspaces = Workspaces(device)
        self._workspaces.begin(self._bytes.now)

    def _match(self, graph: Graph, args) -> None:
        """Finds the model's parameters among the inputs of a graph, by position."""
        if not graph.parameters and len(graph.joint.gradients) == len(graph.joint.primals):
            known = {id(parameter) for parameter in self.model.parameters()}
            graph.parameters = {index: arg for index, arg in enumerate(args) if id(arg) in known}

    def _consume(self, graph: Graph) -> None:
        """Marks the gradients of a graph that its backward pass consumes."""
        joint, consumer = graph.joint, self.consumer
        if graph.breaks or len(self.graphs) > 1 and any(other.contexts for other in self.graphs):
            raise UnsupportedError("gradients are consumed only if PyTorch captures the model in one graph")
        if joint.updates or len(joint.gradients) != len(joint.primals):
            return
        for index, parameter in graph.parameters.items():
            if isinstance(joint.gradients[index], fx.Node) and consumer.parameter(parameter) is not None:
                joint.updates[index] = consumer.temporary_bytes(parameter)

        def consume(index, gradient):
            parameter = graph.parameters[index]
            if self.persist is not None and self.persist.adopted and parameter in self.persist.known:
                consumer.pending = True
                self.persist.update(parameter, gradient)
            else:
                consumer.update(parameter, gradient)

        joint.consume = consume

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

    def check_results(self, leaves) -> None:
        """Refuses results whose overwriting before the backward pass would not be seen."""
        for leaf in leaves:
            if type(leaf) is torch.Tensor and not all(graph.shares_versions(leaf) for graph in self.graphs):
                raise UnsupportedError(
                    f"a result of shape {tuple(leaf.shape)} shows bytes that the backward pass reads, and this PyTorch hides whether they are overwritten; "
                    "return a clone of it"
                )

    def check_pins(self) -> None:
        """Refuses a decision that covers nothing in any graph of the step."""
        empty = [pin for pin in self.report.pins if not pin.count]
        if empty:
            try:
                _pins.apply(self.graphs[0].joint.iteration(estimate), empty, bool(self._level))
            except ValueError as error:
                raise UnsupportedError(str(error)) from None

    def meter(self):
        return self._bytes.add if self._bytes is not None else _ignore

    def returned(self, outputs) -> None:
        self._returned.add(*(output for output in outputs if isinstance(output, torch.Tensor)))
        self._measured()

    def _begin(self, args) -> None:
        """Looks what the loop holds of earlier steps when a step begins. If a step took more than the limit because of that, plans leave room for it
        from now on."""
        if self._compiled:
            # What PyTorch leaves of a compilation are cycles that may hold tensors of the step in which it compiled.
            self._compiled = False
            gc.collect()
        self._held = self._returned.now
        if self._held > _SLIGHT or self._exceeded:
            known = storages(self.existing([*args, *self._inputs]))
            self._held = sum(count for key, count in self._returned.alive().items() if key not in known)
        if self._short:
            self._short, self._replanned = False, True
            self._rooms.append(self.report.workspace_bytes)
            self._plans.clear()
            self.report.notes.append(f"kernels take {self._room} bytes besides the tensors of a step; plans leave room for them")
        if self._exceeded:
            self._exceeded = False
            # A loop that collects its results holds more in every step; it is not to be planned again in each of them.
            self._reserved = 1 << (self._held - 1).bit_length() if self._reserved else self._held
            self._plans.clear()
            self._replanned = True
            self.report.notes.append(f"the loop holds {self._held} bytes of earlier steps' results while a step runs; plans leave room for {self._reserved} bytes")

    def went_back(self, graph) -> None:
        self._measured()
        changed = graph.joint.correct()
        if changed:
            # The figures stay those of this step until the next one is planned.
            self.report.notes.append(
                f"{changed} tensors of {graph.joint.name} have more bytes than PyTorch states for them; the first step, planned without them, "
                f"measured {self.report.measured_peak_bytes} bytes, and the plan was made again"
            )
            self._plans = {key: plan for key, plan in self._plans.items() if key[0] != graph.number}
            self._iterations.pop(graph.number, None)
            self._keeps.pop(graph.number, None)
            self._replanned = True

    def _measured(self):
        if self._bytes is not None:
            # The state of an optimizer that has not made a step is planned for and does not exist yet.
            peak = self._bytes.peak + self._missing_state(self.persist is not None and self.persist.adopted)
            self.report.measured_peak_bytes = max(self.report.measured_peak_bytes, peak)
            if self._workspaces is not None:
                taken = self.report.workspace_bytes = max(self.report.workspace_bytes, self._workspaces.beyond(self._bytes.peak))
                # The smallest limit is that of tensors: there is no smaller plan, and so no room. Kernels of another plan may take more.
                may_grow = self.memory != "min" and not self._no_room and len(self._rooms) <= _MOST_ROOMS and taken > self._room
                self._short = may_grow and peak + taken > self.report.limit_bytes
            if self.report.measured_peak_bytes > self.report.limit_bytes and not any(graph.joint.corrections for graph in self.graphs):
                self._exceeded = self._held > self._reserved
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

    def _predicted(self, filed: bool) -> tuple[int, int]:
        """Bytes of the optimizer's state and of its step, with ``filed`` only for parameters that stay in memory."""
        if filed not in self._optimizer_bytes:
            self._optimizer_bytes[filed] = predict(self.optimizer, without=self.persist.known if filed else ())
        return self._optimizer_bytes[filed]

    def _missing_state(self, filed: bool = False) -> int:
        if self.optimizer is None:
            return 0
        return max(0, self._predicted(filed)[0] - state_bytes(self.optimizer, self.persist.known if filed else ()))

    def _update_bytes(self, level: int = 0) -> int:
        """Bytes of the optimizer's step beyond what exists during the whole step: gradients, and what the update makes and frees."""
        if self.optimizer is None:
            return 0
        known = self.persist.known if level >= 2 else ()
        missing = sum(p.numel() * p.element_size() for p in self._parameters if p.grad is None and not (level == 3 and p in known))
        temporary = self._predicted(level >= 2)[1]
        for parameter in known:
            if parameter.requires_grad and parameter in self.persist.groups:
                temporary = max(temporary, self.persist.update_bytes(parameter, stored=level == 3))
        if level == 3:
            # Autograd adds a gradient to one that is there, and both are resident then.
            temporary = max(temporary, 2 * self.persist.largest_gradient())
        return missing + temporary

    def base(self, graph: Graph, args, contexts=()) -> int:
        """Bytes that exist during the whole step, without those that another graph's plan counts."""
        found = {**self._outside.alive(), **storages(self.existing([*args, *self._inputs]))}
        for context in contexts:
            for storage in context.results:
                if storage() is not None:
                    found.pop(storage()._cdata, None)
        return sum(found.values()) + graph.joint.constant_bytes() + self._missing_state() + self._buckets() + self._reserved + self._room

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

    def _levels(self, graph: Graph) -> list[int]:
        """What plans may use, one after the other until one is found: recomputation (0); the host tier for activations (1), for parameters and
        optimizer state too (2), and for gradients (3)."""
        if self._accelerator() is not None:
            return [0] if self.host is None or several_processes() else [1]
        if self.host is None or (self.host == "auto" and not self._has_file()):
            return [0]
        levels = [0, 1] if self.host == "auto" else [1]
        if self._may_move(graph):
            levels += [2] if self.consumer is not None else [2, 3]
        if self.persist is not None and self.persist.adopted:
            return [level for level in levels if level >= 2 + self.persist.stores] or [1]
        return levels[-1:] if self.memory == "min" else levels

    def _has_file(self) -> bool:
        """Whether the step may use a file unasked: on CPUs, and in one process, because several must have the same plan."""
        return not several_processes() and all(tensor.device.type == "cpu" for tensor in self.existing())

    def _accelerator(self) -> torch.device | None:
        """The accelerator that the model lies on, if it is one."""
        devices = {parameter.device for parameter in self.model.parameters()}
        return next(iter(devices)) if len(devices) == 1 and next(iter(devices)).type not in ("cpu", "meta") else None

    def failed(self) -> None:
        """Orders everything behind the copies of a pass that raised an error: its memory is free without its plan's waits."""
        if isinstance(self.tier, PinnedTier):
            self.tier.drain()

    def _may_move(self, graph: Graph) -> bool:
        """Whether parameters, their state and their gradients may lie in the host tier: if the optimizer can update pieces of them, and the whole
        model is one graph."""
        parts = any(other.breaks for other in self.graphs)
        return not parts and bool(graph.parameters) and not several_processes() and not Persistent.refusal(self.optimizer)

    def _place(self, graph: Graph, level: int) -> None:
        """Tells a graph what lies in the host tier."""
        joint, persist = graph.joint, self.persist
        if level and self.tier is None:
            device = self._accelerator()
            if device is not None:
                self.tier = PinnedTier(device, self.host_memory)
            else:
                self.tier = FileTier(self.folder, self.host_memory)
                keep_returning_memory()
        if level >= 2 and persist is None:
            persist = self.persist = Persistent(self.model, self.optimizer, self.tier)
        filed, stored, updates = set(), {}, dict(joint.updates)
        for index, parameter in graph.parameters.items():
            gradient, own = joint.gradients[index], level >= 2 and parameter in persist.known
            copied = isinstance(gradient, fx.Node) and gradient.meta["val"].stride() != parameter.stride()
            if own and joint.storage[joint.primals[index]].node is joint.primals[index]:
                filed.add(index)
            if own and level == 3 and isinstance(gradient, fx.Node):
                stored[index] = parameter.numel() * parameter.element_size() if copied else 0
            if index in updates:
                updates[index] = persist.update_bytes(parameter, copied) if own else self.consumer.temporary_bytes(parameter)
        if (filed, stored, updates) != (joint.filed, joint.stored, joint.updates):
            joint.filed, joint.stored, joint.updates = filed, stored, updates
            self._iterations.pop(graph.number, None)
            self._keeps.pop(graph.number, None)
        if level:
            joint.rates = self.tier.rates[:2]
        if level >= 2:
            joint.update_traffic = 1 + max((persist.state_factor(parameter) for parameter in persist.known), default=0)
            joint.store = lambda index, gradient: persist.store(graph.parameters[index], gradient)

    def plan(self, graph: Graph, base: int, after=()) -> Plan:
        """Plans a graph on top of what exists, and simulates its program to the byte. The graphs that run ``after`` it share the limit."""
        levels = self._levels(graph)
        for level in levels:
            self._level, self._last = level, level == levels[-1]
            self._place(graph, level)
            try:
                plan = self._plan(graph, base, after)
            except InfeasibleError:
                if self._last:
                    raise
                continue
            if level >= 2 and not (self.persist.adopted and self.persist.stores == (level == 3)):
                self.persist.adopt(level == 3, self.consumer is not None)
                what = "parameters, optimizer state and gradients" if level == 3 else "parameters and optimizer state"
                self.report.notes.append(f"{what} lie in a file in {self.tier.folder} between their uses")
            return plan
        raise AssertionError("there is always a level")

    def _write(self, joint: Joint, planned, metered: bool = False) -> Program:
        return Writer(joint, planned, metered, self.tier).write()

    def _plan(self, graph: Graph, base: int, after) -> Plan:
        joint, level = graph.joint, self._level
        iteration, keep = self._iteration(graph)
        kept = self._write(joint, keep)
        parts = graph.breaks and self.memory != "100%"
        if graph.breaks:
            # The gradients of later graphs are there when this graph's backward pass begins.
            base += sum(other.joint.gradient_bytes() for other in after) if after else sum(p.numel() * p.element_size() for p in self._parameters)
        unlimited = base + self._plain[graph.number]
        saved = kept.saved_bytes
        for other in after:
            _, other_keep = self._iteration(other)
            other_kept = self._write(other.joint, other_keep)
            unlimited = max(unlimited, other.base_bytes + saved + other_kept.peak_bytes)
            saved += other_kept.saved_bytes
        unlimited = max(unlimited, base + self._update_bytes())
        self.report.unlimited_peak_bytes = max(self.report.unlimited_peak_bytes, unlimited)
        if level >= 2:
            base -= self.persist.filed_bytes(level == 3)
        limit = size.resolve(self.memory, self.report.unlimited_peak_bytes)
        if limit is None:
            planned = iteration.smallest(**self._options)
            program = self._write(joint, planned)
            limit = max(self.report.limit_bytes, base + program.peak_bytes)
        elif parts and not after:
            # More graphs follow, and nothing is known of them: this step leaves them as much as it can.
            planned = iteration.smallest(**self._options)
            program = self._write(joint, planned)
            if base + program.peak_bytes > limit:
                planned, program = self._within(graph, base, limit)
        elif after:
            planned, program = self._share(graph, base, after, limit, keep, kept)
        else:
            planned, program = self._within(graph, base, limit)
        update = base + (0 if joint.updates else self._update_bytes(level))
        if update > limit and self.memory != "min":
            raise InfeasibleError(
                f"no plan exists within {size.show(limit)}: the optimizer's step needs {update} bytes ({size.show(update)}) for parameters, "
                "gradients, its state and its largest update"
            )
        limit = max(limit, update)
        self.report.limit_bytes = limit
        self.report.predicted_peak_bytes = max(self.report.predicted_peak_bytes, base + program.peak_bytes, update)
        self.report.recomputed = max(self.report.recomputed, program.recomputed)
        self.report.offloaded_bytes = max(self.report.offloaded_bytes, planned.offloaded_bytes)
        metered = self._write(joint, planned, True)
        plan = Plan(program, metered, planned.nanos, planned.unlimited_nanos, base + program.peak_bytes, planned)
        total = sum(p.unlimited_nanos for p in [*self._plans.values(), plan])
        self.report.overhead = sum(p.nanos for p in [*self._plans.values(), plan]) / total - 1 if total else 0.0
        return plan

    @property
    def _search(self):
        return dict(evaluations=self.evaluations, seconds=self.seconds, seed=self.seed)

    @property
    def _options(self):
        options = self._search
        if self._level:
            to_host, to_device, latency = self.tier.rates
            options |= dict(link=(to_host, to_device), latency=latency, host_memory=self.tier.capacity)
        return options

    def _iteration(self, graph: Graph):
        """The iteration of a graph, and the schedule that keeps everything."""
        if graph.number not in self._iterations:
            joint = graph.joint
            placed = joint.updates, joint.stored, joint.filed
            joint.updates, joint.stored, joint.filed = {}, {}, set()
            self._plain[graph.number] = self._write(joint, joint.iteration(estimate).keep()).peak_bytes
            joint.updates, joint.stored, joint.filed = placed
            iteration = self._iterations[graph.number] = Search(joint, self._pin(graph, joint.iteration(estimate)), self.background)
            self._keeps[graph.number] = iteration.keep()
        return self._iterations[graph.number], self._keeps[graph.number]

    def _pin(self, graph: Graph, iteration):
        """An iteration under the decisions of the user."""
        if not self.pins:
            return iteration
        pinned, self._pinned[graph.number] = _pins.apply(iteration, self.pins, bool(self._level), unmatched=True)
        found = self._pinned.values()
        self.report.pins = [_pins.Pin(pin.verb, pin.pattern, sum(f[at].count for f in found), sum(f[at].bytes for f in found)) for at, pin in enumerate(self.pins)]
        return pinned

    def _within(self, graph: Graph, base: int, limit: int):
        """A schedule and its program within a limit."""
        iteration, keep = self._iteration(graph)
        program = self._write(graph.joint, keep)
        if base + program.peak_bytes <= limit:
            return keep, program
        tokens = len(graph.joint.updates)
        rooms = _rooms(limit - base, sum(op.state_bytes for op in graph.joint.ops))
        room = next(rooms)
        while room is not None:
            planned = self._at(iteration, room, base, limit, tokens)
            program = self._write(graph.joint, planned)
            excess = base + program.peak_bytes - limit
            if excess <= 0:
                return planned, program
            room = rooms.send((excess, program.peak_bytes - planned.peak_bytes + tokens))
        planned = self._smallest(iteration, base, limit, f"no plan was found within {size.show(limit)}")
        return planned, self._write(graph.joint, planned)

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

    def _at(self, iteration, room, base, limit, tokens=0):
        held = f", and results of earlier steps that the loop holds ({size.show(self._reserved)})" if self._reserved else ""
        held += f", and what kernels take ({size.show(self._room)})" if self._room else ""
        what = f"{size.show(base)} of parameters, buffers, gradients, optimizer state and inputs{held}"
        if room <= 0:
            refusal = f"no plan exists within {size.show(limit)}, which {what} exceed by themselves"
        else:
            try:
                planned = iteration.plan(room + tokens, **self._options)
                if self._level:
                    # A search with more freedom is not always better.
                    with contextlib.suppress(InfeasibleError):
                        planned = min(planned, iteration.plan(room + tokens, **self._search), key=lambda found: found.nanos)
                return planned
            except InfeasibleError as error:
                refusal = f"{error} (on top of {what})"
        return self._smallest(iteration, base, limit, refusal)

    def _smallest(self, iteration, base, limit, refusal):
        """The schedule with the smallest limit that a search finds. If its program, with recorded generator states, is larger than ``limit``,
        that is said after the ``refusal``."""
        if not self._last:
            raise InfeasibleError(refusal)
        planned = iteration.smallest(**{**self._options, "evaluations": 200, "seconds": None})
        smallest = base + self._write(iteration.joint, planned).peak_bytes
        if smallest <= limit:
            return self._better(iteration, base, limit, planned)
        raise InfeasibleError(
            f"{refusal}; the smallest limit for which a plan was found is {smallest} bytes ({size.show(smallest)}){deciding(iteration.joint, planned)}"
        )

    def _better(self, iteration, base, limit, short):
        """The schedule of a whole search below ``limit``, where a ``short`` one has shown that there are any."""
        for quarters in (3, 2, 1, 0):
            room = short.peak_bytes + (limit - base - short.peak_bytes) * quarters // 4
            with contextlib.suppress(InfeasibleError):
                planned = iteration.plan(room, **self._options)
                if planned.nanos < short.nanos and base + self._write(iteration.joint, planned).peak_bytes <= limit:
                    return planned
        return short


def _rooms(whole: int, states: int):
    """Rooms in which to plan, the ``whole`` one first and ``None`` at last. What a program needs beyond its schedule, recorded generator states
    above all, is known only with the schedule; ops may need ``states`` together. Takes by how many bytes the last program exceeds the
    limit, and how many it has beyond its schedule."""
    room, beyond = whole, 0
    for _ in range(4):
        # A schedule seldom fills its room, so a room smaller by the excess may do.
        excess, now = yield room
        room, beyond = room - excess, max(beyond, now)
    for _ in range(2):
        # Each filled its room. The next one may fill it too, or have more states.
        _, now = yield whole - beyond
        beyond = max(beyond, now)
    yield whole - max(beyond, states)
    yield None


def _ignore(*_):
    pass
