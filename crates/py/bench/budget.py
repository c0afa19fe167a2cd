"""PyTorch's activation memory budget against plans of ours, on the same joint graphs: prints the README's tables.

`python bench/budget.py [--points] [--evaluations N] [NAME…]` traces a training step of each network of `networks.py`, at full size, and runs it once for
every way on fake tensors, so that no memory is needed. One meter watches all ways: it counts the bytes of the storages that the running code makes
and frees, and adds up the durations of the operators that run, by one estimate. Every way runs the code that it would run with real tensors: the two
graphs of PyTorch's partitioner at budgets from 1 to 0, the two functions of our plans, and plain eager code, also with checkpointing per
block and with `save_on_cpu`. Parameters, gradients, buffers and inputs count; the state of an optimizer, equal in all ways, does not.

Plans with a link offload too; their peaks and times are those of the checked schedule, and nothing is run. Exit status 1 if another way has a
lower peak in the time of one of our plans that recompute, or is faster within its peak, or if a smaller limit raises our peak. `--points` runs only
the budgets of published points.
"""

import argparse
import contextlib
import copy
import math
import sys
import weakref

import torch
from elbowroom import InfeasibleError
from elbowroom.costs import duration, estimate
from elbowroom.joint import Joint
from elbowroom.kernels import compiled_only
from elbowroom.program import Writer
from networks import NETWORKS
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

#: Floating-point operations and bytes per second of an H100 in float32 (three quarters of its data sheet's, and all), and nothing for a launch.
RATES = (50.25e12, 3.35e12, 0)
#: Bytes per second of a link to the host, each way.
LINK = 25e9
BUDGETS = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25, 0.2, 0.1, 0.0]
#: Our own limits, as shares of the way from the smallest to the peak without a limit.
STEPS = [step / 20 for step in range(20, -1, -1)]
MIB = 2**20

#: Points of the budget that were published for these networks: peak in MiB, overhead, and the budget that leads there or nearest to it.
POINTS = {"resnet50": (1584, 0.112, 0.5), "unet": (1489, 0.056, 0.3), "gpt2-small": (6018, 0.172, 0.4)}


class Watch(TorchDispatchMode):
    """Bytes of the storages alive, and the time of the operators that have run."""

    def __init__(self, *existing):
        super().__init__()
        self.now = self.peak = self.nanos = 0
        self._alive = {}
        self.add(existing)

    def add(self, values):
        for leaf in tree_leaves(values):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._alive:
                    self._alive[storage._cdata] = weakref.ref(storage, lambda _, key=storage._cdata, size=storage.nbytes(): self._gone(key, size))
                    self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _gone(self, key, size):
        del self._alive[key]
        self.now -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func._schema.is_mutable or not _addresses(result) <= _addresses((args, kwargs)):
            self.nanos += duration(func, args, kwargs, result, RATES)
        self.add(result)
        return result


def _addresses(values):
    return {leaf.untyped_storage()._cdata for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}


class _Captured(Exception):
    pass


class Captured:
    """The joint graph of a training step."""

    def __init__(self, model, args):
        def partition(module, joint_inputs, *, num_fwd_outputs, static_lifetime_input_indices=None, **_):
            self.module, self.inputs, self.results, self.static = module, joint_inputs, num_fwd_outputs, static_lifetime_input_indices
            raise _Captured

        def backend(module, example_inputs, **_):
            with config.patch(donated_buffer=False), compiled_only():
                return aot_autograd(fw_compiler=None, bw_compiler=None, partition_fn=partition)(module, example_inputs)

        torch._dynamo.reset()
        try:
            torch.compile(model, backend=backend, dynamic=False)(*args)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if not isinstance(error.inner_exception, _Captured):
                raise
        self.joint = Joint(copy.deepcopy(self.module), self.results)
        self.iteration = self.joint.iteration(lambda node: estimate(node, RATES))
        joint = self.joint
        self.base = sum(joint.persistent_bytes().values()) + joint.constant_bytes()

    def returned(self, results):
        """The results that the caller holds: new values of buffers are copied into them and freed."""
        return [result for index, result in enumerate(results) if index not in self.joint.replacing]

    def primals(self):
        """Fake tensors of the inputs, in the order of the graph."""
        values = [node.meta["val"] for node in self.joint.primals]
        return tree_map_only(torch.Tensor, _fresh, values)

    def tangents(self):
        return tree_map_only(torch.Tensor, _fresh, [node.meta["val"] for node in self.joint.tangents])


def fake():
    """The mode in which ways run: tensors without memory."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def _fresh(tensor):
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()


def budget(captured, share):
    """Runs the two graphs of PyTorch's partitioner, as its backend `aot_eager` does: values are freed after their last use."""
    with config.patch(activation_memory_budget=share):
        module = copy.deepcopy(captured.module)
        forward, backward = min_cut_rematerialization_partition(
            module, captured.inputs, num_fwd_outputs=captured.results, static_lifetime_input_indices=captured.static
        )
    primals = captured.primals()
    with Watch(primals) as watch:
        outputs = torch.fx.Interpreter(forward).boxed_run([*primals])
        results, saved = captured.returned(outputs[: captured.results]), list(outputs[captured.results :])
        del outputs
        saved += captured.tangents()
        watch.add(saved)
        gradients = torch.fx.Interpreter(backward).boxed_run(saved)
    del results, gradients
    return watch


def planned(captured, schedule):
    """Runs the two functions of a schedule."""
    program = Writer(captured.joint, schedule, False).write()
    primals = captured.primals()
    with Watch(primals) as watch:
        keep = []
        results = captured.returned(program.forward([*primals], keep, None))
        tangents = captured.tangents()
        watch.add(tangents)
        gradients = program.backward(tangents, keep, None)
    del results, gradients
    return watch


def eager(make, checkpointed=False, context=contextlib.nullcontext):
    """Runs the model as it is."""
    with torch.device("meta"):
        model, args = make()
    model.checkpointed = checkpointed
    model = model.train()
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    made = _fresh(tensor)
                    table[key] = torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made
    args = [_fresh(arg) for arg in args]
    with Watch(list(model.parameters()), list(model.buffers()), args) as watch:
        with context():
            loss = model(*args)
        loss.backward()
    return watch


def plan(captured, peak, evaluations):
    """Our plan that recomputes within a peak of all bytes, run; ``None`` if there is none."""
    try:
        watch = planned(captured, captured.iteration.plan(int(peak) - captured.base, evaluations=evaluations))
    except InfeasibleError:
        return None
    assert watch.peak <= peak, (watch.peak, peak)
    return watch


class Curve:
    """Our plans that recompute, from the peak without a limit to the smallest: peak of all bytes and added nanoseconds, as the schedules say."""

    def __init__(self, captured, evaluations):
        iteration, base = captured.iteration, captured.base
        top, smallest = iteration.keep(), iteration.smallest(evaluations=evaluations)
        limits = [smallest.peak_bytes + math.ceil(step * (top.peak_bytes - smallest.peak_bytes)) for step in STEPS]
        schedules = [top]
        for limit in limits[1:-1]:
            # A plan may take less than its limit, and keeps to the next one then, too.
            schedules.append(iteration.plan(min(limit, schedules[-1].peak_bytes), evaluations=evaluations))
        schedules.append(smallest)
        self.points = [(base + schedule.peak_bytes, schedule.nanos - schedule.unlimited_nanos) for schedule in schedules]

    def falls(self):
        """Whether no smaller limit raises the peak."""
        return all(lower[0] <= higher[0] for higher, lower in zip(self.points, self.points[1:]))

    def peak_within(self, nanos):
        """The lowest peak of a plan that adds at most this time."""
        return min(peak for peak, added in self.points if added <= max(nanos, 0))


def row(*cells):
    print(f"| {' | '.join(cells)} |", flush=True)


class Comparison:
    """One network: its graph, its plain step, and what was wrong."""

    def __init__(self, name, evaluations):
        self.name, self.evaluations, self.faults = name, evaluations, 0
        self.captured = Captured(*NETWORKS[name]())
        with fake():
            self.plain = eager(NETWORKS[name])

    def share(self, nanos):
        return f"{nanos / self.plain.nanos:+.2%}"

    def beside(self, watch):
        """The added times of our plans within the peak of another way: one that recomputes, and one that has a link too."""
        ours = plan(self.captured, watch.peak, self.evaluations)
        # Two sums of the same durations differ by the views that one graph copies.
        self.faults += ours is None or ours.nanos > 1.001 * watch.nanos
        try:
            room, rates = watch.peak - self.captured.base, (int(LINK), int(LINK))
            linked = self.captured.iteration.plan(room, evaluations=self.evaluations, link=rates)
        except InfeasibleError:
            linked = None
        recomputing = "none" if ours is None else self.share(ours.nanos - self.plain.nanos)
        return recomputing, "none" if linked is None else self.share(linked.nanos - linked.unlimited_nanos)

    def point(self):
        """Prints the published point and ours."""
        mebibytes, overhead, share = POINTS[self.name]
        watch = budget(self.captured, share)
        here = f"{watch.peak / MIB:,.1f} MiB, {self.share(watch.nanos - self.plain.nanos)} (budget {share})"
        ours, linked = self.beside(watch)
        planned = self.captured.iteration.plan(watch.peak - self.captured.base, evaluations=1)
        bound = self.share(planned.bound_nanos - planned.unlimited_nanos)
        row(self.name, f"{mebibytes:,} MiB, +{overhead:.1%}", here, ours, bound, linked)

    def ways(self):
        """Prints every way, and returns the cells of the sweep of our limits."""
        curve = Curve(self.captured, self.evaluations)
        ways = {"plain": self.plain, "checkpoint per block": eager(NETWORKS[self.name], checkpointed=True)}
        ways["`save_on_cpu`"] = eager(NETWORKS[self.name], context=torch.autograd.graph.save_on_cpu)
        ways |= {f"budget {share:.2f}": budget(self.captured, share) for share in BUDGETS}
        seen = set()
        for way, watch in ways.items():
            if way.startswith("budget") and (watch.peak, watch.nanos) in seen:
                continue
            seen.add((watch.peak, watch.nanos))
            added = watch.nanos - self.plain.nanos
            recomputing, linked = self.beside(watch)
            least = curve.peak_within(added)
            self.faults += least > 1.001 * watch.peak
            row(self.name, way, f"{watch.peak / MIB:,.1f}", self.share(added), recomputing, f"{least / MIB:,.1f}", linked)
        self.faults += not curve.falls()
        shown = [f"{peak / MIB:,.0f} ({self.share(added)})" for peak, added in curve.points[::5]]
        return [self.name, str(len(curve.points)), "falls" if curve.falls() else "RISES", ", ".join(shown)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=20_000)
    parser.add_argument("--points", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch._logging.set_logs(all=40)
    faults, sweeps = 0, []
    if options.points:
        row(
            "network", "published point of the budget", "the budget here", "ours at this peak", "no plan adds less than", "ours at this peak, with a link"
        )
        row("---", *["--:"] * 5)
    else:
        row("network", "way", "peak, MiB", "added op time", "ours at this peak", "our peak in this time, MiB", "ours at this peak, with a link")
        row("---", "---", *["--:"] * 5)
    for name in options.names or (POINTS if options.points else NETWORKS):
        comparison = Comparison(name, options.evaluations)
        with fake():
            if options.points:
                comparison.point()
            else:
                sweeps.append(comparison.ways())
        faults += comparison.faults
    if sweeps:
        print()
        row("network", "limits", "peak as the limit falls", "every fifth peak in MiB, with its added op time")
        row("---", "--:", "---", "---")
        for cells in sweeps:
            row(*cells)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
