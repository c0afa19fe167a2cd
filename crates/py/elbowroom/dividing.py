"""A joint graph as a forward and a backward graph that Inductor compiles: as a plan says, or as PyTorch divides it by itself."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition

from .joint import Joint, Op, Storage
from .program import COMPUTE, RECOMPUTE

_SEEDED = torch.Tag.nondeterministic_seeded


@dataclass
class Division:
    """The two graphs. The forward graph takes the primals and returns the results, then the values that it keeps."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    results: int
    values: int
    primals: list[int]
    """Primals that the backward graph reads."""
    order: list[tuple[str, int]]
    """The inputs of the backward graph: a kept value, an entry of ``primals``, or a tangent, by number."""
    recomputed: int


class _Half:
    """One graph that is being written."""

    def __init__(self):
        self.graph = fx.Graph()
        self.made: dict[int, fx.Node] = {}
        self.where: dict[Storage, fx.Node] = {}
        self.views: dict[tuple[fx.Node, fx.Node | None], fx.Node] = {}


class Divider:
    """Writes the graphs of a schedule."""

    def __init__(self, joint: Joint, planned):
        self.joint, self.actions = joint, planned.actions
        self.buffers: dict[int, Storage] = {}
        self.forward, self.backward = _Half(), _Half()
        self.kept: dict[Storage, tuple[fx.Node, fx.Node]] = {}
        self.primals: dict[fx.Node, fx.Node] = {}
        self.in_backward = False

    def divide(self) -> Division:
        """The division of the schedule."""
        joint, forward, backward = self.joint, self.forward, self.backward
        self.inputs = {node: forward.graph.node_copy(node) for node in joint.primals}
        self.tangents = {node: backward.graph.node_copy(node) for node in joint.tangents}
        tangents = list(dict.fromkeys(joint.storage[n] for n in joint.tangents if n in joint.storage and joint.storage[n].tensor is not None))
        half, recomputed, results, gradients = forward, 0, [], []
        for kind, number, reads, writes in self.actions:
            if kind not in (COMPUTE, RECOMPUTE):
                continue
            op = joint.op_numbers[number]
            self._bind(half, reads)
            if op == "loss":
                results = [self._argument(half, node) for node in joint.forward_results]
                for node in joint.writes:
                    forward.graph.node_copy(node, lambda source: self._value(forward, source))
                half, self.in_backward = backward, True
                self.buffers.update(zip(writes, tangents))
            elif op == "end":
                gradients = [self._argument(half, node) for node in joint.gradients]
            else:
                recomputed += kind == RECOMPUTE
                self._compute(half, op, writes)
        values = list(self.kept.values())
        forward.graph.output((*results, *(value for value, _ in values)))
        backward.graph.output(tuple(gradients))
        return self._finish(results, values, recomputed)

    def _finish(self, results, values, recomputed) -> Division:
        joint = self.joint
        numbers = {node: number for number, node in enumerate(joint.primals)}
        copies = {copy: ("value", index) for index, (_, copy) in enumerate(values)}
        primals = list(self.primals)
        copies |= {self.primals[node]: ("primal", index) for index, node in enumerate(primals)}
        copies |= {copy: ("tangent", joint.tangents.index(node)) for node, copy in self.tangents.items()}
        # Inputs stand before everything else, in the order in which they are passed.
        first = next(iter(self.backward.graph.nodes))
        for copy in copies:
            if copy is not first:
                first.prepend(copy)
        halves = [fx.GraphModule(joint.module, half.graph) for half in (self.forward, self.backward)]
        order = [copies[node] for node in self.backward.graph.find_nodes(op="placeholder")]
        return Division(*halves, len(results), len(values), [numbers[node] for node in primals], order, recomputed)

    def _bind(self, half: _Half, reads) -> None:
        for buffer in reads:
            storage = self.buffers.get(buffer)
            if storage is None or (storage.held and self.in_backward):
                continue  # The caller's copy is read, which outlives one that is made again.
            if buffer in half.made:
                half.where[storage] = half.made[buffer]

    def _compute(self, half: _Half, op: Op, writes) -> None:
        node = half.graph.node_copy(op.node, lambda source: self._value(half, source))
        makes = [storage for storage in op.makes if storage.tensor is not None]
        self.buffers.update(zip(writes, makes))
        for storage in op.makes:
            made = node
            if storage.index is not None:
                made = half.graph.call_function(operator.getitem, (node, storage.index))
                made.meta = {**node.meta, "val": op.node.meta["val"][storage.index]}
            if not (storage.held and self.in_backward):
                half.where[storage] = made
            if storage.tensor is not None:
                half.made[writes[makes.index(storage)]] = made

    def _argument(self, half: _Half, node):
        return self._value(half, node) if isinstance(node, fx.Node) else node

    def _keep(self, storage: Storage) -> fx.Node:
        """The input of the backward graph for a value that the forward graph makes."""
        if storage not in self.kept:
            value = self.forward.where[storage]
            copy = self.backward.graph.placeholder(f"kept_{len(self.kept)}")
            copy.meta = dict(value.meta)
            self.kept[storage] = value, copy
        return self.kept[storage][1]

    def _root(self, half: _Half, storage: Storage) -> fx.Node:
        if storage not in half.where:
            half.where[storage] = self._keep(storage)
        return half.where[storage]

    def _value(self, half: _Half, node: fx.Node):
        """The copy of a node in one of the graphs."""
        joint = self.joint
        if node.op == "placeholder":
            if node in self.tangents:
                return self.tangents[node]
            if half is self.forward:
                return self.inputs[node]
            if not isinstance(node.meta.get("val"), torch.Tensor):
                return node.meta["val"]
            if node not in self.primals:
                self.primals[node] = half.graph.placeholder(node.name)
                self.primals[node].meta = dict(node.meta)
            return self.primals[node]
        storage = joint.storage.get(node)
        root = storage.node if storage is not None else None
        if storage is not None and root.op == "call_function":
            if node is root or (node.target is operator.getitem and node.args[0] is root and joint.results[root][node.args[1]] is storage):
                return self._root(half, storage)
        storages = joint.storages_of(node)
        made = storages and storages[0].node.op == "call_function"
        key = node, self._root(half, storages[0]) if made else None
        if key not in half.views:
            half.views[key] = half.graph.node_copy(node, lambda source: self._value(half, source))
        return half.views[key]


def copy(module: fx.GraphModule) -> fx.GraphModule:
    """A module whose graph may be changed."""
    graph, copies = fx.Graph(), {}
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(module, graph)


def by_pytorch(joint: Joint, joint_inputs, **options) -> Division | None:
    """PyTorch's own division of the graph; ``None`` if it draws random numbers in both halves, which would not be the same numbers."""
    count = len(joint.forward_results)
    with torch._functorch.config.patch(activation_memory_budget=1.0):
        forward, backward = min_cut_rematerialization_partition(copy(joint.module), joint_inputs, num_fwd_outputs=count, **options)
    if any(_SEEDED in getattr(node.target, "tags", ()) for node in backward.graph.nodes if node.op == "call_function" and node.name in {n.name for n in forward.graph.nodes}):
        return None
    output = next(iter(forward.graph.find_nodes(op="output")))
    results, saved = output.args[0][:count], output.args[0][count:]
    numbers = {node.name: number for number, node in enumerate(joint.primals)}
    values = [node for node in saved if node.op != "placeholder"]
    primals = [numbers[node.name] for node in saved if node.op == "placeholder"]
    tangents = {node.name: number for number, node in enumerate(joint.tangents)}
    output.args = ((*results, *values),)
    forward.recompile()
    inputs, order = backward.graph.find_nodes(op="placeholder"), []
    if len(inputs) != len(saved) + len(joint.tangents) or not {node.name for node in inputs[len(saved) :]} <= tangents.keys():
        return None
    for node, source in zip(inputs, saved):
        order.append(("primal", primals.index(numbers[source.name])) if source.op == "placeholder" else ("value", values.index(source)))
    order += [("tangent", tangents[node.name]) for node in inputs[len(saved) :]]
    again = {node.name for node in forward.graph.nodes if node.op == "call_function"} & {node.name for node in backward.graph.nodes}
    return Division(forward, backward, count, len(values), primals, order, len(again))
