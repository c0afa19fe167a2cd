"""The backend that captures forward and backward, imposes a plan, and runs it.

PyTorch's own wrapper around a captured graph decides once, at compilation, which tensors it saves for the backward pass. Plans change later:
with gradients that are already there, or when another graph joins the step. So that wrapper saves only a token, an empty tensor whose shape
is a number, and what the plan keeps lies in a :class:`Context` under that number.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from .errors import UnsupportedError
from .joint import Joint
from .kernels import compiled_only
from .program import Program
from .recurrent import replace

_numbers = itertools.count(1)
graphs_by_number: "weakref.WeakValueDictionary[int, Graph]" = weakref.WeakValueDictionary()


def _gradient(token, index):
    """Stands for a gradient in the graph that PyTorch sees, which is never run."""
    raise AssertionError("the stand-in of a backward pass was run")


class Context:
    """What one forward pass keeps for its backward pass."""

    __slots__ = ("program", "keep", "versions", "results", "shown", "__weakref__")

    def __init__(self, program: Program):
        self.program, self.keep, self.versions, self.results, self.shown = program, [], (), (), ()


class Graph:
    """One captured graph with its plans."""

    def __init__(self, step, joint: Joint, reason):
        self.step, self.joint, self.reason = step, joint, reason
        self.number = next(_numbers)
        self.contexts: dict[int, Context] = {}
        self.program: Program | None = None
        #: The model's parameters among its inputs, by position.
        self.parameters: dict[int, torch.nn.Parameter] = {}
        #: Bytes that exist when it begins, apart from what the plans of other graphs count.
        self.base_bytes = 0
        #: Results that are views made in the graph, by position; their overwriting has to be seen (see `share_versions`).
        self.views: list[int] = []
        #: Whether the model goes on after it.
        self.breaks = reason is not None and getattr(reason, "graph_break", False)
        graphs_by_number[self.number] = self
        step.add(self)

    def forward(self, args):
        """Runs the forward pass; ``args`` is emptied, so that inputs can be freed as they are used up."""
        self.step.inside = True
        try:
            return self._forward(args)
        except BaseException as error:
            self.step.failed()
            raise self.joint.explain(error)
        finally:
            self.step.inside = False

    def _forward(self, args):
        program, meter = self.step.program(self, args)
        context = Context(program)
        outputs = program.forward(args, context.keep, meter)
        for position in self.views:
            outputs[position] = outputs[position].detach()
        # The caller holds these too.
        context.shown = [context.keep[position] for position in program.results]
        context.versions = self._versions(context)
        number = next(_numbers)
        token = torch.empty((0, number))
        context.results = [weakref.ref(output.untyped_storage()) for output in outputs if isinstance(output, torch.Tensor)]
        self.contexts[number] = context
        weakref.finalize(token, self.contexts.pop, number, None)
        self.step.returned(outputs)
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
        now = self._versions(context)
        if context.versions != now:
            self._overwritten(context, now)
        rest, context.shown = args[1:], ()
        self.joint.received(rest)
        args.clear()
        meter = self.step.meter()
        try:
            gradients = program.backward(rest, context.keep, meter)
        except BaseException as error:
            self.step.failed()
            raise self.joint.explain(error)
        self.step.went_back(self)
        return gradients

    def shares_versions(self, leaf: torch.Tensor) -> bool:
        """Whether writing to a tensor that the caller holds changes the version of what a backward pass reads of its bytes."""
        storage, version = leaf.untyped_storage()._cdata, leaf._version
        for context in self.contexts.values():
            for shown in context.shown:
                if shown.untyped_storage()._cdata == storage:
                    torch._C._autograd._unsafe_set_version_counter((leaf,), (version + 1,))
                    shared = shown._version == version + 1
                    torch._C._autograd._unsafe_set_version_counter((leaf,), (version,))
                    if not shared:
                        return False
        return True

    @staticmethod
    def _versions(context: Context) -> list[int]:
        """Versions of the tensors that the backward pass reads and others may overwrite: inputs, then results."""
        inputs = context.keep[context.program.kept_first :]
        return [tensor._version for tensor in inputs] + [tensor._version for tensor in context.shown]

    def _overwritten(self, context: Context, now) -> None:
        """Raises the error that PyTorch raises without a plan, unless the input is one that the step itself replaces."""
        program = context.program
        names = [f"input {number}" if number in program.watched else None for number in program.inputs] + ["a result"] * len(context.shown)
        for name, old, new in zip(names, context.versions, now, strict=True):
            if name is not None and old != new:
                raise RuntimeError(
                    f"one of the tensors that the backward pass reads has been modified by an inplace operation: {name} of "
                    f"{self.joint.name} is at version {new}, expected version {old}"
                )


def share_versions() -> list[int]:
    """Has PyTorch return views as the graph made them; their positions among the results of the forward pass.

    PyTorch hides from autograd that a result is a view made in the graph, and gives it a version counter of its own. Overwriting it would
    then change what the backward pass reads and leave no trace. A detached tensor is no view either, and has the counter of its bytes.
    """
    metadata = torch._guards.TracingContext.get().fw_metadata
    views, metadata.unsafe_view_out_indices, metadata.num_unsafe_view_outputs = metadata.unsafe_view_out_indices, [], 0
    return [metadata.num_mutated_inp_runtime_indices + index for index in views]


class _Dense(tuple):
    """Strides that equal those of every dense tensor of their shape."""

    def __new__(cls, strides, shape):
        made = super().__new__(cls, strides)
        made.shape = tuple(shape)
        return made

    def __eq__(self, other):
        return tuple.__eq__(self, other) or dense(self.shape, other)

    def __ne__(self, other):
        return not self == other

    __hash__ = tuple.__hash__


def dense(shape, strides) -> bool:
    """Whether a tensor with these strides has neither gaps nor elements that overlap."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def keep_strides() -> None:
    """Has PyTorch pass the gradients of results on as they come. It would lay each out like its result, and kernels that read it would then add
    in another order than without a plan."""
    for meta in torch._guards.TracingContext.get().fw_metadata.subclass_tangent_meta:
        expected = getattr(meta, "memory_format", None)
        if expected is not None and expected.stride is not None:
            meta.memory_format = dataclasses.replace(expected, stride=_Dense(expected.stride, expected.size))


def boxed(run):
    def call(args):
        return run(args)

    call._boxed_call = True
    return call


def stand_ins(graph: Graph, module: fx.GraphModule) -> tuple[fx.GraphModule, fx.GraphModule]:
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
        joint.modules = {str(id(part)): name for name, part in step.model.named_modules()}
        graph = Graph(step, joint, step.reason)
        return stand_ins(graph, module)

    def forward_compiler(module, example_inputs):
        graph = graphs_by_number[module.meta["elbowroom"]]
        graph.views = share_versions()
        keep_strides()
        return boxed(graph.forward)

    def backward_compiler(module, example_inputs):
        return boxed(graphs_by_number[module.meta["elbowroom"]].backward)

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

        return boxed(run)

    inner = aot_autograd(
        fw_compiler=forward_compiler,
        bw_compiler=backward_compiler,
        inference_compiler=inference_compiler,
        partition_fn=partition,
    )

    def backend(module, example_inputs, **kwargs):
        replace(module)
        step.reason = getattr(module, "compile_subgraph_reason", None)
        with torch._functorch.config.patch(donated_buffer=False), compiled_only():
            return inner(module, example_inputs)

    return backend
