"""``mode="fast"``: Inductor's kernels within a limit.

Inductor decomposes and rewrites the joint graph; its partitioner is replaced by one that hands the graph to the step. The step divides it, as
PyTorch would or as a plan says, has Inductor generate the code of both halves, and counts the bytes that this code takes before any of it
runs. The planner sees ops before Inductor fuses them, so its figures are not those of the code: the limit that it is given is moved until the
code of its plan fits. The first steps of every plan are measured, and a step that takes more than was counted is planned again.
"""

from __future__ import annotations

import torch
from torch._dynamo.utils import detect_fake_mode
from torch._functorch import config as functorch_config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._python_dispatch import _disable_current_modes

from . import inductor, size
from .backend import Graph, boxed, graphs_by_number, share_versions, stand_ins
from .background import Search
from .costs import estimate
from .deciding import deciding
from .dividing import Division, Divider, by_pytorch
from .errors import InfeasibleError
from .joint import Joint
from .program import Program
from .recurrent import refuse
from .step import Plan, Step

#: Divisions that are compared for one limit, and plans that are made again because a step took more than was counted.
_ROUNDS, _AGAIN = 6, 4

#: A division that takes this share of the room is good enough.
_CLOSE = 0.95


class Divided:
    """One division with its code, and what it takes."""

    def __init__(self, joint: Joint, division: Division, planned, apart: bool = True):
        self.joint, self.division, self.planned = joint, division, planned
        with _disable_current_modes(), torch.no_grad():
            self.forward, self.backward = inductor.Code(division.forward, False, apart), inductor.Code(division.backward, True, apart)
            self._count()

    def _count(self) -> None:
        """Counts a step without memory: the peak above what exists before it, and what is kept between its halves."""
        division, joint, total = self.division, self.joint, inductor.Total()
        primals = [inductor.without_memory(node.meta["val"]) if isinstance(node.meta.get("val"), torch.Tensor) else node.meta.get("val") for node in joint.primals]
        total.add(*(primal for primal in primals if isinstance(primal, torch.Tensor)))
        base = total.now
        made = self.forward.count(list(primals), total.add)
        results, values = made[: division.results], made[division.results :]
        del made
        held = {tensor.untyped_storage()._cdata for tensor in results if isinstance(tensor, torch.Tensor)}
        #: Kept values whose bytes the caller holds too.
        self.shown = [index for index, value in enumerate(values) if value.untyped_storage()._cdata in held]
        self.saved_bytes = total.now - base
        tangents = [inductor.without_memory(node.meta["val"]) for node in joint.tangents]
        total.add(*tangents)
        # Whoever starts the backward pass holds the gradient of the loss until it ends.
        scalars = [tangent for tangent in tangents if tangent.numel() == 1]
        inputs = self._inputs(values, [primals[number] for number in division.primals], tangents)
        gradients = self.backward.count(inputs, total.add)
        self.peak_bytes = max(total.peak, total.now + joint.copied_gradient_bytes()) - base
        del gradients, results, scalars

    def _inputs(self, values: list, primals: list, tangents: list) -> list:
        """The inputs of the backward code; the lists are emptied."""
        sources = {"value": values, "primal": primals, "tangent": tangents}
        inputs = [sources[kind][number] for kind, number in self.division.order]
        for source in sources.values():
            source.clear()
        return inputs

    def program(self, metered: bool) -> Program:
        """What runs."""
        division, joint = self.division, self.joint

        def run(code, args, meter):
            return code.run_metered(args, meter) if metered else code.run(args)

        def forward(args, keep, meter):
            primals = [args[number] for number in division.primals]
            made = run(self.forward, args, meter)
            args.clear()
            results, values = made[: division.results], made[division.results :]
            for index in self.shown:
                _share(results, values, index)
            keep.extend(values)
            keep.extend(primals)
            return results

        def backward(args, keep, meter):
            if metered:
                meter(*args)
            inputs = self._inputs(keep[: division.values], keep[division.values :], args)
            keep.clear()
            return run(self.backward, inputs, meter)

        watched = {number for number in division.primals if joint.primals[number] not in joint.mutated}
        source = f"{division.forward.code}\n{division.backward.code}"
        return Program(
            forward, backward, self.peak_bytes, self.saved_bytes, division.recomputed, division.primals, watched, division.values, self.shown, source
        )


def _share(results: list, values: list, index: int) -> None:
    """Gives the results that show a kept value its version counter, which generated code does not."""
    value = values[index].detach()
    storage = value.untyped_storage()._cdata
    for position, result in enumerate(results):
        if isinstance(result, torch.Tensor) and result.untyped_storage()._cdata == storage:
            if result is not values[index]:
                results[position] = value.as_strided(result.size(), result.stride(), result.storage_offset()).detach()
    values[index] = value


class Divisions:
    """The divisions of one graph that were compared."""

    def __init__(self, step: FastStep, graph: Graph):
        self.joint = graph.joint
        self.iteration = Search(graph.joint, graph.joint.iteration(estimate), step.background)
        self.keep = self.iteration.keep()
        self.search = dict(evaluations=step.evaluations, seconds=step.seconds, seed=step.seed)
        self.known: dict[object, Divided] = {}
        division = by_pytorch(graph.joint, graph.joint_inputs, **graph.partition_options)
        #: What PyTorch would run without a limit.
        self.plain = Divided(graph.joint, division, self.keep, apart=False) if division is not None else self._divide(self.keep)
        self.known["plain"] = self.plain
        self._answers: list[tuple[int, Divided]] = []

    def _divide(self, planned) -> Divided:
        actions = tuple((kind, number) for kind, number, *_ in planned.actions)
        if actions not in self.known:
            self.known[actions] = Divided(self.joint, Divider(self.joint, planned).divide(), planned)
        return self.known[actions]

    def smallest(self) -> Divided:
        """The smallest one that is found."""
        self._divide(self.iteration.smallest(**{**self.search, "evaluations": 200, "seconds": None}))
        return min(self.known.values(), key=lambda divided: divided.peak_bytes)

    def within(self, room: int) -> Divided | None:
        """The fastest one that is found to take at most ``room`` bytes; ``None`` if none is."""
        if self.plain.peak_bytes <= room:
            return self.plain
        for aim, answer in self._answers:
            if answer.peak_bytes <= room and aim <= room <= aim * 1.05:
                return answer
        target = room * self.keep.peak_bytes / max(1, self.plain.peak_bytes)
        fits = exceeds = None
        for _ in range(_ROUNDS if room > 0 else 0):
            try:
                planned, last = self.iteration.plan(max(1, int(target)), **self.search), False
            except InfeasibleError:
                planned, last = self.iteration.smallest(**{**self.search, "evaluations": 200, "seconds": None}), True
            found = self._divide(planned)
            share = found.peak_bytes / room
            if share <= 1:
                fits = target
                target = target / share if exceeds is None else min(target / share, (target + exceeds) / 2)
            else:
                exceeds = target
                target = target / share * 0.99 if fits is None else max(target / share, (target + fits) / 2)
            if last or _CLOSE <= share <= 1 or abs(target - (fits if share <= 1 else exceeds)) < 0.01 * target:
                break
        found = [divided for divided in self.known.values() if divided.peak_bytes <= room]
        best = min(found, key=lambda divided: (divided.planned.nanos, divided.peak_bytes), default=None)
        if best is not None:
            self._answers.append((room, best))
        return best


class FastStep(Step):
    """The training step of one model that Inductor compiles."""

    def __init__(self, *args):
        super().__init__(*args)
        self._divisions: dict[int, Divisions] = {}
        #: Bytes that steps took beyond what was counted, by graph.
        self._excess: dict[int, int] = {}
        self._again = 0
        self.report.notes.append("kernels of Inductor: results are numerically different from those of the model without `fit`")

    def plan(self, graph: Graph, base: int, after=()) -> Plan:
        """Divides a graph on top of what exists. A graph that others follow is planned as small as possible: nothing is known of them."""
        joint, report = graph.joint, self.report
        if graph.number not in self._divisions:
            self._divisions[graph.number] = Divisions(self, graph)
        divisions = self._divisions[graph.number]
        if graph.breaks:
            base += sum(other.joint.gradient_bytes() for other in after) if after else sum(p.numel() * p.element_size() for p in self._parameters)
        update = base + self._update_bytes()
        # Without a limit, the graphs before this one keep what PyTorch's own division keeps.
        waiting = [(other.number, context.program.saved_bytes) for other in self.graphs for context in other.contexts.values()]
        more = sum(max(0, self._divisions[number].plain.saved_bytes - kept) for number, kept in waiting if number != graph.number)
        unlimited, saved = max(base + more + divisions.plain.peak_bytes, update), divisions.plain.saved_bytes
        for other in after:
            plain = self._divisions[other.number].plain
            unlimited = max(unlimited, other.base_bytes + saved + plain.peak_bytes)
            saved += plain.saved_bytes
        report.unlimited_peak_bytes = max(report.unlimited_peak_bytes, unlimited)
        limit = size.resolve(self.memory, report.unlimited_peak_bytes)
        excess = self._excess.get(graph.number, 0)
        if limit is None:
            divided = divisions.smallest()
            limit = max(report.limit_bytes, base + divided.peak_bytes + excess, update)
        else:
            room = limit - base - excess
            divided = divisions.smallest() if graph.breaks and self.memory != "100%" else divisions.within(room)
            # Of a share nothing is known until the graphs that follow have been seen.
            certain = after or not graph.breaks or not str(self.memory).endswith("%")
            if certain and (divided is None or divided.peak_bytes > room or update > limit):
                self._refuse(divisions, limit, base, excess, update)
        for kernel in [*divided.forward.kernels(), *divided.backward.kernels()]:
            kernel.start()
        report.limit_bytes = limit
        report.predicted_peak_bytes = max(report.predicted_peak_bytes, base + divided.peak_bytes, update)
        report.recomputed = max(report.recomputed, divided.division.recomputed)
        nanos, keep = divided.planned.nanos, divisions.keep.nanos
        plan = Plan(divided.program(False), divided.program(True), nanos, keep, base + divided.peak_bytes, divided.planned)
        total = sum(p.unlimited_nanos for p in [*self._plans.values(), plan])
        report.overhead = sum(p.nanos for p in [*self._plans.values(), plan]) / total - 1 if total else 0.0
        return plan

    def _refuse(self, divisions: Divisions, limit: int, base: int, excess: int, update: int) -> None:
        smallest = divisions.smallest()
        reached = max(base + excess + smallest.peak_bytes, update)
        beyond = f" and {size.show(excess)} that a step took beyond its count" if excess else ""
        raise InfeasibleError(
            f"no plan was found within {size.show(limit)} for Inductor's code, on top of {size.show(base)} of parameters, buffers, gradients, optimizer "
            f"state and inputs{beyond}; the smallest limit for which a plan was found is {reached} bytes ({size.show(reached)})"
            f"{deciding(divisions.joint, smallest.planned)}"
        )

    def _measured(self) -> None:
        """Compares what a step took with the limit, and plans again if it took more."""
        if self._bytes is None:
            return
        report = self.report
        peak = self._bytes.peak + self._missing_state()
        report.measured_peak_bytes = max(report.measured_peak_bytes, peak)
        excess = report.measured_peak_bytes - report.limit_bytes
        if excess <= 0 or self._live():
            return
        self._again += 1
        note = f"a step took {report.measured_peak_bytes} bytes, {size.show(excess)} more than the limit"
        if self._again > _AGAIN:
            raise InfeasibleError(f"{note}, under the {self._again}th plan; the smallest limit that was held is {report.measured_peak_bytes} bytes")
        for graph in self.graphs:
            self._excess[graph.number] = self._excess.get(graph.number, 0) + excess
        report.notes.append(f"{note}, and was planned again")
        if self.memory == "min":
            report.limit_bytes = report.measured_peak_bytes
        self._plans.clear()
        self._bytes = None
        report.measured_peak_bytes = report.predicted_peak_bytes = 0

    def went_back(self, graph: Graph) -> None:
        self._measured()


class Partitioner(CustomPartitionerFn):
    """Takes the joint graph as Inductor has rewritten it, and gives PyTorch graphs that stand for its halves."""

    def __init__(self, step: FastStep):
        self.step = step

    def __call__(self, gm, joint_inputs, *, num_fwd_outputs, compiler="inductor", **options):
        step = self.step
        inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
        mode = detect_fake_mode(inputs)
        with torch.no_grad():
            # Storages of rewritten nodes are those of one run.
            FakeTensorProp(gm, mode=mode).propagate_dont_convert_inputs(*inputs)
        joint = Joint(gm, num_fwd_outputs, f"graph {len(step.graphs)}", rewritten=False, compiled=True)
        graph = Graph(step, joint, step.reason)
        graph.joint_inputs, graph.partition_options = joint_inputs, {**options, "compiler": compiler}
        return stand_ins(graph, gm)

    def uuid(self):
        """No division is taken from a cache: it depends on the limit."""
        return None


def make(step: FastStep):
    """A backend for ``torch.compile`` whose graphs belong to a step."""

    def inner(module, example_inputs, **kwargs):
        number = module.meta.get("elbowroom")
        if number is None:
            code = compile_fx_inner(module, example_inputs, **kwargs)

            def run(args):
                step.runs += 1
                step.inside = True
                try:
                    return code(args)
                finally:
                    step.inside = False

            return boxed(run)
        graph = graphs_by_number[number]
        if kwargs.get("is_backward"):
            return boxed(graph.backward)
        graph.views = share_versions()
        return boxed(graph.forward)

    def backend(module, example_inputs, **kwargs):
        refuse(module)
        step.reason = getattr(module, "compile_subgraph_reason", None)
        patches = {**inductor.options(), "custom_partitioner_fn": Partitioner(step)}
        with functorch_config.patch(donated_buffer=False, enable_autograd_cache=False):
            return compile_fx(module, example_inputs, inner_compile=inner, config_patches=patches)

    return backend
