"""A schedule, as two Python functions: forward and backward, with a ``del`` where a buffer is released.

The functions are generated as source, one line for each action, so that a step costs no more Python than the same calls written by hand.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass, field

import torch
from torch import fx

from .calls import quickest
from .joint import Joint, Op, Storage, Store, Update
from .pinned import PinnedTier
from .recurrent import layer
from .reusing import form
from .streams import COMPUTE, HOST_RELEASE, OFFLOAD, PREFETCH, RECOMPUTE, RELEASE, Streams
from .tier import mapped


def record_state(device: torch.device):
    """The state of the generator that an op on this device draws from."""
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


class drawn_again:
    """Draws the numbers of a recorded state, and leaves the generator as it was."""

    __slots__ = ("device", "state", "now")

    def __init__(self, device, state):
        self.device, self.state = device, state

    def _set(self, state):
        if self.device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(self.device).set_rng_state(state, self.device)

    def __enter__(self):
        self.now = record_state(self.device)
        self._set(self.state)

    def __exit__(self, *_):
        self._set(self.now)


def bring(tensor) -> None:
    """Makes a parameter in the host tier resident."""
    pages = mapped(tensor)
    if pages is not None:
        pages.prefetch()


def drop(tensor) -> None:
    """Frees the memory of a parameter in the host tier."""
    pages = mapped(tensor)
    if pages is not None:
        pages.release()


@dataclass
class Program:
    """What runs for one plan. ``forward(args, keep, meter)`` returns the results and fills ``keep``; ``backward(args, keep, meter)`` empties it
    and returns the gradients."""

    forward: object
    backward: object
    peak_bytes: int
    """Peak of live memory of the step's own tensors, without what exists before it."""
    saved_bytes: int
    """Bytes between forward and backward, results included."""
    recomputed: int
    inputs: list[int]
    """Inputs that the backward pass reads, by number, in the order of `keep`."""
    watched: set[int]
    """Those of them that nobody may overwrite before."""
    kept_first: int
    """Number of entries of ``keep`` before the inputs."""
    results: list[int]
    """Entries of ``keep`` that are results: the caller holds them too, and must not overwrite them before the backward pass."""
    source: str = field(repr=False)


class _Body:
    """One function that is being written."""

    def __init__(self, name):
        self.name = name
        self.lines: list[str] = []
        self.views: dict[object, dict[fx.Node, str]] = {}
        self.where: dict[Storage, str] = {}
        self.owner: dict[Storage, object] = {}


class Writer:
    """Writes the program of a schedule of a joint graph."""

    def __init__(self, joint: Joint, planned, metered: bool, tier=None):
        self.joint, self.metered, self.tier = joint, metered, tier
        self.actions, self.boundary = planned.actions, planned.boundary
        self.constants: dict[str, object] = {}
        self.targets: dict[object, str] = {}
        self.buffer_storage: dict[int, Storage] = {}
        self.variables = 0
        self.again = {joint.op_numbers[op] for kind, op, _, _ in self.actions if kind == RECOMPUTE}
        self.recomputed = sum(kind == RECOMPUTE for kind, *_ in self.actions)
        #: Tensors with a host copy; the tensor whose copy a buffer's release waits for; buffers that a prefetch still fills.
        self.copies: set[int] = set()
        self.writing: dict[int, int] = {}
        self.filling: set[int] = set()
        #: The order of streams, if copies run on streams of an accelerator.
        self.streams = Streams(planned, joint) if isinstance(tier, PinnedTier) else None

    # --- values ---------------------------------------------------------------------------------------------------------------------

    def constant(self, value, prefix="c") -> str:
        name = f"{prefix}{len(self.constants)}"
        self.constants[name] = value
        return name

    def target(self, target) -> str:
        if target not in self.targets:
            self.targets[target] = self.constant(target, "f")
        return self.targets[target]

    def render(self, body: _Body, value) -> str:
        """An argument as source."""
        if isinstance(value, fx.Node):
            return self.node(body, value)
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self.render(body, item) for item in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(value) == 1 else f"({inner})"
        if value is None or isinstance(value, (bool, str)) or (isinstance(value, int) and type(value) is int):
            return repr(value)
        if type(value) is float and math.isfinite(value):
            return repr(value)
        if isinstance(value, slice):
            return f"slice({self.render(body, value.start)}, {self.render(body, value.stop)}, {self.render(body, value.step)})"
        return self.constant(value)

    def node(self, body: _Body, node: fx.Node) -> str:
        """The variable that holds a node's value, which lies in a buffer or outlives the step. Views are written here, once for each
        residency of their bytes."""
        storage = self.joint.storage.get(node)
        if node.op in ("placeholder", "get_attr"):
            return self.persistent(node)
        storages = self.joint.storages_of(node)
        root = storage.node if storage is not None else None
        if storage is not None and (node is root or (node.target is operator.getitem and node.args[0] is root and self.joint.results[root][node.args[1]] is storage)):
            return body.where[storage]
        owner = body.owner.get(storages[0], "persistent")
        cache = body.views.setdefault(owner, {})
        if node not in cache:
            call = self.call(body, node)
            self.variables += 1
            name = f"w{self.variables}"
            body.lines.append(f"{name} = {call}")
            cache[node] = name
        return cache[node]

    def call(self, body: _Body, node: fx.Node) -> str:
        if node.target is operator.getitem:
            return f"{self.node(body, node.args[0])}[{self.render(body, node.args[1])}]"
        args = self.arguments(body, node)
        if node not in self.joint.calls:
            self.joint.calls[node] = layer if node.target is torch.ops.aten.mkldnn_rnn_layer.default else quickest(node)
        return f"{self.target(self.joint.calls[node])}({', '.join(args)})"

    def arguments(self, body: _Body, node: fx.Node) -> list[str]:
        return [self.render(body, value) for value in node.args] + [f"{key}={self.render(body, value)}" for key, value in node.kwargs.items()]

    def persistent(self, node: fx.Node) -> str:
        if node.op == "get_attr":
            return self.attribute(node)
        if node in self.joint.storage and self.joint.storage[node].tensor is not None:
            return f"t{self.joint.tangents.index(node)}"
        if node in self.tangent_number:
            return f"t{self.tangent_number[node]}"
        self.used[self.body.name].add(node)
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return repr(value)
        return f"p{self.primal_number[node]}"

    def attribute(self, node: fx.Node) -> str:
        name = f"a_{node.name}"
        self.constants.setdefault(name, getattr(self.joint.module, node.target))
        return name

    # --- actions --------------------------------------------------------------------------------------------------------------------

    def write(self) -> Program:
        joint = self.joint
        self.primal_number = {node: number for number, node in enumerate(joint.primals)}
        self.tangent_number = {node: number for number, node in enumerate(joint.tangents)}
        self.used = {"forward": set(), "backward": set()}
        forward, backward = _Body("forward"), _Body("backward")
        self.body = body = forward
        live: dict[int, int] = {}
        alive = held = states = 0
        placed = set(joint.placed.values())
        saved: list[int] = []
        self.saved_states: list[str] = []
        zero: list[str] = []
        results = returned = None
        held_names: list[str] = []
        for number, (buffer, _) in zip(joint.persistent_numbers, self.boundary):
            if buffer is not None and number in joint.placed:
                storage = self.buffer_storage[buffer] = joint.placed[number]
                live[buffer] = storage.bytes
                alive += storage.bytes
                self.bring(body, storage)
        peak = alive
        for at, (kind, number, reads, writes) in enumerate(self.actions):
            self.begin(body, at)
            if kind in (COMPUTE, RECOMPUTE):
                op = joint.op_numbers[number]
                if op == "loss":
                    results = self.results(body, reads)
                    self.wait(body, *sorted(self.filling))
                    # From here on the caller holds the results; what the planner releases after the loss is still theirs.
                    held = sum(s.bytes for s in joint.tensors if s.held)
                    dropped = [b for b in live if self.buffer_storage[b].held]
                    for buffer in dropped:
                        alive -= live.pop(buffer)
                    if self.streams is not None:
                        body.lines += self.streams.leave(live)
                    saved = sorted(live)
                    copies = [f"h{number}" for number in sorted(self.copies)]
                    saved_bytes = alive + held + states
                    held += joint.scalar_tangent_bytes
                    body = self.body = backward
                    for buffer in saved:
                        storage = self.buffer_storage[buffer]
                        body.owner[storage] = buffer
                        if storage in placed:
                            # Another forward pass may have released it.
                            self.bring(body, storage)
                        else:
                            body.where[storage] = f"b{buffer}"
                    for storage in joint.storage.values():
                        if storage.held and storage in forward.where:
                            body.where[storage] = forward.where[storage]
                            held_names.append(forward.where[storage])
                    for storage, name in forward.where.items():
                        if storage.bytes == 0:
                            body.where[storage] = name
                            zero.append(name)
                    tangents = [joint.storage[n] for n in joint.tangents if n in joint.storage and joint.storage[n].tensor is not None]
                    tangents = list(dict.fromkeys(tangents))
                    for storage, buffer in zip(tangents, writes):
                        self.buffer_storage[buffer] = storage
                        live[buffer] = storage.bytes
                        alive += storage.bytes
                        body.owner[storage] = buffer
                    peak = max(peak, alive + held + states)
                    self.end(body, at)
                    continue
                if isinstance(op, Update):
                    self.bind(body, reads, ())
                    body.lines.append(f"consume({op.index}, {self.render(body, joint.gradients[op.index])})")
                    peak = max(peak, alive + held + states + op.temporary)
                    self.end(body, at)
                    continue
                if isinstance(op, Store):
                    self.bind(body, reads, ())
                    body.lines.append(f"g{op.index} = store({op.index}, {self.render(body, joint.gradients[op.index])})")
                    peak = max(peak, alive + held + states + op.temporary)
                    continue
                if op == "end":
                    peak = max(peak, alive + held + states + joint.copied_gradient_bytes())
                    # What is alive here is returned; the function's end releases it.
                    returned = self.gradients(body, reads)
                    resident = {self.buffer_storage[buffer] for buffer in live}
                    body.lines += [f"drop({self.persistent(storage.node)})" for storage in joint.placed.values() if storage in resident]
                    if self.streams is not None:
                        body.lines += self.streams.finish(at)
                    break
                stored = self.launch(body, op, reads, writes, kind == RECOMPUTE)
                states += stored
                for buffer in writes:
                    # A buffer that is taken over is alive already.
                    alive += self.buffer_storage[buffer].bytes - live.get(buffer, 0)
                    live[buffer] = self.buffer_storage[buffer].bytes
                peak = max(peak, alive + held + states + op.workspace)
            elif kind == RELEASE:
                storage = self.buffer_storage.get(number)
                if storage is None or number not in live:
                    continue
                alive -= live.pop(number)
                self.release(body, number, storage)
            elif kind == PREFETCH and number in joint.placed:
                storage = self.buffer_storage[writes[0]] = joint.placed[number]
                live[writes[0]] = storage.bytes
                alive += storage.bytes
                peak = max(peak, alive + held + states)
                self.bring(body, storage)
            elif kind == OFFLOAD and reads[0] in live and number not in joint.placed:
                self.offload(body, number, reads[0], at)
            elif kind == PREFETCH and number in self.copies:
                storage = self.buffer_storage[writes[0]] = joint.tensors[number]
                live[writes[0]] = storage.bytes
                alive += storage.bytes
                peak = max(peak, alive + held + states)
                self.prefetch(body, number, writes[0])
            elif kind == HOST_RELEASE and number in self.copies:
                self.host_release(body, number)
            self.end(body, at)
        used_primals = sorted(self.primal_number[node] for node in self.used["backward"] if node in self.primal_number)
        events = self.streams.prune(forward.lines, backward.lines) if self.streams is not None else []
        kept = [name for buffer in saved if self.buffer_storage[buffer] not in placed for name in self.names(buffer)] + copies + self.saved_states + list(dict.fromkeys(held_names)) + list(dict.fromkeys(zero)) + events
        needed = {"slab"} | {name for line in backward.lines + [returned] for name in _names(line)}
        kept = [name for name in dict.fromkeys(kept) if name in needed or name.startswith("b") and name[1:].isdigit() and int(name[1:]) in saved]
        kept += [f"p{number}" for number in used_primals]
        source = self.source(forward, backward, kept, results, returned)
        space = {**self.constants, "record_state": record_state, "drawn_again": drawn_again, "seen": self.seen, "consume": joint.consume}
        space |= {"store": joint.store, "bring": bring, "drop": drop}
        if self.streams is not None:
            space |= {"offload": self.tier.offload, "prefetch": self.tier.prefetch, "streams": self.tier.streams, "slab_of": self.tier.slab}
        elif self.tier is not None:
            space |= {"offload": self.tier.offload, "prefetch": self.tier.prefetch}
        exec(compile(source, f"<elbowroom {joint.name}>", "exec"), space)  # noqa: S102 - our own source
        first = len(kept) - len(used_primals)
        shown = [position for position, name in enumerate(kept[:first]) if name in held_names]
        watched = {number for number in used_primals if joint.primals[number] not in joint.mutated}
        return Program(space["forward"], space["backward"], peak, saved_bytes, self.recomputed, used_primals, watched, first, shown, source)

    def bind(self, body, reads, op_reads):
        """Where the storages that an op reads are, by the buffers of its launch."""
        for buffer in reads:
            storage = self.buffer_storage.get(buffer)
            if storage is None:
                continue  # A parameter.
            self.wait(body, buffer)
            if storage.held and body.name == "backward":
                continue  # The caller's copy is read, which outlives one that is made again.
            if body.owner.get(storage) != buffer:
                body.owner[storage] = buffer
                if storage.node.op != "placeholder":
                    body.where[storage] = f"b{buffer}"

    def launch(self, body: _Body, op: Op, reads, writes, again: bool) -> int:
        self.bind(body, reads, op.reads)
        taken = {buffer: self.buffer_storage[buffer] for buffer in writes if buffer in reads}
        call = self.overwriting(body, op, *next(iter(taken.items()))) if taken else self.call(body, op.node)
        states = 0
        device = None
        if op.random and op in self.again:
            device = self.constant(op.device, "d")
            if not again:
                body.lines.append(f"s_{op.node.name} = record_state({device})")
                self.saved_states.append(f"s_{op.node.name}")
                states = op.state_bytes
                if self.metered:
                    body.lines.append(f"meter(s_{op.node.name})")
        makes = [s for s in op.makes if s.tensor is not None]
        for storage, buffer in zip(makes, writes):
            self.buffer_storage[buffer] = storage
        names = {}
        for storage in op.makes:
            if storage.tensor is None:
                names[storage] = f"z_{op.node.name}_{storage.index or 0}"
            else:
                names[storage] = f"b{writes[makes.index(storage)]}"
        indent = ""
        if again and op.random:
            body.lines.append(f"with drawn_again({device}, s_{op.node.name}):")
            indent = "    "
        if op.makes[0].index is None:
            body.lines.append(f"{indent}{names[op.makes[0]]} = {call}")
        else:
            body.lines.append(f"{indent}r = {call}")
            for storage in op.makes:
                body.lines.append(f"{names[storage]} = r[{storage.index}]")
            body.lines.append("del r")
        for buffer, storage in taken.items():
            views = self.forget(body, buffer, storage)
            body.lines += [f"del {', '.join(views)}"] if views else []
        for storage, name in names.items():
            # Later reads name their buffer, so a result that is still in an earlier buffer is found there again.
            if storage.held and body.name == "backward":
                continue  # The caller's copy is read.
            body.where[storage] = name
            if storage.tensor is not None:
                body.owner[storage] = writes[makes.index(storage)]
        if self.metered:
            body.lines.append(f"seen(meter, {self.joint.ops.index(op)}, {', '.join(names.values())})")
        return states

    def overwriting(self, body: _Body, op: Op, buffer: int, storage: Storage) -> str:
        """The call of an op whose result takes over the bytes of an argument, which nothing else reads any more."""
        argument, (target, keyword) = self.joint.reused[op][storage], form(op.node)
        if buffer in self.writing:
            body.lines.append(f"h{self.writing.pop(buffer)}.wait()")
        given = [f"{keyword}={self.render(body, argument)}"] if keyword else []
        return f"{self.target(target)}({', '.join(self.arguments(body, op.node) + given)})"

    def seen(self, meter, number: int, *tensors) -> None:
        """Counts the results of an op, and notes storages whose size is not that of the traced step: some kernels return a small tensor in
        the bytes of a larger one. Also notes results whose strides are others."""
        meter(*tensors)
        for storage, tensor in zip(self.joint.ops[number].makes, tensors):
            stated = storage.node.meta["val"] if storage.index is None else storage.node.meta["val"][storage.index]
            if tensor.stride() != stated.stride():
                self.joint.strides[storage.node] = (tuple(tensor.shape), tensor.stride(), stated.stride())
            count = tensor.untyped_storage().nbytes()
            if count != storage.bytes and storage.tensor is not None and count:
                self.joint.corrections[storage] = count

    def bring(self, body: _Body, storage: Storage) -> None:
        body.lines.append(f"bring({self.persistent(storage.node)})")

    def names(self, buffer: int) -> list[str]:
        """The variables that hold a buffer."""
        storage = self.buffer_storage[buffer]
        if storage.node.op == "placeholder":
            return [f"t{self.tangent_number[n]}" for n in self.joint.tangents if self.joint.storage.get(n) is storage]
        return [f"b{buffer}"]

    def begin(self, body: _Body, at: int) -> None:
        """Orders an action behind those for which it waits."""
        if self.streams is not None:
            body.lines += self.streams.before(at)

    def end(self, body: _Body, at: int) -> None:
        """Notes that an action has been issued."""
        if self.streams is not None:
            body.lines += self.streams.after(at)

    def wait(self, body: _Body, *buffers: int) -> None:
        """Waits for the prefetches that fill these buffers."""
        for buffer in buffers:
            if buffer in self.filling:
                self.filling.remove(buffer)
                body.lines += [f"l{buffer}.result()", f"del l{buffer}"]

    def offload(self, body: _Body, tensor: int, buffer: int, at: int) -> None:
        self.copies.add(tensor)
        if self.streams is not None:
            body.lines.append(f"h{tensor} = offload(compute, slab, {self.streams.offsets[at]}, {', '.join(self.names(buffer))})")
            return
        self.wait(body, buffer)
        body.lines.append(f"h{tensor} = offload({', '.join(self.names(buffer))})")
        self.writing[buffer] = tensor

    def prefetch(self, body: _Body, tensor: int, buffer: int) -> None:
        names = ", ".join(self.names(buffer))
        if self.streams is not None:
            body.lines.append(f"{names} = prefetch(compute, h{tensor})")
        else:
            body.lines.append(f"({names}), l{buffer} = prefetch(h{tensor})")
            self.filling.add(buffer)
        if self.metered:
            body.lines.append(f"meter({names})")

    def host_release(self, body: _Body, tensor: int) -> None:
        for buffer in [buffer for buffer, number in self.writing.items() if number == tensor]:
            body.lines.append(f"h{tensor}.wait()")
            del self.writing[buffer]
        body.lines.append(f"del h{tensor}")
        self.copies.remove(tensor)

    def release(self, body: _Body, buffer: int, storage: Storage) -> None:
        self.wait(body, buffer)
        if buffer in self.writing:
            body.lines.append(f"h{self.writing.pop(buffer)}.wait()")
        if storage in self.joint.placed.values():
            body.lines.append(f"drop({self.persistent(storage.node)})")
            names = []
        else:
            names = self.names(buffer)
        names += self.forget(body, buffer, storage)
        if names:
            body.lines.append(f"del {', '.join(names)}")

    @staticmethod
    def forget(body: _Body, buffer: int, storage: Storage) -> list[str]:
        """Ends the stay of a storage in a buffer. Returns the variables of its views."""
        if body.owner.get(storage) == buffer:
            del body.owner[storage]
            body.where.pop(storage, None)
        return list(body.views.pop(buffer, {}).values())

    def results(self, body, reads) -> str:
        self.bind(body, reads, ())
        return ", ".join("None" if node is None else self.render(body, node) for node in self.joint.forward_results)

    def gradients(self, body, reads) -> str:
        self.bind(body, reads, ())
        gradients = enumerate(self.joint.gradients)
        updates, stored = self.joint.updates, self.joint.stored
        return ", ".join(
            "None" if node is None or index in updates else f"g{index}" if index in stored else self.render(body, node) for index, node in gradients
        )

    def source(self, forward, backward, kept, results, returned) -> str:
        primals = "".join(f"p{n}, " for n in range(len(self.joint.primals)))
        tangents = "".join(f"t{n}, " for n in range(len(self.joint.tangents)))
        names = ", ".join(kept)
        lines = ["def forward(args, keep, meter):"]
        lines += [f"    {primals}= args"] if primals else []
        lines += ["    args.clear()"]
        lines += self.streams.enter("forward") if self.streams is not None else []
        lines += [f"    {line}" for line in forward.lines]
        lines += [f"    keep.extend(({names}{',' if kept else ''}))"]
        lines += [f"    return [{results}]", "", "def backward(args, keep, meter):"]
        lines += [f"    {tangents}= args"] if tangents else []
        lines += ["    args.clear()"]
        lines += [f"    {names}, = keep"] if kept else []
        lines += ["    keep.clear()"]
        lines += self.streams.enter("backward") if self.streams is not None else []
        lines += [f"    meter({tangents})"] if tangents and self.metered else []
        lines += [f"    {line}" for line in backward.lines]
        lines += [f"    return [{returned}]", ""]
        return "\n".join(lines)


def _names(line: str) -> list[str]:
    return re.findall(r"[A-Za-z_]\w*", line)
