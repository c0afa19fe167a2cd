"""The backend that captures forward and backward, imposes a plan, and runs it.

PyTorch's own wrapper around a captured graph decides once, at compilation, which tensors it saves for the backward pass. Plans change later:
with gradients that are already there, or when another graph joins the step. So that wrapper saves only a token, an empty tensor whose shape
is a number, and what the plan keeps lies in a :class:`Context` under that number.
"""

from __future__ import annotations

import itertools
import weakref

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from .errors import UnsupportedError
from .joint import Joint
from .program import Program
from .recurrent import replace

_numbers = itertools.count(1)
_graphs: "weakref.WeakValueDictionary[int, Graph]" = weakref.WeakValueDictionary()


def _gradient(token, index):
    """Stands for a gradient in the graph that PyTorch sees, which is never run."""
    raise AssertionError("the stand-in of a backward pass was run")


class Context:
    """What one forward pass keeps for its backward pass."""

    __slots__ = ("program", "keep", "versions", "results", "__weakref__")

    def __init__(self, program: Program):
        self.program, self.keep, self.versions, self.results = program, [], (), ()


class Graph:
    """One captured graph with its plans."""

    def __init__(self, step, joint: Joint, reason):
        self.step, self.joint, self.reason = step, joint, reason
        self.number = next(_numbers)
        self.contexts: dict[int, Context] = {}
        self.program: Program | None = None
        #: Bytes that exist when it begins, apart from what the plans of other graphs count.
        self.base_bytes = 0
        #: Whether the model goes on after it.
        self.breaks = reason is not None and getattr(reason, "graph_break", False)
        _graphs[self.number] = self
        step.add(self)

    def forward(self, args):
        """Runs the forward pass; ``args`` is emptied, so that inputs can be freed as they are used up."""
        self.step.inside = True
        try:
            return self._forward(args)
        finally:
            self.step.inside = False

    def _forward(self, args):
        program, meter = self.step.program(self, args)
        context = Context(program)
        outputs = program.forward(args, context.keep, meter)
        context.versions = [tensor._version for tensor in context.keep[program.kept_first :]]
        number = next(_numbers)
        token = torch.empty((0, number))
        context.results = [weakref.ref(output.untyped_storage()) for output in outputs if isinstance(output, torch.Tensor)]
        self.contexts[number] = context
        weakref.finalize(token, self.contexts.pop, number, None)
        self.step.returned(self)
        return [*outputs, token]

    def backward(self, args):
        """Runs the backward pass of the forward pass whose token comes first in ``args``."""
        number = args[0].shape[1]
        context = self.contexts.pop(number, None)
        if context is None:
            raise RuntimeError(
                "elbowroom: this backward pass has run before, and its plan has freed what it kept; "
                "retain_graph=True is not supported. Run the forward pass again, or use torch.autograd.grad with all outputs at once."
            )
        if self.joint.updates:
            if self.contexts:
                raise UnsupportedError("a forward pass waits for its backward pass; gradients that are consumed belong to one forward pass")
            self.step.consumer.begin()
        program = context.program
        now = [tensor._version for tensor in context.keep[program.kept_first :]]
        for position, (before, after) in enumerate(zip(context.versions, now)):
            tensor = program.inputs[position]
            if before != after and tensor in program.watched:
                raise RuntimeError(
                    f"one of the tensors that the backward pass reads has been modified by an inplace operation: input {tensor} of "
                    f"{self.joint.name} is at version {after}, expected version {before}"
                )
        rest = args[1:]
        args.clear()
        meter = self.step.meter()
        gradients = program.backward(rest, context.keep, meter)
        self.step.went_back(self)
        return gradients


def _boxed(run):
    def call(args):
        return run(args)

    call._boxed_call = True
    return call


def _stand_ins(graph: Graph, module: fx.GraphModule) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The two graphs that PyTorch inspects: right inputs, results and fake values, and a token between them."""
    joint = graph.joint
    fake = next(node.meta["val"] for node in joint.primals + joint.tangents if isinstance(node.meta.get("val"), torch.Tensor))
    with fake.fake_mode:
        token_value = torch.empty((0, 1))
    needed, pending = set(), [node for node in joint.forward_results if isinstance(node, fx.Node)]
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending.extend(node.all_input_nodes)
    forward, copies = fx.Graph(), {}
    for node in module.graph.nodes:
        if node in joint.primal_set or (node in needed and node.op != "placeholder"):
            copies[node] = forward.node_copy(node, copies.__getitem__)
    token = forward.call_function(torch.ops.aten.empty.memory_format, ([0, 1],))
    token.meta["val"] = token_value
    results = [copies[node] if isinstance(node, fx.Node) else node for node in joint.forward_results]
    forward.output((*results, token))
    backward = fx.Graph()
    back_token = backward.placeholder("token")
    back_token.meta["val"] = token_value
    for node in joint.tangents:
        copy = backward.node_copy(node, lambda source: source)
        copy.meta = dict(node.meta)
    gradients = []
    for index, node in enumerate(joint.gradients):
        if isinstance(node, fx.Node):
            made = backward.call_function(_gradient, (back_token, index))
            made.meta["val"] = node.meta["val"]
            gradients.append(made)
        else:
            gradients.append(node)
    backward.output(tuple(gradients))
    modules = []
    for made in (forward, backward):
        copy = fx.GraphModule(module, made)
        copy.meta = {**getattr(module, "meta", {}), "elbowroom": graph.number}
        modules.append(copy)
    return modules[0], modules[1]


def make(step):
    """A backend for ``torch.compile`` whose graphs belong to a step."""

    def partition(module, joint_inputs, *, num_fwd_outputs, **_):
        joint = Joint(module, num_fwd_outputs, f"graph {len(step.graphs)}")
        graph = Graph(step, joint, step.reason)
        return _stand_ins(graph, module)

    def forward_compiler(module, example_inputs):
        return _boxed(_graphs[module.meta["elbowroom"]].forward)

    def backward_compiler(module, example_inputs):
        return _boxed(_graphs[module.meta["elbowroom"]].backward)

    def inference_compiler(module, example_inputs):
        output = next(iter(module.graph.find_nodes(op="output")))
        joint = Joint(module, len(output.args[0]), f"graph {len(step.graphs)} without gradients")
        program = step.without_gradients(joint)

        def run(args):
            step.runs += 1
            step.inside = True
            try:
                return program.forward(args, [], None)
            finally:
                step.inside = False

        return _boxed(run)

    inner = aot_autograd(
        fw_compiler=forward_compiler,
        bw_compiler=backward_compiler,
        inference_compiler=inference_compiler,
        partition_fn=partition,
    )

    def backend(module, example_inputs, **kwargs):
        replace(module)
        step.reason = getattr(module, "compile_subgraph_reason", None)
        with torch._functorch.config.patch(donated_buffer=False):
            return inner(module, example_inputs)

    return backend
