"""``trace`` and ``plan``: a training step that is planned and not run.

The step is traced on fake tensors, which have shapes and no memory. It contains parameters, gradients and optimizer state, and the update of
every parameter stands where its gradient is complete and the backward pass has read the parameter for the last time.
"""

from __future__ import annotations

import contextlib
import html
import math
import os
import sys
from dataclasses import dataclass, field

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from . import _native, pins as _pins, size
from .costs import Work, appraise, overload_name, rates_of
from .errors import UnsupportedError
from .joint import BACKWARD, MODULE, ONCE, UPDATE, Joint
from .kernels import compiled_only
from .state import predict


@dataclass
class Machine:
    """A link to the host in bytes per second, each way; with ``link=None`` nothing is offloaded."""

    link: float | None = None
    host_memory: int | None = None


@dataclass
class Trace:
    """One training step on a device, with estimated durations."""

    name: str
    iteration: _native.Iteration = field(repr=False)
    persistent_bytes: int
    """Bytes of parameters, buffers, inputs and optimizer state, which are tensors of the trace."""
    ops: int
    keep: _native.Planned = field(repr=False)

    @property
    def unlimited_peak(self) -> int:
        """Peak of live memory if everything is kept until its last use."""
        return self.keep.peak_bytes

    def save(self, path) -> None:
        """Writes the trace with its durations to a file that the command reads: ``elbowroom plan FILE --machine a100 --memory 50%``."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.iteration.text())


@dataclass
class Plan:
    """A checked plan of a traced step."""

    trace: Trace = field(repr=False)
    native: _native.Planned = field(repr=False)
    pins: list[_pins.Pin] = field(default_factory=list)
    """The decisions that the plan obeys, and what each covers."""

    @property
    def peak(self) -> int:
        """Peak of live memory in bytes."""
        return self.native.peak_bytes

    @property
    def overhead(self) -> float:
        """Predicted time of the step ÷ predicted time without a limit − 1."""
        return self.native.nanos / self.native.unlimited_nanos - 1

    @property
    def bound(self) -> float:
        """No plan at this limit has a smaller overhead."""
        return self.native.bound_nanos / self.native.unlimited_nanos - 1

    def explain(self, lines: int = 20) -> str:
        """What the pins cover, and the gaps in which a tensor is off the device, those that save most first."""
        return "\n".join([*map(str, self.pins), *self.native.explanation.splitlines()[:lines]])

    def save(self, path) -> None:
        """Writes the actions as JSON, one plan a file."""
        import json

        kinds = ("compute", "recompute", "offload", "prefetch", "release", "host-release")
        actions = [{"action": kinds[kind], "id": number, "reads": reads, "writes": writes} for kind, number, reads, writes in self.native.actions]
        head = {"trace": self.trace.iteration.fingerprint, "limit_bytes": self.native.limit_bytes, "peak_bytes": self.peak}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**head, "actions": actions}, file)

    def _repr_html_(self) -> str:
        rows = {
            "limit": size.show(self.native.limit_bytes),
            "peak": size.show(self.peak),
            "unlimited peak": size.show(self.trace.unlimited_peak),
            "overhead": f"{self.overhead:.1%} (at least {self.bound:.1%})",
            "recomputed ops": str(self.native.recomputed),
            "offloaded": size.show(self.native.offloaded_bytes),
        }
        cells = "".join(f"<tr><th>{key}</th><td>{html.escape(value)}</td></tr>" for key, value in rows.items())
        return f"<table>{cells}</table>"

    def __repr__(self) -> str:
        return (
            f"Plan(peak={size.show(self.peak)}, limit={size.show(self.native.limit_bytes)}, overhead={self.overhead:.1%}, "
            f"bound={self.bound:.1%}, recomputed={self.native.recomputed}, offloaded={size.show(self.native.offloaded_bytes)})"
        )


class _Loss(torch.nn.Module):
    """The model with its loss as its only result."""

    def __init__(self, model, keys):
        super().__init__()
        self.model, self.keys = model, keys

    def forward(self, *args):
        given = len(args) - len(self.keys)
        result = self.model(*args[:given], **dict(zip(self.keys, args[given:])))
        loss = result if isinstance(result, torch.Tensor) else getattr(result, "loss", None)
        if loss is None and isinstance(result, (tuple, list)):
            loss = result[0]
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UnsupportedError("the model must return its loss: a tensor of one element, a tuple that begins with it, or an object with `loss`")
        return (loss,)


def trace(model, *args, optimizer=None, device="cpu", rates=None, name=None, **kwargs) -> Trace:
    """Traces one training step of ``model(*args, **kwargs)``, which returns its loss. Nothing is allocated: the model may be on the meta device.

    ``optimizer`` is an optimizer of the model's parameters, whose state and update join the step. Durations are estimated for ``device``,
    or for ``rates``: floating-point operations and bytes per second, and the fixed nanoseconds of an op, or :class:`elbowroom.costs.Rates`.
    Raises :class:`UnsupportedError` if the step cannot be traced as one graph, or if PyTorch finds no such device.
    """
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError('this PyTorch finds no GPU: trace with device="cpu" and rates=elbowroom.costs.RATES["cuda"], or on a machine that has one')
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor):
        if not isinstance(tensor, torch.Tensor):
            return tensor
        with mode:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made

    whole = _Loss(model, list(kwargs))
    with _plain(model), _replaced(model, fake), _annotated(model) as replayed, mode, _compiling(), compiled_only(), _Lines():
        module, signature = aot_export_module(whole, tree_map(fake, [*args, *kwargs.values()]), trace_joint=True, output_loss_index=0)
        _keep_annotations(replayed, module)
        joint = Joint(module, len(module.graph.output_node().args[0]) - len(signature.backward_signature.gradients_to_parameters), name or type(model).__name__)
        return _with_update(joint, signature, optimizer, rates_of(device.type, rates))


@contextlib.contextmanager
def _plain(model):
    """The model as it was before ``fit`` or ``compile``, whose programs are made for tensors with memory."""
    compiled = model.__dict__.pop("_compiled_call_impl", None)
    try:
        yield
    finally:
        if compiled is not None:
            model._compiled_call_impl = compiled


@contextlib.contextmanager
def _replaced(model, fake):
    """The model with fake parameters and buffers."""
    seen, undo = {}, []
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    undo.append((table, key, tensor))
                    table[key] = seen.setdefault(tensor, None) if seen.get(tensor) is not None else seen.__setitem__(tensor, fake(tensor)) or seen[tensor]
    try:
        yield
    finally:
        for table, key, tensor in undo:
            table[key] = tensor


def _with_update(joint, signature, optimizer, rates) -> Trace:
    """The columns of the whole step."""
    reads, outputs, nanos, workspaces, flags, names, kinds, mutates, lines, reuses, works = ([] for _ in range(11))
    sizes = [storage.bytes for storage in joint.tensors]
    persistent, number = [], {}
    for node in joint.primals:
        storage = joint.storage.get(node)
        if storage is not None and storage.bytes and storage not in number:
            number[storage] = len(sizes)
            target = signature.inputs_to_parameters.get(node.name) or signature.inputs_to_buffers.get(node.name) or node.name
            persistent.append((len(sizes), target.removeprefix("model.")))
            sizes.append(storage.bytes)

    def ids(storages):
        found = (storage.tensor if storage.tensor is not None else number.get(storage) for storage in storages)
        return list(dict.fromkeys(i for i in found if i is not None))

    last_use, parameters = {}, {}
    for position, op in enumerate(joint.ops):
        for storage in op.reads:
            last_use[storage] = position
        for storage in op.makes:
            last_use[storage] = position
    states = _state_sizes(optimizer)
    gradients = signature.backward_signature.gradients_to_parameters
    by_name = {target: node for node in joint.primals for target in [signature.inputs_to_parameters.get(node.name)] if target}
    for node in joint.gradients:
        if isinstance(node, fx.Node) and node.name in gradients:
            parameter = joint.storage[by_name[gradients[node.name]]]
            gradient = joint.storages_of(node)[0]
            ready = max(last_use.get(parameter, 0), last_use.get(gradient, 0))
            parameters.setdefault(ready, []).append((gradients[node.name], parameter, gradient))

    def add(op_name, kind, read, made, duration, workspace, flag, changed=(), line="", reused=(), work=Work()):
        reads.append(read)
        outputs.append(made)
        nanos.append(duration)
        workspaces.append(workspace)
        flags.append(flag)
        names.append(op_name)
        kinds.append(kind)
        mutates.append(list(changed))
        lines.append(line)
        reuses.append(list(reused))
        works.append((work.flops, work.half_flops, work.moved))

    for position, op in enumerate(joint.ops):
        flag = (ONCE if op.once else 0) | (BACKWARD if op.backward else 0)
        made = [storage.tensor for storage in op.makes if storage.tensor is not None]
        reused = [(storage.tensor, made[0]) for storage in joint.reuses(op)]
        duration, work = appraise(op.node, rates)
        add(joint.named(op.node), overload_name(op.node.target), ids(op.reads), made, duration, op.workspace, flag, line=_line(op.node), reused=reused, work=work)
        if optimizer is None:
            continue
        for target, parameter, gradient in parameters.get(position, ()):
            state = []
            for bytes_of in states(parameter.bytes):
                state.append(len(sizes))
                persistent.append((len(sizes), f"{target.removeprefix('model.')}.state{len(state)}"))
                sizes.append(bytes_of)
            changed = [number[parameter], *state]
            moved = parameter.bytes * (2 + 2 * len(state))
            duration = math.ceil(rates.launch + 1e9 * moved / rates.bytes)
            add(f"{target.removeprefix('model.')}/update", "update", [*changed, *ids([gradient])], [], duration, parameter.bytes, ONCE | UPDATE, changed, work=Work(moved=moved))
    results = [s for node in joint.forward_results if isinstance(node, fx.Node) for s in joint.storages_of(node)]
    ends = [] if optimizer is not None else [s for node in joint.gradients if isinstance(node, fx.Node) for s in joint.storages_of(node)]
    add("end", "end", ids([s for s in results + ends if s.tensor is not None]), [], 0, 0, ONCE | UPDATE)
    iteration = _native.Iteration(joint.name, sizes, reads, outputs, nanos, workspaces, flags, names, kinds, persistent, mutates, lines, reuses, works)
    return Trace(joint.name, iteration, sum(sizes[i] for i, _ in persistent), len(reads), iteration.keep())


def _state_sizes(optimizer):
    """From the bytes of a parameter to the sizes of its state, by what the optimizer keeps for all of them."""
    if optimizer is None:
        return lambda _: []
    total = sum(p.numel() * p.element_size() for group in optimizer.param_groups for p in group["params"])
    copies = round(predict(optimizer)[0] / total) if total else 0
    return lambda count: [count] * copies


def plan(traced: Trace, memory, machine: Machine | None = None, *, evaluations=20_000, seconds=None, seed=0, pins=None) -> Plan:
    """Plans a traced step under a limit: bytes, ``"24GB"``, ``"60%"`` of the unlimited peak, or ``"min"``. ``pins`` are decisions that the plan
    obeys, lines like ``"keep layers.3.*"`` (see :mod:`elbowroom.pins`)."""
    limit = size.resolve(memory, traced.unlimited_peak)
    machine = machine or Machine()
    link = None if machine.link is None else (int(machine.link), int(machine.link))
    options = dict(link=link, host_memory=machine.host_memory, evaluations=evaluations, seconds=seconds, seed=seed)
    iteration, pinned = _pins.apply(traced.iteration, _pins.parse(pins), link is not None)
    native = iteration.smallest(**options) if limit is None else iteration.plan(limit, **options)
    return Plan(traced, native, pinned)


@contextlib.contextmanager
def _annotated(model):
    """Has every op that is traced carry the name of the module that calls it. Yields a list for graphs that PyTorch replays meanwhile."""
    replayed: list[fx.GraphModule] = []
    names = {module: name for name, module in model.named_modules()}
    entered = []

    def enter(module, _):
        if module not in names and isinstance(module, fx.GraphModule):
            replayed.append(module)
        entered.append(torch.fx.traceback.annotate({MODULE: names.get(module, "")}))
        entered[-1].__enter__()

    def leave(*_):
        entered.pop().__exit__(None, None, None)

    hooks = [torch.nn.modules.module.register_module_forward_pre_hook(enter), torch.nn.modules.module.register_module_forward_hook(leave)]
    try:
        yield replayed
    finally:
        for hook in hooks:
            hook.remove()
        while entered:
            leave()


def _keep_annotations(replayed: list[fx.GraphModule], module: fx.GraphModule) -> None:
    """PyTorch traces the joint graph and then traces its replay, which knows nothing of the user's modules: takes over what the first knew."""
    known = {(node.name, node.target): node.meta.get("custom") for traced in replayed for node in traced.graph.nodes}
    for node in module.graph.nodes:
        if custom := known.get((node.name, node.target)):
            node.meta["custom"] = custom


class _Lines(TorchFunctionMode):
    """Has every op that is traced carry the line of the user's program that calls it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        frame = sys._getframe(1)
        while frame and frame.f_code.co_filename.startswith(_LIBRARIES):
            frame = frame.f_back
        # Code that PyTorch generated is not the user's.
        if frame is None or frame.f_code.co_filename.startswith("<"):
            return func(*args, **(kwargs or {}))
        with torch.fx.traceback.annotate({_LINE: f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"}):
            return func(*args, **(kwargs or {}))


#: The key of a line in the annotations of an op.
_LINE = "elbowroom.line"

#: Folders whose code is not the user's program.
_LIBRARIES = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep, os.path.dirname(contextlib.__file__) + os.sep + "contextlib")


def _short(path: str) -> str:
    """The last folder of a path and the file."""
    return "/".join(path.split(os.sep)[-2:])


def _line(node: fx.Node) -> str:
    """The line of the user's program that calls an op; empty if it is not known."""
    return (node.meta.get("custom") or {}).get(_LINE, "")


@contextlib.contextmanager
def _compiling():
    """Lets a model see that it is traced: many skip checks of values then, which fake tensors do not have."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
