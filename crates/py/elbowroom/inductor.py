"""Inductor's code for one graph: generated, counted without running it, and run.

Inductor writes a Python function that allocates buffers, calls kernels and deletes what is used up. The same function with other globals, with
tensors that have no memory and with kernels that do nothing, shows how many bytes it takes before any kernel is compiled. Kernels are compiled
when they are first called, so that a division that is only compared with others costs no compiler.
"""

from __future__ import annotations

import contextlib
import itertools
import types

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.utils import BoxedBool
from torch._inductor.virtualized import V
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from .errors import UnsupportedError
from .meter import Bytes

#: What would reorder a planned step, share buffers between its two halves, or generate code that cannot be counted.
OPTIONS = {
    "reorder_for_peak_memory": False,
    "layout_optimization": False,
    "memory_planning": False,
    "graph_partition": False,
    "cpp_wrapper": False,
    "triton.cudagraphs": False,
    "fx_graph_cache": False,
}

#: For planned divisions: fusing ops that only share an input would make all results of such ops at once, such as every mask of a dropout that
#: is recomputed, since these read the same seeds.
APART = {"score_fusion_memory_threshold": 1 << 40, "cpp.max_horizontal_fusion_size": 1}

_numbers = itertools.count()


def options(more=()) -> dict:
    """Those of :data:`OPTIONS`, and ``more``, that this version of PyTorch has."""
    known = config.get_config_copy()
    return {name: value for name, value in {**OPTIONS, **dict(more)}.items() if name in known}


class Kernel:
    """A kernel of generated code that is compiled when it is first called."""

    def __init__(self, compiler, argtypes, source):
        self._compile, self._found, self._call = lambda: compiler(AsyncCompile(), argtypes, source), None, None

    def start(self) -> None:
        """Begins to compile it."""
        if self._found is None:
            self._found = self._compile()

    def __call__(self, *args):
        if self._call is None:
            self.start()
            found = self._found
            self._call = found.result() if hasattr(found, "result") else found
        return self._call(*args)


@contextlib.contextmanager
def _deferred():
    """Generated code that is loaded inside compiles its kernels later."""
    compiler = AsyncCompile.cpp_pybinding
    AsyncCompile.cpp_pybinding = lambda self, argtypes, source: Kernel(compiler, argtypes, source)
    try:
        yield
    finally:
        AsyncCompile.cpp_pybinding = compiler


class _Made(TorchDispatchMode):
    """Counts what operators make that the generated code calls."""

    def __init__(self, meter):
        super().__init__()
        self.meter = meter

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.meter(*(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)))
        return result


def _nothing(*_, **__):
    pass


class Code:
    """The code for one graph, whose inputs and results are lists of tensors."""

    def __init__(self, module: fx.GraphModule, backward: bool, apart: bool):
        inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
        output = next(iter(module.graph.find_nodes(op="output")))
        # The other half of the step reads the results with the strides that they were traced with.
        output.meta["user_visible_output_idxs"] = [index for index, node in enumerate(output.args[0]) if isinstance(node, fx.Node)]
        fake = next(value.fake_mode for value in inputs if isinstance(value, torch.Tensor))
        with (
            config.patch(options(APART if apart else ())),
            _deferred(),
            V.set_fake_mode(fake),
            torch._guards.tracing(torch._guards.TracingContext(fake)),
            torch._C._DisableAutocast(),
            torch.no_grad(),
        ):
            made = compile_fx_inner(
                module, inputs, static_input_idxs=list(range(len(inputs))), cudagraphs=BoxedBool(False), is_backward=backward, graph_id=next(_numbers)
            )
        run = getattr(made, "current_callable", made)
        function = getattr(run, "__func__", run)
        if not isinstance(function, types.FunctionType):
            raise UnsupportedError(f"Inductor generated a {type(function).__name__} whose memory cannot be counted; mode='fast' needs its Python code")
        #: Keeps the code and its constants.
        self._made, self._run, self._function = made, run, function

    def kernels(self) -> list[Kernel]:
        """The kernels that it calls."""
        return [value for value in self._function.__globals__.values() if isinstance(value, Kernel)]

    def _with(self, **names):
        """The same code with other globals."""
        function = self._function
        copy = types.FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__, function.__closure__)
        return types.MethodType(copy, self._run.__self__) if hasattr(self._run, "__self__") else copy

    def count(self, args: list, meter) -> list:
        """Runs the code on tensors without memory; ``meter`` counts what it makes."""

        def empty(size, stride, dtype, *_, **__):
            made = torch.empty_strided(size, stride, dtype=dtype, device="meta")
            meter(made)
            return made

        names = {name: _nothing for name, value in self._function.__globals__.items() if isinstance(value, Kernel)}
        names |= {name: empty for name in self._function.__globals__ if name.startswith("empty_strided")}
        with _disable_current_modes(), torch.no_grad(), _Made(meter):
            return list(self._with(**names)(args))

    def run(self, args: list) -> list:
        """Runs the code and empties ``args``."""
        return list(self._run(args))

    def run_metered(self, args: list, meter) -> list:
        """The same, and ``meter`` counts every tensor that is made."""

        def counted(allocate):
            def empty(*args, **kwargs):
                made = allocate(*args, **kwargs)
                meter(made)
                return made

            return empty

        names = {name: counted(value) for name, value in self._function.__globals__.items() if name.startswith("empty_strided")}
        with _Made(meter):
            return list(self._with(**names)(args))


def without_memory(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same form on the device that has no memory."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


class Total(Bytes):
    """Bytes of tensors without memory; ``peak`` is above the ``base`` that exists throughout."""

    base = 0
